"""Time to classify weights, beforehand: a Markdown table."""

from __future__ import annotations

import statistics
import time

import numpy as np

from attnlib import LowRank, classify


def cases() -> dict[str, tuple[object, object, object]]:
    """Weights by name."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape)

    turn = np.linalg.qr(normal(3, 3))[0]
    head = LowRank(normal(384, 32), normal(32, 384))
    return {
        "d = 1": (1.0, 2.0, 3.0),
        "d = 3, random": (normal(3, 3), normal(3, 3), normal(3, 3)),
        "d = 3, double eigenvalue, undecided": (
            np.eye(3),
            np.eye(3),
            turn @ np.diag([1, 1, -0.5]) @ turn.T,
        ),
        "d = 32, random": (normal(32, 32), normal(32, 32), normal(32, 32)),
        "d = 384, rank 32, LowRank": (normal(32, 384), normal(32, 384), head),
        "d = 384, random, dense": (normal(32, 384), normal(32, 384), normal(384, 384)),
    }


def milliseconds(weights: tuple[object, object, object]) -> list[float]:
    """Times of repeated calls, for at least half a second."""
    classify(*weights)
    found: list[float] = []
    while sum(found) < 500.0 or len(found) < 5:
        start = time.perf_counter()
        classify(*weights)
        found.append(1e3 * (time.perf_counter() - start))
    return found


def main() -> None:
    """Print the table."""
    print("| weights | median ms | worst ms | verdict |")
    print("| --- | ---: | ---: | --- |")
    for name, weights in cases().items():
        times = milliseconds(weights)
        regime = classify(*weights)
        verdict = "undecided" if regime.undecided else regime.theorem or "none"
        print(f"| {name} | {statistics.median(times):.2f} | {max(times):.2f} | {verdict} |")


if __name__ == "__main__":
    main()
