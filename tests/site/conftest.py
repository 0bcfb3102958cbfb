"""The built site, served under a sub-path of localhost, and a browser to read it with."""

import functools
import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
SUBPATH = "/some/where/"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

for _folder in ("tools", "theme/ext"):
    sys.path.insert(0, str(ROOT / _folder))


def pages() -> list[str]:
    """Every page of the table of contents, and those that Sphinx adds."""

    def walk(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            yield from (str(node[key]) for key in ("root", "file") if key in node)
            for value in node.values():
                yield from walk(value)
        elif isinstance(node, list):
            for value in node:
                yield from walk(value)

    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    return [f"{name}.html" for name in [*walk(toc), "genindex", "prf-prf", "search"]]


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the site under SUBPATH and nothing beside it."""

    def translate_path(self, path: str) -> str:
        if not path.startswith(SUBPATH):
            return str(SITE / "outside-the-site")
        return super().translate_path(path.removeprefix(SUBPATH.rstrip("/")))

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    """The address of the built site."""
    if not (SITE / "index.html").exists():
        pytest.fail("The book is not built: run `make book` before the tests, or `make test`.")
    handler = functools.partial(Handler, directory=str(SITE))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}{SUBPATH}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium, as tools/chromium.py finds it."""
    import chromium

    path = chromium.find()
    if path is None:
        pytest.fail(chromium.ADVICE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()
