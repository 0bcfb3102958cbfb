"""Eigenstructure of V: vectors, radii, clusters, splitting, low rank."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlib import LowRank
from attnlib.spectrum import Spectrum

SEEDS = st.integers(0, 2**32 - 1)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@settings(deadline=None)
@given(SEEDS, st.integers(1, 6))
def test_left_and_right_eigenvectors(seed: int, d: int) -> None:
    V = normal(seed, d, d)
    s = Spectrum.of(V)
    scale = np.linalg.norm(V) * s.kappa.max()
    assert np.abs(V @ s.right - s.right * s.values).max() <= 1e-13 * scale
    assert np.abs(s.left.conj().T @ V - s.values[:, None] * s.left.conj().T).max() <= 1e-13 * (
        scale * s.kappa.max()
    )
    assert np.allclose((s.left.conj() * s.right).sum(axis=0), 1)
    assert np.allclose(np.linalg.norm(s.left, axis=0), s.kappa)
    assert (np.diff(np.abs(s.values)) <= 1e-13 * scale).all()


@settings(deadline=None)
@given(SEEDS, st.integers(2, 5))
def test_radii_cover_what_rounding_does(seed: int, d: int) -> None:
    """The same matrix in other coordinates, rounded: eigenvalues move less than the radii."""
    rng = np.random.default_rng(seed)
    V = rng.normal(size=(d, d))
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    a, b = Spectrum.of(V), Spectrum.of(turn @ V @ turn.T)
    for value, radius in zip(a.values, a.radii, strict=True):
        nearest = np.abs(b.values - value).argmin()
        assert abs(b.values[nearest] - value) <= radius + b.radii[nearest]


def test_values_by_falling_modulus_not_real_part() -> None:
    assert Spectrum.of(np.diag([1.0, -3.0, 2.0])).values.tolist() == [-3, 2, 1]


def test_condition_number_of_a_known_matrix() -> None:
    """V = [[1, c], [0, 0]]: both eigenvalues have kappa = sqrt(1 + c^2)."""
    s = Spectrum.of([[1.0, 7.0], [0.0, 0.0]])
    assert s.kappa == pytest.approx([np.sqrt(50)] * 2, rel=1e-12)
    assert np.abs(s.left[:, 0].real / s.left[0, 0].real - [1, 7]).max() < 1e-14
    assert np.abs(s.right[:, 0].imag).max() == 0 and abs(s.right[1, 0]) < 1e-15


def test_diagonal_is_exact() -> None:
    s = Spectrum.of(np.diag([1.0, 1.0 + 2**-52, 1.0]))
    assert s.exact and not s.radii.any()
    assert [(c.size, c.centre.real) for c in s.clusters] == [(1, 1 + 2**-52), (2, 1)]


def test_a_full_matrix_is_not_exact() -> None:
    s = Spectrum.of([[1.0, 1.0], [1.0, 1.0]])
    assert not s.exact and (s.radii > 0).all()
    assert s.symmetric


@pytest.mark.parametrize("m", [2, 3, 4])
def test_jordan_block_moves_by_a_root_of_the_rounding(m: int) -> None:
    block = np.eye(m) + np.diag(np.ones(m - 1), 1)
    rng = np.random.default_rng(m)
    turn = np.linalg.qr(rng.normal(size=(m + 1, m + 1)))[0]
    V = np.zeros((m + 1, m + 1))
    V[:m, :m], V[m, m] = block, -0.5
    lead = Spectrum.of(turn @ V @ turn.T).clusters[0]
    assert lead.size == m
    assert abs(lead.centre - 1) < 1e-13
    root = np.finfo(float).eps ** (1 / m)
    assert root < lead.radius < 50 * root
    assert lead.departure == pytest.approx(np.sqrt(m - 1), abs=1e-3) and lead.noise < 1e-12


def test_defective_eigenvalue_leaves_the_others_sharp() -> None:
    s = Spectrum.of([[-0.5, 1.0, 0.0], [0.0, -0.5, 0.0], [0.0, 0.0, 1.0]])
    assert [c.size for c in s.clusters] == [1, 2]
    assert s.clusters[0].radius < 1e-14 < 1e-9 < s.clusters[1].radius < 1e-6
    assert s.positive == (1, 0)


def test_semisimple_double_eigenvalue_is_one_sharp_cluster() -> None:
    turn = np.linalg.qr(normal(0, 3, 3))[0]
    lead = Spectrum.of(turn @ np.diag([1, 1, -0.5]) @ turn.T).clusters[0]
    assert lead.merged and lead.size == 2 and lead.radius < 1e-13
    assert lead.departure <= lead.noise


@pytest.mark.parametrize("gap", [1e-6, 1e-9, 1e-12])
def test_what_differs_is_told_apart(gap: float) -> None:
    turn = np.linalg.qr(normal(1, 3, 3))[0]
    s = Spectrum.of(turn @ np.diag([1 + gap, 1, -0.5]) @ turn.T)
    assert [c.size for c in s.clusters] == [1, 1, 1]


@settings(deadline=None)
@given(SEEDS)
def test_splitting_is_invariant_and_projects(seed: int) -> None:
    rng = np.random.default_rng(seed)
    M = rng.normal(size=(4, 4)) + 4 * np.eye(4)
    V = M @ np.diag([2, 2, 1, -1]) @ np.linalg.inv(M)
    s = Spectrum.of(V)
    basis, dual = s.splitting(s.clusters[0])
    tolerance = 1e-11 * np.linalg.cond(M) ** 2
    assert np.abs(dual @ basis - np.eye(basis.shape[1])).max() < tolerance
    projector = basis @ dual
    assert np.abs(projector @ V - V @ projector).max() < tolerance
    if s.clusters[0].size == 2:
        assert np.abs(V @ basis - 2 * basis).max() < tolerance
        assert np.abs(projector @ M[:, 2:]).max() < tolerance


def test_positive_counts_what_is_sure_and_what_is_not() -> None:
    assert Spectrum.of(np.diag([2.0, -1.0, 0.0])).positive == (1, 0)
    assert Spectrum.of(normal(0, 6, 1) @ np.ones((1, 6))).positive[1] >= 4
    rank_one = LowRank(np.ones((6, 1)), np.ones((1, 6)))
    assert Spectrum.of(rank_one).positive == (1, 0)


@settings(deadline=None, max_examples=30)
@given(SEEDS)
def test_low_rank_agrees_with_dense(seed: int) -> None:
    V = LowRank(normal(seed, 12, 3), normal(seed + 1, 3, 12))
    low, full = Spectrum.of(V), Spectrum.of(V.dense())
    scale = np.linalg.norm(V.dense())
    assert np.abs(np.sort_complex(low.values) - np.sort_complex(full.values[:3])).max() <= (
        1e-13 * scale * full.kappa[:3].max()
    )
    assert low.clusters[-1].size == 9 and low.clusters[-1].exact
    dense = V.dense()
    assert np.abs(dense @ low.right - low.right * low.values).max() < 1e-12 * scale
    least = np.abs(low.values).min()
    rest = low.left.conj().T @ dense - low.values[:, None] * low.left.conj().T
    assert np.abs(rest).max() < 1e-11 * scale * low.kappa.max() * scale / least


def test_low_rank_with_dependent_columns_and_zero() -> None:
    V = LowRank([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]], [[1.0, 0.0, 2.0], [1.0, 0.0, 0.0]])
    assert abs(Spectrum.of(V).values[0] - 2) < 1e-14
    assert Spectrum.of(LowRank(np.zeros((3, 1)), np.ones((1, 3)))).exact


def test_low_rank_keeps_its_factors_and_says_what_is_wrong() -> None:
    V = LowRank([[1], [2]], [[3, 4]])
    assert V.shape == (2, 2) and V.dense().tolist() == [[3, 4], [6, 8]]
    with pytest.raises(ValueError, match=r"left .* right .*\(2, 1\) and \(1, 3\)"):
        LowRank([[1], [2]], [[3, 4, 5]])
    with pytest.raises(ValueError, match="read-only"):
        V.left[0, 0] = 0


def test_extreme_sizes_are_refused_with_a_remedy() -> None:
    with pytest.raises(ValueError, match="Rescale it"):
        Spectrum.of([[1e200, 1e200], [1e200, 0]])
    with pytest.raises(ValueError, match="V must be square"):
        Spectrum.of([[1.0, 2.0]])


def test_splitting_of_a_low_rank_double_eigenvalue() -> None:
    basis = normal(0, 6, 2)
    V = LowRank(basis, 3 * np.linalg.pinv(basis))
    s = Spectrum.of(V)
    assert s.clusters[0].size == 2 and s.clusters[0].merged
    inside, dual = s.splitting(s.clusters[0])
    assert inside.shape == (6, 2) and dual.shape == (2, 6)
    assert np.abs(3 * inside @ dual - V.dense()).max() < 1e-13
