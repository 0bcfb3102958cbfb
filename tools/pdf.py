"""Print the built book into one PDF: all chapters as one page, in Chromium, with bookmarks."""

import functools
import http.server
import sys
import threading
from pathlib import Path

import chromium
import yaml
from playwright.sync_api import Error, Route, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build" / "html"
TARGET = ROOT / "_build" / "clusters-in-self-attention.pdf"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]

# Every page becomes a section; its anchors get its name, and links between pages become links inside the print.
JOIN = """async (pages) => {
  const known = new Set(pages);
  const base = location.href.replace(pages[0], "");
  const id = (page, anchor) => page.replace(/\\W/g, "-") + (anchor ? "--" + anchor : "");
  const sections = [];
  const styles = new Map();
  const note = (link, address) => {
    const url = new URL(link.getAttribute("href"), address).href;
    if (styles.has(url)) return;
    link.href = url;
    styles.set(url, link);
  };
  for (const link of document.querySelectorAll("link[rel=stylesheet]")) note(link, location.href);
  for (const name of pages) {
    const text = await (await fetch(base + name)).text();
    const page = new DOMParser().parseFromString(text, "text/html");
    for (const link of page.querySelectorAll("link[rel=stylesheet]")) note(link, base + name);
    const section = document.createElement("section");
    section.id = id(name);
    section.className = "printed-page";
    const article = page.querySelector("article.bd-article");
    article.querySelectorAll("script, .headerlink, .copybtn, .toggle-button").forEach((e) => e.remove());
    section.append(...article.childNodes);
    for (const e of section.querySelectorAll("[id]")) e.id = id(name, e.id);
    for (const details of section.querySelectorAll("details")) details.open = true;
    for (const e of section.querySelectorAll(".toggle-hidden")) e.classList.remove("toggle-hidden");
    for (const image of section.querySelectorAll("img")) {
      image.loading = "eager";
      image.src = new URL(image.getAttribute("src"), base + name).href;
    }
    for (const link of section.querySelectorAll("a[href]")) {
      const url = new URL(link.getAttribute("href"), base + name);
      const target = url.href.replace(url.hash, "").replace(base, "");
      if (known.has(target)) link.setAttribute("href", "#" + id(target, decodeURIComponent(url.hash.slice(1))));
    }
    sections.push(section);
  }
  document.querySelector("article.bd-article").replaceChildren(...sections);
  document.getElementById("jb-print-docs-body")?.remove();
  document.documentElement.dataset.mode = document.documentElement.dataset.theme = "light";
  await Promise.all([...styles.values()].filter((link) => !link.isConnected).map((link) => new Promise((done) => {
    link.addEventListener("load", done);
    document.head.append(link);
  })));
  await document.fonts.ready;
  await Promise.all([...document.images].map((image) => image.decode().catch(() => null)));
  const links = [...document.querySelectorAll("article a[href^='#']")].map((a) => a.getAttribute("href"));
  return {
    lost: links.filter((link) => !document.getElementById(link.slice(1))),
    raw: [...document.querySelectorAll("article .math")].filter((e) => !e.querySelector("mjx-container")).length,
    pictures: [...document.querySelectorAll("article img")].filter((image) => !image.naturalWidth).length,
  };
}"""
FOOTER = '<div style="width: 100%; text-align: center; font-size: 8px">{}</div>'.format(
    '<span class="pageNumber"></span>'
)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Says nothing of each request."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def pages() -> list[str]:
    """The book's pages in the order of its table of contents."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    files = [entry["file"] for part in toc["parts"] for entry in part["chapters"]]
    return [f"{name}.html" for name in [toc["root"], *files]]


def print_book(target: Path) -> None:
    """Join the pages in a browser and print them; stop where something is missing in the print."""
    handler = functools.partial(Quiet, directory=str(SITE))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=ARGUMENTS)
        page = browser.new_page(color_scheme="light", reduced_motion="reduce")
        page.set_default_timeout(300_000)

        def refuse(route: Route) -> None:
            route.abort()

        # On paper the still pictures stay.
        page.route("**/figures.js*", refuse)
        page.goto(f"http://127.0.0.1:{server.server_address[1]}/{pages()[0]}")
        found = page.evaluate(JOIN, pages())
        if any(found.values()):
            raise SystemExit(f"The print would lack something: {found}")
        page.emulate_media(media="print", color_scheme="light")
        page.pdf(
            path=target,
            format="A4",
            margin={"top": "18mm", "bottom": "18mm", "left": "17mm", "right": "17mm"},
            print_background=True,
            display_header_footer=True,
            header_template="<span></span>",
            footer_template=FOOTER,
            outline=True,
            tagged=True,
        )
        browser.close()
    server.shutdown()


if __name__ == "__main__":
    try:
        print_book(TARGET)
    except Error as failure:
        sys.exit(f"Chromium could not print the book: {failure}")
    print(f"The book is in {TARGET.relative_to(ROOT)} ({TARGET.stat().st_size / 1e6:.1f} MB)")
