"""Initial data: shapes, sizes, seeds."""

from __future__ import annotations

import doctest

import numpy as np

import attnlib.dynamics
import attnlib.integration
import attnlib.limits
import attnlib.shapes
import attnlib.tokens
from attnlib import tokens


def test_seeds_make_runs_reproducible() -> None:
    for make in (tokens.box, tokens.ball, tokens.sphere):
        assert np.array_equal(make(5, 3, 2.0, seed=1), make(5, 3, 2.0, seed=1))
        assert not np.array_equal(make(5, 3, 2.0, seed=1), make(5, 3, 2.0, seed=2))


def test_where_tokens_are() -> None:
    assert np.abs(tokens.box(2000, 3, 5.0, seed=0)).max() <= 5.0
    assert np.abs(tokens.box(2000, 3, 5.0, seed=0)).max() > 4.9
    radii = np.linalg.norm(tokens.ball(4000, 2, 3.0, seed=0), axis=1)
    assert radii.max() <= 3.0 and abs((radii**2).mean() - 4.5) < 0.15  # uniform in area
    assert np.allclose(np.linalg.norm(tokens.sphere(50, 4, 2.0, seed=0), axis=1), 2.0)
    assert set(tokens.sphere(20, 1, 2.0, seed=0).ravel()) == {-2.0, 2.0}


def test_simplex_is_regular_and_centred() -> None:
    for d in (1, 2, 5, 20):
        x = tokens.simplex(d, 1.5)
        gram = x @ x.T
        assert x.shape == (d + 1, d)
        assert np.abs(gram - 2.25 * np.where(np.eye(d + 1), 1.0, -1.0 / d)).max() < 1e-12
        assert np.abs(x.sum(axis=0)).max() < 1e-12


def test_text_equal_words_equal_places() -> None:
    x = tokens.from_text("To be, or not to be", 3, radius=2.0)
    assert x.shape == (6, 3) and np.array_equal(x[0], x[4]) and np.array_equal(x[1], x[5])
    assert not np.allclose(x[0], x[1]) and np.allclose(np.linalg.norm(x, axis=1), 2.0)


def test_docstrings_run() -> None:
    for module in (
        attnlib.dynamics,
        attnlib.integration,
        attnlib.limits,
        attnlib.shapes,
        attnlib.tokens,
    ):
        result = doctest.testmod(module)
        assert result.attempted > 0 and result.failed == 0
