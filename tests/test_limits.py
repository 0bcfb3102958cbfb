"""limit: certified states at t = infinity, against closed forms, forty digits, theory and malice."""

from __future__ import annotations

import itertools

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlib import Limit, PrecisionWarning, SelfAttention, integrate, limit, tokens

ROUNDS = settings(max_examples=10, deadline=None, derandomize=True)
SEEDS = st.integers(0, 10_000)


def _system(V: object, A: object = None) -> SelfAttention:
    V = np.atleast_2d(np.asarray(V, dtype=float))
    d = len(V)
    return SelfAttention(np.eye(d), np.eye(d) if A is None else A, V)


# Closed forms (dossier, section 5).
CLOSED = [
    ("pair", 1, [[-0.5], [0.5]], 1, 0.187376767908578),
    ("pair", 1, [[-1.0], [1.0]], 1, 0.948301957871481),
    ("cross", np.eye(2), [[1, 0], [-1, 0], [0, 1], [0, -1]], 0, 0.750667528013148),
    ("cross 3d", np.eye(3), [*np.eye(3).tolist(), *(-np.eye(3)).tolist()], 0, 0.594221843512991),
    ("simplex 2", np.eye(2), tokens.simplex(2), 0, 0.840823009026094),
    ("simplex 3", np.eye(3), tokens.simplex(3, 1.5), 0, 1.4602713812837),
    ("simplex 4", np.eye(4), tokens.simplex(4), 0, 0.640889970926204),
]


@pytest.mark.parametrize(("name", "V", "x", "token", "radius"), CLOSED, ids=lambda v: str(v)[:9])
def test_closed_forms(name: str, V: object, x: object, token: int, radius: float) -> None:
    found = limit(_system(V), np.asarray(x, dtype=float))
    assert found.certified
    error = abs(np.linalg.norm(found.points[token]) - radius)
    assert error <= found.error + 1e-14 and error < 1e-8
    assert len(found.leaders) == len(np.asarray(x))


def test_scaled_pair_and_products() -> None:
    assert abs(limit(SelfAttention(3, 1, 2), [-0.4, 0.4]).points[1, 0] - 0.292989063962443) < 1e-9
    found = limit(_system(np.diag([1, -0.5])), [[1, 0.7], [-1, 0.7]])
    assert np.abs(found.points - [[0.948301957871481, 0], [-0.948301957871481, 0]]).max() < 1e-9
    # Leaders in the contracted direction: x -> 0 there, z stays at 0.7.
    assert np.abs(found.rest).max() == 0.0
    assert np.abs(found.rescaled_at(50.0)[:, 1] - 0.7).max() < 1e-9
    mixed = np.array([[1, 0, 0.7], [-1, 0, 0.7], [0, 1, 0.7], [0, -1, 0.7]])
    found = limit(_system(np.diag([1, 1, -0.5])), mixed)
    assert np.abs(np.linalg.norm(found.points, axis=1) - 0.750667528013148).max() < 1e-9
    assert found.shape.kind == "polytope x subspace" and len(found.shape.vertices) == 4


def test_left_eigenvector_is_the_normal() -> None:
    s = np.array([[1.0, 1], [0, 1]])
    back = np.linalg.inv(s)
    system = SelfAttention(back, back, s @ np.diag([1, -0.5]) @ back)
    found = limit(system, np.array([[1, 0.7], [-1, 0.7]]) @ s.T)
    assert found.certified and found.codimension == 1
    assert np.abs(found.points @ [1, -1] - [0.948301957871481, -0.948301957871481]).max() < 1e-9
    assert found.shape.kind == "parallel hyperplanes"


def _forty_digits(x: np.ndarray, V: np.ndarray, A: np.ndarray, t: float, steps: int) -> np.ndarray:
    """z(t) by the classical Runge-Kutta scheme in 40 digits, with Richardson (V diagonal)."""
    n, d = x.shape
    rates = [mpmath.mpf(float(r)) for r in np.diagonal(V)]
    form = [[mpmath.mpf(float(a)) for a in row] for row in A]

    def velocity(s: mpmath.mpf, z: list) -> list:
        growth = [mpmath.exp(r * s) for r in rates]
        y = [[a * g for a, g in zip(row, growth, strict=True)] for row in z]
        out = []
        for i in range(n):
            query = [mpmath.fdot(y[i], [form[a][b] for a in range(d)]) for b in range(d)]
            scores = [mpmath.fdot(query, other) for other in y]
            top = max(scores)
            w = [mpmath.exp(a - top) for a in scores]
            total = mpmath.fsum(w)
            mean = [mpmath.fdot(w, [z[j][c] for j in range(n)]) / total for c in range(d)]
            out.append([rates[c] * (mean[c] - z[i][c]) for c in range(d)])
        return out

    def add(z: list, h: mpmath.mpf, *terms: tuple[int, list]) -> list:
        total = sum(weight for weight, _ in terms)
        return [
            [z[i][c] + h * sum(weight * k[i][c] for weight, k in terms) / total for c in range(d)]
            for i in range(n)
        ]

    def run(count: int) -> list:
        z = [[mpmath.mpf(float(a)) for a in row] for row in x]
        h = mpmath.mpf(t) / count
        for k in range(count):
            s = k * h
            k1 = velocity(s, z)
            k2 = velocity(s + h / 2, add(z, h / 2, (1, k1)))
            k3 = velocity(s + h / 2, add(z, h / 2, (1, k2)))
            k4 = velocity(s + h, add(z, h, (1, k3)))
            z = add(z, h, (1, k1), (2, k2), (2, k3), (1, k4))
        return z

    with mpmath.workdps(40):
        coarse, fine = run(steps), run(2 * steps)
        pairs = zip(itertools.chain(*coarse), itertools.chain(*fine), strict=True)
        return np.array([float(b + (b - a) / 15) for a, b in pairs]).reshape(n, d)


@pytest.mark.parametrize(
    ("V", "A", "seed"),
    [
        (np.eye(1), None, 0),
        (np.eye(2), None, 1),
        (np.eye(2), np.array([[1.5, 0.4], [0.4, 0.6]]), 2),
        (np.diag([1.0, 0.5, 0.2]), None, 3),
        (np.diag([1.0, 1.0, -0.5]), None, 4),
    ],
)
def test_against_forty_digits_far_beyond_certification(
    V: np.ndarray, A: np.ndarray | None, seed: int
) -> None:
    d = len(V)
    x = tokens.box(4, d, 1.5, seed=seed)
    found = limit(_system(V, A), x)
    assert found.certified
    t = found.time + 5.0
    truth = _forty_digits(x, V, np.eye(d) if A is None else A, t, 500)
    up = np.diagonal(V) > 0
    assert np.abs(found.rescaled_at(t) - truth)[:, up].max() < 2e-8
    # What is left between t and infinity is the follower's own decay.
    decay = np.abs(truth - truth[found.leader_of])[:, up].max() + 1e-8
    assert np.abs(found.points - truth)[:, up].max() <= decay + found.error
    if not up.all():
        x_t = found.at(t)[:, ~up]
        truth_x = truth[:, ~up] * np.exp(np.diagonal(V)[~up] * t)
        assert np.abs(x_t - truth_x).max() < 2e-8


REGIMES = {
    "line": (np.eye(1), 8, 2.0),
    "plane": (np.eye(2), 20, 3.0),
    "space": (np.eye(3), 20, 3.0),
    "fast and slow": (np.diag([1, 0.5, 0.2]), 20, 2.0),
    "mixed": (np.diag([1, 1, -0.5]), 20, 3.0),
    "non-normal": (np.array([[0.64709742, 0.81911926], [0.61210449, 0.63263484]]), 20, 5.0),
    "swirling rest": (
        np.array([[0.236, 0.060, 0.405], [0.813, 0.499, 0.338], [0.216, 0.385, 0.146]]),
        20,
        3.0,
    ),
}


@pytest.mark.parametrize("name", REGIMES)
def test_certified_limits_are_right(name: str) -> None:
    """Against the same datum at a hundred times the precision, carried on far beyond."""
    V, n, size = REGIMES[name]
    system = _system(V)
    certified = 0
    for seed in range(8):
        x = tokens.box(n, len(V), size, seed=seed)
        found = limit(system, x, rtol=1e-10)
        certified += found.certified
        if not found.certified:
            continue
        late = integrate(system, x, found.time + 1.0, method="RK45", rtol=1e-12)
        t = late.times[-1]
        size_z = np.abs(late.rescaled_at(t)).max()
        assert np.abs(found.rescaled_at(t) - late.rescaled_at(t)).max() < 2e-8 * max(1, size_z)
        better = limit(system, x, rtol=1e-12)
        assert np.abs(found.points - better.points).max() <= found.error + better.error
        assert np.array_equal(found.leader_of, better.leader_of)
        assert np.abs(found.attention_at(t + 5) - found.attention).max() < 1e-12
    assert certified == 8


def _check_theory(found: Limit, V: np.ndarray) -> None:
    assert np.array_equal(found.leader_of[found.leaders], found.leaders)
    assert np.abs(found.attention.sum(axis=1) - 1).max() < 1e-12
    values, vectors = np.linalg.eig(V.T)
    lead = vectors[:, np.abs(values).argmax()].real
    levels = np.unique(np.round(found.points @ lead, 7))
    assert len(levels) <= 3


@ROUNDS
@given(SEEDS)
def test_at_most_three_hyperplanes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    V = rng.uniform(0, 1, size=(2, 2))  # positive: Perron-Frobenius makes it a good candidate
    found = limit(_system(V), rng.uniform(-3, 3, size=(12, 2)))
    if found.certified:
        _check_theory(found, V)
        assert found.codimension in (1, 2) or not found.leaders_certified


@ROUNDS
@given(SEEDS)
def test_line_has_boolean_rows_and_rank_at_most_two(seed: int) -> None:
    x = np.random.default_rng(seed).uniform(-2, 2, size=9)
    found = limit(SelfAttention(1, 1, 1), x)
    if found.certified:
        order = np.argsort(x)
        assert set(found.leaders) <= {order[0], order[-1]}
        assert np.linalg.matrix_rank(found.attention) <= 2


@ROUNDS
@given(SEEDS)
def test_limits_lie_in_s(seed: int) -> None:
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(2, 2))
    A = root.T @ root + 0.3 * np.eye(2)
    found = limit(_system(np.eye(2), A), rng.uniform(-2, 2, size=(15, 2)))
    if found.certified:
        scores = found.points @ A @ found.points.T
        assert (scores.max(axis=1) - np.diagonal(scores)).max() < 1e-6


@ROUNDS
@given(SEEDS)
def test_equivariance(seed: int) -> None:
    rng = np.random.default_rng(seed)
    V = np.diag([1.0, 0.6, -0.4])
    system, x = _system(V), rng.uniform(-2, 2, size=(10, 3))
    found = limit(system, x)
    order = rng.permutation(10)
    permuted = limit(system, x[order])
    assert permuted.certified == found.certified
    assert np.abs(permuted.points - found.points[order]).max() < 1e-7
    m = rng.normal(size=(3, 3)) + 3 * np.eye(3)
    back = np.linalg.inv(m)
    other = limit(SelfAttention(back, back, m @ V @ back), x @ m.T)
    assert other.certified == found.certified
    assert np.abs(other.points - found.points @ m.T).max() < 1e-6
    scaled = limit(SelfAttention(np.eye(3) / 50, np.eye(3) / 50, 3 * V), 50 * x)
    assert np.abs(scaled.points - 50 * found.points).max() < 1e-6
    assert np.array_equal(scaled.leader_of, found.leader_of)


@pytest.mark.parametrize("second", [0.5, 0.8, 0.9, 0.95, 0.99, 0.999])
def test_falls_run_to_the_end(second: float) -> None:
    """Two leaders are left, however long it takes; costs do not grow with time."""
    system = _system(np.diag([1, second]))
    for seed in range(3):
        x = tokens.box(30, 2, 3, seed=seed)
        found = limit(system, x)
        assert found.certified and len(found.leaders) == 2 and found.error < 1e-4
        times = [fall.time for fall in found.falls]
        assert times == sorted(times) and all(t <= found.time for t in times)
        assert found.codimension == 2
        # The flow is continuous where descriptions change hands.
        for t in times:
            before, after = found.rescaled_at(t * (1 - 1e-12)), found.rescaled_at(t * (1 + 1e-12))
            assert np.abs(before - after).max() < 1e-6


def test_fall_against_the_formula() -> None:
    """Token m = leader falls to l at log(c_2 (m_2 - l_2) / (c_1 (l_1 - m_1))) / (2 (lam_1 - lam_2))."""
    second = 0.99
    found = limit(_system(np.diag([1, second])), tokens.box(30, 2, 3, seed=0))
    checked = 0
    for k, fall in enumerate(found.falls):
        earlier = found.falls[k - 1].time if k else 12.0
        if fall.time < 20.0:
            continue
        z = found.rescaled_at(0.5 * (fall.time + max(earlier, 12.0)))
        m, leader = z[fall.token], z[fall.new_leader]
        if np.abs(m - leader).max() < 1e-3:
            continue  # leadership passed on within a cluster: another formula
        ratio = m[1] * (m[1] - leader[1]) / (m[0] * (leader[0] - m[0]))
        assert np.log(ratio) / (2 * (1 - second)) == pytest.approx(fall.time, rel=1e-5)
        checked += 1
    assert checked >= 1


def test_falls_against_plain_integration() -> None:
    system, x = _system(np.diag([1, 0.8])), tokens.box(12, 2, 3, seed=0)
    found = limit(system, x)
    with pytest.warns(PrecisionWarning):
        plain = integrate(system, x, 30.0, method="RK45", rtol=1e-12)
    t = plain.times[-1]
    assert t > 8
    for s in np.linspace(0, t, 23):
        assert np.abs(found.rescaled_at(s) - plain.rescaled_at(s)).max() < 1e-6
        assert np.abs(found.attention_at(s) - plain.attention(s)).max() < 1e-4


def test_unstable_data_are_not_certified() -> None:
    plane, line = _system(np.eye(2)), SelfAttention(1, 1, 1)
    cases = [
        (line, [[-0.8], [0.0], [0.8]]),
        (plane, [[1, 0.8], [1, -0.8], [0.4, 0.0]]),
        (plane, [[1, 0], [-1, 0], [0, 1], [0, -1], [0, 0]]),
        (plane, [[1, 0.8], [1, -0.8], [0.4, 1e-17]]),
    ]
    for system, x in cases:
        found = limit(system, x)
        assert not found.certified and found.reason
        assert np.isfinite(found.points).all()


def test_small_gaps_decide() -> None:
    plane = _system(np.eye(2))
    for push in (1e-4, -1e-4):
        found = limit(plane, [[1, 0.8], [1, -0.8], [0.4, push]])
        assert found.certified and np.sign(found.points[2, 1]) == np.sign(push)
    found = limit(plane, [[1, 0.8], [1, -0.8], [0.4, 1e-12]])
    assert not found.certified or found.points[2, 1] > 0


def test_duplicates_share_attention() -> None:
    x = np.array([[1.0, 0.2], [1.0, 0.2], [-0.7, 0.4], [0.2, -1.0], [0.2, -1.0], [0.5, 0.1]])
    found = limit(_system(np.eye(2)), x)
    assert found.certified
    assert np.array_equal(found.points[0], found.points[1])
    assert np.allclose(found.attention[0, :2], 0.5) and np.allclose(found.attention[5, :2], 0.5)
    weighted = integrate(_system(np.eye(2)), x, found.time, method="RK45", rtol=1e-12)
    assert np.abs(found.at(found.time) - weighted.at(found.time)).max() < 1e-5


def test_other_regimes_say_what_they_are() -> None:
    x = tokens.box(10, 2, 2, seed=3)
    swirl = limit(_system([[1, -1], [1, 1]]), x)
    assert not swirl.certified and "complex" in swirl.reason
    assert not limit(_system([[1, 1], [0, 1]]), x).certified
    assert "defective" in limit(_system([[1, 1], [0, 1]]), x).reason
    assert "no direction" in limit(_system(np.zeros((2, 2))), x).reason
    one = limit(_system(np.eye(2), -np.eye(2)), x)
    assert one.certified and len(one.leaders) == 1 and one.shape.kind == "point"
    alone = limit(_system(np.diag([1, -1])), [[0.3, 0.4]])
    assert alone.certified and np.allclose(alone.points, [[0.3, 0]])


@pytest.mark.parametrize("size", [1e-150, 1e-5, 1e5, 1e150])
def test_tokens_of_any_size(size: float) -> None:
    x = tokens.simplex(2) + np.array([0.05, 0.02])
    found = limit(_system(np.eye(2)), size * x)
    if found.certified:
        assert np.isfinite(found.points).all() and np.isfinite(found.error)
        assert found.error < 1e-6 * size
    else:
        assert found.reason


def test_high_dimension() -> None:
    for d, n in ((16, 30), (64, 16)):
        found = limit(_system(np.eye(d)), tokens.box(n, d, 1, seed=0))
        assert found.certified and found.points.shape == (n, d)


def test_evaluation_at_any_depth() -> None:
    found = limit(_system(np.diag([1, 0.5])), tokens.box(12, 2, 2, seed=1))
    for t in (10.0, 1e3, 1e6):
        assert np.abs(found.rescaled_at(t) - found.points).max() < np.exp(-0.5 * t) * 1e3 + 1e-12
    assert np.isinf(found.at(1e6)).all()
    with pytest.raises(ValueError, match="t must"):
        found.at(-1.0)
    assert "certified" in str(found)


def test_falls_name_the_callers_tokens_where_some_are_equal() -> None:
    x = tokens.box(20, 2, 2.0, seed=0)
    system = _system(np.diag([1.0, 0.95]))
    plain = limit(system, x)
    twice = limit(system, np.vstack([x[:1], x, x[5:6]]))
    assert plain.falls and plain.certified and twice.certified
    for fall in twice.falls:
        assert twice.leader_of[fall.token] != fall.token
        assert fall.token < 21  # of equal tokens the first
    named = limit(system, x[::-1])
    assert [19 - f.token for f in named.falls] == [f.token for f in plain.falls]
