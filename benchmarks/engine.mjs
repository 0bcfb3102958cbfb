/**
 * Time of the figure's engine under Node, from tokens to certification; one table.
 *
 *     node benchmarks/engine.mjs             30 data a row
 *     node benchmarks/engine.mjs 100         100 data a row
 *
 * Times are processor time, which a busy machine distorts less than the clock, but does distort: the
 * first line is a yardstick, 1e8 dependent additions, 4 cycles each (0.13 s at 3 GHz). Budgets:
 * n = 40 within 10 ms (median) and 16 ms (95 in 100), n = 200 within 250 ms (median).
 */
import { makeSystem, solve } from "../attnlib/widgets/engine.js";

const count = Number(process.argv[2] ?? 30);
const WARM = 5;

const diagonal = (...values) => values.map((v, i) => values.map((_, j) => (i === j ? v : 0)));
const ROWS = [
  ["V = I", diagonal(1, 1, 1), 40],
  ["diag(1, 1, -.5)", diagonal(1, 1, -0.5), 40],
  ["diag(1, .5, -.3)", diagonal(1, 0.5, -0.3), 40],
  ["diag(1, .9)", diagonal(1, 0.9), 40],
  ["V = I", diagonal(1, 1, 1), 200],
  ["V = I", diagonal(1, 1), 200],
  ["diag(1, 1, -.5)", diagonal(1, 1, -0.5), 200],
];

/** Uniform tokens in [-2, 2]^d (mulberry32). */
function box(n, d, seed) {
  let state = seed >>> 0;
  return Float64Array.from({ length: n * d }, () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return 4 * (((t ^ (t >>> 14)) >>> 0) / 2 ** 32) - 2;
  });
}

/** Milliseconds of processor time that a call takes. */
function cost(call) {
  const before = process.cpuUsage();
  call();
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1000;
}

let sum = 0;
const yardstick = cost(() => {
  for (let i = 0; i < 1e8; i++) sum += 0.5;
});
console.log(`yardstick ${yardstick.toFixed(0)} ms${sum ? "" : "!"}`);
console.log("V                  n    d  median ms  95 in 100  evaluations  certified");
for (const [name, V, n] of ROWS) {
  const d = V.length, eye = diagonal(...V.map(() => 1)), system = makeSystem(eye, eye, V);
  const times = [], evaluations = [];
  let certified = 0;
  const data = n > 100 ? Math.ceil(count / 3) : count;
  for (let k = 0; k < WARM + data; k++) {
    let future;
    const time = cost(() => (future = solve(system, box(n, d, k + 1), n, { rtol: 1e-9 })));
    if (k < WARM) continue;
    times.push(time);
    evaluations.push(future.evaluations);
    certified += future.status === "certified" ? 1 : 0;
  }
  const at = (list, share) => list.sort((a, b) => a - b)[Math.min(list.length - 1, Math.floor(share * list.length))];
  const cells = [
    name.padEnd(16), String(n).padStart(4), String(d).padStart(4), at(times, 0.5).toFixed(1).padStart(10),
    at(times, 0.95).toFixed(1).padStart(10), String(at(evaluations, 0.5)).padStart(12),
    `${certified} of ${data}`.padStart(12),
  ];
  console.log(cells.join(" "));
}
