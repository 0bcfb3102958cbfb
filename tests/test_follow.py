"""The follower law by itself: gaps as sums of exponentials, their radii, zeros and certificate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attnlib import SelfAttention, tokens
from attnlib._follow import Following, Modes, all_pairs, gaps, regroup
from attnlib._frame import Frame
from attnlib.shapes import hull_vertices

LEADER_OF = np.array([0, 0, 2, 2, 0, 2, 0, 7])


def _matrix(kind: str, rng: np.random.Generator) -> np.ndarray:
    if kind == "diagonal":
        return np.diag([1.0, 0.5, -0.3])
    if kind == "paranormal":
        s = rng.normal(size=(3, 3)) + 2 * np.eye(3)
        return s @ np.diag([1.0, 1.0, 0.4]) @ np.linalg.inv(s)
    return np.array([[1.0, 0.2, 0], [0, 0.3, -0.5], [0, 0.5, 0.3]])  # a complex pair below 1


def _state(kind: str, seed: int) -> tuple[SelfAttention, Following]:
    rng = np.random.default_rng(seed)
    system = SelfAttention(rng.normal(size=(3, 3)), rng.normal(size=(3, 3)), _matrix(kind, rng))
    x = tokens.box(8, 3, 2, seed=rng)
    modes = Modes(system, Frame(system, x))
    y = np.ldexp(x, -modes.exponent) @ modes.left.T
    followers = (np.arange(8) != LEADER_OF)[:, None]
    t0 = 0.4
    state = Following(
        modes,
        t0,
        LEADER_OF,
        y[LEADER_OF] * np.exp(-modes.values * t0),
        np.where(followers, y - y[LEADER_OF], 0.0),
        np.zeros(8),
        np.zeros(3),
        np.zeros((8, 3)),
    )
    return system, state


def _direct(system: SelfAttention, state: Following, t: float) -> np.ndarray:
    """Gaps of all pairs at time t, from the tokens themselves."""
    x = state.tokens(t)
    scores = x @ system.A @ x.T
    i, j = all_pairs(state)
    return scores[i, state.leader_of[i]] - scores[i, j]


KINDS = ["diagonal", "paranormal", "complex pair"]


@pytest.mark.parametrize("kind", KINDS)
def test_gaps_are_the_differences_of_scores(kind: str) -> None:
    for seed in range(5):
        system, state = _state(kind, seed)
        g = gaps(state, all_pairs(state))
        for s in (0.0, 0.3, 2.0):
            value = (g.c * np.exp(g.mu * s)).sum(axis=1).real * np.exp(g.log)
            true = _direct(system, state, state.time + s)
            assert np.abs(value - true).max() < 1e-11 * np.abs(true).max()


@pytest.mark.parametrize("kind", KINDS)
def test_radii_hold_every_state_within(kind: str) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        _, state = _state(kind, seed)
        followers = (state.leader_of != np.arange(8))[:, None]
        eps, eps_offset = np.full(3, 0.05), np.where(followers, 0.1, 0.0) * np.ones(3)
        g = gaps(replace(state, eps=eps, eps_offset=eps_offset), all_pairs(state))
        reached = np.zeros(g.c.shape)
        for _ in range(60):
            sign = rng.choice([-1.0, 1.0], size=(8, 3))
            shaken = replace(
                state,
                pi=(state.pi + (sign * eps)[state.leader_of]),
                offset=state.offset + rng.choice([-1.0, 1.0], size=(8, 3)) * eps_offset,
            )
            moved = np.abs(gaps(shaken, all_pairs(state)).c - g.c)
            assert (moved <= g.kappa * (1 + 1e-9) + 1e-12).all()
            reached = np.maximum(reached, moved / (g.kappa + 1e-300))
        assert reached.max() > 0.5  # the radii are not idle either


@pytest.mark.parametrize("kind", KINDS)
def test_certified_gaps_grow_and_first_zeros_are_first(kind: str) -> None:
    certified = closed = 0
    grid = np.linspace(0.0, 12.0, 4001)
    for seed in range(12):
        _, state = _state(kind, seed)
        g = gaps(state, all_pairs(state))
        ok, least, growth = g.certify(0.0, 0.0)
        values = np.einsum("pm,sm->ps", g.c, np.exp(np.outer(grid, g.mu))).real
        factor = np.exp(g.log)[:, None]
        rising = np.diff(values[ok] * factor[ok], axis=1) / np.diff(grid)
        assert (values[ok, 0] * factor[ok, 0] >= least[ok] - 1e-9).all()
        assert (rising >= growth[ok, None] * (1 - 1e-6) - 1e-6).all()
        certified += int(ok.sum())
        zeros = g.first_zeros(12.0)
        for k in np.flatnonzero(values[:, 0] > 0.0):
            negative = np.flatnonzero(values[k] < 0.0)
            if len(negative):
                m = int(negative[0])
                assert grid[m - 1] - 1e-6 <= zeros[k] <= grid[m] + 1e-6
                closed += 1
            else:
                assert zeros[k] > 11.9
    assert certified >= 40 and closed >= 20


@pytest.mark.parametrize("kind", KINDS)
def test_regrouping_moves_no_token(kind: str) -> None:
    for seed in range(5):
        _, state = _state(kind, seed)
        before = state.tokens(1.1)
        after = regroup(state, 1.1, np.array([1, 1, 2, 1, 1, 2, 1, 2]))
        assert np.abs(after.tokens(1.1) - before).max() < 1e-12 * np.abs(before).max()
        assert np.array_equal(after.leaders, [1, 2])
        # From there on followers keep their distance to the new leader.
        apart = after.tokens(3.0) - after.tokens(3.0)[after.leader_of]
        then = before - before[after.leader_of]
        assert np.abs(apart - then).max() < 1e-9 * np.abs(after.tokens(3.0)).max()


def test_hull_vertices_in_high_dimension() -> None:
    corners = tokens.sphere(30, 12, seed=0)
    weights = np.random.default_rng(1).dirichlet(np.ones(30), size=10)
    cloud = np.vstack([weights @ corners, corners])
    assert np.array_equal(hull_vertices(cloud), np.arange(10, 40))
