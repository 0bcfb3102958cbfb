"""The equations in SymPy: what the chapters derive, they derive from these.

Tokens are rows of a matrix, shape (n, d), as everywhere in attnlib. `classify` takes SymPy weights.

Examples
--------
>>> u = sp.Symbol("u", positive=True)
>>> pair = sp.Matrix([-u, u])
>>> sp.simplify(velocity(1, 1, 1, pair)[1].rewrite(sp.exp) - pair_rate(u).rewrite(sp.exp))
0
"""

from __future__ import annotations

from typing import Any

import sympy as sp

from ._check import as_count
from ._exact import ExactFacts

__all__ = [
    "ExactFacts",
    "attention",
    "circle_pair_rate",
    "equiangular_rate",
    "layer",
    "pair_rate",
    "rescaled_velocity",
    "simplex_rate",
    "token_symbols",
    "triple_rate",
    "velocity",
]


def token_symbols(n: int, d: int, name: str = "x") -> sp.Matrix:
    """Real symbols x_ij, shape (n, d)."""
    n, d = as_count("n", n, at_least=1), as_count("d", d, at_least=1)
    return sp.Matrix(n, d, lambda i, j: sp.Symbol(f"{name}_{i + 1}{j + 1}", real=True))


def attention(Q: Any, K: Any, x: Any) -> sp.Matrix:
    """Attention matrix P(x), shape (n, n), equation (1.2): rows sum to 1."""
    x = _tokens(x)
    q, k = x * _weight("Q", Q, x).T, x * _weight("K", K, x).T
    weights = (q * k.T).applyfunc(sp.exp)
    return sp.Matrix(x.rows, x.rows, lambda i, j: weights[i, j] / sum(weights.row(i)))


def velocity(Q: Any, K: Any, V: Any, x: Any) -> sp.Matrix:
    """sum_j P_ij V x_j, shape (n, d): equation (1.1)."""
    x = _tokens(x)
    return attention(Q, K, x) * x * _weight("V", V, x).T


def rescaled_velocity(Q: Any, K: Any, V: Any, z: Any, t: Any) -> sp.Matrix:
    """sum_j P_ij V (z_j - z_i), P at x = e^{tV} z, shape (n, d): the equation of z = e^{-tV} x."""
    z = _tokens(z)
    value = _weight("V", V, z)
    weights = attention(Q, K, z * (t * value).exp().T)
    return (weights * z - z) * value.T


def layer(Q: Any, K: Any, V: Any, x: Any, step: Any) -> sp.Matrix:
    """One residual layer, x_i + step sum_j P_ij V x_j, shape (n, d)."""
    return _tokens(x) + step * velocity(Q, K, V, x)


def pair_rate(u: Any, V: Any = 1) -> Any:
    """du/dt for the pair (-u, u), d = 1, QK = 1: V u tanh(u^2)."""
    return V * u * sp.tanh(u**2)


def triple_rate(u: Any) -> Any:
    """du/dt for the triple (-u, 0, u), d = 1, QK = V = 1."""
    return u * (sp.exp(u**2) - sp.exp(-(u**2))) / (sp.exp(u**2) + 1 + sp.exp(-(u**2)))


def simplex_rate(r: Any, d: Any, s: Any = 1) -> Any:
    """dr/dt for a regular simplex of n = d + 1 tokens of norm r, A = I, V = s I."""
    near, far = sp.exp(r**2), sp.exp(-(r**2) / d)
    return s * r * (near - far) / (near + d * far)


def circle_pair_rate(theta: Any, beta: Any) -> Any:
    """d theta/dt for two unit tokens at angle theta: dx_i/dt = sum_j P_ij x_j, tangential part."""
    return -2 * sp.sin(theta) / (sp.exp(beta * (1 - sp.cos(theta))) + 1)


def equiangular_rate(rho: Any, n: Any, beta: Any) -> Any:
    """d rho/dt for n unit tokens with equal inner products rho, scores beta <x_i, x_j>."""
    return 2 * (1 - rho) * ((n - 1) * rho + 1) / (sp.exp(beta * (1 - rho)) + n - 1)


def _tokens(x: Any) -> sp.Matrix:
    tokens = sp.Matrix(x)
    if 0 in tokens.shape:
        raise ValueError(f"x must hold at least one token: got shape {tokens.shape}.")
    return tokens


def _weight(name: str, value: Any, x: sp.Matrix) -> sp.Matrix:
    matrix = sp.Matrix(value) if hasattr(value, "shape") else sp.Matrix([[value]])
    if matrix.cols != x.cols:
        raise ValueError(
            f"{name} must have {x.cols} columns, the dimension of the tokens: got {matrix.shape}."
        )
    return matrix
