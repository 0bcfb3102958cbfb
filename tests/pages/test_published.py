"""What a published site has beside its text: cards, dates, notebooks, site map, search, 404."""

import os
import struct
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest
from bs4 import BeautifulSoup
from playwright.sync_api import Browser, Page

from .conftest import ROOT, SITE, chapters, pages

PLACE = "https://example.org/a/book/"


@pytest.fixture(scope="module")
def page(browser: Browser, site: str) -> Page:
    return browser.new_page()


def read(name: str) -> BeautifulSoup:
    """A page of the built site."""
    return BeautifulSoup((SITE / name).read_text(), "html.parser")


def head(name: str) -> dict[str, str]:
    """What a page's head says of it."""
    tags = read(name).find_all("meta", content=True)
    return {str(tag.get("property") or tag.get("name")): str(tag["content"]) for tag in tags}


@pytest.mark.parametrize("name", pages())
def test_page_introduces_itself(name: str) -> None:
    said = head(name)
    assert len(said["description"]) > 30
    assert said["og:description"] == said["description"]
    assert said["og:title"]
    card = SITE / said["og:image"][said["og:image"].index("_static/") :]
    assert struct.unpack(">II", card.read_bytes()[16:24]) == (1200, 630)
    footer = read(name).find("footer", class_="bd-footer-content")
    assert footer is not None
    assert "Version 0.1.0" in footer.text
    assert "Last updated on 20" in footer.text
    assert [a["href"] for a in footer.find_all("a") if a.text == "Cite this book"]


def test_descriptions_and_titles_differ_from_page_to_page() -> None:
    for key in ("description", "og:title"):
        said = [head(name)[key] for name in pages()]
        assert sorted(set(said)) == sorted(said)


@pytest.mark.parametrize("name", chapters())
def test_notebook_is_offered_and_is_the_chapter(name: str) -> None:
    links = [str(a["href"]) for a in read(f"{name}.html").find_all("a", href=True)]
    links = [link for link in links if "_sources/" in link]
    assert links == [f"../_sources/{name}.ipynb", f"../_sources/{name}.md"]
    assert (SITE / f"_sources/{name}.md").read_bytes() == (ROOT / f"{name}.md").read_bytes()
    notebook = nbformat.read(SITE / f"_sources/{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) == (ROOT / f"{name}.md").read_text().count("```{code-cell}")
    assert notebook.metadata.kernelspec.name == "python3"


def test_site_map_lists_the_pages() -> None:
    tree = ElementTree.parse(SITE / "sitemap.xml")
    space = {"map": "http://www.sitemaps.org/schemas/sitemap/0.9"}
    found = [str(tag.text) for tag in tree.iterfind(".//map:loc", space)]
    made = {"genindex.html", "prf-prf.html", "search.html"}
    base = found[0].partition("chapters/")[0]
    assert {url.removeprefix(base) for url in found} == set(pages()) - made
    days = [str(tag.text) for tag in tree.iterfind(".//map:lastmod", space)]
    assert len(days) == len(found)


def test_lost_reader_finds_the_book(page: Page, site: str, tmp_path: Path) -> None:
    import published

    published.write_lost(tmp_path, "Book", pages()[0], "default-src 'self'", site)
    lost = f"{site}no/such/page"
    page.route(
        lost,
        lambda route: route.fulfill(
            status=404, path=tmp_path / "404.html", content_type="text/html"
        ),
    )
    page.goto(lost)
    page.get_by_role("link", name="Book").click()
    page.wait_for_url(site + pages()[0])
    page.goto(lost)
    page.get_by_role("searchbox").fill("leader")
    page.get_by_role("button", name="Search").click()
    page.wait_for_selector("#search-results li a")
    assert page.url.startswith(site)


SOUGHT = {
    "theorem 3.1": "vertices.html#theorem-vertices",
    "theorem 4.2": "hyperplanes.html#theorem-hyperplanes",
    "whitening law": "collapse.html#theorem-whitening",
    "follower law": "numbers.html#numbers-follower-law",
    "exercise rank one": "leaders.html#leaders-rank-one",
    "score form": "notation.html#symbol-score-form",
    "P_ij": "notation.html#symbol-attention-matrix",
    "lambda": "notation.html#symbol-leading-eigenvalue",
    "certificate": "numbers.html#numbers-theorem",
    "Boolean matrix": "notation.html#index-",
    "integrate": "reference.html#attnlib.integrate",
    "hull": "vertices.html",
}


@pytest.mark.parametrize("query", SOUGHT)
def test_search_finds(query: str, page: Page, site: str) -> None:
    page.goto(site + "search.html")
    page.get_by_role("searchbox").first.fill(query)
    page.keyboard.press("Enter")
    page.wait_for_selector("#search-results p:has-text('finished')")
    found = page.locator("#search-results li > a").evaluate_all("all => all.map((a) => a.href)")
    assert [link for link in found[:10] if SOUGHT[query] in link], found[:10]


def test_index_leads_to_theorems_exercises_and_functions() -> None:
    text = (SITE / "genindex.html").read_text()
    for anchor in ("#theorem-hyperplanes", "#leaders-rank-one", "#attnlib.limit", "#symbol-token"):
        assert anchor in text


def test_reference_has_every_public_name() -> None:
    import attnlib

    text = (SITE / "chapters/reference.html").read_text()
    names = [name for name in attnlib.__all__ if name != "tokens"]
    assert [name for name in names if f'id="attnlib.{name}"' not in text] == []


CONFIGURATION = f"""\
import sys
sys.path.insert(0, {str(ROOT / "theme/ext")!r})
extensions = ["myst_nb", "sphinx_book_theme", "published"]
nb_execution_mode = "off"
project = html_title = "Book"
root_doc = "one"
html_theme = "sphinx_book_theme"
html_theme_options = {{
    "repository_branch": "main",
    "launch_buttons": {{"binderhub_url": "https://mybinder.org", "notebook_interface": "jupyterlab"}},
}}
"""


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A book of one page, built with an address and a repository."""
    folder = tmp_path_factory.mktemp("public")
    (folder / "one.md").write_text(
        (ROOT / "chapters/equations.md").read_text().partition("## At")[0]
    )
    (folder / "conf.py").write_text(CONFIGURATION)
    settings = {
        "BOOK_ADDRESS": PLACE.rstrip("/"),
        "BOOK_REPOSITORY": "https://github.com/owner/name/",
    }
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", str(folder), str(folder / "out")]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_address_is_in_every_place_that_wants_it(public: Path) -> None:
    text = (public / "one.html").read_text()
    assert f'<link rel="canonical" href="{PLACE}one.html"' in text
    assert f'<meta property="og:url" content="{PLACE}one.html" />' in text
    assert f'<meta property="og:image" content="{PLACE}_static/cards/one.png" />' in text
    assert f"<loc>{PLACE}one.html</loc>" in (public / "sitemap.xml").read_text()
    assert f"Sitemap: {PLACE}sitemap.xml" in (public / "robots.txt").read_text()
    assert '<base href="/a/book/">' in (public / "404.html").read_text()


def test_repository_puts_a_rocket_on_the_page(public: Path) -> None:
    rocket = "https://mybinder.org/v2/gh/owner/name/main?urlpath=lab/tree/one.md"
    assert f'href="{rocket}"' in (public / "one.html").read_text()


ADDRESSES = {
    "https://github.com/owner/name.git": "https://github.com/owner/name",
    "git@github.com:owner/name.git": "https://github.com/owner/name",
    "https://elsewhere.org/owner/name.git": "",
    "/some/folder": "",
}


@pytest.mark.parametrize("origin", ADDRESSES)
def test_origin_on_github_is_the_repository(origin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import published

    monkeypatch.delenv("BOOK_REPOSITORY", raising=False)
    monkeypatch.setattr(published, "git", lambda *_: origin)
    assert published.repository("") == ADDRESSES[origin]
    assert published.repository("https://gitlab.com/a/b") == "https://gitlab.com/a/b"
