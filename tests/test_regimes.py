"""classify: verdicts, hypotheses, honesty about precision, equivariance."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlib import LowRank, Regime, SelfAttention, classify
from attnlib.regimes import THEOREMS

SEEDS = st.integers(0, 2**32 - 1)
FIGURES = json.loads((Path(__file__).parent / "data" / "paper_figures.json").read_text())


def eye(d: int) -> np.ndarray:
    return np.eye(d)


def rotation(seed: int, d: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))[0]


def of(V: object, A: object = None) -> Regime:
    """Verdict with Q = I, K = A."""
    d = len(np.asarray(V))
    return classify(eye(d), eye(d) if A is None else A, V)


def held(regime: Regime, theorem: str) -> list[bool | None]:
    return [h.holds for h in regime.hypotheses[theorem]]


EXACT = [
    (eye(1), None, "2.1"),
    (-eye(1), None, "collapse"),
    (eye(3), None, "3.1"),
    (2.5 * eye(3), None, "3.1"),
    (eye(2), np.diag([1.0, 1e-30]), "3.1"),
    (np.diag([1, 1, -0.5]), None, "5.2"),
    (np.diag([1, 1, 0.0]), None, "5.2"),
    (np.diag([1, 0.999, -0.5]), None, "4.2"),
    (np.diag([1.0, -1.0]), None, None),
    (np.diag([1.0, 1.0, -1.0]), None, None),
    (np.diag([-2.0, 1.0]), None, None),
    (-eye(3), None, "collapse"),
    (-0.1 * eye(3), np.array([[2.0, 1, 0], [1, 2, 0], [0, 0, 1]]), "collapse"),
    (-eye(2), -eye(2), None),
    (eye(2), -eye(2), None),
    (eye(2), np.array([[1.0, 5], [-5, 1]]), None),
    (np.diag([2.0, 1]), np.array([[1.0, 5], [-5, 1]]), "4.2"),
    (np.diag([1.0, 1, 0]), np.array([[1.0, 1, 0], [-1, 1, 0], [0, 0, 1]]), None),
    (np.diag([2.0, 1]), np.diag([1.0, -7]), "4.2"),
    (np.diag([2.0, 1]), np.diag([-7.0, 1]), None),
    (np.array([[1.0, 1], [-1, 1]]), None, None),
    (np.zeros((2, 2)), None, None),
    (np.array([[1.0, 1], [1, 0]]), np.array([[0.0, 1], [-1, 0]]), None),
]


@pytest.mark.parametrize(("V", "A", "theorem"), EXACT)
def test_verdict(V: np.ndarray, A: np.ndarray | None, theorem: str | None) -> None:
    regime = of(V, A)
    assert not regime.undecided and regime.theorem == theorem
    assert regime.readings == {} and regime.perturbation is None
    assert bool(regime.failing) == (theorem is None)


def test_one_dimension_takes_numbers_and_systems() -> None:
    assert classify(1, 2, 3).theorem == "2.1"
    assert classify(SelfAttention(1, 2, 3)).theorem == "2.1"
    assert classify(-1, -1, 0.5).theorem == "2.1"
    assert classify([[1.0], [-2.0]], [[1.0], [-1.0]], 1).theorem == "2.1"
    assert classify(1e-200, 1e-200, 1).theorem == "2.1"
    regime = classify(1, -1, 1)
    assert regime.theorem is None and regime.geometry.startswith("one point")
    assert [h.name for h in regime.failing["2.1"]] == ["QK"]
    assert classify(0, 1, 1).theorem is None


def test_the_papers_figures() -> None:
    for name in ("hyperplanes_2d", "hyperplanes_3d_negative", "hyperplanes_3d_positive"):
        assert of(FIGURES[name]["V"]).theorem == "4.2"
    codimension = {
        "hyperplanes_2d": 1,
        "hyperplanes_3d_negative": 1,
        "hyperplanes_3d_positive": 3,
        "codimension": 2,
    }
    assert {name: of(FIGURES[name]["V"]).codimension for name in codimension} == codimension
    assert of(FIGURES["mixed"]["V"]).theorem == "5.2"
    leading = of(FIGURES["hyperplanes_2d"]["V"]).leading
    assert leading == pytest.approx(1.34799, abs=1e-5)


def test_the_normal_is_the_left_eigenvector() -> None:
    V = np.array(FIGURES["hyperplanes_3d_negative"]["V"])
    regime = of(V)
    assert np.abs(regime.normal @ V - regime.leading * regime.normal).max() < 1e-14
    assert np.abs(V @ regime.normal - regime.leading * regime.normal).max() > 0.1
    vectors = np.linalg.eig(V)
    right = vectors[1][:, np.abs(vectors[0]).argmax()].real
    assert abs(abs(regime.normal @ right) - 1) < 1e-14
    cosine = 1 / np.linalg.norm(regime.normal)
    assert np.degrees(np.arccos(cosine)) == pytest.approx(29.4, abs=0.05)


def test_rounded_double_eigenvalue_is_undecided_with_both_readings() -> None:
    R = rotation(0, 3)
    regime = of(R @ np.diag([1, 1, -0.5]) @ R.T)
    assert regime.undecided and regime.theorem is None and regime.codimension is None
    assert {"5.2", "4.2"} <= set(regime.readings.values())
    E, V = regime.perturbation, R @ np.diag([1, 1, -0.5]) @ R.T
    assert E is not None and regime.perturbation_norm == pytest.approx(np.linalg.norm(E, 2))
    assert 0 < regime.perturbation_norm < 1e-11
    after = of(V + E)
    assert after.theorem == "4.2" and not after.undecided
    assert held(regime, "5.2").count(None) == 1 and None in held(regime, "4.2")


@pytest.mark.parametrize(
    ("spectrum", "readings"),
    [
        ([1, 1, 1], {"3.1", "4.2"}),
        ([-1, -1, -1], {"collapse", None}),
        ([1, -1, 0.2], {"4.2", None}),
    ],
)
def test_rounded_ties(spectrum: list[float], readings: set[str | None]) -> None:
    M = np.array([[1.0, 0.3, 0.1], [0.2, 1, 0.3], [0, 0.7, 1]])
    V = M @ np.diag(spectrum) @ np.linalg.inv(M)
    assert np.count_nonzero(V - np.diag(np.diag(V)))
    regime = of(V)
    assert regime.undecided and readings <= set(regime.readings.values())
    assert regime.perturbation is not None and not of(V + regime.perturbation).undecided
    assert np.linalg.norm(regime.perturbation) < 1e-10


def test_tie_of_a_real_and_a_complex_leader() -> None:
    V = np.array([[0, 1.0, 0], [-1, 0, 0], [0, 0, 1]])
    for M in (eye(3), np.array([[1.0, 0.3, 0.1], [0.2, 1, 0.3], [0, 0.7, 1]])):
        regime = of(M @ V @ np.linalg.inv(M))
        assert regime.undecided and set(regime.readings.values()) == {"4.2", None}
    assert not of(np.diag([0.0, 0, 0.01]) + V).undecided
    assert of(np.diag([0.0, 0, 0.01]) + V).theorem == "4.2"
    regime = of(np.diag([0.0, 0, -0.01]) + V)
    assert regime.theorem is None and not regime.undecided and "complex" in regime.geometry


@pytest.mark.parametrize("m", [2, 3])
def test_defective_leader_is_never_the_mixed_regime(m: int) -> None:
    V = np.zeros((m + 1, m + 1))
    V[:m, :m] = eye(m) + np.diag(np.ones(m - 1), 1)
    for M in (eye(m + 1), rotation(m, m + 1)):
        regime = of(M @ V @ M.T)
        assert regime.theorem is None and regime.undecided
        assert set(regime.readings.values()) == {None, "4.2"}
        assert False in held(regime, "5.2") and False in held(regime, "3.1")
        assert regime.perturbation is not None
        assert of(M @ V @ M.T + regime.perturbation).theorem == "4.2"


def test_complex_defective_leaders_fail() -> None:
    C = np.array([[0, 1.0], [-1, 0]])
    V = np.block([[C, eye(2)], [np.zeros((2, 2)), C]])
    M = rotation(4, 4)
    assert of(M @ V @ M.T).theorem is None and not of(M @ V @ M.T).undecided


@pytest.mark.parametrize(("coupling", "undecided"), [(1e2, False), (1e3, False), (1e8, True)])
def test_far_from_normal(coupling: float, undecided: bool) -> None:
    """Eigenvalues 1, .5, .1 with condition numbers up to 1e17: 4.2 while they can be told apart."""
    V = np.array([[1, coupling, 0], [0, 0.5, coupling], [0, 0, 0.1]])
    R = rotation(2, 3)
    for matrix in (V, R @ V @ R.T):
        regime = of(matrix)
        assert regime.undecided == undecided
        assert regime.theorem == (None if undecided else "4.2")


@pytest.mark.parametrize("gap", [1e-3, 1e-6, 1e-10, 1e-12])
def test_gaps_wider_than_rounding_decide(gap: float) -> None:
    R = rotation(7, 3)
    regime = of(R @ np.diag([1 + gap, 1, 0.2]) @ R.T)
    assert regime.theorem == "4.2"
    margin = next(h.margin for h in regime.hypotheses["4.2"] if h.name.startswith("|lam_1|"))
    assert margin == pytest.approx(gap, abs=1e-14)


def test_positive_definite_in_its_symmetric_part_only() -> None:
    regime = of(eye(2), np.array([[1.0, 0.5], [-0.5, 1]]))
    names = {h.name: h.holds for h in regime.hypotheses["3.1"]}
    assert names == {
        "V = lam I": True,
        "A = Q^T K symmetric": False,
        "A positive definite": True,
    }


def test_rounding_of_the_product_counts_as_symmetric() -> None:
    R = rotation(3, 5)
    K = R @ np.diag([1, 2, 3, 4, 5.0]) @ R.T
    assert np.abs(K - K.T).max() > 0
    assert of(eye(5), K).theorem == "3.1"
    assert classify(R, R, eye(5)).theorem == "3.1"
    assert of(eye(5), K + 1e-9 * np.triu(np.ones((5, 5)), 1)).theorem is None


def test_definiteness_within_rounding_is_undecided() -> None:
    R = rotation(5, 2)
    regime = of(eye(2), R @ np.diag([1, 1e-18]) @ R.T)
    assert regime.undecided and set(regime.readings.values()) == {"3.1", None}
    assert of(eye(2), R @ np.diag([1, -1e-9]) @ R.T).theorem is None
    assert of(eye(2), R @ np.diag([1, 1e-9]) @ R.T).theorem == "3.1"
    # Q = K: A is a square, and its root decides.
    root = R @ np.diag([1, 1e-9]) @ R.T
    assert classify(root, root, eye(2)).theorem == "3.1"


def test_a_head_of_low_rank_is_singular() -> None:
    regime = classify([[1.0, 0]], [[1.0, 0]], eye(2))
    assert regime.theorem is None
    (definite,) = (h for h in regime.failing["3.1"])
    assert "rank at most 1" in definite.detail


@settings(deadline=None, max_examples=50)
@given(SEEDS)
def test_low_rank_values_give_the_dense_verdict(seed: int) -> None:
    rng = np.random.default_rng(seed)
    V = LowRank(rng.normal(size=(8, 2)), rng.normal(size=(2, 8)))
    Q, K = rng.normal(size=(2, 2, 8))
    low, full = classify(Q, K, V), classify(Q, K, V.dense())
    assert low.theorem == full.theorem and low.undecided == full.undecided
    if low.normal is not None:
        assert np.allclose(low.normal, full.normal, rtol=1e-6, atol=1e-8)
        # Structural zeros are known to be zero, from the factors only.
        assert low.codimension in (1, 2) and full.codimension in (None, low.codimension)


def test_nilpotent_product() -> None:
    regime = of(eye(2).tolist() and LowRank([[1.0], [0]], [[0, 1.0]]).dense())
    assert regime.theorem is None and regime.undecided
    assert classify(eye(2), eye(2), LowRank([[1.0], [0]], [[0, 1.0]])).theorem is None
    assert classify(eye(2), eye(2), LowRank([[1.0], [0]], [[1.0, 1]])).theorem == "4.2"


def transformed(kind: str, rng: np.random.Generator, Q, K, V):  # type: ignore[no-untyped-def]
    d = len(V)
    if kind == "permutation":
        p = rng.permutation(d)
        return Q[:, p], K[:, p], V[np.ix_(p, p)]
    if kind == "coordinates":
        M = rotation(int(rng.integers(2**31)), d) @ np.diag(rng.uniform(0.5, 2, d))
        W = np.linalg.inv(M)
        return Q @ W, K @ W, M @ V @ W
    a, b, c = np.exp(rng.uniform(-40, 40, 3))
    return a * Q, b * K, c * V


@settings(deadline=None, max_examples=200)
@given(SEEDS, st.integers(1, 5), st.sampled_from(["permutation", "coordinates", "scaling"]))
def test_verdicts_do_not_depend_on_coordinates(seed: int, d: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    Q, V = rng.normal(size=(d, d)), rng.normal(size=(d, d))
    K = Q if rng.random() < 0.5 else rng.normal(size=(d, d))
    if rng.random() < 0.5:
        V = V + 3 * np.linalg.norm(V) * np.outer(*rng.normal(size=(2, d)))
    before = classify(Q, K, V)
    after = classify(*transformed(kind, rng, Q, K, V))
    if not (before.undecided or after.undecided):
        assert before.theorem == after.theorem and before.codimension == after.codimension
        assert [held(before, t) for t in ("4.2", "5.2")] == [held(after, t) for t in ("4.2", "5.2")]
    assert not before.undecided


@settings(deadline=None, max_examples=50)
@given(SEEDS, st.floats(1e-30, 1e30))
def test_exact_input_stays_exact_when_scaled_and_permuted(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    values = rng.permutation([1.0, 1.0, -0.5, 0.25])
    assert of(np.diag(scale * values)).theorem == "5.2"
    assert of(scale * eye(4)).theorem == "3.1"
    assert of(-scale * eye(4)).theorem == "collapse"


def hard(rng: np.random.Generator) -> np.ndarray:
    """A matrix whose two leading eigenvalues are close, opposite, coupled or far from normal."""
    d, kind = int(rng.integers(2, 6)), int(rng.integers(5))
    values = rng.uniform(-1, 1, d)
    values[0] = 1.5
    D = np.diag(values)
    tiny = 10.0 ** rng.uniform(-17, -5)
    if kind == 0:
        D[1, 1] = 1.5 * (1 + tiny)
    elif kind == 1:
        D[1, 1], D[0, 1] = 1.5, 10.0 ** rng.uniform(-16, 2)
    elif kind == 2:
        D[1, 1] = -1.5 * (1 + tiny)
    elif kind == 3:
        D[1, 1], D[0, 1], D[1, 0] = 1.5, tiny, -tiny * rng.choice([1.0, 1e-6])
    else:
        D = D + np.triu(rng.normal(size=(d, d)), 1) * 10.0 ** rng.uniform(0, 5)
    M = rng.normal(size=(d, d))
    M = np.linalg.qr(M)[0] if rng.random() < 0.5 else M
    return M @ D @ np.linalg.inv(M)


@settings(deadline=None, max_examples=200)
@given(SEEDS)
def test_a_decided_verdict_survives_rounding_of_v(seed: int) -> None:
    rng = np.random.default_rng(seed)
    V = hard(rng)
    regime = of(V)
    for _ in range(4):
        E = rng.normal(size=V.shape)
        E *= np.finfo(float).eps * np.linalg.norm(V) / np.linalg.norm(E)
        other = of(V + E)
        if not (regime.undecided or other.undecided):
            assert regime.theorem == other.theorem
        if regime.theorem == "4.2":
            values = np.linalg.eigvals(V + E)
            values = values[np.argsort(-np.abs(values))]
            assert values[0].imag == 0 < values[0].real and abs(values[0]) > abs(values[1])


@pytest.mark.parametrize(("d", "expected"), [(2, 0.353), (3, 0.327)])
def test_how_often_ginibre_matrices_have_a_good_leader(d: int, expected: float) -> None:
    rng = np.random.default_rng(d)
    count = 2000
    good = sum(of(rng.normal(size=(d, d))).theorem == "4.2" for _ in range(count))
    assert abs(good / count - expected) < 4 * np.sqrt(expected * (1 - expected) / count)


def test_positive_matrices_are_good() -> None:
    rng = np.random.default_rng(0)
    assert all(of(rng.uniform(0.1, 1, (4, 4))).theorem == "4.2" for _ in range(50))


def test_the_form_needs_its_sign_and_not_definiteness() -> None:
    V = np.array([[2.0, 1], [0, 1]])  # phi_1 = e_1
    assert of(V, np.diag([1.0, -50])).theorem == "4.2"
    regime = of(V, np.diag([-1.0, 50]))
    assert regime.theorem is None and regime.codimension is None
    (failed,) = regime.failing["4.2"]
    assert failed.name == "<Q phi_1, K phi_1>" and failed.value == pytest.approx(-1)
    assert "not positive" in regime.geometry


def test_every_hypothesis_is_reported_in_the_order_of_the_theorems() -> None:
    regime = of(np.diag([1.0, 1, -0.5]))
    assert list(regime.hypotheses) == ["2.1", "3.1", "4.2", "5.2", "collapse"]
    assert [len(t.hypotheses) for t in THEOREMS] == [len(r) for r in regime.hypotheses.values()]
    assert all(h.name and h.must for row in regime.hypotheses.values() for h in row)
    text = regime.explain()
    assert text.startswith("Theorem 5.2 applies.") and str(regime) == text
    assert all(h.name in text for row in regime.hypotheses.values() for h in row)
    assert max(map(len, text.splitlines())) < 200


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.stack.append(tag)
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag


def test_html_is_a_table_with_caption_and_scopes() -> None:
    tags = _Tags()
    html = of(rotation(0, 3) @ np.diag([1, 1, -0.5]) @ rotation(0, 3).T)._repr_html_()
    tags.feed(html)
    assert not tags.stack
    assert sum(tag == "caption" for tag, _ in tags.seen) == 1
    assert {a.get("scope") for tag, a in tags.seen if tag == "th"} == {"col", "row"}
    assert "Undecided" in html and "&lt;Q phi_1" in html


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ((eye(2), eye(3), eye(2)), ValueError, "Q and K must have the same shape"),
        ((eye(2), eye(2), eye(3)), ValueError, "V must act on tokens of dimension 2"),
        ((eye(2), eye(2), np.ones((2, 3))), ValueError, "V must be square: got shape (2, 3)"),
        ((eye(2), eye(2), np.full((2, 2), np.nan)), ValueError, "V must be finite"),
        ((eye(2), eye(2), 1j * eye(2)), TypeError, "V must be real"),
        ((eye(2), "abc", eye(2)), TypeError, "K must hold real numbers"),
        ((eye(2), eye(2)), TypeError, "classify wants Q, K and V"),
        ((eye(2), eye(2), LowRank(np.ones((3, 1)), np.ones((1, 3)))), ValueError, "dimension 2"),
    ],
)
def test_bad_input_is_named(
    weights: tuple[object, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        classify(*weights)


def test_classify_does_not_import_sympy() -> None:
    code = (
        "import sys, attnlib; attnlib.classify(1, 1, 1); "
        "assert not {'sympy', 'matplotlib'} & set(sys.modules)"
    )
    root = Path(__file__).resolve().parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)
