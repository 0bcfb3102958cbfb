"""A trajectory from its tokens to the end of what is known: integrated, then in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.integrate

from ._cascade import Cascade, first_leaders, following, judge, run, with_radii
from ._check import FloatArray
from ._follow import BOOLEAN_GAP, Following, Modes
from ._frame import Frame
from ._march import Progress, Run, march
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


@dataclass
class Outcome:
    path: Path
    cascade: Cascade | None
    modes: Modes
    inverse: np.ndarray
    counts: FloatArray
    reason: str


def follow(
    system: SelfAttention,
    tokens: FloatArray,
    t_final: float,
    rtol: float,
    max_steps: int,
    max_falls: int,
    report: Progress = lambda t, t_final: None,
    atol: float | None = None,
) -> Outcome:
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
    stop = watch if not modes.defect and modes.rate > 0.0 else None
    horizon = t_final
    if t_final == np.inf:
        horizon = 60.0 / modes.rate if modes.rate > 0.0 else 30.0 / modes.size
    atol = 0.01 * rtol if atol is None else atol
    start = frame.start(distinct)
    first = march(frame, start, horizon, rtol, atol, "DOP853", max_steps, report, stop)
    cascade = None
    reason = modes.defect or watch.reason
    if watch.found is not None:
        cascade = run(watch.found, least, np.log(counts), t_final, max_falls)
        reason = cascade.reason
    elif not modes.rate > 0.0:
        reason = "V expands no direction: there are no leaders"
    elif not reason:
        reason = {
            "finished": "attention did not become 0/1 with leaders that lead themselves",
            "precision": "float64 was exhausted before attention was 0/1 (a tie)",
        }.get(first.status, first.message)
    path = Path(frame, first, cascade, inverse, counts)
    return Outcome(path, cascade, modes, inverse, counts, reason)


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

    def __call__(self, t: float, state: FloatArray) -> bool:
        if t < self.ready_at or self.t_final - t < t:
            return False
        leader_of = first_leaders(self.frame, t, state, self.least)
        if leader_of is None:
            return False
        plain = following(self.frame, self.modes, t, state, leader_of)
        if not self._worth(plain):
            return False
        rough = following(self.frame, self.modes, t, self._rough_state(t), leader_of)
        candidate = with_radii(plain, rough, 0.1)
        if self._worth(candidate):
            self.found = candidate
            return True
        self.reason = "the state is not known well enough (a tie within the integration error)"
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

    def _rough_state(self, t: float) -> FloatArray:
        """State of a second run: data perturbed and tolerances a hundred times rougher."""
        shape = self.start.shape
        if self.rough is None:
            rtol = 100.0 * self.rtol
            signs = np.random.default_rng(shape[0]).choice([-1.0, 1.0], size=shape)
            size = float(np.abs(self.start).max()) or 1.0
            self.rough = scipy.integrate.DOP853(
                lambda s, flat: self.frame.velocity(s, flat.reshape(shape)).reshape(-1),
                0.0,
                (self.start * (1.0 + rtol * signs)).reshape(-1),
                1e9,
                rtol=rtol,
                atol=0.01 * rtol * size,
                max_step=max(0.5 * t, 1e-300),
            )
        while self.rough.status == "running" and self.rough.t < t:
            self.rough.step()
        if self.rough.t == 0.0:
            return self.start
        return self.rough.dense_output()(t).reshape(shape)
