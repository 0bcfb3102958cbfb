"""Vector fields. A dynamics is a small frozen dataclass with `d` and `velocity(t, x)`.

To add one, write those two; `integrate`, `shape_of` and the pictures then work for it. What
`SelfAttention` has beside them (its weights) lets `integrate` choose better coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from ._check import FloatArray, as_matrix, as_square, as_tokens
from .attention import LOG2, attention_matrix, exponent, weighted_mean


@runtime_checkable
class Dynamics(Protocol):
    """What `integrate` asks of a system of tokens."""

    @property
    def d(self) -> int:
        """Dimension of a token."""

    def velocity(self, t: float, x: FloatArray) -> FloatArray:
        """Velocities of the tokens x at depth t; both arrays have shape (n, d)."""


@dataclass(frozen=True, eq=False)
class SelfAttention:
    """Self-attention dynamics, equations (1.1) and (1.2) of arXiv 2305.05465.

    dx_i/dt = sum_j P_ij V x_j,   P_ij = exp<Q x_i, K x_j> / sum_l exp<Q x_i, K x_l>.

    Only A = Q^T K matters for P. There is no factor 1/sqrt(d): absorb it in Q. Time is depth.

    Parameters
    ----------
    Q, K : (k, d) arrays
        Query and key weights. A bare number stands for a 1 x 1 matrix.
    V : (d, d) array
        Value weights.

    Raises
    ------
    ValueError, TypeError
        If shapes do not fit or entries are not finite real numbers.

    Examples
    --------
    >>> system = SelfAttention(1, 1, 1)
    >>> system.attention([[-1.0], [1.0]]).round(4)
    array([[0.8808, 0.1192],
           [0.1192, 0.8808]])
    """

    Q: FloatArray
    K: FloatArray
    V: FloatArray

    def __init__(self, Q: ArrayLike, K: ArrayLike, V: ArrayLike) -> None:
        q, k, v = as_matrix("Q", Q), as_matrix("K", K), as_square("V", V)
        if q.shape != k.shape:
            raise ValueError(f"Q and K must have the same shape: got {q.shape} and {k.shape}.")
        if q.shape[1] != v.shape[0]:
            raise ValueError(
                f"V must act on tokens of dimension {q.shape[1]}, the columns of Q: "
                f"got shape {v.shape}."
            )
        for name, array in (("Q", q), ("K", k), ("V", v)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @property
    def d(self) -> int:
        """Dimension of a token."""
        return self.V.shape[0]

    @property
    def A(self) -> FloatArray:
        """The score form A = Q^T K: <Q x, K y> = x^T A y."""
        return self.Q.T @ self.K

    def attention(self, x: ArrayLike) -> FloatArray:
        """Attention matrix P(x), shape (n, n), equation (1.2); rows sum to 1."""
        return attention_matrix(*self._heads(as_tokens(x, self.d)))

    def velocity(self, t: float, x: FloatArray) -> FloatArray:
        """Velocities sum_j P_ij V x_j of tokens x (n, d), equation (1.1). No checks: inner loop."""
        queries, keys, log_scale = self._heads(x)
        return weighted_mean(queries, keys, x, log_scale) @ self.V.T

    def _heads(self, x: FloatArray) -> tuple[FloatArray, FloatArray, float]:
        """Queries, keys and the logarithm of the factor taken out so that nothing overflows."""
        unit, (p, q, r) = 0.0, (exponent(array) for array in (x, self.Q, self.K))
        if abs(p) + abs(q) > 400 or abs(p) + abs(r) > 400:
            x, unit = np.ldexp(x, -p), (2 * p + q + r) * LOG2
            return x @ np.ldexp(self.Q, -q).T, x @ np.ldexp(self.K, -r).T, unit
        return x @ self.Q.T, x @ self.K.T, unit

    def __repr__(self) -> str:
        def show(matrix: FloatArray) -> str:
            if self.d > 4:
                return f"<{matrix.shape[0]} x {matrix.shape[1]}>"
            return np.array2string(matrix, precision=4, separator=", ").replace("\n", "")

        return f"SelfAttention(Q={show(self.Q)}, K={show(self.K)}, V={show(self.V)})"
