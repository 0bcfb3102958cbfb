"""Scores, attention matrix and attention-weighted mean, equation (1.2).

Everything here is stable at every score: row maxima are subtracted before exponentials, and a
common factor of the scores may be given as a logarithm so that it never has to be formed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ._check import FloatArray
from ._separable import LARGEST_ORDER, order_for, separable_mean

#: Entries of the score matrix held at a time (512 kB of float64): a block stays in cache.
BLOCK_ENTRIES = 1 << 16

KERNELS = ("auto", "blocks", "separable")

#: From this many scores on, more than one thread is worth its start.
THREADED_ENTRIES = 1 << 20

#: From this many tokens on `separable` is faster, by the number of coordinates of a key.
SEPARABLE_FROM = {1: 2_000, 2: 4_000, 3: 20_000}

#: Scores up to this size, centred, need no shift before the exponential.
_SAFE = {np.dtype(np.float64): 300.0, np.dtype(np.float32): 30.0}


@dataclass
class Options:
    """How attention-weighted means of many tokens are computed: choices that can be overruled.

    Attributes
    ----------
    kernel : str
        "auto", "blocks" (every score, in blocks that stay in cache) or "separable" (keys of one to three
        coordinates: nearly linear time, see `attnlib._separable`).
    threads : int or None
        None: the environment variable ATTNLIB_THREADS if set, else the cores this process may use.
    tolerance : float
        Error of the separable kernel, relative to the largest |v|.
    """

    kernel: str = "auto"
    threads: int | None = None
    tolerance: float = 1e-12


#: What `integrate`, `limit` and `weighted_mean` use unless told otherwise.
options = Options()

EPS = float(np.finfo(float).eps)
LOG2 = math.log(2.0)

#: In a mean a weight below e^-80 of the largest is lost to rounding; numbers that underflow (below e^-708)
#: are slow, up to thirty times, in exponentials and in products.
_FLOOR = -600.0

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
    queries: FloatArray,
    keys: FloatArray,
    values: FloatArray,
    log_scale: float = 0.0,
    *,
    kernel: str | None = None,
    threads: int | None = None,
    dtype: type[np.floating] = np.float64,
) -> FloatArray:
    """Attention-weighted mean of the values, sum_j P_ij v_j, equation (1.1).

    Never holds more than a block of `BLOCK_ENTRIES` scores a thread.

    Parameters
    ----------
    queries, keys, log_scale
        As in `attention_matrix`.
    values : (n, p) array
        Rows v_j.
    kernel, threads : optional
        As in `Options`; default: `attnlib.attention.options`.
    dtype : numpy.float64 or numpy.float32
        In float32 a score s is known to about 6e-8 |s|, and so is the logarithm of its weight: the error
        is about 1e-7 (1 + S) of the largest |v| for centred scores up to S, and nothing is right
        for S beyond 1e6. Always by blocks.

    Returns
    -------
    (m, p) array of that dtype
    """
    if np.dtype(dtype) not in _SAFE:
        raise TypeError(f"dtype must be float64 or float32: got {np.dtype(dtype)}.")
    if np.dtype(dtype) == np.float64:
        return scaled_mean(*_scaled(queries, keys, log_scale), values, kernel, threads)
    if kernel == "separable":
        raise ValueError("kernel separable works in float64 only: got dtype float32.")
    if np.abs(values).max(initial=0.0) > np.finfo(np.float32).max:
        raise ValueError("values must fit float32, below 3.4e38: use dtype float64.")
    query, key, factor = _scaled(queries, keys, log_scale, always=True)
    # The factor goes to the queries as far as float32 holds it.
    query = (query * min(factor, 1e30)).astype(np.float32)
    return _blocks(query, key.astype(np.float32), 1.0, values.astype(np.float32), threads)


def scaled_mean(
    queries: FloatArray,
    keys: FloatArray,
    factor: float,
    values: FloatArray,
    kernel: str | None = None,
    threads: int | None = None,
) -> FloatArray:
    """`weighted_mean` for scores factor * <q_i, k_j> that are known not to overflow unscaled."""
    m, n = len(queries), len(keys)
    kernel = kernel or options.kernel
    if kernel not in KERNELS:
        raise ValueError(f"kernel must be one of {', '.join(KERNELS)}: got {kernel!r}.")
    if m * n <= BLOCK_ENTRIES and kernel != "separable":
        weights, total = _exponentials(queries, keys, factor, floor=_FLOOR)
        return weights @ values / total
    if kernel == "blocks" or not _separable(queries, keys, factor, kernel):
        return _blocks(queries, keys, factor, values, threads)
    # In one and two coordinates its pieces are so small that threads would wait for one another.
    count = _threads(threads, m * n if keys.shape[1] == 3 else 0)
    return separable_mean(queries * factor, keys, values, count, options.tolerance)


def _separable(queries: FloatArray, keys: FloatArray, factor: float, kernel: str) -> bool:
    """Whether the separable kernel can be used, and is worth it (or asked for)."""
    k = keys.shape[1]
    possible = k in SEPARABLE_FROM and _largest(queries, keys) * factor < 1e5
    if kernel == "separable" and not possible:
        raise ValueError(
            "kernel separable needs keys with one to three coordinates and scores below 1e5: got "
            f"{k} coordinates, scores up to {_largest(queries, keys) * factor:.3g}."
        )
    if not possible or kernel == "separable":
        return possible
    count = min(len(queries), len(keys))
    if k < 3 or not 3_000 <= count < SEPARABLE_FROM[k]:
        return count >= SEPARABLE_FROM[k]
    # In space it depends on the scores: are there fewer moments than tokens?
    b = factor * np.abs(queries).max(axis=0) * np.ptp(keys, axis=0) / 2.0
    return 2 * math.prod(order_for(float(size), LARGEST_ORDER[k]) for size in b) <= count


def _largest(queries: FloatArray, keys: FloatArray) -> float:
    """A bound on |<q, k>| over all centred keys."""
    low, high = keys.min(axis=0), keys.max(axis=0)
    radius = float(np.linalg.norm((high - low).astype(float))) / 2.0
    return radius * float(np.sqrt(np.einsum("ij,ij->i", queries, queries).max()))


def _threads(wanted: int | None, entries: int) -> int:
    """How many threads to use."""
    wanted = wanted or options.threads
    if wanted is not None:
        return max(1, wanted)
    if entries < THREADED_ENTRIES:
        return 1
    told = os.environ.get("ATTNLIB_THREADS", "")
    if told.isdigit() and int(told) > 0:
        return int(told)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _blocks(
    queries: FloatArray,
    keys: FloatArray,
    factor: float,
    values: FloatArray,
    threads: int | None = None,
) -> FloatArray:
    """Every score once, in blocks that stay in cache, rows shared among threads."""
    m, n = len(queries), len(keys)
    out = np.empty((m, values.shape[1]), dtype=values.dtype)
    count = _threads(threads, m * n)
    # Threads hand over to one another between array operations: larger ones, fewer times.
    entries = BLOCK_ENTRIES if count == 1 else 2 * BLOCK_ENTRIES
    if _largest(queries, keys) * factor <= _SAFE[out.dtype]:
        part, rows = _unshifted(queries, keys, factor, values, out, entries)
    else:
        rows = max(1, entries // n)

        def part(blocks: list[slice]) -> None:
            for block in blocks:
                weights, total = _exponentials(queries[block], keys, factor, floor=_FLOOR)
                np.divide(weights @ values, total, out=out[block])

    blocks = [slice(start, start + rows) for start in range(0, m, rows)]
    if count == 1 or len(blocks) == 1:
        part(blocks)
    else:
        with ThreadPoolExecutor(count) as pool:
            for _ in pool.map(part, [blocks[k::count] for k in range(count)]):
                pass
    return out


def _unshifted(
    queries: FloatArray,
    keys: FloatArray,
    factor: float,
    values: FloatArray,
    out: FloatArray,
    entries: int,
) -> tuple[Callable[[list[slice]], None], int]:
    """Rows of blocks for scores so small that no exponential overflows: no row maximum is needed."""
    columns = min(256, len(keys))
    # Softmax sees differences of keys only: centred, scores are smallest.
    centred = np.ascontiguousarray((keys - (keys.min(axis=0) + keys.max(axis=0)) / 2).T)
    summed = np.column_stack([values, np.ones(len(values), dtype=values.dtype)])
    # Powers of 2 are faster than powers of e.
    scaled = queries * queries.dtype.type(factor / LOG2)
    rows = max(1, entries // columns)

    def part(blocks: list[slice]) -> None:
        held = np.empty(entries, dtype=out.dtype)
        for block in blocks:
            query = scaled[block]
            total = np.zeros((len(query), summed.shape[1]), dtype=out.dtype)
            for start in range(0, centred.shape[1], columns):
                some = centred[:, start : start + columns]
                weights = held[: len(query) * some.shape[1]].reshape(len(query), -1)
                np.matmul(query, some, out=weights)
                np.exp2(weights, out=weights)
                total += weights @ summed[start : start + columns]
            np.divide(total[:, :-1], total[:, -1:], out=out[block])

    return part, rows


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
        weights = np.exp(np.maximum(scores, _FLOOR))
        total = weights.sum(axis=1, keepdims=True)
        mean = weights @ values / total
        # (e^{2 eta} - 1) P without forming e^{2 eta}: P itself may have underflowed to 0.
        scores += shift
        weights = np.exp(np.clip(scores, _FLOOR, np.log(total))) * (-np.expm1(-shift) / total)
        for column in range(values.shape[1]):
            spread = np.abs(values[:, column] - mean[:, column, None])
            out[block, column] = np.einsum("ij,ij->i", weights, spread)
    return out


def exponent(array: FloatArray) -> int:
    """Binary exponent of the largest entry (0 for zeros): ldexp(array, -exponent) is of size 1."""
    return int(np.frexp(max(array.max(), -array.min()))[1])


def _scaled(
    queries: FloatArray, keys: FloatArray, log_scale: float, always: bool = False
) -> tuple[FloatArray, FloatArray, float]:
    """Bring queries and keys to a size at which no score overflows; the rest is the factor."""
    p, q = exponent(queries), exponent(keys)
    if log_scale == 0.0 and abs(p) + abs(q) < 900 and not always:
        return queries, keys, 1.0
    return np.ldexp(queries, -p), np.ldexp(keys, -q), factor_of(log_scale + (p + q) * LOG2)


def factor_of(log_factor: float) -> float:
    """e^{log_factor}, cut off where a larger one would change no attention matrix."""
    return math.exp(max(-_LARGEST_LOG, min(_LARGEST_LOG, log_factor)))


def _exponentials(
    queries: FloatArray, keys: FloatArray, factor: float, floor: float | None = None
) -> tuple[FloatArray, FloatArray]:
    scores = queries @ keys.T
    scores -= np.maximum.reduce(scores, axis=1, keepdims=True)
    if factor != 1.0:
        scores *= factor
    if floor is not None:
        np.maximum(scores, floor, out=scores)
    np.exp(scores, out=scores)
    return scores, np.add.reduce(scores, axis=1, keepdims=True)
