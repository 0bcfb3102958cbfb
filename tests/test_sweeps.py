"""Many runs: the same answers here, in threads, in processes and on Dask; kept, resumed, reported."""

import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

from attnlib import SelfAttention, limit, sweep, tokens
from attnlib.sweeps import SweepWarning

SYSTEM = SelfAttention(np.eye(2), np.eye(2), np.eye(2))
FIELDS = {
    "certified",
    "leaders_certified",
    "time",
    "error",
    "leaders",
    "leader_of",
    "points",
    "falls",
}


def data(rng):
    """Ten tokens in a box."""
    return tokens.box(10, 2, 3.0, seed=rng)


def square(item, rng):
    """A run that depends on its item and its generator, and fails on 7."""
    if item == 7:
        raise ArithmeticError("seven is not squared")
    return {"square": item**2, "noise": rng.normal(size=3)}


CALLS = []


def counted(item, rng):
    """A run that leaves a note that it was made."""
    CALLS.append(item)
    return {"value": rng.normal(size=2) + item}


def same(one, other):
    """Equal field by field."""
    assert set(one.results) == set(other.results)
    for name in one.results:
        np.testing.assert_array_equal(one[name], other[name])


def test_runs_are_those_of_limit():
    many = sweep(SYSTEM, data, runs=6, seed=3)
    assert set(many.results) == FIELDS and len(many) == 6 and many.ok.all()
    for k in range(6):
        alone = limit(SYSTEM, data(np.random.default_rng([3, k])))
        np.testing.assert_allclose(many["points"][k], alone.points, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(many["leader_of"][k], alone.leader_of)
        assert many["time"][k] == pytest.approx(alone.time, rel=1e-3) and many["certified"][k]


TURN = np.array([[0.8, -0.6], [0.6, 0.8]])
VARIED = {
    "diagonal": SelfAttention(np.eye(2), np.eye(2), np.diag([1.0, 0.4])),
    "oblique": SelfAttention(np.eye(2), np.eye(2), [[1.0, 0.7], [0.0, 0.5]]),
    "coupled": SelfAttention(np.eye(2), np.eye(2), TURN @ [[1.0, 2.0], [0.0, -0.5]] @ TURN.T),
    "low rank": SelfAttention([[1.0, 0.5]], [[1.0, 0.5]], np.eye(2)),
    "complex": SelfAttention(np.eye(2), np.eye(2), [[1.0, -2.0], [2.0, 1.0]]),
    "contracting": SelfAttention(np.eye(2), np.eye(2), np.diag([-0.3, -1.0])),
    "collapse": SelfAttention(np.eye(2), np.eye(2), -np.eye(2)),
    "one falls": SelfAttention(np.eye(2), np.eye(2), np.diag([1.0, 0.95])),
}


@pytest.mark.parametrize("name", VARIED)
def test_steps_taken_together_are_those_taken_alone(name):
    system = VARIED[name]
    given = [tokens.box(12, 2, 2.0, seed=k) for k in range(5)]
    given.append(np.repeat(given[0][:6], 2, axis=0))  # equal tokens
    many = sweep(system, given, batch=6)
    for k, x in enumerate(given):
        alone = limit(system, x)
        assert many["certified"][k] == alone.certified
        # A picture, or centres of clusters, is that of a last step, which rounding may move.
        known = 1e-11 if alone.leaders_certified else min(alone.error, 1e-4)
        np.testing.assert_allclose(many["points"][k], alone.points, rtol=0, atol=known)
        np.testing.assert_array_equal(many["leader_of"][k], alone.leader_of)


def test_company_does_not_change_a_bit():
    same(sweep(SYSTEM, data, runs=9, batch=9), sweep(SYSTEM, data, runs=9, batch=1))


def test_one_that_raises_loses_no_other():
    def sometimes(rng):
        x = data(rng)
        return x if x[0, 0] > 0 else x[:, :1]

    with pytest.warns(SweepWarning):
        many = sweep(SYSTEM, sometimes, runs=12, batch=12)
    good = [data(np.random.default_rng([0, k]))[0, 0] > 0 for k in range(12)]
    assert 0 < sum(good) < 12 and list(many.ok) == good
    assert many["certified"][many.ok].all()


def test_systems_and_tokens_one_each():
    systems = [SelfAttention(1, 1, v) for v in (1.0, 2.0, 0.5)]
    x = [tokens.box(5, 1, seed=k) for k in range(3)]
    many = sweep(systems, x)
    assert many["points"].shape == (3, 5, 1)
    np.testing.assert_allclose(
        many["points"][1], limit(systems[1], x[1]).points, rtol=0, atol=1e-12
    )
    one_cloud = sweep(systems, x[0])
    np.testing.assert_allclose(
        one_cloud["points"][2], limit(systems[2], x[0]).points, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_executors_agree(pool):
    here = sweep(SYSTEM, data, runs=8, seed=1)
    with pool(2) as executor:
        same(here, sweep(SYSTEM, data, runs=8, seed=1, executor=executor, batch=3))


def test_dask_cluster_agrees():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        distributed = pytest.importorskip("distributed")
        here = sweep(SYSTEM, data, runs=6, seed=1)
        cluster = distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        )
        with cluster, distributed.Client(cluster) as client:
            there = sweep(SYSTEM, data, runs=6, seed=1, executor=client.get_executor(), batch=2)
    same(here, there)


def test_batches_do_not_matter():
    same(
        sweep(square, list(range(6)), seed=5, batch=1),
        sweep(square, list(range(6)), seed=5, batch=4),
    )


def test_a_failing_run_is_reported_and_loses_nothing():
    with pytest.warns(SweepWarning, match="1 of 10 runs failed, the first \\(7\\)"):
        many = sweep(square, list(range(10)))
    assert many.ok.sum() == 9 and not many.ok[7]
    assert many.failures[0].given == "7" and "seven is not squared" in many.failures[0].error
    assert many["square"][7] == -1 and np.isnan(many["noise"][7]).all()
    assert many["square"][9] == 81
    assert "run 7 failed on 7" in str(many)


def test_interrupted_and_resumed(tmp_path):
    pytest.importorskip("zarr")
    store = tmp_path / "sweep.zarr"
    calls = CALLS
    calls.clear()

    def stop(done, total):
        if done >= 6:
            raise KeyboardInterrupt

    items = list(range(12))
    with pytest.raises(KeyboardInterrupt):
        sweep(counted, items, store=store, batch=2, progress=stop)
    assert calls == items[:6]
    seen = []
    rest = sweep(
        counted,
        items,
        store=store,
        batch=5,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert calls == items  # nothing twice
    assert seen == [(11, 12), (12, 12)]
    same(rest, sweep(counted, items))
    import zarr

    group = zarr.open_group(store, mode="r")
    np.testing.assert_array_equal(group["value"][:], rest["value"])
    with pytest.raises(ValueError, match="store must be new or hold this very sweep"):
        sweep(counted, items, store=store, seed=1)


def test_failed_runs_are_tried_again(tmp_path):
    pytest.importorskip("zarr")
    store = tmp_path / "sweep.zarr"
    with pytest.warns(SweepWarning):
        first = sweep(square, [1, 7, 3], store=store)
    assert first.ok.tolist() == [True, False, True]
    with pytest.warns(SweepWarning):
        again = sweep(square, [1, 7, 3], store=store, progress=lambda d, n: None)
    assert again["square"].tolist() == [1, -1, 9]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        ((3, [1]), {}, TypeError, "work must be a SelfAttention, a list of them, or a function"),
        ((SYSTEM, data), {}, ValueError, "runs must be given"),
        ((SYSTEM, np.zeros((4, 3))), {}, ValueError, r"tokens must have shape \(n, 2\)"),
        (([SYSTEM] * 2, np.zeros((3, 4, 2))), {}, ValueError, "got 3 for 2 systems"),
        ((square, 4), {}, ValueError, "one item a run"),
        ((square, [1]), {"executor": 2}, TypeError, "executor must be a concurrent.futures"),
        ((square, [1]), {"batch": 0}, ValueError, "batch must be at least 1"),
    ],
)
def test_bad_input(arguments, options, error, text):
    with pytest.raises(error, match=text):
        sweep(*arguments, **options)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([np.zeros(2), np.zeros(3)], "the same fields and shapes"),
        ([1, 1.5], "field x must be int64"),
        ([1.0, "a"], "field x must be float64"),
    ],
)
def test_a_run_that_does_not_fit_fails_alone(values, text):
    with pytest.warns(SweepWarning, match="1 of 3 runs failed, the first \\(1\\)"):
        many = sweep(lambda item, rng: {"x": values[item]}, [0, 1, 0])
    assert many.ok.tolist() == [True, False, True] and text in many.failures[0].error
    np.testing.assert_array_equal(many["x"][2], values[0])


def test_whole_numbers_fit_among_others():
    assert sweep(lambda item, rng: {"x": item}, [0.5, 2]).results["x"].tolist() == [0.5, 2.0]


def test_text_is_no_field():
    with pytest.warns(SweepWarning, match="field x must hold numbers"):
        sweep(lambda item, rng: {"x": "a"}, [1])


def test_stores_tell_captured_values_apart(tmp_path):
    pytest.importorskip("zarr")

    def times(factor):
        return lambda item, rng: {"x": factor * item}

    def plus(number=0.0):
        return lambda item, rng, number=number: {"x": item + number}

    sweep(times(2.0), [1.0], store=tmp_path / "a")
    assert sweep(times(2.0), [1.0], store=tmp_path / "a")["x"] == 2.0
    with pytest.raises(ValueError, match="another function"):
        sweep(times(3.0), [1.0], store=tmp_path / "a")
    sweep(plus(1.0), [1.0], store=tmp_path / "b")
    with pytest.raises(ValueError, match="another function"):
        sweep(plus(2.0), [1.0], store=tmp_path / "b")


def test_items_need_not_be_picklable_without_a_store(tmp_path):
    pytest.importorskip("zarr")
    item = (k for k in [4])
    assert sweep(lambda item, rng: {"x": next(item)}, [item])["x"] == 4
    with pytest.raises(TypeError, match="store needs what runs are given to be picklable"):
        sweep(lambda item, rng: {"x": 0}, [item], store=tmp_path / "a")


def test_a_store_interrupted_at_its_birth_is_used(tmp_path):
    zarr = pytest.importorskip("zarr")
    store = tmp_path / "a"
    sweep(square, [1, 2], store=store)
    mark = zarr.open_group(store)
    for name in list(mark.array_keys()):
        del mark[name]  # as if killed just after the mark was written
    assert sweep(square, [1, 2], store=store)["square"].tolist() == [1, 4]


class Losing(ThreadPoolExecutor):
    """Loses its second task."""

    count = 0

    def submit(self, call, *given):
        self.count += 1
        lost = self.count == 2
        return super().submit((lambda: 1 / 0) if lost else call, *(() if lost else given))


def test_a_lost_task_loses_its_own_runs_only():
    with Losing(1) as executor, pytest.warns(SweepWarning, match="2 of 6 runs failed"):
        many = sweep(square, list(range(6)), executor=executor, batch=2)
    assert many.ok.tolist() == [True, True, False, False, True, True]
    assert [failure.run for failure in many.failures] == [2, 3]
