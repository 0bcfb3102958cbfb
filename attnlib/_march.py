"""Stepping: scipy's integrators with an eye on rounding, and dense output on demand."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import scipy.integrate

from ._check import FloatArray
from .attention import EPS

#: scipy's integrators, by the names scipy gives them.
METHODS = ("DOP853", "RK45", "RK23", "LSODA", "Radau", "BDF")

Progress = Callable[[float, float], object]

T = TypeVar("T")

#: Work that needs steps: it yields a solver to be stepped, the frame whose velocity it integrates, and
#: whether it wants dense output of the step as `solver.output`; is sent what went wrong (or None); and
#: returns its result.
Work = Generator[tuple[Any, Any, bool], str | None, T]


@dataclass(frozen=True)
class Statistics:
    """What a run cost and how good it is.

    Attributes
    ----------
    steps, evaluations : int
        Accepted steps; evaluations of the velocity.
    smallest_step, largest_step : float
        In units of depth.
    rtol, atol : float
        Tolerances on each step's error; atol in units of the largest initial coordinate.
    rounding : float
        Estimated relative error that rounding of the scores has brought, summed over the run.
    amplification : float
        By how much the run has multiplied a small difference of its data, at most: estimated along
        one tangent vector.
    """

    steps: int = 0
    evaluations: int = 0
    smallest_step: float = 0.0
    largest_step: float = 0.0
    rtol: float = 0.0
    atol: float = 0.0
    rounding: float = 0.0
    amplification: float = 1.0


def _hopeless(knots: list[float], t_final: float, max_steps: int) -> bool:
    """Whether at the pace of the last 500 steps the budget would have to be ten times larger."""
    taken = len(knots) - 1
    if taken == 0 or taken % 500:
        return False
    pace = (knots[-1] - knots[-501]) / 500
    return t_final - knots[-1] > 10 * pace * (max_steps - taken)


class _Piece:
    """Dense output of one step, made when it is first asked for.

    A one-step method is asked to take the very same step again, through scipy's public interface;
    a multistep method is asked at once, while it still has its history.
    """

    def __init__(
        self,
        solver: Any,
        before: float,
        now: float,
        velocity: Callable[[float, FloatArray], FloatArray],
        state: FloatArray,
    ) -> None:
        self.method, self.before, self.now = type(solver), before, now
        self.velocity, self.state = velocity, state
        one_step = issubclass(self.method, _EXPLICIT)
        self.output = None if one_step else solver.dense_output()

    def __call__(self, t: float) -> FloatArray:
        if self.output is None:
            solver = self.method(
                self.velocity,
                self.before,
                self.state.reshape(-1),
                self.now,
                first_step=self.now - self.before,
                rtol=1.0,
                atol=np.inf,
            )
            solver.step()
            self.output = solver.dense_output()
        return self.output(t)


_EXPLICIT = (scipy.integrate.DOP853, scipy.integrate.RK45, scipy.integrate.RK23)


class _Growth:
    """Carries one tangent vector w along a run, dw/dt = J w: how much small errors have grown.

    J is taken at the end of each step, and e^{hJ} w by Taylor polynomials of degree three: they grow
    neither what decays nor what turns, if a long step is cut. Where nothing moves but the motion is
    unstable, w is an eigenvector and grows by an exponential.
    """

    def __init__(self, velocity: Callable[[float, FloatArray], FloatArray], size: int) -> None:
        self.velocity = velocity
        w = np.random.default_rng(size).normal(size=size)
        self.w = w / np.linalg.norm(w)
        self.log = self.low = self.top = 0.0
        self.error = EPS

    def step(self, t: float, h: float, state: FloatArray, slope: FloatArray, local: float) -> None:
        """Take in a step of length h that ended at (t, state) with velocity `slope`."""
        delta = 1e-7 * (float(np.abs(state).max()) or 1.0)
        before, pieces, done = self.log, 1, 0

        def turned(vector: FloatArray) -> tuple[FloatArray, float]:
            size = float(np.linalg.norm(vector)) or 1.0
            turn = (self.velocity(t, state + (delta / size) * vector) - slope) * (size / delta)
            return turn, float(np.linalg.norm(turn))

        while done < pieces:
            turn, length = turned(self.w)
            if done == 0:
                pieces = min(12, 1 + int(h * length / 1.5))
            s, rate = h / pieces, float(self.w @ turn)
            w = self.w + s * turn
            if s * length > 0.05:
                second, _ = turned(turn)
                w += (s * s / 2.0) * second + (s**3 / 6.0) * turned(second)[0]
            size = float(np.linalg.norm(w))
            straight = rate > 0.0 and float(np.linalg.norm(turn - rate * self.w)) < 0.5 * rate
            self.log += s * rate if straight else float(np.log(size + 1e-300))
            self.w = w / size if size > 0.0 else self.w
            done += 1
        self.low = min(self.low, self.log)
        self.top = max(self.top, self.log - self.low)
        self.error = min(self.error * float(np.exp(min(self.log - before, 300.0))) + local, 1e300)


def alone(work: Work[T]) -> T:
    """Do the work, each step by itself."""
    failure: str | None = None
    while True:
        try:
            solver, _, dense = work.send(failure)
        except StopIteration as end:
            return end.value
        failure = step_alone(solver, dense)


def step_alone(solver: Any, dense: bool = False) -> str | None:
    """One step; what scipy raises on a state it cannot go on from becomes its message."""
    try:
        failure = solver.step()
        if dense and failure is None:
            solver.output = solver.dense_output()
        return failure
    except (ValueError, ArithmeticError, np.linalg.LinAlgError) as error:
        solver.status = "failed"
        return str(error)


@dataclass
class Run:
    """A stretch of integration: knots, states there, dense output between."""

    knots: FloatArray
    states: FloatArray
    pieces: list[Any]
    status: str
    message: str
    statistics: Statistics

    def state(self, t: float) -> FloatArray:
        """State at time t: as stored at a knot, by dense output between two."""
        k = int(np.searchsorted(self.knots, t, side="right")) - 1
        k = min(max(k, 0), len(self.knots) - 1)
        if self.knots[k] == t or not self.pieces:
            return self.states[k]
        return self.pieces[min(k, len(self.pieces) - 1)](t).reshape(self.states[0].shape)


def marching(
    frame: Any,
    state: FloatArray,
    t_final: float,
    rtol: float,
    unit_atol: float,
    method: str,
    max_steps: int,
    report: Progress,
    stop: Callable[[float, FloatArray], Work[bool]] | None = None,
    growth: bool = False,
) -> Work[Run]:
    """Step scipy's integrator to t_final, watching what rounding does and, if asked, how errors grow."""
    shape = state.shape
    scale = float(np.abs(state).max()) or 1.0

    def velocity(t: float, flat: FloatArray) -> FloatArray:
        return frame.velocity(t, flat.reshape(shape)).reshape(-1)

    knots, states = [0.0], [state]
    pieces: list[Any] = []
    rounding, evaluations = 0.0, 0
    status, message = "finished", f"Reached t = {t_final:g}."
    amplification = 1.0
    if t_final > 0.0:
        solver = getattr(scipy.integrate, method)(
            velocity, 0.0, state.reshape(-1), t_final, rtol=rtol, atol=unit_atol * scale
        )
        tangent = _Growth(velocity, state.size) if growth else None
        while solver.status == "running":
            if len(pieces) == max_steps or _hopeless(knots, t_final, max_steps):
                status, message = "max_steps", _MAX_STEPS.format(max_steps, knots[-1], t_final)
                break
            failure = yield solver, frame, False
            now = float(solver.t)
            if solver.status == "failed" or not np.isfinite(solver.y).all():
                status, message = "step", _STEP.format(knots[-1], t_final, failure or "overflow")
                break
            current = solver.y.reshape(shape)
            noise = frame.noise(now, current)
            if noise > NOISE_LIMIT:
                status, message = "precision", PRECISION.format(knots[-1], t_final)
                break
            rounding += noise * (now - knots[-1])
            if tangent is not None:
                one_step = isinstance(solver, _EXPLICIT)
                slope = solver.f if one_step else velocity(now, solver.y)
                tangent.step(now, now - knots[-1], solver.y, slope, 0.01 * rtol)
                if tangent.error > max(UNSTABLE, 1e3 * rtol):
                    status = "unstable"
                    message = _UNSTABLE.format(knots[-1], t_final, tangent.top / np.log(10.0))
                    break
            pieces.append(_Piece(solver, knots[-1], now, velocity, states[-1]))
            knots.append(now)
            states.append(current.copy())
            report(now, t_final)
            if stop is not None and (yield from stop(now, states[-1])):
                status, message = "stopped", f"Stopped as asked at t = {now:g}."
                break
        evaluations = int(solver.nfev)
        if tangent is not None:
            amplification = float(np.exp(min(tangent.top, 700.0)))
    steps = np.diff(knots)
    statistics = Statistics(
        steps=len(pieces),
        evaluations=evaluations,
        smallest_step=float(steps.min(initial=np.inf)) if len(steps) else 0.0,
        largest_step=float(steps.max(initial=0.0)),
        rtol=rtol,
        atol=unit_atol,
        rounding=rounding,
        amplification=amplification,
    )
    return Run(np.array(knots), np.array(states), pieces, status, message, statistics)


def march(*args: Any, **options: Any) -> Run:
    """`marching`, each step by itself."""
    return alone(marching(*args, **options))


#: Relative error of the velocity beyond which a run stops rather than go wrong.
NOISE_LIMIT = 1e-9

#: Estimated relative error of the state beyond which a run stops rather than go wrong.
UNSTABLE = 1e-3

_UNSTABLE = (
    "Stopped at t = {:.6g} of {:g}: the flow has multiplied small differences by 10^{:.0f} (exceptional "
    "tokens, or attention that flips faster than steps), and what follows would be decided by "
    "errors. Move a token slightly, lower rtol, or use a shorter t_final."
)
PRECISION = (
    "Stopped at t = {:.6g} of {:g}: from here on float64 cannot tell leaders from followers while "
    "other directions still move, and the result would be wrong. Use limit(system, tokens) for "
    "what becomes of the tokens, or a shorter t_final."
)
_STEP = (
    "Stopped at t = {:.6g} of {:g}: the integrator found no acceptable step ({}). Try a larger "
    "rtol, method='LSODA' or 'Radau', or a shorter t_final."
)
_MAX_STEPS = (
    "The budget of {} steps does not suffice: stopped at t = {:.6g} of {:g}. Try a "
    "larger max_steps, a larger rtol, or method='LSODA' if the problem is stiff."
)
