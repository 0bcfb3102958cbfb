"""Collapse: V = -lam I with A = Q^T K symmetric positive definite (the paper: V = -I, A = I).

All tokens tend to 0 and attention to the uniform matrix, but like a power of t: there is nothing to
certify, there are asymptotics. With centred tokens y, C their covariance and S their third moment,

    dC/dt = -2 lam (C A C + R/2 + ...),  R_ab = sum S_acd S_bef A_ce A_df,

so that 2 lam t C A -> I (whitening), with C^-1 = C1^-1 + 2 lam (t - t1) A + (s/2) log(t/t1) in
whitened coordinates, s_ab = sum_cd S^_acd S^_bcd and S^ the whitened third moment, and the centroid
follows S:  m ~ -(1/2) (2 lam t)^(-5/2) sum_c S^_acc (book, *Collapse*; derived there in SymPy).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ._check import FloatArray, as_number
from .dynamics import SelfAttention
from .integration import Trajectory, integrate


@dataclass(frozen=True, eq=False)
class Collapse:
    """How tokens collapse, from a state integrated to depth `time`.

    Attributes
    ----------
    time : float
        Depth t1 at which the expansion starts.
    rank : int
        Dimension that the centred tokens span: whitening happens there.
    skewness : (r, r) array
        s_ab, the contraction of the whitened third moment that corrects the whitening law.
    trajectory : Trajectory
        The integration up to t1.
    """

    time: float
    rank: int
    skewness: FloatArray
    trajectory: Trajectory
    _rate: float = field(repr=False)
    _root: FloatArray = field(repr=False)  # (r, d): x -> whitened span coordinates of A^(1/2) x
    _inverse: FloatArray = field(repr=False)  # C1^-1 there, (r, r)
    _third: FloatArray = field(repr=False)

    def covariance(self, t: float) -> FloatArray:
        """Covariance of A^{1/2} x at depth t >= time, on its span, shape (r, r), to first order."""
        t = as_number("t", t, at_least=self.time)
        growth = 2.0 * self._rate * (t - self.time) * np.eye(self.rank)
        slow = 0.5 * np.log(t / self.time) * self.skewness
        return np.asarray(np.linalg.inv(self._inverse + growth + slow), dtype=np.float64)

    def whitening(self, t: float) -> FloatArray:
        """Eigenvalues of 2 lam t C(t), ascending: they tend to 1."""
        return np.asarray(np.linalg.eigvalsh(2.0 * self._rate * t * self.covariance(t)), float)

    def centroid_norm(self, t: float) -> float:
        """Length of the mean of A^{1/2} x at depth t, to leading order: a constant times t^-5/2."""
        t = as_number("t", t, at_least=self.time)
        return float(np.linalg.norm(self._third)) * 0.5 * (2.0 * self._rate * t) ** -2.5

    def holds_from(self, accuracy: float) -> float:
        """Depth from which |2 lam t C(t) - I| <= accuracy, by the first correction."""
        accuracy = as_number("accuracy", accuracy, above=0.0)

        def far(t: float) -> bool:
            return bool(np.abs(self.whitening(t) - 1.0).max(initial=0.0) > accuracy)

        low = high = self.time
        while far(high) and high < 1e300:
            low, high = high, 2.0 * high
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if far(middle) else (low, middle)
        return high


def collapse_rate(system: SelfAttention) -> float | None:
    """lam if V = -lam I with lam > 0 and A is symmetric positive definite, else None."""
    lam = -float(system.V[0, 0])
    if lam <= 0.0 or not np.array_equal(system.V, -lam * np.eye(system.d)):
        return None
    A = system.A
    size = float(np.abs(A).max()) or 1.0
    rounding = 8.0 * np.finfo(float).eps * max(A.shape) * size
    if np.abs(A - A.T).max() > rounding or np.linalg.eigvalsh(A)[0] <= rounding:
        return None
    return lam


def expand(system: SelfAttention, tokens: FloatArray, lam: float, rtol: float) -> Collapse:
    """Integrate until scores are small (|A^{1/2} x|^2 at most 1/50), and expand from there."""
    values, vectors = np.linalg.eigh(0.5 * (system.A + system.A.T))
    root = (vectors * np.sqrt(values)) @ vectors.T
    n = len(tokens)
    t1 = 100.0 / lam
    path = integrate(system, tokens, t1, rtol=max(rtol, 1e-11))
    x = path.at(path.times[-1]) @ root
    y = x - x.mean(axis=0)
    _, singular, axes = np.linalg.svd(y, full_matrices=False)
    rank = int((singular > 1e-9 * (singular[0] or 1.0)).sum())
    y = y @ axes[:rank].T
    covariance = y.T @ y / n
    white = y * np.sqrt(2.0 * lam * path.times[-1])
    third = np.einsum("na,nb,nc->abc", white, white, white) / n
    return Collapse(
        time=float(path.times[-1]),
        rank=rank,
        skewness=np.einsum("acd,bcd->ab", third, third),
        trajectory=path,
        _rate=lam,
        _root=axes[:rank] @ root,
        _inverse=np.linalg.inv(covariance) if rank else np.empty((0, 0)),
        _third=np.einsum("acc->a", third),
    )
