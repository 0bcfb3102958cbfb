"""Attention followed by a feed-forward layer, an open problem of arXiv 2305.05465 (last section).

A dynamics with `d` and `velocity(t, z)` and nothing else that `integrate` knows of: it shows what
an addition to attnlib has to bring.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from ._check import FloatArray, as_number, as_square, as_tokens
from ._frame import Exponential
from .attention import (
    EPS,
    LOG2,
    exponent,
    factor_of,
    rounding_noise,
    scaled_matrix,
    scaled_mean,
)
from .dynamics import SelfAttention

#: Activations by name; all are 0 at 0.
ACTIVATIONS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "relu": lambda y: np.maximum(y, 0.0),
    "tanh": np.tanh,
    "identity": lambda y: y,
}

#: Relative error of the attention-weighted mean beyond which a velocity is refused.
_NOISE_LIMIT = 1e-6


@dataclass(frozen=True, eq=False)
class FeedForward:
    """Self-attention with a feed-forward layer, in rescaled coordinates.

    dz_i/dt = W sigma( V sum_j P_ij (z_j - z_i) ),   P_ij as in equation (1.2) at x = e^{tV} z,

    sigma componentwise. With W = I and sigma the identity this is `SelfAttention` in its rescaled
    form. What `integrate` returns as `tokens` and `at(t)` are the z of this equation; plots take
    `rescaled=False`.

    Parameters
    ----------
    Q, K : (k, d) arrays
        Query and key weights. A bare number stands for a 1 x 1 matrix.
    V, W : (d, d) arrays
        Value weights; weights of the layer after the activation.
    activation : "relu", "tanh", "identity", or a function of arrays
        sigma. A function must keep the shape of its argument.

    Raises
    ------
    ValueError, TypeError
        If shapes do not fit, entries are not finite real numbers, or the activation is unknown.

    Examples
    --------
    >>> system = FeedForward(1, 1, 1, 1, "relu")
    >>> system.velocity(0.0, np.array([[-1.0], [1.0]])).round(4) + 0.0
    array([[0.2384],
           [0.    ]])
    """

    Q: FloatArray
    K: FloatArray
    V: FloatArray
    W: FloatArray
    activation: str | Callable[[FloatArray], FloatArray]
    _sigma: Callable[[FloatArray], FloatArray] = field(repr=False)
    _rate: float = field(repr=False)
    _growth: Exponential = field(repr=False)

    def __init__(
        self,
        Q: ArrayLike,
        K: ArrayLike,
        V: ArrayLike,
        W: ArrayLike,
        activation: str | Callable[[FloatArray], FloatArray] = "relu",
    ) -> None:
        plain = SelfAttention(Q, K, V)
        w = as_square("W", W)
        if w.shape != plain.V.shape:
            raise ValueError(f"W must have the shape of V, {plain.V.shape}: got shape {w.shape}.")
        w.setflags(write=False)
        rate = float(np.linalg.eigvals(plain.V).real.max())
        for name, value in (
            ("Q", plain.Q),
            ("K", plain.K),
            ("V", plain.V),
            ("W", w),
            ("activation", activation),
            ("_sigma", _activation(activation, plain.d)),
            ("_rate", rate),
            ("_growth", Exponential(plain.V - rate * np.eye(plain.d))),
        ):
            object.__setattr__(self, name, value)

    @property
    def d(self) -> int:
        """Dimension of a token."""
        return self.V.shape[0]

    def attention(self, z: ArrayLike, t: float | None = None) -> FloatArray:
        """Attention matrix of the tokens z at depth t, shape (n, n); rows sum to 1."""
        if t is None:
            raise TypeError(
                "attention of a FeedForward needs the depth, because its scores are those of "
                "x = e^(tV) z: call system.attention(path.at(t), t)."
            )
        return scaled_matrix(*self._heads(as_number("t", t), as_tokens(z, self.d, "z")))

    def velocity(self, t: float, x: FloatArray) -> FloatArray:
        """Velocities of the rescaled tokens x = (z_1, ..., z_n), (n, d). No checks: inner loop.

        Raises
        ------
        FloatingPointError
            Where rounding of the scores would decide whom a token looks at. `integrate` ends there
            and says so.
        """
        queries, keys, factor = self._heads(t, x)
        self._refuse_noise(t, queries, keys, factor, x)
        towards = scaled_mean(queries, keys, factor, x) - x
        return np.asarray(self._sigma(towards @ self.V.T) @ self.W.T, dtype=np.float64)

    def _heads(self, t: float, z: FloatArray) -> tuple[FloatArray, FloatArray, float]:
        """Queries and keys of x = e^{tV} z, scaled to size 1, and the factor of their products."""
        x = z @ self._growth(t).T
        queries, keys = x @ self.Q.T, x @ self.K.T
        p, q = exponent(queries), exponent(keys)
        factor = factor_of(2.0 * self._rate * t + (p + q) * LOG2)
        return np.ldexp(queries, -p), np.ldexp(keys, -q), factor

    def _refuse_noise(
        self, t: float, queries: FloatArray, keys: FloatArray, factor: float, z: FloatArray
    ) -> None:
        if EPS * self.d * factor < 0.01 * _NOISE_LIMIT:
            return
        errors = rounding_noise(queries, keys, factor, z).max(axis=0)
        if (errors > _NOISE_LIMIT * np.abs(z).max(axis=0)).any():
            raise FloatingPointError(
                f"at t = {t:.4g} scores are of size {factor:.0e}, and rounding would decide which "
                "of nearly equal ones is the largest"
            )


def _activation(
    activation: str | Callable[[FloatArray], FloatArray], d: int
) -> Callable[[FloatArray], FloatArray]:
    if isinstance(activation, str):
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {', '.join(ACTIVATIONS)}, or a function: "
                f"got {activation!r}."
            )
        return ACTIVATIONS[activation]
    if not callable(activation):
        raise TypeError(
            f"activation must be one of {', '.join(ACTIVATIONS)}, or a function: "
            f"got {type(activation).__name__}."
        )
    made = np.asarray(activation(np.zeros((2, d))))
    if made.shape != (2, d):
        raise ValueError(
            f"activation must keep the shape of its argument: it made {made.shape} of {(2, d)}."
        )
    if made.dtype.kind not in "fiu":
        raise TypeError(f"activation must return real numbers: it returned {made.dtype}.")
    return activation
