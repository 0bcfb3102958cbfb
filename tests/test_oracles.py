"""Every oracle of (1.1): solutions computed elsewhere with 30 digits, to 1e-9 or better."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attnlib import SelfAttention, integrate, layers, tokens

ENTRIES = json.loads((Path(__file__).parent / "data" / "oracles.json").read_text())
OF_11 = [
    entry for entry in ENTRIES if "circle" not in entry["kind"] and "sphere" not in entry["kind"]
]
TOLERANCE = 1e-9


def _case(entry: dict) -> tuple[SelfAttention, np.ndarray, np.ndarray]:
    """System, tokens and the true tokens at entry["t"]."""
    kind = entry["kind"]
    if "simplex" in kind:
        d = entry["d"]
        sign = -1.0 if "V=-I" in kind else 1.0
        start = tokens.simplex(d, entry["r0"])
        end = start * (float(entry["r"]) / entry["r0"])
        return SelfAttention(np.eye(d), np.eye(d), sign * np.eye(d)), start, end
    system = SelfAttention(entry["Q"], entry["K"], entry["V"])
    if kind.startswith("full"):
        return system, np.array(entry["tokens"], dtype=float), np.array(entry["x"], dtype=float)
    start = np.array(entry["tokens"], dtype=float)[:, None]
    return system, start, start / start[-1] * float(entry["u"])


@pytest.mark.parametrize("entry", OF_11, ids=lambda e: f"{e['kind'][:14]}-{e['t']}")
def test_oracle(entry: dict) -> None:
    system, start, end = _case(entry)
    path = integrate(system, start, entry["t"])
    assert path.success
    assert np.abs(path.at(entry["t"]) - end).max() < TOLERANCE
    assert np.abs(path.tokens[-1] - end).max() < TOLERANCE


def test_every_oracle_is_either_tested_or_of_the_normalised_dynamics() -> None:
    assert len(OF_11) == 13
    assert len(ENTRIES) - len(OF_11) == 4


# The dossier's table, section 5: (tokens, Q, V, time, what, value).
@pytest.mark.parametrize(
    ("start", "t", "index", "value"),
    [
        ([-0.3, 0.3], 2.0, 1, 0.374559133186402),
        ([-0.5, 0.5], 2.0, 1, 1.39076175341283),
        ([-1.0, 1.0], 2.0, 1, 7.00705636543814),
        ([-0.5, 0.0, 0.5], 1.0, 2, 0.61005900659657),
        ([-0.5, 0.0, 0.5], 2.0, 2, 0.842442589424319),
        ([-0.3, 1.1], 1.0, 0, 0.644534241009381),
        ([-0.3, 1.1], 3.0, 1, 20.5434271936317),
    ],
)
def test_line(start: list[float], t: float, index: int, value: float) -> None:
    path = integrate(SelfAttention(1, 1, 1), start, t)
    assert path.at(t)[index, 0] == pytest.approx(value, rel=1e-9)


def test_attention_of_pairs() -> None:
    for u0, value in ((0.3, 0.569690640914138), (0.5, 0.979536496397928)):
        path = integrate(SelfAttention(1, 1, 1), [-u0, u0], 2.0)
        assert path.attention(2.0)[1, 1] == pytest.approx(value, abs=1e-10)
    path = integrate(SelfAttention(1, 1, 1), [-0.3, 1.1], 1.0)
    assert path.attention(1.0)[0, 1] == pytest.approx(0.798503873467494, abs=1e-10)


def test_opposite_sign_of_the_scores() -> None:
    path = integrate(SelfAttention(1, -1, 1), [-0.3, 1.1], 2.0)
    assert path.at(2.0)[:, 0] == pytest.approx([1.36369495312557, 2.23767191160958], rel=1e-9)


def test_collapse_far_out() -> None:
    path = integrate(SelfAttention(1, 1, -1), [-1.0, 1.0], 1000.0)
    assert path.at(1.0)[1, 0] == pytest.approx(0.598394862358264, rel=1e-9)
    assert path.at(10.0)[1, 0] == pytest.approx(0.219847721590675, rel=1e-9)
    assert path.at(1000.0)[1, 0] == pytest.approx(0.0223569138160488, rel=1e-9)


def test_edge_midpoint_early() -> None:
    path = integrate(
        SelfAttention(np.eye(2), np.eye(2), np.eye(2)), [[1, 0.8], [1, -0.8], [0.4, 0]], 1
    )
    expected = [[2.6010410617696, 1.6719546653473], [2.6010410617696, -1.6719546653473]]
    assert np.abs(path.at(1.0)[:2] - expected).max() < 1e-9
    assert np.abs(path.at(1.0)[2] - [1.9280115610316, 0.0]).max() < 1e-9


@pytest.mark.parametrize(
    ("step", "depth", "rescaled"),
    [(0.1, 50, 0.93841352336961), (0.05, 400, 0.943233046545542), (0.025, 800, 0.945735467720735)],
)
def test_layers_of_a_pair(step: float, depth: int, rescaled: float) -> None:
    path = layers(SelfAttention(1, 1, 1), [-1.0, 1.0], depth, step)
    assert path.rescaled[-1, 1, 0] == pytest.approx(rescaled, rel=1e-10)
