"""How tokens are moved: `integrate` (continuous depth) and `layers` (the discrete Transformer)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ._check import FloatArray, as_count, as_number, as_real_array, as_times, as_tokens
from ._frame import Frame, LayerFrame, PlainFrame
from ._march import METHODS, NOISE_LIMIT, PRECISION, Progress, Run, Statistics, march
from ._path import Path, follow
from .dynamics import Dynamics, SelfAttention


class PrecisionWarning(UserWarning):
    """A trajectory ends before its final time, because float64 or a budget is exhausted."""


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
        "unstable" (exceptional tokens: small errors have grown too far), "step" (the integrator
        found no step), "max_steps".
    message : str
        The status in a sentence, with a remedy.
    statistics : Statistics
    """

    system: Any
    times: FloatArray
    status: str
    message: str
    statistics: Statistics
    _path: Any = field(repr=False)
    _end: float = field(repr=False)
    _rerun: Callable[[float], Trajectory] | None = field(default=None, repr=False)

    @property
    def success(self) -> bool:
        """Whether the final time was reached."""
        return self.status == "finished"

    @property
    def n(self) -> int:
        """Number of tokens."""
        return len(self._path.inverse)

    @property
    def d(self) -> int:
        """Dimension."""
        return self._path.first.states.shape[2]

    @property
    def closed_form_from(self) -> float:
        """Depth from which the follower law gives the tokens in closed form; inf if nowhere."""
        path = self._path
        return float(path.first.knots[-1]) if path.cascade is not None else float("inf")

    @cached_property
    def tokens(self) -> FloatArray:
        """Original coordinates x at `times`, shape (m, n, d)."""
        return np.array([self._path.tokens(float(t)) for t in self.times])

    @cached_property
    def rescaled(self) -> FloatArray:
        """Rescaled coordinates z = e^{-tV} x at `times`, shape (m, n, d)."""
        return np.array([self._path.rescaled(float(t)) for t in self.times])

    def at(self, t: ArrayLike) -> FloatArray:
        """Original coordinates at depth t: (n, d) for a number, (m, n, d) for m depths."""
        return self._evaluate(t, self._path.tokens)

    def rescaled_at(self, t: ArrayLike) -> FloatArray:
        """Rescaled coordinates at depth t: (n, d) for a number, (m, n, d) for m depths."""
        return self._evaluate(t, self._path.rescaled)

    def attention(self, t: float) -> FloatArray:
        """Attention matrix P(t), shape (n, n), equation (1.2)."""
        flat, _ = as_times("t", as_number("t", t), 0.0, self._end)
        return self._path.attention(float(flat[0]))

    def global_error(self) -> float:
        """Estimate of the error of z at the last time, relative to the largest coordinate.

        Runs again with tolerances twenty times tighter and compares: the true error of this run if
        the second is much better. Not a bound: where solutions separate fast, believe it less.
        """
        if self._end == 0.0:
            return 0.0
        if self._rerun is None:
            raise TypeError("layers are exact but for rounding: there is no error to estimate.")
        other = self._rerun(self._end)
        end = min(self._end, other._end)
        try:
            mine, theirs = self.rescaled_at(end), other.rescaled_at(end)
        except TypeError:  # no V to rescale with
            mine, theirs = self.at(end), other.at(end)
        size = float(np.abs(theirs[np.isfinite(theirs)]).max(initial=0.0)) or 1.0
        return float(np.nanmax(np.abs(mine - theirs)) / size)

    def _evaluate(self, t: ArrayLike, convert: Callable[[float], FloatArray]) -> FloatArray:
        flat, single = as_times("t", t, 0.0, self._end)
        out = np.array([convert(float(time)) for time in flat])
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
    >>> round(float(path.at(2.0)[1, 0]), 6)
    1.390762
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

    report = _reporter(progress)
    path, run = _run(system, start, t_final, rtol, unit_atol, method, max_steps, report)
    if run.status != "finished":
        warnings.warn(run.message, PrecisionWarning, stacklevel=2)

    def rerun(end: float) -> Trajectory:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrecisionWarning)
            tighter = max(2.3e-14, rtol / 20.0)
            return integrate(
                system, start, end, rtol=tighter, atol=unit_atol / 20.0, max_steps=10 * max_steps
            )

    end = min(path.end, t_final)
    return Trajectory(
        system=system,
        times=_kept(path, end) if kept is None else kept[kept <= end],
        status=run.status,
        message=run.message,
        statistics=run.statistics,
        _path=path,
        _end=end,
        _rerun=rerun,
    )


def _run(
    system: Dynamics,
    start: FloatArray,
    t_final: float,
    rtol: float,
    atol: float,
    method: str,
    max_steps: int,
    report: Progress,
) -> tuple[Path, Run]:
    """Integrate, in closed form where most of a long way can be gone so."""
    if isinstance(system, SelfAttention) and method == "DOP853":
        outcome = follow(system, start, t_final, rtol, max_steps, 1000, report, atol)
        path, run = outcome.path, outcome.path.first
        if outcome.cascade is None:
            return path, run
        if path.end >= t_final:
            message = f"Reached t = {t_final:g}, from t = {run.knots[-1]:g} on in closed form."
            report(t_final, t_final)
            return path, replace(run, status="finished", message=message)
    frame: Any = Frame(system, start) if isinstance(system, SelfAttention) else PlainFrame(system)
    start = frame.start(start)
    watch = isinstance(frame, Frame)  # in other coordinates growth may be the dynamics' own
    run = march(frame, start, t_final, rtol, atol, method, max_steps, report, growth=watch)
    return Path(frame, run), run


def _kept(path: Path, end: float) -> FloatArray:
    """The steps taken, and after them as many depths as a curve needs."""
    knots = path.first.knots
    if path.cascade is None or end <= knots[-1]:
        return knots[knots <= end]
    falls = [segment.start for segment in path.cascade.segments if knots[-1] < segment.start < end]
    return np.unique([*knots, *falls, *np.linspace(knots[-1], end, 101)])


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
        if not np.isfinite(state).all() or frame.noise((k + 1) * step, state) > NOISE_LIMIT:
            status, message = "precision", PRECISION.format(k * step, depth * step)
            warnings.warn(message, PrecisionWarning, stacklevel=2)
            break
        states.append(state)
    count = len(states) - 1
    statistics = Statistics(count, count, step if count else 0.0, step if count else 0.0)
    knots: FloatArray = step * np.arange(count + 1, dtype=float)
    run = Run(knots, np.array(states), [], status, message, statistics)
    return Trajectory(
        system=system,
        times=knots,
        status=status,
        message=message,
        statistics=statistics,
        _path=_LayerPath(frame, run),
        _end=float(knots[-1]),
    )


class _LayerPath(Path):
    """Between two layers x and z are linear, as Euler steps are; each layer has one attention."""

    def _between(self, t: float, convert: Callable[[FloatArray, FloatArray], FloatArray]) -> Any:
        knots, states = self.first.knots, self.first.states
        position = t / self.frame.step
        k = min(int(position + 1e-9), len(knots) - 1)
        weight = position - k
        if weight <= 1e-9 or k + 1 == len(knots):
            return convert(knots[k : k + 1], states[k : k + 1])[0]
        low, high = convert(knots[k : k + 2], states[k : k + 2])
        return low + weight * (high - low)

    def tokens(self, t: float) -> FloatArray:
        """x(t)."""
        return self._between(t, self.frame.tokens)

    def rescaled(self, t: float) -> FloatArray:
        """z(t)."""
        return self._between(t, self.frame.rescaled)

    def attention(self, t: float) -> FloatArray:
        """P of the layer that starts at or before t."""
        k = min(int(t / self.frame.step + 1e-9), len(self.first.knots) - 1)
        return self.frame.attention(float(self.first.knots[k]), self.first.states[k])


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
    if hasattr(progress, "update") and hasattr(
        progress, "total"
    ):  # a tqdm bar: total is t_final or anything
        last = [0.0]

        def update(t: float, t_final: float) -> None:
            step = max(t - last[0], 0.0)
            progress.update(step * ((progress.total or t_final) / t_final))
            last[0] += step

        return update
    if not callable(progress) or isinstance(progress, dict):
        raise TypeError(
            f"progress must be callable as progress(t, t_final), or a tqdm bar: "
            f"got {type(progress).__name__}."
        )
    return progress
