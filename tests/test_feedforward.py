"""Attention with a feed-forward layer: the equation, its bounds, the common interface, errors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from attnlib import (
    FeedForward,
    PrecisionWarning,
    SelfAttention,
    integrate,
    limit,
    plotting,
    shape_of,
    tokens,
)
from attnlib.dynamics import Dynamics

I2 = np.eye(2)
GOOD = np.array([[0.64709742, 0.81911926], [0.61210449, 0.63263484]])
ROUNDS = settings(max_examples=20, deadline=None, derandomize=True)


def _by_hand(
    A: np.ndarray, V: np.ndarray, W: np.ndarray, sigma: object, t: float, z: np.ndarray
) -> np.ndarray:
    """The equation, token by token."""
    x, out = [expm(t * V) @ zi for zi in z], np.zeros_like(z)
    for i in range(len(z)):
        weights = np.array([np.exp(x[i] @ A @ xj) for xj in x])
        weights /= weights.sum()
        pull = sum(p * (zj - z[i]) for p, zj in zip(weights, z, strict=True))
        out[i] = W @ sigma(V @ pull)  # type: ignore[operator]
    return out


@ROUNDS
@given(st.integers(0, 10_000), st.sampled_from(["relu", "tanh"]))
def test_velocity_is_the_equation(seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    n, d, k = (int(m) for m in rng.integers(1, 5, size=3))
    Q, K = rng.normal(size=(2, k, d))
    V, W = rng.normal(size=(2, d, d))
    z, t = rng.normal(size=(n, d)), float(rng.uniform(0, 1.5))
    sigma = {"relu": lambda y: np.where(y > 0, y, 0), "tanh": np.tanh}[name]
    wanted = _by_hand(Q.T @ K, V, W, sigma, t, z)
    for activation in (name, sigma):
        got = FeedForward(Q, K, V, W, activation).velocity(t, z)
        assert np.abs(got - wanted).max() <= 1e-11 * max(1.0, np.abs(wanted).max())


@pytest.mark.parametrize("V", [GOOD, np.diag([1.0, -0.5]), np.array([[1.0, 1.0], [0.0, 1.0]])])
def test_without_a_nonlinearity_it_is_self_attention(V: np.ndarray) -> None:
    x = tokens.box(12, 2, 2, seed=4)
    plain = integrate(SelfAttention(I2, I2, V), x, 4)
    path = integrate(FeedForward(I2, I2, V, I2, "identity"), x, 4)
    z = path.at(4.0)
    assert np.abs(z - plain.rescaled_at(4.0)).max() < 1e-8 * np.abs(z).max()
    assert np.abs(path.system.attention(z, 4.0) - plain.attention(4.0)).max() < 1e-7


@ROUNDS
@given(st.integers(0, 10_000))
def test_relu_coordinates_only_rise_and_their_maxima_stay(seed: int) -> None:
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 4))
    Q, K = rng.normal(size=(2, d, d))
    x = rng.normal(size=(6, d))
    z = integrate(FeedForward(Q, K, np.eye(d), np.eye(d), "relu"), x, 1.5, rtol=1e-7).tokens
    assert np.diff(z, axis=0).min() >= -1e-7
    assert np.abs(z.max(axis=1) - x.max(axis=0)).max() < 1e-6
    assert np.abs(z[-1] - x).max() > 1e-3


@ROUNDS
@given(st.integers(0, 10_000))
def test_tanh_box_shrinks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 4))
    Q, K = rng.normal(size=(2, d, d))
    x = rng.normal(size=(6, d))
    z = integrate(FeedForward(Q, K, np.eye(d), np.eye(d), "tanh"), x, 1.5, rtol=1e-8).tokens
    assert np.diff(z.max(axis=1), axis=0).max() <= 1e-8
    assert np.diff(z.min(axis=1), axis=0).min() >= -1e-8
    assert (np.ptp(z[-1], axis=0) < np.ptp(x, axis=0) - 1e-3).any()


def test_tanh_keeps_the_two_lines_of_a_good_triple() -> None:
    x = tokens.box(20, 2, 5, seed=3)
    z = integrate(FeedForward(I2, I2, GOOD, I2, "tanh"), x, 8).at(8.0)
    found = shape_of(z)
    assert found.kind == "parallel hyperplanes" and len(found.clusters) == 2
    values, vectors = np.linalg.eig(GOOD.T)
    left = vectors[:, values.real.argmax()].real
    assert abs(found.directions[0] @ left) < 1e-2
    assert np.abs(z).max() > 5  # and nothing collapses


def test_depth_without_end() -> None:
    """Scores overflow long before t = 2000; limits do not."""
    x = tokens.box(20, 2, 5, seed=3)
    path = integrate(FeedForward(I2, I2, I2, I2, "tanh"), x, 2000)
    assert path.success and np.isfinite(path.at(2000.0)).all()
    assert shape_of(path.at(2000.0)).kind == "polytope"


def test_a_run_ends_where_rounding_would_decide() -> None:
    x = tokens.box(20, 2, 5, seed=3)
    with pytest.warns(PrecisionWarning, match="rounding would decide"):
        path = integrate(FeedForward(I2, I2, GOOD, I2, "tanh"), x, 15)
    assert path.status == "step" and 5 < path.times[-1] < 15
    assert np.isfinite(path.tokens).all()


def test_interface() -> None:
    system = FeedForward(I2, I2, I2, I2, "tanh")
    assert isinstance(system, Dynamics) and system.d == 2
    path = integrate(system, tokens.box(9, 2, 5, seed=3), 2)
    plotting.paths(path, rescaled=False)
    plotting.hulls(path, [0, 2], rescaled=False)
    plotting.plt.close("all")
    with pytest.raises(TypeError, match=r"system must be a SelfAttention: got FeedForward\."):
        limit(system, path.tokens[0])
    with pytest.raises(TypeError, match="needs the depth"):
        path.attention(1.0)
    with pytest.raises(TypeError, match=r"Use \.tokens and \.at"):
        path.rescaled_at(1.0)
    rows = system.attention(path.at(1.0), 1.0).sum(axis=1)
    assert np.allclose(rows, 1)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((I2, I2, I2, np.eye(3), "relu"), ValueError, r"W must have the shape of V, \(2, 2\)"),
        ((I2, I2, I2, np.ones((2, 3)), "relu"), ValueError, "W must be square"),
        ((I2, np.eye(3), I2, I2, "relu"), ValueError, "Q and K must have the same shape"),
        ((I2, I2, np.eye(3), I2, "relu"), ValueError, "V must act on tokens of dimension 2"),
        ((I2, I2, I2, [[np.nan, 0], [0, 1]], "relu"), ValueError, "W must be finite"),
        ((I2, I2, I2, I2, "gelu"), ValueError, "one of relu, tanh, identity, or a function"),
        ((I2, I2, I2, I2, 3), TypeError, "or a function: got int"),
        ((I2, I2, I2, I2, np.sum), ValueError, "activation must keep the shape"),
        ((I2, I2, I2, I2, lambda y: y > 0), TypeError, "activation must return real numbers"),
    ],
)
def test_errors_name_the_argument(arguments: tuple, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        FeedForward(*arguments)


def test_weights_are_not_to_be_changed() -> None:
    system = FeedForward(1, 1, 1, 2, "relu")
    with pytest.raises(ValueError, match="read-only"):
        system.W[0, 0] = 1.0
    assert "FeedForward(" in repr(system) and "relu" in repr(system)


LEFT = np.array([0.46618891, 0.53381109])  # phi_1* of GOOD, entries sum to 1
RATES = np.sort(np.linalg.eigvals(GOOD).real)


@pytest.mark.parametrize("seed", range(4))
def test_relu_gathers_one_half(seed: int) -> None:
    x = tokens.box(20, 2, 5, seed=seed)
    z = integrate(FeedForward(I2, I2, GOOD, I2, "relu"), x, 3.5, rtol=1e-6).at(3.5)
    up = limit(SelfAttention(I2, I2, GOOD), x).points @ LEFT > 0
    c = z @ LEFT
    assert np.ptp(c[up]) < 0.05 * np.ptp(c) < np.ptp(c[~up])
    still = np.abs(z - x)[~up].max(axis=1) < 1e-3
    assert still.mean() >= 0.5


def test_a_pair_climbs_by_the_law_of_sliding() -> None:
    along = np.array([LEFT[1], -LEFT[0]]) / np.linalg.norm(LEFT)
    middle = np.array([1.0, 1.5]) * 2 / (np.array([1.0, 1.5]) @ LEFT)
    pair = [middle - 0.8 * along, middle + 0.8 * along]
    path = integrate(FeedForward(I2, I2, GOOD, I2, "relu"), pair, 4, rtol=1e-7)
    rate = -RATES[0]

    def law(t: float, state: np.ndarray) -> list[float]:
        _, kappa, s = state
        q = 1 / (1 + np.exp(s / 2))
        return [q * rate * kappa, q * rate * kappa, -2 * rate * (1 - q) * s]

    z = path.at(2.0)
    apart = z[1] - z[0]
    start = [(z @ LEFT).mean(), LEFT[0] * abs(apart[0]), ((expm(2 * GOOD) @ apart) ** 2).sum()]
    told = solve_ivp(law, (2, 4), start, rtol=1e-9).y[0, -1] - start[0]
    seen = (path.at(4.0) @ LEFT).mean() - start[0]
    assert seen > 0.02 and abs(told / seen - 1) < 0.08


class _Before:
    """The layer before rescaling, dx_i/dt = W sigma(V sum_j P_ij x_j)."""

    d = 2

    def __init__(self, W: np.ndarray, sigma: Callable[[np.ndarray], np.ndarray]) -> None:
        self.W, self.sigma = W, sigma
        self.attend = SelfAttention(I2, I2, GOOD)

    def velocity(self, t: float, x: np.ndarray) -> np.ndarray:
        return self.sigma(self.attend.velocity(t, x)) @ self.W.T


@pytest.mark.parametrize("seed", range(6))
def test_before_rescaling_collapses_when_growth_is_slow(seed: int) -> None:
    W = np.random.default_rng(seed).uniform(-1, 1, (2, 2))
    x = tokens.box(20, 2, 5, seed=3)
    path = integrate(_Before(W, lambda y: np.maximum(y, 0)), x, 5, rtol=1e-6)
    c = np.exp(-RATES[1] * 5) * path.at(5.0) @ LEFT
    growth = np.log(np.abs(path.at(5.0)).max() / np.abs(path.at(3.0)).max()) / 2
    assert growth < 0.9 * RATES[1] and np.abs(c).max() < 0.25 * np.abs(x @ LEFT).max()


def test_bounds_before_rescaling() -> None:
    """A bounded activation moves tokens linearly; non-negative data never meet the ReLU."""
    x = tokens.box(20, 2, 5, seed=3)
    W = np.array([[0.3, -1.0], [0.8, 0.4]])
    moved = integrate(_Before(W, np.tanh), x, 4, rtol=1e-7).at(4.0) - x
    size = np.linalg.norm(moved, axis=1).max()
    assert 1 < size <= np.sqrt(2) * np.linalg.norm(W, 2) * 4
    kept = integrate(_Before(I2, lambda y: np.maximum(y, 0)), np.abs(x), 2).at(2.0)
    plain = integrate(SelfAttention(I2, I2, GOOD), np.abs(x), 2).at(2.0)
    assert np.abs(kept / plain - 1).max() < 1e-7
