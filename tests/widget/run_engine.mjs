// Reads cases (JSON) from the file named first, runs the engine, writes results to the second.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [engine, input, output] = process.argv.slice(2);
const E = await import(pathToFileURL(engine).href);
// JSON has no infinities and no NaN.
const plain = (values) => Array.from(values ?? [], (v) => (Number.isFinite(v) ? v : String(v)));

const run = ({ Q, K, V, x, times, options }) => {
  const system = E.makeSystem(Q, K, V), n = x.length;
  const { theorem, undecided, codimension, hypotheses } = E.classify(system);
  const out = { theorem, undecided, codimension, holds: hypotheses.map((h) => h.holds) };
  if (!n) return out;
  const f = E.solve(system, x, n, options ?? {});
  Object.assign(out, {
    status: f.status, reason: f.reason, tCertified: f.tCertified, tLast: f.tLast, end: String(f.end),
    leaders: Array.from(f.leaders), leaderOf: Array.from(f.leaderOf), points: plain(f.points), falls: f.falls,
    error: String(f.error), text: E.describe(E.classify(system), f, 1),
    tokens: (times ?? []).map((t) => plain(f.tokens(t, undefined, false))),
    rescaled: (times ?? []).map((t) => plain(f.tokens(t, undefined, true))),
    attention: (times ?? []).map((t) => plain(f.attention(t))),
    star: plain(f.limitAttention()),
  });
  return out;
};
const cases = JSON.parse(readFileSync(input, "utf8"));
writeFileSync(output, JSON.stringify(cases.map(run)));
