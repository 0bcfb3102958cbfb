"""The paper's own scheme, written plainly: the baseline of `core.py`.

Rescaled tokens, attention frozen over steps of 0.1, a triple loop over tokens with small numpy vectors:
score differences <Q e^{tV} z_i, K e^{tV}(z_l - z_j)> one at a time, as one first writes (1.2) down. With
attention frozen the classical Runge-Kutta stages shift every token alike, so that each step is one of
explicit Euler. The published script also forms e^{tV} anew for every score (`as_published`).
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import expm


def run(
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    z: np.ndarray,
    t_final: float,
    step: float = 0.1,
    as_published: bool = False,
) -> np.ndarray:
    """Rescaled tokens at t_final, (n, d); e^{tV} once a step, or once a score."""
    z = z.copy()
    n = len(z)
    for k in range(round(t_final / step)):
        R = expm(k * step * V)
        P = np.zeros((n, n))
        for i in range(n):
            for j in range(n):
                total = 0.0
                for m in range(n):
                    if as_published:
                        R = expm(k * step * V)
                    query = np.dot(Q, np.dot(R, z[i]))
                    key = np.dot(K, np.dot(R, z[m] - z[j]))
                    total += np.exp(min(np.dot(query, key), 700.0))
                P[i, j] = 1.0 / total
        velocity = np.zeros_like(z)
        for i in range(n):
            for j in range(n):
                velocity[i] += P[i, j] * np.dot(V, z[j] - z[i])
        z = z + step * velocity
    return z
