"""Coordinates in which a self-attention trajectory keeps its precision.

An ordered real Schur form V = U T U^T puts the expanding eigenvalues (positive real part) first,

    T = [[T1, C], [0, T2]],      U^T x = (y1, y2).

Expanding coordinates are rescaled, zeta = e^{-t T1} y1; the others stay as they are:

    dzeta_i/dt = sum_j P_ij T1 (zeta_j - zeta_i) + e^{-t T1} C sum_j P_ij y2_j
    dy2_i/dt   = sum_j P_ij T2 y2_j

U is orthogonal, so the split costs no precision however ill-conditioned V is. Tokens are divided
by a power of two (exact), and what scores have in common, e^{2 t rate}, is kept as a logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.linalg import expm, schur

from ._check import FloatArray
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


def ordered_schur(matrix: FloatArray, discrete: bool = False) -> tuple[FloatArray, FloatArray, int]:
    """Real Schur form with the expanding eigenvalues first, and how many there are.

    Expanding: positive real part, or for a discrete step (`discrete`) modulus above 1. A threshold
    that falls between two eigenvalues equal to rounding is moved to a wider gap.
    """
    scale = float(np.abs(matrix).max()) or 1.0
    for margin in (0.0, 1e-14, 1e-12, 1e-10, 1e-8, 1e-6):
        edge = margin * scale

        def expands(re: float, im: float, edge: float = edge) -> bool:
            return (np.hypot(re, im) - 1.0 if discrete else re) > edge

        try:
            form, basis, count = schur(matrix, output="real", sort=expands)
        except np.linalg.LinAlgError:
            continue
        return form, basis, int(count)
    form, basis = schur(matrix, output="real")
    return form, basis, 0


#: Logarithm of a relative error that is not worth a closer look.
_NEGLIGIBLE = math.log(1e-11)


class Exponential:
    """t -> e^{t M}, by eigenvectors where they are well conditioned, else by scipy's expm.

    An integrator asks for many t close together: expm is computed on a grid of step h = 1/(2 |M|_1) or less,
    and between its points e^{sM} is Taylor's sum to order 16, whose remainder is below 2^-17 / 17! < 1e-19.
    """

    ORDER = 16

    def __init__(self, matrix: FloatArray) -> None:
        self.matrix = matrix
        values, vectors = np.linalg.eig(matrix)
        self.values = values
        self.diagonal = not np.any(matrix - np.diag(np.diagonal(matrix)))
        self.factors = None
        if not self.diagonal and np.linalg.cond(vectors) < 1e4:
            self.factors = vectors, np.linalg.inv(vectors)
        if not self.diagonal and self.factors is None:
            self.step = 2.0 ** -math.frexp(2.0 * float(np.abs(matrix).sum(axis=0).max()))[1]
            terms = [np.eye(len(matrix))]
            for order in range(1, self.ORDER + 1):
                terms.append(terms[-1] @ matrix / order)
            self.terms = np.array(terms).reshape(self.ORDER + 1, -1)
            self.kept: dict[int, FloatArray] = {}

    def __call__(self, t: float) -> FloatArray:
        if self.diagonal:
            return np.diag(np.exp(t * np.diagonal(self.matrix)))
        if self.factors is None:
            return self._between(t)
        left, right = self.factors
        return ((left * np.exp(t * self.values)) @ right).real

    def _between(self, t: float) -> FloatArray:
        whole = math.floor(t / self.step)
        if whole not in self.kept:
            if len(self.kept) >= 256:
                self.kept.clear()
            self.kept[whole] = expm(whole * self.step * self.matrix)
        rest = (t - whole * self.step) ** np.arange(self.ORDER + 1)
        return self.kept[whole] @ (rest @ self.terms).reshape(self.matrix.shape)


class Frame:
    """The coordinates above, for one system and one set of initial tokens."""

    def __init__(self, system: SelfAttention, tokens: FloatArray) -> None:
        self._split(*ordered_schur(system.V))
        self._units(system, tokens)
        #: Logarithms of how many equal tokens each row stands for, where that is not 1.
        self.log_counts: FloatArray | None = None

    def _split(self, form: FloatArray, basis: FloatArray, split: int) -> None:
        self.d = len(form)
        self.basis, self.form, self.split = basis, form, split
        self.t1, self.t2 = form[:split, :split], form[split:, split:]
        coupling = form[:split, split:]
        tiny = 8.0 * EPS * float(np.abs(form).max())
        self.coupling = coupling if np.abs(coupling).max(initial=0.0) > tiny else None
        self.rate = float(np.linalg.eigvals(self.t1).real.max()) if split else 0.0
        excess = self.t1 - self.rate * np.eye(split)
        uniform = np.abs(excess).max(initial=0.0) <= 4.0 * EPS * self.rate
        self.shape_growth: Callable[[float], FloatArray] | None = (
            None if uniform else Exponential(excess)
        )
        self.decay = Exponential(-self.t1) if self.coupling is not None else None
        self.t1_scalar = self.rate if uniform and split else None

    def _units(self, system: SelfAttention, tokens: FloatArray) -> None:
        """Take powers of two out of tokens and weights, so that no product overflows."""
        basis = self.basis
        self.exponent = exponent(tokens)
        p, q = exponent(system.Q), exponent(system.K)
        left, right = np.ldexp(system.Q, -p) @ basis, np.ldexp(system.K, -q) @ basis
        self.log_score = (2 * self.exponent + p + q) * LOG2
        self.queries: FloatArray
        self.keys: FloatArray | None
        if len(left) < self.d:
            self.queries, self.keys = left.T.copy(), right.T.copy()
        else:
            self.queries, self.keys = left.T @ right, None
        self.score_norm = (
            float(np.linalg.norm(left.T @ right))
            if self.d <= 64
            else float(np.linalg.norm(left) * np.linalg.norm(right))
        )

    def start(self, tokens: FloatArray) -> FloatArray:
        """State at t = 0 of the given tokens."""
        return np.ldexp(tokens, -self.exponent) @ self.basis

    def scaled(self, t: float, state: FloatArray) -> tuple[FloatArray, float]:
        """Tokens in Schur coordinates as x = e^{log} x~; returns x~ and log."""
        log = self.rate * t
        if self.split == 0 or (self.split == self.d and self.shape_growth is None):
            return state, log
        out = np.empty_like(state)
        grown = state[:, : self.split]
        out[:, : self.split] = (
            grown if self.shape_growth is None else grown @ self.shape_growth(t).T
        )
        out[:, self.split :] = state[:, self.split :] * np.exp(-log)
        return out, log

    def heads(self, t: float, state: FloatArray) -> tuple[FloatArray, FloatArray, float]:
        """Queries, keys and the factor that all scores have in common."""
        x, log = self.scaled(t, state)
        keys = x if self.keys is None else x @ self.keys
        queries, factor = x @ self.queries, factor_of(2.0 * log + self.log_score)
        if self.log_counts is not None:
            queries = np.column_stack([queries, np.ones(len(x))])
            keys = np.column_stack([keys, self.log_counts / factor])
        return queries, keys, factor

    def velocity(self, t: float, state: FloatArray) -> FloatArray:
        """Right-hand side of the equations of this module, (n, d)."""
        mean = scaled_mean(*self.heads(t, state), state)
        if self.t1_scalar is not None and self.split == self.d:
            mean -= state
            mean *= self.t1_scalar
            return mean
        out = np.empty_like(state)
        k = self.split
        if k:
            out[:, :k] = (mean[:, :k] - state[:, :k]) @ self.t1.T
            if self.coupling is not None and self.decay is not None:
                out[:, :k] += mean[:, k:] @ (self.decay(t) @ self.coupling).T
        if k < self.d:
            out[:, k:] = mean[:, k:] @ self.t2.T
        return out

    def attention(self, t: float, state: FloatArray) -> FloatArray:
        """Attention matrix at time t."""
        return scaled_matrix(*self.heads(t, state))

    def noise(self, t: float, state: FloatArray) -> float:
        """Relative error of a velocity that rounding of the scores may cause now.

        Measured against the spread of each coordinate over the tokens: 0 is exact, 1 is nothing
        known. The cheap bound is used while it is negligible.
        """
        size = float(np.abs(state).max()) or 1.0
        eta = 8.0 * EPS * (self.score_norm or 1.0) * self.d * size * size
        log_eta = math.log(eta) + 2.0 * self.rate * t + self.log_score
        if log_eta < _NEGLIGIBLE:
            return math.exp(max(log_eta, -700.0))
        errors = rounding_noise(*self.heads(t, state), state).max(axis=0)
        spread = np.maximum(np.abs(state).max(axis=0), np.finfo(float).tiny)
        return float((errors / spread).max())

    def tokens(self, t: FloatArray, states: FloatArray) -> FloatArray:
        """Original coordinates x at times t (m,), shape (m, n, d); inf where float64 ends."""
        out = np.empty_like(states)
        with np.errstate(over="ignore", invalid="ignore"):
            for k, (time, state) in enumerate(zip(t, states, strict=True)):
                x, log = self.scaled(float(time), state)
                if log < 600.0:
                    x = x * np.exp(log)
                    x[:, self.split :] = state[:, self.split :]
                    x = x @ self.basis.T
                else:
                    x = (x @ self.basis.T) * np.exp(log)
                out[k] = np.ldexp(x, self.exponent)
        return out

    def rescaled(self, t: FloatArray, states: FloatArray) -> FloatArray:
        """Rescaled coordinates z = e^{-tV} x, shape (m, n, d); inf where float64 ends."""
        k = self.split
        out = states.copy()
        if k < self.d:
            with np.errstate(over="ignore", invalid="ignore"):
                for index, time in enumerate(t):
                    back = self._back(float(time))
                    rest = states[index, :, k:]
                    out[index, :, k:] = rest @ back[k:, k:].T
                    if self.coupling is not None:
                        out[index, :, :k] += rest @ back[:k, k:].T
        return np.ldexp(out @ self.basis.T, self.exponent)

    def _back(self, t: float) -> FloatArray:
        """e^{-tT}, in Schur coordinates."""
        return expm(-t * self.form)


class LayerFrame(Frame):
    """The same coordinates for the discrete Transformer: R = I + step V takes the place of e^V.

    Expanding means modulus above 1, zeta[k] = R1^{-k} y1[k] (paper, Remark 3.4), and with
    step T = R - I in Schur coordinates

    zeta_i[k+1] = zeta_i[k] + R1^{-1} (R1 - I) sum_j P_ij (zeta_j - zeta_i)[k]
                            + R1^{-k-1} C sum_j P_ij y2_j[k]
    y2_i[k+1]   = y2_i[k] + (R2 - I) sum_j P_ij y2_j[k]
    """

    def __init__(self, system: SelfAttention, tokens: FloatArray, step: float) -> None:
        form, basis, split = ordered_schur(np.eye(system.d) + step * system.V, discrete=True)
        self.step = step
        self._split(form, basis, split)
        self._units(system, tokens)
        self.log_counts = None
        self.inverse1 = np.linalg.inv(self.t1)
        modulus = float(np.abs(np.linalg.eigvals(self.t1)).max()) if split else 1.0
        self.rate = float(np.log(modulus)) / step
        self.unit1 = self.t1 / modulus
        uniform = np.abs(self.unit1 - np.eye(split)).max(initial=0.0) <= 4.0 * EPS
        self.shape_growth = None if uniform else self._power

    def _layer(self, t: float) -> int:
        return round(t / self.step)

    def _power(self, t: float) -> FloatArray:
        return np.linalg.matrix_power(self.unit1, self._layer(t))

    def advance(self, k: int, state: FloatArray) -> FloatArray:
        """State after layer k + 1 from that after layer k."""
        mean = scaled_mean(*self.heads(k * self.step, state), state)
        out, split = state.copy(), self.split
        gain = self.inverse1 @ (self.t1 - np.eye(split))
        out[:, :split] += (mean[:, :split] - state[:, :split]) @ gain.T
        if self.coupling is not None and split:
            shrink = np.linalg.matrix_power(self.inverse1, k + 1)
            out[:, :split] += mean[:, split:] @ (shrink @ self.coupling).T
        out[:, split:] += mean[:, split:] @ (self.t2 - np.eye(self.d - split)).T
        return out

    def _back(self, t: float) -> FloatArray:
        try:
            inverse = np.linalg.inv(self.form)
        except np.linalg.LinAlgError:
            raise ValueError(
                "rescaled layers need R = I + step V to be invertible: it is singular; "
                "choose another step."
            ) from None
        return np.linalg.matrix_power(inverse, self._layer(t))


class PlainFrame:
    """Original coordinates, for a dynamics of which only the velocity is known."""

    def __init__(self, system: object) -> None:
        self.velocity = system.velocity  # type: ignore[attr-defined]
        self.system = system

    def start(self, tokens: FloatArray) -> FloatArray:
        """State at t = 0: the tokens."""
        return tokens.copy()

    def noise(self, t: float, state: FloatArray) -> float:
        """Not known for a general dynamics."""
        return 0.0

    def tokens(self, t: FloatArray, states: FloatArray) -> FloatArray:
        """The states are the tokens."""
        return states.copy()

    def rescaled(self, t: FloatArray, states: FloatArray) -> FloatArray:
        """There is no V to rescale with."""
        raise TypeError(
            f"rescaled coordinates z = e^(-tV) x need a SelfAttention system: "
            f"got {type(self.system).__name__}. Use .tokens and .at."
        )

    def attention(self, t: float, state: FloatArray) -> FloatArray:
        """The attention matrix, if the dynamics has one."""
        return self.system.attention(state)  # type: ignore[attr-defined]
