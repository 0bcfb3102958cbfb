"""Every page of the built site, opened in Chromium as a reader would open it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page

from .conftest import ROOT, SITE, pages

SCREENSHOTS = ROOT / "_build" / "screenshots"
AXE = ROOT / "_build" / "frontend" / "tests" / "axe.min.js"
WIDE, NARROW = (1280, 900), (390, 844)

SETTLE = """async () => {
  for (let y = 0; y < document.body.scrollHeight; y += innerHeight / 2) {
    scrollTo(0, y);
    await new Promise((done) => setTimeout(done, 50));
  }
  await document.fonts.ready;
  await Promise.all([...document.images].map((image) => image.decode().catch(() => null)));
  const views = document.querySelectorAll(
    'script[type="application/vnd.jupyter.widget-view+json"]');
  const patience = Date.now() + 20000;
  while (document.querySelectorAll('.live-figure > *').length < views.length) {
    if (Date.now() > patience) return ['a figure did not come to life'];
    await new Promise((done) => setTimeout(done, 100));
  }
  scrollTo(0, 0);
  return [];
}"""

FORMULAS = """() => ({
  wanted: document.querySelectorAll('.math, .amsmath').length,
  typeset: document.querySelectorAll('mjx-container').length,
  read: document.querySelectorAll('mjx-container > mjx-assistive-mml > math').length,
  wrong: [...document.querySelectorAll('mjx-merror, [data-mjx-error]')].map((e) => e.textContent),
  left: [...document.querySelectorAll('.math, .amsmath')]
    .filter((e) => !e.querySelector('mjx-container')).map((e) => e.textContent),
})"""

IMAGES = """() => [...document.querySelectorAll('main img')].map((image) => ({
  source: image.getAttribute('src'), alternative: image.alt, width: image.naturalWidth,
  sized: image.hasAttribute('width'),
}))"""

PROSE = """() => {
  const copy = document.querySelector('main').cloneNode(true);
  copy.querySelectorAll('pre, code, script').forEach((e) => e.remove());
  return copy.textContent;
}"""

OPEN = """() => {
  for (const details of document.querySelectorAll('main details')) details.open = true;
  for (const button of document.querySelectorAll('main .toggle-button-hidden')) button.click();
  return document.querySelectorAll('main .toggle-hidden, main details:not([open])').length;
}"""

TOO_WIDE = """() => {
  if (document.scrollingElement.scrollWidth <= innerWidth) return [];
  return [...document.querySelectorAll('body *')]
    .filter((e) => e.getBoundingClientRect().right > innerWidth + 1)
    .map((e) => e.tagName + '.' + e.className).slice(0, 10);
}"""


@dataclass
class Visit:
    """One page in one window, and what went wrong while it was open."""

    name: str
    page: Page
    look: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


def listen(page: Page, site: str, complaints: list[str]) -> None:
    """Write down every console error, failed request and request to another host."""

    def on_request(request: Any) -> None:
        if not request.url.startswith((site, "data:", "blob:")):
            complaints.append(f"request outside the site: {request.url}")

    page.on("request", on_request)
    page.on("requestfailed", lambda r: complaints.append(f"failed: {r.url} {r.failure}"))
    page.on("pageerror", lambda error: complaints.append(f"script error: {error}"))
    page.on(
        "response",
        lambda r: complaints.append(f"status {r.status}: {r.url}") if r.status >= 400 else None,
    )
    page.on(
        "console",
        lambda m: complaints.append(f"console: {m.text}") if m.type == "error" else None,
    )


LOOKS: dict[str, tuple[tuple[int, int], Literal["light", "dark"]]] = {
    "wide": (WIDE, "light"),
    "narrow": (NARROW, "light"),
    "dark": (WIDE, "dark"),
}


@pytest.fixture(scope="module", params=[f"{name} {look}" for name in pages() for look in LOOKS])
def visit(request: pytest.FixtureRequest, site: str, browser: Browser) -> Iterator[Visit]:
    """Open one page, read it to its end, and let everything on it finish."""
    name, look = request.param.split()
    (width, height), scheme = LOOKS[look]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    visit = Visit(name, page, look)
    page.on("request", lambda request: visit.requests.append(request.url))
    listen(page, site, visit.complaints)
    page.goto(site + name, wait_until="load")
    visit.complaints += page.evaluate(SETTLE)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    shot = name.removesuffix(".html").replace("/", "-")
    page.screenshot(path=SCREENSHOTS / f"{shot}-{look}.png", full_page=True)
    yield visit
    context.close()


def test_nothing_fails_and_nothing_is_fetched_elsewhere(visit: Visit) -> None:
    assert visit.complaints == []


def test_mathematics_is_typeset(visit: Visit) -> None:
    found = visit.page.evaluate(FORMULAS)
    assert found["wrong"] == []
    assert found["left"] == []
    assert found["typeset"] >= found["wanted"]
    # What a screen reader is given in place of the glyphs.
    assert found["read"] == found["typeset"]


def test_figures_are_there_and_described(visit: Visit) -> None:
    for image in visit.page.evaluate(IMAGES):
        assert image["width"] > 0, f"{image['source']} did not load"
        assert image["alternative"].strip(), f"{image['source']} has no alternative text"
        generic = image["alternative"].strip().split("/")[-1]
        assert generic not in image["source"], f"{image['source']} is described by its own name"


def test_figure_scripts_come_with_figures_alone(visit: Visit) -> None:
    alive = visit.page.locator(".live-figure").count() > 0
    fetched = any("/_static/attentionlab.js" in url for url in visit.requests)
    assert fetched == alive


def test_page_does_not_scroll_sideways(visit: Visit) -> None:
    assert visit.page.evaluate(TOO_WIDE) == []


def test_no_markup_is_left_in_the_text(visit: Visit) -> None:
    text = visit.page.evaluate(PROSE)
    assert re.findall(r"```.*|:::.*|\{[a-z:-]+\}`.*|\$\$.*|\\[(\[].*|\\begin\{.*", text) == []


def test_theme_follows_the_reader(visit: Visit) -> None:
    theme = visit.page.evaluate("document.documentElement.dataset.theme")
    assert theme == LOOKS[visit.look][1]


def test_axe_finds_nothing_with_all_solutions_open(visit: Visit) -> None:
    assert visit.page.evaluate(OPEN) == 0
    visit.page.evaluate(AXE.read_text())
    result = visit.page.evaluate("axe.run({resultTypes: ['violations']})")
    found = [
        f"{violation['id']} ({violation['impact']}): {node['target']} {node['html'][:160]}"
        for violation in result["violations"]
        for node in violation["nodes"]
    ]
    assert found == []


def test_no_width_scrolls_sideways_with_all_solutions_open(visit: Visit) -> None:
    if visit.look == "wide":
        visit.page.evaluate(OPEN)
        for width in (320, 480, 768, 1024, 2000):
            visit.page.set_viewport_size({"width": width, "height": 800})
            assert visit.page.evaluate(TOO_WIDE) == [], f"at {width} pixels"


@pytest.mark.parametrize("name", pages())
def test_page_forbids_other_hosts(name: str) -> None:
    assert "Content-Security-Policy" in (SITE / name).read_text()


def test_policy_stops_a_request_elsewhere(site: str, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(site + pages()[0])
    fetched = page.evaluate(
        "fetch('http://localhost:9/').then(() => 'fetched', (error) => String(error))"
    )
    refused = page.evaluate(
        """() => new Promise((done) => {
          document.addEventListener('securitypolicyviolation', (e) => done(e.blockedURI));
          const image = new Image();
          image.src = 'http://localhost:9/picture.png';
          setTimeout(() => done(null), 2000);
        })"""
    )
    page.close()
    assert fetched != "fetched"
    assert refused == "http://localhost:9/picture.png"


def test_root_leads_to_the_first_page(site: str, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(site)
    page.wait_for_url(site + pages()[0])
    page.close()


def test_every_page_of_the_book_is_built() -> None:
    built = {path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html")}
    templates = {name for name in built if name.startswith("_static/")}
    assert built - templates - {"index.html", "404.html"} == set(pages())


def test_links_inside_the_site_lead_somewhere(site: str, browser: Browser) -> None:
    page = browser.new_page()
    anchors: dict[str, set[str]] = {}
    links: list[tuple[str, str]] = []
    for name in pages():
        page.goto(site + name, wait_until="domcontentloaded")
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
        anchors[name] = set(ids)
        # (the href of a link within a drawing is no string)
        found = page.evaluate(
            "[...document.querySelectorAll('a[href]')].map((a) => new URL(a.getAttribute('href'), a.baseURI).href)"
        )
        links += [(name, link.removeprefix(site)) for link in found if link.startswith(site)]
    page.close()
    broken = []
    for name, link in links:
        target, _, fragment = link.partition("#")
        target = target.partition("?")[0] or "index.html"
        there = Path(SITE, target).is_file()
        if fragment.startswith("lab="):  # a state of a figure: followed in test_figures.py
            fragment = ""
        if not there or (fragment and target in anchors and fragment not in anchors[target]):
            broken.append(f"{name} -> {link}")
    assert broken == []


FOCUSED = """() => {
  const e = document.activeElement;
  const box = e.getBoundingClientRect();
  globalThis.visited ??= new Set();
  const again = visited.has(e);
  visited.add(e);
  return {again, tag: e.tagName, name: e.className.toString(), seen: box.width > 0 && box.height > 0};
}"""


def test_a_chapter_is_read_with_the_keyboard(site: str, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    page.goto(f"{site}chapters/equations.html")
    page.evaluate(SETTLE)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#main-content"
    page.keyboard.press("Enter")
    assert page.url.endswith("#main-content")
    page.reload()
    page.evaluate(SETTLE)
    wanted = page.locator("main .toggle-button").count()
    assert wanted
    reached, opened = [], 0
    for _ in range(1000):
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED)
        if focused["tag"] == "BODY" or focused["again"]:
            break
        assert focused["seen"], f"focus is on something invisible: {focused}"
        reached.append(focused)
        if "toggle-button" in focused["name"] and "toggle-button-hidden" in focused["name"]:
            page.keyboard.press("Enter")
            opened += 1
    assert focused["tag"] == "BODY" or focused["again"]
    assert len(reached) > 50
    assert opened == wanted
    assert page.locator("main .toggle-hidden").count() == 0
    page.keyboard.press("Control+k")
    page.keyboard.type("score form")
    page.keyboard.press("Enter")
    page.wait_for_selector("#search-results li a")
    context.close()
