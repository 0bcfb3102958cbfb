"""Budgets of the core: the paper's four polytope settings, and what `import attnlib` costs.

Medians over repeats in one run; ratios are what counts, since machines are noisy.
"""

from __future__ import annotations

import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import baseline
import numpy as np

from attnlib import SelfAttention, integrate, tokens

SETTINGS = [(20, 2), (40, 2), (20, 3), (40, 3)]
T = 5.0


def seconds(call: Callable[[], object], repeats: int) -> float:
    """Median time of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def settings() -> None:
    """Triple loop against integrate at rtol 1e-9, and errors of both.

    The loop as published is timed over the first of its 50 steps; all steps do the same work.
    """
    print(
        "| n | d | loop as published, s | with e^tV once a step, s | integrate, ms | ratios ",
        end="",
    )
    print("| error of the loop | of integrate |\n|--:|--:|--:|--:|--:|--:|--:|--:|")
    for n, d in SETTINGS:
        eye = np.eye(d)
        system, x = SelfAttention(eye, eye, eye), tokens.box(n, d, 5, seed=1)
        before = seconds(lambda s=system, x=x: integrate(s, x, T, rtol=1e-9), 25)
        start = time.perf_counter()
        loop = baseline.run(eye, eye, eye, x, T)
        hoisted = time.perf_counter() - start
        start = time.perf_counter()
        baseline.run(eye, eye, eye, x, 0.1, as_published=True)
        published = round(T / 0.1) * (time.perf_counter() - start)
        after = seconds(lambda s=system, x=x: integrate(s, x, T, rtol=1e-9), 25)
        ours = statistics.median([before, after])
        truth = integrate(system, x, T, rtol=1e-13).rescaled_at(T)
        found = integrate(system, x, T, rtol=1e-9).rescaled_at(T)
        print(
            f"| {n} | {d} | {published:.0f} | {hoisted:.1f} | {1e3 * ours:.1f} "
            f"| {published / ours:.0f}, {hoisted / ours:.0f} "
            f"| {np.abs(loop - truth).max():.0e} | {np.abs(found - truth).max():.0e} |"
        )


def importing() -> None:
    """Time of `import attnlib`, and of numpy alone, in fresh interpreters."""

    def fresh(code: str) -> float:
        return seconds(lambda: subprocess.run([sys.executable, "-c", code], check=True), 7)

    empty = fresh("pass")
    print(f"\n`import attnlib`: {fresh('import attnlib') - empty:.3f} s", end="; ")
    print(
        f"with integrate and limit loaded: {fresh('import attnlib; attnlib.limit') - empty:.2f} s"
    )


if __name__ == "__main__":
    print(f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}\n")
    settings()
    importing()
