"""Clusters that nobody leaves: limits certified where leaders are not."""

from __future__ import annotations

import numpy as np
import pytest

from attnlib import SelfAttention, limit, tokens
from attnlib._clusters import clusters_of


def _random_good(seed: int) -> tuple[SelfAttention, np.ndarray]:
    """Gaussian weights with a real positive leading eigenvalue 1 and <Q phi, K phi> > 0, d = 2."""
    rng = np.random.default_rng(seed)
    while True:
        V = rng.standard_normal((2, 2))
        values, vectors = np.linalg.eig(V)
        k = int(np.abs(values).argmax())
        if values[k].imag == 0.0 and abs(values[1 - k]) <= 0.95 * abs(values[k]):
            break
    Q, K, phi = rng.standard_normal((2, 2)), rng.standard_normal((2, 2)), vectors[:, k].real
    system = SelfAttention(Q, K * np.sign((Q @ phi) @ (K @ phi)), V / values[k].real)
    return system, tokens.box(int(rng.integers(3, 31)), 2, 2.0, seed=rng)


def test_labels_follow_pointers_to_their_cycle() -> None:
    label = clusters_of(np.array([1, 0, 0, 2, 4, 4]))
    assert len(set(label[[0, 1, 2, 3]])) == 1 and label[4] == label[5] != label[0]
    assert (clusters_of(np.arange(3)) == [0, 1, 2]).all()


def test_most_random_good_triples_are_certified_and_the_boxes_hold() -> None:
    """Random weights, A V far from symmetric: here two tokens of a cluster often share its lead."""
    count, only_clusters = 0, 0
    for seed in range(60):
        system, x = _random_good(seed)
        found = limit(system, x)
        count += found.certified
        if not found.certified or found.leaders_certified:
            continue
        only_clusters += 1
        assert found.reason and len(np.unique(found.points @ np.ones(2))) <= 3
        end = min(found.time + 2.0, float(found._known().first.knots[-1]))
        assert end >= found.time
        z = found.rescaled_at(end) @ np.linalg.inv(_modes(system)).T
        assert (np.abs(z[:, 0] - found.modes[:, 0]) <= found.mode_error[0] * 1.01).all()
    assert count >= 57 and only_clusters >= 1


def _modes(system: SelfAttention) -> np.ndarray:
    values, right = np.linalg.eig(system.V)
    return right[:, np.argsort(-values.real)].real


@pytest.mark.parametrize("seed", range(12))
def test_a_double_eigenvalue_split_by_rounding_is_one(seed: int) -> None:
    """S diag(1, 1, mu) S^-1 in float64 has a complex leading pair as often as not."""
    rng = np.random.default_rng(seed)
    S, W = rng.standard_normal((3, 3)), rng.standard_normal((3, 3))
    mu = rng.uniform(-0.8, 0.8)
    V = S @ np.diag([1.0, 1.0, mu]) @ np.linalg.inv(S)
    found = limit(SelfAttention(W, W, V), tokens.box(6, 3, 1.0, seed=seed))
    assert np.allclose(found.rates, [1.0, 1.0, mu], atol=1e-9) and np.isrealobj(found.rates)
    assert "complex" not in found.reason
