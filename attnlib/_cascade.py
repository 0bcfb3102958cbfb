"""From first leaders to the last fall: how a trajectory is followed to t = infinity.

While attention is not yet 0/1 the tokens are integrated (`integration`). Once it is, with leaders
that lead themselves, the follower law moves them in closed form until a gap closes: a fall. Near a
fall leaders and offsets are integrated in a clock of their own; where even that is instantaneous
to float64, the switch is made at once. After the last fall the certificate of `_follow` holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.integrate

from ._check import FloatArray
from ._follow import (
    BOOLEAN_GAP,
    Following,
    Gaps,
    Modes,
    all_pairs,
    drift,
    gaps,
    offset_drift,
    regroup,
)
from ._frame import Exponential, Frame
from .attention import _FLOOR, EPS

#: In units of 1/rate: from here on a fall is made at once; its duration goes into the radii.
_SHARP = 10.0

#: In units of 1/rate: a moment in which a gap that opens after `_SHARP` becomes 0/1 attention,
#: however uncertain the very time of the switch.
_MOMENT = 1e-2


#: Steps through one fall: many times what a fall takes.
_WINDOW_STEPS = 3_000


@dataclass(frozen=True)
class Fall:
    """A leader stops leading itself, and its followers go with it.

    Attributes
    ----------
    time : float
        Depth of the fall.
    token, new_leader : int
        Who falls, and to whom.
    """

    time: float
    token: int
    new_leader: int


@dataclass(eq=False)
class Segment:
    """A stretch of depth in which one description of the tokens holds."""

    start: float
    stop: float
    tokens: Callable[[float], FloatArray]
    rescaled: Callable[[float], FloatArray]
    attention: Callable[[float], FloatArray]


@dataclass(eq=False)
class Cascade:
    """What became of the tokens after attention first was 0/1.

    Attributes
    ----------
    segments : list of Segment
    falls : list of Fall
    state : Following
        The last following state.
    certified : bool
    time : float
        Depth from which the certificate holds (or at which we stopped).
    reason : str
        Why not certified; empty if it is.
    """

    state: Following
    segments: list[Segment] = field(default_factory=list)
    falls: list[Fall] = field(default_factory=list)
    certified: bool = False
    time: float = 0.0
    reason: str = ""


def first_leaders(frame: Frame, t: float, state: FloatArray, least: float) -> np.ndarray | None:
    """Leaders if attention is 0/1 (gaps of at least `least`) and leaders lead themselves."""
    queries, keys, factor = frame.heads(t, state)
    scores = queries @ keys.T
    n = len(scores)
    if n == 1:
        return np.zeros(1, dtype=int)
    best = scores.argmax(axis=1)
    if not np.array_equal(best[best], best):
        return None
    top = scores[np.arange(n), best]
    scores[np.arange(n), best] = -np.inf
    if ((top - scores.max(axis=1)) * factor < least).any():
        return None
    return best


def following(
    frame: Frame, modes: Modes, t: float, state: FloatArray, leader_of: np.ndarray
) -> Following:
    """The state of a frame at time t, written as leaders and offsets (radii zero)."""
    split = frame.split
    rows = modes.left @ frame.basis
    rows[split:, :split] = 0.0  # left vectors of the rest vanish on the expanding subspace
    x, log = frame.scaled(t, state)
    lam = modes.values
    n = len(state)
    pi = np.zeros((n, modes.d), dtype=rows.dtype)
    offset = np.zeros_like(pi)
    apart, rest = x - x[leader_of], state - state[leader_of]
    with np.errstate(over="ignore"):
        pi[:, :split] = (x @ rows.T)[:, :split] * np.exp(log - lam[:split] * t)
        pi[:, split:] = (state @ rows.T)[:, split:] * np.exp(-lam[split:] * t)
        offset[:, :split] = (apart @ rows.T)[:, :split] * np.exp(log)
        offset[:, split:] = (rest @ rows.T)[:, split:]
    return Following(
        modes,
        t,
        leader_of,
        pi[leader_of],
        offset,
        np.zeros(n),
        np.zeros(modes.d),
        np.zeros((n, modes.d)),
    )


def with_radii(state: Following, other: Following, share: float, apart: FloatArray) -> Following:
    """The state with radii: `share` of its difference to a rougher run, and rounding.

    `apart` is how far each token ever was from its rough twin (in the frame's units): where a
    symmetric datum forks, the two may end alike and still not say where the exact one went.
    """
    lam = state.modes.values.real
    norm = np.abs(state.modes.left).sum(axis=1)
    growth = np.exp(np.where(state.modes.expanding, lam * state.time, 0.0))
    eps = np.abs(state.pi - other.pi).max(axis=0)
    eps = share * np.maximum(eps, apart[state.leaders].max() * norm)
    eps = eps + 16.0 * EPS * state.modes.condition * np.abs(state.pi).max(axis=0)
    moved = np.maximum(np.abs(state.offset - other.offset), apart[:, None] * norm * growth)
    leading = np.abs(state.pi).max(axis=0) * np.exp(lam * state.time)
    rounding = 16.0 * EPS * state.modes.condition * (leading + np.abs(state.offset).max(axis=0))
    followers = (state.leader_of != np.arange(len(moved)))[:, None]
    return replace(state, eps=eps, eps_offset=np.where(followers, share * moved + rounding, 0.0))


def judge(
    state: Following, least: float, every: bool = False
) -> tuple[np.ndarray, Gaps, FloatArray, FloatArray]:
    """Certificate at state.time of the pairs that matter for now, or of every pair."""
    pairs = all_pairs(state)
    late = state.modes.rate * state.time > _SHARP
    if late and not every and not np.iscomplexobj(state.modes.values[state.modes.expanding]):
        # Which cluster mate a follower looks at no longer shows in any limit (book, appendix).
        i, j = pairs
        keep = (state.leader_of[i] == i) | (state.leader_of[i] != state.leader_of[j])
        pairs = i[keep], j[keep]
    g = gaps(state, pairs)
    ok, gap, growth = g.certify(2.0 * state.modes.size, least)
    return ok, g, gap, growth


def run(
    state: Following,
    least: float,
    log_counts: FloatArray,
    t_final: float,
    max_falls: int,
    soft_start: bool = False,
) -> Cascade:
    """Follow a 0/1 state through all its falls, to the certificate or to t_final.

    With `soft_start` attention need not be 0/1 at first: it is integrated until it is.
    """
    out = Cascade(state)
    for _ in range(20 * max_falls + 20):
        ok, g, gap, _growth = judge(state, least)
        out.state, out.time = state, state.time
        if ok.all():
            final = _with_room(state, least, log_counts)
            out.certified = final is not None
            out.state = state if final is None else final
            out.time = out.state.time
            out.reason = "" if final is not None else "followers' gaps do not open in time"
            out.segments.append(_closed(out.state, np.inf, log_counts))
            return out
        if soft_start and (gap < least).any():  # not 0/1 yet: no closed form
            if state.modes.rate * state.time > _SHARP:
                out.reason = _contest(state, g, gap)
                return out
            passed = _through(state, state.time, least, log_counts, out.falls, anyone=True)
            if isinstance(passed, str):
                out.reason = passed
                return out
            state, segment = passed
            out.segments.append(segment)
            continue
        soft_start = False
        open_pairs = g.pick(np.flatnonzero(~ok))
        zeros = open_pairs.first_zeros(min(t_final - state.time, 1e9))
        soft = _soft(state, open_pairs) & (state.modes.rate * (state.time + zeros) > _SHARP)
        zeros[soft] = np.inf
        first = int(zeros.argmin())
        if not np.isfinite(zeros[first]):
            later = _wait(state, g.pick(np.flatnonzero(~ok)), least)
            if later is not None:
                state = later
                continue
            out.reason = _reason(open_pairs)
            if t_final < np.inf:
                out.segments.append(_closed(state, t_final, log_counts))
            return out
        when = state.time + float(zeros[first])
        if when >= t_final:
            out.segments.append(_closed(state, t_final, log_counts))
            out.reason = "the final time came first"
            return out
        if len(out.falls) >= max_falls:
            out.reason = f"more than {max_falls} falls"
            return out
        i, j = int(open_pairs.i[first]), int(open_pairs.j[first])
        if state.modes.rate * when > _SHARP:
            if _shared_lead(state, when, i, j):
                out.reason = f"tokens {i} and {j} share a lead: attention hardens too slowly"
                return out
            out.segments.append(_closed(state, when, log_counts))
            state = _switch(state, when, i, j, out.falls)
            continue
        ahead = _before(open_pairs.pick(np.array([first])), float(zeros[first]), least)
        begin = state.time + ahead
        if ahead > 0.0:
            out.segments.append(_closed(state, begin, log_counts))
        passed = _through(state, begin, least, log_counts, out.falls)
        if isinstance(passed, str):
            out.reason, out.time = passed, begin
            return out
        state, segment = passed
        out.segments.append(segment)
    out.reason = "the budget of switches was used up"
    return out


def _with_room(state: Following, least: float, log_counts: FloatArray) -> Following | None:
    """The state, now or a little later, with room for the drift, if that certifies every pair."""
    rate = state.modes.rate
    for pause in (0.0, _MOMENT, 0.3, 1.0, 3.0, 10.0, 30.0):
        later = replace(state, time=state.time + pause / rate)
        ok, g, gap, growth = judge(later, least, every=True)
        if not ok.all():
            continue
        eps = later.eps + 2.0 * drift(later, gap, growth, g, log_counts)
        moved = 2.0 * offset_drift(later, gap, growth, g, log_counts)
        roomy = replace(later, eps=eps, eps_offset=later.eps_offset + moved)
        if judge(roomy, least, every=True)[0].all():
            return roomy
    return None


def _soft(state: Following, pairs: Gaps) -> np.ndarray:
    """Pairs that only say which cluster mate, or which one of another cluster, a follower sees.

    After `_SHARP` they cannot move a leader, and tell the time of a follower's switch only to
    within its own offset: they must be certified in the end, but are no falls.
    """
    leader = state.leader_of == np.arange(len(state.leader_of))
    same = state.leader_of[pairs.i] == state.leader_of[pairs.j]
    return ~leader[pairs.i] & (same | ~leader[pairs.j])


def _wait(state: Following, pairs: Gaps, least: float) -> Following | None:
    """A later time at which the pairs, just switched or soft, are certified; or None."""
    rate = state.modes.rate
    start = max(state.time, _SHARP / rate)
    for pause in (_MOMENT, 0.3, 1.0, 3.0, 10.0, 30.0):
        later = replace(state, time=start + pause / rate)
        if gaps(later, (pairs.i, pairs.j)).certify(2.0 * state.modes.size, least)[0].all():
            return later
    return None


def _closed(state: Following, stop: float, log_counts: FloatArray) -> Segment:
    return Segment(
        state.time,
        stop,
        state.tokens,
        state.rescaled,
        lambda t: state.attention(t, log_counts),
    )


def _reason(pairs: Gaps) -> str:
    """Why no certificate, when no gap closes either."""
    gap = pairs.c.real.sum(axis=1)
    tied = np.abs(gap) <= 10.0 * pairs.kappa.sum(axis=1)
    if tied.any():
        k = int(np.flatnonzero(tied)[0])
        return f"a tie: tokens {pairs.j[k]} and the leader of token {pairs.i[k]} score alike"
    if np.abs(pairs.mu.imag).max() > 0 and pairs.mu[0].imag != 0:
        return "a complex leading pair: no certificate is known"
    k = int(gap.argmin())
    return (
        f"the gap of token {pairs.i[k]} against token {pairs.j[k]} is not seen to grow "
        "(a moving leader, or a direction in which nothing grows)"
    )


def _contest(state: Following, g: Gaps, gap: FloatArray) -> str:
    """Why attention is not 0/1 this late: a shared lead, most of the time."""
    leader = state.leader_of[g.i] == g.i
    worst = int(np.where(leader, gap, np.inf).argmin()) if leader.any() else int(gap.argmin())
    i, j = int(g.i[worst]), int(g.j[worst])
    if _shared_lead(state, state.time, i, j):
        return f"tokens {i} and {j} share a lead: attention hardens too slowly"
    return "attention did not become 0/1 with leaders that lead themselves"


def _shared_lead(state: Following, when: float, leader: int, mate: int) -> bool:
    """Whether the little attention that a leader pays to a cluster mate keeps its gap from closing.

    With o = x_l - x_m, do/dt = (P_mm - P_lm) V o, and the bracket has the sign of <Q o, K o>: it
    adds a multiple of <Q x_l, K V o> to the gap's derivative, without bound in the time left. If
    that is positive the gap never closes; it grows linearly in t (book, appendix).
    """
    if state.leader_of[leader] != leader or state.leader_of[mate] != leader:
        return False
    lead, form = state.scaled(when)[0][leader], state.modes.form
    o = -state.offset[mate]
    push = (lead @ form @ (state.modes.values * o)).real
    return bool(push * (o @ form @ o).real > 0.0)


def _switch(state: Following, when: float, i: int, j: int, falls: list[Fall]) -> Following:
    """A fall that is instantaneous to float64."""
    leader_of, lam = state.leader_of.copy(), state.modes.values
    old, target = int(leader_of[i]), int(leader_of[j])
    inside = target == old  # leadership passes to a member of the same cluster
    members = np.flatnonzero(leader_of == old) if inside else _falling(state, when, i, target)
    leader_of[members] = j if inside else target
    if leader_of[old] != old:
        falls.append(Fall(when, old, int(leader_of[old])))
    # Neither the time of the fall nor those of the followers are exact. No leader that stays one
    # is touched by that; a new leader's place, and followers' offsets, are.
    pair = (np.array([old]), np.array([j])) if inside else (members, np.full(len(members), target))
    g = gaps(state, pair, when)
    slope = np.abs((g.c * g.mu).sum(axis=1).real)
    width = BOOLEAN_GAP * np.exp(-np.minimum(g.log, 690.0))
    off = np.abs(g.c.sum(axis=1).real) + g.kappa.sum(axis=1) + width
    if not inside:
        back = gaps(regroup(state, when, leader_of), (members, np.full(len(members), old)), when)
        others = np.abs((back.c * back.mu).sum(axis=1).real) * np.exp(back.log - g.log)
        slope = np.where(members == old, slope, np.minimum(slope, others))
    late = np.minimum(off / (slope + 1e-300), 1.0 / state.modes.size)
    if inside:
        log = state.tau[j] - lam.real * when
        moved = np.abs(lam * state.offset[j]) * np.exp(np.minimum(log, 690.0))
        return regroup(state, when, leader_of, float(late[0]) * moved)
    after = regroup(state, when, leader_of)
    apart = np.abs(lam * (state.pi[old] - state.pi[target]))
    eps_offset = after.eps_offset.copy()
    for k, late_k in zip(members, late, strict=True):
        eps_offset[k] += late_k * apart * np.exp(lam.real * when - after.tau[k])
    mates = np.flatnonzero((state.leader_of == target) & (np.arange(len(leader_of)) != target))
    _detours(after, members, mates, eps_offset)
    return replace(after, eps_offset=eps_offset)


def _falling(state: Following, when: float, i: int, target: int) -> np.ndarray:
    """Who falls with i: its whole cluster if its leader falls now, else i alone."""
    leader = state.leader_of[i]
    g = gaps(state, (np.array([leader]), np.array([target])), when)
    value, slope = g.c.sum().real, (g.c * g.mu).sum().real
    if i == leader or value <= 1e-9 / state.modes.size * max(-slope, 0.0):
        return np.flatnonzero(state.leader_of == leader)
    return np.array([i])


def _detours(
    state: Following, members: np.ndarray, mates: np.ndarray, eps_offset: FloatArray
) -> None:
    """Members that first look at a cluster mate, not at the leader: their offsets are less sure."""
    if not len(mates):
        return
    i, j = (grid.ravel() for grid in np.meshgrid(members, mates, indexing="ij"))
    g = gaps(state, (i, j))
    value, radius = g.c.sum(axis=1).real, g.kappa.sum(axis=1)
    slope = (g.c * g.mu).sum(axis=1).real
    longest = 3.0 / state.modes.size  # then x_i points where its leader does, and looks at it
    for pair in np.flatnonzero(value <= radius):
        k, mate = i[pair], j[pair]
        lasts = longest
        if slope[pair] > 0.0:
            lasts = min(longest, (abs(value[pair]) + radius[pair]) / slope[pair])
        reach = np.exp(min(state.tau[mate] - state.tau[k], 690.0))
        drifted = lasts * np.abs(state.modes.values * state.offset[mate]) * reach
        eps_offset[k] += drifted


def _before(pair: Gaps, zero: float, least: float) -> float:
    """The last s < zero at which the gap is still twice `least` (0 if it is so no longer)."""

    def short(s: float) -> bool:
        log = pair.log[0] + pair.top[0] * s
        return bool(pair.value(s)[0] * np.exp(min(log, 690.0)) < 2.0 * least)

    if short(0.0):
        return 0.0
    low, high = 0.0, zero
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (low, middle) if short(middle) else (middle, high)
    return low


class _Window:
    """Leaders and offsets near a fall, integrated in local time s = t - begin.

    x_i = e^{sV} p_l(i) + o_i, all in units of e^{rate begin}; with X_ij = x_j - x_l(i),
    dp_l/ds = e^{-sV} V sum_j P_lj X_lj,  do_i/ds = V (sum_j P_ij X_ij - sum_j P_lj X_lj).
    """

    def __init__(self, state: Following, begin: float, log_counts: FloatArray) -> None:
        modes = self.modes = state.modes
        self.state, self.begin, self.log_counts = state, begin, log_counts
        self.leaders, self.cluster = np.unique(state.leader_of, return_inverse=True)
        right, left = modes.right, modes.left
        self.V = ((right * modes.values) @ left).real
        self.exponential = Exponential(self.V)
        self.member = np.eye(len(self.leaders))[self.cluster]
        self.form = (left.T @ modes.form @ left).real
        self.factor = float(np.exp(2.0 * modes.rate * begin + modes.log_form))
        self.n, self.d = state.offset.shape

    def start(self) -> FloatArray:
        """Leaders above, offsets below."""
        lead, offset = self.state.scaled(self.begin)
        right = self.modes.right.T
        return np.vstack([(lead[self.leaders] @ right).real, (offset @ right).real])

    def parts(self, s: float, y: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Leaders e^{sV} p and offsets."""
        count = len(self.leaders)
        return y[:count] @ self.exponential(s).T, y[count:]

    def scores(self, lead: FloatArray, offset: FloatArray) -> FloatArray:
        """Scores against the own leader's: nothing cancels within a cluster."""
        x = (lead[self.cluster] + offset) @ self.form
        apart = x @ lead.T
        apart -= apart[np.arange(self.n), self.cluster][:, None]
        return self.factor * (apart[:, self.cluster] + x @ offset.T)

    def velocity(self, s: float, flat: FloatArray) -> FloatArray:
        """Right-hand side, flat."""
        y = flat.reshape(-1, self.d)
        lead, offset = self.parts(s, y)
        p = self.scores(lead, offset) + self.log_counts
        p -= p.max(axis=1, keepdims=True)
        np.maximum(p, _FLOOR, out=p)
        np.exp(p, out=p)
        p /= p.sum(axis=1, keepdims=True)
        # sum_c mass_ic (lead_c - own lead): the own cluster's mass, near 1, is left out of it.
        mass = p @ self.member
        mass[np.arange(self.n), self.cluster] = 0.0
        pull = p @ offset + mass @ lead - mass.sum(axis=1)[:, None] * lead[self.cluster]
        out = np.empty_like(y)
        own, count = pull[self.leaders], len(self.leaders)
        out[:count] = own @ (self.exponential(-s) @ self.V).T
        out[count:] = (pull - own[self.cluster]) @ self.V.T
        return out.reshape(-1)

    def settled(self, s: float, y: FloatArray, least: float) -> np.ndarray | None:
        """New leaders, if attention is 0/1 again and they lead themselves."""
        lead, offset = self.parts(s, y)
        scores = self.scores(lead, offset)
        best = scores.argmax(axis=1)
        top = scores[np.arange(self.n), best]
        scores[np.arange(self.n), best] = -np.inf
        if not np.array_equal(best[best], best) or (top - scores.max(axis=1) < least).any():
            return None
        return best

    def written(self, s: float, y: FloatArray) -> Following:
        """The state at begin + s as a following state (same leaders as at the start)."""
        modes, count = self.modes, len(self.leaders)
        lam, log = modes.values, modes.rate * self.begin
        pi = (y[:count] @ modes.left.T) * np.exp(log - lam * self.begin)
        offset = y[count:] @ modes.left.T
        tau = np.full(self.n, log)
        return replace(
            self.state,
            time=self.begin + s,
            pi=pi[self.cluster],
            offset=offset,
            tau=tau,
            eps_offset=self.state.eps_offset * np.exp(self.state.tau - log)[:, None],
        )

    def solver(self, y: FloatArray, span: float, rtol: float) -> Any:
        """DOP853 with an absolute tolerance of its own for every offset."""
        count = len(self.leaders)
        atol = np.empty_like(y)
        atol[:count] = 1e-3 * rtol * np.abs(y[:count]).max()
        small = np.abs(y[count:]).max(axis=1, initial=0.0)
        floor = small[small > 0].min(initial=1.0)
        atol[count:] = 1e-3 * rtol * np.maximum(small, floor)[:, None]
        return scipy.integrate.DOP853(
            self.velocity, 0.0, y.reshape(-1), span, rtol=rtol, atol=atol.reshape(-1)
        )


def _through(
    state: Following,
    begin: float,
    least: float,
    log_counts: FloatArray,
    falls: list[Fall],
    anyone: bool = False,
) -> tuple[Following, Segment] | str:
    """Integrate through one or several falls, until attention is 0/1 again.

    With new leaders, that is, or (`anyone`) with the same.
    """
    window = _Window(state, begin, log_counts)
    y0 = window.start()
    span = 3.0 / state.modes.size
    solver = window.solver(y0, span, 1e-11)
    pieces, knots, best = [], [0.0], None
    for _ in range(_WINDOW_STEPS):
        with np.errstate(over="ignore", invalid="ignore"):  # then no step is accepted
            failed = solver.status != "running" or solver.step() is not None
        if failed:
            break
        pieces.append(solver.dense_output())
        knots.append(float(solver.t))
        best = window.settled(solver.t, solver.y.reshape(y0.shape), least)
        if best is not None and (anyone or not np.array_equal(best, state.leader_of)):
            break
        best = None
    if best is None and len(pieces) == _WINDOW_STEPS:
        return f"attention near t = {begin:.6g} hardens too slowly: the budget of steps was used up"
    if solver.status == "failed":
        return f"the integrator found no step through the fall near t = {begin:.6g}"
    s = knots[-1]
    after = window.written(s, solver.y.reshape(y0.shape))
    rough = _rough(window, y0, s)
    if rough is None:
        return f"the integrator found no step through the fall near t = {begin:.6g}"
    after = replace(
        after,
        eps=np.maximum(state.eps, 0.1 * np.abs(after.pi - rough.pi).max(axis=0)),
        eps_offset=np.maximum(after.eps_offset, 0.1 * np.abs(after.offset - rough.offset)),
    )

    def dense(t: float) -> Following:
        k = min(max(int(np.searchsorted(knots, t - begin, side="right")) - 1, 0), len(pieces) - 1)
        return window.written(t - begin, pieces[k](t - begin).reshape(y0.shape))

    segment = Segment(
        begin,
        begin + s,
        lambda t: dense(t).tokens(t),
        lambda t: dense(t).rescaled(t),
        lambda t: dense(t).attention(t, log_counts),
    )
    if best is None:
        return after, segment  # not settled yet: go on from here with the same leaders
    falls.extend(Fall(begin + s, int(i), int(best[i])) for i in window.leaders if best[i] != i)
    return regroup(after, begin + s, best), segment


def _rough(window: _Window, y0: FloatArray, end: float) -> Following | None:
    """The same window from ten radii away, at a rougher tolerance: a tenth is the radius."""
    state = window.state
    rng = np.random.default_rng(len(y0))
    modes, count = window.modes, len(window.leaders)
    lam = modes.values.real
    shake = rng.choice([-1.0, 1.0], size=y0.shape)
    lead = 10.0 * state.eps * np.exp((lam - modes.rate) * window.begin)
    y = y0.copy()
    y[:count] += ((shake[:count] * lead) @ modes.right.T).real
    radius = 10.0 * state.eps_offset * np.exp(state.tau - modes.rate * window.begin)[:, None]
    y[count:] += ((shake[count:] * radius) @ modes.right.T).real
    y[count + window.leaders] = 0.0
    solver = window.solver(y, end, 1e-9)
    for _ in range(_WINDOW_STEPS):
        if solver.status != "running":
            break
        with np.errstate(over="ignore", invalid="ignore"):
            solver.step()
    return window.written(end, solver.y.reshape(y0.shape)) if solver.status == "finished" else None
