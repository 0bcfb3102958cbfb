"""Pictures in matplotlib. Every function takes an Axes (or makes one) and returns it.

The palette is that of Okabe and Ito, told apart by colour-blind readers; figures carry their own light
paper, so that text keeps its contrast on a dark page as well.
"""

from __future__ import annotations

import html
import zlib
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from cycler import cycler
from matplotlib.patches import Circle
from mpl_toolkits.mplot3d.art3d import Poly3DCollection
from numpy.typing import ArrayLike
from scipy.spatial import ConvexHull, QhullError

from ._check import FloatArray, as_matrix, as_tokens
from .integration import Trajectory
from .limits import Limit

#: matplotlib's Axes, flat or three-dimensional; its stubs know only the flat ones.
Axes = Any

#: Okabe and Ito's colours, the strongest first.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
INK, PAPER, FAINT = "#26313d", "#fbfaf7", "#9aa5b1"

STYLE: Any = {
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=PALETTE),
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "font.size": 10,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "figure.dpi": 110,
}


def use_style() -> None:
    """Set the book's style for all figures that follow (`axes` and `panels` do it too)."""
    plt.rcParams.update(STYLE)


def axes(d: int = 2, width: float = 5.0, height: float = 4.0) -> Axes:
    """A fresh Axes in the book's style, three-dimensional for d = 3."""
    use_style()
    figure = plt.figure(figsize=(width, height))
    ax: Axes = figure.add_subplot(projection="3d" if d == 3 else None)
    if d == 3:
        ax.view_init(elev=22, azim=-50)
        for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
            axis.set_pane_color((0, 0, 0, 0.02))
    return ax


def panels(columns: int, rows: int = 1, width: float = 8.0, height: float = 3.6) -> list[Axes]:
    """Several Axes side by side, in reading order."""
    use_style()
    _, grid = plt.subplots(rows, columns, figsize=(width, height), squeeze=False)
    return list(grid.ravel())


def paths(
    trajectory: Trajectory,
    ax: Axes | None = None,
    *,
    rescaled: bool = True,
    colors: Sequence[str] | None = None,
    label: str | None = None,
) -> Axes:
    """Where tokens went: their paths (d = 2, 3; for d = 1 against depth), end points marked.

    Parameters
    ----------
    trajectory : Trajectory
    rescaled : bool
        Rescaled coordinates z (default) or original ones x.
    colors : sequence of n colours, optional
    """
    at = trajectory.rescaled_at if rescaled else trajectory.at
    times = np.linspace(trajectory.times[0], trajectory.times[-1], 200)
    points = at(times)
    d = points.shape[2]
    if d > 3:
        raise ValueError(f"paths shows tokens of dimension 1, 2 or 3: got d = {d}.")
    ax = axes(d) if ax is None else ax
    name = "z" if rescaled else "x"
    for i in range(points.shape[1]):
        color = PALETTE[0] if colors is None else colors[i]
        line = (times, points[:, i, 0]) if d == 1 else tuple(points[:, i, :].T)
        ax.plot(*line, color=color, lw=0.9, alpha=0.65, label=label if i == 0 else None)
        ax.plot(*(part[-1:] for part in line), "o", color=color, ms=4)
    if d == 1:
        ax.set(xlabel="depth $t$", ylabel=f"${name}_i(t)$")
    else:
        _label(ax, name, d)
    return ax


def hulls(
    trajectory: Trajectory, times: Sequence[float], ax: Axes | None = None, *, rescaled: bool = True
) -> Axes:
    """Convex hulls of the tokens at several depths, later ones darker (d = 2 or 3).

    Parameters
    ----------
    trajectory : Trajectory
    times : sequence of depths
    rescaled : bool
        Rescaled coordinates z (default) or original ones x.

    Notes
    -----
    A cloud that lies on a line or in a plane has no interior: in d = 2 its hull is drawn as the
    segment or point that it is, in d = 3 the tokens are drawn as points.
    """
    d = trajectory.d
    if d not in (2, 3):
        raise ValueError(f"hulls shows tokens of dimension 2 or 3: got d = {d}.")
    ax = axes(d) if ax is None else ax
    at = trajectory.rescaled_at if rescaled else trajectory.at
    for k, t in enumerate(times):
        points = at(t)
        strength = (k + 1) / len(times)
        if d == 2:
            corners = _corners(points)
            ax.fill(*corners.T, color=PALETTE[0], alpha=0.06 + 0.10 * strength, lw=0)
            ring = np.vstack([corners, corners[:1]])
            ax.plot(*ring.T, color=PALETTE[0], lw=0.6 + 1.4 * strength, label=f"$t={t:g}$")
        else:
            _solid(ax, points, 0.10 * strength)
            ax.auto_scale_xyz(*points.T)
    _label(ax, "z" if rescaled else "x", d)
    return ax


def limits(where: Limit, ax: Axes | None = None) -> Axes:
    """Limits of the tokens, leaders as large rings (d = 2 or 3)."""
    points = where.points
    ax = axes(points.shape[1]) if ax is None else ax
    ax.plot(*points.T, "o", color=PALETTE[1], ms=4, label="limits")
    leaders = points[where.leaders]
    ax.plot(*leaders.T, "o", mfc="none", mec=PALETTE[1], mew=1.6, ms=11, label="leaders")
    _label(ax, "z", points.shape[1])
    return ax


def attention(P: ArrayLike, ax: Axes | None = None, *, order: Sequence[int] | None = None) -> Axes:
    """Attention matrix as a picture: row i shows whom token i looks at; dark is 1."""
    matrix = as_matrix("P", P)
    if order is not None:
        matrix = matrix[np.ix_(order, order)]
    ax = axes(2, 4.0, 3.6) if ax is None else ax
    ax.imshow(matrix, cmap="Blues", vmin=0.0, vmax=1.0, interpolation="nearest")
    ax.set(xlabel="token $j$ (key)", ylabel="token $i$ (query)", xticks=[], yticks=[])
    return ax


def decay(
    times: ArrayLike,
    values: ArrayLike,
    ax: Axes | None = None,
    *,
    label: str | None = None,
    **kw: Any,
) -> Axes:
    """Quantities that tend to 0, one curve a column, on a logarithmic axis."""
    ax = axes(2) if ax is None else ax
    curves = np.asarray(values, dtype=float)
    curves = curves.reshape(len(curves), -1)
    style = {"color": PALETTE[0], "lw": 1.0, "alpha": 0.7, **kw}
    for k, column in enumerate(curves.T):
        shown = np.where(column > 0, column, np.nan)
        ax.semilogy(np.asarray(times), shown, label=label if k == 0 else None, **style)
    ax.set_xlabel("depth $t$")
    return ax


def spectrum(V: ArrayLike, ax: Axes | None = None) -> Axes:
    """Eigenvalues of V in the complex plane, with the circle through the largest."""
    values = np.linalg.eigvals(as_matrix("V", V))
    ax = axes(2, 4.0, 3.6) if ax is None else ax
    radius = float(np.abs(values).max()) or 1.0
    ax.add_patch(Circle((0, 0), radius, fill=False, color=FAINT, lw=0.8, ls="--"))
    ax.axhline(0, color=FAINT, lw=0.6)
    ax.axvline(0, color=FAINT, lw=0.6)
    ax.plot(values.real, values.imag, "o", color=PALETTE[1], ms=7)
    ax.set(xlabel="real part", ylabel="imaginary part", aspect="equal")
    ax.set_xlim(-1.2 * radius, 1.2 * radius)
    ax.set_ylim(-1.2 * radius, 1.2 * radius)
    return ax


def hyperplanes(
    normal: ArrayLike, offsets: ArrayLike, ax: Axes, *, color: str = PALETTE[2]
) -> Axes:
    """Level sets {z : <normal, z> = offset} inside the limits of an Axes (d = 2 or 3).

    For Theorem 4.2 the normal is the left eigenvector phi_1* of V.
    """
    w = np.asarray(normal, dtype=float)
    if w.shape not in ((2,), (3,)):
        raise ValueError(f"normal must have 2 or 3 entries: got shape {w.shape}.")
    foot = w / (w @ w)
    span = np.linalg.svd(w[None])[2][1:]
    for offset in np.atleast_1d(np.asarray(offsets, dtype=float)):
        if len(w) == 2:  # a line without ends leaves the limits of the Axes alone
            ax.axline(foot * offset, foot * offset + span[0], color=color, lw=1.2, alpha=0.8)
            continue
        corners = [ax.get_xlim(), ax.get_ylim(), ax.get_zlim()]
        size = max(abs(end) for pair in corners for end in pair)
        square = np.array([[-1, -1], [-1, 1], [1, 1], [1, -1]]) * size
        face = foot * offset + square @ span
        ax.add_collection3d(Poly3DCollection([face], facecolor=color, alpha=0.18))
        ax.set(xlim=corners[0], ylim=corners[1], zlim=corners[2])
    return ax


def moving(
    trajectory: Trajectory,
    *,
    seconds: float = 9.0,
    frames: int = 60,
    size: int = 460,
    label: str = "Tokens moving through depth",
) -> str:
    """A moving picture without any script: an SVG of tokens z(t) in d = 2, with trails and hull.

    Returns HTML. Readers who ask for reduced motion see the paths and the end at rest.
    """
    if trajectory.d != 2:
        raise ValueError(f"moving shows tokens of dimension 2: got d = {trajectory.d}.")
    times = np.linspace(trajectory.times[0], trajectory.times[-1], frames)
    z = trajectory.rescaled_at(times)
    reach = 1.08 * float(np.abs(z).max()) or 1.0
    spots = np.round((z / reach * [1, -1] + 1) * size / 2, 1)
    start, ring = (
        " ".join(f"{a},{b}" for a, b in np.round((_corners(c) / reach * [1, -1] + 1) * size / 2, 1))
        for c in (z[0], z[-1])
    )
    label = html.escape(label)
    key = f"attn{zlib.crc32(label.encode() + spots.tobytes())}"
    parts = [
        f'<svg class="{key}" viewBox="0 0 {size} {size}" role="img" aria-label="{label}" '
        f'style="max-width:{size}px;width:100%;height:auto">',
        f"<style>.{key} circle{{animation:{seconds}s ease-in-out infinite alternate}}"
        f"@media (prefers-reduced-motion:reduce){{.{key} circle{{animation:none!important}}}}",
    ]
    steps = np.linspace(0, 100, frames).round(2)
    for i in range(z.shape[1]):
        moves = "".join(
            f"{p}%{{transform:translate({x}px,{y}px)}}"
            for p, (x, y) in zip(steps, spots[:, i], strict=True)
        )
        parts.append(f"@keyframes {key}t{i}{{{moves}}}")
    parts.append("</style>")
    parts.append(
        f'<polygon points="{start}" fill="none" stroke="currentColor" stroke-opacity=".25"/>'
        f'<polygon points="{ring}" fill="{PALETTE[0]}" fill-opacity=".12" stroke="{PALETTE[0]}"/>'
    )
    for i in range(z.shape[1]):
        line = " ".join(f"{x},{y}" for x, y in spots[:, i])
        x, y = spots[-1, i]
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-opacity=".3"/>'
            f'<circle r="5" fill="{PALETTE[1]}" style="transform:translate({x}px,{y}px);'
            f'animation-name:{key}t{i}"/>'
        )
    parts.append("</svg>")
    return "".join(parts)


def support(points: ArrayLike, directions: ArrayLike) -> FloatArray:
    """Support function of the hull of the points in the given directions (rows), (k,)."""
    cloud = as_tokens(points, name="points")
    return (cloud @ np.asarray(directions, dtype=float).T).max(axis=0)


def _corners(points: FloatArray) -> FloatArray:
    """Corners of the hull of points in the plane, in order; the two ends of a flat cloud."""
    try:
        return points[ConvexHull(points).vertices]
    except (QhullError, ValueError):
        centred = points - points.mean(axis=0)
        along = centred @ np.linalg.svd(centred)[2][0]
        return points[[along.argmin(), along.argmax()]]


def _solid(ax: Axes, points: FloatArray, alpha: float) -> None:
    """Faces of the hull of points in space; the points themselves if they lie in a plane."""
    try:
        faces = points[ConvexHull(points).simplices]
    except (QhullError, ValueError):
        ax.plot(*points.T, "o", color=PALETTE[0], ms=3)
        return
    ax.add_collection3d(
        Poly3DCollection(faces, facecolor=PALETTE[0], edgecolor=PALETTE[0], lw=0.3, alpha=alpha)
    )


def _label(ax: Axes, name: str, d: int) -> None:
    ax.set_xlabel(f"${name}_1$")
    ax.set_ylabel(f"${name}_2$")
    if d == 3:
        ax.set_zlabel(f"${name}_3$")
    else:
        ax.set_aspect("equal", adjustable="datalim")
