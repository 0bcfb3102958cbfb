"""Many integrations at once: steps of runs of one size, made in the same array operations.

A run is a generator that yields what it wants stepped, a solver of scipy's and its frame
(`_march.marching`). Here the DOP853 steps that many runs ask for are taken together: scipy's tables,
scipy's error norm, scipy's choice of the next step, each run at its own time with its own step;
the velocities of all of them are one batch of matrix products and exponentials. What a run gives does not
depend on its company, to the last bit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import scipy.integrate

from ._check import FloatArray
from ._frame import Frame
from ._march import Work, step_alone
from .attention import _FLOOR, _LARGEST_LOG, BLOCK_ENTRIES

T = TypeVar("T")

#: Runs that are stepped together.
WIDTH = 64

_SOLVER = scipy.integrate.DOP853

#: What is read and written of scipy's solver beyond its public attributes. Where scipy has them no
#: longer, each run steps alone.
_NEEDED = (
    *("A", "B", "C", "D", "E3", "E5", "A_EXTRA", "C_EXTRA", "n_stages", "error_exponent"),
    *("h_abs", "h_previous", "t_old", "y_old", "K", "f"),
)


def together(works: Iterable[Work[T]], width: int = WIDTH) -> Iterator[tuple[int, T | Exception]]:
    """Run them, `width` at a time; give (number, result or what it raised) as they end."""
    waiting = enumerate(works)
    asking: dict[int, tuple[Work[T], Any, Frame, bool]] = {}
    answers: dict[int, tuple[Work[T], str | None]] = {}
    more = True
    while more or asking or answers:
        while more and len(asking) + len(answers) < width:
            new = next(waiting, None)
            more = new is not None
            if new is not None:
                answers[new[0]] = (new[1], None)
        for number, (work, answer) in answers.items():
            try:
                asking[number] = (work, *work.send(answer))
            except StopIteration as end:
                yield number, end.value
            except Exception as error:
                yield number, error
        groups = defaultdict(list)
        for number, (_, solver, frame, _dense) in asking.items():
            groups[_kind(solver, frame)].append(number)
        answers = {}
        for kind, members in groups.items():
            asked, frames, dense = zip(*(asking[k][1:] for k in members), strict=True)
            if kind is None:
                said = [step_alone(*one) for one in zip(asked, dense, strict=True)]
            else:
                said = _step(asked, frames)
                wanted = [k for k, want in enumerate(dense) if want and said[k] is None]
                if wanted:
                    _add_output([asked[k] for k in wanted], [frames[k] for k in wanted])
            answers |= {k: (asking[k][0], what) for k, what in zip(members, said, strict=True)}
        asking = {}


def _kind(solver: Any, frame: Any) -> tuple[object, ...] | None:
    """Runs of one kind can be stepped together; None: alone."""
    if type(solver) is not _SOLVER or type(frame) is not Frame or frame.log_counts is not None:
        return None
    n = solver.n // frame.d
    if n * n > BLOCK_ENTRIES // 4 or not all(hasattr(solver, name) for name in _NEEDED):
        return None
    return (
        n,
        frame.d,
        frame.split,
        frame.queries.shape,
        frame.keys is None,
        frame.coupling is None,
        frame.shape_growth is None,
    )


class _Frames:
    """Frames of one kind: `Frame.velocity` of all of them at once."""

    def __init__(self, frames: list[Frame]) -> None:
        self.frames, self.first = frames, frames[0]
        self.queries = np.array([frame.queries for frame in frames])
        self.keys = None if self.first.keys is None else np.array([frame.keys for frame in frames])
        self.rate = np.array([frame.rate for frame in frames])
        self.log_score = np.array([frame.log_score for frame in frames])
        self.t1 = np.array([frame.t1.T for frame in frames])
        self.t2 = np.array([frame.t2.T for frame in frames])
        couplings = [frame.coupling.T for frame in frames if frame.coupling is not None]
        self.coupling = np.array(couplings) if couplings else None

    def velocity(self, t: FloatArray, state: FloatArray) -> FloatArray:
        """Right-hand sides at the times t (b,) and states (b, n, d)."""
        first, k, d = self.first, self.first.split, self.first.d
        x, log = state, self.rate * t
        if 0 < k < d or first.shape_growth is not None:
            x = state.copy()
            if first.shape_growth is not None:
                x[:, :, :k] = x[:, :, :k] @ self._matrices("shape_growth", t)
            x[:, :, k:] *= np.exp(-log)[:, None, None]
        factor = np.exp(np.clip(2.0 * log + self.log_score, -_LARGEST_LOG, _LARGEST_LOG))
        keys = x if self.keys is None else x @ self.keys
        mean = _means(x @ self.queries, keys, factor, state)
        if k == d:
            return (mean - state) @ self.t1
        out = np.empty_like(state)
        out[:, :, :k] = (mean[:, :, :k] - state[:, :, :k]) @ self.t1
        if self.coupling is not None:
            out[:, :, :k] += mean[:, :, k:] @ self.coupling @ self._matrices("decay", t)
        out[:, :, k:] = mean[:, :, k:] @ self.t2
        return out

    def _matrices(self, name: str, t: FloatArray) -> FloatArray:
        """A matrix function of every frame at its time, transposed."""
        return np.array([getattr(f, name)(s).T for f, s in zip(self.frames, t, strict=True)])


def _means(
    queries: FloatArray, keys: FloatArray, factor: FloatArray, values: FloatArray
) -> FloatArray:
    """`attention.scaled_mean` of every run, in blocks that stay in cache. Keys are rows here."""
    summed = np.concatenate([values, np.ones((*values.shape[:2], 1))], axis=2)
    common = factor.max() < 1e100  # then the queries can take it: one pass over the scores less
    if common:
        queries = queries * factor[:, None, None]
    out = np.empty_like(summed)
    some = max(1, BLOCK_ENTRIES // 2 // keys.shape[1] ** 2)
    for start in range(0, len(keys), some):
        block = slice(start, start + some)
        weights = keys[block] @ queries[block].transpose(0, 2, 1)
        weights -= np.maximum.reduce(weights, axis=1, keepdims=True)
        if not common:
            weights *= factor[block, None, None]
        np.maximum(weights, _FLOOR, out=weights)
        np.exp(weights, out=weights)
        np.matmul(weights.transpose(0, 2, 1), summed[block], out=out[block])
    return out[:, :, :-1] / out[:, :, -1:]


def _step(solvers: Sequence[Any], frames: Sequence[Frame]) -> list[str | None]:
    """One accepted step of each solver, as scipy's DOP853 takes it; messages of those that fail."""
    said: list[str | None] = [None] * len(solvers)
    t = np.array([float(solver.t) for solver in solvers])
    tiny = 10.0 * (np.nextafter(t, np.inf) - t)
    h = np.maximum([float(solver.h_abs) for solver in solvers], tiny)
    rejected = np.zeros(len(solvers), dtype=bool)
    left = np.arange(len(solvers))
    while len(left):
        stuck = h[left] < tiny[left]
        for k in left[stuck]:
            solvers[k].status, said[k] = "failed", solvers[k].TOO_SMALL_STEP
        left = left[~stuck]
        if len(left):
            asked = [solvers[k] for k in left]
            good, h[left] = _attempt(asked, [frames[k] for k in left], h[left], rejected[left])
            rejected[left] = True
            left = left[~good]
    return said


def _attempt(
    solvers: list[Any], frames: list[Frame], h: FloatArray, rejected: np.ndarray
) -> tuple[np.ndarray, FloatArray]:
    """Try a step of at most h; write it into the solvers where its error is small enough.

    Returns
    -------
    accepted : (b,) bool array
    h : (b,) array
        Lengths to try next.
    """
    b, first = len(solvers), solvers[0]
    shape = (b, -1, frames[0].d)
    many = _Frames(frames)
    t = np.array([float(solver.t) for solver in solvers])
    end = np.minimum(t + h, [float(solver.t_bound) for solver in solvers])
    h = end - t
    y = np.array([solver.y for solver in solvers])
    stages = np.empty((first.n_stages + 1, *y.shape))
    stages[0] = [solver.f for solver in solvers]

    length = h[:, None]
    for s in range(1, first.n_stages):
        inside = y + length * _combined(first.A[s, :s], stages)
        stages[s] = many.velocity(t + first.C[s] * h, inside.reshape(shape)).reshape(b, -1)
    new = y + length * _combined(first.B, stages)
    stages[-1] = many.velocity(end, new.reshape(shape)).reshape(b, -1)
    rtol = np.array([solver.rtol for solver in solvers])[:, None]
    atol = np.array([solver.atol for solver in solvers])[:, None]
    scale = atol + np.maximum(np.abs(y), np.abs(new)) * rtol
    err5, err3 = (
        ((_combined(row, stages) / scale) ** 2).sum(axis=1) for row in (first.E5, first.E3)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        error = h * err5 / np.sqrt((err5 + 0.01 * err3) * y.shape[1])
        factor = 0.9 * np.where(err5 == 0.0, 0.0, error) ** first.error_exponent
    accepted = (error < 1.0) | (err5 == 0.0)
    factor = np.where(
        accepted, np.fmin(factor, np.where(rejected, 1.0, 10.0)), np.fmax(factor, 0.2)
    )
    for k in np.flatnonzero(accepted):
        solver = solvers[k]
        solver.K[...] = stages[:, k]
        solver.h_previous, solver.h_abs = h[k], h[k] * factor[k]
        solver.t_old, solver.t = solver.t, end[k]
        solver.y_old, solver.y, solver.f = solver.y, new[k], solver.K[-1].copy()
        if end[k] >= solver.t_bound:
            solver.status = "finished"
    for solver in solvers:
        solver.nfev += first.n_stages
    return accepted, h * factor


def _combined(row: FloatArray, stages: FloatArray) -> FloatArray:
    """Sum of row_s stages_s: term by term, so that no run's rounding depends on its company."""
    out, *rest = (a * stage for a, stage in zip(row, stages, strict=False) if a != 0.0)
    for term in rest:
        out += term
    return out


def _add_output(solvers: list[Any], frames: list[Frame]) -> None:
    """Dense output of the step just taken, as scipy's `dense_output` gives it, as `solver.output`."""
    b, first = len(solvers), solvers[0]
    many = _Frames(frames)
    old, now, y, new, f = (
        np.array([getattr(solver, name) for solver in solvers])
        for name in ("t_old", "t", "y_old", "y", "f")
    )
    h = now - old
    length = h[:, None]
    known = np.array([solver.K for solver in solvers]).transpose(1, 0, 2)
    stages = np.concatenate([known, np.empty((len(first.A_EXTRA), *y.shape))])
    for s, (row, c) in enumerate(zip(first.A_EXTRA, first.C_EXTRA, strict=True), len(known)):
        inside = y + length * _combined(row[:s], stages)
        shape = (b, -1, frames[0].d)
        stages[s] = many.velocity(old + c * h, inside.reshape(shape)).reshape(b, -1)
    moved = new - y
    start, end = length * stages[0] - moved, 2.0 * moved - length * (f + stages[0])
    parts = np.stack([moved, start, end, *(length * _combined(row, stages) for row in first.D)])
    for k, solver in enumerate(solvers):
        solver.output = _Output(float(old[k]), float(h[k]), y[k], parts[:, k])


class _Output:
    """y(t) = y + x (F_0 + (1 - x)(F_1 + x (F_2 + ...))), x = (t - old) / h: dense output of DOP853."""

    def __init__(self, old: float, h: float, y: FloatArray, parts: FloatArray) -> None:
        self.old, self.h, self.y, self.parts = old, h, y, parts

    def __call__(self, t: float) -> FloatArray:
        x = (t - self.old) / self.h
        out = np.zeros_like(self.y)
        for k in range(len(self.parts) - 1, -1, -1):
            out = (out + self.parts[k]) * (x if k % 2 == 0 else 1.0 - x)
        return self.y + out
