"""Budgets of the live figure, measured in Chromium: dragging, playing, and coming to life.

Script time is what the figure's own code takes in a frame: the future computed anew, and the drawing
commands, apart. Headless Chromium then paints in software, which only the frames a second include.
"""

from __future__ import annotations

import functools
import http.server
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Page, sync_playwright

from attnlib.widgets import VIEWS, AttentionLab, _module, _read

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
SITE = ROOT / "_build" / "html"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]

PAGE = """<!DOCTYPE html><html data-theme="light"><meta charset="utf-8"><title>figure</title>
<style>CSS</style><body><div id="place" style="width: 900px"></div><script type="module">
import view from "./figure.mjs";
const values = STATE, calls = new Map();
const model = {
  get: (name) => values[name],
  set(name, value) {
    const changes = typeof name === "string" ? { [name]: value } : name;
    for (const [key, to] of Object.entries(changes)) {
      if (JSON.stringify(values[key]) === JSON.stringify(to)) continue;
      values[key] = to;
      for (const call of calls.get(`change:${key}`) ?? []) call();
    }
  },
  on: (event, call) => calls.set(event, [...(calls.get(event) ?? []), call]),
  off() {},
  save_changes() {},
};
const place = document.querySelector("#place");
view.render({ model, el: place });
const lab = window.lab = place.lab, frames = window.frames = [];
const timed = (name, key) => {
  const own = lab[name].bind(lab);
  lab[name] = (...all) => {
    const start = performance.now();
    own(...all);
    window.parts[key] += performance.now() - start;
  };
};
window.parts = { draw: 0 };
timed("draw", "draw");
const frame = lab.frame.bind(lab);
lab.frame = (now) => {
  window.parts.draw = 0;
  const start = performance.now();
  frame(now);
  frames.push([start, performance.now() - start - window.parts.draw, window.parts.draw, !lab.partial]);
};
</script></body></html>"""

DRAG = """async (moves) => {
  const canvas = lab.space.canvas, box = canvas.getBoundingClientRect();
  const i = lab.future.leaders[0], [px, py] = lab.spots[i];
  const send = (type, x, y) => canvas.dispatchEvent(new PointerEvent(type, {
    clientX: box.left + x, clientY: box.top + y, pointerId: 1, bubbles: true }));
  canvas.setPointerCapture = () => {};
  const next = () => new Promise(requestAnimationFrame);
  send("pointerdown", px, py);
  await next();
  frames.length = 0;
  for (let k = 1; k <= moves; k++) {
    const angle = k / 12;
    send("pointermove", px + 40 * Math.sin(angle), py + 40 * (1 - Math.cos(angle)));
    await next();
  }
  const seen = frames.slice();
  const last = performance.now();
  send("pointerup", px, py);
  do await next(); while (lab.solver || lab.wanted || lab.partial || lab.dragging);
  return [seen, performance.now() - last, lab.future.status];
}"""

PLAY = """async (seconds) => {
  lab.model.set("t", 0);
  frames.length = 0;
  lab.setPlaying(true);
  await new Promise((done) => setTimeout(done, 1000 * seconds));
  lab.setPlaying(false);
  return frames.slice(5);
}"""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which a folder is served."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


def show(page: Page, address: str, folder: Path, n: int, d: int) -> None:
    """Open the figure with n tokens in dimension d, its future computed."""
    name = "Vertices (3.1)" if d == 2 else "Vertices in space (3.1)"
    lab = AttentionLab(name, n=n, seed=3, views=list(VIEWS))
    state = {key: getattr(lab, key) for key in lab.keys if not key.startswith("_")}
    text = json.dumps({k: v for k, v in state.items() if k not in ("layout", "tooltip")})
    (folder / "figure.mjs").write_text(_module())
    page_text = PAGE.replace("CSS", _read("view.css")).replace("STATE", text)
    (folder / f"{n}-{d}.html").write_text(page_text)
    page.goto(f"{address}{n}-{d}.html")
    page.wait_for_function(
        "window.lab && lab.future && !lab.solver && !lab.partial", timeout=60_000
    )
    page.wait_for_timeout(300)


def drag(page: Page, n: int, d: int) -> None:
    """One row of the table of dragging."""
    page.evaluate(DRAG, 30)  # the compiler warms up
    page.wait_for_timeout(300)
    frames, exact, status = page.evaluate(DRAG, 150)
    _, script, draw, whole = np.array(frames, dtype=float).T
    print(
        f"| {n} | {d} | {np.median(script):.1f} | {np.percentile(script, 95):.1f} "
        f"| {np.percentile(draw, 95):.1f} | {100 * whole.mean():.0f} % | {exact:.0f} | {status} |"
    )


def play(page: Page, n: int, d: int) -> None:
    """One row of the table of playing."""
    starts, script, draw, _ = np.array(page.evaluate(PLAY, 4), dtype=float).T
    rate = 1000 * (len(starts) - 1) / (starts[-1] - starts[0])
    work = np.percentile(script + draw, 95)
    print(f"| {n} | {d} | {rate:.0f} | {work:.1f} |")


def awaken(browser: Any) -> None:
    """From navigation to a figure that answers the hand, in a browser that has nothing stored."""
    print("\n| page | from navigation to an answering figure, s |\n|:--|--:|")
    with served(SITE) as address:
        for name in ("index", "vertices"):
            times = []
            for _ in range(3):
                context = browser.new_context(bypass_csp=True)  # for waiting, which evaluates text
                page = context.new_page()
                page.goto(f"{address}chapters/{name}.html", wait_until="commit")
                page.wait_for_selector("script[type*='widget-view']", state="attached")
                page.evaluate(
                    "document.querySelector(\"script[type*='widget-view']\").parentElement.scrollIntoView()"
                )
                page.wait_for_function(
                    "document.querySelector('.lab')?.parentElement.lab?.spots", polling=20
                )
                times.append(page.evaluate("performance.now() / 1000"))
                context.close()
            print(f"| {name} | {np.median(times):.2f} |")


def main() -> None:
    """Print the tables."""
    import chromium

    path = chromium.find()
    if path is None:
        raise SystemExit(chromium.ADVICE)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as name:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1000, "height": 1100})
        with served(Path(name)) as address:
            print("| n | d | script a frame, ms | 95 % | drawing commands, 95 % ", end="")
            print("| frames with the whole future | exact after the last move, ms | then |")
            print("|--:|--:|--:|--:|--:|--:|--:|:--|")
            for n, d in [(40, 2), (40, 3), (200, 2), (200, 3)]:
                show(page, address, Path(name), n, d)
                drag(page, n, d)
            print("\n| n | d | frames a second, playing | script and drawing, 95 %, ms |")
            print("|--:|--:|--:|--:|")
            for n, d in [(200, 3), (1000, 2), (1000, 3)]:
                show(page, address, Path(name), n, d)
                play(page, n, d)
        if (SITE / "chapters").is_dir():
            awaken(browser)
        browser.close()


if __name__ == "__main__":
    main()
