"""The follower law, its gaps and its certificate (book: *How the numbers are made*).

Each token i has a leader l(i), leaders lead themselves. Frozen there, attention moves tokens by

    x_i(t) = o_i + e^{tV} pi_l(i),        o_leader = 0,

a follower keeps its offset o_i to its leader. In coordinates in which V is diagonal, with
eigenvalues lam_a, the gap g_ij(t) = <Q x_i, K (x_l(i) - x_j)> is a sum of exponentials whose
exponents are lam_a + lam_b, lam_a and 0. With exponents in falling order mu_1 > mu_2 > ... and
coefficients c_m at time t0, let D_k = sum_{m <= k} mu_m c_m. If every D_k >= 0, summation by parts
gives g' >= r := min of D_k over the k with mu_k <= 0 (0 counts as an exponent): the gap only grows,
for ever. That is the certificate; the radii account for what is known of the state only to within
an error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import softmax

from ._check import FloatArray
from ._frame import Frame
from .attention import EPS, exponent
from .dynamics import SelfAttention

#: e^-38 is below the spacing of float64: attention with such gaps is 0/1 to the last bit.
BOOLEAN_GAP = 38.0


class Modes:
    """V in coordinates in which it is diagonal; `defect` says why there are none."""

    def __init__(self, system: SelfAttention, frame: Frame) -> None:
        V = system.V
        self.d = len(V)
        self.exponent, self.log_form = frame.exponent, frame.log_score
        self.defect = ""
        if not np.any(V - np.diag(np.diagonal(V))):
            values, right = np.diagonal(V), np.eye(self.d)
        elif np.array_equal(V, V.T):
            values, right = np.linalg.eigh(V)
        else:
            values, right = _merged(V, *np.linalg.eig(V))
        order = np.argsort(-values.real, kind="stable")
        self.values, self.right = values[order], right[:, order]
        condition = np.linalg.cond(self.right)
        if not condition < 1e7:
            self.defect = f"V is defective or nearly so (eigenvectors of condition {condition:.1e})"
        self.left = np.linalg.inv(self.right) if not self.defect else self.right.conj().T
        size = float(np.abs(values).max()) or 1.0
        self.condition = float(condition)
        # Eigenvalues that agree to within their rounding are taken as equal; a diagonal V is exact.
        diagonal = not np.any(V - np.diag(np.diagonal(V)))
        self.rounding = 0.0 if diagonal else 8.0 * EPS * condition * size
        merged = self.values.copy()
        for a in range(1, self.d):
            if abs(merged[a] - merged[a - 1]) <= self.rounding:
                merged[a] = merged[a - 1]
        self.values = merged
        self.rate = max(float(merged[0].real), 0.0)
        self.size = size
        self.expanding = merged.real > self.rounding
        unit = np.ldexp(system.Q, -exponent(system.Q)).T @ np.ldexp(system.K, -exponent(system.K))
        self.form = self.right.T @ unit @ self.right
        self.real = not np.iscomplexobj(values)

    @cached_property
    def exponents(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
        """Distinct exponents, falling, with where quadratic, linear and constant terms go.

        Sums are taken in long double, in which sums of two float64 of like size are exact; only
        exponents as close as the rounding of the eigenvalues are one.
        """
        wide = np.clongdouble if np.iscomplexobj(self.values) else np.longdouble
        lam = self.values.astype(wide)
        every = np.concatenate([(lam[:, None] + lam[None, :]).ravel(), lam, np.zeros(1, wide)])
        order = np.lexsort((every.imag, -every.real))
        sorted_, d = every[order], self.d
        new = np.abs(np.diff(sorted_)) > 2.0 * self.rounding
        rank = np.concatenate([[0], np.cumsum(new)])
        place = np.empty(len(every), dtype=int)
        place[order] = rank
        mu = sorted_[np.concatenate([[True], new])].astype(self.values.dtype)
        return mu, place[: d * d].reshape(d, d), place[d * d : -1], place[-1:], len(mu)


def _merged(V: FloatArray, values: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenpairs in which V is lam I on a subspace, but for rounding, written so.

    Rounding splits such an eigenvalue at random, into a complex pair as a rule: its subspace gets one
    eigenvalue and a real orthonormal basis, if V acts on it as a multiple of I to within rounding.
    """
    size = float(np.abs(values).max()) or 1.0
    for head in range(len(values)):
        near = np.flatnonzero(np.abs(values - values[head]) <= 1e-10 * size)
        if len(near) < 2 or near[0] != head:
            continue
        span = np.hstack([right[:, near].real, right[:, near].imag])
        basis = np.linalg.svd(span)[0][:, : len(near)]
        block = basis.T @ V @ basis
        lam = float(np.trace(block)) / len(near)
        whole, merged = right.astype(complex), values.astype(complex)
        whole[:, near], merged[near] = basis, lam
        off = float(np.abs(V @ basis - lam * basis).max())
        if off <= 8.0 * EPS * float(np.linalg.cond(whole)) * size:
            right, values = whole, merged
    if np.iscomplexobj(values) and not np.any(values.imag):
        values, right = values.real, right.real
    return values, right


@dataclass(frozen=True, eq=False)
class Following:
    """A state that follows leaders: x_i = e^{tau_i} o_i + e^{tV} pi_l(i), in modes of V.

    Attributes
    ----------
    time : float
        The depth t0 this description starts at.
    leader_of : (n,) int array
        l(i); leaders are their own.
    pi : (n, d) array
        Rescaled leader of every token, in modes.
    offset, tau : (n, d) and (n,) arrays
        Offsets in modes, with logarithms of their sizes (they may exceed float64).
    eps, eps_offset : (d,) and (n, d) arrays
        Radii of pi and of the offsets (in the units of each), mode by mode.
    """

    modes: Modes
    time: float
    leader_of: np.ndarray
    pi: np.ndarray
    offset: np.ndarray
    tau: FloatArray
    eps: FloatArray
    eps_offset: FloatArray

    @property
    def leaders(self) -> np.ndarray:
        """Indices of the leaders, ascending."""
        return np.unique(self.leader_of)

    def scaled(self, t: float) -> tuple[np.ndarray, np.ndarray]:
        """Leader part and offset part of the tokens at time t, both times e^{-rate t}."""
        lam, rate = self.modes.values, self.modes.rate
        lead = self.pi * np.exp((lam - rate) * t)
        return lead, self.offset * np.exp(self.tau - rate * t)[:, None]

    def tokens(self, t: float) -> FloatArray:
        """Original coordinates at t >= time; inf where float64 ends."""
        lam = self.modes.values
        with np.errstate(divide="ignore", over="ignore", under="ignore"):
            logs = np.concatenate(
                [
                    np.log(np.abs(self.pi)) + lam.real * t,
                    np.log(np.abs(self.offset)) + self.tau[:, None],
                ],
                axis=1,
            )
            phase = self.pi if self.modes.real else self.pi * np.exp(1j * lam.imag * t)
            parts = np.concatenate([phase, self.offset], axis=1)
            unit = np.where(parts == 0.0, 0.0, parts / np.where(parts == 0.0, 1.0, np.abs(parts)))
            right = np.concatenate([self.modes.right, self.modes.right], axis=1)
            out = np.empty(self.pi.shape)
            for c in range(self.modes.d):  # each coordinate in its own scale: no inf times 0
                used = np.where(right[c] != 0.0, logs, -np.inf)
                top = used.max(axis=1)
                top = np.where(np.isfinite(top), top, 0.0)
                mantissa = (unit * right[c] * np.exp(used - top[:, None])).sum(axis=1).real
                out[:, c] = np.ldexp(mantissa * np.exp(top), self.modes.exponent)
        return out

    def rescaled(self, t: float) -> FloatArray:
        """z = e^{-tV} x at t >= time; inf where float64 ends (directions that V contracts)."""
        with np.errstate(over="ignore", invalid="ignore"):
            shift = np.exp(self.tau[:, None] - self.modes.values.real * t)
            moved = self.offset * np.where(self.offset == 0.0, 0.0, shift)
            if not self.modes.real:
                moved = moved * np.exp(-1j * self.modes.values.imag * t)
            z = ((self.pi + moved) @ self.modes.right.T).real
        return np.ldexp(z, self.modes.exponent)

    def attention(self, t: float, log_counts: FloatArray) -> FloatArray:
        """Attention matrix at t >= time (log_counts: of how many tokens each stands for)."""
        modes = self.modes
        lead, offset = self.scaled(t)
        x = lead + offset
        same = self.leader_of[:, None] == self.leader_of[None, :]
        log = modes.rate * t + modes.log_form
        near = (x @ modes.form @ self.offset.T).real * np.exp(np.minimum(log + self.tau, 600.0))
        far = x @ modes.form @ x.T - np.einsum("ia,ab,ib->i", x, modes.form, lead)[:, None]
        far = far.real * np.exp(min(log + modes.rate * t, 600.0))
        scores = np.where(same, near, far) + log_counts
        return softmax(scores, axis=1)

    def limit_modes(self) -> tuple[np.ndarray, np.ndarray]:
        """Limits of z in the expanding modes; limits of x in the others."""
        expanding = self.modes.expanding
        with np.errstate(over="ignore"):
            offset = self.offset * np.exp(self.tau)[:, None]
        still = np.abs(self.modes.values.real) <= 8.0 * EPS * self.modes.size
        rest = np.where(still & ~expanding, self.pi, 0.0) + offset
        return np.where(expanding, self.pi, 0.0), np.where(expanding, 0.0, rest)


@dataclass(frozen=True, eq=False)
class Gaps:
    """Gaps of some pairs as sums of exponentials: g_ij(t0 + s) = e^{log} sum_m c_m e^{mu_m s}.

    Attributes
    ----------
    i, j : (p,) int arrays
        The pairs.
    mu : (K,) array
        Exponents, real parts falling.
    c, kappa : (p, K) arrays
        Coefficients and the radii within which they are known.
    log : (p,) array
        Common factor of each pair, as a logarithm.
    """

    i: np.ndarray
    j: np.ndarray
    mu: np.ndarray
    c: np.ndarray
    kappa: FloatArray
    log: FloatArray

    @cached_property
    def top(self) -> FloatArray:
        """Real part of the largest exponent each pair has, (p,)."""
        return self.mu.real[(self.c != 0).argmax(axis=1)]

    def value(self, s: float = 0.0) -> FloatArray:
        """Gaps at time t0 + s, but for the factor e^{log + top s}."""
        return (self.c * np.exp((self.mu - self.top[:, None]) * s)).sum(axis=1).real

    @cached_property
    def envelope(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Real exponents nu (falling), derivative coefficients, and their radii.

        A term with a complex exponent counts as minus its modulus: a lower bound.
        """
        complex_term = self.mu.imag != 0
        derivative = np.where(complex_term, -np.abs(self.mu * self.c), (self.mu * self.c).real)
        nu, place = np.unique(-self.mu.real, return_inverse=True)
        real = np.zeros((len(self.c), len(nu)))
        radius = np.zeros_like(real)
        for m, k in enumerate(place.ravel()):
            real[:, k] += derivative[:, m]
            radius[:, k] += np.abs(self.mu[m]) * self.kappa[:, m]
        return -nu, real, radius

    def certify(self, speed: float, least: float) -> tuple[np.ndarray, FloatArray, FloatArray]:
        """Which pairs stay open for ever, with the least gap now and the least growth.

        Returns
        -------
        open_forever : (p,) bool array
        gap, growth : (p,) arrays
            Lower bounds G of the gap now and r of its derivative from now on; open_forever asks
            G >= least and r > speed beside D_k >= 0.
        """
        nu, derivative, radius = self.envelope
        sums = np.cumsum(derivative - radius, axis=1)
        before = nu > 0.0
        # 0 is always among the exponents, so the minimum is over at least one term.
        rise = sums[:, nu <= 0.0].min(axis=1)
        with np.errstate(over="ignore"):
            factor = np.exp(np.minimum(self.log, 690.0))
            gap = (self.c.real.sum(axis=1) - self.kappa.sum(axis=1)) * factor
            growth = rise * factor
        ok = (sums[:, before] >= 0.0).all(axis=1) & (gap >= least) & (growth > speed)
        return ok, gap, growth

    def pick(self, rows: np.ndarray) -> Gaps:
        """Some of the pairs."""
        return Gaps(
            self.i[rows], self.j[rows], self.mu, self.c[rows], self.kappa[rows], self.log[rows]
        )

    def first_zeros(self, horizon: float, budget: int = 3000) -> FloatArray:
        """First s in (0, horizon] at which each gap closes; inf where it does not.

        Each step is the first zero of g + g' s - b s^2 / 2 with b a bound on |g''| from here on: it
        passes no zero, and is Newton's close to one. A pair that stands at a zero and opens (it has
        just switched) does not count.
        """
        falls = np.where(self.c != 0, self.mu - self.top[:, None], 0.0)
        s = np.zeros(len(self.c))
        out = np.full(len(self.c), np.inf)
        active = np.arange(len(self.c))
        for count in range(budget):
            fall = falls[active]
            terms = self.c[active] * np.exp(fall * s[active, None])
            size = np.abs(terms).sum(axis=1) + 1e-300
            value = terms.sum(axis=1).real / size
            slope = (terms * fall).sum(axis=1).real / size
            bound = (np.abs(terms) * np.abs(fall)).sum(axis=1) / size
            closed = (value <= -1e-9) | ((value <= 1e-14) & (slope < 0.0))
            done = closed | (bound == 0.0)
            out[active[closed]] = s[active[closed]]
            if count % 16 == 0:
                sums = np.cumsum(self._shifted(active, terms).envelope[1], axis=1)
                done |= (sums >= 0.0).all(axis=1)
            curve = (np.abs(terms) * np.abs(fall) ** 2).sum(axis=1) / size + 1e-300
            high = np.maximum(value, np.where(slope < 0.0, 1e-15, 1e-4))
            root = np.sqrt(slope**2 + 2.0 * curve * high)
            step = np.where(
                slope < 0.0, 2.0 * high / (root + np.abs(slope)), (slope + root) / curve
            )
            s[active] += step + 1e-16 * s[active]
            active = active[~done & (s[active] <= horizon)]
            if not len(active):
                return out
        out[active] = s[active]  # too slow to tell: call it closed here, and integrate
        return out

    def _shifted(self, rows: np.ndarray, terms: np.ndarray) -> Gaps:
        zero = np.zeros(terms.shape)
        return Gaps(self.i[rows], self.j[rows], self.mu, terms, zero, self.log[rows])


def gaps(state: Following, pairs: tuple[np.ndarray, np.ndarray], t0: float | None = None) -> Gaps:
    """Coefficients of the gaps of the pairs (i, j), j != l(i), of a following state."""
    i, j = pairs
    t0 = state.time if t0 is None else t0
    modes = state.modes
    mu, quadratic, linear, constant, count = modes.exponents
    lead, _ = state.scaled(t0)
    eps = state.eps * np.exp((modes.values.real - modes.rate) * t0)
    form, size = modes.form, np.abs(modes.form)
    same = state.leader_of[i] == state.leader_of[j]
    log_unit = modes.rate * t0
    # Offsets of j within its own cluster are measured in their own units, so as not to underflow.
    tau_j = np.where(same, 0.0, state.tau[j] - log_unit)
    tau_i = state.tau[i] - log_unit
    log = np.where(same, log_unit + state.tau[j], 2.0 * log_unit) + modes.log_form
    oi = state.offset[i] * np.exp(np.minimum(tau_i, 700.0))[:, None]
    oj = state.offset[j] * np.exp(np.minimum(tau_j, 700.0))[:, None]
    ei = state.eps_offset[i] * np.exp(np.minimum(tau_i, 700.0))[:, None]
    ej = state.eps_offset[j] * np.exp(np.minimum(tau_j, 700.0))[:, None]
    p, q = lead[i], lead[j]
    apart = np.where(same[:, None], 0.0, p - q)
    e_apart = np.where(same[:, None], 0.0, 2.0 * eps)

    to_linear = np.zeros((modes.d, count))
    to_linear[np.arange(modes.d), linear] = 1.0
    c = _quadratic(p, form, apart, same, state.leader_of, (i, j), quadratic, count)
    c = c + ((oi @ form) * apart - p * (oj @ form.T)) @ to_linear
    c[:, constant[0]] -= ((oi @ form) * oj).sum(axis=1)
    # The same sums of moduli bound what the radii of p, q, o_i and o_j can do.
    dp, da, doi, doj = np.abs(p), np.abs(apart), np.abs(oi), np.abs(oj)
    e = np.broadcast_to(eps, p.shape)
    leaders = (i, j), quadratic, count
    kappa = _quadratic(dp, size, e_apart, same, state.leader_of, *leaders)
    kappa = kappa + _quadratic(e, size, da + e_apart, same, state.leader_of, *leaders)
    kappa += ((doi @ size) * e_apart + (ei @ size) * (da + e_apart)) @ to_linear
    kappa += (dp * (ej @ size.T) + e * ((doj + ej) @ size.T)) @ to_linear
    kappa[:, constant[0]] += ((doi @ size) * ej + (ei @ size) * (doj + ej)).sum(axis=1)
    # Rounding of the coefficients themselves.
    kappa += 4.0 * EPS * np.abs(c)
    return Gaps(i, j, mu, c, kappa, log)


def _quadratic(
    left: np.ndarray,
    form: np.ndarray,
    right: np.ndarray,
    same: np.ndarray,
    leader_of: np.ndarray,
    pairs: tuple[np.ndarray, np.ndarray],
    place: np.ndarray,
    count: int,
) -> np.ndarray:
    """Coefficients of left_a form_ab right_b at the exponents lam_a + lam_b, pair by pair.

    They depend on the two leaders only, and vanish within a cluster.
    """
    n = len(leader_of)
    _, first, which = np.unique(
        leader_of[pairs[0]] * n + leader_of[pairs[1]], return_index=True, return_inverse=True
    )
    few = np.zeros((len(first), count), dtype=np.result_type(left, form, right))
    across = np.flatnonzero(~same[first])
    p, q = left[first[across]], right[first[across]]
    # Modes with equal eigenvalues have equal exponents: their sums are matrix products.
    _, heads, member = np.unique(place[:, 0], return_index=True, return_inverse=True)
    gather = np.eye(len(heads))[member.ravel()]
    for b, head in enumerate(heads):
        columns = member.ravel() == b
        terms = (p * (q[:, columns] @ form[:, columns].T)) @ gather
        for term, exponent_at in zip(terms.T, place[heads, head], strict=True):
            few[across, exponent_at] += term
    return few[which.ravel()]


def drift(
    state: Following,
    gap: FloatArray,
    growth: FloatArray,
    g: Gaps,
    log_counts: FloatArray | None = None,
) -> float:
    """Bound on how far leaders can still move from the frozen flow, in units of pi, per mode.

    |d eps_a/ds| <= |lam_a| sum_j P_lj (|pi_j - pi_l|_a + e^{-lam_a t}|o_j|_a), and
    P_lj <= n_j e^{-G - r s}, n_j tokens equal to j (`log_counts`).
    """
    modes = state.modes
    lam = modes.values.real
    gap = gap if log_counts is None else gap - log_counts[g.j]
    apart = np.abs(state.pi[g.i] - state.pi[g.j]) + 2.0 * state.eps
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        log_size = state.tau[g.j][:, None] - lam * state.time - gap[:, None]
        reach = np.abs(state.offset[g.j]) + state.eps_offset[g.j]
        offsets = reach * np.exp(np.minimum(log_size, 690.0))
        rate = growth[:, None]
        each = np.abs(modes.values) * (
            apart * np.exp(-gap)[:, None] / rate + offsets / np.maximum(rate + lam, 1e-300)
        )
    total = np.zeros((len(state.pi), modes.d))
    np.add.at(total, g.i, each)
    return float(total.max(initial=0.0))


def offset_drift(
    state: Following, gap: FloatArray, growth: FloatArray, g: Gaps, log_counts: FloatArray
) -> FloatArray:
    """Bound on how far offsets can still move from the frozen flow, (n, d), in units of e^{tau}.

    |d omega_ia/ds| <= |lam_a| sum_j (P_ij + P_lj) (e^{lam_a t}|pi_j - pi_l|_a + |o_j|_a).
    """
    lam = state.modes.values
    apart = np.abs(state.pi[g.i] - state.pi[g.j]) + 2.0 * state.eps
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        log = log_counts[g.j] - gap - state.tau[g.i]
        grown = apart * np.exp(np.minimum(log[:, None] + lam.real * state.time, 690.0))
        reach = np.abs(state.offset[g.j]) + state.eps_offset[g.j]
        size = reach * np.exp(np.minimum(log + state.tau[g.j], 690.0))[:, None]
        each = grown / (growth[:, None] - lam.real) + size / growth[:, None]
    one = np.zeros(state.pi.shape)
    np.add.at(one, g.i, np.abs(lam) * each)
    own = one[state.leader_of] * np.exp(state.tau[state.leader_of] - state.tau)[:, None]
    return one + own


def regroup(
    state: Following, t: float, leader_of: np.ndarray, eps_extra: FloatArray | float = 0.0
) -> Following:
    """The same tokens at time t, written with other leaders; old clusters keep exact offsets."""
    modes = state.modes
    lam = modes.values
    pi, offset, tau = state.pi.copy(), state.offset.copy(), state.tau.copy()
    eps_offset = state.eps_offset.copy()
    for i in range(len(pi)):
        old, new = state.leader_of[i], leader_of[i]
        if old == new:
            continue
        # x_i - x_new = (o_i - o_new) + e^{tV}(pi_old - pi_new), the last 0 within a cluster
        base = state.leader_of[new]
        apart = (state.pi[old] - state.pi[base]) if base != old else np.zeros(modes.d)
        logs = [state.tau[i], state.tau[new]]
        rates = lam.real * t
        with np.errstate(divide="ignore"):
            sizes = np.log(np.abs(apart)) + rates
        unit = float(max([*logs, sizes.max()]))
        unit = 0.0 if not np.isfinite(unit) else unit
        moved = apart * np.exp(np.where(np.isfinite(sizes), rates - unit, 0.0))
        if not modes.real:
            moved = moved * np.exp(1j * lam.imag * t)
        offset[i] = (
            state.offset[i] * np.exp(logs[0] - unit) - state.offset[new] * np.exp(logs[1] - unit)
        ) + moved
        eps_offset[i] = state.eps_offset[i] * np.exp(logs[0] - unit) + state.eps_offset[
            new
        ] * np.exp(logs[1] - unit)
        if base != old:
            eps_offset[i] += 2.0 * (state.eps + eps_extra) * np.exp(rates - unit)
        tau[i] = unit
    eps = state.eps + eps_extra
    # A new leader's pi: e^{-tV} x.
    for leader in np.unique(leader_of):
        old = state.leader_of[leader]
        if old == leader:
            new_pi = state.pi[leader]
        else:
            shift = np.exp(np.minimum(state.tau[leader] - lam * t, 690.0))
            new_pi = state.pi[old] + state.offset[leader] * shift
            eps = np.maximum(eps, state.eps + state.eps_offset[leader] * np.abs(shift))
        members = leader_of == leader
        pi[members] = new_pi
        offset[leader], tau[leader], eps_offset[leader] = 0.0, 0.0, 0.0
    return replace(
        state,
        time=t,
        leader_of=leader_of,
        pi=pi,
        offset=offset,
        tau=tau,
        eps=eps,
        eps_offset=eps_offset,
    )


def all_pairs(state: Following) -> tuple[np.ndarray, np.ndarray]:
    """Every pair (i, j) with j != l(i)."""
    n = len(state.leader_of)
    i, j = np.divmod(np.arange(n * n), n)
    keep = j != state.leader_of[i]
    return i[keep], j[keep]
