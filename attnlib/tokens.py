"""Initial data. Tokens are rows: every function returns an (n, d) float64 array."""

from __future__ import annotations

import re
import zlib

import numpy as np

from ._check import FloatArray, as_count, as_number

Seed = int | np.random.Generator | None


def box(n: int, d: int, half_width: float = 1.0, seed: Seed = None) -> FloatArray:
    """n tokens uniform in the box [-half_width, half_width]^d (the paper: half_width 5).

    >>> box(3, 2, half_width=5, seed=1).shape
    (3, 2)
    """
    n, d, half_width = _sizes(n, d, "half_width", half_width)
    return np.random.default_rng(seed).uniform(-half_width, half_width, size=(n, d))


def ball(n: int, d: int, radius: float = 1.0, seed: Seed = None) -> FloatArray:
    """n tokens uniform in the ball of the given radius."""
    n, d, radius = _sizes(n, d, "radius", radius)
    rng = np.random.default_rng(seed)
    return sphere(n, d, radius, rng) * rng.uniform(size=(n, 1)) ** (1.0 / d)


def sphere(n: int, d: int, radius: float = 1.0, seed: Seed = None) -> FloatArray:
    """n tokens uniform on the sphere of the given radius in R^d (for d = 1: two points)."""
    n, d, radius = _sizes(n, d, "radius", radius)
    normal = np.random.default_rng(seed).standard_normal((n, d))
    return radius * normal / np.linalg.norm(normal, axis=1, keepdims=True)


def simplex(d: int, radius: float = 1.0) -> FloatArray:
    """The d + 1 vertices of a regular simplex in R^d, centred at 0, of the given radius.

    >>> x = simplex(3)
    >>> bool(abs(x @ x.T - np.where(np.eye(4), 1, -1 / 3)).max() < 1e-12)
    True
    """
    _, d, radius = _sizes(1, d, "radius", radius)
    centred = np.eye(d + 1) - 1.0 / (d + 1)
    # The first d left singular vectors span the hyperplane that the simplex lives in.
    basis = np.linalg.svd(centred)[0][:, :d]
    points = centred @ basis
    return radius * points / np.linalg.norm(points, axis=1, keepdims=True)


def from_text(text: str, d: int, radius: float = 1.0, seed: int = 0) -> FloatArray:
    """One token per word of a text, equal words at equal places, on a sphere in R^d.

    The places are pseudo-random (a hash of the word and the seed), not a trained embedding: good
    for following words through depth, with no meaning of its own.

    >>> from_text("to be or not to be", d=3).shape
    (6, 3)
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be a string: got {type(text).__name__}.")
    words = re.findall(r"\w+", text.lower())
    if not words:
        raise ValueError(f"text must hold at least one word: got {text!r}.")
    seed = as_count("seed", seed)
    return np.vstack(
        [sphere(1, d, radius, np.random.default_rng([seed, zlib.crc32(w.encode())])) for w in words]
    )


def _sizes(n: int, d: int, name: str, size: float) -> tuple[int, int, float]:
    return (
        as_count("n", n, at_least=1),
        as_count("d", d, at_least=1),
        as_number(name, size, above=0),
    )
