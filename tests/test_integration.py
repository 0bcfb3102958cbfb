"""Extremes, failures, dense output, progress, memory."""

from __future__ import annotations

import itertools
import subprocess
import sys
import tracemalloc
import warnings

import mpmath
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm

import attnlib
from attnlib import PrecisionWarning, SelfAttention, integrate, layers, tokens
from attnlib.attention import weighted_mean


def _identity(d: int, V: object = None) -> SelfAttention:
    return SelfAttention(np.eye(d), np.eye(d), np.eye(d) if V is None else V)


def _reference(system: SelfAttention, x: np.ndarray, t: float) -> np.ndarray:
    """scipy in original coordinates, tight: right for short times."""
    run = solve_ivp(
        lambda s, y: system.velocity(s, y.reshape(x.shape)).ravel(),
        (0, t),
        x.ravel(),
        method="DOP853",
        rtol=1e-13,
        atol=1e-15 * np.abs(x).max(),
    )
    return run.y[:, -1].reshape(x.shape)


MATRICES = {
    "identity": np.eye(3),
    "minus identity": -np.eye(3),
    "zero": np.zeros((3, 3)),
    "nilpotent": np.diag([1.0, 1.0], 1),
    "rotation": np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 0.5]]),
    "defective": np.array([[0.7, 1, 0], [0, 0.7, 1], [0, 0, 0.7]]),
    "badly scaled": np.array([[1e-3, 1e3, 0], [0, -1e-3, 1], [1e-6, 0, 0.5]]),
    "non-normal": np.array([[1.0, 50, 0], [0, -1, 20], [0, 0, 0.3]]),
    "singular": np.array([[1.0, 1, 0], [1, 1, 0], [0, 0, 0]]),
}


@pytest.mark.parametrize("name", MATRICES)
def test_any_real_matrix(name: str) -> None:
    system = _identity(3, MATRICES[name])
    t = 0.02 if name in ("badly scaled", "non-normal") else 1.0
    x = tokens.box(6, 3, seed=2)
    path = integrate(system, x, t)
    truth = _reference(system, x, t)
    assert path.success
    assert np.abs(path.at(t) - truth).max() <= 1e-9 * np.abs(truth).max()
    z = truth @ expm(-t * system.V).T
    assert np.abs(path.rescaled_at(t) - z).max() <= 1e-8 * np.abs(z).max()


def test_weights_of_any_shape() -> None:
    rng = np.random.default_rng(0)
    for k in (1, 3, 7):
        system = SelfAttention(rng.normal(size=(k, 3)), rng.normal(size=(k, 3)), np.eye(3))
        x = tokens.ball(5, 3, seed=1)
        assert np.abs(integrate(system, x, 1).at(1) - _reference(system, x, 1)).max() < 1e-8


def test_high_dimension() -> None:
    rng = np.random.default_rng(1)
    d = 300
    system = _identity(d, rng.normal(size=(d, d)) / np.sqrt(d))
    x = tokens.box(10, d, 0.2, seed=1)
    path = integrate(system, x, 1.0)
    truth = _reference(system, x, 1.0)
    assert np.abs(path.at(1.0) - truth).max() <= 1e-8 * np.abs(truth).max()


@pytest.mark.parametrize("size", [1e-300, 1e-150, 1e-8, 1e8, 1e150, 1e300])
def test_tokens_of_any_size(size: float) -> None:
    """Scaling x by c is scaling A by 1/c^2: tiny tokens see uniform attention, huge ones argmax."""
    x = np.array([[1, 0.1], [-0.2, 1], [-0.9, -0.8], [0.6, 0.2], [-0.3, 0.6]])
    path = integrate(_identity(2), size * x, 0.5)
    assert path.success and np.isfinite(path.tokens).all()
    z = path.rescaled_at(0.5) / size
    if size < 1e-7:
        mean = x.mean(axis=0)
        expected = mean + (x - mean) * np.exp(-0.5)
    else:
        leader = x[(x @ x.T).argmax(axis=1)]
        expected = leader + (x - leader) * np.exp(-0.5)
    assert np.abs(z - expected).max() < 1e-9


def test_huge_weights_do_not_overflow() -> None:
    x = tokens.box(5, 2, seed=4)
    path = integrate(SelfAttention(1e200 * np.eye(2), 1e150 * np.eye(2), np.eye(2)), x, 0.3)
    assert path.success and np.isfinite(path.tokens).all()
    p = SelfAttention(1e200 * np.eye(2), 1e200 * np.eye(2), np.eye(2)).attention(1e150 * x)
    assert np.abs(p.sum(axis=1) - 1).max() < 1e-12


def test_all_tokens_zero_or_equal() -> None:
    assert np.array_equal(integrate(_identity(2), np.zeros((4, 2)), 2.0).at(2.0), np.zeros((4, 2)))
    x = np.tile([[0.3, -0.2]], (5, 1))
    assert np.abs(integrate(_identity(2), x, 2.0).at(2.0) - np.exp(2) * x).max() < 1e-10


@pytest.mark.parametrize("t", [0.0, 1e-320, 1e-300, 1e-12])
def test_tiny_intervals(t: float) -> None:
    x = tokens.box(4, 2, seed=0)
    path = integrate(_identity(2), x, t)
    assert path.success and path.times[-1] == t
    assert np.abs(path.at(t) - x).max() < 1e-11


def test_dense_output_against_an_independent_run() -> None:
    system = _identity(3, [[0.8, -0.4, 0.1], [0.3, -0.5, 0.2], [0, 0.6, -0.2]])
    x = tokens.box(7, 3, seed=5)
    for method in ("DOP853", "RK45", "LSODA"):
        path = integrate(system, x, 2.0, method=method, rtol=1e-11)
        for t in (0.0, 0.013, 0.77, 1.5, 2.0):
            truth = _reference(system, x, t) if t else x
            assert np.abs(path.at(t) - truth).max() < 2e-8
            assert np.abs(path.attention(t) - system.attention(truth)).max() < 2e-8


def test_kept_times_and_shapes() -> None:
    path = integrate(_identity(2), tokens.box(3, 2, seed=0), 1.0, times=[0.0, 0.25, 1.0])
    assert path.times.tolist() == [0.0, 0.25, 1.0]
    assert path.tokens.shape == path.rescaled.shape == (3, 3, 2)
    assert path.at([0.1, 0.2]).shape == (2, 3, 2) and path.at(0.1).shape == (3, 2)
    assert path.attention(0.3).shape == (3, 3)
    assert path.statistics.steps > 0 and path.statistics.evaluations > path.statistics.steps
    assert 0 < path.statistics.smallest_step <= path.statistics.largest_step <= 1.0


def test_kept_times_do_not_narrow_what_is_known() -> None:
    x = tokens.box(6, 2, 5, seed=0)
    path = integrate(_identity(2), x, 3.0, times=[2.0, 3.0], rtol=1e-4)
    assert path.times.tolist() == [2.0, 3.0] and np.abs(path.at(0.0) - x).max() < 1e-12
    assert path.global_error() > 0
    with pytest.warns(PrecisionWarning):
        early = integrate(_identity(2), x, 3.0, times=[2.9], max_steps=3)
    assert len(early.times) == 0 and np.isfinite(early.at(0.01)).all()
    with pytest.raises(ValueError, match="finite"):
        integrate(_identity(2), x, 10**400)


def test_global_error_is_honest() -> None:
    x = tokens.box(10, 2, seed=1)
    truth = integrate(_identity(2), x, 3.0, rtol=1e-13).rescaled_at(3.0)
    rough = integrate(_identity(2), x, 3.0, rtol=1e-6)
    error = np.abs(rough.rescaled_at(3.0) - truth).max() / np.abs(truth).max()
    assert 0.3 * error < rough.global_error() < 3.0 * error


def test_long_runs_are_in_closed_form() -> None:
    system = _identity(3, np.diag([1, 0.5, 0.2]))
    path = integrate(system, tokens.box(20, 3, 2, seed=1), 1e6)
    assert path.success and path.closed_form_from < 10
    assert np.abs(path.rescaled_at(1e6) - path.rescaled_at(1e3)).max() < 1e-12
    assert len(np.unique(path.rescaled_at(1e6).round(9), axis=0)) == 2
    assert np.isinf(path.at(1e6)).all() and np.isfinite(path.at(100.0)).all()


def _mp_run(x: np.ndarray, rates: list[float], t: float, steps: int) -> np.ndarray:
    """Classical Runge-Kutta in 40 digits with Richardson, z-form, diagonal V, Q = K = I."""

    def velocity(s: mpmath.mpf, z: list[list[mpmath.mpf]]) -> list[list[mpmath.mpf]]:
        growth = [mpmath.exp(r * s) for r in rates]
        y = [[a * g for a, g in zip(row, growth, strict=True)] for row in z]
        out = []
        for i, row in enumerate(y):
            scores = [mpmath.fdot(row, other) for other in y]
            top = max(scores)
            weights = [mpmath.exp(a - top) for a in scores]
            total = mpmath.fsum(weights)
            out.append(
                [
                    rates[c]
                    * mpmath.fsum(
                        w * (other[c] - z[i][c]) for w, other in zip(weights, z, strict=True)
                    )
                    / total
                    for c in range(len(rates))
                ]
            )
        return out

    def moved(z, k, h):
        return [[a + h * b for a, b in zip(p, q, strict=True)] for p, q in zip(z, k, strict=True)]

    def run(count: int) -> list[list[mpmath.mpf]]:
        z = [[mpmath.mpf(float(a)) for a in row] for row in x]
        h = mpmath.mpf(t) / count
        for k in range(count):
            s = k * h
            k1 = velocity(s, z)
            k2 = velocity(s + h / 2, moved(z, k1, h / 2))
            k3 = velocity(s + h / 2, moved(z, k2, h / 2))
            k4 = velocity(s + h, moved(z, k3, h))
            z = [
                [a + h / 6 * (p + 2 * q + 2 * r + w) for a, p, q, r, w in zip(*rows, strict=True)]
                for rows in zip(z, k1, k2, k3, k4, strict=True)
            ]
        return z

    with mpmath.workdps(40):
        coarse, fine = run(steps), run(2 * steps)
        return np.array(
            [
                [float(b + (b - a) / 15) for a, b in zip(p, q, strict=True)]
                for p, q in zip(coarse, fine, strict=True)
            ]
        )


def test_where_precision_ends_the_run_says_so_and_is_right_until_there() -> None:
    """The plain scheme (closed forms off: another method) with V = diag(1, .5, .2) to t = 40."""
    system = _identity(3, np.diag([1, 0.5, 0.2]))
    x = tokens.box(20, 3, 2, seed=1)
    with pytest.warns(PrecisionWarning, match="cannot tell leaders from followers"):
        path = integrate(system, x, 40.0, method="RK45", rtol=1e-9)
    assert path.status == "precision" and not path.success
    assert 20 < path.times[-1] < 37
    exact = integrate(system, x, 40.0)
    assert exact.success
    t = path.times[-1]
    assert np.abs(path.rescaled_at(t) - exact.rescaled_at(t)).max() < 1e-7
    assert path.statistics.rounding < 1e-8


def test_closed_form_against_forty_digits() -> None:
    x = tokens.box(4, 2, 2, seed=7)
    rates = [1.0, 0.5]
    truth = _mp_run(x, rates, 9.0, 400)
    path = integrate(_identity(2, np.diag(rates)), x, 30.0)
    assert path.closed_form_from < 9.0
    assert np.abs(path.rescaled_at(9.0) - truth).max() < 1e-7


def test_failures_become_a_status() -> None:
    x = tokens.box(6, 2, 5, seed=0)
    with pytest.warns(PrecisionWarning, match="larger max_steps"):
        path = integrate(_identity(2), x, 3.0, max_steps=5)
    assert path.status == "max_steps" and path.statistics.steps == 5
    assert 0 < path.times[-1] < 3
    truth = integrate(_identity(2), x, 3.0)
    t = path.times[-1]
    assert np.abs(path.at(t) - truth.at(t)).max() < 1e-8
    # Attention that flips faster than numbers can follow: the collapse of huge tokens.
    with pytest.warns(PrecisionWarning, match=r"Stopped at|does not suffice"):
        path = integrate(_identity(2, -np.eye(2)), 1e6 * x, 1.0)
    assert path.status in ("precision", "step", "max_steps", "unstable")
    assert np.isfinite(path.at(path.times[-1])).all()


class _Blows:
    """dx/dt = x^2: infinite at t = 1."""

    d = 1

    def velocity(self, t: float, x: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return x * x


def test_blow_up_ends_in_a_status() -> None:
    with pytest.warns(PrecisionWarning):
        path = integrate(_Blows(), [[1.0]], 2.0)
    assert path.status in ("step", "max_steps")
    assert 0.99 < path.times[-1] < 1.0 + 1e-9


class _Undefined:
    """A velocity that is not a number from t = 1/2 on."""

    d = 1

    def velocity(self, t: float, x: np.ndarray) -> np.ndarray:
        return np.where(t > 0.5, np.nan, x)


@pytest.mark.parametrize("method", ["DOP853", "RK45", "LSODA", "Radau", "BDF"])
def test_a_velocity_that_ends_ends_in_a_status(method: str) -> None:
    with pytest.warns(PrecisionWarning, match="no acceptable step"):
        path = integrate(_Undefined(), [[1.0]], 2.0, method=method)
    assert path.status == "step" and 0.4 < path.times[-1] <= 0.5 + 1e-12
    assert abs(path.tokens[-1, 0, 0] - np.exp(path.times[-1])) < 1e-3


def test_progress_by_callback_and_bar() -> None:
    seen: list[tuple[float, float]] = []
    integrate(
        _identity(2), tokens.box(4, 2, seed=0), 1.0, progress=lambda t, end: seen.append((t, end))
    )
    assert seen[-1] == (1.0, 1.0) and all(a[0] < b[0] for a, b in itertools.pairwise(seen))

    class Bar:
        total, n = 100, 0.0

        def update(self, step: float) -> None:
            self.n += step

    bar = Bar()
    integrate(_identity(2), tokens.box(4, 2, seed=0), 1.0, progress=bar)
    assert bar.n == pytest.approx(100)


def test_other_dynamics_through_the_same_door() -> None:
    class Decay:
        d = 2

        def velocity(self, t: float, x: np.ndarray) -> np.ndarray:
            return -x

    path = integrate(Decay(), [[1.0, 2.0]], 1.0)
    assert np.abs(path.at(1.0) - [[np.exp(-1), 2 * np.exp(-1)]]).max() < 1e-10
    with pytest.raises(TypeError, match="Decay"):
        path.rescaled_at(1.0)


def test_layers_against_the_plain_loop() -> None:
    system = _identity(3, [[0.8, -0.4, 0.1], [0.3, -0.5, 0.2], [0, 0.6, -0.2]])
    x = tokens.box(5, 3, seed=6)
    path = layers(system, x, 25, 0.2)
    y = x.copy()
    for _ in range(25):
        y = y + 0.2 * system.velocity(0.0, y)
    assert np.abs(path.at(5.0) - y).max() < 1e-11
    back = np.linalg.matrix_power(np.linalg.inv(np.eye(3) + 0.2 * system.V), 25)
    assert np.abs(path.rescaled_at(5.0) - y @ back.T).max() < 1e-9
    half = 0.5 * (path.tokens[3] + path.tokens[4])
    assert np.abs(path.at(0.7) - half).max() < 1e-12
    assert np.abs(path.attention(0.7) - system.attention(path.tokens[3])).max() < 1e-12


def test_layers_rescaled_scheme_of_the_paper() -> None:
    """z[k+1] = z + step sum_j P_ij(R^k z) R^-1 V (z_j - z_i), Remark 3.4, written out."""
    V, step = np.array([[0.7, 0.3], [0.2, 0.4]]), 0.25
    system, x = _identity(2, V), tokens.box(6, 2, seed=8)
    R = np.eye(2) + step * V
    z = x.copy()
    for k in range(12):
        p = system.attention(z @ np.linalg.matrix_power(R, k).T)
        z = z + step * (p @ z - z) @ (np.linalg.inv(R) @ V).T
    assert np.abs(layers(system, x, 12, step).rescaled[-1] - z).max() < 1e-11


def test_layers_singular_step_and_depth_zero() -> None:
    system = _identity(1, [[-1.0]])
    path = layers(system, [[1.0], [2.0]], 3, 1.0)
    assert np.isfinite(path.tokens).all()
    with pytest.raises(ValueError, match="singular"):
        _ = path.rescaled
    assert layers(system, [[1.0]], 0, 0.5).tokens.shape == (1, 1, 1)


def test_weighted_mean_against_long_doubles() -> None:
    rng = np.random.default_rng(0)
    for size in (1e-3, 1.0, 30.0, 1e4):
        x = rng.normal(size=(300, 3)) * size
        y = x.astype(np.longdouble)
        scores = y @ y.T
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        truth = (weights @ y) / weights.sum(axis=1, keepdims=True)
        rounding = 1e-13 + 4e-16 * size**2 * 3  # scores themselves are rounded at this size
        assert np.abs(weighted_mean(x, x, x) - truth).max() <= rounding * size * 10


def test_weighted_mean_holds_no_square() -> None:
    n = 8000
    x = np.random.default_rng(0).normal(size=(n, 2))
    tracemalloc.start()
    weighted_mean(x, x, x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 0.02 * 8 * n * n


def test_import_is_light() -> None:
    code = (
        "import sys, attnlib; bad = {'matplotlib', 'ipywidgets', 'sympy', 'anywidget'} & set(sys.modules);"
        "assert not bad, bad; attnlib.integrate, attnlib.limit; "
        "bad = {'matplotlib', 'ipywidgets', 'sympy', 'anywidget'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_exist() -> None:
    for name in attnlib.__all__:
        assert getattr(attnlib, name) is not None
    assert all(hasattr(attnlib, name) for name in dir(attnlib))
    with pytest.raises(AttributeError, match="no_such"):
        _ = attnlib.no_such


def test_no_warning_in_ordinary_use() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        integrate(_identity(2), tokens.box(5, 2, 5, seed=1), 5.0).tokens.sum()


def test_a_run_stops_where_rounding_would_decide_it() -> None:
    """The third token sits on the bisector of two others: it waits at 0.8925..., unstable, for ever."""
    x = [[1.0, 0.8], [1.0, -0.8], [0.4, 0.0]]
    with pytest.warns(PrecisionWarning, match="exceptional"):
        path = integrate(SelfAttention(np.eye(2), np.eye(2), np.eye(2)), x, 4.0)
    assert path.status == "unstable" and 1.5 < path.times[-1] < 3.0
    assert path.statistics.amplification > 1e6
    assert abs(path.rescaled[-1, 2, 1]) < 1e-3  # what is returned is still right


@pytest.mark.parametrize("d", [1, 2, 3])
def test_generic_data_amplify_little(d: int) -> None:
    eye = np.eye(d)
    for seed in range(20):
        path = integrate(SelfAttention(eye, eye, eye), tokens.box(20, d, seed=seed), 5.0)
        assert path.success and 1.0 <= path.statistics.amplification < 1e4


def test_the_amplification_is_that_of_a_small_difference() -> None:
    """Against the ratio measured between two runs whose data differ by 1e-6."""
    system = SelfAttention(np.eye(2), np.eye(2), np.eye(2))
    x = np.array([[1.0, 0.8], [1.0, -0.8], [0.4, 1e-3]])
    y = x + 1e-8 * np.array([[0, 0], [0, 0], [0.0, 1.0]])
    a, b = integrate(system, x, 2.0), integrate(system, y, 2.0)
    seen = np.abs(a.rescaled_at(2.0) - b.rescaled_at(2.0)).max() / 1e-8
    assert seen / 10 < a.statistics.amplification < 10 * seen


def test_a_rotation_that_contracts_is_not_called_unstable() -> None:
    system = SelfAttention(np.eye(2), np.eye(2), [[-1.0, 2.0], [-2.0, -1.0]])
    path = integrate(system, tokens.box(20, 2, 1.0, seed=1), 300.0)
    assert path.success and path.statistics.amplification < 100.0
