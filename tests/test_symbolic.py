"""Exact classification, and the equations in SymPy against the numeric ones."""

import numpy as np
import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Matrix, Rational, diag, eye

from attnlib import SelfAttention, classify, symbolic

a, b = sp.symbols("a b", positive=True)
u = sp.Symbol("u", real=True)
SHEAR = Matrix([[1, 2, 3], [0, 1, 4], [0, 0, 1]])
TURN = Matrix([[0, 1, 0], [-1, 0, 0], [0, 0, 1]])


def of(V: Matrix, A: Matrix | None = None):  # type: ignore[no-untyped-def]
    return classify(eye(V.rows), eye(V.rows) if A is None else A, V)


@pytest.mark.parametrize(
    ("V", "A", "theorem"),
    [
        (eye(2), None, "3.1"),
        (a * eye(2), Matrix([[2, 1], [1, 2]]), "3.1"),
        (-a * eye(3), None, "collapse"),
        (SHEAR * diag(1, 1, Rational(-1, 2)) * SHEAR.inv(), None, "5.2"),
        (SHEAR * diag(1, 1, -1) * SHEAR.inv(), None, None),
        (SHEAR * diag(2, 1, -1) * SHEAR.inv(), None, "4.2"),
        (SHEAR * diag(2, 1, -2) * SHEAR.inv(), None, None),
        (SHEAR * TURN * SHEAR.inv(), None, None),
        (SHEAR * (TURN + diag(0, 0, Rational(1, 10**30))) * SHEAR.inv(), None, "4.2"),
        (SHEAR * (TURN - diag(0, 0, Rational(1, 10**30))) * SHEAR.inv(), None, None),
        (Matrix([[1, 1], [0, 1]]), None, None),
        (diag(1 + Rational(1, 10**60), 1), None, "4.2"),
        (Matrix([[0, 1], [1, 0]]), None, None),
        (Matrix([[1, 1], [1, 0]]), None, "4.2"),
        (Matrix([[0, 1, 0], [0, 0, 1], [2, 0, 0]]), None, None),
        (Matrix([[1, 1], [1, 0]]), Matrix([[0, 1], [-1, 0]]), None),
        (Matrix([[1, 1], [1, 0]]), Matrix([[1, -2], [0, 1]]), "4.2"),
        (Matrix([[1, 1], [1, 0]]), Matrix([[1, -3], [0, 1]]), None),
        (Matrix([[1, 1], [1, 0]]), Matrix([[1, -1], [0, -1]]), None),  # exactly 0
        (Matrix([[sp.sqrt(2), 1], [0, 1]]), None, "4.2"),
        (Matrix([[sp.sqrt(2), 1], [0, -sp.sqrt(2)]]), None, None),
        (diag(a + b, a), None, "4.2"),
        (diag(a, a, -a / 2), None, "5.2"),
        (Matrix([[a, b], [b, a]]), None, "4.2"),
        (Matrix([[a, b], [-b, a]]), None, None),
        (Matrix([[a, 1], [0, a]]), None, None),
    ],
)
def test_exact_verdict(V: Matrix, A: Matrix | None, theorem: str | None) -> None:
    regime = of(V, A)
    assert regime.theorem == theorem and not regime.undecided


def test_what_sympy_cannot_decide_is_undecided_with_readings() -> None:
    regime = of(diag(a, b))
    assert regime.undecided and regime.theorem is None
    assert regime.readings == {"a leads": "4.2", "b leads": "4.2", "a = b": "3.1"}
    regime = of(u * eye(2))
    assert regime.undecided and {"3.1", "collapse", None} <= set(regime.readings.values())
    jordan = of(Matrix([[1, u], [0, 1]]))  # u = 0 is the identity
    assert jordan.undecided and {"3.1", None} <= set(jordan.readings.values())
    assert classify(u, u, a).undecided and regime.perturbation is None


def test_double_eigenvalue_that_floats_leave_open_is_decided() -> None:
    V = SHEAR * diag(1, 1, Rational(-1, 2)) * SHEAR.inv() / 3
    numeric = classify(np.eye(3), np.eye(3), np.array(V, dtype=float))
    assert of(V).theorem == "5.2"
    assert numeric.undecided and "5.2" in numeric.readings.values()


def test_normal_is_the_left_eigenvector_exactly() -> None:
    V = Matrix([[2, 3], [0, 1]])
    regime = of(V)
    assert sp.simplify(regime.normal * V - 2 * regime.normal) == sp.zeros(1, 2)
    golden = of(Matrix([[1, 1], [1, 0]]))
    assert sp.N(golden.leading) == pytest.approx((1 + 5**0.5) / 2)
    numeric = np.array(golden.normal.evalf(), dtype=float)[0]
    assert abs(numeric[0] / numeric[1]) == pytest.approx((1 + 5**0.5) / 2)


def test_codimension_counts_exactly() -> None:
    V = Matrix([[2, 0, 0, 0], [0, 0, 1, 0], [0, -1, 0, 0], [0, 0, 0, Rational(1, 10**60)]])
    assert of(V).codimension == 2  # +-i lie on the imaginary axis


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(-4, 4), min_size=9, max_size=9), st.sampled_from(["I", "A"]))
def test_exact_and_numeric_never_contradict(entries: list[int], form: str) -> None:
    V = Matrix(3, 3, entries)
    A = eye(3) if form == "I" else Matrix([[1, 2, 0], [-2, 1, 1], [0, 1, -1]])
    exact = of(V, A)
    numeric = classify(np.eye(3), np.array(A, dtype=float), np.array(V, dtype=float))
    assert not exact.undecided
    if not numeric.undecided:
        assert numeric.theorem == exact.theorem
    else:
        assert exact.theorem in numeric.readings.values()
    for key, row in exact.hypotheses.items():
        for left, right in zip(row, numeric.hypotheses[key], strict=True):
            if None not in (left.holds, right.holds) and "phi" not in left.name:
                agree = left.holds == right.holds
                assert agree or None in [h.holds for h in numeric.hypotheses[key]]


def test_bad_weights_are_named() -> None:
    with pytest.raises(ValueError, match=r"V must have real entries.*real=True"):
        of(sp.Symbol("c") * eye(2))
    with pytest.raises(ValueError, match="V must be square"):
        classify(eye(2), eye(2), Matrix([[1, 2]]))
    with pytest.raises(ValueError, match="Q and K must have the same shape"):
        classify(eye(2), eye(3), eye(2))
    with pytest.raises(ValueError, match="V must act on tokens of dimension 2"):
        classify(eye(2), eye(2), eye(3))


def test_explain_and_html_in_exact_mode() -> None:
    regime = of(Matrix([[1, 1], [1, 0]]))
    assert "Theorem 4.2 applies" in str(regime) and "<table" in regime._repr_html_()


def test_velocity_is_the_numeric_one() -> None:
    rng = np.random.default_rng(0)
    Q, K, V, x = (rng.normal(size=s) for s in ((1, 2), (1, 2), (2, 2), (3, 2)))
    exact = symbolic.velocity(*(Matrix(m) for m in (Q, K, V, x)))
    numeric = SelfAttention(Q, K, V).velocity(0.0, x)
    assert np.abs(np.array(exact, dtype=float) - numeric).max() < 1e-13


def test_rescaled_equation_from_the_original() -> None:
    """z = e^{-tV} x: dz/dt = e^{-tV} (dx/dt - V x)."""
    t = sp.Symbol("t", real=True)
    z = symbolic.token_symbols(2, 2, "z")
    V = diag(1, 2)
    flow = (t * V).exp()
    x = z * flow.T
    expected = (symbolic.velocity(eye(2), eye(2), V, x) - x * V.T) * flow.inv().T
    given_ = symbolic.rescaled_velocity(eye(2), eye(2), V, z, t)
    point = dict(zip(z, (0.3, -0.2, 0.5, 0.7), strict=True)) | {t: 0.4}
    assert np.abs(np.array((expected - given_).subs(point).evalf(), dtype=float)).max() < 1e-13


def test_reductions_follow_from_the_equation() -> None:
    r = sp.Symbol("r", positive=True)
    pair = symbolic.velocity(1, 1, b, Matrix([-r, r]))
    assert sp.simplify((pair[1] - symbolic.pair_rate(r, b)).rewrite(sp.exp)) == 0
    triple = symbolic.velocity(1, 1, 1, Matrix([-r, 0, r]))
    assert triple[1] == 0 and sp.simplify(triple[2] - symbolic.triple_rate(r)) == 0
    half = sp.sqrt(3) / 2
    simplex = Matrix([[r, 0], [-r / 2, half * r], [-r / 2, -half * r]])
    speed = symbolic.velocity(eye(2), eye(2), -eye(2), simplex)
    assert sp.simplify(speed[0, 0] - symbolic.simplex_rate(r, 2, -1)) == 0


def test_reductions_on_the_sphere() -> None:
    theta, beta = sp.symbols("theta beta", positive=True)
    angle = theta / 2
    x = Matrix([[sp.cos(angle), sp.sin(angle)], [sp.cos(angle), -sp.sin(angle)]])
    speed = symbolic.velocity(beta * eye(2), eye(2), eye(2), x)
    tangent = Matrix([-sp.sin(angle), sp.cos(angle)])
    rate = 2 * (speed[0, :] * tangent)[0]
    point = {theta: 1.3, beta: 0.7}
    assert abs((rate - symbolic.circle_pair_rate(theta, beta)).subs(point).evalf()) < 1e-14
    # Two tokens are equiangular, with rho = cos(theta).
    rho = symbolic.equiangular_rate(sp.cos(theta), 2, beta)
    chain = -sp.sin(theta) * symbolic.circle_pair_rate(theta, beta)
    assert abs((rho - chain).subs(point).evalf()) < 1e-14


def test_layer_is_one_euler_step() -> None:
    x, step = symbolic.token_symbols(2, 1), sp.Rational(1, 10)
    moved = symbolic.layer(1, 1, 1, x, step)
    assert sp.simplify(moved - x - step * symbolic.velocity(1, 1, 1, x)) == sp.zeros(2, 1)
