/**
 * The engine of the live figure: self-attention dynamics in JavaScript, without a page.
 *
 *   dx_i/dt = sum_j P_ij V x_j,   P_i = softmax_j <Q x_i, K x_j>            (1.1)-(1.2)
 *
 * The same method as attnlib, with the same names, so that the two can be compared line by line:
 * coordinates in which V is diagonal, rescaled where it expands (`_frame.py`); DOP853 (`_march.py`); the
 * follower law, its gaps and its certificate (`_follow.py`); falls, sharp to float64 or integrated
 * (`_cascade.py`); clusters that nobody leaves (`_clusters.py`); eigenvalues and how well they are known
 * (`spectrum.py`); hypotheses (`_facts.py`). What a run does not know of its state it estimates by a
 * tangent vector carried along, where attnlib runs a second time.
 * A state it cannot decide is "undecided", with the reason; it is never called certified. With a complex
 * pair among the eigenvalues, falls are waited for and not followed in closed form.
 *
 * Tokens are flat Float64Arrays, row-major (n x d). Matrices given by the caller are arrays of rows.
 * States inside are coordinate-major (d x n): coordinate a of token i is y[a * n + i].
 */

const EPS = 2 ** -52;
const LOG2 = Math.LN2;

/** e^-38 is below the spacing of float64: attention with such gaps is 0/1 to the last bit. */
const BOOLEAN_GAP = 38;
/** In units of 1/rate: from here on a fall is made at once. */
const SHARP = 10;
/** Relative error of the velocity beyond which a run stops rather than go wrong. */
const NOISE_LIMIT = 1e-9;
/** Estimated relative error of a state beyond which it decides nothing. */
const UNSTABLE = 1e-3;
/** Weights below e^-40 of the largest are nothing to float64. */
const NEGLIGIBLE = -40;

/** Logarithm of 2 over 64 in two parts, the first with few bits, so that whole multiples of it are exact. */
const LOW_BITS = 1.162596423439437e-12, HIGH_BITS = 0.010830424695086549;
const ROOTS = Float64Array.from({ length: 64 }, (_, k) => 2 ** (k / 64));
const POWERS = Float64Array.from({ length: 160 }, (_, k) => 2 ** -k);

/** e^x for -110 <= x <= 0, to 2 units in the last place: twice as fast as Math.exp. */
function weightOf(x) {
  const k = (x * 92.33248261893655 - 0.5) | 0, r = x - k * HIGH_BITS - k * LOW_BITS;
  const series = 1 + r * (1 + r * (0.5 + r * (1 / 6 + r * (1 / 24 + r * (1 / 120)))));
  return series * ROOTS[k & 63] * POWERS[-(k >> 6)];
}

/* ---------------------------------------------------------------- small linear algebra ---- */

const range = (n) => Array.from({ length: n }, (_, i) => i);
const identity = (d) => range(d).map((i) => range(d).map((j) => (i === j ? 1 : 0)));
const transpose = (M) => M[0].map((_, j) => M.map((row) => row[j]));
const times = (M, N) => M.map((row) => N[0].map((_, j) => row.reduce((s, v, k) => s + v * N[k][j], 0)));
const apply = (M, v) => M.map((row) => row.reduce((s, a, k) => s + a * v[k], 0));
const dot = (u, v) => u.reduce((s, a, k) => s + a * v[k], 0);
const norm = (M) => Math.sqrt(M.flat().reduce((s, a) => s + a * a, 0));
const column = (M, j) => M.map((row) => row[j]);
const isDiagonal = (M) => M.every((row, i) => row.every((v, j) => i === j || v === 0));
const isSymmetric = (M) => M.every((row, i) => row.every((v, j) => v === M[j][i]));

/** x times 2^e, for any e. */
const ldexp = (x, e) => x * 2 ** Math.trunc(e / 2) * 2 ** (e - Math.trunc(e / 2));

/** Binary exponent of the largest entry (0 for zeros): entries times 2^-e are of size 1. */
function exponentOf(values) {
  let top = 0;
  for (const v of values) top = Math.max(top, Math.abs(v));
  if (top === 0) return 0;
  let e = Math.floor(Math.log2(top)) + 1;
  if (ldexp(1, e - 1) > top) e -= 1;
  return e;
}

function inverse(M) {
  const d = M.length;
  const rows = M.map((row, i) => [...row, ...range(d).map((j) => (i === j ? 1 : 0))]);
  for (let c = 0; c < d; c++) {
    let p = c;
    for (let r = c + 1; r < d; r++) if (Math.abs(rows[r][c]) > Math.abs(rows[p][c])) p = r;
    if (rows[p][c] === 0) return null;
    [rows[c], rows[p]] = [rows[p], rows[c]];
    const pivot = rows[c][c];
    rows[c] = rows[c].map((v) => v / pivot);
    for (let r = 0; r < d; r++) {
      const f = rows[r][c];
      if (r !== c && f !== 0) rows[r] = rows[r].map((v, k) => v - f * rows[c][k]);
    }
  }
  return rows.map((row) => row.slice(d));
}

/** Eigenvalues (falling) and orthonormal eigenvectors (columns) of a symmetric matrix: Jacobi. */
function symmetricEigen(M) {
  const d = M.length;
  const a = M.map((row) => [...row]);
  const q = identity(d);
  for (let sweep = 0; sweep < 60; sweep++) {
    let off = 0;
    for (let i = 0; i < d; i++) for (let j = 0; j < i; j++) off += a[i][j] ** 2;
    if (off === 0 || Math.sqrt(off) < 1e-300) break;
    for (let p = 0; p < d; p++) {
      for (let r = p + 1; r < d; r++) {
        if (Math.abs(a[p][r]) <= 1e-18 * Math.sqrt(Math.abs(a[p][p] * a[r][r]))) {
          a[p][r] = a[r][p] = 0;
          continue;
        }
        const theta = (a[r][r] - a[p][p]) / (2 * a[p][r]);
        const t = (theta >= 0 ? 1 : -1) / (Math.abs(theta) + Math.hypot(theta, 1));
        const c = 1 / Math.hypot(t, 1), s = t * c;
        for (let k = 0; k < d; k++) {
          const x = a[k][p], y = a[k][r];
          a[k][p] = c * x - s * y;
          a[k][r] = s * x + c * y;
        }
        for (let k = 0; k < d; k++) {
          const x = a[p][k], y = a[r][k];
          a[p][k] = c * x - s * y;
          a[r][k] = s * x + c * y;
          const u = q[k][p], v = q[k][r];
          q[k][p] = c * u - s * v;
          q[k][r] = s * u + c * v;
        }
      }
    }
  }
  const order = range(d).sort((i, j) => a[j][j] - a[i][i]);
  return { values: order.map((i) => a[i][i]), vectors: q.map((row) => order.map((i) => row[i])) };
}

/* ------------------------------------------------------------ eigenvalues, any dimension ---- */

/** Householder reflections to Hessenberg form, then Francis steps: M = Z T Z^T, T quasi-triangular. */
function realSchur(M) {
  const d = M.length, T = M.map((row) => [...row]), Z = identity(d);
  // x -> x - 2 w (w.x) / (w.w) on rows k.. of T from column `from` on, and on its columns, and on Z.
  const reflect = (w, k, from, to) => {
    const two = 2 / dot(w, w);
    for (let j = from; j < d; j++) {
      let s = 0;
      for (let m = 0; m < w.length; m++) s += w[m] * T[k + m][j];
      for (let m = 0; m < w.length; m++) T[k + m][j] -= two * s * w[m];
    }
    for (const [X, rows] of [[T, to], [Z, d]]) {
      for (let i = 0; i < rows; i++) {
        let s = 0;
        for (let m = 0; m < w.length; m++) s += w[m] * X[i][k + m];
        for (let m = 0; m < w.length; m++) X[i][k + m] -= two * s * w[m];
      }
    }
  };
  /** The vector of the reflection that takes x to a multiple of e_1; null if x is one. */
  const mirror = (x) => {
    const top = Math.max(...x.map(Math.abs));
    if (!x.slice(1).some((v) => v !== 0)) return null;
    const w = x.map((v) => v / top);
    w[0] += (w[0] < 0 ? -1 : 1) * Math.hypot(...w);
    return w;
  };
  for (let k = 0; k + 2 < d; k++) {
    const w = mirror(range(d - k - 1).map((m) => T[k + 1 + m][k]));
    if (!w) continue;
    reflect(w, k + 1, k, d);
    for (let i = k + 2; i < d; i++) T[i][k] = 0;
  }
  const size = norm(M) || 1;
  for (let high = d - 1, count = 0; high > 0; ) {
    let low = high;
    for (; low > 0; low--) {
      const near = Math.abs(T[low - 1][low - 1]) + Math.abs(T[low][low]) || size;
      if (Math.abs(T[low][low - 1]) <= EPS * near) {
        T[low][low - 1] = 0;
        break;
      }
    }
    if (low === high) {
      high -= 1;
      count = 0;
    } else if (low === high - 1) {
      const [[a, b], [c, e]] = [[T[low][low], T[low][high]], [T[high][low], T[high][high]]];
      const p = 0.5 * (a - e), disc = p * p + b * c;
      if (disc >= 0) {
        // A rotation that makes the block triangular: (z, c) is an eigenvector of the larger root.
        const z = p + (p < 0 ? -1 : 1) * Math.sqrt(disc), r = Math.hypot(z, c), co = z / r, si = c / r;
        for (let j = low; j < d; j++) {
          [T[low][j], T[high][j]] = [co * T[low][j] + si * T[high][j], co * T[high][j] - si * T[low][j]];
        }
        for (const [X, rows] of [[T, high + 1], [Z, d]]) {
          for (let i = 0; i < rows; i++) {
            [X[i][low], X[i][high]] = [co * X[i][low] + si * X[i][high], co * X[i][high] - si * X[i][low]];
          }
        }
        T[high][low] = 0;
      }
      high -= 2;
      count = 0;
    } else {
      if (++count > 60) return null;
      // Shifts: the eigenvalues of the last block [[y, .], [., x]], w = product of its other entries.
      let [x, y, w] = [T[high][high], T[high - 1][high - 1], T[high][high - 1] * T[high - 1][high]];
      if (count % 10 === 0) {
        const s = Math.abs(T[high][high - 1]) + Math.abs(T[high - 1][high - 2]);
        [x, y, w] = [x + 0.75 * s, x + 0.75 * s, -0.4375 * s * s]; // others now and then
      }
      const l = low, [t, u] = [T[l][l], T[l + 1][l]], r = x - t, s = y - t;
      let start = [r * s - w + T[l][l + 1] * u, u * (T[l + 1][l + 1] - t - r - s), u * T[l + 2][l + 1]];
      for (let k = l; k < high; k++) {
        const mirrored = mirror(start);
        if (mirrored) reflect(mirrored, k, Math.max(k - 1, l), Math.min(high, k + 3) + 1);
        if (k > l) for (let i = k + 1; i < k + start.length; i++) T[i][k - 1] = 0;
        start = range(Math.min(3, high - k)).map((m) => T[k + 1 + m][k]);
      }
    }
  }
  return { T, Z };
}

/** Complex numbers as [re, im]. */
const cadd = (x, y) => [x[0] + y[0], x[1] + y[1]];
const csub = (x, y) => [x[0] - y[0], x[1] - y[1]];
const cmul = (x, y) => [x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]];
const conj = (x) => [x[0], -x[1]];
const cabs = (x) => Math.hypot(x[0], x[1]);
const cdiv = (x, y) => {
  const s = cabs(y), u = [y[0] / s, -y[1] / s];
  return cmul([x[0] / s, x[1] / s], u);
};

/** The unitary rotation with rows (c, s), (-s*, c*) that takes the pair (x, y) to (r, 0), on rows and columns p, q. */
function rotate(T, Z, p, q, x, y) {
  if (cabs(x) === 0 && cabs(y) === 0) y = [1, 0];
  const r = Math.hypot(cabs(x), cabs(y)), c = conj([x[0] / r, x[1] / r]), s = conj([y[0] / r, y[1] / r]);
  for (let j = 0; j < T.length; j++) {
    const [u, v] = [T[p][j], T[q][j]];
    T[p][j] = cadd(cmul(c, u), cmul(s, v));
    T[q][j] = csub(cmul(conj(c), v), cmul(conj(s), u));
  }
  for (const X of [T, Z]) {
    for (const row of X) {
      const [u, v] = [row[p], row[q]];
      row[p] = cadd(cmul(conj(c), u), cmul(conj(s), v));
      row[q] = csub(cmul(c, v), cmul(s, u));
    }
  }
}

/** Complex Schur form V = Z T Z^*, T triangular, with the exact eigenvalues of the real form. */
function complexSchur(V) {
  const real = realSchur(V), d = V.length;
  if (!real) return null;
  const lift = (M) => M.map((row) => row.map((v) => [v, 0]));
  const T = lift(real.T), Z = lift(real.Z), values = range(d).map((i) => [real.T[i][i], 0]);
  for (let k = 0; k + 1 < d; k++) {
    if (real.T[k + 1][k] === 0) continue;
    const [a, b, c, e] = [real.T[k][k], real.T[k][k + 1], real.T[k + 1][k], real.T[k + 1][k + 1]];
    const half = 0.5 * (a + e), im = Math.sqrt(-(0.25 * (a - e) ** 2 + b * c));
    values[k] = [half, im];
    values[k + 1] = [half, -im];
    rotate(T, Z, k, k + 1, [half - e, im], [c, 0]); // (lam - e, c): an eigenvector of the block
    T[k + 1][k] = [0, 0];
  }
  return { T, Z, values };
}

/**
 * Eigenvalues of V, each with its unit right vector, its left vector (left^* right = 1) and its
 * condition number |left|; by falling modulus, then falling real and imaginary part. Any d.
 */
function eigen(V) {
  const d = V.length, form = complexSchur(V);
  if (!form) return null;
  const { T, Z, values } = form, tiny = EPS * (norm(V) || 1) * EPS;
  const away = (m, k) => {
    const gap = csub(values[k], values[m]);
    return cabs(gap) > tiny ? gap : [tiny, 0];
  };
  const unit = (v) => {
    const s = Math.hypot(...v.map(cabs));
    return v.map((z) => [z[0] / s, z[1] / s]);
  };
  const found = range(d).map((k) => {
    const x = range(d).map((m) => [m === k ? 1 : 0, 0]), y = range(d).map((m) => [m === k ? 1 : 0, 0]);
    for (let m = k - 1; m >= 0; m--) {
      for (let j = m + 1; j <= k; j++) x[m] = cadd(x[m], cmul(T[m][j], x[j]));
      x[m] = cdiv(x[m], away(m, k));
    }
    for (let m = k + 1; m < d; m++) {
      for (let j = k; j < m; j++) y[m] = cadd(y[m], cmul(T[j][m], y[j]));
      y[m] = cdiv(y[m], away(m, k));
    }
    // x in Schur coordinates, y a row vector there: right = Z x, left^* = y Z^*.
    let right = unit(Z.map((row) => row.reduce((s, z, m) => cadd(s, cmul(z, x[m])), [0, 0])));
    let row = Z.map((r) => r.reduce((s, z, m) => cadd(s, cmul(conj(z), y[m])), [0, 0]));
    const lead = right.reduce((b, z) => (cabs(z) > cabs(b) ? z : b));
    if (values[k][1] === 0) {
      const turn = conj(lead).map((v) => v / cabs(lead));
      right = right.map((z) => [cmul(z, turn)[0], 0]);
      const top = row.reduce((b, z) => (cabs(z) > cabs(b) ? z : b));
      row = row.map((z) => [cmul(z, conj(top))[0], 0]);
    }
    const overlap = row.reduce((s, z, m) => cadd(s, cmul(z, right[m])), [0, 0]);
    const dual = unit(row), short = cabs(overlap) / Math.hypot(...row.map(cabs));
    const left = row.map((z) => (cabs(overlap) > 0 ? cdiv(z, overlap) : z));
    return { re: values[k][0], im: values[k][1], right, left, dual, kappa: 1 / Math.max(short, 1e-300), at: k };
  });
  // Conjugates share their vectors.
  for (const p of found) {
    if (p.im >= 0) continue;
    const q = found.find((z) => z.re === p.re && z.im === -p.im && z.at === p.at - 1);
    Object.assign(p, { right: q.right.map(conj), left: q.left.map(conj), kappa: q.kappa });
  }
  found.sort((a, b) => Math.hypot(b.re, b.im) - Math.hypot(a.re, a.im) || b.re - a.re || b.im - a.im);
  return { pairs: found, form };
}

/** The Schur form reordered so that the eigenvalues at the places `chosen` come first. */
function reordered(form, chosen) {
  const T = form.T.map((row) => row.map((z) => [...z])), Z = form.Z.map((row) => row.map((z) => [...z]));
  const order = range(T.length);
  let to = 0;
  for (const at of [...chosen].sort((a, b) => a - b)) {
    for (let k = order.indexOf(at); k > to; k--) {
      // (T12, t2 - t1) is the eigenvector of [[t1, T12], [0, t2]] for t2.
      rotate(T, Z, k - 1, k, T[k - 1][k], csub(T[k][k], T[k - 1][k - 1]));
      T[k][k - 1] = [0, 0];
      [order[k - 1], order[k]] = [order[k], order[k - 1]];
    }
    to++;
  }
  return { T, Z };
}

/**
 * The invariant subspace F of some eigenvalues (closed under conjugation for a real basis):
 * {block: V on F, mean, departure, projector: norm of the projector along the rest, basis: real}.
 */
function invariant(form, chosen) {
  const { T, Z } = reordered(form, chosen), d = T.length, m = chosen.length;
  let mean = [0, 0];
  for (let k = 0; k < m; k++) mean = cadd(mean, [T[k][k][0] / m, T[k][k][1] / m]);
  let departure = 0;
  for (let i = 0; i < m; i++) {
    for (let j = i; j < m; j++) departure += cabs(i === j ? csub(T[i][i], mean) : T[i][j]) ** 2;
  }
  // T11 R - R T22 = T12, column by column from the left, row by row from below.
  const R = range(m).map(() => range(d - m).map(() => [0, 0]));
  let sum = 1;
  for (let j = 0; j < d - m; j++) {
    for (let i = m - 1; i >= 0; i--) {
      let s = T[i][m + j];
      for (let k = i + 1; k < m; k++) s = csub(s, cmul(T[i][k], R[k][j]));
      for (let k = 0; k < j; k++) s = cadd(s, cmul(R[i][k], T[m + k][m + j]));
      const gap = csub(T[i][i], T[m + j][m + j]);
      R[i][j] = cabs(gap) > 0 ? cdiv(s, gap) : [1 / EPS, 0];
      sum += cabs(R[i][j]) ** 2;
    }
  }
  // The orthogonal projector on F is real: its columns, the longest first, made orthonormal.
  const P = Z.map((u) => Z.map((v) => range(m).reduce((s, k) => s + cmul(u[k], conj(v[k]))[0], 0)));
  const columns = [];
  for (let k = 0; k < m; k++) {
    const rest = P.map((_, j) => {
      let v = column(P, j);
      for (let twice = 0; twice < 2; twice++) {
        for (const q of columns) {
          const c = dot(q, v);
          v = v.map((x, i) => x - c * q[i]);
        }
      }
      return v;
    });
    const v = rest.reduce((b, c) => (dot(c, c) > dot(b, b) ? c : b));
    const s = Math.hypot(...v);
    columns.push(v.map((x) => x / s));
  }
  return { mean, departure: Math.sqrt(departure), projector: Math.sqrt(sum), basis: transpose(columns) };
}

/** Eigenvalues of V in no particular order, each with a unit eigenvector x + i y (y null if real). */
function eigenpairs(V) {
  if (isDiagonal(V)) return V.map((row, i) => ({ re: row[i], im: 0, x: identity(V.length)[i], y: null }));
  if (isSymmetric(V)) {
    const { values, vectors } = symmetricEigen(V);
    return values.map((re, i) => ({ re, im: 0, x: column(vectors, i), y: null }));
  }
  return eigen(V).pairs.map(({ re, im, right }) => ({
    re, im, x: column(right, 0), y: im === 0 ? null : column(right, 1),
  }));
}

/** Eigenvalues that only rounding tells apart, with V = lam I on their subspace: write it so. */
function mergedPairs(V, pairs) {
  if (isDiagonal(V) || isSymmetric(V)) return pairs;
  const size = Math.max(...pairs.map((p) => Math.hypot(p.re, p.im))) || 1, { form, pairs: found } = eigen(V);
  let out = pairs;
  for (let head = 0; head < V.length; head++) {
    const near = range(V.length).filter(
      (k) => Math.hypot(pairs[k].re - pairs[head].re, pairs[k].im - pairs[head].im) <= 1e-10 * size,
    );
    if (near.length < 2 || near[0] !== head) continue;
    const { basis, mean } = invariant(form, near.map((k) => found[k].at)), lam = mean[0];
    const off = Math.max(...times(V, basis).flatMap((row, i) => row.map((x, k) => Math.abs(x - lam * basis[i][k]))));
    const trial = out.map((p, k) =>
      near.includes(k) ? { re: lam, im: 0, x: column(basis, near.indexOf(k)), y: null } : p,
    );
    if (off <= 8 * EPS * conditionOf(realColumns(trial)) * size) out = trial;
  }
  return out;
}

/** Real and imaginary parts of eigenvectors as the columns of a real matrix. */
function realColumns(pairs) {
  return transpose(pairs.filter((p) => p.im >= 0).flatMap((p) => (p.im > 0 ? [p.x, p.y] : [p.x])));
}

/** Condition number of a matrix, to within a factor of its dimension. */
function conditionOf(M) {
  const back = M.length === M[0].length ? inverse(M) : null;
  return back ? norm(M) * norm(back) : Infinity;
}

/**
 * Eigenvalues of V, by falling modulus, then falling real and imaginary part.
 * @param {number[][]} V d x d, d <= 3
 * @returns {{re: number, im: number}[]}
 */
export function spectrum(V) {
  return eigenpairs(V)
    .map(({ re, im }) => ({ re, im }))
    .sort((a, b) => Math.hypot(b.re, b.im) - Math.hypot(a.re, a.im) || b.re - a.re || b.im - a.im);
}

/**
 * V with the eigenvalue spectrum(V)[index] (and its conjugate) moved; eigenvectors are kept.
 * A pair of real eigenvalues becomes a conjugate pair if `to` has an imaginary part and another real
 * eigenvalue is there to join it; a conjugate pair dragged onto the axis becomes a double real one.
 * @returns {number[][]} a new d x d matrix, or V if V has no basis of eigenvectors
 */
export function withEigenvalue(V, index, to) {
  const d = V.length;
  const pairs = eigenpairs(V).sort(
    (a, b) => Math.hypot(b.re, b.im) - Math.hypot(a.re, a.im) || b.re - a.re || b.im - a.im,
  );
  const basis = [], block = identity(d).map((row) => row.map(() => 0));
  const put = (at, re, im) => {
    block[at][at] = re;
    if (im !== 0) {
      block[at + 1][at + 1] = re;
      block[at][at + 1] = im;
      block[at + 1][at] = -im;
    }
  };
  const chosen = pairs[index], used = new Set();
  const isPair = chosen.im !== 0;
  const mate = isPair
    ? pairs.findIndex((p, k) => k !== index && p.re === chosen.re && p.im === -chosen.im)
    : pairs.findIndex((p, k) => k !== index && p.im === 0);
  if (isPair) {
    basis.push(chosen.x, chosen.im > 0 ? chosen.y : chosen.y.map((v) => -v));
    used.add(index).add(mate);
    if (to.im !== 0) put(0, to.re, Math.abs(to.im));
    else {
      put(0, to.re, 0);
      put(1, to.re, 0);
    }
  } else if (to.im !== 0 && mate >= 0) {
    basis.push(chosen.x, pairs[mate].x);
    used.add(index).add(mate);
    put(0, to.re, Math.abs(to.im));
  } else {
    basis.push(chosen.x);
    used.add(index);
    put(0, to.re, 0);
  }
  for (let k = 0; k < d; k++) {
    if (used.has(k)) continue;
    const p = pairs[k], at = basis.length;
    if (p.im === 0) {
      basis.push(p.x);
      put(at, p.re, 0);
    } else if (p.im > 0) {
      basis.push(p.x, p.y);
      put(at, p.re, p.im);
    }
  }
  const right = transpose(basis), left = inverse(right);
  if (!left || norm(right) * norm(left) > 1e8) return V;
  return times(right, times(block, left));
}

/** e^M, by scaling and squaring of its Taylor series. */
function expm(M) {
  const d = M.length, s = Math.max(0, Math.ceil(Math.log2(norm(M) + 1e-300)) + 2);
  const N = M.map((row) => row.map((v) => v / 2 ** s));
  let sum = identity(d), term = identity(d);
  for (let k = 1; k <= 16; k++) {
    term = times(term, N).map((row) => row.map((v) => v / k));
    sum = sum.map((row, i) => row.map((v, j) => v + term[i][j]));
  }
  for (let k = 0; k < s; k++) sum = times(sum, sum);
  return sum;
}

/* --------------------------------------------------------------------- system and frame ---- */

function matrixOf(name, value, columns) {
  const M = typeof value === "number" ? [[value]] : value;
  if (!Array.isArray(M) || !M.length || !M.every((row) => row.length === M[0].length && row.length)) {
    throw new RangeError(`${name} must be a rectangular array of rows.`);
  }
  const out = M.map((row) => Array.from(row, Number));
  if (!out.flat().every(Number.isFinite)) throw new RangeError(`${name} must hold finite numbers.`);
  if (columns && out[0].length !== columns) {
    throw new RangeError(`${name} must have ${columns} columns: got ${out[0].length}.`);
  }
  return out;
}

/**
 * Weights of self-attention.
 * @param {number[][]} Q k x d
 * @param {number[][]} K k x d
 * @param {number[][]} V d x d; numbers will do for d = 1
 */
export function makeSystem(Q, K, V) {
  const v = matrixOf("V", V);
  if (v.length !== v[0].length) throw new RangeError(`V must be square: got ${v.length} x ${v[0].length}.`);
  if (v.length > 3) throw new RangeError(`V must be at most 3 x 3 here: got ${v.length} x ${v.length}.`);
  const q = matrixOf("Q", Q, v.length), k = matrixOf("K", K, v.length);
  if (q.length !== k.length) throw new RangeError("Q and K must have the same number of rows.");
  return { d: v.length, k: q.length, Q: q, K: k, V: v, A: times(transpose(q), k) };
}

/** V in coordinates in which it is diagonal (complex pairs: 2 x 2 blocks); `defect` says why not. */
function makeModes(system) {
  const { d, V } = system;
  const pairs = mergedPairs(V, eigenpairs(V)).sort((a, b) => b.re - a.re || b.im - a.im);
  const size = Math.max(...pairs.map((p) => Math.hypot(p.re, p.im))) || 1;
  const rows = [];
  const re = new Float64Array(d), im = new Float64Array(d), mate = new Int32Array(d).fill(-1);
  for (const p of pairs) {
    const a = rows.length;
    if (a >= d) break;
    if (p.im < 0) continue;
    rows.push(p.x);
    re[a] = p.re;
    if (p.im > 0) {
      rows.push(p.y);
      re[a + 1] = p.re;
      im[a] = im[a + 1] = p.im;
      mate[a] = a + 1;
      mate[a + 1] = a;
    }
  }
  let right = transpose(rows), left = inverse(right);
  const condition = left ? norm(right) * norm(left) : Infinity;
  const diagonal = isDiagonal(V);
  const rounding = diagonal ? 0 : 8 * EPS * Math.min(condition, 1e8) * size;
  let defect = "";
  if (!(condition < 1e7)) {
    defect = "V is defective or nearly so";
    right = left = identity(d);
  } else if (!mate.some((m) => m >= 0)) {
    for (let a = 1; a < d; a++) if (Math.abs(re[a] - re[a - 1]) <= rounding) re[a] = re[a - 1];
  }
  const p = exponentOf(system.Q.flat()), q = exponentOf(system.K.flat());
  const unit = (M, e) => M.map((row) => row.map((v) => ldexp(v, -e)));
  const A = times(transpose(unit(system.Q, p)), unit(system.K, q));
  const form = times(transpose(right), times(A, right));
  return {
    d, re, im, mate, size, rounding, defect, right, left, form, condition,
    complex: mate.some((m) => m >= 0),
    speed: Float64Array.from(re, (v, a) => Math.hypot(v, im[a])),
    rate: Math.max(re[0], 0),
    expanding: Array.from(re, (v) => !defect && v > rounding),
    logWeights: (p + q) * LOG2,
  };
}

/** Coordinates of one run: modes (rescaled where V expands), or e^{-rate t} x where V is defective. */
class Frame {
  constructor(system, tokens, n, logCounts) {
    this.system = system;
    this.modes = makeModes(system);
    this.n = n;
    this.d = system.d;
    this.exponent = exponentOf(tokens);
    this.logForm = 2 * this.exponent * LOG2 + this.modes.logWeights;
    this.logCounts = logCounts;
    const { d } = this;
    this.X = new Float64Array(n * d);
    this.U = new Float64Array(n * d);
    this.weights = new Float64Array(n);
    this.mean = new Float64Array(d);
    this.form = this.modes.form;
    this.formNorm = norm(this.form) || 1;
    this.evaluations = 0;
  }

  start(tokens) {
    const { n, d } = this, y = new Float64Array(n * d);
    for (let i = 0; i < n; i++) {
      for (let a = 0; a < d; a++) {
        let s = 0;
        for (let b = 0; b < d; b++) s += this.modes.left[a][b] * ldexp(tokens[i * d + b], -this.exponent);
        y[a * n + i] = s;
      }
    }
    return y;
  }

  /** Tokens as x = e^{rate t} X, into this.X; queries times the common factor, into this.U. */
  heads(t, y) {
    const { n, d, X, U, form, modes } = this;
    const { re, im, mate, expanding, rate, defect } = modes;
    for (let a = 0; a < d; a++) {
      const g = defect ? 1 : expanding[a] ? Math.exp((re[a] - rate) * t) : Math.exp(-rate * t);
      const at = a * n;
      if (!defect && expanding[a] && mate[a] > a) {
        const c = g * Math.cos(im[a] * t), s = g * Math.sin(im[a] * t);
        for (let i = 0; i < n; i++) {
          const u = y[at + i], v = y[at + n + i];
          X[at + i] = c * u + s * v;
          X[at + n + i] = c * v - s * u;
        }
        a++;
      } else for (let i = 0; i < n; i++) X[at + i] = g * y[at + i];
    }
    const factor = Math.exp(Math.max(-690, Math.min(690, 2 * rate * t + this.logForm)));
    for (let b = 0; b < d; b++) {
      for (let i = 0; i < n; i++) {
        let s = 0;
        for (let a = 0; a < d; a++) s += X[a * n + i] * form[a][b];
        U[b * n + i] = s * factor;
      }
    }
    return factor;
  }

  /** Weights of row i (not normalised) into this.weights; returns their sum. */
  row(i) {
    const { n, d, X, U, weights, logCounts } = this;
    let top = -Infinity, total = 0;
    for (let j = 0; j < n; j++) {
      let s = logCounts ? logCounts[j] : 0;
      for (let a = 0; a < d; a++) s += U[a * n + i] * X[a * n + j];
      weights[j] = s;
      if (s > top) top = s;
    }
    for (let j = 0; j < n; j++) total += weights[j] = Math.exp(weights[j] - top);
    return total;
  }

  velocity(t, y, out) {
    this.evaluations++;
    this.heads(t, y);
    const { n, d, X, U, weights, mean, modes, system, logCounts } = this;
    const { re, im, mate, expanding, rate, defect } = modes;
    const n2 = 2 * n;
    for (let i = 0; i < n; i++) {
      // Scores, their maximum, then exponentials and means of those that are not negligible.
      let top = -Infinity, total = 0, m0 = 0, m1 = 0, m2 = 0;
      if (d === 3) {
        const u = U[i], v = U[n + i], w = U[n2 + i];
        for (let j = 0; j < n; j++) {
          const s = (weights[j] = u * X[j] + v * X[n + j] + w * X[n2 + j]);
          if (s > top) top = s;
        }
      } else if (d === 2) {
        const u = U[i], v = U[n + i];
        for (let j = 0; j < n; j++) {
          const s = (weights[j] = u * X[j] + v * X[n + j]);
          if (s > top) top = s;
        }
      } else {
        const u = U[i];
        for (let j = 0; j < n; j++) {
          const s = (weights[j] = u * X[j]);
          if (s > top) top = s;
        }
      }
      if (logCounts) {
        top = -Infinity;
        for (let j = 0; j < n; j++) top = Math.max(top, (weights[j] += logCounts[j]));
      }
      const floor = top + NEGLIGIBLE;
      for (let j = 0; j < n; j++) {
        if (weights[j] < floor) continue;
        const e = weightOf(weights[j] - top);
        total += e;
        m0 += e * y[j];
        if (d > 1) m1 += e * y[n + j];
        if (d > 2) m2 += e * y[n2 + j];
      }
      mean[0] = m0 / total;
      if (d > 1) mean[1] = m1 / total;
      if (d > 2) mean[2] = m2 / total;
      if (!defect) for (let a = 0; a < d; a++) if (expanding[a]) mean[a] -= y[a * n + i];
      for (let a = 0; a < d; a++) {
        const at = a * n + i;
        if (defect) {
          let s = 0;
          for (let b = 0; b < d; b++) s += system.V[a][b] * mean[b];
          out[at] = s - rate * y[at];
        } else if (mate[a] < 0) out[at] = re[a] * mean[a];
        else if (mate[a] > a) out[at] = re[a] * mean[a] + im[a] * mean[a + 1];
        else out[at] = re[a] * mean[a] - im[a] * mean[a - 1];
      }
    }
    return out;
  }

  /** Relative error of a velocity that rounding of the scores may cause now (`Frame.noise`). */
  noise(t, y) {
    const { n, d, X, modes } = this;
    let size = 0;
    for (const v of y) size = Math.max(size, Math.abs(v));
    const eta = Math.log(8 * EPS * this.formNorm * d * (size || 1) ** 2) + 2 * modes.rate * t + this.logForm;
    if (eta < Math.log(1e-11)) return Math.exp(Math.max(eta, -700));
    const factor = this.heads(t, y), { U } = this;
    const reach = new Float64Array(d), spread = new Float64Array(d), worst = new Float64Array(d);
    for (let a = 0; a < d; a++) {
      for (let i = 0; i < n; i++) {
        reach[a] = Math.max(reach[a], Math.abs(X[a * n + i]));
        spread[a] = Math.max(spread[a], Math.abs(y[a * n + i]));
      }
    }
    const scores = this.weights, mean = new Float64Array(d), sums = new Float64Array(d);
    for (let i = 0; i < n; i++) {
      let largest = 0, top = -Infinity, total = 0;
      for (let a = 0; a < d; a++) largest += Math.abs(U[a * n + i]) * reach[a];
      const shift = 2 * 4 * EPS * largest;
      for (let j = 0; j < n; j++) {
        let s = this.logCounts ? this.logCounts[j] : 0;
        for (let a = 0; a < d; a++) s += U[a * n + i] * X[a * n + j];
        scores[j] = s;
        if (s > top) top = s;
      }
      mean.fill(0);
      for (let j = 0; j < n; j++) {
        scores[j] -= top;
        if (scores[j] < NEGLIGIBLE) continue;
        const w = weightOf(scores[j]);
        total += w;
        for (let a = 0; a < d; a++) mean[a] += w * y[a * n + j];
      }
      const log = Math.log(total), far = -Math.expm1(-shift);
      sums.fill(0);
      for (let j = 0; j < n; j++) {
        const at = scores[j] + shift;
        if (at < NEGLIGIBLE) continue;
        const w = (Math.exp(Math.min(at, log)) * far) / total;
        for (let a = 0; a < d; a++) sums[a] += w * Math.abs(y[a * n + j] - mean[a] / total);
      }
      for (let a = 0; a < d; a++) worst[a] = Math.max(worst[a], sums[a]);
    }
    let out = 0;
    for (let a = 0; a < d; a++) out = Math.max(out, worst[a] / Math.max(spread[a], 1e-300));
    return factor === 0 ? 0 : out;
  }

  /** x(t) or z(t) of a state, row-major, into out. */
  tokens(t, y, out, rescaled) {
    const { n, d, modes } = this;
    const { re, im, mate, expanding, rate, right, defect } = modes;
    const back = defect && rescaled ? expm(this.system.V.map((row) => row.map((v) => -t * v))) : null;
    const c = new Float64Array(d), x = new Float64Array(d);
    for (let i = 0; i < n; i++) {
      for (let a = 0; a < d; a++) c[a] = y[a * n + i];
      if (defect) {
        const g = Math.exp(rate * t);
        for (let a = 0; a < d; a++) c[a] *= g;
        if (back) c.set(apply(back, Array.from(c)));
      } else {
        for (let a = 0; a < d; a++) {
          const turn = expanding[a] === rescaled ? 0 : rescaled ? -t : t;
          if (turn === 0) continue;
          const g = Math.exp(re[a] * turn);
          if (mate[a] > a) {
            const cos = g * Math.cos(im[a] * turn), sin = g * Math.sin(im[a] * turn);
            const u = c[a], v = c[a + 1];
            c[a] = cos * u + sin * v;
            c[a + 1] = cos * v - sin * u;
            a++;
          } else c[a] *= g;
        }
      }
      for (let b = 0; b < d; b++) {
        x[b] = 0;
        for (let a = 0; a < d; a++) x[b] += right[b][a] * c[a];
        out[i * d + b] = ldexp(x[b], this.exponent);
      }
    }
    return out;
  }
}

/* -------------------------------------------------------------------------- integration ---- */

// Coefficients of DOP853 (Hairer, Norsett and Wanner), as in scipy.integrate (BSD-3-Clause).
const C = [0, 0.05260015195876773, 0.0789002279381516, 0.1183503419072274, 0.2816496580927726, 0.3333333333333333, 0.25, 0.3076923076923077, 0.6512820512820513, 0.6, 0.8571428571428571, 1.0, 1.0, 0.1, 0.2, 0.7777777777777778];
const A = [
  [],
  [0.05260015195876773],
  [0.0197250569845379, 0.0591751709536137],
  [0.02958758547680685, 0, 0.08876275643042054],
  [0.2413651341592667, 0, -0.8845494793282861, 0.924834003261792],
  [0.037037037037037035, 0, 0, 0.17082860872947386, 0.12546768756682242],
  [0.037109375, 0, 0, 0.17025221101954405, 0.06021653898045596, -0.017578125],
  [0.03709200011850479, 0, 0, 0.17038392571223998, 0.10726203044637328, -0.015319437748624402, 0.008273789163814023],
  [0.6241109587160757, 0, 0, -3.3608926294469414, -0.868219346841726, 27.59209969944671, 20.154067550477894, -43.48988418106996],
  [0.47766253643826434, 0, 0, -2.4881146199716677, -0.590290826836843, 21.230051448181193, 15.279233632882423, -33.28821096898486, -0.020331201708508627],
  [-0.9371424300859873, 0, 0, 5.186372428844064, 1.0914373489967295, -8.149787010746927, -18.52006565999696, 22.739487099350505, 2.4936055526796523, -3.0467644718982196],
  [2.273310147516538, 0, 0, -10.53449546673725, -2.0008720582248625, -17.9589318631188, 27.94888452941996, -2.8589982771350235, -8.87285693353063, 12.360567175794303, 0.6433927460157636],
  [0.054293734116568765, 0, 0, 0, 0, 4.450312892752409, 1.8915178993145003, -5.801203960010585, 0.3111643669578199, -0.1521609496625161, 0.20136540080403034, 0.04471061572777259],
  [0.056167502283047954, 0, 0, 0, 0, 0, 0.25350021021662483, -0.2462390374708025, -0.12419142326381637, 0.15329179827876568, 0.00820105229563469, 0.007567897660545699, -0.008298],
  [0.03183464816350214, 0, 0, 0, 0, 0.028300909672366776, 0.053541988307438566, -0.05492374857139099, 0, 0, -0.00010834732869724932, 0.0003825710908356584, -0.00034046500868740456, 0.1413124436746325],
  [-0.42889630158379194, 0, 0, 0, 0, -4.697621415361164, 7.683421196062599, 4.06898981839711, 0.3567271874552811, 0, 0, 0, -0.0013990241651590145, 2.9475147891527724, -9.15095847217987],
];
const B = A[12]; // first same as last
const E3 = [...A[12], 0];
[E3[0], E3[8], E3[11]] = [-0.18980075407240762, -0.4226823213237919, 0.02265179219836082];
const E5 = [0.01312004499419488, 0, 0, 0, 0, -1.2251564463762044, -0.4957589496572502, 1.6643771824549864, -0.35032884874997366, 0.3341791187130175, 0.08192320648511571, -0.022355307863886294, 0];
const D = [
  [-8.428938276109013, 0, 0, 0, 0, 0.5667149535193777, -3.0689499459498917, 2.38466765651207, 2.117034582445028, -0.871391583777973, 2.2404374302607883, 0.6315787787694688, -0.08899033645133331, 18.148505520854727, -9.194632392478356, -4.436036387594894],
  [10.427508642579134, 0, 0, 0, 0, 242.28349177525817, 165.20045171727028, -374.5467547226902, -22.113666853125306, 7.733432668472264, -30.674084731089398, -9.332130526430229, 15.697238121770845, -31.139403219565178, -9.35292435884448, 35.81684148639408],
  [19.985053242002433, 0, 0, 0, 0, -387.0373087493518, -189.17813819516758, 527.8081592054236, -11.57390253995963, 6.8812326946963, -1.0006050966910838, 0.7777137798053443, -2.778205752353508, -60.19669523126412, 84.32040550667716, 11.99229113618279],
  [-25.69393346270375, 0, 0, 0, 0, -154.18974869023643, -231.5293791760455, 357.6391179106141, 93.40532418362432, -37.45832313645163, 104.0996495089623, 29.8402934266605, -43.53345659001114, 96.32455395918828, -39.17726167561544, -149.72683625798564],
];

/** One run of DOP853 with scipy's step control; knots, states and slopes are kept. */
class Run {
  constructor(frame, y0, horizon, rtol, watchGrowth, atol = null) {
    let scale = 0;
    for (const v of y0) scale = Math.max(scale, Math.abs(v));
    this.scale = scale || 1;
    this.frame = frame;
    this.size = y0.length;
    this.horizon = horizon;
    this.rtol = rtol;
    this.atol = atol ?? new Float64Array(y0.length).fill(0.01 * rtol * this.scale);
    this.k = range(16).map(() => new Float64Array(this.size));
    this.y1 = new Float64Array(this.size);
    this.t = 0;
    this.y = y0;
    this.f = frame.velocity(0, y0, new Float64Array(this.size));
    this.knots = [0];
    this.states = [y0];
    this.slopes = [this.f];
    this.inner = []; // stages of each step, where an evaluation costs more than keeping them
    this.pieces = new Map();
    this.status = horizon > 0 ? "running" : "finished";
    this.h = this.firstStep();
    this.growth = watchGrowth ? new Growth(frame, this.size) : null;
    this.errorEstimate = EPS;
    this.errors = [EPS];
  }

  firstStep() {
    const { y, f, atol, rtol, size, frame } = this;
    const rms = (at) => {
      let s = 0;
      for (let i = 0; i < size; i++) s += at(i) ** 2;
      return Math.sqrt(s / size);
    };
    const w = (i) => atol[i] + Math.abs(y[i]) * rtol;
    const d0 = rms((i) => y[i] / w(i)), d1 = rms((i) => f[i] / w(i));
    let h0 = d0 < 1e-5 || d1 < 1e-5 ? 1e-6 : (0.01 * d0) / d1;
    h0 = Math.min(h0, this.horizon);
    for (let i = 0; i < size; i++) this.y1[i] = y[i] + h0 * f[i];
    const f1 = frame.velocity(h0, this.y1, this.k[1]);
    const d2 = rms((i) => (f1[i] - f[i]) / w(i)) / h0;
    const h1 = d1 <= 1e-15 && d2 <= 1e-15 ? Math.max(1e-6, h0 * 1e-3) : (0.01 / Math.max(d1, d2)) ** (1 / 8);
    return Math.min(100 * h0, h1, this.horizon);
  }

  stages(t, y, h, from, to) {
    const { k, y1, size, frame } = this;
    for (let s = from; s < to; s++) {
      y1.set(y);
      const row = A[s];
      for (let m = 0; m < row.length; m++) {
        const a = row[m] * h;
        if (a === 0) continue;
        const km = k[m];
        for (let i = 0; i < size; i++) y1[i] += a * km[i];
      }
      frame.velocity(t + C[s] * h, y1, k[s]);
    }
  }

  /** One accepted step; false when the run has ended. */
  step() {
    if (this.status !== "running") return false;
    const { k, size, atol, rtol, frame } = this;
    const least = 10 * (this.t + 1) * EPS;
    let rejected = false;
    for (;;) {
      const h = Math.min(Math.max(this.h, least), this.horizon - this.t);
      if (this.h < least && rejected) {
        this.status = "step";
        return false;
      }
      k[0].set(this.f);
      this.stages(this.t, this.y, h, 1, 12);
      const next = new Float64Array(this.y);
      for (let m = 0; m < 12; m++) {
        const b = B[m] * h, km = k[m];
        if (b !== 0) for (let i = 0; i < size; i++) next[i] += b * km[i];
      }
      const slope = frame.velocity(this.t + h, next, new Float64Array(size));
      k[12].set(slope);
      let e5 = 0, e3 = 0;
      for (let i = 0; i < size; i++) {
        const w = atol[i] + Math.max(Math.abs(this.y[i]), Math.abs(next[i])) * rtol;
        let a = 0, b = 0;
        for (let m = 0; m < 13; m++) {
          a += E5[m] * k[m][i];
          b += E3[m] * k[m][i];
        }
        e5 += (a / w) ** 2;
        e3 += (b / w) ** 2;
      }
      const error = e5 === 0 && e3 === 0 ? 0 : (h * e5) / Math.sqrt((e5 + 0.01 * e3) * size);
      if (!(error < 1)) {
        if (!Number.isFinite(error) && h <= least) {
          this.status = "step";
          return false;
        }
        this.h = h * Math.max(0.2, Number.isFinite(error) ? 0.9 * error ** (-1 / 8) : 0.2);
        rejected = true;
        continue;
      }
      let grow = error === 0 ? 10 : Math.min(10, 0.9 * error ** (-1 / 8));
      if (rejected) grow = Math.min(1, grow);
      const now = h === this.horizon - this.t ? this.horizon : this.t + h;
      if (frame.noise(now, next) > NOISE_LIMIT) {
        this.status = "precision";
        return false;
      }
      if (this.growth) {
        this.growth.step(now, h, next, slope, 0.01 * rtol);
        this.errorEstimate = this.growth.error;
        if (this.growth.error > Math.max(UNSTABLE, 1e3 * rtol)) {
          this.status = "unstable";
          return false;
        }
      } else this.errorEstimate += 0.1 * rtol;
      this.h = h * grow;
      this.t = now;
      this.y = next;
      this.f = slope;
      this.knots.push(now);
      this.states.push(next);
      this.slopes.push(slope);
      this.errors.push(this.errorEstimate);
      if (frame.n > 60 && frame.n <= 300) this.inner.push(k.slice(1, 12).map((stage) => stage.slice()));
      if (now >= this.horizon) this.status = "finished";
      return true;
    }
  }

  /** Forget what came after knot k. */
  cut(k) {
    for (const list of [this.knots, this.states, this.slopes, this.errors]) list.length = k + 1;
    this.inner.length = Math.min(this.inner.length, k);
    [this.t, this.y, this.f] = [this.knots[k], this.states[k], this.slopes[k]];
    this.pieces.clear();
  }

  /** State at t <= the last knot, into out: dense output of order 7 (Hermite cubic beyond 300 tokens). */
  state(t, out) {
    const { knots, states, slopes, size } = this;
    let low = 0, high = knots.length - 1;
    while (high - low > 1) {
      const mid = (low + high) >> 1;
      if (knots[mid] <= t) low = mid;
      else high = mid;
    }
    if (knots.length === 1 || t <= knots[low]) return out.set(states[low]), out;
    if (t >= knots[high]) return out.set(states[high]), out;
    const h = knots[high] - knots[low], x = (t - knots[low]) / h, y = states[low];
    const end = states[high], f0 = slopes[low], f1 = slopes[high];
    if (this.frame.n > 300) {
      for (let i = 0; i < size; i++) {
        const delta = end[i] - y[i];
        const a = h * f0[i] - delta, b = delta - h * f1[i];
        out[i] = y[i] + x * (delta + (1 - x) * (a * (1 - x) + b * x));
      }
      return out;
    }
    if (!this.pieces.has(low)) {
      const { k } = this;
      k[0].set(f0);
      if (this.inner[low]) this.inner[low].forEach((stage, s) => k[s + 1].set(stage));
      else this.stages(knots[low], y, h, 1, 12);
      k[12].set(f1);
      this.stages(knots[low], y, h, 13, 16);
      const F = range(7).map(() => new Float64Array(size));
      for (let i = 0; i < size; i++) {
        const delta = end[i] - y[i];
        F[0][i] = delta;
        F[1][i] = h * f0[i] - delta;
        F[2][i] = 2 * delta - h * (f1[i] + f0[i]);
        for (let r = 0; r < 4; r++) {
          let s = 0;
          for (let m = 0; m < 16; m++) s += D[r][m] * k[m][i];
          F[3 + r][i] = h * s;
        }
      }
      if (this.pieces.size > 400) this.pieces.clear();
      this.pieces.set(low, F);
    }
    const F = this.pieces.get(low);
    for (let i = 0; i < size; i++) {
      let v = 0;
      for (let r = 0; r < 7; r++) v = (v + F[6 - r][i]) * (r % 2 === 0 ? x : 1 - x);
      out[i] = y[i] + v;
    }
    return out;
  }
}

/** Carries one tangent vector along a run: how much small errors have grown (`_march._Growth`). */
class Growth {
  constructor(frame, size) {
    this.frame = frame;
    this.size = size;
    let seed = size * 2654435761;
    this.w = new Float64Array(size).map(() => {
      seed = (Math.imul(seed ^ (seed >>> 15), 2246822519) + 374761393) >>> 0;
      return seed / 2 ** 31 - 1;
    });
    this.unit();
    for (const name of ["turn", "second", "third", "point"]) this[name] = new Float64Array(size);
    this.error = EPS;
  }

  unit() {
    let s = 0;
    for (const v of this.w) s += v * v;
    s = Math.sqrt(s);
    if (s > 0) for (let i = 0; i < this.size; i++) this.w[i] /= s;
    return s;
  }

  /** J v at (t, y), into out; returns its length. */
  turned(t, y, slope, v, out) {
    const { size, point } = this;
    let top = 0, length = 0, most = 0;
    for (let i = 0; i < size; i++) {
      top = Math.max(top, Math.abs(y[i]));
      length += v[i] * v[i];
    }
    const delta = (1e-7 * (top || 1)) / (Math.sqrt(length) || 1);
    for (let i = 0; i < size; i++) point[i] = y[i] + delta * v[i];
    this.frame.velocity(t, point, out);
    for (let i = 0; i < size; i++) {
      out[i] = (out[i] - slope[i]) / delta;
      most += out[i] * out[i];
    }
    return Math.sqrt(most);
  }

  /** e^{hJ} w by Taylor polynomials of degree three, which grow neither what decays nor what turns (one, if tokens are many). */
  step(t, h, y, slope, local) {
    const { size, w, turn, second, third } = this, many = this.frame.n > 100;
    let grown = 0;
    for (let done = 0, pieces = 1; done < pieces; done++) {
      const length = this.turned(t, y, slope, w, turn);
      if (done === 0) pieces = Math.min(many ? 2 : 12, 1 + Math.trunc((h * length) / 1.5));
      const s = h / pieces, curved = s * length > 0.05 && !many;
      if (curved) {
        this.turned(t, y, slope, turn, second);
        this.turned(t, y, slope, second, third);
      }
      let rate = 0;
      for (let i = 0; i < size; i++) rate += w[i] * turn[i];
      for (let i = 0; i < size; i++) {
        w[i] += s * turn[i];
        if (curved) w[i] += ((s * s) / 2) * second[i] + (s ** 3 / 6) * third[i];
      }
      const stretched = this.unit(), across = Math.sqrt(Math.max(length * length - rate * rate, 0));
      grown += rate > 0 && across < 0.5 * rate ? s * rate : Math.log(stretched + 1e-300);
    }
    this.error = Math.min(this.error * Math.exp(Math.min(grown, 300)) + local, 1e300);
  }
}

/* ------------------------------------------------------------------- the follower law ---- */

/**
 * x_i(t) = e^{tau_i} o_i + e^{tV} pi_l(i), in modes (`_follow.Following`); arrays n x d, row-major.
 */
class Following {
  constructor(frame, time, leaderOf) {
    Object.assign(this, { frame, time, leaderOf, n: frame.n, d: frame.d });
    const { n, d } = this;
    this.pi = new Float64Array(n * d);
    this.offset = new Float64Array(n * d);
    this.tau = new Float64Array(n);
    this.eps = new Float64Array(d);
    this.epsOffset = new Float64Array(n * d);
  }

  clone(changes = {}) {
    return Object.assign(Object.create(Following.prototype), this, changes);
  }

  get leaders() {
    return Int32Array.from(new Set(this.leaderOf)).sort();
  }

  /** A state of the frame at time t, with radii from the estimated error of the run. */
  static of(frame, t, y, leaderOf, error) {
    const out = new Following(frame, t, leaderOf);
    const { n, d } = frame, { re, im, mate, expanding, condition } = frame.modes;
    const own = new Float64Array(n * d); // rescaled in every mode
    for (let a = 0; a < d; a++) {
      for (let i = 0; i < n; i++) {
        const l = leaderOf[i], at = a * n;
        if (mate[a] > a) {
          const b = at + n;
          const g = expanding[a] ? 1 : Math.exp(-re[a] * t);
          const c = expanding[a] ? 1 : Math.cos(-im[a] * t), s = expanding[a] ? 0 : Math.sin(-im[a] * t);
          own[i * d + a] = g * (c * y[at + i] + s * y[b + i]);
          own[i * d + a + 1] = g * (c * y[b + i] - s * y[at + i]);
          const u = y[at + i] - y[at + l], v = y[b + i] - y[b + l];
          const G = expanding[a] ? Math.exp(re[a] * t) : 1;
          const C1 = expanding[a] ? Math.cos(im[a] * t) : 1, S1 = expanding[a] ? Math.sin(im[a] * t) : 0;
          out.offset[i * d + a] = G * (C1 * u + S1 * v);
          out.offset[i * d + a + 1] = G * (C1 * v - S1 * u);
        } else if (mate[a] < 0) {
          own[i * d + a] = expanding[a] ? y[at + i] : y[at + i] * Math.exp(-re[a] * t);
          out.offset[i * d + a] = (y[at + i] - y[at + l]) * (expanding[a] ? Math.exp(re[a] * t) : 1);
        }
      }
    }
    for (let i = 0; i < n; i++) {
      for (let a = 0; a < d; a++) out.pi[i * d + a] = own[leaderOf[i] * d + a];
    }
    for (let a = 0; a < d; a++) {
      let top = 0, reach = 0;
      for (let i = 0; i < n; i++) {
        top = Math.max(top, Math.abs(out.pi[i * d + a]));
        reach = Math.max(reach, Math.abs(out.offset[i * d + a]));
      }
      const shrink = expanding[a] ? 1 : Math.exp(-re[a] * t), swell = expanding[a] ? Math.exp(re[a] * t) : 1;
      out.eps[a] = error * shrink + 16 * EPS * condition * top;
      const rounding = 16 * EPS * condition * (top * Math.exp(re[a] * t) + reach);
      for (let i = 0; i < n; i++) {
        out.epsOffset[i * d + a] = leaderOf[i] === i ? 0 : error * swell + rounding;
      }
    }
    return out;
  }

  /** Leader part times e^{-rate t}, into out (n x d). */
  lead(t, out = new Float64Array(this.n * this.d)) {
    const { n, d } = this, { re, im, mate, rate } = this.frame.modes;
    for (let a = 0; a < d; a++) {
      const g = Math.exp((re[a] - rate) * t);
      if (mate[a] > a) {
        const c = g * Math.cos(im[a] * t), s = g * Math.sin(im[a] * t);
        for (let i = 0; i < n; i++) {
          const u = this.pi[i * d + a], v = this.pi[i * d + a + 1];
          out[i * d + a] = c * u + s * v;
          out[i * d + a + 1] = c * v - s * u;
        }
        a++;
      } else for (let i = 0; i < n; i++) out[i * d + a] = g * this.pi[i * d + a];
    }
    return out;
  }

  tokens(t, out, rescaled) {
    const { n, d, frame } = this, { re, im, mate, right } = frame.modes;
    const c = new Float64Array(d);
    const turn = (a, t0, u, v, log) => {
      const g = Math.exp(Math.min(re[a] * t0 + log, 709));
      if (mate[a] < 0) return [g * u, 0];
      const co = g * Math.cos(im[a] * t0), si = g * Math.sin(im[a] * t0);
      return [co * u + si * v, co * v - si * u];
    };
    for (let i = 0; i < n; i++) {
      for (let a = 0; a < d; a++) {
        const p = i * d + a, q = mate[a] > a ? p + 1 : p;
        const lead = turn(a, rescaled ? 0 : t, this.pi[p], this.pi[q], 0);
        const off = turn(a, rescaled ? -t : 0, this.offset[p], this.offset[q], this.tau[i]);
        c[a] = lead[0] + off[0];
        if (mate[a] > a) {
          c[a + 1] = lead[1] + off[1];
          a++;
        }
      }
      for (let b = 0; b < d; b++) {
        let s = 0;
        for (let a = 0; a < d; a++) s += right[b][a] * c[a];
        out[i * d + b] = ldexp(s, frame.exponent);
      }
    }
    return out;
  }

  attention(t, out) {
    const { n, d, frame, leaderOf } = this, { rate } = frame.modes, F = frame.form;
    const lead = this.lead(t), x = new Float64Array(n * d);
    for (let i = 0; i < n; i++) {
      const g = Math.exp(this.tau[i] - rate * t);
      for (let a = 0; a < d; a++) x[i * d + a] = lead[i * d + a] + g * this.offset[i * d + a];
    }
    const log = rate * t + frame.logForm, scores = new Float64Array(n), u = new Float64Array(d);
    for (let i = 0; i < n; i++) {
      for (let b = 0; b < d; b++) {
        u[b] = 0;
        for (let a = 0; a < d; a++) u[b] += x[i * d + a] * F[a][b];
      }
      let top = -Infinity;
      for (let j = 0; j < n; j++) {
        let s = 0;
        if (leaderOf[i] === leaderOf[j]) {
          for (let b = 0; b < d; b++) s += u[b] * this.offset[j * d + b];
          s *= Math.exp(Math.min(log + this.tau[j], 600));
        } else {
          for (let b = 0; b < d; b++) s += u[b] * (x[j * d + b] - lead[i * d + b]);
          s *= Math.exp(Math.min(log + rate * t, 600));
        }
        scores[j] = s + (frame.logCounts ? frame.logCounts[j] : 0);
        top = Math.max(top, scores[j]);
      }
      let total = 0;
      for (let j = 0; j < n; j++) total += scores[j] = Math.exp(scores[j] - top);
      for (let j = 0; j < n; j++) out[i * n + j] = scores[j] / total;
    }
    return out;
  }
}

/** Distinct real exponents of the gaps, falling, and where each pair of modes goes. */
function exponentsOf(modes) {
  if (modes.exponents) return modes.exponents;
  const { d, re, rounding } = modes;
  const every = [0, ...re];
  for (let a = 0; a < d; a++) for (let b = 0; b < d; b++) every.push(re[a] + re[b]);
  const mu = [];
  for (const v of [...every].sort((x, y) => y - x)) {
    if (!mu.length || mu[mu.length - 1] - v > 2 * rounding) mu.push(v);
  }
  const find = (v) => {
    let best = 0;
    for (let k = 1; k < mu.length; k++) if (Math.abs(mu[k] - v) < Math.abs(mu[best] - v)) best = k;
    return best;
  };
  modes.exponents = {
    mu: Float64Array.from(mu),
    quadratic: range(d).map((a) => range(d).map((b) => find(re[a] + re[b]))),
    linear: Array.from(re, find),
    constant: find(0),
  };
  return modes.exponents;
}

/**
 * The gaps <Q x_i, K (x_l(i) - x_j)> of a following state as sums of exponentials at time t:
 * g(t + s) = e^{log} sum_m c_m e^{mu_m s}, c known to within kappa. A mode of a complex pair counts
 * with its modulus: c is then its value at s = 0, and its part of the derivative is all radius.
 */
class Gaps {
  constructor(state, t) {
    this.state = state;
    this.t = t;
    const { frame, n, d } = state, { modes } = frame;
    Object.assign(this, exponentsOf(modes));
    const count = this.mu.length;
    this.c = new Float64Array(count);
    this.kappa = new Float64Array(count);
    this.loose = new Float64Array(count); // moduli of the complex terms' derivatives
    this.lead = state.lead(t);
    this.leadSize = Float64Array.from(this.lead, Math.abs);
    this.eps = Float64Array.from(state.eps, (e, a) => e * Math.exp((modes.re[a] - modes.rate) * t));
    this.unit = modes.rate * t;
    this.scratch = range(8).map(() => new Float64Array(d));
    if (modes.complex) {
      for (let i = 0; i < n; i++) {
        for (let a = 0; a < d; a++) {
          if (modes.mate[a] > a) {
            const s = Math.hypot(this.lead[i * d + a], this.lead[i * d + a + 1]);
            this.leadSize[i * d + a] = this.leadSize[i * d + a + 1] = s;
          }
        }
      }
    }
  }

  /** Fill c, kappa, loose, log for the pair (i, j). */
  pair(i, j) {
    const { state, lead, eps, c, kappa, loose, unit } = this;
    const { frame, d, leaderOf } = state, { modes, form } = frame;
    const { speed, mate } = modes;
    const [oi, oj, ei, ej, apart, eApart, dp, da] = this.scratch;
    const same = leaderOf[i] === leaderOf[j];
    this.i = i;
    this.j = j;
    this.log = (same ? unit + state.tau[j] : 2 * unit) + frame.logForm;
    const gi = Math.exp(Math.min(state.tau[i] - unit, 700));
    const gj = same ? 1 : Math.exp(Math.min(state.tau[j] - unit, 700));
    c.fill(0);
    kappa.fill(0);
    loose.fill(0);
    const block = (v, a) => (mate[a] < 0 ? Math.abs(v[a]) : Math.hypot(v[a], v[mate[a]]));
    for (let a = 0; a < d; a++) {
      oi[a] = gi * state.offset[i * d + a];
      oj[a] = gj * state.offset[j * d + a];
      ei[a] = gi * state.epsOffset[i * d + a];
      ej[a] = gj * state.epsOffset[j * d + a];
      apart[a] = same ? 0 : lead[i * d + a] - lead[j * d + a];
      eApart[a] = same ? 0 : 2 * eps[a];
      dp[a] = this.leadSize[i * d + a];
    }
    for (let a = 0; a < d; a++) da[a] = block(apart, a);
    const put = (at, value, size, a, b) => {
      // a, b: the modes that move in this term (-1: none)
      c[at] += value;
      const turning = (a >= 0 && mate[a] >= 0) || (b >= 0 && mate[b] >= 0);
      if (turning) {
        const bound = size * ((a >= 0 ? speed[a] : 0) + (b >= 0 ? speed[b] : 0));
        loose[at] += bound + Math.abs(this.mu[at] * value);
      }
    };
    const p = i * d;
    for (let a = 0; a < d; a++) {
      for (let b = 0; b < d; b++) {
        const f = form[a][b], m = Math.abs(f);
        if (f === 0) continue;
        if (!same) {
          const at = this.quadratic[a][b];
          put(at, lead[p + a] * f * apart[b], dp[a] * m * da[b], a, b);
          kappa[at] += dp[a] * m * eApart[b] + eps[a] * m * (da[b] + eApart[b]);
          const at2 = this.linear[b];
          put(at2, oi[a] * f * apart[b], Math.abs(oi[a]) * m * da[b], -1, b);
          kappa[at2] += m * (Math.abs(oi[a]) * eApart[b] + ei[a] * (da[b] + eApart[b]));
        }
        const at3 = this.linear[a];
        put(at3, -lead[p + a] * f * oj[b], dp[a] * m * Math.abs(oj[b]), a, -1);
        kappa[at3] += m * (dp[a] * ej[b] + eps[a] * (Math.abs(oj[b]) + ej[b]));
        c[this.constant] -= oi[a] * f * oj[b];
        kappa[this.constant] += m * (Math.abs(oi[a]) * ej[b] + ei[a] * (Math.abs(oj[b]) + ej[b]));
      }
    }
    for (let k = 0; k < c.length; k++) kappa[k] += 4 * EPS * Math.abs(c[k]);
    return this;
  }

  /** Whether the pair stays open for ever; sets gap and growth (lower bounds). */
  certify(least) {
    const { mu, c, kappa, loose } = this;
    let sum = 0, rise = Infinity, ok = true, value = 0, radius = 0;
    for (let k = 0; k < mu.length; k++) {
      const turns = loose[k] > 0;
      sum += (turns ? -loose[k] : mu[k] * c[k]) - Math.abs(mu[k]) * kappa[k] * (turns ? 2 : 1);
      if (mu[k] > 0) ok = ok && sum >= 0;
      else rise = Math.min(rise, sum);
      value += c[k];
      radius += kappa[k];
    }
    const factor = Math.exp(Math.min(this.log, 690));
    this.gap = (value - radius) * factor;
    this.growth = rise * factor;
    this.value = value;
    this.radius = radius;
    return ok && this.gap >= least && this.growth > 2 * this.state.frame.modes.size;
  }

  slope() {
    let s = 0;
    for (let k = 0; k < this.mu.length; k++) s += this.mu[k] * this.c[k];
    return s;
  }

  /** First s in (0, horizon] at which the gap closes, Infinity if it does not (real exponents only). */
  firstZero(horizon) {
    const { mu, c } = this;
    let top = -Infinity;
    for (let k = 0; k < mu.length; k++) if (c[k] !== 0) top = Math.max(top, mu[k]);
    if (top === -Infinity) return 0;
    let s = 0;
    for (let count = 0; count < 3000; count++) {
      let value = 0, slope = 0, size = 1e-300, bound = 0, curve = 0, sums = 0, rising = true;
      for (let k = 0; k < mu.length; k++) {
        if (c[k] === 0) continue;
        const fall = mu[k] - top, term = c[k] * Math.exp(fall * s), m = Math.abs(term);
        value += term;
        slope += term * fall;
        size += m;
        bound += m * Math.abs(fall);
        curve += m * fall * fall;
        sums += mu[k] * term;
        rising = rising && sums >= 0;
      }
      value /= size;
      slope /= size;
      curve = curve / size + 1e-300;
      if (value <= -1e-9 || (value <= 1e-14 && slope < 0)) return s;
      if (bound === 0 || rising) return Infinity;
      const high = Math.max(value, slope < 0 ? 1e-15 : 1e-4);
      const root = Math.sqrt(slope * slope + 2 * curve * high);
      s += (slope < 0 ? (2 * high) / (root + Math.abs(slope)) : (slope + root) / curve) + 1e-16 * s;
      if (s > horizon) return Infinity;
    }
    return s;
  }
}

/* ---------------------------------------------------------------- certificate and falls ---- */

/** Certificate of a state at its time: {ok, open: [[i, j]...], leaderDrift, offsetDrift}. */
function judge(state, least, { every = true, firstOnly = false, drift = false } = {}) {
  const { n, d, frame, leaderOf } = state, { modes } = frame;
  const gaps = new Gaps(state, state.time);
  const late = !every && modes.rate * state.time > SHARP && !(modes.complex && modes.mate[0] >= 0);
  const open = [];
  const total = drift ? new Float64Array(n * d) : null, offsets = drift ? new Float64Array(n * d) : null;
  let ok = true;
  for (let i = 0; i < n; i++) {
    const l = leaderOf[i];
    for (let j = 0; j < n; j++) {
      if (j === l) continue;
      if (late && l !== i && l === leaderOf[j]) continue;
      if (!gaps.pair(i, j).certify(least)) {
        ok = false;
        if (firstOnly) return { ok, open, gaps };
        open.push([i, j]);
      } else if (drift) {
        const logCount = frame.logCounts ? frame.logCounts[j] : 0, t = state.time;
        const G = gaps.gap - logCount, r = gaps.growth;
        for (let a = 0; a < d; a++) {
          const apart = Math.abs(state.pi[i * d + a] - state.pi[j * d + a]) + 2 * state.eps[a];
          const reach = Math.abs(state.offset[j * d + a]) + state.epsOffset[j * d + a];
          const lam = modes.re[a];
          const small = reach * Math.exp(Math.min(state.tau[j] - lam * t - G, 690));
          total[i * d + a] +=
            modes.speed[a] * ((apart * Math.exp(-G)) / r + small / Math.max(r + lam, 1e-300));
          const log = logCount - gaps.gap - state.tau[i];
          offsets[i * d + a] +=
            modes.speed[a] *
            ((apart * Math.exp(Math.min(log + lam * t, 690))) / (r - lam) +
              (reach * Math.exp(Math.min(log + state.tau[j], 690))) / r);
        }
      }
    }
  }
  if (!drift) return { ok, open, gaps };
  let most = 0;
  for (const v of total) most = Math.max(most, v);
  const moved = new Float64Array(n * d);
  for (let i = 0; i < n; i++) {
    const l = leaderOf[i], g = Math.exp(state.tau[l] - state.tau[i]);
    for (let a = 0; a < d; a++) moved[i * d + a] = offsets[i * d + a] + offsets[l * d + a] * g;
  }
  return { ok, open, gaps, drift: most, offsetDrift: moved };
}

/** The state, now or a little later, with room for the drift, if that certifies every pair. */
function withRoom(state, least, pauses = [0, 0.01, 0.3, 1, 3, 10, 30]) {
  const { rate } = state.frame.modes;
  for (const pause of pauses) {
    const later = state.clone({ time: state.time + pause / rate });
    if (!judge(later, least, { firstOnly: true }).ok) continue;
    const now = judge(later, least, { drift: true });
    const roomy = later.clone({
      eps: later.eps.map((e) => e + 2 * now.drift),
      epsOffset: later.epsOffset.map((e, k) => e + 2 * now.offsetDrift[k]),
    });
    if (judge(roomy, least, { firstOnly: true }).ok) return roomy;
  }
  return null;
}

/** Leaders if attention is 0/1 (gaps of at least `least`) and leaders lead themselves; else null. */
function firstLeaders(frame, t, y, least) {
  const { n, d, X, U } = frame;
  if (n === 1) return new Int32Array(1);
  frame.heads(t, y);
  const best = new Int32Array(n);
  for (let i = 0; i < n; i++) {
    let top = -Infinity, second = -Infinity;
    for (let j = 0; j < n; j++) {
      let s = 0;
      for (let a = 0; a < d; a++) s += U[a * n + i] * X[a * n + j];
      if (s > top) {
        second = top;
        top = s;
        best[i] = j;
      } else if (s > second) second = s;
    }
    if (top - second < least) return null;
  }
  return best.every((l) => best[l] === l) ? best : null;
}

/** The same tokens at time t, written with other leaders (`_follow.regroup`). */
function regroup(state, t, leaderOf, epsExtra = null) {
  const { n, d, frame } = state, { re } = frame.modes;
  const pi = state.pi.slice(), offset = state.offset.slice(), tau = state.tau.slice();
  const epsOffset = state.epsOffset.slice(), eps = state.eps.slice();
  if (epsExtra) for (let a = 0; a < d; a++) eps[a] += epsExtra[a];
  for (let i = 0; i < n; i++) {
    const old = state.leaderOf[i], next = leaderOf[i];
    if (old === next) continue;
    const base = state.leaderOf[next];
    let unit = Math.max(state.tau[i], state.tau[next]);
    const apart = range(d).map((a) => (base === old ? 0 : state.pi[old * d + a] - state.pi[base * d + a]));
    for (let a = 0; a < d; a++) if (apart[a] !== 0) unit = Math.max(unit, Math.log(Math.abs(apart[a])) + re[a] * t);
    if (!Number.isFinite(unit)) unit = 0;
    const gi = Math.exp(state.tau[i] - unit), gn = Math.exp(state.tau[next] - unit);
    for (let a = 0; a < d; a++) {
      const p = i * d + a, q = next * d + a, g = Math.exp(re[a] * t - unit);
      offset[p] = state.offset[p] * gi - state.offset[q] * gn + (apart[a] === 0 ? 0 : apart[a] * g);
      epsOffset[p] = state.epsOffset[p] * gi + state.epsOffset[q] * gn + (base === old ? 0 : 2 * eps[a] * g);
    }
    tau[i] = unit;
  }
  const own = eps.slice();
  for (const leader of new Set(leaderOf)) {
    const old = state.leaderOf[leader], place = new Float64Array(d);
    for (let a = 0; a < d; a++) {
      place[a] = state.pi[old * d + a];
      if (old === leader) continue;
      const shift = Math.exp(Math.min(state.tau[leader] - re[a] * t, 690));
      place[a] += state.offset[leader * d + a] * shift;
      own[a] = Math.max(own[a], state.eps[a] + state.epsOffset[leader * d + a] * shift);
    }
    for (let i = 0; i < n; i++) if (leaderOf[i] === leader) pi.set(place, i * d);
    offset.fill(0, leader * d, leader * d + d);
    epsOffset.fill(0, leader * d, leader * d + d);
    tau[leader] = 0;
  }
  return state.clone({ time: t, leaderOf, pi, offset, tau, eps: own, epsOffset });
}

/** Whether the attention that a leader pays to a cluster mate keeps its gap from closing. */
function sharedLead(state, when, leader, mate) {
  if (state.leaderOf[leader] !== leader || state.leaderOf[mate] !== leader) return false;
  const { d, frame } = state, F = frame.form, lead = state.lead(when);
  const o = range(d).map((a) => -state.offset[mate * d + a]);
  const Vo = o.map((v, a) => frame.modes.re[a] * v);
  const bilinear = (x, y) => x.reduce((s, v, a) => s + v * y.reduce((r, w, b) => r + F[a][b] * w, 0), 0);
  return bilinear(range(d).map((a) => lead[leader * d + a]), Vo) * bilinear(o, o) > 0;
}

/** A fall that is instantaneous to float64 (`_cascade._switch`). */
function switchLeader(state, when, i, j, falls) {
  const { n, d, frame } = state, { modes } = frame, { re, size } = modes;
  const leaderOf = state.leaderOf.slice(), old = leaderOf[i], target = leaderOf[j];
  const inside = target === old;
  const gaps = new Gaps(state, when);
  let members;
  if (inside) members = range(n).filter((k) => leaderOf[k] === old);
  else {
    gaps.pair(old, target).certify(0);
    const whole = i === old || gaps.value <= (1e-9 / size) * Math.max(-gaps.slope(), 0);
    members = whole ? range(n).filter((k) => leaderOf[k] === old) : [i];
  }
  for (const k of members) leaderOf[k] = inside ? j : target;
  if (leaderOf[old] !== old) falls.push({ time: when, token: old, newLeader: leaderOf[old] });
  const lateness = (g, slope) => {
    const width = BOOLEAN_GAP * Math.exp(-Math.min(g.log, 690));
    return Math.min((Math.abs(g.value) + g.radius + width) / (slope + 1e-300), 1 / size);
  };
  if (inside) {
    gaps.pair(old, j).certify(0);
    const late = lateness(gaps, Math.abs(gaps.slope()));
    const extra = Float64Array.from(range(d), (a) => {
      const reach = Math.exp(Math.min(state.tau[j] - re[a] * when, 690));
      return late * Math.abs(re[a] * state.offset[j * d + a]) * reach;
    });
    return regroup(state, when, leaderOf, extra);
  }
  const after = regroup(state, when, leaderOf), back = new Gaps(after, when);
  const epsOffset = after.epsOffset.slice(); // `back` must not see what is added here
  for (const k of members) {
    gaps.pair(k, target).certify(0);
    let slope = Math.abs(gaps.slope());
    if (k !== old) {
      back.pair(k, old).certify(0);
      slope = Math.min(slope, Math.abs(back.slope()) * Math.exp(back.log - gaps.log));
    }
    const late = lateness(gaps, slope);
    for (let a = 0; a < d; a++) {
      const apart = Math.abs(re[a] * (state.pi[old * d + a] - state.pi[target * d + a]));
      epsOffset[k * d + a] += late * apart * Math.exp(re[a] * when - after.tau[k]);
    }
    // Members that first look at a mate of the new leader: their offsets are less sure.
    for (let mate = 0; mate < n; mate++) {
      if (state.leaderOf[mate] !== target || mate === target) continue;
      back.pair(k, mate).certify(0);
      if (back.value > back.radius) continue;
      let lasts = 3 / size;
      if (back.slope() > 0) lasts = Math.min(lasts, (Math.abs(back.value) + back.radius) / back.slope());
      const reach = Math.exp(Math.min(after.tau[mate] - after.tau[k], 690));
      for (let a = 0; a < d; a++) {
        epsOffset[k * d + a] += lasts * Math.abs(re[a] * after.offset[mate * d + a]) * reach;
      }
    }
  }
  return after.clone({ epsOffset });
}

/**
 * Leaders and offsets near a fall, integrated in local time s = t - begin (`_cascade._Window`), in modes
 * (real ones) and in units of e^{rate begin}: x_i = e^{sV} p_l(i) + o_i, and with X_ij = x_j - x_l(i)
 * dp_l/ds = e^{-sV} V sum_j P_lj X_lj,  do_i/ds = V (sum_j P_ij X_ij - sum_j P_lj X_lj).
 */
class Window {
  constructor(state, begin) {
    const { frame, n, d } = state, { modes } = frame;
    Object.assign(this, { state, begin, modes, frame, d, count: n });
    this.leaders = state.leaders;
    this.cluster = Int32Array.from(state.leaderOf, (l) => this.leaders.indexOf(l));
    this.n = n + this.leaders.length; // rows of the state
    this.factor = Math.exp(Math.min(690, 2 * modes.rate * begin + frame.logForm));
    this.lead = new Float64Array(this.leaders.length * d);
    this.pull = new Float64Array(n * d);
    this.scores = new Float64Array(n);
    this.offset = range(3).map(() => new Float64Array(n));
    this.query = new Float64Array(3);
    this.across = new Float64Array(this.leaders.length);
  }

  start() {
    const { state, begin, leaders, d, count, modes } = this, L = leaders.length;
    const y = new Float64Array(this.n * d), lead = state.lead(begin);
    for (let c = 0; c < L; c++) y.set(lead.subarray(leaders[c] * d, leaders[c] * d + d), c * d);
    for (let i = 0; i < count; i++) {
      const g = Math.exp(state.tau[i] - modes.rate * begin);
      for (let a = 0; a < d; a++) y[(L + i) * d + a] = g * state.offset[i * d + a];
    }
    return y;
  }

  tolerances(y, rtol) {
    const { d, count } = this, L = this.leaders.length, atol = new Float64Array(y.length);
    const size = (row) => Math.max(...y.subarray(row * d, row * d + d).map(Math.abs));
    let top = 0, floor = Infinity;
    for (let c = 0; c < L; c++) top = Math.max(top, size(c));
    for (let i = 0; i < count; i++) if (size(L + i) > 0) floor = Math.min(floor, size(L + i));
    if (floor === Infinity) floor = 1;
    atol.fill(1e-3 * rtol * top, 0, L * d);
    for (let i = 0; i < count; i++) atol.fill(1e-3 * rtol * Math.max(size(L + i), floor), (L + i) * d, (L + i + 1) * d);
    return atol;
  }

  /** Leaders e^{sV} p, and offsets coordinate by coordinate. */
  place(s, y) {
    const { d, count, lead, offset, modes } = this, L = this.leaders.length;
    for (let k = 0; k < L * d; k++) lead[k] = y[k] * Math.exp(modes.re[k % d] * s);
    for (let a = 0; a < d; a++) for (let j = 0; j < count; j++) offset[a][j] = y[(L + j) * d + a];
  }

  /** Scores of token i against its own leader's, the largest: nothing cancels within a cluster. */
  scoresOf(i) {
    const { d, count, lead, across, cluster, scores, offset, frame, factor } = this, L = this.leaders.length;
    const u = this.query, own = cluster[i] * d, [o0, o1, o2] = offset;
    for (let b = 0; b < 3; b++) {
      u[b] = 0;
      for (let a = 0; a < d && b < d; a++) u[b] += factor * (lead[own + a] + offset[a][i]) * frame.form[a][b];
    }
    for (let c = 0; c < L; c++) {
      across[c] = 0;
      for (let b = 0; b < d; b++) across[c] += u[b] * (lead[c * d + b] - lead[own + b]);
    }
    const [u0, u1, u2] = u;
    let top = -Infinity;
    for (let j = 0; j < count; j++) {
      const v = (scores[j] = u0 * o0[j] + u1 * o1[j] + u2 * o2[j] + across[cluster[j]]);
      if (v > top) top = v;
    }
    return top;
  }

  velocity(s, y, out) {
    this.frame.evaluations++;
    this.place(s, y);
    const { d, count, lead, cluster, scores, offset, pull, modes, frame } = this, L = this.leaders.length;
    pull.fill(0);
    for (let i = 0; i < count; i++) {
      let top = this.scoresOf(i), total = 0;
      const own = cluster[i] * d, at = i * d;
      if (frame.logCounts) {
        top = -Infinity;
        for (let j = 0; j < count; j++) top = Math.max(top, (scores[j] += frame.logCounts[j]));
      }
      for (let j = 0; j < count; j++) {
        const x = scores[j] - top;
        // Offsets may be tiny beside leaders: the pull of another cluster is cut off far below e^-40.
        total += scores[j] = x < -100 ? 0 : weightOf(x);
      }
      for (let j = 0; j < count; j++) {
        if (scores[j] === 0) continue;
        const p = scores[j] / total, other = cluster[j] * d;
        for (let a = 0; a < d; a++) pull[at + a] += p * (offset[a][j] + (lead[other + a] - lead[own + a]));
      }
    }
    for (let a = 0; a < d; a++) {
      const lam = modes.re[a], back = lam * Math.exp(-lam * s);
      for (let c = 0; c < L; c++) out[c * d + a] = back * pull[this.leaders[c] * d + a];
      for (let i = 0; i < count; i++) {
        out[(L + i) * d + a] = lam * (pull[i * d + a] - pull[this.leaders[cluster[i]] * d + a]);
      }
    }
    return out;
  }

  noise() {
    return 0;
  }

  /** New leaders, if attention is 0/1 again and they lead themselves; else null. */
  settled(s, y, least) {
    this.place(s, y);
    const best = new Int32Array(this.count);
    for (let i = 0; i < this.count; i++) {
      this.scoresOf(i);
      let top = -Infinity, second = -Infinity;
      for (let j = 0; j < this.count; j++) {
        const v = this.scores[j];
        if (v > top) [second, top, best[i]] = [top, v, j];
        else if (v > second) second = v;
      }
      if (top - second < least) return null;
    }
    return best.every((l) => best[l] === l) ? best : null;
  }

  /** The state at begin + s as a following state (same leaders as at the start). */
  written(s, y, loss = 0) {
    const { state, begin, d, count, modes, cluster } = this, L = this.leaders.length;
    const log = modes.rate * begin, out = state.clone({ time: begin + s });
    out.pi = new Float64Array(count * d);
    out.offset = y.slice(L * d);
    out.tau = new Float64Array(count).fill(log);
    out.eps = state.eps.slice();
    out.epsOffset = new Float64Array(count * d);
    for (let i = 0; i < count; i++) {
      for (let a = 0; a < d; a++) {
        const k = i * d + a;
        out.pi[k] = y[cluster[i] * d + a] * Math.exp(log - modes.re[a] * begin);
        out.eps[a] = Math.max(out.eps[a], state.eps[a] + loss * Math.abs(out.pi[k]));
        out.epsOffset[k] = state.epsOffset[k] * Math.exp(state.tau[i] - log) + loss * Math.abs(out.offset[k]);
      }
    }
    return out;
  }
}

/**
 * Integrate through one or several falls, until attention is 0/1 with new leaders, or with `anyone`;
 * a string if not. Yields after every step.
 */
function* through(state, begin, least, falls, anyone = false) {
  const window = new Window(state, begin), y0 = window.start();
  const run = new Run(window, y0, 3 / state.frame.modes.size, 1e-10, false, window.tolerances(y0, 1e-10));
  let best = null;
  for (let count = 0; run.step(); count++) {
    yield;
    if (count === 3000) return "attention hardens too slowly: the budget of steps was used up";
    best = window.settled(run.t, run.y, least);
    if (best && (anyone || best.some((l, i) => l !== state.leaderOf[i]))) break;
    best = null;
  }
  if (run.status === "step") return "the integrator found no step through a fall";
  const at = (t, out) => window.written(t - begin, run.state(t - begin, new Float64Array(y0.length))).tokens(...out);
  const segment = {
    tokens: (t, rows, rescaled) => at(t, [t, rows, rescaled]),
    attention: (t, p) => window.written(t - begin, run.state(t - begin, new Float64Array(y0.length))).attention(t, p),
  };
  const after = window.written(run.t, run.y, 1e-9);
  if (!best) return { after, segment };
  for (const l of window.leaders) if (best[l] !== l) falls.push({ time: begin + run.t, token: l, newLeader: best[l] });
  return { after: regroup(after, begin + run.t, best), segment };
}

/** The last s < zero at which the gap of a pair is still twice `least` (0 if it is so no longer). */
function before(gaps, zero, least) {
  const { mu, c, log } = gaps;
  const short = (s) => {
    let g = 0;
    for (let k = 0; k < mu.length; k++) g += c[k] * Math.exp(mu[k] * s);
    return g * Math.exp(Math.min(log, 690)) < 2 * least;
  };
  if (short(0)) return 0;
  let low = 0, high = zero;
  for (let k = 0; k < 200; k++) {
    const mid = 0.5 * (low + high);
    if (mid === low || mid === high) break;
    if (short(mid)) high = mid;
    else low = mid;
  }
  return low;
}

/**
 * Follow a 0/1 state through its falls, to the certificate (`_cascade.run`); yields in between.
 * With `soft` attention need not be 0/1 at first: it is integrated until it is.
 */
function* cascade(state, least, soft = false) {
  const segments = [], falls = [], { modes } = state.frame;
  const done = (reason, final = null) => ({ segments, falls, certified: final !== null, reason, state: final ?? state });
  for (let round = 0; round < 2000; round++) {
    yield;
    const { ok, open } = judge(state, least, { every: false });
    if (ok) {
      const final = withRoom(state, least);
      if (!final) return done("followers' gaps do not open in time");
      segments.push({ start: state.time, state: final.clone({ time: state.time }) });
      return done("", final);
    }
    if (modes.complex) return done("a complex pair of eigenvalues: falls are not followed here");
    const gaps = new Gaps(state, state.time), begins = state.time;
    const hard = open.every(([i, j]) => gaps.pair(i, j).certify(least) || gaps.gap >= least);
    if (soft && !hard) {
      if (modes.rate * begins > SHARP) return done("attention did not become 0/1");
      const passed = yield* through(state, begins, least, falls, true);
      if (typeof passed === "string") return done(passed);
      segments.push({ start: begins, state: passed.segment });
      state = passed.after;
      continue;
    }
    soft = false;
    let first = null, zero = Infinity;
    for (const [i, j] of open) {
      const s = gaps.pair(i, j).firstZero(1e9);
      const follower = state.leaderOf[i] !== i;
      let soft = follower && (state.leaderOf[i] === state.leaderOf[j] || state.leaderOf[j] !== j);
      soft = soft && modes.rate * (state.time + s) > SHARP;
      if (soft || !(s < zero)) continue;
      [first, zero] = [[i, j], s];
    }
    if (!first) {
      let later = null;
      for (const pause of [0.01, 0.3, 1, 3, 10, 30]) {
        const trial = state.clone({ time: Math.max(state.time, SHARP / modes.rate) + pause / modes.rate });
        const g = new Gaps(trial, trial.time);
        if (open.every(([i, j]) => g.pair(i, j).certify(least))) {
          later = trial;
          break;
        }
      }
      if (!later) return done("a tie, or a gap that is not seen to grow");
      segments.push({ start: state.time, state });
      state = later;
      continue;
    }
    const when = state.time + zero, [i, j] = first;
    if (modes.rate * when <= SHARP) {
      const ahead = before(gaps.pair(i, j), zero, least), begin = state.time + ahead;
      if (ahead > 0) segments.push({ start: state.time, state });
      const passed = yield* through(state, begin, least, falls);
      if (typeof passed === "string") return done(passed);
      segments.push({ start: begin, state: passed.segment });
      state = passed.after;
      continue;
    }
    if (sharedLead(state, when, i, j)) return done(`tokens ${i} and ${j} share a lead`);
    if (falls.length >= 1000) return done("more than 1000 falls");
    segments.push({ start: state.time, state });
    state = switchLeader(state, when, i, j, falls);
  }
  return done("the budget of switches was used up");
}

/** Time until the first of the gaps that do not stay open closes; null if none is seen to. */
function firstFall(state, least) {
  const { open, gaps } = judge(state, least, { every: false });
  if (state.frame.modes.complex) return null;
  let wait = Infinity;
  for (const [i, j] of open) {
    if (gaps.pair(i, j).certify(least) || gaps.gap < least) return null;
    wait = Math.min(wait, gaps.firstZero(1e9));
  }
  return Number.isFinite(wait) ? wait : null;
}

/** Clusters that nobody leaves (`_clusters.py`): {label, count, centre, radius} or null. */
function certifyClusters(frame, t, y, error) {
  const { n, d, modes, form } = frame, { re, expanding, speed, rate, mate } = modes;
  if (modes.defect || range(d).some((a) => mate[a] >= 0 && expanding[a])) return null;
  frame.heads(t, y);
  const best = new Int32Array(n);
  for (let i = 0; i < n; i++) {
    let top = -Infinity;
    for (let j = 0; j < n; j++) {
      let s = 0;
      for (let a = 0; a < d; a++) s += frame.U[a * n + i] * frame.X[a * n + j];
      if (s > top) [top, best[i]] = [s, j];
    }
  }
  const label = new Int32Array(n), names = new Map();
  for (let i = 0; i < n; i++) {
    let k = i, least;
    for (let step = 0; step < n; step++) k = best[k];
    least = k;
    for (let m = best[k]; m !== k; m = best[m]) least = Math.min(least, m);
    if (!names.has(least)) names.set(least, names.size);
    label[i] = names.get(least);
  }
  const count = names.size, centre = [], radius = [];
  const eps = (a, top) => error + 16 * EPS * modes.condition * top;
  const reach = new Float64Array(d), spread = new Float64Array(d);
  for (let a = 0; a < d; a++) {
    let low = Infinity, high = -Infinity;
    for (let i = 0; i < n; i++) {
      const v = y[a * n + i];
      low = Math.min(low, v);
      high = Math.max(high, v);
    }
    const top = Math.max(Math.abs(low), Math.abs(high));
    reach[a] = (mate[a] < 0 ? top : Math.SQRT2 * top) + eps(a, top);
    if (mate[a] >= 0) reach[a] = reach[Math.min(a, mate[a])] = Math.max(reach[a], reach[Math.min(a, mate[a])]);
    spread[a] = expanding[a] ? high - low + 2 * eps(a, top) : 0;
  }
  for (let c = 0; c < count; c++) {
    centre.push(new Float64Array(d));
    radius.push(new Float64Array(d));
    for (let a = 0; a < d; a++) {
      if (!expanding[a]) continue;
      let low = Infinity, high = -Infinity;
      for (let i = 0; i < n; i++) {
        if (label[i] !== c) continue;
        low = Math.min(low, y[a * n + i]);
        high = Math.max(high, y[a * n + i]);
      }
      centre[c][a] = 0.5 * (low + high);
      radius[c][a] = 0.5 * (high - low) + eps(a, Math.max(Math.abs(low), Math.abs(high)));
    }
  }
  const rates = re.map((v, a) => (expanding[a] ? v : speed[a]));
  const grown = re.map((v, a) => Math.exp(((expanding[a] ? v : 0) - rate) * t));
  const mu = [...new Set([0, ...range(d).flatMap((a) => range(d).map((b) => rates[a] + rates[b]))])].sort((x, z) => z - x);
  const factor = Math.exp(Math.min(2 * rate * t + frame.logForm, 690));
  const members = frame.logCounts ? frame.logCounts.reduce((s, v) => s + Math.exp(v), 0) : n;
  let room = new Float64Array(d);
  for (const last of [false, true]) {
    let worstGap = Infinity, leastGrowth = Infinity;
    for (let c = 0; c < count; c++) {
      for (let k = 0; k < count; k++) {
        if (c === k) continue;
        const exact = new Float64Array(mu.length), loose = new Float64Array(mu.length);
        for (let a = 0; a < d; a++) {
          for (let b = 0; b < d; b++) {
            const at = mu.indexOf(rates[a] + rates[b]), f = form[a][b], m = Math.abs(f);
            const p = centre[c][a] * grown[a], apart = (centre[c][b] - centre[k][b]) * grown[b];
            const rp = (expanding[a] ? radius[c][a] + room[a] : reach[a]) * grown[a];
            const rb = expanding[b] ? radius[c][b] + radius[k][b] + 2 * room[b] : 2 * reach[b];
            exact[at] += p * f * apart;
            loose[at] += m * (Math.abs(p) * rb * grown[b] + rp * (Math.abs(apart) + rb * grown[b]));
            loose[at] += 16 * EPS * modes.condition * m * Math.abs(p * apart);
          }
        }
        let sum = 0, rise = Infinity, gap = 0;
        for (let m = 0; m < mu.length; m++) {
          sum += mu[m] * exact[m] - Math.abs(mu[m]) * loose[m];
          gap += exact[m] - loose[m];
          if (mu[m] > 0 && sum < 0) return null;
          if (mu[m] <= 0) rise = Math.min(rise, sum);
        }
        if (!(gap * factor >= 20 && rise * factor > 2 * modes.size)) return null;
        worstGap = Math.min(worstGap, gap * factor);
        leastGrowth = Math.min(leastGrowth, rise * factor);
      }
    }
    if (count === 1) break;
    const moved = re.map((v, a) => (Math.abs(v) * spread[a] * members * Math.exp(-worstGap)) / leastGrowth);
    if (last && moved.some((v, a) => v > room[a])) return null;
    if (!last) room = moved.map((v) => 2 * v);
  }
  for (const r of radius) for (let a = 0; a < d; a++) if (expanding[a]) r[a] += room[a];
  for (let a = 0; a < d; a++) {
    const leads = Math.abs(re[a] - re[0]) <= 1e-13 * modes.size;
    if (leads && radius.some((r) => r[a] > 1e-2)) return null;
  }
  return { label, count, centre, radius, time: t };
}

/* ---------------------------------------------------------------------------- the future ---- */

/** Equal tokens count as one with a weight: {tokens, n, inverse, logCounts}. */
function distinct(tokens, n, d) {
  const seen = new Map(), inverse = new Int32Array(n), rows = [], counts = [];
  for (let i = 0; i < n; i++) {
    const row = Array.from(tokens.slice(i * d, i * d + d), (v) => v + 0);
    const key = row.join();
    if (!seen.has(key)) {
      seen.set(key, rows.length);
      rows.push(row);
      counts.push(0);
    }
    inverse[i] = seen.get(key);
    counts[inverse[i]]++;
  }
  const several = rows.length < n;
  return {
    tokens: Float64Array.from(rows.flat()),
    n: rows.length,
    inverse,
    counts,
    logCounts: several ? Float64Array.from(counts, Math.log) : null,
  };
}

/**
 * What becomes of some tokens.
 * status: "certified" (leaders and limits), "clusters" (limits; who leads inside is open),
 * "undecided" or "budget" (of evaluations, used up); reason says why not certified. times: knots of the integration, ending at tLast.
 * tCertified: depth of certification or null. end: last depth that is known (Infinity if certified).
 */
class Future {
  constructor(solver) {
    const { run, frame, data, found } = solver;
    Object.assign(this, { n: solver.n, d: solver.d, system: solver.system, run, frame, data });
    this.tLast = run.t;
    this.times = Float64Array.from(run.knots);
    this.evaluations = frame.evaluations;
    this.status = solver.status;
    this.reason = solver.reason;
    this.falls = (found?.falls ?? []).map((f) => ({
      time: f.time, token: this.first(f.token), newLeader: this.first(f.newLeader),
    }));
    this.segments = found?.segments ?? [];
    this.tCertified = found?.time ?? null;
    this.end = this.status === "certified" && this.segments.length ? Infinity : this.tLast;
    this.leaderOf = this.findLeaders(found);
    this.leaders = Int32Array.from(new Set(this.leaderOf)).filter((l) => l >= 0).sort();
    this.points = found ? this.limits(found) : null;
    this.error = found?.error ?? Infinity;
    this.buffer = new Float64Array(data.n * this.d);
    this.rows = new Float64Array(data.n * this.d);
  }

  /** The first of the tokens equal to distinct token k. */
  first(k) {
    return this.data.inverse.indexOf(k);
  }

  findLeaders(found) {
    const { inverse } = this.data;
    if (found?.collapse) return new Int32Array(this.n).fill(-1);
    let best = found?.state?.leaderOf;
    if (!best) {
      const { frame, run, data } = this;
      frame.heads(run.t, run.y);
      best = new Int32Array(data.n);
      for (let i = 0; i < data.n; i++) {
        const total = frame.row(i);
        let top = 0;
        for (let j = 1; j < data.n; j++) if (frame.weights[j] > frame.weights[top]) top = j;
        best[i] = frame.weights[top] > 0.99 * total ? top : -1;
      }
    }
    return Int32Array.from(inverse, (k) => (best[k] < 0 ? -1 : this.first(best[k])));
  }

  limits(found) {
    const { n, d, frame, data } = this, { right, expanding } = frame.modes;
    const out = new Float64Array(n * d);
    if (found.collapse) return out;
    for (let i = 0; i < n; i++) {
      const k = data.inverse[i];
      for (let b = 0; b < d; b++) {
        let s = 0;
        for (let a = 0; a < d; a++) {
          if (!expanding[a]) continue;
          s += right[b][a] * (found.state ? found.state.pi[k * d + a] : found.centre[found.label[k]][a]);
        }
        out[i * d + b] = ldexp(s, frame.exponent);
      }
    }
    return out;
  }

  segment(t) {
    if (t <= this.tLast || !this.segments.length) return null;
    let at = this.segments[0];
    for (const s of this.segments) if (s.start <= t) at = s;
    return at.state;
  }

  /** x(t) or z(t) = e^{-tV} x(t) into out (n x d); beyond `end` the last that is known. */
  tokens(t, out = new Float64Array(this.n * this.d), rescaled = true) {
    const { frame, run, data, d } = this, segment = this.segment(t);
    if (segment) segment.tokens(t, this.rows, rescaled);
    else {
      const at = Math.min(t, this.tLast);
      frame.tokens(at, run.state(at, this.buffer), this.rows, rescaled);
    }
    for (let i = 0; i < this.n; i++) {
      for (let a = 0; a < d; a++) out[i * d + a] = this.rows[data.inverse[i] * d + a];
    }
    return out;
  }

  /** Attention matrix P(t), n x n, into out. Equal tokens share equally. */
  attention(t, out = new Float64Array(this.n * this.n)) {
    const { frame, run, data, n } = this, m = data.n, p = new Float64Array(m * m);
    const segment = this.segment(t);
    if (segment) segment.attention(t, p);
    else {
      const at = Math.min(t, this.tLast);
      frame.heads(at, run.state(at, this.buffer));
      for (let i = 0; i < m; i++) {
        const total = frame.row(i);
        for (let j = 0; j < m; j++) p[i * m + j] = frame.weights[j] / total;
      }
    }
    for (let i = 0; i < n; i++) {
      const row = data.inverse[i] * m;
      for (let j = 0; j < n; j++) {
        const k = data.inverse[j];
        out[i * n + j] = p[row + k] / data.counts[k];
      }
    }
    return out;
  }

  /** The limit P* (0/1 rows; equal tokens share); NaN where a leader is not known. */
  limitAttention(out = new Float64Array(this.n * this.n)) {
    const { n, data, leaderOf } = this;
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < n; j++) {
        const l = leaderOf[i];
        const own = l >= 0 && data.inverse[j] === data.inverse[l];
        out[i * n + j] = l < 0 ? NaN : own ? 1 / data.counts[data.inverse[l]] : 0;
      }
    }
    return out;
  }
}

/** Integrates in slices, so that a page keeps its frame: see `solver`. */
class Solver {
  constructor(system, tokens, n, { rtol = 1e-10, maxEvaluations = 100000, preview = false } = {}) {
    const { d } = system;
    const flat = tokens instanceof Float64Array ? tokens : Float64Array.from(tokens.flat());
    if (flat.length !== n * d) throw new RangeError(`tokens must hold n x d = ${n * d} numbers: got ${flat.length}.`);
    for (const v of flat) if (!Number.isFinite(v)) throw new RangeError("tokens must be finite.");
    Object.assign(this, { system, n, d, rtol, maxEvaluations });
    this.data = distinct(flat, n, d);
    this.frame = new Frame(system, this.data.tokens, this.data.n, this.data.logCounts);
    const { modes } = this.frame;
    this.least = BOOLEAN_GAP + Math.log(n);
    this.swirls = modes.rate > 0 && modes.mate[0] >= 0 && this.data.n > 1;
    this.collapses = classify(system).theorem === "collapse";
    this.leads = modes.rate > 0 && !modes.defect && !this.swirls;
    let horizon = modes.rate > 0 ? 60 / modes.rate : 30 / modes.size;
    if (modes.rate > 0 && !this.leads) horizon = 10 / modes.rate;
    if (this.collapses) horizon = (preview ? 30 : 1000) / modes.size;
    if (!modes.rate && modes.size === 1 && modes.speed.every((s) => s === 0)) horizon = 1;
    this.run = new Run(this.frame, this.frame.start(this.data.tokens), horizon, rtol, true);
    this.found = null;
    this.status = "undecided";
    this.reason = "";
    this.readyAt = 0;
    this.done = false;
  }

  /** The radius of the state, in the units of the frame: ten times the error estimated. */
  get radius() {
    return 10 * this.run.errorEstimate * this.run.scale;
  }

  /** Take steps for some milliseconds; the Future when it is known, else null. */
  step(milliseconds = Infinity) {
    const until = milliseconds === Infinity ? Infinity : performance.now() + milliseconds;
    this.work ??= this.steps();
    while (!this.done) {
      if (this.work.next().done) break;
      if (this.frame.evaluations > this.maxEvaluations) {
        this.finish("budget");
        break;
      }
      if (performance.now() > until) return null;
    }
    return (this.future ??= new Future(this));
  }

  /** The whole computation; yields after every step of an integration. */
  *steps() {
    while (!this.done) {
      if (this.run.step()) yield* this.look();
      else {
        yield* this.lateStart();
        if (!this.done) this.finish();
      }
      yield;
    }
  }

  /** The Future as far as it is known. */
  partial() {
    return this.done ? this.step() : new Future(this);
  }

  /** After a step: whether the follower law can take over. */
  *look() {
    const { run, frame, least } = this, { rate } = frame.modes;
    if (!this.leads || run.t < this.readyAt) return;
    const leaderOf = firstLeaders(frame, run.t, run.y, least);
    if (!leaderOf) return;
    const state = Following.of(frame, run.t, run.y, leaderOf, this.radius);
    const final = withRoom(state, least, [0, 0.01]);
    if (final) {
      const segments = [{ start: run.t, state: final.clone({ time: run.t }) }];
      return this.certified({ state: final, segments, falls: [], time: final.time });
    }
    const wait = firstFall(state, least);
    if (wait === null) return void (this.readyAt = run.t + 0.05 / rate);
    if (rate * wait < 2 && rate * run.t < 6) return void (this.readyAt = run.t + 0.9 * wait);
    {
      const out = yield* cascade(state, least);
      if (out.certified) return this.certified({ ...out, time: out.state.time });
      this.reason = out.reason;
      return this.finish();
    }
  }

  /**
   * Go on from an earlier state with leaders and offsets apart, where rounding stopped a run because a
   * leader is contested for long by a token close to it (`_path._late_start`).
   */
  *lateStart() {
    const { run, frame, least } = this, { n } = frame, { rate, complex } = frame.modes;
    if (!this.leads || complex || run.status !== "precision") return;
    const end = Math.min(0.8 * run.t, 6 / rate);
    let k = run.knots.length - 1;
    while (run.knots[k] > end) k--;
    if (k < 1) return;
    frame.heads(run.knots[k], run.states[k]);
    const best = Int32Array.from(range(n), (i) => {
      frame.row(i);
      return frame.weights.indexOf(Math.max(...frame.weights));
    });
    let leaderOf = best;
    for (let m = 1; m < 2 * n; m *= 2) leaderOf = leaderOf.map((l) => leaderOf[l]);
    leaderOf = leaderOf.map((l) => Math.min(l, best[l])); // two that follow each other: either
    leaderOf = leaderOf.map((l) => leaderOf[l]);
    if (!leaderOf.every((l) => leaderOf[l] === l)) return;
    const radius = 10 * run.errors[k] * run.scale;
    const state = Following.of(frame, run.knots[k], run.states[k], leaderOf, radius);
    const out = yield* cascade(state, least, true);
    if (!out.certified) return;
    run.cut(k);
    this.certified({ ...out, time: out.state.time });
  }

  certified(found) {
    const { modes } = this.frame;
    let error = 0;
    for (let a = 0; a < this.d; a++) if (modes.expanding[a]) error += found.state.eps[a];
    this.found = { ...found, error: ldexp(error, this.frame.exponent) };
    this.status = "certified";
    this.reason = "";
    this.done = true;
  }

  /** The run has ended without leaders: clusters may be certified all the same. */
  finish(status = "undecided") {
    const { run, frame } = this;
    this.done = true;
    this.status = status;
    if (this.collapses) {
      this.status = "certified";
      this.found = { collapse: true, falls: [], segments: [], time: 0, error: 0 };
      return;
    }
    let best = null;
    for (const share of this.leads ? [0.25, 0.5, 0.7, 0.8, 0.9, 1] : []) {
      let k = run.knots.length - 1;
      while (run.knots[k] > share * run.t) k--;
      if (run.errors[k] > 1e-4) continue;
      const found = certifyClusters(frame, run.knots[k], run.states[k], 10 * run.errors[k] * run.scale);
      if (found) found.lead = Math.max(...found.radius.map((r) => r[0]));
      if (found && (!best || found.lead < best.lead)) best = found;
    }
    if (best) {
      this.status = "clusters";
      let error = 0;
      for (const r of best.radius) error = Math.max(error, ...r);
      this.found = { ...best, falls: [], segments: [], error: ldexp(error, frame.exponent) };
    }
    if (status === "budget") this.reason = "the budget of evaluations was used up";
    this.reason ||= !frame.modes.rate
      ? "V expands no direction: there are no leaders"
      : frame.modes.defect ||
        (this.swirls
          ? "a complex leading pair of eigenvalues: no certificate is known"
          : {
              precision: "float64 was exhausted before attention was 0/1 (a tie)",
              unstable: "a fork: these tokens are exceptional, rounding would decide",
              step: "the integrator found no step",
              running: "the budget of steps was used up",
            }[run.status] ?? "attention did not become 0/1 with leaders that lead themselves");
  }
}

/**
 * A resumable integration: call step(milliseconds) until it returns a Future.
 * @param {object} system from makeSystem
 * @param {Float64Array|number[][]} tokens n x d
 * @param {number} n
 * @param {{rtol?: number, maxEvaluations?: number, preview?: boolean}} options preview: a collapse is followed less far
 */
export function solver(system, tokens, n, options) {
  return new Solver(system, tokens, n, options);
}

/** The Future of some tokens, at once. */
export function solve(system, tokens, n, options) {
  return new Solver(system, tokens, n, options).step();
}

/* ------------------------------------------------------------------------------- regimes ---- */

/** What a set of possible answers amounts to: the common one, or null. */
const joint = (answers) => (answers.length && answers.every((a) => a === answers[0]) ? answers[0] : null);
const signOf = (value, error) => (value > error ? true : value < -error || error === 0 ? false : null);

/** Eigenvalues that cannot be told apart, as clusters by falling modulus (`spectrum.Spectrum`). */
function clustersOf(V) {
  const d = V.length, size = norm(V), exact = isDiagonal(V);
  if (exact) {
    const pairs = eigenpairs(V);
    const values = [...new Set(pairs.map((p) => p.re))].sort((a, b) => Math.abs(b) - Math.abs(a) || b - a);
    return {
      error: 0,
      clusters: values.map((v) => ({
        members: range(d).filter((k) => pairs[k].re === v), size: pairs.filter((p) => p.re === v).length,
        re: v, im: 0, radius: 0, departure: 0, noise: 0, exact: true, real: true,
      })),
      pairs,
      basis: ({ members }) => transpose(members.map((k) => pairs[k].x)),
    };
  }
  const error = 8 * Math.sqrt(d) * EPS * size, { pairs: found, form } = eigen(V);
  const disc = (p, k) => ({
    members: [k], size: 1, re: p.re, im: p.im, radius: Math.min(error * p.kappa, 2 * size),
    departure: 0, noise: error, exact: false,
  });
  let clusters = found.map(disc);
  const apart = (a, b) => Math.hypot(a.re - b.re, a.im - b.im);
  for (;;) {
    // The widest disc that meets another (in twice the radii), and its nearest neighbour.
    const meets = (a) => clusters.some((b) => b !== a && apart(a, b) <= 2 * (a.radius + b.radius));
    const meeting = clusters.filter(meets);
    if (!meeting.length) break;
    const one = meeting.reduce((a, b) => (b.radius > a.radius ? b : a));
    const rest = clusters.filter((c) => c !== one);
    const two = rest.reduce((a, b) => (apart(b, one) < apart(a, one) ? b : a));
    const members = [...one.members, ...two.members].sort((a, b) => a - b);
    clusters = [...rest.filter((c) => c !== two), mergedCluster(form, found, members, error)];
  }
  for (const c of clusters) c.real = Math.abs(c.im) <= (c.size > 1 ? c.radius : 0);
  clusters.sort((a, b) => Math.hypot(b.re, b.im) - Math.hypot(a.re, a.im) || b.re - a.re || b.im - a.im);
  const basis = ({ members }) => (
    members.length === 1
      ? found[members[0]].right.map((z) => [z[0]])
      : invariant(form, members.map((k) => found[k].at)).basis
  );
  return { error, clusters, pairs: found, kappa: found.map((p) => p.kappa), basis };
}

/** Eigenvalues that cannot be told apart; Elsner's bound on how far rounding moves them (`_merged`). */
function mergedCluster(form, pairs, members, error) {
  const m = members.length;
  const { mean, departure, projector } = invariant(form, members.map((k) => pairs[k].at));
  const eta = error * projector, [re, im] = mean;
  const move = (2 * departure + eta) ** (1 - 1 / m) * eta ** (1 / m);
  const spread = Math.max(...members.map((k) => Math.hypot(pairs[k].re - re, pairs[k].im - im)));
  return { members, size: m, re, im, radius: spread + move, departure, noise: 4 * eta, exact: false };
}

const GEOMETRY = {
  2.1: "at most three points on the line: generically the limits of the leftmost and the rightmost token",
  3.1: "a convex polytope: rescaled tokens tend to finitely many points of its boundary, or to 0",
  4.2: "at most three parallel hyperplanes, normal to the left eigenvector of V; generically two",
  5.2: "a polytope in the eigenspace F of the leading eigenvalue, times the invariant complement G",
  collapse: "one cluster at the origin, for the tokens themselves, like t^(-1/2)",
};

/**
 * Which theorem applies: the same hypotheses and the same verdicts as `attnlib.classify`.
 * @returns {{theorem: string|null, undecided: boolean, geometry: string, codimension: number|null,
 *   leading: {re: number, im: number},
 *   hypotheses: {theorem: string, name: string, value: *, must: string, holds: boolean|null}[]}}
 */
export function classify(system) {
  const { d, V } = system;
  const p = exponentOf(system.Q.flat()), q = exponentOf(system.K.flat());
  const Q = system.Q.map((row) => row.map((v) => ldexp(v, -p)));
  const K = system.K.map((row) => row.map((v) => ldexp(v, -q)));
  const { clusters, error, pairs, kappa, basis: basisOf } = clustersOf(V);
  const mod = (c) => Math.hypot(c.re, c.im);
  const floor = Math.max(...clusters.map((c) => mod(c) - c.radius));
  const leaders = clusters.filter((c) => mod(c) + c.radius >= floor);
  const lead = leaders[0], symmetricV = isSymmetric(V);

  const conjugate =
    leaders.length === 2 && !leaders[0].real && leaders[0].re === leaders[1].re && leaders[0].im === -leaders[1].im;
  let dominant;
  if (conjugate) dominant = false;
  else if (leaders.length === 1) dominant = !(lead.exact && mod(lead) === 0 && clusters.length > 1);
  else dominant = leaders.every((c) => c.exact) && new Set(leaders.map(mod)).size === 1 ? false : null;

  const isPositive = (c) => {
    if (!c.real || c.re < -c.radius) return false;
    if (c.exact) return c.re > 0;
    if (c.re <= c.radius) return null;
    return c.size === 1 || symmetricV ? true : null;
  };
  let positive = joint(leaders.map(isPositive));
  if (positive === null && dominant === false) positive = false;
  const simple = joint(leaders.map((c) => (c.size === 1 ? true : c.exact ? false : null)));
  const semisimple = joint(
    leaders.map((c) => (c.size === 1 || c.exact ? true : c.departure > c.noise ? false : null)),
  );
  const multiple = (sign) => {
    if (lead.size < d) return false;
    if (lead.exact || lead.size === 1) return sign * lead.re > 0;
    if (sign * lead.re <= lead.radius) return false;
    return lead.departure <= lead.noise ? null : false;
  };

  const formOf = (c) => {
    const basis = basisOf(c);
    const QX = times(Q, basis), KX = times(K, basis), F = times(transpose(QX), KX);
    const sym = F.map((row, i) => row.map((v, j) => 0.5 * (v + F[j][i])));
    const { values } = symmetricEigen(sym);
    // How far rounding turns the basis: |E| / sep, sep from the least singular value across it.
    let turn = 0;
    const rest = d - basis[0].length;
    if (error > 0 && rest > 0) {
      const across = basis.map((row, i) => basis.map((other, j) => (i === j ? 1 : 0) - row.reduce((sum, v, k) => sum + v * other[k], 0)));
      const shifted = V.map((row, i) => row.map((v, j) => v - (i === j ? c.re : 0)));
      const B = times(times(across, shifted), across);
      let least = norm(B);
      if (rest === 2) {
        // Its two singular values multiply to the size of its minors.
        const minors = range(3).map((i) => range(3).map((j) => {
          const [a, b, e, f] = [(i + 1) % 3, (i + 2) % 3, (j + 1) % 3, (j + 2) % 3];
          return B[a][e] * B[b][f] - B[a][f] * B[b][e];
        }));
        const largest = Math.sqrt(symmetricEigen(times(transpose(B), B)).values[0]);
        least = largest > 0 ? norm(minors) / largest : 0;
      }
      const room = least - c.departure;
      turn = room > 0 ? error / room : Infinity;
    }
    const size = norm(Q) * norm(K);
    const KQ = times(transpose(K), QX), QK = times(transpose(Q), KX);
    const slope = norm(KQ.map((row, i) => row.map((v, j) => v + QK[i][j])));
    const abs = (M) => M.map((row) => row.map(Math.abs));
    let noise = 2 * EPS * (d + Q.length) * norm(times(abs(Q), abs(basis))) * norm(times(abs(K), abs(basis)));
    if (turn > 0) noise += 2 * slope * turn + size * turn * turn;
    return { low: values[values.length - 1], high: values[0], noise };
  };
  const scalar = (M) => M.length === M[0].length && isDiagonal(M) && M.every((row, i) => row[i] === M[0][0]);
  const skewPart = (M) => M.length === M[0].length && M.every((row, i) => row.every((v, j) => v === -M[j][i]));
  let form, forms, formValue = "none";
  let real = leaders.filter((c) => isPositive(c) !== false);
  if (!real.length) real = leaders.filter((c) => c.real);
  if (!real.length) form = false;
  else if ((scalar(Q) && skewPart(K)) || (scalar(K) && skewPart(Q))) [form, formValue] = [false, 0];
  else {
    forms = real.map(formOf);
    form = joint(forms.map((f) => joint([signOf(f.low, f.noise), signOf(f.high, f.noise)])));
  }

  const A = times(transpose(Q), K), unit = norm(A) || 1;
  const exactA = isDiagonal(Q) && isDiagonal(K) && Q.length === d;
  const errorA = exactA ? 0 : 4 * Math.sqrt(Q.length + d) * EPS * norm(Q) * norm(K);
  const odd = norm(A.map((row, i) => row.map((v, j) => v - A[j][i])));
  const symmetric = odd <= errorA;
  let definite, least;
  if (Q.length < d) [definite, least] = [false, 0];
  else if (errorA && Q.every((row, i) => row.every((v, j) => v === K[i][j]))) {
    // K = Q: A is positive semidefinite, its square roots the singular values of Q.
    const { values } = symmetricEigen(times(transpose(Q), Q));
    const low = Math.sqrt(Math.max(values[d - 1], 0)), high = Math.sqrt(values[0]);
    definite = low > 4 * Math.sqrt(d) * EPS * high * 1e4 ? true : null;
    least = (low * low) / unit;
  } else {
    const { values } = symmetricEigen(A.map((row, i) => row.map((v, j) => 0.5 * (v + A[j][i]))));
    least = values[d - 1] / unit;
    definite = signOf(least, errorA / unit);
  }
  if (form === null && definite) form = true; // whatever phi is
  else if (form === null && Q.length >= d) {
    const { values } = symmetricEigen(A.map((row, i) => row.map((v, j) => -0.5 * (v + A[j][i]))));
    if (signOf(values[d - 1] / unit, errorA / unit)) form = false;
  }
  if (forms) formValue = ldexp(form === false ? forms[0].high : forms[0].low, Math.max(-900, Math.min(900, p + q)));

  const rest = clusters.filter((c) => c !== lead).map(mod);
  const gap = mod(lead) - Math.max(0, ...rest);
  const H = {
    leading: ["leading eigenvalue of V", lead.real ? lead.re : lead, "real, > 0", positive],
    simple: ["multiplicity of the leading eigenvalue", simple ? 1 : lead.size, "1", simple],
    dominant: ["its modulus less that of every other", gap, "> 0", dominant],
    semisimple: ["V = lam Id on its eigenspace F", lead.departure, "0", semisimple],
    symmetric: ["A = Q^T K symmetric: |A - A^T| / |A|", odd / unit, "0", symmetric],
    definite: ["least eigenvalue of A / |A|", least, "> 0", definite],
    multiple: ["V = lam I", lead.re, "lam > 0", multiple(1)],
    negative: ["V = lam I", lead.re, "lam < 0", multiple(-1)],
    form: ["<Q phi, K phi>, phi the leading eigenvector", formValue, "> 0", form],
    line: ["dimension d", d, "1", d === 1],
  };
  const theorems = {
    2.1: ["line", "multiple", "definite"],
    3.1: ["multiple", "symmetric", "definite"],
    4.2: ["leading", "simple", "dominant", "form"],
    5.2: ["leading", "semisimple", "dominant", "symmetric", "definite"],
    collapse: ["negative", "symmetric", "definite"],
  };
  let theorem = null, undecided = false;
  const hypotheses = [];
  for (const key of ["2.1", "3.1", "4.2", "5.2", "collapse"]) {
    const rows = theorems[key].map((name) => H[name]);
    for (const [name, value, must, holds] of rows) hypotheses.push({ theorem: key, name, value, must, holds });
    if (theorem || undecided || rows.some((row) => row[3] === false)) continue;
    if (rows.some((row) => row[3] === null)) undecided = true;
    else theorem = key;
  }
  const good = theorems["4.2"].every((name) => H[name][3] === true);
  const count = clusters.filter((c) => c.re > c.radius).reduce((s, c) => s + c.size, 0);
  const open = clusters.some((c) => !c.exact && Math.abs(c.re) <= c.radius);
  let geometry = theorem ? GEOMETRY[theorem] : "nothing is proved";
  if (undecided) geometry = "depends on digits that float64 does not hold";
  else if (!theorem && multiple(1) && symmetric) {
    const { values } = symmetricEigen(A.map((row, i) => row.map((v, j) => -0.5 * (v + A[j][i]))));
    if (values[d - 1] > errorA) geometry = "one point: all rescaled tokens tend to it";
  }
  if (geometry === "nothing is proved") {
    if (count === 0 && !open) geometry += "; V has no eigenvalue with positive real part";
    else if (positive === false && !lead.real) geometry += "; a complex pair leads, no clustering is expected";
    else if (positive === false) geometry += "; no real positive eigenvalue leads";
    else if (simple && dominant && form === false) geometry += ": <Q phi, K phi> is not positive";
  }
  return {
    theorem, undecided, geometry, hypotheses,
    codimension: good && !open ? count : null,
    leading: { re: lead.re, im: lead.real ? 0 : lead.im },
  };
}

/* ---------------------------------------------------------------------------- layers, hull ---- */

/**
 * The discrete Transformer x[k+1] = x[k] + step sum_j P_ij V x_j[k], for depth layers.
 * tokens(t) interpolates x linearly between layers, as Euler does; rescaled by R^{-k}, R = I + step V.
 * Stops where numbers end (`end`).
 */
export function layers(system, tokens, n, { step, depth }) {
  const { d, V, A: form } = system;
  if (!(step > 0)) throw new RangeError(`step must be greater than 0: got ${step}.`);
  const R = identity(d).map((row, i) => row.map((v, j) => v + step * V[i][j]));
  const back = inverse(R);
  const states = [tokens instanceof Float64Array ? tokens : Float64Array.from(tokens.flat())];
  const weights = new Float64Array(n), mean = new Float64Array(d);
  const weigh = (x, i) => {
    const u = range(d).map((b) => range(d).reduce((s, a) => s + x[i * d + a] * form[a][b], 0));
    let top = -Infinity, total = 0;
    for (let j = 0; j < n; j++) {
      weights[j] = 0;
      for (let b = 0; b < d; b++) weights[j] += u[b] * x[j * d + b];
      top = Math.max(top, weights[j]);
    }
    for (let j = 0; j < n; j++) total += weights[j] = Math.exp(weights[j] - top);
    return total;
  };
  for (let k = 0; k < depth; k++) {
    const x = states[k], next = new Float64Array(n * d);
    for (let i = 0; i < n; i++) {
      const total = weigh(x, i);
      mean.fill(0);
      for (let j = 0; j < n; j++) for (let a = 0; a < d; a++) mean[a] += weights[j] * x[j * d + a];
      for (let b = 0; b < d; b++) {
        next[i * d + b] = x[i * d + b];
        for (let a = 0; a < d; a++) next[i * d + b] += (step * V[b][a] * mean[a]) / total;
      }
    }
    if (!next.every((v) => Math.abs(v) < 1e150)) break;
    states.push(next);
  }
  const rescaledLayer = (k) => {
    let M = identity(d);
    for (let m = 0; m < k; m++) M = times(M, back);
    const x = states[k], out = new Float64Array(n * d);
    for (let i = 0; i < n; i++) out.set(apply(M, Array.from(x.slice(i * d, i * d + d))), i * d);
    return out;
  };
  const shown = back ? states.map((_, k) => rescaledLayer(k)) : null;
  const end = (states.length - 1) * step;
  const nobody = new Int32Array(n).fill(-1);
  return {
    n, d, system, status: "layers", reason: back ? "" : "R = I + step V is singular: no rescaled tokens",
    tCertified: null, tLast: end, end, leaders: new Int32Array(0), leaderOf: nobody, points: null, falls: [],
    times: Float64Array.from(states, (_, k) => k * step), evaluations: states.length - 1,
    tokens(t, out = new Float64Array(n * d), rescaled = true) {
      const list = rescaled && shown ? shown : states;
      const at = Math.max(0, Math.min(t / step, states.length - 1)), k = Math.min(Math.floor(at + 1e-9), states.length - 1);
      const w = Math.max(0, at - k), low = list[k], high = list[Math.min(k + 1, list.length - 1)];
      for (let i = 0; i < n * d; i++) out[i] = low[i] + w * (high[i] - low[i]);
      return out;
    },
    attention(t, out = new Float64Array(n * n)) {
      const k = Math.max(0, Math.min(Math.floor(t / step + 1e-9), states.length - 1));
      for (let i = 0; i < n; i++) {
        const total = weigh(states[k], i);
        for (let j = 0; j < n; j++) out[i * n + j] = weights[j] / total;
      }
      return out;
    },
    limitAttention: () => null,
  };
}

/**
 * Convex hull of n points in d = 1, 2 or 3 dimensions.
 * @returns {{vertices: number[], edges: number[][], faces: number[][]}} indices; in the plane vertices
 *   run around. Points closer than 1e-9 of the cloud's size to a face count as on it.
 */
export function hull(points, n, d) {
  const at = (i, a) => points[i * d + a];
  const low = range(d).map((a) => Math.min(...range(n).map((i) => at(i, a))));
  const size = Math.max(...range(d).map((a) => Math.max(...range(n).map((i) => at(i, a))) - low[a]), 0);
  const tol = 1e-9 * size;
  const chain = (indices, x, y) => {
    const order = [...indices].sort((i, j) => x(i) - x(j) || y(i) - y(j));
    const half = (list) => {
      const out = [];
      for (const i of list) {
        while (out.length > 1) {
          const [a, b] = [out[out.length - 2], out[out.length - 1]];
          const turn = (x(b) - x(a)) * (y(i) - y(a)) - (y(b) - y(a)) * (x(i) - x(a));
          if (turn > tol * size) break;
          out.pop();
        }
        out.push(i);
      }
      return out;
    };
    const lower = half(order), upper = half([...order].reverse());
    return [...lower.slice(0, -1), ...upper.slice(0, -1)];
  };
  if (size === 0) return { vertices: [0], edges: [], faces: [] };
  if (d === 1) {
    const order = range(n).sort((i, j) => at(i, 0) - at(j, 0));
    return { vertices: [order[0], order[n - 1]], edges: [[order[0], order[n - 1]]], faces: [] };
  }
  const cycle = (v) => (v.length < 2 ? [] : v.length === 2 ? [[v[0], v[1]]] : v.map((i, k) => [i, v[(k + 1) % v.length]]));
  if (d === 2) {
    const vertices = chain(range(n), (i) => at(i, 0), (i) => at(i, 1));
    return { vertices, edges: cycle(vertices), faces: [] };
  }
  return hull3(points, n, tol, chain, cycle);
}

function hull3(points, n, tol, chain, cycle) {
  const P = range(n).map((i) => [points[3 * i], points[3 * i + 1], points[3 * i + 2]]);
  const sub = (u, v) => u.map((x, k) => x - v[k]);
  const cross = (u, v) => [u[1] * v[2] - u[2] * v[1], u[2] * v[0] - u[0] * v[2], u[0] * v[1] - u[1] * v[0]];
  const farthest = (measure) => range(n).reduce((b, i) => (measure(i) > measure(b) ? i : b), 0);
  const i0 = farthest((i) => P[i][0]);
  const i1 = farthest((i) => Math.hypot(...sub(P[i], P[i0])));
  const axis = sub(P[i1], P[i0]), length = Math.hypot(...axis);
  const off = (i) => Math.hypot(...cross(axis, sub(P[i], P[i0]))) / length;
  const i2 = farthest(off);
  if (off(i2) <= tol) return { vertices: [i0, i1], edges: [[i0, i1]], faces: [] };
  let normal = cross(axis, sub(P[i2], P[i0]));
  const size = Math.hypot(...normal);
  normal = normal.map((v) => v / size);
  const height = (i) => dot(normal, sub(P[i], P[i0]));
  const i3 = farthest((i) => Math.abs(height(i)));
  if (Math.abs(height(i3)) <= tol) {
    const u = axis.map((v) => v / length), v = cross(normal, u);
    const vertices = chain(range(n), (i) => dot(u, P[i]), (i) => dot(v, P[i]));
    return { vertices, edges: cycle(vertices), faces: [vertices] };
  }
  const centre = [0, 1, 2].map((a) => (P[i0][a] + P[i1][a] + P[i2][a] + P[i3][a]) / 4);
  const face = (a, b, c) => {
    let m = cross(sub(P[b], P[a]), sub(P[c], P[a]));
    const s = Math.hypot(...m) || 1;
    m = m.map((v) => v / s);
    return dot(m, sub(centre, P[a])) > 0 ? { v: [a, c, b], m: m.map((x) => -x) } : { v: [a, b, c], m };
  };
  let faces = [face(i0, i1, i2), face(i0, i1, i3), face(i0, i2, i3), face(i1, i2, i3)];
  for (let i = 0; i < n; i++) {
    const seen = faces.filter((f) => dot(f.m, sub(P[i], P[f.v[0]])) > tol);
    if (!seen.length) continue;
    const edges = new Map();
    for (const { v } of seen) {
      for (let k = 0; k < 3; k++) {
        const [a, b] = [v[k], v[(k + 1) % 3]];
        if (edges.has(`${b},${a}`)) edges.delete(`${b},${a}`);
        else edges.set(`${a},${b}`, [a, b]);
      }
    }
    faces = faces.filter((f) => !seen.includes(f));
    for (const [a, b] of edges.values()) faces.push(face(a, b, i));
  }
  const edges = new Map();
  for (const { v, m } of faces) {
    for (let k = 0; k < 3; k++) {
      const pair = [v[k], v[(k + 1) % 3]].sort((a, b) => a - b), key = pair.join();
      if (!edges.has(key)) edges.set(key, { pair, m });
      else if (dot(edges.get(key).m, m) > 1 - 1e-9) edges.get(key).flat = true; // two halves of one face
    }
  }
  return {
    vertices: [...new Set(faces.flatMap((f) => f.v))].sort((a, b) => a - b),
    edges: [...edges.values()].filter((e) => !e.flat).map((e) => e.pair),
    faces: faces.map((f) => f.v),
  };
}

/** One or two plain sentences on the state at depth t, for those who cannot see it. */
export function describe(regime, future, t) {
  const names = { collapse: "The collapse theorem applies" };
  const verdict = regime.undecided
    ? "Which theorem applies is undecided at this precision"
    : regime.theorem
      ? names[regime.theorem] ?? `Theorem ${regime.theorem} applies`
      : "No theorem applies";
  const plural = (k, word) => `${k} ${word}${k === 1 ? "" : "s"}`;
  const leaders = future.leaders.length ? plural(future.leaders.length, "leader") : "no leaders yet";
  const known = {
    certified: `certified from depth ${future.tCertified?.toPrecision(3)}`,
    clusters: "limits certified, leaders inside clusters are not",
    layers: "discrete layers, no certificate",
  }[future.status] ?? `not certified: ${future.reason}`;
  return `${plural(future.n, "token")} in dimension ${future.d} at depth ${Number(t.toPrecision(3))}. ${verdict}; ${leaders}, ${known}.`;
}
