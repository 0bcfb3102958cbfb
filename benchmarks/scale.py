"""Speed and scale: one evaluation against its peers, whole runs up to a million tokens, many runs.

Prints the tables; with --write they go to benchmarks/scale.json too, from which the page "How fast it is" is made. Peers that are not installed are left
out by name. Medians; ratios in one run are what counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from core import seconds

from attnlib import SelfAttention, integrate, sweep, tokens
from attnlib.attention import weighted_mean

HERE = Path(__file__).parent
SIZES = [(4000, 2), (10000, 2), (4000, 3), (10000, 3), (4000, 64)]


def plain(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """What one writes first: blocks of 256 rows, row maxima, exponentials."""
    out = np.empty((len(q), v.shape[1]))
    for start in range(0, len(q), 256):
        scores = q[start : start + 256] @ k.T
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[start : start + 256] = weights @ v / weights.sum(axis=1, keepdims=True)
    return out


def peers() -> tuple[dict[str, Callable[..., Any]], list[str]]:
    """Other implementations that are installed, and the names of those that are not."""
    found: dict[str, Callable[..., Any]] = {"numpy, plain blocks": plain}
    missing = []
    try:
        import torch

        def sdpa(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Any:
            q, k, v = (torch.from_numpy(a)[None, None] for a in (q, k, v))
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=1.0)

        found["torch"] = sdpa
    except ImportError:
        missing.append("torch")
    try:
        import jax

        jax.config.update("jax_enable_x64", True)
        softmax = jax.jit(lambda q, k, v: jax.nn.softmax(q @ k.T, axis=1) @ v)
        found["jax"] = lambda q, k, v: softmax(q, k, v).block_until_ready()
    except ImportError:
        missing.append("jax")
    try:
        from pykeops.numpy import LazyTensor

        found["keops"] = lambda q, k, v: (
            LazyTensor(q[:, None]) | LazyTensor(k[None])
        ).sumsoftmaxweight(LazyTensor(v[None]), axis=1)
    except ImportError:
        missing.append("keops")
    return found, missing


def milliseconds(call: Callable[[], object]) -> float:
    """Median of five calls, after one to warm up."""
    call()
    return 1e3 * seconds(call, 5)


def error(q: np.ndarray, k: np.ndarray, v: np.ndarray, found: np.ndarray) -> float:
    """Largest error of a hundred rows against long double."""
    rows = np.linspace(0, len(q) - 1, 100).astype(int)
    scores = q[rows].astype(np.longdouble) @ k.T.astype(np.longdouble)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return float(np.abs(found[rows] - weights @ v / weights.sum(axis=1, keepdims=True)).max())


def kernels() -> tuple[list[dict[str, Any]], list[str]]:
    """One evaluation, scores up to 10."""
    others, missing = peers()
    some, held = np.linspace(-10.0, 0.0, 1 << 15), np.empty(1 << 15)
    rows = []
    for n, d in SIZES:
        x = np.random.default_rng(n + d).uniform(-1.0, 1.0, size=(n, d))
        q = 10.0 * x / d
        ours = {
            "attnlib, chosen by itself": {},
            "blocks": {"kernel": "blocks"},
            "blocks, one thread": {"kernel": "blocks", "threads": 1},
            "blocks, float32": {"dtype": np.float32},
        }
        row: dict[str, Any] = {"n": n, "d": d}
        for name, choice in ours.items():
            row[name] = milliseconds(lambda c=choice, q=q, x=x: weighted_mean(q, x, x, **c))
        for name, call in others.items():
            row[name] = milliseconds(lambda f=call, q=q, x=x: f(q, x, x))
        row["exponentials alone, one thread"] = (
            n * n / len(some) * milliseconds(lambda: np.exp2(some, out=held))
        )
        row["error"] = error(q, x, x, weighted_mean(q, x, x))
        rows.append(row)
        print({k: round(v, 1) if k != "error" else f"{v:.0e}" for k, v in row.items()}, flush=True)
    return rows, missing


def runs(largest: int, depth: float = 1.5) -> tuple[list[dict[str, Any]], float]:
    """Whole runs in the plane, V = I: seconds, and the exponent of n."""
    eye = np.eye(2)
    rows, n = [], 10_000
    while n <= largest:
        x = tokens.box(n, 2, 1.0, seed=0)
        start = time.perf_counter()
        run = integrate(SelfAttention(eye, eye, eye), x, depth, rtol=1e-5, method="RK45")
        used = time.perf_counter() - start
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        evaluations = run.statistics.evaluations
        rows.append(
            {"n": n, "depth": depth, "seconds": used, "evaluations": evaluations, "MB": memory}
        )
        print(rows[-1], flush=True)
        n *= 10
    logs = np.log([[row["n"], row["seconds"]] for row in rows])
    return rows, float(np.polyfit(*logs.T, 1)[0]) if len(rows) > 1 else float("nan")


def box(rng: np.random.Generator) -> np.ndarray:
    """Forty tokens of the paper's box."""
    return tokens.box(40, 2, 5.0, seed=rng)


def many(count: int) -> list[dict[str, Any]]:
    """Certified limits, n = 40, d = 2, V = I: how many a second with one worker and with two."""
    eye, rows = np.eye(2), []
    for workers in (1, 2):
        with ProcessPoolExecutor(workers) as executor:
            sweep(SelfAttention(eye, eye, eye), box, runs=4, executor=executor, batch=1)
            start = time.perf_counter()
            got = sweep(SelfAttention(eye, eye, eye), box, runs=count, executor=executor, seed=1)
            used = time.perf_counter() - start
        share = float(got["certified"].mean())
        rows.append(
            {"workers": workers, "runs": count, "a second": count / used, "certified": share}
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure, print, and keep if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the results for the book")
    parser.add_argument("--largest", type=int, default=100_000, help="tokens of the largest run")
    parser.add_argument("--sweep", type=int, default=300, help="runs of the sweep")
    asked = parser.parse_args()
    # In this order: memory is measured while little has been used, and no peer is loaded at a fork.
    sweeps = many(asked.sweep)
    whole, exponent = runs(asked.largest)
    evaluations, missing = kernels()
    table = {
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
        "missing": missing,
        "evaluation": evaluations,
        "runs": whole,
        "exponent": exponent,
        "sweep": sweeps,
    }
    print(f"exponent {exponent:.2f}; not installed: {', '.join(missing) or 'none'}")
    if asked.write:
        (HERE / "scale.json").write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
