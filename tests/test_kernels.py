"""The kernels of the attention-weighted mean against long double sums; their bounds; their limits."""

import tracemalloc

import numpy as np
import pytest
from scipy.special import iv

from attnlib import SelfAttention, attention, integrate, tokens
from attnlib._separable import (
    SLACK,
    TRUNCATION,
    Box,
    _chebyshev,
    largest_scores,
    order_for,
    separable_mean,
)
from attnlib.attention import weighted_mean


def exact(queries, keys, values, rows):
    """The mean in long double, for some rows."""
    scores = queries[rows].astype(np.longdouble) @ keys.T.astype(np.longdouble)
    scores -= scores.max(axis=1, keepdims=True)
    weights = np.exp(scores)
    return weights @ values / weights.sum(axis=1, keepdims=True)


def cloud(kind, n, k, rng):
    """Clouds of size 1 that are easy and hard for boxes."""
    x = rng.uniform(-1.0, 1.0, size=(n, k))
    if kind == "circle":
        x /= np.linalg.norm(x, axis=1, keepdims=True)
    if kind == "clusters":
        x = np.sign(x) + 1e-3 * rng.normal(size=x.shape)
    if kind == "line":
        x = x[:, :1] * np.ones(k)
    if kind == "far":
        x = x + 50.0
    if kind == "equal":
        x[:] = x[0]
    return x


KINDS = ["box", "circle", "clusters", "line", "far", "equal"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("size", [0.0, 3.0, 40.0, 1000.0])
def test_separable_means_are_right(kind, k, size):
    rng = np.random.default_rng(k)
    x = cloud(kind, 3000, k, rng)
    queries = size * (x - x.mean(axis=0)) @ rng.normal(size=(k, k)) / k
    values = np.column_stack([x, rng.normal(size=len(x))])
    rows = rng.choice(len(x), 100, replace=False)
    found = weighted_mean(queries, x, values, kernel="separable")[rows]
    # Rounding of the scores alone moves the logarithms of weights by a few eps of their size.
    largest = np.abs(queries).sum(axis=1).max() * np.ptp(x, axis=0).max()
    allowed = (1e-12 + 1e-15 * largest + 1e-14 * np.abs(x).max()) * np.abs(values).max()
    assert np.abs(found - exact(queries, x, values, rows)).max() < allowed


@pytest.mark.parametrize("d", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("size", [1.0, 30.0, 299.0, 301.0, 1e4])
def test_blocks_are_right(d, size):
    rng = np.random.default_rng(d)
    x = rng.uniform(-1.0, 1.0, size=(700, d))
    queries = size * x / d
    rows = np.arange(0, 700, 7)
    for threads in (1, 2):
        found = weighted_mean(queries, x, x, kernel="blocks", threads=threads)[rows]
        assert np.abs(found - exact(queries, x, x, rows)).max() < 1e-14 + 1e-16 * size


@pytest.mark.parametrize("size", [1.0, 20.0, 200.0])
def test_float32_keeps_its_promise(size):
    rng = np.random.default_rng(1)
    x = rng.uniform(-1.0, 1.0, size=(700, 3))
    found = weighted_mean(size * x / 3, x, x, dtype=np.float32)
    assert found.dtype == np.float32
    rows = np.arange(700)
    assert np.abs(found - exact(size * x / 3, x, x, rows)).max() < 1e-7 * (1.0 + size)


@pytest.mark.parametrize("b", [0.1, 1.0, 7.0, 30.0])
@pytest.mark.parametrize("p", [4, 9, 20])
def test_interpolation_error_is_below_its_bound(b, p):
    xi = np.cos(np.pi * (np.arange(p) + 0.5) / p)
    weight = np.where(np.arange(p) > 0, 2.0, 1.0) / p
    u = np.linspace(-1.0, 1.0, 2001)
    cardinal = (_chebyshev(xi, p).T * weight) @ _chebyshev(u, p)
    error = np.abs(np.exp(b * xi) @ cardinal - np.exp(b * u)).max()
    bound = 4.0 * iv(np.arange(p, p + 200), b).sum()
    assert error <= bound + 1e-14 * np.exp(b)
    assert error >= 1e-3 * bound or bound < 1e-12 * np.exp(b)  # and the bound is of use


@pytest.mark.parametrize("b", [0.0, 1e-3, 1.0, 20.0, 100.0])
def test_order_is_the_smallest(b):
    p = order_for(b, 400)
    log_tail = [np.log(4.0 * iv(np.arange(q, q + 200), b).sum() + 1e-300) - b for q in (p, p - 1)]
    assert p == 1 or log_tail[0] <= np.log(TRUNCATION) + 1e-6 < log_tail[1] + 2e-6


def test_many_equal_keys_are_summed_where_moments_are_refused():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, size=(1500, 2))
    x[:300] = [1.1, 1.1]  # cannot be halved
    rows = np.arange(0, 1500, 15)
    found = separable_mean(5.0 * x, x, x, 1, 1e-16)
    assert np.abs(found[rows] - exact(5.0 * x, x, x, rows)).max() < 1e-14


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("size", [2e4, 9e4])
def test_no_score_overflows(k, size):
    rng = np.random.default_rng(k)
    x = rng.normal(size=(4000, k))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    x *= rng.uniform(
        0.9, 1.0, size=(4000, 1)
    )  # a rough shell: extreme keys are missed by directions
    queries = size * x / 2.0
    share = map
    root = Box(x.copy(), x.copy(), np.abs(queries).max(axis=0), len(x))
    top = largest_scores(queries, root, share)
    true = np.concatenate([(queries[i : i + 500] @ x.T).max(axis=1) for i in range(0, 4000, 500)])
    assert (top <= true * (1 + 1e-12)).all() and (true - top <= SLACK).all()
    found = weighted_mean(queries, x, x, kernel="separable")
    rows = np.arange(0, 4000, 40)
    assert np.abs(found[rows] - exact(queries, x, x, rows)).max() < 1e-15 * size


def test_a_key_missed_by_all_directions_is_found():
    # It stands out by 0.011 over a side of length 2 whose normal is between two directions.
    out, along = (np.array([np.cos(a), np.sin(a)]) for a in np.pi / 256 + np.array([0, np.pi / 2]))
    rng = np.random.default_rng(0)
    inside = 0.1 * rng.uniform(-1.0, 1.0, size=(300, 2))
    x = np.vstack([0.2 * out - along, 0.2 * out + along, 0.211 * out, inside])
    queries = 8e4 * out[None] * rng.uniform(0.9, 1.0, size=(200, 1))
    found = weighted_mean(queries, x, x, kernel="separable")
    assert np.abs(found - x[2]).max() < 1e-12


def test_trajectories_do_not_depend_on_the_kernel(monkeypatch):
    system, x = SelfAttention(np.eye(2), np.eye(2), np.eye(2)), tokens.box(300, 2, 2.0, seed=1)
    plain = integrate(system, x, 1.5).at(1.5)
    monkeypatch.setattr(attention.options, "kernel", "separable")
    assert np.abs(integrate(system, x, 1.5).at(1.5) - plain).max() < 1e-9


def test_chosen_by_itself(monkeypatch):
    used = []
    kernel = attention.separable_mean
    monkeypatch.setattr(
        attention, "separable_mean", lambda *a: used.append(len(a[1])) or kernel(*a)
    )
    rng = np.random.default_rng(0)
    for n, d in ((4500, 2), (1500, 2), (4500, 3), (2500, 1)):
        x = rng.uniform(-1.0, 1.0, size=(n, d))
        weighted_mean(x, x, x)
    assert used == [4500, 2500]


def test_memory_stays_small():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, size=(8000, 3))
    tracemalloc.start()
    weighted_mean(x, x, x, kernel="blocks", threads=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6  # n x n would be 512 MB


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"kernel": "fast"}, ValueError, "kernel must be one of auto, blocks, separable"),
        ({"dtype": np.int64}, TypeError, "dtype must be float64 or float32"),
        ({"dtype": np.float32, "kernel": "separable"}, ValueError, "float64 only"),
    ],
)
def test_bad_choices(options, error, text):
    x = np.ones((4, 2))
    with pytest.raises(error, match=text):
        weighted_mean(x, x, x, **options)


def test_an_option_that_is_none_is_refused(monkeypatch):
    monkeypatch.setattr(attention.options, "kernel", "fast")
    with pytest.raises(ValueError, match="kernel must be one of"):
        weighted_mean(np.ones((4, 2)), np.ones((4, 2)), np.ones((4, 2)))


def test_float32_takes_scores_that_it_cannot_hold():
    x = np.array([[1.0, 0.0], [-1.0, 0.5], [0.2, 1.0]])
    winner = (x @ x.T).argmax(axis=1)
    found = weighted_mean(1e60 * x, 1e60 * x, x, dtype=np.float32)
    assert np.array_equal(found, x[winner].astype(np.float32))
    with pytest.raises(ValueError, match="values must fit float32"):
        weighted_mean(x, x, 1e60 * x, dtype=np.float32)


def test_separable_refuses_what_it_cannot_do():
    x = np.ones((4, 5))
    with pytest.raises(ValueError, match="one to three coordinates"):
        weighted_mean(x, x, x, kernel="separable")
    x = np.array([[1e4, 0.0], [-1e4, 1.0]])
    with pytest.raises(ValueError, match="scores below 1e5"):
        weighted_mean(x, x, x, kernel="separable")
