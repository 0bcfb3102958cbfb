"""Mathematics is typeset when the book is built, by MathJax in Node: pages bring glyphs, not a typesetter.

Screen readers are given the MathML that MathJax puts beside the glyphs.
"""

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

ROOT = Path(__file__).resolve().parents[2]
MATHJAX = ROOT / "_build" / "frontend" / "tools" / "mathjax"
FONTS = "mathjax"  # below _static, beside the style sheet
STYLE = "mathjax.css"

#: A formula as Sphinx and MyST write it: \(...\), or \[...\] or an environment in a block of its own.
INLINE = r'(?<=<span class="math notranslate nohighlight">)\\\((?P<inline>[^<]*?)\\\)(?=</span>)'
BLOCK = r"\\\[(?P<display>[^<]*?)\\\](?=\s*</div>)"
NUMBERED = r"(?P<environment>\\begin\{(?P<name>[a-z]+\*?)\}[^<]*?\\end\{(?P=name)\})(?=\s*</div>)"
FORMULA = re.compile(f"{INLINE}|{BLOCK}|{NUMBERED}", re.S)

logger = logging.getLogger(__name__)

Formula = tuple[str, bool]


def formula(match: re.Match[str]) -> Formula:
    """The formula's source, and whether it stands on a line of its own."""
    source = match["inline"] or match["display"] or match["environment"]
    return html.unescape(source).strip(), match["inline"] is None


def typeset(formulas: list[Formula]) -> tuple[dict[Formula, str], str]:
    """Each formula as HTML, and the style sheet for all of them."""
    from frontend import find

    wanted = [{"tex": tex, "display": display} for tex, display in formulas]
    task = json.dumps({"fonts": FONTS, "formulas": wanted})
    command = [find("node"), str(ROOT / "tools" / "typeset.cjs"), str(MATHJAX)]
    done = subprocess.run(command, input=task, capture_output=True, text=True, encoding="utf-8")
    if done.returncode:
        raise RuntimeError(f"MathJax could not typeset the book:\n{done.stderr.strip()}")
    made = json.loads(done.stdout)
    return dict(zip(formulas, made["html"], strict=True)), made["css"]


def finish(app: Sphinx, exception: Exception | None) -> None:
    """Put the glyphs into all pages; a formula that MathJax does not understand is a warning."""
    if exception or app.builder.name != "html":
        return
    pages = {path: path.read_text(encoding="utf-8") for path in Path(app.outdir).rglob("*.html")}
    found = {formula(match) for text in pages.values() for match in FORMULA.finditer(text)}
    # Pages of an earlier build that this one left as they are have their glyphs: the style sheet keeps them.
    memory = Path(app.doctreedir, "formulas.json")
    if memory.exists():
        found |= {(tex, display) for tex, display in json.loads(memory.read_text())}
    formulas = sorted(found)
    memory.write_text(json.dumps(formulas))
    glyphs, style = typeset(formulas)
    for (tex, _), text in glyphs.items():
        if "data-mjx-error" in text:
            problem = re.search(r'data-mjx-error="([^"]*)"', text)
            logger.warning("MathJax: %s in %s", problem and problem[1], tex)
    for path, text in pages.items():
        ready = FORMULA.sub(lambda match: glyphs[formula(match)], text)
        if ready != text:
            path.write_text(ready, encoding="utf-8")
    Path(app.outdir, "_static", STYLE).write_text(style, encoding="utf-8")


def style_page(
    app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """The style of formulas in place of MathJax."""
    if app.builder.format != "html":
        return
    files = context["script_files"]
    without = [file for file in files if not is_mathjax(file)]
    if len(without) < len(files):
        app.add_css_file(STYLE)  # on this page only: Sphinx forgets it with the page
    context["script_files"] = without


def is_mathjax(script: Any) -> bool:
    """Whether a script is MathJax or its settings."""
    body = getattr(script, "attributes", {}).get("body") or ""
    return "mathjax/" in str(getattr(script, "filename", "") or "") or "window.MathJax" in body


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the above."""
    sys.path.insert(0, os.fspath(ROOT / "tools"))
    app.connect("html-page-context", style_page, priority=840)
    app.connect("build-finished", finish, priority=800)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
