"""Chapters as text: what chapter.md asks of them, and exercises that accept right answers only.

That chapters run from top to bottom is tested by building the book.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import yaml
from scipy.special import lambertw

from attnlib import SelfAttention, integrate, layers, limit, tokens
from attnlib.shapes import hull_vertices

matplotlib.use("Agg")

ROOT = Path(__file__).parents[1]
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
OPTIONS = re.compile(r"\A---\n.*?^---\n|\A(?::[^\n]*\n)+", re.DOTALL | re.MULTILINE)


def _pages() -> list[str]:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    parts = toc.get("parts", [{"chapters": toc.get("chapters", [])}])
    return [toc["root"], *(page["file"] for part in parts for page in part["chapters"])]


def _source(page: str) -> str:
    return (ROOT / f"{page}.md").read_text()


def _cells(source: str) -> list[str]:
    return [OPTIONS.sub("", cell) for cell in CELL.findall(source)]


def _course() -> list[str]:
    """The chapters proper: the part of the table of contents without a caption."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    return [
        page["file"] for part in toc["parts"] if "caption" not in part for page in part["chapters"]
    ]


COURSE = _course()


def test_every_chapter_is_in_the_table_of_contents() -> None:
    written = {f"chapters/{path.stem}" for path in (ROOT / "chapters").glob("*.md")}
    assert written == set(_pages())


@pytest.mark.parametrize("page", _pages())
def test_cells_are_short_and_define_no_numerics(page: str) -> None:
    for cell in _cells(_source(page)):
        lines = [line for line in cell.splitlines() if line.strip()]
        assert len(lines) <= 16, cell
        for body in re.findall(r"^def .*?(?=^\S|\Z)", cell, re.DOTALL | re.MULTILINE):
            assert len([line for line in body.splitlines() if line.strip()]) <= 11, body


@pytest.mark.parametrize("page", COURSE)
def test_sections_exercises_and_assertions(page: str) -> None:
    source = _source(page)
    sections = re.findall(r"^## (.+)$", source, re.MULTILINE)
    wanted = ["At a glance", "Phenomenon", "Mechanism", "Where it breaks", "Essence"]
    assert [s for s in sections if s in wanted] == wanted
    assert sections[-2:] == ["Exercises", "Further reading"]
    exercises = re.findall(r"\{exercise(?:-start)?\}", source)
    assert 4 <= len(exercises) <= 6
    assert len(re.findall(r"\{solution(?:-start)?\}", source)) == len(exercises)
    assert source.count("**Hint:**") == len(exercises)
    assert len(re.findall(r"^def check_", source, re.MULTILINE)) >= 2
    assert source.count("assert ") >= 5
    assert "sympy" in source


@pytest.mark.parametrize("page", _pages())
def test_prose(page: str) -> None:
    text = CELL.sub("", _source(page)).lower()
    for word in ("clearly", "obviously", "it can be shown", "trivially", "todo"):
        assert word not in text, word


def _names(page: str, wanted: str) -> Any:
    """The checking function of an exercise, with the page's imports and functions."""
    scope: dict[str, Any] = {}
    for cell in _cells(_source(page)):
        kept = [
            node
            for node in ast.parse(cell).body
            if isinstance(node, ast.Import | ast.ImportFrom)
            or (isinstance(node, ast.FunctionDef) and not node.decorator_list)
        ]
        exec(compile(ast.Module(body=kept, type_ignores=[]), page, "exec"), scope)
    return scope[wanted]


ANGLE = 2 * np.pi * np.arange(5) / 5
PENTAGON = np.column_stack([np.cos(ANGLE), np.sin(ANGLE)])
TRIANGLE = np.array([[1.0, 0.0], [-0.5, np.sqrt(0.75)], [-0.5, -np.sqrt(0.75)]])
SQUARE = [[1, 1], [1, -1], [-1, 1], [-1, -1]]
SQUARE_IN_ORDER = [[1, 1], [-1, 1], [-1, -1], [1, -1]]
LIFTED = [[0.3, 2, 0], [-0.2, -2, 0], [0.5, 0, 2], [0.1, 0, -2]]
ANSWERS = [
    (
        "chapters/vertices",
        "check_point_of_s",
        [(SQUARE, [1, 0]), (SQUARE, [0, -1]), ([[2, 1], [2, -3], [-1, 0]], [2, 0])],
        [(SQUARE, [1, 1]), (SQUARE, [0, 0]), (SQUARE, [0.5, 0]), (SQUARE, [2, 0])],
    ),
    (
        "chapters/vertices",
        "check_all_lead",
        [(3 * PENTAGON,), (2 * PENTAGON + 0.05,)],
        [(PENTAGON[:4],), (np.vstack([PENTAGON[:4], [[0.1, 0.1]]]),), (np.ones((5, 2)),)],
    ),
    (
        "chapters/equations",
        "check_row",
        [([1 / 3, 1 / 3, 1 / 3],), ([0.333, 0.333, 0.334],)],
        [([0, 1, 0],), ([0.3, 0.3, 0.4],), ([1 / 3, 1 / 3],)],
    ),
    ("chapters/equations", "check_long_step", [(1.6,)], [(0.1,), (-1,), (0.9,)]),
    (
        "chapters/layers",
        "check_singular",
        [(0.2,), (1 / 5 + 1e-9,)],
        [(-0.5,), (0.5,), (0.0,), (0.25,), (1.0,)],
    ),
    (
        "chapters/layers",
        "check_merge",
        [(1.1, 1 / np.tanh(1.21)), (np.sqrt(np.arctanh(1 / 1.15)), 1.15)],
        [(1.0, 1.0), (1.0, 1 / np.tanh(1.0)), (0.0, 1.0), (1.1, 1.19), (3.0, 1.0)],
    ),
    (
        "chapters/leaders",
        "check_exceptional_row",
        [([0.435977, 0.346035, 0.217988],), ([0.436, 0.346, 0.218],)],
        [([1 / 3, 1 / 3, 1 / 3],), ([0.218, 0.346, 0.436],), ([0, 1, 0],), ([0.436, 0.346],)],
    ),
    (
        "chapters/leaders",
        "check_rank_one",
        [([-0.1, -0.05, 1, 2],), ([3, -0.02, -0.01, 1],)],
        [([-2, -1, 1, 2],), ([-4, -3, -2, -1],), ([-0.1, -0.1, 1, 2],), ([-0.1, 1, 2, 3],)],
    ),
    (
        "chapters/hyperplanes",
        "check_normal",
        [([2, 3],), ([-0.4, -0.6],)],
        [([1, 0],), ([0, 0],), ([3, -2],), ([1, 0, 0],)],
    ),
    (
        "chapters/hyperplanes",
        "check_single",
        [([[1, 0.5], [2, -1], [3, 0.2], [1.5, 1]],), ([[-1, 0], [-2, 1], [-3, 0], [-4, 1]],)],
        [([[1, 0], [2, 0], [-1, 0], [-2, 0]],), (np.ones((4, 2)),), ([[1, 0], [2, 0], [3, 0]],)],
    ),
    (
        "chapters/collapse",
        "check_dimension",
        [(lambda excess, t: 8 * t**2 * excess,), (lambda excess, t: round(8 * t * t * excess),)],
        [(lambda excess, t: 4 * t**2 * excess,), (lambda excess, t: 8 * t * excess,)],
    ),
    (
        "chapters/collapse",
        "check_centred",
        [(TRIANGLE,), (PENTAGON,), (np.vstack([TRIANGLE, 0.4 * TRIANGLE @ [[0, 1], [-1, 0]]]),)],
        [(SQUARE,), ([[1, 0], [0, 1], [-1, -1]],), ([[0, 0], [0, 0]],), ([1, 2],)],
    ),
    (
        "chapters/feedforward",
        "check_frozen",
        [([[-1, -1], [-2, -3], [-4, -1.5]],), ([[0, 0], [-2, -2.5]],)],
        [([[1, 1], [2, 2]],), ([[-1, -1]],), ([[1, 1], [1, 1]],), ([[-4, -4], [-1, -1]],)],
    ),
    (
        "chapters/feedforward",
        "check_weight",
        [(0.1 * np.eye(2),), (-np.eye(2),), ([[0.3, 0.1], [-0.2, 0.2]],)],
        [(np.eye(2),), (2 * np.eye(2),), (np.zeros((2, 2)),), ([[0.1]],)],
    ),
    (
        "chapters/codimension",
        "check_lines",
        [([[1, 1, 0], [0, 0.5, 0], [0, 0, -0.2]],), ([[2, 0, 1], [0, -1, 0], [0, 0, 0.3]],)],
        [
            ([[1, 1, 0], [0, 0.5, 0], [0, 0, 0.2]],),
            ([[1, 1, 0], [0, 0.5, 0], [0, 0, -2]],),
            (np.diag([1, 0.5, -0.2]),),
            (np.eye(2),),
        ],
    ),
    (
        "chapters/codimension",
        "check_many_points",
        [
            (np.diag([0, 1, 1]), np.diag([1, 0.5, 0.5]), LIFTED),
            (np.diag([0, 2, 2]), np.diag([3, 1, 1]), LIFTED),
        ],
        [
            (np.eye(3), np.diag([1, 0.5, 0.5]), LIFTED),
            (np.eye(3), np.eye(3), LIFTED),
            (np.diag([0, 1, 1]), np.diag([1, 0.5, -0.5]), LIFTED),
        ],
    ),
    (
        "chapters/mix",
        "check_paranormal",
        [
            ([[1, 0, 1], [0, 1, 1], [0, 0, -0.5]],),
            (np.eye(3) - np.outer([1, 1, 1], [0, 0.5, 1]),),
        ],
        [
            ([[1, 1, 0], [0, 1, 0], [0, 0, -0.5]],),
            (np.diag([1, 1, -0.5]),),
            ([[1, 0, 1], [0, 1, 1], [0, 0, -2]],),
            (np.eye(2),),
        ],
    ),
    (
        "chapters/mix",
        "check_first_fall",
        [(np.log(3) / 0.04,), (27.5,)],
        [(10.0,), (np.log(3) / 0.02,), (13.7,), (-1.0,)],
    ),
    (
        "chapters/numbers",
        "check_tie",
        [(lambda bits, rate: (bits + 1) * np.log(2) / rate,)],
        [(lambda bits, rate: bits * np.log(2) / rate,), (lambda bits, rate: 37 / rate,)],
    ),
    (
        "chapters/numbers",
        "check_fall",
        [(1 - np.log(12) / 200,)],
        [(0.98,), (1 - np.log(4) / 200,), (1.0,)],
    ),
    (
        "chapters/million",
        "check_blowup",
        [(lambda a, s0: 1 / (2 * a * s0**2),), (lambda a, s0: 0.5 * s0**-2 / a,)],
        [(lambda a, s0: 1 / s0,), (lambda a, s0: 1 / (a * s0**2),), (lambda a, s0: -1.0,)],
    ),
    ("chapters/million", "check_order", [(32,)], [(31,), (33,), (20,), (0,), (32.5,)]),
    ("chapters/atlas", "check_edge", [([1, -2],), ([-1.5, 0.5],)], [([-0.5, -0.5],), ([1, -1],)]),
    ("chapters/atlas", "check_depth", [(2,), (2.0,)], [(18,), (6,), (3,)]),
]


@pytest.mark.parametrize(("page", "name", "right", "wrong"), ANSWERS)
def test_exercises_accept_right_answers_only(
    page: str, name: str, right: list[tuple], wrong: list[tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    check = _names(page, name)
    assert all(check(*answer) for answer in right)
    assert not any(check(*answer) for answer in wrong)


@pytest.mark.parametrize("page", _pages())
def test_claims_name_tests_that_exist(page: str) -> None:
    for check in re.findall(r"^:check: (.+)$", _source(page), re.MULTILINE):
        name, _, test = check.strip().partition("::")
        assert f"def {test}(" in (ROOT / name).read_text(), check


def test_random_tokens_end_at_vertices() -> None:
    for seed in range(8):
        end = limit(SelfAttention(np.eye(2), np.eye(2), np.eye(2)), tokens.box(20, 2, 5, seed=seed))
        assert end.certified
        assert np.abs(end.points - end.points[end.leader_of]).max() < 1e-9
        assert set(hull_vertices(end.points[end.leaders])) == set(range(len(end.leaders)))


@pytest.mark.parametrize(
    ("vertices", "A", "beyond"),
    [
        (SQUARE_IN_ORDER, np.eye(2), [(1, 0), (0, 1), (-1, 0), (0, -1), (0, 0)]),
        ([[1, 0], [3, 1], [3, -1]], np.eye(2), [(3, 0)]),
        (
            [[1, -2], [1, 2], [-1, 0]],
            np.diag([1.0, 4.0]),
            [(1, 0), (-0.8, 0.2), (-0.8, -0.2), (0, 0)],
        ),
    ],
)
def test_limit_set_of_the_page(vertices: list, A: np.ndarray, beyond: list) -> None:
    """The second polygon has a vertex that is not in S: 0 lies outside, before it."""
    found = _names("chapters/vertices", "limit_set")(np.array(vertices, float), A)
    dominant = [v for v in np.array(vertices, float) if (vertices @ A @ v).max() <= v @ A @ v]
    wanted = {tuple(np.round(x, 9) + 0.0) for x in [*np.array(beyond, float), *dominant]}
    assert {tuple(np.round(x, 9) + 0.0) for x in found} == wanted


@pytest.mark.parametrize("seed", range(6))
def test_tokens_escape_at_the_stated_rate(seed: int) -> None:
    n, t = 3 + 4 * seed, np.linspace(0, 4, 81)
    path = integrate(SelfAttention(1, 1, 1), tokens.box(n, 1, 2, seed=seed), 4)
    excess = (path.at(t)[:, :, 0] ** 2 - np.log(n)) * np.exp(-2 * t)[:, None]
    outside = excess[:-1] > 0
    assert outside.sum() > 40
    assert np.diff(excess, axis=0)[outside].min() >= -1e-9
    threshold = np.sqrt(lambertw(n**2).real)  # the paper's: a^2 = n^2 exp(-a^2)
    assert abs(threshold**2 - n**2 * np.exp(-(threshold**2))) < 1e-9 * n and threshold**2 > np.log(
        n
    )


@pytest.mark.parametrize(("V", "QK"), [(1.0, 1.0), (2.0, 0.5), (0.5, 3.0)])
def test_rows_harden_at_the_stated_rate(V: float, QK: float) -> None:
    start = np.sort(tokens.box(8, 1, 2, seed=4), axis=0) / np.sqrt(QK)
    end = limit(SelfAttention(1, QK, V), start)
    x = end.at(np.linspace(0, 6, 25) / V)[:, :, 0]
    gap = {0: start[1, 0] - start[0, 0], 7: start[-1, 0] - start[-2, 0]}
    for t, places in zip(np.linspace(0, 6, 25) / V, x, strict=True):
        P = end.attention_at(t)
        for i, leader in enumerate(end.leader_of):
            if np.sign(places[i]) == np.sign(end.points[i, 0]):
                bound = np.exp(-QK * gap[int(leader)] * abs(places[i]))
                assert np.delete(P[i], leader).max() <= bound * (1 + 1e-8)
    late = np.linspace(5, 6.5, 7) / V
    apart = np.array([np.abs(end.attention_at(t) - end.attention).max(axis=1) for t in late])
    slopes = np.polyfit(late, np.log(-np.log(apart)), 1)[0]
    lone = np.bincount(end.leader_of, minlength=8)[end.leader_of] == 1
    assert np.allclose(slopes[~lone], V, rtol=0.05)


def test_exceptional_row_of_the_page() -> None:
    """Against a run with 58 digits of the datum (-1, y*, 1.7)."""
    row = _names("chapters/leaders", "exceptional_row")([-0.868774227, 0, 1.686741809])
    assert np.abs(row - [0.43231377, 0.34501844, 0.22266779]).max() < 1e-7
    path = integrate(SelfAttention(1, 1, 1), [[-1.0], [-0.13581645093063799], [1.7]], 1.6)
    assert np.abs(path.attention(1.6)[1] - row).max() < 0.2 * np.exp(-3.2)


@pytest.mark.parametrize("seed", range(5))
def test_collapse_bounds_hold(seed: int) -> None:
    """Energy and distances never grow; the ball of the page holds every token."""
    n, d = 3 + 2 * seed, 1 + seed % 3
    start = tokens.box(n, d, 0.4 + 0.6 * seed, seed=seed)
    path = integrate(SelfAttention(np.eye(d), np.eye(d), -np.eye(d)), start, 30)
    energy = np.array([np.expm1(x @ x.T).mean() for x in path.tokens])
    assert (np.diff(energy) < 1e-12).all() and energy[-1] < 0.1 * energy[0]
    apart = np.linalg.norm(path.tokens[:, :, None] - path.tokens[:, None], axis=3)
    assert np.diff(apart, axis=0).max() < 1e-9
    ball = np.sqrt(lambertw((n - 1) / np.e).real)
    norms = np.linalg.norm(path.tokens, axis=2)
    assert norms.max() <= max(norms[0].max(), ball) + 1e-9


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_any_triangle_becomes_equilateral(d: int) -> None:
    start = np.random.default_rng(d).normal(size=(d + 1, d))
    end = integrate(SelfAttention(np.eye(d), np.eye(d), -np.eye(d)), start, 3e4, rtol=1e-9).at(3e4)
    apart = np.linalg.norm(end[:, None] - end, axis=2)[~np.eye(d + 1, dtype=bool)]
    assert np.abs(apart * np.sqrt(3e4 / (d + 1)) - 1).max() < 0.01


@pytest.mark.parametrize("seed", range(4))
def test_growth_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    Q, K, V = rng.normal(size=(3, 3, 3))
    path = integrate(SelfAttention(Q, K, V), tokens.box(9, 3, 1, seed=seed), 1)
    largest = np.linalg.norm(path.tokens, axis=2).max(axis=1)
    bound = largest[0] * np.exp(np.linalg.norm(V, 2) * path.times)
    assert (largest <= bound * (1 + 1e-9)).all()
    assert largest[-1] > 1.05 * largest[0]


@pytest.mark.parametrize("step", [0.1, 0.7, 3.0, 50.0])
def test_layers_keep_what_the_page_says(step: float) -> None:
    rng = np.random.default_rng(7)
    start, eye = tokens.box(12, 2, 1, seed=3), np.eye(2)
    for A in (eye, rng.normal(size=(2, 2))):
        z = layers(SelfAttention(A, eye, eye), start, 4, step).rescaled
        directions = rng.normal(size=(2, 40))
        assert np.diff((z @ directions).max(axis=1), axis=0).max() <= 1e-9
    for V in (np.diag([1.0, -0.95]), [[1.0, 3.0], [0.0, 0.9]]):
        sizes = np.abs(1 + step * np.linalg.eigvals(np.array(V)))
        assert np.isclose(sizes.max(), 1 + step) and sizes.min() < sizes.max() - 0.04 * step
    for V, QK in ((1.0, 1.0), (-1.0, -2.0)):
        x = layers(SelfAttention(1, QK, V), np.sort(start[:, :1], axis=0), 3, step).tokens
        gaps = np.diff(x[:, :, 0], axis=1)
        assert (np.diff(gaps, axis=0) >= -1e-9 * np.abs(x[1:, :, 0]).max(axis=1)[:, None]).all()
    B = np.array([[1.0, 0.4], [0.0, 0.7]])
    x = layers(SelfAttention(B, B, eye), start, 3, step).tokens @ B.T
    apart = np.linalg.norm(x[:, :, None] - x[:, None], axis=3)
    assert (np.diff(apart, axis=0) >= -1e-9 * np.abs(x[1:]).max(axis=(1, 2))[:, None, None]).all()


@pytest.mark.parametrize("u", [0.3, 0.8, 1.5])
def test_layers_collide_only_beyond_the_bound(u: float) -> None:
    system = SelfAttention(1, 1, -1)
    for step in (0.5 / u**2, 0.99 / u**2, 0.99 / np.tanh(u**2), 1.01 / np.tanh(u**2)):
        right = layers(system, [[-u], [u]], 1, step).tokens[-1, 1, 0]
        assert (right > 0) == (step < 1 / np.tanh(u**2))
        if step * u**2 < 1:
            assert 2 * right >= (1 - step * u**2) * 2 * u - 1e-12
    for factor, grows in ((0.98, False), (1.02, True)):
        run = layers(system, [[-u], [u]], 8, 2 * factor / np.tanh(u**2))
        assert (abs(run.tokens[-1, 1, 0]) > u) == grows


def test_codimension_in_many_dimensions() -> None:
    """All eigenvalues simple, k of them positive: two groups that agree in k directions."""
    rng = np.random.default_rng(5)
    rates = np.array([3.0, *rng.uniform(-2.5, 2.5, 31)])
    end = limit(
        SelfAttention(np.eye(32), np.eye(32), np.diag(rates)), tokens.box(10, 32, 1, seed=1)
    )
    k = int((rates > 0).sum())
    assert end.certified and end.codimension == k and len(end.leaders) <= 3
    z = end.rescaled_at(end.time + 12 / rates[rates > 0].min())
    apart = np.abs(z - z[end.leader_of])
    assert apart[:, rates > 0].max() < 1e-3 and apart[:, rates < 0].max() > 1


@pytest.mark.parametrize("seed", range(4))
def test_inner_leader_of_a_side_falls(seed: int) -> None:
    """Two leaders on one side of the leading direction: only the outer one is left."""
    rng = np.random.default_rng(seed)
    A = np.eye(2) + 0.3 * rng.normal(size=(2, 2))
    start = np.array([[3.0, 6.0], [3.5, -6.0], [-3.0, 1.0]]) + 0.1 * rng.normal(size=(3, 2))
    end = limit(SelfAttention(A, np.eye(2), np.diag([1.0, 0.9])), start)
    assert end.certified and end.falls and len(end.leaders) <= 2
    sides = np.sign(end.points[end.leaders, 0])
    assert len(set(sides)) == len(sides)


@pytest.mark.parametrize("d", [2, 3, 4])
def test_codimension_instances(d: int) -> None:
    verified = 0
    for seed in range(8):
        V = np.random.default_rng([seed, d]).uniform(size=(d, d))
        end = limit(SelfAttention(np.eye(d), np.eye(d), V), tokens.box(6, d, 3, seed=seed))
        assert not end.certified or len(end.shape.clusters) <= 3
        if end.codimension:
            verified += 1
            assert end.codimension == (np.linalg.eigvals(V).real > 0).sum()
    assert verified >= 6


def test_blind_attention_breaks_the_codimension_conjecture() -> None:
    blind = SelfAttention(np.diag([0.0, 1, 1]), np.eye(3), np.diag([1, 0.5, 0.5]))
    for first in ([0.3, -0.2, 0.5, 0.1], [0, 0, 0, 0], [5, -1, 2, 3]):
        start = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
        end = limit(blind, np.column_stack([first, start]))
        assert end.certified and end.codimension is None
        assert np.abs(end.points[:, 1:] - 0.750667528013148 * start).max() < 1e-8


def test_square_survives_a_complex_pair() -> None:
    start = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    for turn in (0.2, 0.5, 2.0):
        path = integrate(SelfAttention(np.eye(2), np.eye(2), [[1, -turn], [turn, 1]]), start, 4)
        z = path.rescaled_at(np.linspace(0, 4, 30))
        radius = np.linalg.norm(z, axis=2)
        assert np.abs(radius - radius[:, :1]).max() < 1e-8  # it stays a square
        assert abs(radius[-1, 0] - 0.750667528013148) < 1e-6
        assert np.abs(z[:, 0] + z[:, 1]).max() < 1e-8
        grown = np.exp(np.linspace(0, 4, 30)) * radius[:, 0]
        assert np.diff(grown).min() > 0


@pytest.mark.parametrize("turn", [0.2, 0.5, 0.9])
def test_tokens_gather_under_a_complex_pair(turn: float) -> None:
    """Every token comes as close to the one it looks at as the follower law says."""
    a, b = np.cos(turn), np.sin(turn)
    for seed in range(3):
        start = tokens.box(8, 2, 2.0, seed=seed)
        path = integrate(SelfAttention(np.eye(2), np.eye(2), [[a, -b], [b, a]]), start, 8 / a)
        apart = []
        for t in (4 / a, 8 / a):
            z, seen = path.rescaled_at(t), path.attention(t).argmax(axis=1)
            apart.append(np.linalg.norm(z - z[seen], axis=1).max())
        assert 0 < apart[1] < 3 * np.exp(-4) * apart[0] < 0.05


@pytest.mark.parametrize("angle", [-0.9, -1.1, -1.3])
def test_hyperplanes_are_certified_beyond_the_theorem(angle: float) -> None:
    eye, V = np.eye(2), np.diag([np.cos(angle), np.sin(angle)])
    for seed in range(3):
        found = limit(SelfAttention(eye, eye, V), tokens.box(8, 2, 2.0, seed=seed))
        assert found.certified and found.shape.kind == "parallel hyperplanes"


def test_hull_shrinks_along_g_only() -> None:
    S = np.array([[1.0, 0, 1], [0, 1, 2], [0, 0, 1]])
    V = S @ np.diag([1, 1, -0.5]) @ np.linalg.inv(S)
    angle = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    directions = np.array([np.cos(angle), np.sin(angle)])
    for seed, A in enumerate((np.eye(3), np.diag([1.0, -1, 2]))):
        path = integrate(SelfAttention(A, np.eye(3), V), tokens.box(15, 3, 2, seed=seed), 3)
        z = path.rescaled_at(np.linspace(0, 3, 60))
        along = (z @ np.linalg.inv(S)[:2].T @ directions).max(axis=1)
        across = (z[..., :2] @ directions).max(axis=1)
        assert np.diff(along, axis=0).max() <= 1e-9 < 0.01 < np.diff(across, axis=0).max()


@pytest.mark.parametrize("seed", range(4))
def test_falls_are_predicted_from_the_first_polytope(seed: int) -> None:
    cascade = _names("chapters/mix", "cascade")
    corner_falls = _names("chapters/mix", "corner_falls")
    for second in (0.98, 0.999):
        system = SelfAttention(np.eye(2), np.eye(2), np.diag([1.0, second]))
        end = limit(system, tokens.box(20, 2, 3, seed=seed))
        heads = np.diag(end.attention_at(5.0)) > 0.5
        told = cascade(end.rescaled_at(5.0)[heads], 1 - second)
        seen = corner_falls(end, 5.0)
        assert end.certified and len(told[told > 5.0]) == len(seen) >= 1
        assert np.abs(told[told > 5.0] / seen - 1).max() < 1e-3


@pytest.mark.parametrize("seed", range(3))
def test_particles_converge_at_the_rate_of_their_data(seed: int) -> None:
    system, most = SelfAttention(1, 1, 1), 1024

    def grid(n: int) -> np.ndarray:
        return ((2 * np.arange(n) + 1) / n - 1)[:, None]

    def moved(x: np.ndarray) -> np.ndarray:
        return np.sort(integrate(system, x, 1.0, rtol=1e-7).rescaled_at(1.0).ravel())

    def away(z: np.ndarray) -> float:
        return float(np.sqrt(((np.repeat(z, most // len(z)) - finest) ** 2).mean()))

    finest = moved(grid(most))
    even = [away(moved(grid(n))) for n in (16, 128)]
    chance = [
        np.mean([away(moved(tokens.box(n, 1, seed=[seed, k]))) for k in range(12)])
        for n in (16, 128)
    ]
    assert 6.5 < even[0] / even[1] < 10  # 8 for a rate of 1/n
    assert 1.6 < chance[0] / chance[1] < 5  # 8**0.5 = 2.8 for a rate of n**-0.5


def test_many_tokens_of_a_square_have_four_leaders() -> None:
    system = SelfAttention(np.eye(2), np.eye(2), np.eye(2))
    found = [limit(system, tokens.box(80, 2, seed=seed)) for seed in range(5)]
    assert all(one.certified and 3 <= len(one.leaders) <= 5 for one in found)
    few = [len(limit(system, tokens.box(10, 2, seed=seed)).leaders) for seed in range(5)]
    assert np.mean(few) < np.mean([len(one.leaders) for one in found])
