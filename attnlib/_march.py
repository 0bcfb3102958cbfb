"""Stepping: scipy's integrators with an eye on rounding, and dense output on demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.integrate

from ._check import FloatArray

#: scipy's integrators, by the names scipy gives them.
METHODS = ("DOP853", "RK45", "RK23", "LSODA", "Radau", "BDF")

Progress = Callable[[float, float], object]


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
    """

    steps: int = 0
    evaluations: int = 0
    smallest_step: float = 0.0
    largest_step: float = 0.0
    rtol: float = 0.0
    atol: float = 0.0
    rounding: float = 0.0


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


def march(
    frame: Any,
    state: FloatArray,
    t_final: float,
    rtol: float,
    unit_atol: float,
    method: str,
    max_steps: int,
    report: Progress,
    stop: Callable[[float, FloatArray], bool] | None = None,
) -> Run:
    """Step scipy's integrator to t_final, watching what rounding does."""
    shape = state.shape
    scale = float(np.abs(state).max()) or 1.0

    def velocity(t: float, flat: FloatArray) -> FloatArray:
        return frame.velocity(t, flat.reshape(shape)).reshape(-1)

    knots, states = [0.0], [state]
    pieces: list[Any] = []
    rounding, evaluations = 0.0, 0
    status, message = "finished", f"Reached t = {t_final:g}."
    if t_final > 0.0:
        solver = getattr(scipy.integrate, method)(
            velocity, 0.0, state.reshape(-1), t_final, rtol=rtol, atol=unit_atol * scale
        )
        while solver.status == "running":
            if len(pieces) == max_steps or _hopeless(knots, t_final, max_steps):
                status, message = "max_steps", _MAX_STEPS.format(max_steps, knots[-1], t_final)
                break
            failure = solver.step()
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
            pieces.append(_Piece(solver, knots[-1], now, velocity, states[-1]))
            knots.append(now)
            states.append(current.copy())
            report(now, t_final)
            if stop is not None and stop(now, states[-1]):
                status, message = "stopped", f"Stopped as asked at t = {now:g}."
                break
        evaluations = int(solver.nfev)
    steps = np.diff(knots)
    statistics = Statistics(
        steps=len(pieces),
        evaluations=evaluations,
        smallest_step=float(steps.min(initial=np.inf)) if len(steps) else 0.0,
        largest_step=float(steps.max(initial=0.0)),
        rtol=rtol,
        atol=unit_atol,
        rounding=rounding,
    )
    return Run(np.array(knots), np.array(states), pieces, status, message, statistics)


#: Relative error of the velocity beyond which a run stops rather than go wrong.
NOISE_LIMIT = 1e-9

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
