"""The structure of theory.md, section 2: what holds without any theorem, line by line."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm

from attnlib import SelfAttention, integrate, layers, tokens

ROUNDS = settings(max_examples=15, deadline=None, derandomize=True)
SEEDS = st.integers(0, 10_000)
SHAPES = st.tuples(st.integers(1, 7), st.integers(1, 4))
T = 1.5


def _random(seed: int, n: int, d: int) -> tuple[SelfAttention, np.ndarray, np.random.Generator]:
    rng = np.random.default_rng(seed)
    k = int(rng.integers(1, d + 2))
    q, key, v = rng.normal(size=(k, d)), rng.normal(size=(k, d)), rng.normal(size=(d, d))
    return SelfAttention(0.6 * q, 0.6 * key, 0.7 * v), rng.normal(size=(n, d)), rng


def _end(system: SelfAttention, start: np.ndarray, t: float = T) -> np.ndarray:
    return integrate(system, start, t).at(t)


def _close(a: np.ndarray, b: np.ndarray, tolerance: float = 1e-8) -> bool:
    return bool(np.abs(a - b).max() <= tolerance * max(1.0, np.abs(b).max()))


@ROUNDS
@given(SEEDS, SHAPES)
def test_permutation(seed: int, shape: tuple[int, int]) -> None:
    system, x, rng = _random(seed, *shape)
    order = rng.permutation(len(x))
    assert _close(_end(system, x[order]), _end(system, x)[order])


@ROUNDS
@given(SEEDS, SHAPES)
def test_equal_tokens_stay_equal_and_distinct_stay_distinct(
    seed: int, shape: tuple[int, int]
) -> None:
    system, x, _ = _random(seed, *shape)
    end = _end(system, np.vstack([x, x[:1]]))
    assert np.array_equal(end[-1], end[0])
    gaps = np.linalg.norm(end[:-1, None] - end[None, :-1], axis=2) + np.eye(len(x))
    assert gaps.min() > 0


@ROUNDS
@given(SEEDS, SHAPES)
def test_change_of_coordinates(seed: int, shape: tuple[int, int]) -> None:
    system, x, rng = _random(seed, *shape)
    m = rng.normal(size=(system.d, system.d)) + 2.0 * np.eye(system.d)
    back = np.linalg.inv(m)
    other = SelfAttention(system.Q @ back, system.K @ back, m @ system.V @ back)
    assert _close(_end(other, x @ m.T), _end(system, x) @ m.T, 1e-6)


@ROUNDS
@given(SEEDS, SHAPES, st.sampled_from([-3.0, 0.25, 7.0]))
def test_scaling_of_space_and_time(seed: int, shape: tuple[int, int], c: float) -> None:
    system, x, _ = _random(seed, *shape)
    smaller = SelfAttention(system.Q / c, system.K / c, system.V)
    assert _close(_end(smaller, c * x), c * _end(system, x))
    a = abs(c)
    faster = SelfAttention(system.Q, system.K, a * system.V)
    assert _close(_end(faster, x, T / a), _end(system, x))


@ROUNDS
@given(SEEDS)
def test_not_translation_invariant(seed: int) -> None:
    system, x, rng = _random(seed, 5, 3)
    b = rng.normal(size=3)
    moved = system.attention(x + b)
    scores = x @ system.A @ x.T + (b @ system.A @ x.T)[None, :] + np.zeros((5, 1))
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    # The shift adds <Qb, Kx_j>, which depends on j; what depends on i alone cancels.
    assert np.abs(moved - weights).max() < 1e-12
    assert np.abs(moved - system.attention(x)).max() > 1e-3


@ROUNDS
@given(SEEDS, SHAPES)
def test_symmetric_configurations_stay_symmetric(seed: int, shape: tuple[int, int]) -> None:
    system, x, _ = _random(seed, *shape)
    end = _end(system, np.vstack([x, -x]), 1.0)
    assert _close(end[: len(x)], -end[len(x) :])


@ROUNDS
@given(SEEDS, SHAPES)
def test_left_eigenvector_coordinates_are_monotone(seed: int, shape: tuple[int, int]) -> None:
    system, x, _ = _random(seed, *shape)
    values, vectors = np.linalg.eig(system.V.T)
    path = integrate(system, x, T)
    for lam, w in zip(values, vectors.T, strict=True):
        if abs(lam.imag) > 1e-12:
            continue
        c = path.tokens @ w.real * np.exp(-lam.real * path.times)[:, None]
        slack = 1e-9 * np.abs(c).max()
        upper, lower = np.diff(c.max(axis=1)), np.diff(c.min(axis=1))
        if lam.real > 0:
            assert upper.max() <= slack and lower.min() >= -slack
        else:
            assert upper.min() >= -slack and lower.max() <= slack


@ROUNDS
@given(SEEDS, st.integers(2, 8), st.integers(1, 3))
def test_hull_shrinks_for_v_identity(seed: int, n: int, d: int) -> None:
    system, x, rng = _random(seed, n, d)
    path = integrate(SelfAttention(system.Q, system.K, np.eye(d)), x, 2.0)
    directions = rng.normal(size=(d, 60))
    support = (path.rescaled @ directions).max(axis=1)
    assert np.diff(support, axis=0).max() <= 1e-9 * np.abs(x).max()


@ROUNDS
@given(SEEDS, st.integers(2, 8))
def test_line_keeps_order_and_gaps_grow(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    x = np.sort(rng.normal(size=n))[:, None]
    path = integrate(SelfAttention(rng.uniform(0.3, 2), 1, rng.uniform(0.3, 1.5)), x, 1.5)
    gaps = np.diff(path.tokens[:, :, 0], axis=1)
    assert gaps.min() > 0
    assert np.diff(gaps, axis=0).min() >= -1e-9 * np.abs(path.tokens).max()


@ROUNDS
@given(SEEDS, st.integers(1, 6), st.integers(1, 3), st.sampled_from([-1.0, 1.0]))
def test_energy(seed: int, n: int, d: int, sign: float) -> None:
    rng = np.random.default_rng(seed)
    system = SelfAttention(np.eye(d), np.eye(d), sign * np.eye(d))
    path = integrate(system, rng.normal(size=(n, d)), 0.8)

    def energy(t: float) -> float:
        x = path.at(t)
        return float(np.exp(x @ x.T).sum())

    t, h = 0.4, 1e-4
    x = path.at(t)
    z = np.exp(x @ x.T).sum(axis=1)
    expected = 2.0 * sign * (z * (system.velocity(t, x) ** 2).sum(axis=1)).sum()
    measured = (energy(t + h) - energy(t - h)) / (2 * h)
    assert abs(measured - expected) <= 1e-5 * max(1.0, abs(expected), energy(t))
    values = np.array([energy(t) for t in np.linspace(0, 0.8, 20)])
    assert (sign * np.diff(values)).min() >= -1e-9 * values.max()


@ROUNDS
@given(SEEDS, st.integers(1, 4))
def test_one_token_moves_by_the_exponential(seed: int, d: int) -> None:
    system, x, _ = _random(seed, 1, d)
    assert _close(_end(system, x), x @ expm(T * system.V).T)


@ROUNDS
@given(SEEDS, SHAPES)
def test_only_the_score_form_matters(seed: int, shape: tuple[int, int]) -> None:
    system, x, _ = _random(seed, *shape)
    other = SelfAttention(np.eye(system.d), system.A, system.V)
    assert _close(_end(other, x), _end(system, x))
    p = system.attention(x / 4)
    assert np.abs(p.sum(axis=1) - 1).max() < 1e-13 and p.min() > 0


@ROUNDS
@given(SEEDS, st.integers(1, 6), st.integers(1, 3))
def test_rescaled_equation(seed: int, n: int, d: int) -> None:
    """dz_i/dt = sum_j P_ij V (z_j - z_i), by differences of the computed z."""
    system, x, _ = _random(seed, n, d)
    path = integrate(system, x, 1.0)
    t, h = 0.5, 1e-4
    slope = (path.rescaled_at(t + h) - path.rescaled_at(t - h)) / (2 * h)
    z = path.rescaled_at(t)
    expected = (path.attention(t) @ z - z) @ system.V.T
    assert np.abs(slope - expected).max() < 1e-5 * max(1.0, np.abs(z).max())


def test_layers_converge_at_first_order() -> None:
    system = SelfAttention(np.eye(2), np.eye(2), [[0.6, 0.3], [-0.1, -0.4]])
    x = tokens.box(8, 2, seed=3)
    exact = _end(system, x, 1.0)
    errors = [
        np.abs(layers(system, x, depth, 1.0 / depth).at(1.0) - exact).max()
        for depth in (40, 80, 160)
    ]
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.abs(orders - 1.0).max() < 0.05
