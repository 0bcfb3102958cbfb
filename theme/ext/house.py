"""What this book asks of Sphinx beyond its settings.

Chapters are executed again when attnlib or the environment changed; pages load nothing from
another host and say so; scripts wait for the text; images have sizes; pages have descriptions.
"""

import hashlib
import html
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from jupyter_cache import get_cache  # type: ignore[import-untyped]
from jupyter_cache.executors import load_executor  # type: ignore[import-untyped]
from PIL import Image
from sphinx.application import Sphinx
from sphinx.config import Config

ROOT = Path(__file__).resolve().parents[2]
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'"
)
# An inline script of the theme reads what this one sets.
NOT_DEFERRED = "documentation_options.js"
IMAGE = re.compile(r'<img (?P<attributes>[^>]*?src="(?P<source>[^"]+)"[^>]*?)(?P<end>\s*/?>)')


def library_fingerprint() -> str:
    """Name all that a chapter's outputs depend on, beside its own cells."""
    digest = hashlib.sha256(sys.version.encode())
    parts = [ROOT / "requirements.txt", ROOT / "benchmarks" / "scale.json"]
    for folder in ("attnlib", "chapters", "tests/data"):
        parts += sorted((ROOT / folder).rglob("*"))
    for path in parts:
        hidden = any(part.startswith((".", "__pycache__")) for part in path.parts)
        if path.is_file() and not hidden and path.suffix != ".md":
            digest.update(f"{path.relative_to(ROOT)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def prepare(app: Sphinx, config: Config) -> None:
    """Point the kernels at attnlib and the cache at a folder named by what it depends on."""
    subprocess.run([sys.executable, str(ROOT / "tools" / "frontend.py")], check=True)
    if importlib.util.find_spec("attnlib") is None:
        inherited = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), inherited]))
        sys.path.insert(0, str(ROOT))  # the reference is made from docstrings
    # A profile of the book's own: the reader's IPython settings change nothing in it.
    profile = ROOT / "_build" / "ipython" / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 50\n")
    os.environ["IPYTHONDIR"] = str(profile.parent)
    cache = ROOT / "_build" / "executed"
    current = library_fingerprint()
    for old in cache.glob("*"):
        if old.name != current:
            shutil.rmtree(old)
    config.nb_execution_cache_path = str(cache / current)
    # The matrices are small: threads for each of them only wait for one another, a hundred times as long.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    execute_chapters(cache / current)


def execute_chapters(folder: Path) -> None:
    """Execute the chapters that the cache does not hold, one on each core.

    What fails here is executed again, and reported, when its page is read.
    """
    cache = get_cache(folder)
    for path in sorted((ROOT / "chapters").glob("*.md")):
        if "kernelspec:" in path.read_text(encoding="utf-8"):
            cache.add_nb_to_project(str(path), read_data={"name": "myst_nb_md", "type": "plugin"})
    quiet = logging.getLogger("jupyter_cache")
    quiet.setLevel(logging.CRITICAL)
    load_executor("local-parallel", cache, quiet).run_and_cache(timeout=120)


def describe(doctree: nodes.document) -> str:
    """The page's first paragraph, cut at a word."""
    for paragraph in doctree.findall(nodes.paragraph):
        if next(iter(paragraph.findall(nodes.math)), None) is not None:
            continue
        text = " ".join(paragraph.astext().split())
        if len(text) > 60:
            return text if len(text) <= 160 else text[:157].rsplit(" ", 1)[0] + " ..."
    return ""


def give_sizes(body: str, images: dict[str, Path]) -> str:
    """Write each local image's width and height into its tag, so that no text jumps."""
    first = True

    def sized(match: re.Match[str]) -> str:
        nonlocal first
        path = images.get(match["source"].rpartition("/")[2])
        if path is None or " width=" in match[0] or path.suffix not in (".png", ".jpg", ".webp"):
            return match[0]
        with Image.open(path) as image:
            width, height = image.size
        extra = f' width="{width}" height="{height}" decoding="async"'
        if not first:
            extra += ' loading="lazy"'
        first = False
        return f"<img {match['attributes'].rstrip(' /')}{extra}{match['end']}"

    return IMAGE.sub(sized, body)


def deferred(script: Any) -> Any:
    """The script's tag, told to wait until the page is read (a copy: Sphinx shares the tags)."""
    name = str(getattr(script, "filename", None) or "")
    if not name or name.endswith(NOT_DEFERRED) or "async" in script.attributes:
        return script
    attributes = {**script.attributes, "defer": "defer"}
    return type(script)(script.filename, priority=script.priority, **attributes)


def finish_page(
    app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Complete one page's head and images."""
    if app.builder.format != "html":
        return
    metatags = context.get("metatags", "")
    if doctree is not None and 'name="description"' not in metatags:
        text = describe(doctree)
        if text:
            metatags += f'\n<meta name="description" content="{html.escape(text)}" />'
    context["metatags"] = (
        f'\n<meta http-equiv="Content-Security-Policy" content="{POLICY}" />{metatags}'
    )
    if "body" in context:
        # Sphinx copies images only after it has written the pages.
        images = {name: Path(app.srcdir, path) for path, name in app.builder.images.items()}
        body = give_sizes(context["body"], images)
        # A role withdrawn from ARIA, and a name that hides the text it stands on.
        body = body.replace('role="doc-biblioentry"', 'role="listitem"')
        context["body"] = body.replace('<summary aria-label="Toggle hidden content">', "<summary>")
    # Sphinx's search page runs its scripts while it is read.
    if pagename != "search":
        context["script_files"] = [deferred(script) for script in context["script_files"]]


def redirect_root(app: Sphinx, exception: Exception | None) -> None:
    """Make the site's own address lead to its first page, with a link for those who must click."""
    if exception or app.builder.name != "html":
        return
    first = app.config.root_doc + ".html"
    title = html.escape(app.config.html_title)
    Path(app.outdir, "index.html").write_text(
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta http-equiv="refresh" content="0; url={first}">'
        f'<link rel="canonical" href="{first}"></head>'
        f'<body><p><a href="{first}">{title}</a></p></body></html>\n'
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the above."""
    app.add_config_value("comments_config", {}, "")
    app.add_css_file("book.css", priority=900)
    app.add_js_file("book.js", priority=900)
    app.connect("config-inited", prepare)
    app.connect("html-page-context", finish_page, priority=900)
    app.connect("build-finished", redirect_root, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
