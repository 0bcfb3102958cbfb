"""The second certificate: clusters that nobody leaves, whoever leads inside (book: appendix).

Where two tokens of one cluster share its lead, attention inside hardens slowly or not at all, and
the follower law does not apply. What the tokens see of the *other* clusters does not need it. In
modes with a real positive eigenvalue let box_c hold the rescaled tokens of cluster c, in every
other mode let |x_a| <= M_a. While all of c attends to c only,

    d zeta_a/dt = lam_a sum_j P_ij (zeta_ja - zeta_ia)     keeps every box (its ends cannot grow),
    |d x_a/dt| <= |lam_a| max_j |x_ja|                     gives |x_a(t0 + s)| <= M_a e^{|lam_a| s},

so that <Q x_i, K (x_j - x_k)> with i, j in c and k outside is, for all of these tokens at once, a sum
of exponentials with known radii, and summation by parts (`Gaps.certify`) shows it open for ever.
The limit of a token lies in its box.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ._check import FloatArray
from ._follow import Following, Gaps, Modes
from .attention import EPS

#: Attention outside a cluster is below e^-20 before it is certified to stay so.
_LEAST = 20.0


@dataclass(frozen=True, eq=False)
class Clusters:
    """Tokens that end together: boxes in the modes of V.

    Attributes
    ----------
    time : float
        Depth from which no token leaves its cluster.
    label : (n,) int array
        The cluster of each token.
    centre, radius : (c, d) arrays
        Boxes of the rescaled tokens, in modes; the limits lie inside. Zero in modes V does not expand.
    """

    time: float
    label: np.ndarray
    centre: FloatArray
    radius: FloatArray


def clusters_of(best: np.ndarray) -> np.ndarray:
    """Labels of the tokens that end in the same cycle of i -> best[i]."""
    there = best.copy()
    for _ in range(len(best).bit_length() + 1):
        there = there[there]
    smallest = there.copy()
    for _ in range(len(best)):  # the smallest member names a cycle
        there = best[there]
        smallest = np.minimum(smallest, there)
    return np.unique(smallest, return_inverse=True)[1].ravel()


def certify_clusters(
    state: Following, label: np.ndarray, log_counts: FloatArray
) -> Clusters | None:
    """Boxes at state.time that hold for ever, or None. Every token of `state` leads itself."""
    modes, t = state.modes, state.time
    if np.iscomplexobj(modes.values) and np.any(modes.values[modes.expanding].imag != 0.0):
        return None  # a complex expanding mode turns tokens out of any box
    boxed, zeta = modes.expanding, state.pi.real
    count = int(label.max()) + 1
    low = np.array([zeta[label == c].min(axis=0) for c in range(count)])
    high = np.array([zeta[label == c].max(axis=0) for c in range(count)])
    centre = np.where(boxed, 0.5 * (low + high), 0.0)
    radius = np.where(boxed, 0.5 * (high - low) + state.eps + EPS * np.abs(centre), 0.0)
    lam = modes.values
    reach = (np.abs(state.pi) + state.eps).max(axis=0) * np.exp(lam.real * t)
    members = float(np.exp(log_counts).sum())
    spread = np.where(boxed, np.ptp(zeta, axis=0) + 2.0 * state.eps, 0.0)
    room = np.zeros(len(lam))  # for what attention outside can still move: none, then twice that
    for last in (False, True):
        found = _gaps(modes, t, centre, radius + room, reach)
        if found is None:  # a single cluster
            break
        ok, gap, growth = found.certify(2.0 * modes.size, _LEAST)
        if not ok.all():
            return None
        moved = np.abs(lam) * spread * members * np.exp(-gap.min()) / growth.min()
        if last and (moved > room).any():
            return None
        room = room if last else 2.0 * moved
    return Clusters(t, label, centre, np.where(boxed, radius + room, 0.0))


def _gaps(
    modes: Modes, t: float, centre: FloatArray, radius: FloatArray, reach: FloatArray
) -> Gaps | None:
    """Least gaps of every cluster against every other one, as sums of exponentials."""
    count = len(centre)
    c, k = np.nonzero(~np.eye(count, dtype=bool))
    if not len(c):
        return None
    boxed, lam = modes.expanding, modes.values
    rates = np.where(boxed, lam.real, np.abs(lam))
    grown = np.where(boxed, np.exp((rates - modes.rate) * t), np.exp(-modes.rate * t))
    p, q = centre[c] * grown, centre[k] * grown
    r = np.where(boxed, radius, reach) * grown
    rp, rq = r[c], r[k]
    size, apart = np.abs(modes.form), np.abs(p - q)
    exact = np.einsum("pa,ab,pb->pab", p, modes.form.real, p - q)
    loose = np.einsum("pa,ab,pb->pab", np.abs(p), size, rp + rq)
    loose += np.einsum("pa,ab,pb->pab", rp, size, apart + rp + rq)
    loose += 16.0 * EPS * modes.condition * np.einsum("pa,ab,pb->pab", np.abs(p), size, apart)
    sums = (rates[:, None] + rates[None, :]).ravel()
    mu, place = np.unique(-np.concatenate([sums, [0.0]]), return_inverse=True)
    to = np.eye(len(mu))[place.ravel()[:-1]]
    pairs = len(c)
    log = np.full(pairs, 2.0 * modes.rate * t + modes.log_form)
    return Gaps(c, k, -mu, exact.reshape(pairs, -1) @ to, loose.reshape(pairs, -1) @ to, log)
