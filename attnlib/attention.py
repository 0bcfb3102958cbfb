"""Scores, attention matrix and attention-weighted mean, equation (1.2).

Everything here is stable at every score: row maxima are subtracted before exponentials, and a
common factor of the scores may be given as a logarithm so that it never has to be formed.
"""

from __future__ import annotations

import math

import numpy as np

from ._check import FloatArray

#: Entries of the score matrix held at a time (512 kB of float64): a block stays in cache.
BLOCK_ENTRIES = 1 << 16

EPS = float(np.finfo(float).eps)
LOG2 = math.log(2.0)

#: Beyond this a factor of a non-zero score difference makes its exponential exactly 0 or 1.
_LARGEST_LOG = 690.0


def attention_matrix(queries: FloatArray, keys: FloatArray, log_scale: float = 0.0) -> FloatArray:
    """Attention matrix P, equation (1.2), in full.

    Parameters
    ----------
    queries : (m, k) array
        Rows Q x_i.
    keys : (n, k) array
        Rows K x_j.
    log_scale : float
        Logarithm of a common factor c > 0 of all scores; c itself may overflow.

    Returns
    -------
    (m, n) array
        P_ij = exp(c <Q x_i, K x_j>) / sum_l exp(c <Q x_i, K x_l>); rows sum to 1.
    """
    return scaled_matrix(*_scaled(queries, keys, log_scale))


def scaled_matrix(queries: FloatArray, keys: FloatArray, factor: float) -> FloatArray:
    """`attention_matrix` for scores factor * <q_i, k_j> that are known not to overflow unscaled."""
    weights, total = _exponentials(queries, keys, factor)
    weights /= total
    return weights


def weighted_mean(
    queries: FloatArray, keys: FloatArray, values: FloatArray, log_scale: float = 0.0
) -> FloatArray:
    """Attention-weighted mean of the values, sum_j P_ij v_j, equation (1.1).

    Never holds more than a block of `BLOCK_ENTRIES` scores.

    Parameters
    ----------
    queries, keys, log_scale
        As in `attention_matrix`.
    values : (n, p) array
        Rows v_j.

    Returns
    -------
    (m, p) array
    """
    return scaled_mean(*_scaled(queries, keys, log_scale), values)


def scaled_mean(
    queries: FloatArray, keys: FloatArray, factor: float, values: FloatArray
) -> FloatArray:
    """`weighted_mean` for scores factor * <q_i, k_j> that are known not to overflow unscaled."""
    m, n = len(queries), len(keys)
    rows = max(1, BLOCK_ENTRIES // n)
    if rows >= m:
        weights, total = _exponentials(queries, keys, factor)
        return weights @ values / total
    out = np.empty((m, values.shape[1]))
    for start in range(0, m, rows):
        block = slice(start, start + rows)
        weights, total = _exponentials(queries[block], keys, factor)
        np.divide(weights @ values, total, out=out[block])
    return out


def rounding_noise(
    queries: FloatArray, keys: FloatArray, factor: float, values: FloatArray
) -> FloatArray:
    """Bound on what rounding of the scores can do to `scaled_mean`, per token and column.

    Scores of size S are known to about eps * S. When that is no longer small, tokens whose scores
    agree to the last bit share the attention although exact arithmetic would separate them: a tie.
    With scores s in error by at most eta, P_ij moves by at most
    min(1, (e^{2 eta} - 1) P_ij), hence the mean by at most the sum of that times |v_j - mean|.

    Returns
    -------
    (m, p) array
    """
    largest = np.abs(queries) @ np.abs(keys).max(axis=0)
    eta = 4.0 * EPS * largest * factor
    out = np.empty((len(queries), values.shape[1]))
    rows = max(1, BLOCK_ENTRIES // len(keys))
    for start in range(0, len(queries), rows):
        block = slice(start, start + rows)
        shift = 2.0 * eta[block, None]
        scores = queries[block] @ keys.T
        scores -= scores.max(axis=1, keepdims=True)
        scores *= factor
        weights = np.exp(scores)
        total = weights.sum(axis=1, keepdims=True)
        mean = weights @ values / total
        # (e^{2 eta} - 1) P without forming e^{2 eta}: P itself may have underflowed to 0.
        weights = np.exp(np.minimum(scores + shift, np.log(total))) * (-np.expm1(-shift) / total)
        for column in range(values.shape[1]):
            spread = np.abs(values[:, column] - mean[:, column, None])
            out[block, column] = np.einsum("ij,ij->i", weights, spread)
    return out


def exponent(array: FloatArray) -> int:
    """Binary exponent of the largest entry (0 for zeros): ldexp(array, -exponent) is of size 1."""
    return int(np.frexp(max(array.max(), -array.min()))[1])


def _scaled(
    queries: FloatArray, keys: FloatArray, log_scale: float
) -> tuple[FloatArray, FloatArray, float]:
    """Bring queries and keys to a size at which no score overflows; the rest is the factor."""
    p, q = exponent(queries), exponent(keys)
    if log_scale == 0.0 and abs(p) + abs(q) < 900:
        return queries, keys, 1.0
    return np.ldexp(queries, -p), np.ldexp(keys, -q), factor_of(log_scale + (p + q) * LOG2)


def factor_of(log_factor: float) -> float:
    """e^{log_factor}, cut off where a larger one would change no attention matrix."""
    return math.exp(max(-_LARGEST_LOG, min(_LARGEST_LOG, log_factor)))


def _exponentials(
    queries: FloatArray, keys: FloatArray, factor: float
) -> tuple[FloatArray, FloatArray]:
    scores = queries @ keys.T
    scores -= np.maximum.reduce(scores, axis=1, keepdims=True)
    if factor != 1.0:
        scores *= factor
    np.exp(scores, out=scores)
    return scores, np.add.reduce(scores, axis=1, keepdims=True)
