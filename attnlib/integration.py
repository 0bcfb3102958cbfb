"""How tokens are moved: `integrate` (continuous depth) and `layers` (the discrete Transformer)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.integrate
from numpy.typing import ArrayLike

from ._check import FloatArray, as_count, as_number, as_real_array, as_times, as_tokens
from ._frame import Frame, LayerFrame, PlainFrame
from .dynamics import Dynamics, SelfAttention

#: scipy's integrators, by the names scipy gives them.
METHODS = ("DOP853", "RK45", "RK23", "LSODA", "Radau", "BDF")

Progress = Callable[[float, float], object]


class PrecisionWarning(UserWarning):
    """A trajectory ends before its final time, because float64 or a budget is exhausted."""


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


@dataclass(eq=False)
class Trajectory:
    """Tokens through depth, with dense output.

    Attributes
    ----------
    system
        What moved the tokens.
    times : (m,) array
        Depths at which states are kept, from 0 to where the run ended.
    tokens : (m, n, d) array
        Original coordinates x at those depths (inf once float64 cannot hold them).
    rescaled : (m, n, d) array
        Rescaled coordinates z = e^{-tV} x.
    status : str
        "finished", or why the run ended early: "precision" (rounding would make it wrong),
        "step" (the integrator found no step), "max_steps".
    message : str
        The status in a sentence, with a remedy.
    statistics : Statistics
    """

    system: Any
    times: FloatArray
    status: str
    message: str
    statistics: Statistics
    _frame: Any = field(repr=False)
    _states: FloatArray = field(repr=False)
    _pieces: list[Any] = field(repr=False)
    _knots: FloatArray = field(repr=False)
    _rerun: Callable[..., Trajectory] | None = field(default=None, repr=False)

    @property
    def success(self) -> bool:
        """Whether the final time was reached."""
        return self.status == "finished"

    @property
    def n(self) -> int:
        """Number of tokens."""
        return self._states.shape[1]

    @property
    def d(self) -> int:
        """Dimension."""
        return self._states.shape[2]

    @cached_property
    def tokens(self) -> FloatArray:
        """Original coordinates x at `times`, shape (m, n, d)."""
        return self._frame.tokens(self.times, self._states)

    @cached_property
    def rescaled(self) -> FloatArray:
        """Rescaled coordinates z = e^{-tV} x at `times`, shape (m, n, d)."""
        return self._frame.rescaled(self.times, self._states)

    def at(self, t: ArrayLike) -> FloatArray:
        """Original coordinates at depth t: (n, d) for a number, (m, n, d) for m depths."""
        return self._evaluate(t, self._frame.tokens)

    def rescaled_at(self, t: ArrayLike) -> FloatArray:
        """Rescaled coordinates at depth t: (n, d) for a number, (m, n, d) for m depths."""
        return self._evaluate(t, self._frame.rescaled)

    def attention(self, t: float) -> FloatArray:
        """Attention matrix P(t), shape (n, n), equation (1.2)."""
        flat, _ = as_times("t", as_number("t", t), self.times[0], self.times[-1])
        return self._frame.attention(float(flat[0]), self._states_at(flat)[0])

    def global_error(self) -> float:
        """Estimate of the error at the last time, relative to the largest coordinate.

        Runs again with tolerances twenty times tighter and compares: the true error of this run if
        the second is much better. Not a bound: where solutions separate fast, believe it less.
        """
        if self._rerun is None or len(self.times) < 2:
            return 0.0
        other = self._rerun(float(self.times[-1]))
        end = min(self.times[-1], other.times[-1])
        mine, theirs = self._states_at(np.array([end])), other._states_at(np.array([end]))
        return float(np.abs(mine - theirs).max() / (np.abs(theirs).max() or 1.0))

    def _evaluate(self, t: ArrayLike, convert: Callable[..., FloatArray]) -> FloatArray:
        flat, single = as_times("t", t, self.times[0], self.times[-1])
        out = convert(flat, self._states_at(flat))
        return out[0] if single else out

    def _states_at(self, t: FloatArray) -> FloatArray:
        shape = self._states.shape[1:]
        if not self._pieces:
            return np.repeat(self._states[:1], len(t), axis=0)
        piece = np.clip(np.searchsorted(self._knots, t, side="right") - 1, 0, len(self._pieces) - 1)
        out = np.empty((len(t), *shape))
        for index, (k, time) in enumerate(zip(piece, t, strict=True)):
            out[index] = self._pieces[k](time).reshape(shape)
        return out


class LayerTrajectory(Trajectory):
    """Tokens through discrete layers; between two layers x and z are interpolated linearly."""

    def attention(self, t: float) -> FloatArray:
        """Attention matrix of the layer that starts at or before depth t."""
        flat, _ = as_times("t", as_number("t", t), self.times[0], self.times[-1])
        k, _weight = self._place(flat)
        return self._frame.attention(float(self.times[k[0]]), self._states[k[0]])

    def _place(self, t: FloatArray) -> tuple[Any, FloatArray]:
        position = t / self._frame.step
        k = np.clip(np.floor(position + 1e-9).astype(int), 0, len(self._states) - 1)
        return k, np.clip(position - k, 0.0, 1.0)

    def _evaluate(self, t: ArrayLike, convert: Callable[..., FloatArray]) -> FloatArray:
        flat, single = as_times("t", t, self.times[0], self.times[-1])
        k, weight = self._place(flat)
        after = np.minimum(k + 1, len(self._states) - 1)
        low = convert(self.times[k], self._states[k])
        high = convert(self.times[after], self._states[after])
        inside = weight[:, None, None] > 1e-9
        out = np.where(inside, low + weight[:, None, None] * (high - low), low)
        return out[0] if single else out


def integrate(
    system: Dynamics,
    tokens: ArrayLike,
    t_final: float,
    *,
    rtol: float = 1e-11,
    atol: float | None = None,
    method: str = "DOP853",
    max_steps: int = 20_000,
    times: ArrayLike | None = None,
    progress: Progress | None = None,
) -> Trajectory:
    """Move tokens from depth 0 to t_final by dx_i/dt = sum_j P_ij V x_j, equation (1.1).

    Coordinates are chosen so that no direction loses its precision: rescaled, z = e^{-tV} x, where
    V expands, original where it does not.

    Parameters
    ----------
    system : SelfAttention, or any object with `d` and `velocity(t, x)`
    tokens : (n, d) array
        Initial tokens, one a row.
    t_final : float
        Depth to reach, at least 0.
    rtol, atol : float
        Error allowed in a step, relative and absolute; atol is in units of the largest initial
        coordinate and is rtol / 100 by default.
    method : str
        One of scipy's: DOP853 (default), RK45, RK23, LSODA, Radau, BDF.
    max_steps : int
        Budget of steps.
    times : array, optional
        Increasing depths to keep; by default the steps taken. Dense output is there either way.
    progress : callable, optional
        Called as progress(t, t_final) after every step; a tqdm bar will also do.

    Returns
    -------
    Trajectory

    Warns
    -----
    PrecisionWarning
        If the run ends early; the result says why (`status`, `message`) and holds what was computed
        until then.

    Raises
    ------
    ValueError, TypeError
        If an argument is not what is asked for.

    Examples
    --------
    >>> path = integrate(SelfAttention(1, 1, 1), [[-0.5], [0.5]], t_final=2)
    >>> round(float(path.at(2.0)[1, 0]), 8)
    1.39076176
    """
    d = as_count("system.d", getattr(system, "d", None), at_least=1) if _is_dynamics(system) else 0
    start = as_tokens(tokens, d)
    t_final = as_number("t_final", t_final, at_least=0.0)
    rtol = as_number("rtol", rtol, above=0.0)
    if not 2.3e-14 <= rtol <= 0.1:
        raise ValueError(f"rtol must lie between 2.3e-14 and 0.1: got {rtol:g}.")
    unit_atol = 0.01 * rtol if atol is None else as_number("atol", atol, above=0.0)
    max_steps = as_count("max_steps", max_steps, at_least=1)
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}: got {method!r}.")
    kept = None if times is None else _increasing(times, t_final)

    frame: Any = Frame(system, start) if isinstance(system, SelfAttention) else PlainFrame(system)
    report = _reporter(progress)
    run = _march(frame, frame.start(start), t_final, rtol, unit_atol, method, max_steps, report)
    if run.status != "finished":
        warnings.warn(run.message, PrecisionWarning, stacklevel=2)

    def rerun(end: float) -> Trajectory:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrecisionWarning)
            tighter = max(2.3e-14, rtol / 20.0)
            return integrate(
                system, start, end, rtol=tighter, atol=unit_atol / 20.0, max_steps=10 * max_steps
            )

    path = Trajectory(
        system=system,
        times=run.knots,
        status=run.status,
        message=run.message,
        statistics=run.statistics,
        _frame=frame,
        _states=run.states,
        _pieces=run.pieces,
        _knots=run.knots,
        _rerun=rerun,
    )
    if kept is not None:
        path.times = kept[kept <= run.knots[-1]]
        path._states = path._states_at(path.times)
    return path


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
class _Run:
    knots: FloatArray
    states: FloatArray
    pieces: list[Any]
    status: str
    message: str
    statistics: Statistics


def _march(
    frame: Any,
    state: FloatArray,
    t_final: float,
    rtol: float,
    unit_atol: float,
    method: str,
    max_steps: int,
    report: Progress,
    stop: Callable[[float, FloatArray], bool] | None = None,
) -> _Run:
    """Step scipy's integrator to t_final, watching what rounding does."""
    shape = state.shape
    scale = float(np.abs(state).max()) or 1.0

    def velocity(t: float, flat: FloatArray) -> FloatArray:
        return frame.velocity(t, flat.reshape(shape)).reshape(-1)

    knots, states, pieces = [0.0], [state], []
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
            if noise > _NOISE_LIMIT:
                status, message = "precision", _PRECISION.format(knots[-1], t_final)
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
    return _Run(np.array(knots), np.array(states), pieces, status, message, statistics)


#: Relative error of the velocity beyond which a run stops rather than go wrong.
_NOISE_LIMIT = 1e-9

_PRECISION = (
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


def layers(system: SelfAttention, tokens: ArrayLike, depth: int, step: float) -> Trajectory:
    """The discrete Transformer: residual layers, each a forward Euler step of (1.1).

    x_i[k+1] = x_i[k] + step * sum_j P_ij V x_j[k], and with R = I + step * V the rescaled form
    (paper, Remark 3.4) z[k] = R^{-k} x[k],
    z_i[k+1] = z_i[k] + step * sum_j P_ij(R^k z[k]) R^{-1} V (z_j[k] - z_i[k]).

    Directions that R expands are advanced in the rescaled form, the others in the original one.

    Parameters
    ----------
    system : SelfAttention
    tokens : (n, d) array
    depth : int
        Number of layers, at least 0.
    step : float
        Length of a layer in units of depth; a Transformer with shared weights has step 1.

    Returns
    -------
    Trajectory
        `times` are step * (0, ..., depth); between layers `at` interpolates x linearly, as Euler
        does. `rescaled` raises ValueError where R is singular.
    """
    if not isinstance(system, SelfAttention):
        raise TypeError(f"system must be a SelfAttention: got {type(system).__name__}.")
    start = as_tokens(tokens, system.d)
    depth = as_count("depth", depth)
    step = as_number("step", step, above=0.0)

    frame = LayerFrame(system, start, step)
    states = [frame.start(start)]
    status, message = "finished", f"Passed {depth} layers."
    for k in range(depth):
        state = frame.advance(k, states[-1])
        if not np.isfinite(state).all() or frame.noise((k + 1) * step, state) > _NOISE_LIMIT:
            status, message = "precision", _PRECISION.format(k * step, depth * step)
            warnings.warn(message, PrecisionWarning, stacklevel=2)
            break
        states.append(state)
    knots = step * np.arange(len(states))
    count = len(states) - 1
    return LayerTrajectory(
        system=system,
        times=knots,
        status=status,
        message=message,
        statistics=Statistics(count, count, step, step),
        _frame=frame,
        _states=np.array(states),
        _pieces=[],
        _knots=knots,
    )


def _is_dynamics(system: object) -> bool:
    if isinstance(system, Dynamics):
        return True
    raise TypeError(
        f"system must be a SelfAttention or have d and velocity(t, x): got {type(system).__name__}."
    )


def _increasing(times: ArrayLike, t_final: float) -> FloatArray:
    array = as_real_array("times", times)
    if array.ndim != 1 or len(array) == 0 or np.any(np.diff(array) <= 0):
        raise ValueError(f"times must be an increasing list of depths: got {array!r}.")
    as_times("times", array, 0.0, t_final)
    return array


def _reporter(progress: Any) -> Progress:
    if progress is None:
        return lambda t, t_final: None
    if hasattr(progress, "update"):  # a tqdm bar: total is t_final or anything
        last = [0.0]

        def update(t: float, t_final: float) -> None:
            progress.update((t - last[0]) * ((progress.total or t_final) / t_final))
            last[0] = t

        return update
    if not callable(progress):
        raise TypeError(
            f"progress must be callable as progress(t, t_final), or a tqdm bar: "
            f"got {type(progress).__name__}."
        )
    return progress
