"""A trajectory from its tokens to the end of what is known: integrated, then in closed form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.integrate

from ._cascade import Cascade, first_leaders, following, judge, run, with_radii
from ._check import FloatArray
from ._clusters import Clusters, certify_clusters, clusters_of
from ._follow import BOOLEAN_GAP, Following, Modes
from ._frame import Frame
from ._march import Progress, Run, Work, alone, marching
from .dynamics import SelfAttention


class Path:
    """A whole trajectory: integration, then segments in closed form; on the given tokens."""

    def __init__(
        self,
        frame: Any,
        first: Run,
        cascade: Cascade | None = None,
        inverse: np.ndarray | None = None,
        counts: FloatArray | None = None,
    ) -> None:
        n = len(first.states[0])
        self.frame, self.first, self.cascade = frame, first, cascade
        self.inverse = np.arange(n) if inverse is None else inverse
        self.counts = np.ones(n) if counts is None else counts
        segments = cascade.segments if cascade else []
        self.end = float(segments[-1].stop) if segments else float(first.knots[-1])

    def _segment(self, t: float) -> Any:
        if self.cascade is None or t < self.first.knots[-1]:
            return None
        for segment in self.cascade.segments:
            if t <= segment.stop:
                return segment
        return self.cascade.segments[-1] if self.cascade.segments else None

    def tokens(self, t: float) -> FloatArray:
        """x(t)."""
        segment = self._segment(t)
        if segment is None:
            return self.frame.tokens(np.array([t]), self.first.state(t)[None])[0][self.inverse]
        return segment.tokens(t)[self.inverse]

    def rescaled(self, t: float) -> FloatArray:
        """z(t)."""
        segment = self._segment(t)
        if segment is None:
            return self.frame.rescaled(np.array([t]), self.first.state(t)[None])[0][self.inverse]
        return segment.rescaled(t)[self.inverse]

    def attention(self, t: float) -> FloatArray:
        """P(t)."""
        segment = self._segment(t)
        p = (
            self.frame.attention(t, self.first.state(t))
            if segment is None
            else segment.attention(t)
        )
        return spread(p, self.inverse, self.counts)


def distinct_tokens(tokens: FloatArray) -> tuple[FloatArray, np.ndarray, FloatArray]:
    """The distinct tokens, which of them each token is, and how many tokens each stands for."""
    distinct, inverse, counts = np.unique(tokens, axis=0, return_inverse=True, return_counts=True)
    if len(distinct) == len(tokens):
        return tokens, np.arange(len(tokens)), np.ones(len(tokens))
    return distinct, inverse.ravel(), counts.astype(float)


def spread(p: FloatArray, inverse: np.ndarray, counts: FloatArray) -> FloatArray:
    """Attention among distinct tokens, written out for all: equal tokens share equally."""
    return (p / counts)[np.ix_(inverse, inverse)]


#: Two runs whose data differ by 1e-9 and that were ever this far apart do not know each other's fate.
_FORK = 1e-3


#: Boxes larger than this, relative to the first tokens, in a leading mode do not tell a limit.
_TELLING = 1e-2


@dataclass
class Outcome:
    path: Path
    cascade: Cascade | None
    modes: Modes
    inverse: np.ndarray
    counts: FloatArray
    reason: str
    clusters: Clusters | None = None


def following_on(
    system: SelfAttention,
    tokens: FloatArray,
    t_final: float,
    rtol: float,
    max_steps: int,
    max_falls: int,
    report: Progress = lambda t, t_final: None,
    atol: float | None = None,
) -> Work[Outcome]:
    """Integrate until attention is 0/1, then follow the leaders; stop at t_final or certified.

    With a finite t_final closed forms are looked for only while most of the way is still ahead.
    """
    distinct, inverse, counts = distinct_tokens(tokens)
    frame = Frame(system, distinct)
    if counts.max() > 1:
        frame.log_counts = np.log(counts)
    modes = Modes(system, frame)
    least = BOOLEAN_GAP + float(np.log(len(tokens)))
    watch = _Watch(frame, modes, least, frame.start(distinct), rtol, t_final)
    swirls = modes.rate > 0.0 and abs(modes.values[0].imag) > 0.0 and t_final == np.inf
    swirls = swirls and len(distinct) > 1
    stop = watch if not (modes.defect or swirls) and modes.rate > 0.0 else None
    horizon = t_final
    if t_final == np.inf:
        horizon = 60.0 / modes.rate if modes.rate > 0.0 else 30.0 / modes.size
        if modes.rate > 0.0 and (swirls or modes.defect):  # a picture is all there will be
            horizon, max_steps = min(horizon, 10.0 / modes.rate), min(max_steps, 1000)
    atol = 0.01 * rtol if atol is None else atol
    start = frame.start(distinct)
    growth = t_final < np.inf  # without an end, a second run looks after forks
    first = yield from marching(
        frame, start, horizon, rtol, atol, "DOP853", max_steps, report, stop, growth
    )
    cascade = None
    if watch.found is None and stop is not None and t_final == np.inf:
        first, tried = _late_start(frame, modes, first, watch, np.log(counts))
        if tried is not None:
            path = Path(frame, first, tried, inverse, counts)
            return Outcome(path, tried, modes, inverse, counts, tried.reason)
    reason = modes.defect or watch.reason
    if watch.found is not None:
        cascade = run(watch.found, least, np.log(counts), t_final, max_falls)
        reason = cascade.reason
    elif swirls:
        reason = "a complex leading pair of eigenvalues: no certificate is known"
    elif not modes.rate > 0.0:
        reason = "V expands no direction: there are no leaders"
    elif not reason:
        reason = {
            "finished": "attention did not become 0/1 with leaders that lead themselves",
            "precision": "float64 was exhausted before attention was 0/1 (a tie)",
        }.get(first.status, first.message)
    clusters = None
    if t_final == np.inf and stop is not None and (cascade is None or not cascade.certified):
        clusters = _cluster_start(frame, modes, first, watch, np.log(counts))
    path = Path(frame, first, cascade, inverse, counts)
    return Outcome(path, cascade, modes, inverse, counts, reason, clusters)


def follow(*args: Any, **options: Any) -> Outcome:
    """`following_on`, each step by itself."""
    return alone(following_on(*args, **options))


def _cluster_start(
    frame: Frame, modes: Modes, first: Run, watch: _Watch, log_counts: FloatArray
) -> Clusters | None:
    """The state of a run from which no token leaves its cluster that tells most of the limits."""
    twin = _Watch(frame, modes, watch.least, watch.start, watch.rtol, np.inf)
    twin.history = [(float(s), x) for s, x in zip(first.knots[1:], first.states[1:], strict=False)]
    everyone = np.arange(len(watch.start))
    states = []
    for share in (0.25, 0.5, 0.7, 0.8, 0.9, 1.0):
        k = int(np.searchsorted(first.knots, share * first.knots[-1], side="right")) - 1
        t, state = float(first.knots[k]), first.states[k]
        plain = following(frame, modes, t, state, everyone)
        if not np.isfinite(plain.pi).all():
            break
        rough = following(frame, modes, t, alone(twin.rough_state(t)), everyone)
        known = with_radii(plain, rough, 0.1, twin.apart)
        states.append((state, known, float(twin.apart.max())))
    best: Clusters | None = None
    lead = np.abs(modes.values - modes.values[0]) <= 1e-13 * modes.size
    reach = float(np.abs(watch.start).max()) or 1.0
    for state, known, apart in states:
        queries, keys, _ = frame.heads(known.time, state)
        label = clusters_of((queries @ keys.T).argmax(axis=1))
        found = certify_clusters(known, label, log_counts) if apart <= _FORK * reach else None
        if found is None:
            continue
        if best is None or found.radius[:, lead].max() < best.radius[:, lead].max():
            best = found
    size = reach * np.abs(modes.left).sum(axis=1)[lead]
    return best if best is not None and (best.radius[:, lead] <= _TELLING * size).all() else None


def _late_start(
    frame: Frame, modes: Modes, first: Run, watch: _Watch, log_counts: FloatArray
) -> tuple[Run, Cascade | None]:
    """Go on from an earlier state with leaders and offsets apart, where plain coordinates failed.

    Rounding stops a run when a leader is contested for long by a token close to it. Written as
    leaders and offsets the same contest loses nothing, whoever is called leader.
    """
    end = min(0.8 * float(first.knots[-1]), 6.0 / modes.rate)
    k = int(np.searchsorted(first.knots, end, side="right")) - 1
    if first.status != "precision" or k < 1:
        return first, None
    t, state = float(first.knots[k]), first.states[k]
    queries, keys, _ = frame.heads(t, state)
    leader_of = (queries @ keys.T).argmax(axis=1)
    for _ in range(len(state).bit_length() + 1):
        leader_of = leader_of[leader_of]
    leader_of = np.minimum(leader_of, leader_of[leader_of])  # two that follow each other: either
    leader_of = leader_of[leader_of]
    if not np.array_equal(leader_of[leader_of], leader_of):
        return first, None
    twin = _Watch(frame, modes, watch.least, watch.start, watch.rtol, np.inf)
    twin.history = [
        (float(s), x) for s, x in zip(first.knots[1 : k + 1], first.states[1:], strict=False)
    ]
    plain = following(frame, modes, t, state, leader_of)
    rough = following(frame, modes, t, alone(twin.rough_state(t)), leader_of)
    cascade = run(
        with_radii(plain, rough, 0.1, twin.apart), watch.least, log_counts, np.inf, 30, True
    )
    if not cascade.certified:
        watch.reason = cascade.reason if "share a lead" in cascade.reason else watch.reason
        return first, None
    knots, states = first.knots[: k + 1], first.states[: k + 1]
    return replace(first, knots=knots, states=states, pieces=first.pieces[:k]), cascade


class _Watch:
    """Looks, after each step, whether the follower law can take over; keeps what it found."""

    def __init__(
        self,
        frame: Frame,
        modes: Modes,
        least: float,
        start: FloatArray,
        rtol: float,
        t_final: float,
    ) -> None:
        self.frame, self.modes, self.least = frame, modes, least
        self.start, self.rtol, self.t_final = start, rtol, t_final
        self.rough: Any = None
        self.found: Following | None = None
        self.reason = ""
        self.ready_at = 0.0
        self.history: list[tuple[float, FloatArray]] = []
        self.apart = np.zeros(len(start))

    def __call__(self, t: float, state: FloatArray) -> Work[bool]:
        self.history.append((t, state))
        if t < self.ready_at or self.t_final - t < t:
            return False
        leader_of = first_leaders(self.frame, t, state, self.least)
        if leader_of is None:
            return False
        plain = following(self.frame, self.modes, t, state, leader_of)
        if not np.isfinite(plain.pi).all() or not self._worth(plain):
            return False
        rough_state = yield from self.rough_state(t)
        rough = following(self.frame, self.modes, t, rough_state, leader_of)
        if self.apart.max() > _FORK * (float(np.abs(self.start).max()) or 1.0):
            self.reason = (
                f"a fork: data that differ by {100 * self.rtol:.0e} send token "
                f"{int(self.apart.argmax())} elsewhere (an exceptional datum, or a tie)"
            )
            return self.t_final == np.inf  # no certificate will come: stop, or just go on
        candidate = with_radii(plain, rough, 0.1, self.apart)
        if self._worth(candidate):
            self.found = candidate
            return True
        self.reason = "the state is not known well enough (a tie within the integration error)"
        self.ready_at = t + 0.2 / self.modes.rate
        return False

    def _worth(self, state: Following) -> bool:
        """Certified, or certified but for pairs whose gaps close much later."""
        ok, g, gap, _growth = judge(state, self.least)
        if ok.all():
            return True
        if (gap < self.least).any():
            return False
        rest = g.pick(np.flatnonzero(~ok))
        zeros = rest.first_zeros(1e9)
        if not np.isfinite(zeros).any():
            return False
        wait = float(zeros.min())
        if self.modes.rate * wait < 2.0 and self.modes.rate * state.time < 6.0:
            self.ready_at = state.time + 0.9 * wait
            return False
        return True

    def rough_state(self, t: float) -> Work[FloatArray]:
        """State of a second run: data shaken by 100 tolerances, steps 1,000 times rougher."""
        shape = self.start.shape
        if self.rough is None:
            shaken, rtol = 100.0 * self.rtol, 1000.0 * self.rtol
            size = float(np.abs(self.start).max()) or 1.0
            shake = np.random.default_rng(shape[0]).uniform(-1.0, 1.0, size=shape)
            self.rough = scipy.integrate.DOP853(
                lambda s, flat: self.frame.velocity(s, flat.reshape(shape)).reshape(-1),
                0.0,
                (self.start + shaken * size * shake).reshape(-1),
                1e9,
                rtol=rtol,
                atol=0.01 * rtol * size,
            )
        while self.rough.status == "running" and self.rough.t < t:
            yield self.rough, self.frame, True
            self._compare()
        if self.rough.t == 0.0:
            return self.start
        return self.rough.output(t).reshape(shape)

    def _compare(self) -> None:
        """Keep how far each token ever was from its rough twin: a fork on the way is not forgotten."""
        if not self.history or self.history[0][0] > self.rough.t:
            return
        dense = self.rough.output
        while self.history and self.history[0][0] <= self.rough.t:
            time, state = self.history.pop(0)
            away = np.abs(state - dense(time).reshape(state.shape)).max(axis=1)
            np.maximum(self.apart, away, out=self.apart)
