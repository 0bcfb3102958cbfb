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

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
SUBPATH = "/some/where/"

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


def chapters() -> list[str]:
    """The pages that are notebooks, without their endings."""
    names = [name.removesuffix(".html") for name in pages()]
    sources = {name: ROOT / f"{name}.md" for name in names}
    return [
        name for name, path in sources.items() if path.exists() and "kernelspec" in path.read_text()
    ]


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
