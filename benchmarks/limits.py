"""Rates and budgets of `limit`: how often it certifies, whether it is right, what it costs.

    python benchmarks/limits.py            everything, 1,000 data per regime
    python benchmarks/limits.py 100        100 data per regime

A certified limit counts as wrong if a run of the same tokens in another order, at a tolerance a
hundred times finer, has other leaders (where both certify them) or limits apart by more than both
error bounds.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable

import numpy as np
import scipy.integrate

from attnlib import SelfAttention, integrate, limit, tokens

Datum = tuple[SelfAttention, np.ndarray]


def scalar_form(V: np.ndarray) -> Callable[[np.random.Generator], SelfAttention]:
    """A = I with a given V."""
    eye = np.eye(len(V))
    return lambda rng: SelfAttention(eye, eye, V)


def good_triple(d: int) -> Callable[[np.random.Generator], SelfAttention]:
    """Gaussian Q, K, V, kept if V leads by a twentieth; signs chosen so that the triple is good."""

    def draw(rng: np.random.Generator) -> SelfAttention:
        while True:
            V = rng.standard_normal((d, d))
            values, vectors = np.linalg.eig(V)
            k = int(np.abs(values).argmax())
            others = np.abs(np.delete(values, k)).max(initial=0.0)
            if values[k].imag == 0.0 and others <= 0.95 * abs(values[k]):
                break
        Q, K, phi = rng.standard_normal((d, d)), rng.standard_normal((d, d)), vectors[:, k].real
        return SelfAttention(Q, K * np.sign((Q @ phi) @ (K @ phi)), V / values[k].real)

    return draw


def symmetric_good_triple(d: int) -> Callable[[np.random.Generator], SelfAttention]:
    """A = I and a symmetric V with eigenvalues 1 and others uniform in [-0.9, 0.9]."""

    def draw(rng: np.random.Generator) -> SelfAttention:
        basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
        values = np.concatenate([[1.0], rng.uniform(-0.9, 0.9, d - 1)])
        V = (basis * values) @ basis.T
        return SelfAttention(np.eye(d), np.eye(d), 0.5 * (V + V.T))

    return draw


def symmetric_paranormal(rng: np.random.Generator) -> SelfAttention:
    """A = I and a symmetric V with eigenvalues 1, 1 and one uniform in [-0.8, 0.8]."""
    basis = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    V = (basis * np.array([1, 1, rng.uniform(-0.8, 0.8)])) @ basis.T
    return SelfAttention(np.eye(3), np.eye(3), 0.5 * (V + V.T))


def oblique_paranormal(rng: np.random.Generator) -> SelfAttention:
    """V = S diag(1, 1, mu) S^-1 and A = W^T W with Gaussian S and W, |mu| <= 0.8."""
    S, W = rng.standard_normal((3, 3)), rng.standard_normal((3, 3))
    return SelfAttention(W, W, S @ np.diag([1, 1, rng.uniform(-0.8, 0.8)]) @ np.linalg.inv(S))


def positive_form(rng: np.random.Generator) -> SelfAttention:
    """V = I in the plane, A = W^T W with Gaussian W."""
    W = rng.standard_normal((2, 2))
    return SelfAttention(W, W, np.eye(2))


REGIMES: dict[str, Callable[[np.random.Generator], SelfAttention]] = {
    "V = I, d = 2": scalar_form(np.eye(2)),
    "V = I, d = 3": scalar_form(np.eye(3)),
    "V = I, d = 2, random A > 0": positive_form,
    "d = 1": scalar_form(np.eye(1)),
    "V = diag(1, .5, .2)": scalar_form(np.diag([1, 0.5, 0.2])),
    "V = diag(1, 1, -.5)": scalar_form(np.diag([1, 1, -0.5])),
    "good triple, V symmetric, A = I, d = 2": symmetric_good_triple(2),
    "good triple, V symmetric, A = I, d = 3": symmetric_good_triple(3),
    "paranormal, V symmetric, A = I, d = 3": symmetric_paranormal,
    "random good triple, d = 2": good_triple(2),
    "random good triple, d = 3": good_triple(3),
    "random paranormal, d = 3": oblique_paranormal,
}


def datum(name: str, seed: int) -> Datum:
    """3 to 30 tokens uniform in a box of half-width 2."""
    rng = np.random.default_rng([len(name), sum(map(ord, name)), seed])
    n = int(rng.integers(3, 31))
    system = REGIMES[name](rng)
    return system, tokens.box(n, system.d, 2.0, seed=rng)


def wrong(system: SelfAttention, x: np.ndarray, found: object, seed: int) -> tuple[bool, float]:
    """Whether a certified limit contradicts the finer run; their distance."""
    order = np.random.default_rng(seed).permutation(len(x))
    finer = limit(system, x[order], rtol=1e-13)
    if not finer.certified:
        return False, 0.0
    apart = float(np.abs(found.points[order] - finer.points).max())
    leaders = np.array_equal(found.leader_of[order], order[finer.leader_of])
    leaders |= not (found.leaders_certified and finer.leaders_certified)
    return not leaders or apart > found.error + finer.error, apart


def rates(count: int) -> None:
    """Certification, truth and time, regime by regime."""
    print(
        "| regime | certified | wrong | largest error seen | largest bound | median, ms | slowest, s |"
    )
    print("|:--|--:|--:|--:|--:|--:|--:|")
    reasons: dict[str, Counter[str]] = {}
    for name in REGIMES:
        certified, bad, errors, bounds, cost = 0, 0, [0.0], [0.0], []
        reasons[name] = Counter()
        for seed in range(count):
            system, x = datum(name, seed)
            start = time.process_time()
            found = limit(system, x)
            cost.append(time.process_time() - start)
            if not found.certified:
                reasons[name][found.reason.split(":")[0].split(" of token")[0][:70]] += 1
                continue
            certified += 1
            contradicted, apart = wrong(system, x, found, seed)
            bad += contradicted
            errors.append(apart)
            bounds.append(found.error)
        print(
            f"| {name} | {certified / count:.1%} of {count} | {bad} | {max(errors):.0e} "
            f"| {max(bounds):.0e} | {1e3 * statistics.median(cost):.0f} | {max(cost):.1f} |",
            flush=True,
        )
    print("\nNot certified:")
    for name, counter in reasons.items():
        for reason, times in counter.most_common():
            print(f"- {name}: {times} x {reason}")


def against_integrate(count: int = 40) -> None:
    """n = 40, d = 3, V = I: time to the certified limit over that of `integrate` to its time."""
    system, ratios = scalar_form(np.eye(3))(np.random.default_rng(0)), []
    for seed in range(count):
        x = tokens.box(40, 3, 2.0, seed=seed)
        found = limit(system, x)
        ours, theirs = [], []
        for _ in range(3):
            start = time.process_time()
            limit(system, x)
            ours.append(time.process_time() - start)
            start = time.process_time()
            integrate(system, x, found.time)
            theirs.append(time.process_time() - start)
        ratios.append(min(ours) / min(theirs))
    print(
        f"\nlimit / integrate to the same time, n = 40, d = 3, V = I: {statistics.median(ratios):.2f}"
    )


def against_plain(t_final: float = 40.0, patience: float = 240.0) -> None:
    """V = diag(1, .5, .2), n = 20: plain DOP853 on original coordinates, and what it gets wrong."""
    V = np.diag([1, 0.5, 0.2])
    system, x = scalar_form(V)(np.random.default_rng(0)), tokens.box(20, 3, 2.0, seed=0)
    start = time.process_time()
    found = limit(system, x)
    mine = found.rescaled_at(t_final)
    ours = time.process_time() - start

    solver = scipy.integrate.DOP853(
        lambda t, y: system.velocity(t, y.reshape(x.shape)).reshape(-1),
        0.0,
        x.reshape(-1),
        t_final,
        rtol=1e-10,
        atol=1e-10,
    )
    start = time.process_time()
    while solver.status == "running" and time.process_time() - start < patience:
        solver.step()
    theirs = time.process_time() - start
    z = solver.y.reshape(x.shape) * np.exp(-solver.t * np.diagonal(V))
    mine = found.rescaled_at(solver.t)
    apart = np.abs(z - mine).max(axis=0) / np.abs(mine).max(axis=0)
    print(
        f"\nV = diag(1, .5, .2), n = 20: limit and its closed form at t = {t_final:g} take {ours:.3f} s; "
        f"plain DOP853 (rtol 1e-10) had come to t = {solver.t:.2f} in {theirs:.0f} s, {theirs / ours:.0f} times "
        f"as long, and its coordinates are off by {', '.join(f'{a:.0e}' for a in apart)} "
        f"(certified error {found.error:.0e})."
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    rates(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
    against_integrate()
    against_plain()
