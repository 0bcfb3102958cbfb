"""Pictures: each function takes and returns an Axes, and shows what it should."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from attnlib import SelfAttention, integrate, limit, plotting, tokens


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def _run(d: int, t: float = 2.0):
    return integrate(SelfAttention(np.eye(d), np.eye(d), np.eye(d)), tokens.box(8, d, 2, seed=1), t)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_paths_end_where_tokens_are(d: int) -> None:
    path = _run(d)
    ax = plotting.axes(d)
    assert plotting.paths(path, ax) is ax
    assert len(ax.lines) == 16
    if d < 3:
        ends = np.array([line.get_xydata()[-1] for line in ax.lines[1::2]])
        assert np.allclose(ends[:, -1], path.rescaled[-1][:, -1])
    with pytest.raises(ValueError, match="d = 4"):
        plotting.paths(_run(4))


def test_hulls_and_limits() -> None:
    path = _run(2)
    ax = plotting.hulls(path, [0, 1, 2])
    assert len(ax.patches) == 3
    where = limit(path.system, path.tokens[0])
    plotting.limits(where, ax)
    assert np.allclose(ax.lines[-1].get_xydata(), where.points[where.leaders])
    assert plotting.hulls(_run(3), [0, 2]) is not None
    with pytest.raises(ValueError, match="d = 1"):
        plotting.hulls(_run(1), [0])


@pytest.mark.parametrize("cloud", [[[1, 2]], [[1, 2], [2, 1]], [[1, 1], [-1, -1], [2, 2]]])
def test_flat_clouds_have_pictures_too(cloud: list[list[float]]) -> None:
    path = integrate(SelfAttention(np.eye(2), np.eye(2), np.eye(2)), cloud, 1.0)
    ring = plotting.hulls(path, [0]).lines[0].get_xydata()
    ends = np.array(cloud)[[np.argmin(cloud, axis=0)[0], np.argmax(cloud, axis=0)[0]]]
    assert {tuple(p) for p in ring} == {tuple(p) for p in ends.astype(float)}
    assert plotting.moving(path).count("<circle") == len(cloud)
    flat = np.column_stack([cloud, np.zeros(len(cloud))])
    path = integrate(SelfAttention(np.eye(3), np.eye(3), np.eye(3)), flat, 1.0)
    assert len(plotting.hulls(path, [0]).lines) == 1


def test_moving_picture_is_the_same_in_every_run() -> None:
    script = (
        "import numpy as np; from attnlib import *; from attnlib import plotting; I = np.eye(2);"
        "print(plotting.moving(integrate(SelfAttention(I, I, I), [[1, 0], [0, 1]], 1), label='<a>'))"
    )
    pictures = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert pictures[0] == pictures[1]
    assert 'aria-label="&lt;a&gt;"' in pictures[0]


def test_matrix_decay_and_spectrum() -> None:
    image = plotting.attention([[0.2, 0.8], [1.0, 0.0]], order=[1, 0]).images[0].get_array()
    assert np.allclose(image, [[0.0, 1.0], [0.8, 0.2]])
    ax = plotting.decay([0, 1, 2], [[1, 2], [0.1, 0.2], [0, 0.02]])
    assert ax.get_yscale() == "log" and len(ax.lines) == 2
    dots = plotting.spectrum([[0, -2], [2, 0]]).lines[-1]
    assert sorted(np.round(dots.get_ydata(), 9)) == [-2, 2]


def test_hyperplanes_are_level_sets() -> None:
    ax = plotting.axes(2)
    ax.set(xlim=(-2, 2), ylim=(-2, 2))
    plotting.hyperplanes([1.0, 2.0], [-1.0, 0.5], ax)
    for line, offset in zip(ax.lines, (-1.0, 0.5), strict=True):
        assert np.allclose(np.array([line.get_xy1(), line.get_xy2()]) @ [1.0, 2.0], offset)
    assert ax.get_xlim() == (-2, 2)
    with pytest.raises(ValueError, match=r"\(4,\)"):
        plotting.hyperplanes(np.ones(4), [0], ax)
    assert plotting.hyperplanes(np.ones(3), [0], plotting.axes(3)) is not None


def test_moving_picture_needs_no_script_and_can_rest() -> None:
    picture = plotting.moving(_run(2), label="eight tokens")
    assert "<script" not in picture and "http" not in picture
    assert picture.count("<circle") == 8 and 'aria-label="eight tokens"' in picture
    assert "prefers-reduced-motion" in picture
    with pytest.raises(ValueError, match="d = 3"):
        plotting.moving(_run(3))


def test_ink_on_paper_has_contrast() -> None:
    def luminance(color: str) -> float:
        rgb = np.array(matplotlib.colors.to_rgb(color))
        linear = np.where(rgb <= 0.03928, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    assert (luminance(plotting.PAPER) + 0.05) / (luminance(plotting.INK) + 0.05) > 4.5
