"""Many runs: the same question put to many systems and tokens, on one core, many, or a cluster."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import pickle
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ._check import as_count, as_real_array, as_tokens
from ._march import Work, alone
from ._together import together
from .dynamics import SelfAttention
from .integration import _reporter
from .limits import finding

Record = dict[str, Any]

WAITING, DONE, FAILED = 0, 1, 2

#: Batches handed to an executor ahead of those that have come back.
AHEAD = 32


class SweepWarning(UserWarning):
    """Some runs of a sweep failed; the others are kept."""


@dataclass(frozen=True)
class Failure:
    """A run that raised: its number, what it was given, and what it said."""

    run: int
    given: str
    error: str


@dataclass(eq=False)
class Sweep:
    """What the runs gave, field by field.

    Attributes
    ----------
    results : dict of arrays
        One array per field, runs along axis 0. Rows of runs that failed hold nan, -1 or False.
    ok : (runs,) bool array
        Which runs came to an end.
    failures : tuple of Failure
    store : Path or None
        The Zarr group that holds the same arrays.
    """

    results: dict[str, np.ndarray]
    ok: np.ndarray
    failures: tuple[Failure, ...]
    store: Path | None = None

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.results:
            raise KeyError(
                f"no field {name!r}: this sweep has {', '.join(self.results) or 'none'}."
            )
        return self.results[name]

    def __len__(self) -> int:
        return len(self.ok)

    def __str__(self) -> str:
        lines = [
            f"Sweep: {len(self)} runs, {int(self.ok.sum())} done; fields {', '.join(self.results)}"
        ]
        lines += [f"  run {f.run} failed on {f.given}: {f.error}" for f in self.failures[:5]]
        if len(self.failures) > 5:
            lines.append(f"  and {len(self.failures) - 5} more")
        return "\n".join(lines)


def sweep(
    work: SelfAttention | Sequence[SelfAttention] | Callable[[Any, np.random.Generator], Record],
    tokens: Any,
    *,
    runs: int | None = None,
    executor: Executor | None = None,
    seed: int = 0,
    store: str | Path | None = None,
    batch: int | None = None,
    progress: Any = None,
) -> Sweep:
    """Run `limit`, or a function, over many tokens and systems.

    Run k has its own generator, `default_rng([seed, k])`: results depend neither on the executor
    nor on the batches.

    Parameters
    ----------
    work : SelfAttention, sequence of SelfAttention, or function
        With systems, each run is `limit(system, tokens)` and gives the fields certified,
        leaders_certified, time, error, leaders (how many), leader_of (n,), points (n, d), falls (how
        many). A function is called as function(item, rng) and returns a dict of numbers and
        arrays; for other processes it must be importable there (defined in a module).
    tokens : (n, d) array, sequence of arrays, function rng -> array, or sequence of items
        One for all systems, one for each run, or made in the run from its generator. For a function as
        work: what it is given, one item a run.
    runs : int, optional
        How many runs, where `tokens` is a function and there is one system.
    executor : concurrent.futures.Executor, optional
        Where batches run: a process pool, or Dask's `client.get_executor()`. Default: here.
    seed : int
    store : path, optional
        A Zarr group to stream into (package zarr). If it exists and holds the same sweep, only
        what is missing is computed, failed runs included.
    batch : int, optional
        Runs per task, and per chunk on disk.
    progress : callable or tqdm bar, optional
        Called as progress(done, runs).

    Returns
    -------
    Sweep

    Warns
    -----
    SweepWarning
        If runs failed.

    Examples
    --------
    >>> from attnlib import tokens
    >>> many = sweep(SelfAttention(1, 1, 1), lambda rng: tokens.box(5, 1, seed=rng), runs=20)
    >>> bool(many["certified"].all()), int(many["leaders"].max())
    (True, 3)
    """
    function, items = _items(work, tokens, runs)
    seed = as_count("seed", seed)
    size = as_count("batch", batch, at_least=1) if batch is not None else _batch_size(len(items))
    if executor is not None and not hasattr(executor, "submit"):
        raise TypeError(
            f"executor must be a concurrent.futures.Executor: got {type(executor).__name__}."
        )
    report = _reporter(progress)
    if store is None:
        kept = _Memory(len(items))
    else:
        kept = _Zarr(Path(store), len(items), size, _fingerprint(function, items, seed))
    missing = np.flatnonzero(kept.state != DONE)
    batches = [missing[i : i + size] for i in range(0, len(missing), size)]
    failures: list[Failure] = []
    done = len(items) - len(missing)
    for numbers, outcomes in _outcomes(executor, function, items, seed, batches):
        wrong = kept.write(dict(zip(numbers.tolist(), outcomes, strict=True)))
        failures += [Failure(k, _short(items[k]), text) for k, text in wrong.items()]
        done += len(numbers)
        report(done, len(items))
    failures.sort(key=lambda failure: failure.run)
    if failures:
        warnings.warn(
            f"{len(failures)} of {len(items)} runs failed, the first ({failures[0].run}) with "
            f"{failures[0].error!r}; see .failures.",
            SweepWarning,
            stacklevel=2,
        )
    return Sweep(
        {name: np.asarray(array) for name, array in kept.arrays.items()},
        kept.state == DONE,
        tuple(failures),
        None if store is None else Path(store),
    )


def limit_record(item: tuple[SelfAttention, Any], rng: np.random.Generator) -> Record:
    """What a sweep keeps of `limit(system, tokens)`."""
    return alone(_finding(item, rng))


def _finding(item: tuple[SelfAttention, Any], rng: np.random.Generator) -> Work[Record]:
    system, tokens = item
    start = as_tokens(tokens(rng) if callable(tokens) else tokens, system.d)
    found = yield from finding(system, start)
    return {
        "certified": found.certified,
        "leaders_certified": found.leaders_certified,
        "time": found.time,
        "error": found.error,
        "leaders": len(found.leaders),
        "leader_of": found.leader_of,
        "points": found.points,
        "falls": len(found.falls),
    }


def _items(
    work: Any, tokens: Any, runs: int | None
) -> tuple[Callable[[Any, np.random.Generator], Record], Sequence[Any]]:
    """The function of a run and what each run is given, checked."""
    single = isinstance(work, SelfAttention)
    if callable(work) and not single:
        if runs is not None or not isinstance(tokens, Sequence | np.ndarray) or not len(tokens):
            raise ValueError(
                "tokens must be a sequence with one item a run where work is a function (and runs be "
                f"left out): got {_short(tokens)}."
            )
        return work, list(tokens)
    if not single and not (
        isinstance(work, Sequence) and len(work) and all(isinstance(s, SelfAttention) for s in work)
    ):
        raise TypeError(
            f"work must be a SelfAttention, a list of them, or a function: got {_short(work)}."
        )
    systems = [work] if single else list(work)
    if callable(tokens):
        if single:
            if runs is None:
                raise ValueError("runs must be given where tokens is a function: how many?")
            systems *= as_count("runs", runs, at_least=1)
        return limit_record, [(system, tokens) for system in systems]
    if runs is not None:
        raise ValueError("runs is for tokens made by a function: leave it out here.")
    if isinstance(tokens, Sequence) and len(tokens) and np.ndim(tokens[0]) == 2:
        data = list(tokens)
    else:
        array = as_real_array("tokens", tokens)
        data = list(array) if array.ndim == 3 else [array] * len(systems)
    if single:
        systems *= len(data)
    if len(data) != len(systems) or not data:
        raise ValueError(
            f"tokens must have one array a system: got {len(data)} for {len(systems)} systems."
        )
    return limit_record, [
        (system, as_tokens(x, system.d)) for system, x in zip(systems, data, strict=True)
    ]


def _outcomes(
    executor: Executor | None,
    function: Callable[[Any, np.random.Generator], Record],
    items: Sequence[Any],
    seed: int,
    batches: list[np.ndarray],
) -> Iterator[tuple[np.ndarray, list[Record | str]]]:
    """Batches as they come back; an interruption cancels what has not begun."""
    if executor is None:
        for numbers in batches:
            yield numbers, _batch(function, [items[k] for k in numbers], numbers.tolist(), seed)
        return
    waiting = iter(batches)
    pending: dict[Future[list[Record | str]], np.ndarray] = {}
    try:
        while True:
            for numbers in itertools.islice(waiting, AHEAD - len(pending)):
                given = [items[k] for k in numbers]
                task = executor.submit(_batch, function, given, numbers.tolist(), seed)
                pending[task] = numbers
            if not pending:
                return
            finished, _ = wait(pending, return_when=FIRST_COMPLETED)
            for task in finished:
                numbers = pending.pop(task)
                outcomes: list[Record | str]
                try:
                    outcomes = task.result()
                except BrokenExecutor:  # nothing more will come: what is stored can be resumed
                    raise
                except Exception as error:  # a task that was lost, or could not be sent
                    outcomes = [f"{type(error).__name__}: {error}"] * len(numbers)
                yield numbers, outcomes
    finally:
        for task in pending:
            task.cancel()


def _batch(
    function: Callable[[Any, np.random.Generator], Record],
    items: list[Any],
    numbers: list[int],
    seed: int,
) -> list[Record | str]:
    """Run a few; a run that raises gives the text of its error. Limits are found together."""
    given = [
        (item, np.random.default_rng([seed, number]))
        for item, number in zip(items, numbers, strict=True)
    ]
    if function is limit_record:
        found = dict(together(_finding(item, rng) for item, rng in given))
        return [_record(found[k]) for k in range(len(given))]
    out: list[Record | str] = []
    for item, rng in given:
        try:
            out.append(_record(function(item, rng)))
        except Exception as error:
            out.append(_record(error))
    return out


def _record(got: Any) -> Record | str:
    """A run's result as arrays, or what went wrong."""
    if not isinstance(got, dict | Exception):
        got = TypeError(f"a run must return a dict: got {_short(got)}.")
    if isinstance(got, Exception):
        return f"{type(got).__name__}: {got}"
    return {str(name): np.asarray(value) for name, value in got.items()}


class _Memory:
    """Results of a sweep in arrays, made when the first run tells their fields."""

    def __init__(self, runs: int) -> None:
        self.runs = runs
        self.state: Any = np.zeros(runs, dtype=np.int8)
        self.arrays: dict[str, Any] = {}

    def new(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], fill: Any) -> Any:
        """An array for a field."""
        return np.full(shape, fill, dtype=dtype)

    def write(self, outcomes: dict[int, Record | str]) -> dict[int, str]:
        """Keep the runs that gave a record that fits; return what the others said."""
        rows: dict[int, Record] = {}
        wrong: dict[int, str] = {}
        for k, outcome in outcomes.items():
            error = outcome if isinstance(outcome, str) else self._misfit(outcome)
            if error:
                wrong[k] = error
            elif isinstance(outcome, dict):
                rows[k] = outcome
        if rows:
            for name, array in self.arrays.items():
                self.put(array, list(rows), np.array([record[name] for record in rows.values()]))
        self.mark(list(rows), DONE)
        self.mark(list(wrong), FAILED)
        return wrong

    def _misfit(self, record: Record) -> str:
        """Why a record can't go where the first one went; the first one makes the arrays."""
        if not self.arrays:
            for name, value in record.items():
                if value.dtype.kind not in "biufc":
                    return f"TypeError: field {name} must hold numbers: got {value.dtype}."
            for name, value in record.items():
                shape = (self.runs, *value.shape)
                self.arrays[name] = self.new(name, shape, value.dtype, _fill(value.dtype))
        shapes = {name: value.shape for name, value in record.items()}
        wanted = {name: array.shape[1:] for name, array in self.arrays.items()}
        if shapes != wanted:
            return (
                "ValueError: every run must give the same fields and shapes: "
                f"got {shapes}, others gave {wanted}."
            )
        for name, value in record.items():
            held = self.arrays[name].dtype
            if not np.can_cast(value.dtype, held, "safe"):
                return (
                    f"TypeError: field {name} must be {held}, as in the first run, or fit in it: got "
                    f"{value.dtype}. Let every run return the same type, as in float(value)."
                )
        return ""

    def put(self, array: Any, numbers: list[int], values: np.ndarray) -> None:
        """Write rows of one field."""
        array[numbers] = values

    def mark(self, numbers: list[int], state: int) -> None:
        """Note what became of these runs."""
        self.state[numbers] = state


class _Zarr(_Memory):
    """The same in a Zarr group: data first, then the note that they are there."""

    def __init__(self, path: Path, runs: int, batch: int, fingerprint: str) -> None:
        try:
            import zarr
        except ImportError:
            raise ImportError(
                'store needs the package zarr: pip install "attnlib[sweep]".'
            ) from None
        super().__init__(runs)
        self.batch = batch
        self.group = zarr.open_group(path, mode="a")
        known = self.group.attrs.get("sweep")
        if known is None and list(self.group.keys()):
            raise ValueError(f"store must be new or a sweep's: {path} holds something else.")
        if known not in (None, fingerprint):
            raise ValueError(
                f"store must be new or hold this very sweep: {path} was made from another function, "
                "other systems, tokens or seed. Choose another path."
            )
        self.group.attrs["sweep"] = fingerprint  # before anything else: a kill may come any time
        self.arrays = dict(self.group.arrays())
        if "state" not in self.arrays:
            self.arrays["state"] = self.new("state", (runs,), np.dtype(np.int8), WAITING)
        self.noted = self.arrays.pop("state")
        self.state = np.asarray(self.noted[:])

    def new(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], fill: Any) -> Any:
        """A chunked array, a batch of runs to a chunk."""
        chunks = (min(self.batch, self.runs), *(max(1, s) for s in shape[1:]))
        return self.group.create_array(
            name, shape=shape, chunks=chunks, dtype=dtype, fill_value=fill
        )

    def put(self, array: Any, numbers: list[int], values: np.ndarray) -> None:
        """Write rows of one field."""
        array.oindex[np.array(numbers)] = values

    def mark(self, numbers: list[int], state: int) -> None:
        """Note what became of these runs, here and on disk."""
        super().mark(numbers, state)
        if numbers:
            self.noted.oindex[np.array(numbers)] = np.full(len(numbers), state, dtype=np.int8)


def _fill(dtype: np.dtype[Any]) -> Any:
    return {"b": False, "i": -1, "f": np.nan, "c": np.nan}.get(dtype.kind, 0)


def _batch_size(runs: int) -> int:
    return max(1, min(50, runs // 32))


def _fingerprint(function: Any, items: Sequence[Any], seed: int) -> str:
    """A hash of what decides the results: the function with what it captures, the items, the seed.

    Not of what a function reads from its module.
    """
    digest = hashlib.sha256(f"{seed} {len(items)}".encode())
    for part in (function, *items):
        _hash(digest, part)
    return digest.hexdigest()


def _hash(digest: Any, part: Any) -> None:
    if isinstance(part, tuple):
        for member in part:
            _hash(digest, member)
    elif isinstance(part, SelfAttention):
        _hash(digest, (part.Q, part.K, part.V))
    elif isinstance(part, np.ndarray):
        digest.update(f"{part.dtype} {part.shape}".encode() + np.ascontiguousarray(part).tobytes())
    elif inspect.isfunction(part):
        try:
            source = inspect.getsource(part)
        except (OSError, TypeError):
            source = part.__code__.co_code.hex()
        digest.update(f"{part.__module__}.{part.__qualname__} {source}".encode())
        _hash(digest, (part.__defaults__ or (), part.__kwdefaults__))
        _hash(digest, tuple(cell.cell_contents for cell in part.__closure__ or ()))
    else:
        try:
            digest.update(pickle.dumps(part))
        except Exception as error:
            raise TypeError(
                f"store needs what runs are given to be picklable: got {_short(part)} ({error})."
            ) from None


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"array of shape {value.shape}"
    if isinstance(value, tuple):
        return f"({', '.join(_short(part) for part in value)})"
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 100 else text[:97] + "..."
