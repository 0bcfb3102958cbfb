"""The shape of a set of points: a point, leaders on a line, a polytope, hyperplanes, subspaces.

Scale-free and without a hand-tuned threshold: distances are compared with the noise of the cloud,
which is given or estimated from the gap that separates "within a cluster" from "between clusters".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.optimize import nnls
from scipy.spatial import ConvexHull, QhullError

from ._check import FloatArray, as_number, as_tokens

#: Above this dimension a convex hull has too many facets to list.
_QHULL_RANK = 6


@dataclass(frozen=True, eq=False)
class Shape:
    """What a cloud of points forms.

    Attributes
    ----------
    kind : str
        "point", "points on a line", "polytope", "parallel hyperplanes", "parallel subspaces",
        "polytope x subspace", or "none" if nothing fits.
    clusters : (c, d) array
        Centres: points, or one foot point for each plane or subspace.
    label : (n,) int array
        Which of them each point belongs to.
    directions : (k, d) array
        Orthonormal rows: the directions in which points do not cluster (empty: they all do).
    vertices : (v,) int array
        Which clusters are vertices of the hull of the clusters.
    residual : float
        Largest distance of a point to its cluster, plane or subspace, relative to the cloud's size.
    noise : float
        What counts as no distance, relative to the cloud's size.
    """

    kind: str
    clusters: FloatArray
    label: np.ndarray
    directions: FloatArray
    vertices: np.ndarray
    residual: float
    noise: float
    size: float = field(default=1.0)

    @property
    def codimension(self) -> int:
        """Dimension of the ambient space minus that of each piece."""
        return self.clusters.shape[1] - len(self.directions)

    def __str__(self) -> str:
        c, k = len(self.clusters), len(self.directions)
        if self.kind == "none":
            return "no shape found"
        if self.kind == "point":
            return "one point"
        if self.kind == "parallel hyperplanes":
            return f"{c} parallel hyperplane{'s' if c > 1 else ''}"
        if self.kind == "parallel subspaces":
            return f"{c} parallel subspace{'s' if c > 1 else ''} of codimension {self.codimension}"
        name = "polytope" if self.kind == "polytope" else self.kind
        if self.kind == "polytope x subspace":
            return f"polytope with {len(self.vertices)} vertices x subspace of dimension {k}"
        if self.kind == "points on a line":
            return f"{c} points on a line"
        return f"{name} with {len(self.vertices)} vertices, {c} limit points"


def shape_of(points: ArrayLike, noise: float | None = None) -> Shape:
    """Find the shape that a cloud of points forms.

    Points may come from `Limit.points`, from another simulator or from a real model. Tries, in this
    order: few points (clusters in every direction), then clusters in some directions only, with
    the points free in the others: parallel hyperplanes, subspaces of codimension k, and their
    products with polytopes.

    Parameters
    ----------
    points : (n, d) array
    noise : float, optional
        Absolute error of the points. By default it is estimated: the spread within clusters is
        separated from the distance between them by the widest gap on a logarithmic scale, which
        must be wider than chance makes it.

    Returns
    -------
    Shape
        With kind "none" when the points are not grouped in any direction.

    Examples
    --------
    >>> print(shape_of([[0, 0], [1, 0], [0, 1]] * 3))
    polytope with 3 vertices, 3 limit points
    """
    cloud = as_tokens(points, name="points")
    if noise is not None:
        noise = as_number("noise", noise, at_least=0.0)
    n, d = cloud.shape
    size = float(np.ptp(cloud, axis=0).max())
    floor = max(noise or 0.0, 64.0 * np.finfo(float).eps * float(np.abs(cloud).max()))
    if size <= 10.0 * floor:
        return _shape("point", cloud.mean(axis=0)[None], np.zeros(n, int), np.empty((0, d)), cloud)
    label = _grouped(cloud, noise, floor, 0, _CHANCE)
    if label is not None:
        centres = _centres(cloud, label)
        rank = _rank(centres, floor)
        kind = ("point", "points on a line", "polytope")[min(rank, 2)]
        return _shape(kind, centres, label, np.empty((0, d)), cloud)
    found = _projected(cloud, noise, floor) if d > 1 else None
    if found is None:
        return _shape("none", cloud, np.arange(n), np.eye(d), cloud)
    normal, label = found
    centres = _centres(cloud @ normal.T, label)
    kind = "parallel hyperplanes" if len(normal) == 1 else "polytope x subspace"
    if len(normal) > 1 and _rank(centres, floor) <= 1 and len(centres) <= 3:
        kind = "parallel subspaces"
    return _shape(kind, centres @ normal, label, _complement(normal), cloud)


#: Merging heights of points without structure do not jump by this factor past the median: by
#: simulation less than once in a thousand clouds of 10 to 500 points (tests/test_shapes.py).
_CHANCE = 6.0

#: The same when the best of several hundred directions was chosen.
_CHANCE_OF_MANY = 12.0

#: Directions tried; each is normal to the plane through d points.
_TRIALS = 400


def _grouped(
    points: FloatArray, noise: float | None, floor: float, spent: int, chance: float
) -> np.ndarray | None:
    """Labels, if the points fall into clusters clearly tighter than the distances between them.

    Single-linkage merging heights in order: clusters show as one jump, by more than chance, with
    enough merges below it. `spent` merges were bought by choosing the direction, and do not count.
    """
    n = len(points)
    heights, merge = _merging(points)
    heights = np.maximum(heights, floor)
    needed = spent + max(3, int(np.ceil(0.4 * n)))
    if n < 2 or (noise is None and len(heights) < needed):
        return None
    if noise is not None:  # the noise is known: what is within it is one cluster
        cut = 4.0 * floor
        above = heights[heights > cut]
        clear = not len(above) or above.min() > chance * cut
        return merge(cut) if clear and (heights <= cut).sum() >= min(needed, n - 1) else None
    if heights[-1] <= 2.0 * floor:
        return merge(4.0 * floor)
    steps = heights[needed:] / heights[needed - 1 : -1]
    if not len(steps) or steps.max() < chance:
        return None
    k = needed - 1 + int(steps.argmax())
    return merge(float(np.sqrt(heights[k] * heights[k + 1])))


def _merging(points: FloatArray) -> tuple[FloatArray, Callable[[float], np.ndarray]]:
    """Single-linkage heights, ascending, and a function from a cut to labels."""
    if len(points) < 2:
        return np.empty(0), lambda cut: np.zeros(len(points), dtype=int)
    if points.shape[1] == 1:
        order = np.argsort(points[:, 0], kind="stable")
        spacing = np.diff(points[order, 0])

        def levels(cut: float) -> np.ndarray:
            label = np.empty(len(points), dtype=int)
            label[order] = np.concatenate([[0], np.cumsum(spacing > cut)])
            return label

        return np.sort(spacing), levels
    tree = linkage(points, method="single")
    return tree[:, 2], lambda cut: fcluster(tree, cut, criterion="distance") - 1


def _centres(points: FloatArray, label: np.ndarray) -> FloatArray:
    return np.array([points[label == k].mean(axis=0) for k in range(int(label.max()) + 1)])


def _projected(
    cloud: FloatArray, noise: float | None, floor: float
) -> tuple[FloatArray, np.ndarray] | None:
    """The largest set of directions (orthonormal rows) in which the points cluster, and labels."""
    d = cloud.shape[1]
    normals = _normals(cloud, noise, floor)
    if not normals:
        return None
    basis = normals[0][None]
    label = _grouped(cloud @ basis.T, noise, floor, d - 1, _CHANCE_OF_MANY)
    if label is None:
        return None
    more = [None, *normals[1:]]  # first the direction in which the groups found so far are thinnest
    while more and len(basis) < d - 1:
        normal = more.pop(0)
        if normal is None:
            wider = _stiffest(cloud, label, len(basis) + 1)
        else:
            rest = normal - normal @ basis.T @ basis
            if np.linalg.norm(rest) < 0.2:
                continue
            wider = np.vstack([basis, rest / np.linalg.norm(rest)])
        trial = _grouped(cloud @ wider.T, noise, floor, d - len(wider), _CHANCE)
        if trial is None:
            continue
        wider = _stiffest(cloud, trial, len(wider))
        again = _grouped(cloud @ wider.T, noise, floor, d - len(wider), _CHANCE)
        if again is not None:
            basis, label = wider, again
            more.insert(0, None)
    return basis, label


def _normals(cloud: FloatArray, noise: float | None, floor: float) -> list[FloatArray]:
    """Unit normals of families of parallel planes that hold the points, the tightest first."""
    n, d = cloud.shape
    if n < 2 * d + 4:
        return []
    rng = np.random.default_rng(0)
    found: list[tuple[float, FloatArray]] = []
    for _ in range(_TRIALS):
        rows = rng.permutation(n)[:d]
        apart: FloatArray = cloud[rows[1:]] - cloud[rows[0]]
        normal = np.linalg.svd(apart, full_matrices=True)[2][-1]
        label = _grouped((cloud @ normal)[:, None], noise, floor, d - 1, _CHANCE)
        if label is None or label.max() + 1 > 0.5 * n:
            continue
        normal = _stiffest(cloud, label, 1)[0]
        values = (cloud @ normal)[:, None]
        if _grouped(values, noise, floor, d - 1, _CHANCE_OF_MANY) is not None:
            away = values - _centres(values, label)[label]
            found.append((float(np.abs(away).max()), normal))
    found.sort(key=lambda pair: pair[0])
    return [normal for _, normal in found]


def _stiffest(cloud: FloatArray, label: np.ndarray, count: int) -> FloatArray:
    """The `count` directions in which points scatter least within their groups."""
    away: FloatArray = cloud - _centres(cloud, label)[label]
    return np.linalg.svd(away, full_matrices=True)[2][-count:]


def _complement(rows: FloatArray) -> FloatArray:
    return np.linalg.svd(rows, full_matrices=True)[2][len(rows) :]


def _rank(centres: FloatArray, absolute: float) -> int:
    if len(centres) < 2:
        return 0
    singular = np.linalg.svd(centres - centres.mean(axis=0), compute_uv=False)
    return int((singular > max(100.0 * absolute, 1e-9 * singular[0])).sum())


def _shape(
    kind: str, centres: FloatArray, label: np.ndarray, free: FloatArray, cloud: FloatArray
) -> Shape:
    size = float(np.ptp(cloud, axis=0).max()) or float(np.abs(cloud).max()) or 1.0
    away = cloud - centres[label]
    away = away - away @ free.T @ free
    across = centres - centres @ free.T @ free
    residual = float(np.linalg.norm(away, axis=1).max(initial=0.0)) / size
    return Shape(kind, centres, label, free, hull_vertices(across), residual, residual, size)


def hull_vertices(points: FloatArray) -> np.ndarray:
    """Indices of the points that are vertices of their convex hull, in any dimension and rank."""
    if len(points) <= 2:
        return np.arange(len(points))
    centred = points - points.mean(axis=0)
    _, singular, axes = np.linalg.svd(centred, full_matrices=False)
    rank = int((singular > 1e-9 * singular[0]).sum()) if singular[0] > 0 else 0
    if rank == 0:
        return np.array([0])
    flat = centred @ axes[:rank].T
    if rank == 1:
        return np.unique([flat[:, 0].argmin(), flat[:, 0].argmax()])
    if len(points) <= rank + 1:
        return np.arange(len(points))
    if rank > _QHULL_RANK:
        return _vertices_by_membership(flat / np.abs(flat).max())
    try:
        return np.sort(ConvexHull(flat).vertices)
    except QhullError:
        return np.arange(len(points))


def _vertices_by_membership(points: FloatArray) -> np.ndarray:
    """Points that are no convex combination of the others, by non-negative least squares."""
    lifted = np.column_stack([points, np.ones(len(points))])
    keep = [
        k for k in range(len(points)) if nnls(np.delete(lifted, k, axis=0).T, lifted[k])[1] > 1e-9
    ]
    return np.array(keep, dtype=int)
