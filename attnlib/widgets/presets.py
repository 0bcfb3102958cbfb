"""Named settings of the live figure, one for each theorem, and the tokens that a seed gives.

The generator is mulberry32, written here and in `view.js` alike: a seed gives the same tokens in
Python, in a notebook and on the static page.
"""

from __future__ import annotations

from typing import Any

from attnlib._check import as_count

_I2 = [[1.0, 0.0], [0.0, 1.0]]
_I3 = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]


def _preset(V: list[list[float]], **rest: Any) -> dict[str, Any]:
    eye = [[1.0 if i == j else 0.0 for j in range(len(V))] for i in range(len(V))]
    return {"V": V, "Q": eye, "K": eye, "n": 20, "seed": 1, "half_width": 2.0, **rest}


#: What a name stands for: weights, number of tokens, seed, half-width of their box.
PRESETS: dict[str, dict[str, Any]] = {
    "Vertices (3.1)": _preset(_I2, n=24, seed=7, half_width=3.0),
    "Vertices in space (3.1)": _preset(_I3, n=40, seed=3, half_width=3.0),
    "Leaders on a line (2.1)": _preset([[1.0]], n=12, seed=5),
    "Hyperplanes (4.2)": _preset([[1.0, 0.0], [0.0, -0.5]], seed=4),
    "Tilted hyperplanes (4.2)": _preset([[1.0, 0.8], [0.0, 0.2]], seed=2),
    "Three hyperplanes (4.2)": _preset(
        [[1.0, 0.0], [0.0, -0.5]], tokens=[[1.0, 0.6], [-1.0, -0.4], [0.0, 0.5], [0.5, -1.0]], n=4
    ),
    "Polytope and subspace (5.2)": _preset(
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, -0.5]], n=20, seed=6
    ),
    "Slow fall of leaders": _preset([[1.0, 0.0], [0.0, 0.9]], n=20, seed=9),
    "Collapse (V = -I)": _preset([[-1.0, 0.0], [0.0, -1.0]], n=20, seed=1, coordinates="original"),
    "A complex pair leads": _preset([[1.0, -1.0], [1.0, 1.0]], n=12, seed=1, half_width=1.0),
    "Custom": {},
}


def box(n: int, d: int, half_width: float, seed: int) -> list[list[float]]:
    """n tokens uniform in [-half_width, half_width]^d."""
    state = as_count("seed", seed) & 0xFFFFFFFF

    def uniform() -> float:
        nonlocal state
        state = (state + 0x6D2B79F5) & 0xFFFFFFFF
        t = (state ^ (state >> 15)) * (state | 1) & 0xFFFFFFFF
        t ^= (t + ((t ^ (t >> 7)) * (t | 61) & 0xFFFFFFFF)) & 0xFFFFFFFF
        return ((t ^ (t >> 14)) & 0xFFFFFFFF) / 4294967296

    return [[half_width * (2.0 * uniform() - 1.0) for _ in range(d)] for _ in range(n)]


def tokens_of(preset: dict[str, Any], n: int | None = None, seed: int | None = None) -> Any:
    """The tokens a preset begins with."""
    if "tokens" in preset and n is None and seed is None:
        return [list(row) for row in preset["tokens"]]
    count = preset["n"] if n is None else n
    return box(
        count, len(preset["V"]), preset["half_width"], preset["seed"] if seed is None else seed
    )
