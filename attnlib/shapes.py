"""The shape of a set of points: a point, leaders on a line, a polytope, hyperplanes, subspaces.

Scale-free and without a hand-tuned threshold: distances are compared with the noise of the cloud,
which is given or estimated from the gap that separates "within a cluster" from "between clusters".
"""

from __future__ import annotations

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
        separated from the distance between them by the widest gap on a logarithmic scale.

    Returns
    -------
    Shape
        With kind "none" when the points are not grouped in any direction.

    Examples
    --------
    >>> print(shape_of([[0, 0], [1, 0], [0, 1], [1, 0], [0, 1], [0, 0]]))
    polytope with 3 vertices, 3 limit points
    """
    cloud = as_tokens(points, name="points")
    if noise is not None:
        noise = as_number("noise", noise, at_least=0.0)
    n, d = cloud.shape
    size = float(np.ptp(cloud, axis=0).max())
    magnitude = float(np.abs(cloud).max())
    floor = 64.0 * np.finfo(float).eps * magnitude
    absolute = max(noise or 0.0, floor)
    if size <= 10.0 * absolute:
        return _shape("point", cloud.mean(axis=0)[None], np.zeros(n, int), np.empty((0, d)), cloud)
    grouping = _grouped(cloud, noise, floor)
    if grouping is not None:
        centres, label = grouping
        kind = "points on a line" if _rank(centres, absolute) == 1 else "polytope"
        if len(centres) == 1:
            kind = "point"
        return _shape(kind, centres, label, np.empty((0, d)), cloud)
    found = _projected(cloud, noise, floor)
    if found is None:
        return _shape("none", cloud, np.arange(n), np.eye(d), cloud)
    normal, (centres, label) = found
    free = _complement(normal)
    flat = centres @ normal
    if len(normal) == 1:
        kind = "parallel hyperplanes"
    elif _rank(centres, absolute) <= 1 and len(centres) <= 3:
        kind = "parallel subspaces"
    else:
        kind = "polytope x subspace"
    return _shape(kind, flat, label, free, cloud)


def _grouped(
    points: FloatArray, noise: float | None, floor: float
) -> tuple[FloatArray, np.ndarray] | None:
    """Centres and labels if the points fall into clusters clearly tighter than their distances."""
    n = len(points)
    if n < 2:
        return points.copy(), np.zeros(n, dtype=int)
    tree = linkage(points, method="single")
    heights = np.maximum(tree[:, 2], floor)
    if noise is not None and noise > 0.0:
        cut = 4.0 * max(noise, floor)
        ratios = heights[heights > cut]
        if len(ratios) and ratios.min() < 10.0 * cut and (heights <= cut).any():
            return None
        label = fcluster(tree, cut, criterion="distance") - 1
    else:
        steps = np.log(heights[1:] / heights[:-1])
        if not len(steps):
            return _centres(points, np.arange(n))
        # Chance gaps among n merging heights are of order log n: ask for clearly more.
        k = int(steps.argmax())
        rest = np.delete(steps, k)
        if steps[k] < max(np.log(20.0), 4.0 * float(rest.max(initial=0.0)) ** 0.5):
            return None
        label = fcluster(tree, np.sqrt(heights[k] * heights[k + 1]), criterion="distance") - 1
    count = int(label.max()) + 1
    if count > max(2, 0.6 * n):
        return None
    return _centres(points, label)


def _centres(points: FloatArray, label: np.ndarray) -> tuple[FloatArray, np.ndarray]:
    count = int(label.max()) + 1
    return np.array([points[label == k].mean(axis=0) for k in range(count)]), label


def _projected(
    cloud: FloatArray, noise: float | None, floor: float
) -> tuple[FloatArray, tuple[FloatArray, np.ndarray]] | None:
    """The largest set of directions in which the points cluster: orthonormal rows.

    Within-cluster differences of nearest neighbours span the free directions: their principal axes
    are tried from the stiffest on.
    """
    d = cloud.shape[1]
    for normal in _candidates(cloud):
        kept: FloatArray | None = None
        result = None
        for k in range(1, d):
            trial = normal[:k]
            grouping = _grouped(cloud @ trial.T, noise, floor)
            if grouping is None:
                break
            kept, result = trial, grouping
        if kept is not None and result is not None:
            return kept, result
    return None


def _candidates(cloud: FloatArray) -> list[FloatArray]:
    """Orthonormal bases whose first rows may be directions of clustering, likeliest first."""
    n, d = cloud.shape
    rng = np.random.default_rng(0)
    best: list[tuple[float, FloatArray]] = []
    # A hyperplane's normal is fixed by d of its points: draw d points, count who shares a level.
    for _ in range(400):
        rows = rng.choice(n, size=min(d, n), replace=False)
        differences = cloud[rows[1:]] - cloud[rows[0]]
        _, _, basis = np.linalg.svd(differences, full_matrices=True)
        normal = basis[::-1]
        levels = np.sort(cloud @ normal[0])
        steps = np.diff(levels)
        span = levels[-1] - levels[0]
        if span <= 0.0:
            continue
        score = float(np.sort(steps)[: max(1, n - 4)].sum() / span)
        best.append((score, _stiffest(cloud, normal)))
    best.sort(key=lambda pair: pair[0])
    return [basis for _, basis in best[:5]]


def _stiffest(cloud: FloatArray, basis: FloatArray) -> FloatArray:
    """Refine: group by the first direction, then take the axes of the pooled differences."""
    levels = cloud @ basis[0]
    order = np.argsort(levels)
    steps = np.diff(levels[order])
    cuts = np.sort(np.argsort(-steps)[:2])
    label = np.empty(len(cloud), dtype=int)
    group = np.zeros(len(cloud), dtype=int)
    # Only steps that stand out separate planes.
    typical = float(np.median(steps)) + 1e-300
    for cut in cuts:
        if steps[cut] > 20.0 * typical:
            group[cut + 1 :] += 1
    label[order] = group
    pooled = np.vstack(
        [cloud[label == k] - cloud[label == k].mean(axis=0) for k in range(label.max() + 1)]
    )
    return np.linalg.svd(pooled, full_matrices=True)[2][::-1]


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
