"""Eigenstructure of the value matrix V, and how well double precision knows it.

Every eigenvalue comes with a radius, c eps |V| kappa, kappa its condition number. Eigenvalues whose
discs meet cannot be told apart: they form one `Cluster`, known through its invariant subspace, whose
radius covers a defective matrix too. Diagonal input is exact, with radius 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eig, lapack, schur, solve_sylvester

from ._check import FloatArray, as_matrix, as_square

EPS = float(np.finfo(float).eps)

#: Clusters are refined at most this often; what is then unresolved keeps its coarse radius.
MERGES = 64

ComplexArray = NDArray[np.complex128]


@dataclass(frozen=True, eq=False)
class LowRank:
    """V = left @ right, kept as its factors: a value head, of rank r at most.

    Attributes
    ----------
    left : (d, r) array
    right : (r, d) array

    Examples
    --------
    >>> LowRank([[1.0], [0.0]], [[2.0, 3.0]]).dense()
    array([[2., 3.],
           [0., 0.]])
    """

    left: FloatArray
    right: FloatArray

    def __init__(self, left: ArrayLike, right: ArrayLike) -> None:
        a, b = as_matrix("left", left), as_matrix("right", right)
        if a.shape != b.shape[::-1]:
            raise ValueError(
                f"left (d, r) and right (r, d) must fit both ways: got {a.shape} and {b.shape}."
            )
        for name, array in (("left", a), ("right", b)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (d, d) of V."""
        return self.left.shape[0], self.left.shape[0]

    def dense(self) -> FloatArray:
        """The matrix V itself, (d, d)."""
        return self.left @ self.right


@dataclass(frozen=True, eq=False)
class Cluster:
    """Eigenvalues that cannot be told apart, with the invariant subspace F that they share.

    Attributes
    ----------
    members : (m,) int array
        Their places in `Spectrum.values`; empty for the structural zeros of a `LowRank`.
    size : int
        How many eigenvalues, with multiplicity.
    centre, radius : complex, float
        A disc that holds them all, whatever rounding did.
    departure : float
        |V restricted to F - centre Id| in an orthonormal basis: 0 if V is scalar on F.
    noise : float
        What rounding can do to `departure`.
    exact : bool
        Known without error (then the members are equal).
    """

    members: NDArray[np.intp]
    size: int
    centre: complex
    radius: float
    departure: float = 0.0
    noise: float = 0.0
    exact: bool = False

    @property
    def merged(self) -> bool:
        """Several eigenvalues that precision, not algebra, holds together."""
        return self.size > 1 and not self.exact

    @property
    def real(self) -> bool:
        """Its eigenvalues may be real: the disc meets the real axis."""
        return abs(self.centre.imag) <= (self.radius if self.size > 1 else 0.0)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues of V by falling modulus, with both kinds of eigenvectors.

    Attributes
    ----------
    values : (p,) complex array
        p = d, or r for a `LowRank` of rank r < d (the other d - r eigenvalues are 0).
    right, left : (d, p) complex arrays
        V right = right diag(values), left^H V = diag(values) left^H, columns of `right` of norm 1,
        left_i^H right_i = 1. For a `LowRank`, left vectors of zero eigenvalues are nan.
    kappa : (p,) array
        Condition numbers |x| |y| / |y^H x|.
    radii : (p,) array
        Radius of each eigenvalue: error * kappa at first, its cluster's radius in the end.
    clusters : tuple of Cluster
        By falling modulus of the centre.
    error : float
        Size of the perturbation of V that rounding may amount to, c eps |V|; 0 if exact.
    exact : bool
        V is diagonal: its eigenvalues are read off.
    """

    source: FloatArray | LowRank = field(repr=False)
    values: ComplexArray
    right: ComplexArray = field(repr=False)
    left: ComplexArray = field(repr=False)
    kappa: FloatArray
    radii: FloatArray
    clusters: tuple[Cluster, ...]
    error: float
    exact: bool

    @classmethod
    def of(cls, V: ArrayLike | LowRank) -> Spectrum:
        """Spectrum of V, a (d, d) matrix or a `LowRank`; cost p^3."""
        if isinstance(V, LowRank) and V.left.shape[1] < V.left.shape[0]:
            if V.left.any() and V.right.any():
                return _of_factors(V)
            return cls.of(np.zeros(V.shape))
        matrix = V.dense() if isinstance(V, LowRank) else as_square("V", V)
        diagonal = np.diagonal(matrix)
        if np.count_nonzero(matrix) == np.count_nonzero(diagonal):
            return _of_diagonal(matrix, diagonal)
        return _of_dense(matrix)

    @property
    def d(self) -> int:
        """Dimension of V."""
        return self.source.shape[0]

    @cached_property
    def dense(self) -> FloatArray:
        """V as a (d, d) array."""
        return self.source.dense() if isinstance(self.source, LowRank) else self.source

    @cached_property
    def norm(self) -> float:
        """Frobenius norm of V."""
        return norm(self.dense)

    @cached_property
    def symmetric(self) -> bool:
        """V equals its transpose exactly: its eigenvalues are real."""
        return not isinstance(self.source, LowRank) and bool((self.source == self.source.T).all())

    @cached_property
    def candidates(self) -> tuple[Cluster, ...]:
        """Clusters that may hold the eigenvalue of largest modulus; one if it is known."""
        floor = max(abs(c.centre) - c.radius for c in self.clusters)
        return tuple(c for c in self.clusters if abs(c.centre) + c.radius >= floor)

    @cached_property
    def positive(self) -> tuple[int, int]:
        """How many eigenvalues have positive real part, and for how many that is undecided."""
        sure = [c for c in self.clusters if c.centre.real > c.radius]
        open_ = [c for c in self.clusters if not c.exact and abs(c.centre.real) <= c.radius]
        return sum(c.size for c in sure), sum(c.size for c in open_)

    def splitting(self, cluster: Cluster) -> tuple[FloatArray, FloatArray]:
        """Invariant splitting R^d = F + G for a cluster closed under conjugation.

        Returns
        -------
        basis : (d, m) array
            Orthonormal columns that span F.
        dual : (m, d) array
            dual @ basis = I, and dual vanishes on G: basis @ dual projects to F along G.
        """
        rows = cluster.members
        if self.exact or cluster.size == 1:
            if len(rows) == 0:
                raise ValueError("cluster must hold computed eigenvalues: got structural zeros.")
            return self.right[:, rows].real, self.left[:, rows].real.T
        values = self.values if len(self.values) == self.d else np.append(self.values, 0.0)
        return _splitting(self.dense, values, rows)

    def wobble(self, cluster: Cluster, basis: FloatArray) -> float:
        """Bound on how far rounding turns the subspace F of a cluster, to first order.

        A perturbation E of V turns F by |E| / sep, sep the distance between V on F and V across F. With P the
        projector across F, sep is at least the least singular value of P (V - c) P there, less |V - c| on F.
        """
        if self.exact or self.error == 0.0:
            return 0.0
        if len(self.values) == self.d <= 64:
            across = np.eye(self.d) - basis @ basis.T
            shifted = self.dense - cluster.centre.real * np.eye(self.d)
            sizes = np.linalg.svd(across @ shifted @ across, compute_uv=False)
            rest = self.d - basis.shape[1]
            room = sizes[rest - 1] - cluster.departure if rest else float("inf")
            return self.error / float(room) if room > 0.0 else float("inf")
        away = np.ones(len(self.values), dtype=bool)
        away[cluster.members] = False
        gaps = np.abs(self.values[away] - cluster.centre) - cluster.radius
        least = [abs(cluster.centre)] if len(self.values) < self.d else []
        widths = np.concatenate([gaps, least])
        if widths.size == 0:
            return 0.0
        if widths.min() <= 0.0:
            return float("inf")
        weights = np.concatenate([np.minimum(self.kappa[away], 1 / EPS), np.ones(len(least))])
        return self.error * float((weights / widths).sum())


def _of_diagonal(matrix: FloatArray, diagonal: FloatArray) -> Spectrum:
    order = np.lexsort((-diagonal, -np.abs(diagonal)))
    values = diagonal[order]
    vectors = np.eye(len(values), dtype=complex)[:, order]
    clusters = []
    for value in dict.fromkeys(values.tolist()):
        members = np.flatnonzero(values == value)
        clusters.append(Cluster(members, len(members), complex(value), 0.0, exact=True))
    one, zero = np.ones(len(values)), np.zeros(len(values))
    made = tuple(clusters)
    return Spectrum(matrix, values.astype(complex), vectors, vectors, one, zero, made, 0.0, True)


def _of_dense(matrix: FloatArray) -> Spectrum:
    size = _norm(matrix)
    values, left, right, kappa = _eigen(matrix)
    error = 8.0 * math.sqrt(len(matrix)) * EPS * size
    clusters, radii = _clusters(matrix, values, kappa, error, size)
    return Spectrum(matrix, values, right, left, kappa, radii, clusters, error, False)


def _of_factors(V: LowRank) -> Spectrum:
    """Spectrum from the r x r compression of V to the range of `left`."""
    basis, triangle = _orthonormal(V.left)
    rows = triangle @ V.right  # V = basis @ rows
    small, size = rows @ basis, _norm(rows)
    values, left, right, inner = _eigen(small)
    error = 8.0 * math.sqrt(len(small)) * EPS * size
    clusters, radii = _clusters(small, values, inner, error, size)
    with np.errstate(divide="ignore", invalid="ignore"):
        dual = rows.T @ left / values.conj()
        dual[:, values == 0] = np.nan
        kappa = np.where(values == 0, np.inf, np.linalg.norm(dual, axis=0))
    zero = Cluster(np.empty(0, dtype=np.intp), V.shape[0] - len(values), 0j, 0.0, exact=True)
    made = (*clusters, zero)
    return Spectrum(V, values, basis @ right, dual, kappa, radii, made, error, False)


def _orthonormal(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Thin QR factors; Gram-Schmidt, twice, for few columns.

    LAPACK's QR is many small BLAS calls, whose threads wait for each other on a busy machine: half
    a second for 384 x 32, against milliseconds here.
    """
    d, r = matrix.shape
    if r > 64:
        basis, triangle = np.linalg.qr(matrix)
        return basis, triangle
    basis, triangle = np.zeros((r, d)), np.zeros((r, r))
    for j in range(r):
        column = matrix[:, j].copy()
        for _ in range(2):
            along = (basis[:j] * column).sum(axis=1)
            column -= (basis[:j] * along[:, None]).sum(axis=0)
            triangle[:j, j] += along
        triangle[j, j] = norm(column)
        if triangle[j, j] > 0.0:
            basis[j] = column / triangle[j, j]
    return basis.T, triangle


def norm(matrix: FloatArray) -> float:
    """Frobenius norm, without the threads of a BLAS."""
    return math.sqrt(float((matrix * matrix).sum()))


def _norm(matrix: FloatArray) -> float:
    largest = float(np.abs(matrix).max())
    if largest and not 1e-140 < largest < 1e140:
        raise ValueError(
            f"V must have entries of size 1e-140 to 1e140: the largest is {largest:.3g}. "
            "Rescale it: V -> a V, a > 0, only changes the clock."
        )
    return norm(matrix)


def _eigen(matrix: FloatArray) -> tuple[ComplexArray, ComplexArray, ComplexArray, FloatArray]:
    """Values by falling modulus, left and right vectors with left_i^H right_i = 1, conditions."""
    values, left, right = eig(matrix, left=True, right=True, check_finite=False)
    order = np.lexsort((-values.imag, -values.real, -np.abs(values)))
    values, left, right = values[order], left[:, order] + 0j, right[:, order] + 0j
    overlap = (left.conj() * right).sum(axis=0)
    # Defective: the vectors are orthogonal, the condition number infinite.
    overlap[overlap == 0] = 1e-300
    return values, left / overlap.conj(), right, 1.0 / np.abs(overlap)


def _clusters(
    matrix: FloatArray, values: ComplexArray, kappa: FloatArray, error: float, size: float
) -> tuple[tuple[Cluster, ...], FloatArray]:
    """Merge eigenvalues, nearest first, until no two discs meet."""
    radii = np.minimum(error * kappa, 2.0 * size)
    found = [
        Cluster(np.array([i]), 1, complex(v), float(r), noise=error)
        for i, (v, r) in enumerate(zip(values, radii, strict=True))
    ]
    form: tuple[Any, Any] | None = None
    for _ in range(MERGES):
        pair = _meeting(found)
        if pair is None:
            break
        form = form or schur(matrix, output="complex")
        a, b = (found[i] for i in pair)
        found = [c for i, c in enumerate(found) if i not in pair]
        found.append(_merged(form, values, np.concatenate([a.members, b.members]), error))
    else:
        if _meeting(found) is not None:
            found = [_merged((matrix + 0j, None), values, np.arange(len(values)), error)]
    for cluster in found:
        radii[cluster.members] = cluster.radius
    found.sort(key=lambda c: (-abs(c.centre), -c.centre.real, -c.centre.imag))
    return tuple(found), radii


def _meeting(clusters: list[Cluster]) -> tuple[int, int] | None:
    """The widest disc that meets another, and its nearest neighbour."""
    if len(clusters) < 2:
        return None
    centre = np.array([c.centre for c in clusters])
    radius = np.array([c.radius for c in clusters])
    distance = np.abs(centre[:, None] - centre)
    np.fill_diagonal(distance, np.inf)
    # Twice the radii: to first order a disc is right only while others are farther off.
    meets = (distance <= 2.0 * (radius[:, None] + radius)).any(axis=1)
    if not meets.any():
        return None
    widest = int(np.where(meets, radius, -1.0).argmax())
    return widest, int(distance[widest].argmin())


def _merged(
    form: tuple[Any, Any], values: ComplexArray, members: NDArray[np.intp], error: float
) -> Cluster:
    """The cluster of these eigenvalues, from its block T11 of a reordered Schur form.

    Rounding moves T11 by eta = error |projector|; eigenvalues of T11 then move by at most
    (2 |N| + eta)^(1 - 1/m) eta^(1/m), N = T11 - mean (Elsner), which a Jordan block attains.
    """
    triangle, m, n = form[0], len(members), len(values)
    projector = 1.0
    if m < n:
        diagonal = np.diagonal(triangle)
        select = np.zeros(n, dtype=np.int32)
        free = np.ones(n, dtype=bool)
        for value in values[members]:
            pick = int(np.where(free, np.abs(diagonal - value), np.inf).argmin())
            free[pick], select[pick] = False, 1
        work = max(1, 2 * m * (n - m))
        triangle, _, _, _, s, _, _ = lapack.ztrsen(
            select, triangle, form[1], job="B", wantq=0, lwork=work
        )
        projector = 1.0 / max(float(s), 1e-300)
    block = triangle[:m, :m]
    mean = complex(np.trace(block) / m)
    departure = float(np.linalg.norm(block - mean * np.eye(m)))
    eta = error * projector
    move = (2.0 * departure + eta) ** (1.0 - 1.0 / m) * eta ** (1.0 / m)
    spread = float(np.abs(values[members] - mean).max())
    return Cluster(np.sort(members), m, mean, float(spread + move), departure, float(4.0 * eta))


def _splitting(
    matrix: FloatArray, values: ComplexArray, members: NDArray[np.intp]
) -> tuple[FloatArray, FloatArray]:
    """Real bases of F and of its dual, by an ordered real Schur form and a Sylvester equation."""
    inside = values[members]
    outside = np.delete(values, members)

    def selected(re: float, im: float) -> bool:
        value = complex(re, im)
        far = np.abs(outside - value).min() if outside.size else np.inf
        return bool(np.abs(inside - value).min() <= far)

    form, vectors, m = schur(matrix, output="real", sort=selected)
    if m == len(matrix):
        return vectors, vectors.T
    # [I, R] is the dual in Schur coordinates: T11 R - R T22 = T12.
    coupling = solve_sylvester(form[:m, :m], -form[m:, m:], form[:m, m:])
    return vectors[:, :m], vectors[:, :m].T + coupling @ vectors[:, m:].T
