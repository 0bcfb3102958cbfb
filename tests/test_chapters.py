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

from attnlib import SelfAttention, limit, tokens
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
SQUARE = [[1, 1], [1, -1], [-1, 1], [-1, -1]]
SQUARE_IN_ORDER = [[1, 1], [-1, 1], [-1, -1], [1, -1]]
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
