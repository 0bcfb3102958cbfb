"""Collapse (V = -lam I): the whitening law, its first correction, the centroid."""

from __future__ import annotations

import numpy as np
import pytest

from attnlib import SelfAttention, integrate, limit, tokens

X = tokens.box(40, 3, 1, seed=0) * [1, 2, 0.3]


@pytest.mark.parametrize(("lam", "A"), [(1.0, np.eye(3)), (2.0, np.diag([1.0, 0.5, 2.0]))])
def test_whitening_with_its_first_correction(lam: float, A: np.ndarray) -> None:
    system = SelfAttention(A, np.eye(3), -lam * np.eye(3))
    found = limit(system, X)
    assert found.certified and np.abs(found.points).max() == 0
    assert np.allclose(found.attention, 1 / 40)
    law = found.asymptotics
    for t in (1e3, 1e4):
        y = integrate(system, X, t).at(t) @ np.sqrt(A)
        covariance = np.cov(y.T, bias=True)
        seen = np.linalg.eigvalsh(2 * lam * t * covariance)
        predicted = law.whitening(t)
        # The correction explains most of what separates the spectrum from 1.
        assert np.abs(seen - predicted).max() < 0.02 * np.abs(seen - 1).max() + 1e-5
        assert np.linalg.norm(y.mean(axis=0)) == pytest.approx(law.centroid_norm(t), rel=0.15)


def test_from_when_the_law_holds() -> None:
    system = SelfAttention(np.eye(3), np.eye(3), -np.eye(3))
    law = limit(system, X).asymptotics
    t = law.holds_from(0.01)
    assert np.abs(law.whitening(t) - 1).max() <= 0.01 < np.abs(law.whitening(0.9 * t) - 1).max()
    seen = np.cov(integrate(system, X, t).at(t).T, bias=True)
    assert np.abs(np.linalg.eigvalsh(2 * t * seen) - 1).max() < 0.0105


def test_centroid_decays_with_power_five_halves() -> None:
    system = SelfAttention(np.eye(3), np.eye(3), -np.eye(3))
    path = integrate(system, X, 1e4)
    sizes = [np.linalg.norm(path.at(t).mean(axis=0)) for t in (1e3, 1e4)]
    assert np.log10(sizes[0] / sizes[1]) == pytest.approx(2.5, abs=0.05)


def test_flat_clouds_whiten_in_their_plane() -> None:
    flat = X.copy()
    flat[:, 2] = 0.0
    law = limit(SelfAttention(np.eye(3), np.eye(3), -np.eye(3)), flat).asymptotics
    assert law.rank == 2 and law.whitening(1e6) == pytest.approx([1, 1], abs=1e-3)
