"""Binder, step by step, without Binder: `make test-binder`.

What repo2docker does with this repository, in the same order in an empty environment; then what a
reader does: open the path that the rocket of a page carries, run every cell, move a slider.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page

from .conftest import ROOT, chapters

BUILT_FOR_BINDER = """\
import sys
sys.path.insert(0, {extensions!r})
extensions = ["myst_nb", "sphinx_book_theme", "published"]
nb_execution_mode = "off"
project = html_title = "Book"
root_doc = {first!r}
html_theme = "sphinx_book_theme"
html_theme_options = {{
    "repository_branch": "main",
    "launch_buttons": {{"binderhub_url": "https://mybinder.org", "notebook_interface": "jupyterlab"}},
}}
"""

CELLS = """() => jupyterapp.shell.currentWidget.content.widgets
  .filter((cell) => cell.model.type === 'code' && cell.model.sharedModel.getSource().trim())
  .map((cell) => ({
    count: cell.model.executionCount,
    running: cell.model.executionState === 'running',
    source: cell.model.sharedModel.getSource(),
    outputs: cell.model.sharedModel.getOutputs(),
  }))"""


@pytest.fixture(scope="module")
def rockets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """For each chapter the path that its page's button opens, as published pages carry it."""
    folder = tmp_path_factory.mktemp("pages")
    for name in chapters():
        (folder / name).parent.mkdir(exist_ok=True)
        head = (ROOT / f"{name}.md").read_text().partition("\n## ")[0].partition("\n```")[0]
        (folder / f"{name}.md").write_text(f"{head}\n")
    (folder / "conf.py").write_text(
        BUILT_FOR_BINDER.format(extensions=str(ROOT / "theme/ext"), first=chapters()[0])
    )
    settings = {**os.environ, "BOOK_REPOSITORY": "https://github.com/owner/name"}
    command = [sys.executable, "-m", "sphinx", "-Q", "-b", "html", str(folder), str(folder / "out")]
    subprocess.run(command, env=settings, check=True)
    paths = {}
    for name in chapters():
        text = (folder / f"out/{name}.html").read_text()
        found = re.findall(r'href="(https://mybinder\.org/v2/gh/owner/name/main\?[^"]+)"', text)
        assert len(found) == 1, f"{name} has {len(found)} rockets"
        paths[name] = parse_qs(urlsplit(found[0]).query)["urlpath"][0]
    return paths


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """JupyterLab in an environment that was made as repo2docker makes it."""
    folder = tmp_path_factory.mktemp("binder")
    repository, environment = folder / "repository", folder / "environment"
    listed = [
        "git",
        "-C",
        str(ROOT),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (repository / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, repository / name)
    settings = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "JUPYTER", "VIRTUAL_ENV", "IPYTHON"))
    }
    settings["PATH"] = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    settings["HOME"] = str(folder)
    started = time.monotonic()
    venv.create(environment, with_pip=True)
    pip = [str(environment / "bin/pip"), "install", "--quiet", "--no-cache-dir"]
    run = subprocess.run
    run([*pip, "-r", "binder/requirements.txt"], cwd=repository, env=settings, check=True)
    run(["bash", "binder/postBuild"], cwd=repository, env=settings, check=True)
    seconds = time.monotonic() - started
    size = sum(path.lstat().st_size for path in environment.rglob("*")) / 1e6
    print(f"\nBinder's environment: {size:.0f} MB, made in {seconds:.0f} s")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        "bash",
        "binder/start",
        "jupyter",
        "lab",
        "--no-browser",
        f"--port={port}",
        "--allow-root",
    ]
    command += ["--expose-app-in-browser", "--IdentityProvider.token=", "--ServerApp.password="]
    address = f"http://127.0.0.1:{port}/"
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            command,
            cwd=repository,
            env=settings,
            stdout=log,
            stderr=log,
        )
        try:
            for _ in range(240):
                try:
                    urllib.request.urlopen(f"{address}api", timeout=2).close()
                    break
                except (urllib.error.URLError, OSError):
                    assert server.poll() is None, (folder / "log").read_text()
                    time.sleep(0.25)
            yield address
        finally:
            server.terminate()
            server.wait(30)


def open_as_notebook(page: Page, address: str) -> None:
    """Open an address of JupyterLab and wait for the kernel."""
    page.goto(address, timeout=120_000)
    page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=120_000)
    page.evaluate(
        """async () => {
          const { context, sessionContext } = jupyterapp.shell.currentWidget;
          await context.ready;
          await sessionContext.ready;
          await sessionContext.session.kernel.info;
        }"""
    )
    idle = ".jp-Notebook-ExecutionIndicator[data-status='idle']"
    page.wait_for_selector(idle, state="attached", timeout=120_000)


def run_all(page: Page, count: int) -> list[dict]:
    """Run every cell by the menu; return the code cells when the last one is done."""
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.wait_for_function(
        f"""(() => {{
          const cells = ({CELLS})();
          const wrong = cells.some((cell) => cell.outputs.some((o) => o.output_type === 'error'));
          return wrong || (cells.length === {count} && cells.every((cell) => cell.count && !cell.running));
        }})()""",
        timeout=300_000,
        polling=500,
    )
    return page.evaluate(CELLS)


@pytest.mark.parametrize("name", chapters())
def test_every_cell_of_the_chapter_runs(
    name: str, rockets: dict[str, str], lab: str, browser: Browser
) -> None:
    context = browser.new_context(viewport={"width": 1300, "height": 1000})
    page = context.new_page()
    assert rockets[name] == f"lab/tree/{name}.md"
    open_as_notebook(page, f"{lab}{rockets[name]}?reset")
    cells = run_all(page, (ROOT / f"{name}.md").read_text().count("```{code-cell}"))
    errors = [
        f"{output['ename']}: {output['evalue']} in {cell['source'][:200]}"
        for cell in cells
        for output in cell["outputs"]
        if output["output_type"] == "error"
    ]
    assert errors == []
    assert any(cell["outputs"] for cell in cells)
    if "@interact(" in (ROOT / f"{name}.md").read_text():
        move_a_slider(page)
    context.close()


def move_a_slider(page: Page) -> None:
    """Press an arrow key on a slider; Python answers with another picture."""
    page.evaluate(
        """async () => {
          const notebook = jupyterapp.shell.currentWidget.content;
          const at = notebook.widgets.findIndex(
            (cell) => cell.model.sharedModel.getSource().includes('@interact('));
          notebook.activeCellIndex = at;
          await notebook.scrollToItem(at, 'center');
        }"""
    )
    output = page.locator(".jp-Cell:has(.widget-interact)")
    picture = output.locator(".widget-output img, .jp-OutputArea img").first
    picture.wait_for(timeout=60_000)
    before = picture.get_attribute("src")
    # One token more may lie inside the hull and change nothing; another seed changes all.
    slider = output.locator(".widget-slider", has_text="seed")
    readout = slider.locator(".widget-readout")
    value = readout.inner_text()
    slider.locator(".noUi-handle").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "([element, before]) => element.textContent !== before",
        arg=[readout.element_handle(), value],
        timeout=30_000,
    )
    deadline = time.monotonic() + 60
    while picture.get_attribute("src") == before:
        assert time.monotonic() < deadline, "the picture did not change with the slider"
        page.wait_for_timeout(200)
