"""Attention-weighted means of many tokens in few dimensions, in nearly linear time.

exp<q, k> is a product over coordinates. For keys in a box with centre c and half widths r, write
k = c + r u with u in [-1, 1]^k and interpolate each factor in Chebyshev's points xi of order p:

    exp<q, k> = e^{<q, c>} prod_a e^{b_a u_a},   b_a = q_a r_a,   e^{b u} ~ sum_m e^{b xi_m} l_m(u),

so that sum_j exp<q, k_j> v_j needs of the keys only the p^k moments sum_j prod_a l_{m_a}(u_ja) v_j,
whatever the number of tokens. The error of one factor is at most 4 sum_{m >= p} I_m(|b|) (book,
*A million tokens*). It is relative to the largest exponential in the *box*: where the keys that
a query sees carry much less than that, the box is halved for this query, and where they carry next
to nothing it is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import ive

from ._check import FloatArray

EPS = float(np.finfo(float).eps)

#: Largest order of interpolation, by the number of coordinates of a key.
LARGEST_ORDER = {1: 400, 2: 110, 3: 32}

#: Error of interpolation in a box, relative to the largest exponential there.
TRUNCATION = 1e-20

#: Halvings of the boxes that bound from below what a query sees.
BOUND_DEPTH = 8

#: Keys that are summed one by one.
FEW = 128

#: No key's score exceeds the largest one known for a query by more: exponentials stay far from overflow.
SLACK = 300.0

#: Rows, or keys, worked on at a time.
CHUNK = 1024


def order_for(b: float, largest: int) -> int:
    """Smallest p with 4 sum_{m >= p} I_m(b) <= TRUNCATION e^b; largest + 1 if it is beyond `largest`."""
    if b == 0.0:
        return 1
    terms = ive(np.arange(largest + 40), b)
    tails = 4.0 * np.cumsum(terms[::-1])[::-1]
    fits = np.flatnonzero(tails <= TRUNCATION)
    return min(int(fits[0]) if len(fits) else largest + 1, largest + 1)


@dataclass(eq=False)
class Box:
    """Some keys, the smallest box around them, and, when asked for, its halves and moments."""

    keys: FloatArray
    values: FloatArray
    reach: FloatArray
    """Largest |q_a| of the queries."""
    whole: int
    """How many keys there are in all."""
    kept: FloatArray | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        low, high = self.keys.min(axis=0), self.keys.max(axis=0)
        self.centre, self.radius = (low + high) / 2.0, (high - low) / 2.0
        self.count = len(self.keys)
        k = self.keys.shape[1]
        self.orders = [order_for(float(b), LARGEST_ORDER[k]) for b in self.reach * self.radius]
        fits = max(self.orders) <= LARGEST_ORDER[k]
        self.separable = fits and math.prod(self.orders) <= 2 * self.count
        self.wide = float(self.reach @ self.radius) > 3.0 and self.count > 1
        self.small = self.count <= FEW

    @cached_property
    def halves(self) -> list[Box]:
        """The two halves, cut across the direction in which exponentials vary most."""
        axis = int((self.reach * self.radius).argmax())
        right = self.keys[:, axis] > self.centre[axis]
        order = np.argsort(right, kind="stable")  # in place: halves are views of the whole
        self.keys[:], self.values[:] = self.keys[order], self.values[order]
        edge = self.count - int(right.sum())
        parts = [part for part in (slice(0, edge), slice(edge, None)) if len(self.keys[part])]
        return [Box(self.keys[p], self.values[p], self.reach, self.whole) for p in parts]

    def most(self, queries: FloatArray) -> FloatArray:
        """Bound from above on the scores <q, k> in the box, one for each query."""
        return queries @ self.centre + np.abs(queries) @ self.radius

    def points(self, axis: int) -> FloatArray:
        """Chebyshev's points in [-1, 1]."""
        p = self.orders[axis]
        return np.cos(np.pi * (np.arange(p) + 0.5) / p)

    def moments(self, share: Share) -> FloatArray:
        """sum_j prod_a l_{m_a}(u_ja) v_j, shape (p_k, ..., p_1, columns of v), then its size."""
        if self.kept is None:
            k = len(self.orders)
            radius = np.where(self.radius > 0.0, self.radius, 1.0)

            def part(share_of_keys: slice) -> FloatArray:
                total = np.zeros((self.orders[-1], columns))
                for chunk in _chunks(share_of_keys.stop, step, share_of_keys.start):
                    u = np.clip((self.keys[chunk] - self.centre) / radius, -1.0, 1.0)
                    polynomials = [_chebyshev(u[:, a], self.orders[a]) for a in range(k)]
                    weights = self.values[chunk]
                    for p in polynomials[:-1]:
                        weights = (p.T[:, :, None] * weights[:, None, :]).reshape(len(weights), -1)
                    total += polynomials[-1] @ weights
                return total

            columns = math.prod(self.orders[:-1]) * self.values.shape[1]
            step = max(64, (1 << 17) // columns)
            total = sum(share(part, _chunks(self.count, max(step, self.count // 8))))
            tensor = np.asarray(total).reshape(*self.orders[::-1], -1)
            for a in range(k):
                xi, p = self.points(a), self.orders[a]
                weight = np.where(np.arange(p) > 0, 2.0, 1.0) / p
                to_points = _chebyshev(xi, p).T * weight
                tensor = np.moveaxis(np.tensordot(to_points, tensor, (1, k - 1 - a)), 0, k - 1 - a)
            # What rounding of the sums over keys may have brought is spread over all points.
            size = np.abs(tensor[..., -1:])
            size = size + 0.01 * math.sqrt(size.size) * size.mean()
            self.kept = np.concatenate([tensor, size], axis=-1)
        return self.kept


#: How the parts of a sum are shared out: `map`, or that of a pool of threads.
Share = Callable[[Callable[[slice], Any], Iterable[slice]], Iterable[Any]]


def separable_mean(
    queries: FloatArray, keys: FloatArray, values: FloatArray, threads: int, tolerance: float
) -> FloatArray:
    """Attention-weighted means, each to `tolerance` of the largest |v|.

    Parameters
    ----------
    queries : (m, k) array
        Scores are <q, k>, with k = 1, 2 or 3.
    keys : (n, k) array
    values : (n, p) array
    threads : int
    tolerance : float
        Bound on what truncation leaves out, relative to the sum of a query's exponentials; rounding
        comes to a few eps times how much a query sees less than its box (kept below it too).
    """
    keys = keys - (keys.min(axis=0) + keys.max(axis=0)) / 2.0
    columns = np.column_stack([values, np.ones(len(keys))])
    root = Box(keys, columns, np.abs(queries).max(axis=0), len(keys))
    with ThreadPoolExecutor(threads) as pool:
        share: Share = map if threads == 1 else pool.map
        out = _Sum(queries, root, share, tolerance).run()
    return out[:, :-1] / out[:, -1:]


class _Sum:
    """sum_j exp(<q, k_j> - top) v_j for each query, box by box."""

    def __init__(self, queries: FloatArray, root: Box, share: Share, tolerance: float) -> None:
        self.queries, self.root, self.share = queries, root, share
        self.log_tolerance = math.log(tolerance)
        self.out = np.zeros((len(queries), root.values.shape[1]))
        self.top = largest_scores(queries, root, share)
        self.least = self._lower_bound()

    def run(self) -> FloatArray:
        """Each box for the queries that see it; its halves for those that need a closer look."""
        k, n = self.queries.shape[1], self.root.count
        waiting = [(self.root, np.arange(len(self.queries)))]
        while waiting:
            box, rows = waiting.pop()
            loss = box.most(self.queries[rows]) - self.top[rows] - self.least[rows] + math.log(n)
            seen = loss > self.log_tolerance
            rows, loss = rows[seen], loss[seen]
            if box.separable and not box.small:
                good = loss + math.log(k * TRUNCATION) <= self.log_tolerance
                rows = np.concatenate([rows[~good], self._expand(box, rows[good])])
            if box.small or len(box.halves) == 1:
                self._direct(box, rows)
            elif len(rows):
                waiting.extend((half, rows) for half in box.halves)
        return self.out

    def _lower_bound(self) -> FloatArray:
        """Logarithm of a lower bound of sum_j exp(<q, k_j> - top), from boxes some halvings down."""
        boxes = [self.root]
        for _ in range(BOUND_DEPTH):
            boxes = [half for box in boxes for half in (box.halves if box.wide else [box])]
        centres = np.array([box.centre for box in boxes])
        radii = np.array([box.radius for box in boxes])
        counts = np.array([float(box.count) for box in boxes])

        def part(chunk: slice) -> FloatArray:
            q = self.queries[chunk]
            scores = q @ centres.T
            scores -= np.abs(q) @ radii.T
            scores -= self.top[chunk, None]
            np.exp(scores, out=scores)
            return np.log(np.maximum(scores @ counts, 1.0))

        return np.concatenate(list(self.share(part, _chunks(len(self.queries), 128))))

    def _expand(self, box: Box, rows: np.ndarray) -> np.ndarray:
        """Add what the keys of a box give to these rows, by its moments; return the rows left out.

        Left out is where terms of both signs cancel so far that rounding would exceed the tolerance.
        """
        if not len(rows):
            return rows
        moments = box.moments(self.share)
        k = len(box.orders)
        points = [box.points(a) for a in range(k)]

        def part(chunk: slice) -> np.ndarray:
            which = rows[chunk]
            q = self.queries[which]
            b = q * box.radius
            size = np.abs(b)
            tensor = moments.reshape(box.orders[-1], -1)
            for a in range(k - 1, -1, -1):
                factor = np.exp(b[:, a, None] * points[a] - size[:, a, None])
                if a == k - 1:
                    tensor = factor @ tensor
                else:
                    shape = (len(q), box.orders[a], -1)
                    tensor = np.matmul(factor[:, None, :], tensor.reshape(shape))[:, 0, :]
            log = box.most(q) - self.top[which]
            noise = np.log(4.0 * EPS * tensor[:, -1] + 1e-300) + log - self.least[which]
            good = noise <= self.log_tolerance + math.log(box.count / box.whole)
            self.out[which[good]] += tensor[good, :-1] * np.exp(log[good])[:, None]
            return which[~good]

        return np.concatenate(list(self.share(part, _chunks(len(rows), CHUNK // 2))))

    def _direct(self, box: Box, rows: np.ndarray) -> None:
        """Add what the few keys of a box give to these rows, one by one."""

        def part(chunk: slice) -> None:
            which = rows[chunk]
            scores = self.queries[which] @ box.keys.T
            scores -= self.top[which, None]
            np.exp(scores, out=scores)
            self.out[which] += scores @ box.values

        # Equal keys may be many: then fewer rows at a time.
        step = max(1, CHUNK * FEW // max(FEW, box.count))
        for _ in self.share(part, _chunks(len(rows), step)):
            pass


def largest_scores(queries: FloatArray, root: Box, share: Share) -> FloatArray:
    """A score of each query that no other of its scores exceeds by more than `SLACK`.

    The largest over keys that are extreme in some directions; then boxes that could hold a score
    larger by `SLACK` are searched for it.
    """
    keys = root.keys
    k = keys.shape[1]
    if k == 1:
        directions = np.array([[-1.0], [1.0]])
    elif k == 2:
        angle = np.pi * np.arange(256) / 128
        directions = np.column_stack([np.cos(angle), np.sin(angle)])
    else:
        height = 1.0 - (2.0 * np.arange(600) + 1.0) / 600
        angle, width = np.pi * (1.0 + 5.0**0.5) * np.arange(600), np.sqrt(1.0 - height**2)
        directions = np.column_stack([width * np.cos(angle), width * np.sin(angle), height])

    def furthest(chunk: slice) -> FloatArray:
        return keys[chunk][np.unique((directions @ keys[chunk].T).argmax(axis=1))]

    def among(chunk: slice) -> FloatArray:
        return (queries[chunk] @ corners.T).max(axis=1)

    found = np.concatenate(list(share(furthest, _chunks(len(keys), CHUNK))))
    corners = found[np.unique((directions @ found.T).argmax(axis=1))]
    top = np.concatenate(list(share(among, _chunks(len(queries), 256))))

    waiting = [(root, np.arange(len(queries)))]
    while waiting:
        box, rows = waiting.pop()
        rows = rows[box.most(queries[rows]) > top[rows] + SLACK]
        if not len(rows):
            continue
        if box.small or len(box.halves) == 1:
            for chunk in _chunks(len(rows), CHUNK):
                which = rows[chunk]
                top[which] = np.maximum(top[which], (queries[which] @ box.keys.T).max(axis=1))
        else:
            waiting.extend((half, rows) for half in box.halves)
    return top


def _chebyshev(u: FloatArray, p: int) -> FloatArray:
    """T_0(u), ..., T_{p-1}(u), shape (p, len(u))."""
    out = np.empty((p, len(u)))
    out[0] = 1.0
    if p > 1:
        out[1] = u
    for k in range(2, p):
        np.multiply(out[k - 1], 2.0 * u, out=out[k])
        out[k] -= out[k - 2]
    return out


def _chunks(stop: int, size: int, start: int = 0) -> list[slice]:
    return [slice(low, min(low + size, stop)) for low in range(start, stop, size)]
