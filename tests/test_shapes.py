"""shape_of: finds what is there, at any scale and noise, and says when nothing is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attnlib import SelfAttention, integrate, limit, shape_of, tokens
from attnlib.shapes import hull_vertices

NOISES = [0.0, 1e-12, 1e-6, 1e-3, 1e-2]
PAPER = json.loads((Path(__file__).parent / "data" / "paper_figures.json").read_text())
CORNERS = np.array([[1, 1, 0.2], [-1, 1.2, 0], [-1, -1, 0.5], [1, -0.9, -1], [0.1, 0.2, 2]])


def _rotation(rng: np.random.Generator, d: int = 3) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((d, d)))[0]


def _blur(x: np.ndarray, noise: float, rng: np.random.Generator) -> np.ndarray:
    return (x + noise * rng.standard_normal(x.shape)) * 10.0 ** rng.integers(-8, 9)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("seed", range(3))
def test_each_shape_at_any_noise_and_scale(noise: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, turn = 40, _rotation(rng)
    spread = rng.uniform(-3, 3, size=(n, 3))

    found = shape_of(_blur(CORNERS[rng.integers(0, 5, n)] @ turn, noise, rng))
    assert (found.kind, len(found.clusters), len(found.vertices)) == ("polytope", 5, 5)

    levels = rng.choice([-1.0, 0.3, 2.0], n)
    planes = np.column_stack([levels, spread[:, 1:]]) @ turn
    found = shape_of(_blur(planes, noise, rng))
    assert (found.kind, len(found.clusters), found.codimension) == ("parallel hyperplanes", 3, 1)
    assert np.abs(found.directions @ turn[0]).max() < 30 * noise + 1e-9
    assert len(set(zip(found.label, levels, strict=True))) == 3

    lines = np.column_stack([rng.choice([-1.0, 1.0], n), np.zeros(n), spread[:, 2]]) @ turn
    found = shape_of(_blur(lines, noise, rng))
    assert (found.kind, len(found.clusters), found.codimension) == ("parallel subspaces", 2, 2)

    four = np.column_stack([CORNERS[rng.integers(0, 4, n), :2], spread[:, 2]]) @ turn
    found = shape_of(_blur(four, noise, rng))
    assert (found.kind, len(found.vertices)) == ("polytope x subspace", 4)
    assert found.codimension == 2 and found.residual < 10 * noise + 1e-9

    row = np.outer(rng.choice([-1.0, 0.2, 2.0], n), turn[0])
    found = shape_of(_blur(row, noise, rng))
    assert len(found.clusters) == 3
    assert found.kind == "points on a line" or noise > 0


def test_nothing_where_there_is_nothing() -> None:
    wrong = 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        n, d = int(rng.choice([10, 15, 20, 40, 100, 300])), int(rng.integers(1, 7))
        cloud = rng.standard_normal((n, d)) if seed % 2 else rng.uniform(-1, 1, (n, d))
        wrong += shape_of(cloud).kind != "none"
    assert wrong <= 1


def test_one_point_and_known_noise() -> None:
    rng = np.random.default_rng(0)
    tight = 5.0 + 1e-6 * rng.standard_normal((20, 3))
    assert shape_of(tight, noise=5e-6).kind == "point"
    assert shape_of(tight).kind == "none"  # a small cloud is a cloud, unless its noise is known
    assert shape_of(np.full((7, 2), 0.1)).kind == "point"
    two = np.repeat([[0.0, 0.0], [1.0, 0.0]], 10, axis=0) + 1e-3 * rng.standard_normal((20, 2))
    assert len(shape_of(two, noise=2e-3).clusters) == 2


def test_single_exceptional_tokens() -> None:
    rng = np.random.default_rng(1)
    x = np.vstack([CORNERS[rng.integers(0, 3, 30)], [[0.2, 0.1, 0.3]]])
    found = shape_of(x + 1e-5 * rng.standard_normal(x.shape))
    assert len(found.clusters) == 4 and (found.label == found.label[-1]).sum() == 1


@pytest.mark.parametrize(
    ("name", "t", "kind"),
    [
        ("hyperplanes_2d", 6.0, "parallel hyperplanes"),
        ("mixed", 8.0, "polytope x subspace"),
    ],
)
def test_recognised_in_finite_runs_of_the_paper(name: str, t: float, kind: str) -> None:
    """Clouds z(t) at a finite depth, as another simulator would give them."""
    setting = PAPER[name]
    V, d = np.array(setting["V"], dtype=float), setting["d"]
    system = SelfAttention(np.eye(d), np.eye(d), V)
    found = shape_of(integrate(system, tokens.box(setting["n"], d, 5, seed=3), t).rescaled_at(t))
    assert found.kind == kind
    exact = limit(system, tokens.box(setting["n"], d, 5, seed=3)).shape
    assert exact.kind == kind and len(exact.clusters) == len(found.clusters)


def test_polytope_in_a_finite_run() -> None:
    system, x = SelfAttention(np.eye(2), np.eye(2), np.eye(2)), tokens.box(40, 2, 5, seed=3)
    found = shape_of(integrate(system, x, 8.0).rescaled_at(8.0))
    exact = limit(system, x)
    assert found.kind == "polytope" and len(found.clusters) == len(exact.leaders)


def test_hull_vertices_of_any_rank() -> None:
    square = np.array([[0, 0], [1, 0], [1, 1], [0, 1], [0.5, 0.5], [0.5, 0.0]])
    assert hull_vertices(square).tolist() == [0, 1, 2, 3]
    flat = np.column_stack([square, square[:, 0] + square[:, 1]])
    assert hull_vertices(flat).tolist() == [0, 1, 2, 3]
    assert hull_vertices(np.outer([0, 3, 1, 2], [1, 2])).tolist() == [0, 1]
    assert hull_vertices(np.zeros((3, 2))).tolist() == [0]
    simplex = tokens.simplex(20)
    assert len(hull_vertices(np.vstack([simplex, simplex.mean(axis=0)]))) == 21


def test_words() -> None:
    assert str(shape_of([[0, 0], [1, 0], [0, 1]] * 3)) == "polytope with 3 vertices, 3 limit points"
    assert str(shape_of(np.random.default_rng(0).normal(size=(20, 2)))) == "no shape found"
    with pytest.raises(ValueError, match="points"):
        shape_of(np.zeros((0, 2)))
    with pytest.raises(ValueError, match="noise"):
        shape_of([[1.0, 2.0]], noise=-1)
