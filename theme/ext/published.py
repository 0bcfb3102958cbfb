"""What a published page says of itself: address, repository, picture, date, version, notebook.

The address and the repository are settings of _config.yml (`html: baseurl`, `repository: url`); the
variables BOOK_ADDRESS and BOOK_REPOSITORY, and a clone's own origin on GitHub, fill in for them.
"""

import datetime
import html
import os
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import jupytext  # type: ignore[import-untyped]
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from sphinx.application import Sphinx
from sphinx.config import Config

ROOT = Path(__file__).resolve().parents[2]
#: Where `make serve` shows the site, for as long as no other address is known.
LOCAL = "http://localhost:8000/"
ORIGIN = re.compile(
    r"(?:https://|git@|ssh://git@)github\.com[/:](?P<name>[^/]+/[^/]+?)(?:\.git)?/?"
)
DESCRIPTION = re.compile(r'<meta (?=[^>]*name="description")[^>]*content="(?P<text>[^"]*)"')
#: Pages made by Sphinx, without a text of their own.
TOOLS = {
    "genindex": "Index: every theorem, exercise, symbol, term and function of the book, from A to Z.",
    "prf-prf": "Theorems: every definition, lemma, theorem and corollary of the book.",
    "search": "Search the book: theorems, exercises, symbols, functions and words.",
}


def git(*arguments: str) -> str:
    """What git answers, or nothing where there is no git or no repository."""
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def repository(setting: str) -> str:
    """The repository's web address: the setting, the variable, or GitHub as the clone's origin."""
    named = setting or os.environ.get("BOOK_REPOSITORY", "")
    if named:
        return named.rstrip("/")
    origin = ORIGIN.fullmatch(git("remote", "get-url", "origin"))
    return f"https://github.com/{origin['name']}" if origin else ""


def settle(app: Sphinx, config: Config) -> None:
    """Complete the settings; without a repository there is nothing that a button could launch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.release = config.version = project["version"]
    address = config.html_baseurl or os.environ.get("BOOK_ADDRESS", "")
    config.html_baseurl = address.rstrip("/") + "/" if address else ""
    options = config.html_theme_options
    options["repository_url"] = repository(options.get("repository_url") or "")
    if not options["repository_url"]:
        options["launch_buttons"] = {}


@cache
def changed(path: Path) -> str:
    """The day of a file's last commit, or today where git does not know it."""
    day = git("log", "-1", "--format=%cs", "--", str(path))
    return day or datetime.date.today().isoformat()


def offer_notebook(
    app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Write the page's notebook beside its source; the theme's button asks for `ipynb_source`."""
    source = Path(app.srcdir, f"{pagename}.md")
    kernel = app.env.metadata.get(pagename, {}).get("kernelspec")
    if app.builder.name != "html" or not kernel or not source.exists():
        return
    target = Path(app.outdir, "_sources", f"{pagename}.ipynb")
    target.parent.mkdir(parents=True, exist_ok=True)
    jupytext.write(jupytext.read(source), target)
    context["ipynb_source"] = f"{pagename}.ipynb"


def draw_card(title: str, book: str, target: Path) -> None:
    """A picture of 1200 x 630 points for those who show links with pictures."""
    figure = Figure(figsize=(12, 6.3), dpi=100, facecolor="#f7f8fa")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 12), ylim=(0, 6.3))
    axes.axis("off")
    corners = [(8.9, 1.2), (11.2, 1.9), (11.4, 4.4), (9.9, 5.3), (8.4, 3.7)]
    across, up = zip(*corners, strict=True)
    axes.fill(across, up, color="#1f5fa8", alpha=0.14)
    for start, (x, y) in zip([(9.6, 2.4), (10.3, 2.9), (10.2, 3.4)], corners[:3], strict=True):
        axes.plot([start[0], x], [start[1], y], color="#b04a12", linewidth=2, alpha=0.7)
    axes.scatter(across, up, s=420, color="#1f5fa8", zorder=3)
    lines, width = [""], 24
    for word in title.split():
        if len(lines[-1]) + len(word) >= width and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    text = "\n".join(lines).replace("$", r"\$")
    axes.text(0.7, 3.9, text, size=40, color="#1b2430", va="center", family="serif")
    if book != title:
        axes.text(0.7, 0.8, book, size=22, color="#4a5566", va="center", family="serif")
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Software": None})


def introduce(
    app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Complete one page's head: description, card, canonical address; and its footer."""
    if app.builder.format != "html":
        return
    book = app.config.html_title
    source = Path(app.srcdir, f"{pagename}.md")
    context["last_updated"] = changed(source if source.exists() else ROOT)
    metatags = context.get("metatags", "")
    if pagename in TOOLS and 'name="description"' not in metatags:
        metatags += f'\n<meta name="description" content="{html.escape(TOOLS[pagename])}" />'
    described = DESCRIPTION.search(metatags)
    title = html.unescape(re.sub(r"<[^>]+>", "", context.get("title") or "")) or book
    if pagename in TOOLS:
        title = TOOLS[pagename].partition(" ")[0].rstrip(":")
    card = f"_static/cards/{pagename.replace('/', '-')}.png"
    if app.builder.name == "html":
        draw_card(title, book, Path(app.outdir, card))
    base = app.config.html_baseurl
    properties = {
        "og:type": "website" if pagename == app.config.root_doc else "article",
        "og:site_name": book,
        "og:title": title,
        "og:description": html.unescape(described["text"]) if described else "",
        # Whoever shows cards wants whole addresses; until one is known, a relative one must do.
        "og:image": urljoin(base, card) if base else context["pathto"](card, 1),
        "og:image:alt": f"{title}: {book}" if title != book else book,
        "og:url": context.get("pageurl") or "",
    }
    for name, value in properties.items():
        if value:
            metatags += f'\n<meta property="{name}" content="{html.escape(value)}" />'
    metatags += '\n<meta name="twitter:card" content="summary_large_image" />'
    context["metatags"] = metatags


def write_sitemap(folder: Path, pages: dict[str, str], base: str) -> None:
    """List the pages, each with the day of its last change."""
    entries = "".join(
        f"  <url><loc>{html.escape(urljoin(base, page))}</loc><lastmod>{day}</lastmod></url>\n"
        for page, day in pages.items()
    )
    (folder / "sitemap.xml").write_text(
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{entries}</urlset>\n'
    )
    (folder / "robots.txt").write_text(
        f"User-agent: *\nAllow: /\nSitemap: {urljoin(base, 'sitemap.xml')}\n"
    )


def write_lost(folder: Path, book: str, first: str, policy: str, base: str) -> None:
    """The page that a host shows in place of one that is not there, at whatever depth that was."""
    root = urlsplit(base).path or "/"
    (folder / "404.html").write_text(f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="robots" content="noindex">
<meta name="description" content="There is no page at this address.">
<title>No such page: {html.escape(book)}</title>
<base href="{html.escape(root)}">
<style>
:root {{ color-scheme: light dark; }}
body {{ max-width: 34rem; margin: 12vh auto; padding: 0 1.2rem; font: 1.1rem/1.6 system-ui, sans-serif; }}
a {{ color: light-dark(#1f5fa8, #8ab8ee); }}
input, button {{ font: inherit; padding: 0.3em 0.6em; }}
input {{ max-width: 100%; }}
</style>
</head>
<body>
<main>
<h1>There is no page at this address</h1>
<p>It may have moved. All pages are listed beside <a href="{first}">{html.escape(book)}</a> and in the <a href="genindex.html">index</a>.</p>
<form action="search.html" role="search">
<p><label>Search the book: <input type="search" name="q"></label> <button>Search</button></p>
</form>
</main>
</body>
</html>
""")


def finish(app: Sphinx, exception: Exception | None) -> None:
    """Write what the site has beside its pages."""
    if exception or app.builder.name != "html":
        return
    from house import POLICY

    folder, base = Path(app.outdir), app.config.html_baseurl or LOCAL
    pages = {
        f"{name}.html": changed(Path(app.srcdir, f"{name}.md"))
        for name in sorted(app.env.found_docs)
    }
    write_sitemap(folder, pages, base)
    first = app.config.root_doc + ".html"
    write_lost(
        folder,
        app.config.html_title,
        first,
        POLICY.format(more=""),
        base if app.config.html_baseurl else "",
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the above."""
    app.connect("config-inited", settle, priority=100)
    app.connect("html-page-context", offer_notebook, priority=400)
    # After house.py has made sure of the description.
    app.connect("html-page-context", introduce, priority=940)
    app.connect("build-finished", finish, priority=950)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
