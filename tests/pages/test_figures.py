"""The live figure on the built static page, moved by mouse, finger and keyboard, with no kernel."""

import base64
import gzip
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from attnlib import SelfAttention, classify, limit
from attnlib.widgets import AttentionLab

from .conftest import SITE
from .test_pages import AXE, TOO_WIDE, listen

FRONT, VERTICES = "chapters/index.html", "chapters/vertices.html"
LAB = "document.querySelector('.lab').parentElement.lab"
DONE = f"document.querySelector('.lab') && {LAB}.future && !{LAB}.solver && !{LAB}.request"

Open = Callable[..., Page]


@pytest.fixture
def visit(site: str, browser: Browser) -> Iterator[Open]:
    """Open a page and wait for its figure; whatever goes wrong on it fails the test."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def open_page(name: str, still: bool = True, **options: Any) -> Page:
        options.setdefault("viewport", {"width": 1280, "height": 1000})
        motion: Any = "reduce" if still else "no-preference"
        # Playwright waits by evaluating text, which the pages' policy forbids; test_pages.py keeps it.
        contexts.append(browser.new_context(reduced_motion=motion, bypass_csp=True, **options))
        page = contexts[-1].new_page()
        if options.get("java_script_enabled", True):
            listen(page, site, complaints)
        page.goto(site + name)
        if options.get("java_script_enabled", True):
            if name.startswith(VERTICES):
                page.locator("#phenomenon").scroll_into_view_if_needed()
            page.wait_for_selector(".lab-space", timeout=30_000)
            page.locator(".lab").first.scroll_into_view_if_needed()
            page.wait_for_function(DONE if still else f"{LAB}.future", timeout=30_000)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def get(page: Page, name: str) -> Any:
    """One trait of the page's figure."""
    return page.evaluate(f"{LAB}.model.get('{name}')")


def settle(page: Page) -> None:
    """Wait until nothing is being computed or drawn."""
    page.wait_for_timeout(100)
    page.wait_for_function(DONE, timeout=30_000)


def spot(page: Page, i: int) -> tuple[float, float]:
    """Where token i is in the window."""
    page.locator(".lab-space").scroll_into_view_if_needed()
    box = page.locator(".lab-space").bounding_box()
    assert box
    x, y = page.evaluate(f"{LAB}.spots[{i}].slice(0, 2)")
    return box["x"] + x, box["y"] + y


def assert_verdict_is_attnlibs(page: Page) -> None:
    """What the figure says of its state, attnlib says too."""
    Q, K, V, tokens = (get(page, name) for name in ("Q", "K", "V", "tokens"))
    shown = page.locator(".lab-verdict").evaluate("(e) => ({...e.dataset})")
    assert shown["theorem"] == (classify(Q, K, V).theorem or "none")
    found = limit(SelfAttention(Q, K, V), tokens)
    assert (shown["status"] == "certified") == found.certified
    if found.certified:
        assert shown["leaders"] == " ".join(map(str, found.leaders))
    state = get(page, "state")
    assert state["theorem"] == classify(Q, K, V).theorem
    assert state["leaders"] == [int(i) for i in shown["leaders"].split()]


@pytest.mark.parametrize("name", [FRONT, VERTICES])
def test_dragging_a_token_changes_the_future(visit: Open, name: str) -> None:
    page = visit(name)
    before, leaders = get(page, "tokens"), get(page, "state")["leaders"]
    assert_verdict_is_attnlibs(page)
    moved = leaders[0]
    x, y = spot(page, moved)
    cx, cy = np.mean([spot(page, i) for i in range(len(before))], axis=0)
    page.mouse.move(x, y)
    page.mouse.down()
    for k in range(1, 11):
        page.mouse.move(x + 0.08 * k * (cx - x), y + 0.08 * k * (cy - y))
    page.mouse.up()
    settle(page)
    after = get(page, "tokens")
    assert [i for i, row in enumerate(after) if row != before[i]] == [moved]
    assert moved not in get(page, "state")["leaders"]
    assert_verdict_is_attnlibs(page)


@pytest.mark.parametrize("way", [(1, 0), (0, 1)])
def test_a_finger_drags_a_token(visit: Open, way: tuple[int, int]) -> None:
    page = visit(FRONT, viewport={"width": 390, "height": 844}, has_touch=True)
    before = get(page, "tokens")
    x, y = spot(page, get(page, "state")["leaders"][0])
    scrolled = page.evaluate("scrollY")
    session = page.context.new_cdp_session(page)
    touch = "Input.dispatchTouchEvent"
    session.send(touch, {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
    for k in range(1, 9):
        at = {"x": x + 6 * k * way[0] * np.sign(195 - x), "y": y + 6 * k * way[1]}
        session.send(touch, {"type": "touchMove", "touchPoints": [at]})
    session.send(touch, {"type": "touchEnd", "touchPoints": []})
    settle(page)
    moved = [b for a, b in zip(before, get(page, "tokens"), strict=True) if a != b]
    assert len(moved) == 1 and page.evaluate("scrollY") == scrolled
    assert_verdict_is_attnlibs(page)


def test_every_slider_moves_by_keyboard(visit: Open) -> None:
    page = visit(FRONT)
    handles = page.locator(".figure-control input[type=range]")
    names = handles.evaluate_all("(all) => all.map((e) => e.labels[0].textContent)")
    traits = {"tokens n": "n", "seed": "seed", "layer length": "step"}
    assert sorted(traits) == sorted(filter(None, names))
    for i, name in enumerate(names):
        trait = traits[str(name)]
        before = get(page, trait)
        handles.nth(i).focus()
        page.keyboard.press("ArrowRight")
        settle(page)
        assert get(page, trait) > before, name
    assert len(get(page, "tokens")) == get(page, "n")
    assert_verdict_is_attnlibs(page)
    depth = page.get_by_role("slider", name="Depth t")
    before = get(page, "t")
    depth.focus()
    page.keyboard.press("ArrowRight")
    assert get(page, "t") > before
    page.keyboard.press("End")
    assert get(page, "t") >= 1e6 * (1 - 1e-9)
    settle(page)
    assert "1.0e+6" in page.locator(".lab-clock").inner_text()
    gap = f"Math.max(...{LAB}.now.map((v, k) => Math.abs(v - {LAB}.future.points[k])))"
    assert page.evaluate(gap) < 1e-9


def test_checkboxes_and_settings_work_without_a_kernel(visit: Open) -> None:
    page = visit(FRONT)
    page.get_by_label("original coordinates").check()
    settle(page)
    assert get(page, "original") is True
    page.get_by_label("discrete layers").check()
    settle(page)
    assert get(page, "discrete") is True and get(page, "state")["status"] == "layers"
    theorems = {
        "Vertices in space (3.1)": "3.1",
        "Leaders on a line (2.1)": "2.1",
        "Hyperplanes (4.2)": "4.2",
        "Three hyperplanes (4.2)": "4.2",
        "Polytope and subspace (5.2)": "5.2",
        "Slow fall of leaders": "4.2",
        "Collapse (V = -I)": "collapse",
    }
    for name, theorem in theorems.items():
        page.get_by_label("setting", exact=True).select_option(name)
        settle(page)
        assert get(page, "preset") == name
        assert page.locator(".lab-verdict").get_attribute("data-theorem") == theorem
        assert_verdict_is_attnlibs(page)


@pytest.mark.parametrize("V", [None, [[1.0, 0.3, 0.2], [0.0, 0.4, 0.1], [0.0, 0.0, -0.3]]])
def test_hyperplanes_drawn_are_those_of_theorem_42(visit: Open, V: Any) -> None:
    page = visit(VERTICES)
    page.get_by_label("setting", exact=True).select_option("Tilted hyperplanes (4.2)")
    settle(page)
    if V is not None:
        eye = np.eye(3).tolist()
        begin = np.random.default_rng(5).uniform(-2, 2, (16, 3)).tolist()
        state = json.dumps({"V": V, "Q": eye, "K": eye, "tokens": begin, "n": 16})
        page.evaluate(f"{LAB}.batch({state})")
        settle(page)
    V, tokens = np.array(get(page, "V")), get(page, "tokens")
    shown = page.evaluate(f"(({{normal, values}}) => [normal, values])({LAB}.hyperplanes())")
    normal, values = np.array(shown[0]), np.array(shown[1])
    assert np.abs(normal @ V - normal).max() < 1e-12  # lam_1 = 1
    eye = np.eye(len(V))
    found = limit(SelfAttention(eye, eye, V), tokens)
    ends = found.rescaled_at(found.time + 30.0) @ normal
    assert len(values) == 2
    assert np.abs(ends[:, None] - values).min(axis=1).max() < 1e-6
    assert np.abs(ends[:, None] - values).min(axis=0).max() < 1e-6


def test_time_plays_pauses_and_ends(visit: Open) -> None:
    page = visit(VERTICES, still=False)
    page.locator(".lab-space").focus()
    page.keyboard.press("Home")
    assert get(page, "t") == 0
    page.get_by_role("button", name="Play", exact=True).click()
    page.wait_for_function(f"{LAB}.model.get('t') > 0.05")
    page.get_by_role("button", name="Pause", exact=True).click()
    page.wait_for_timeout(200)
    rest = get(page, "t")
    page.wait_for_timeout(300)
    assert get(page, "t") == rest
    page.get_by_role("button", name="Step", exact=True).click()
    assert get(page, "t") > rest


def test_nothing_moves_by_itself_for_who_asks_for_rest(visit: Open) -> None:
    page = visit(FRONT)
    before = get(page, "t")
    page.wait_for_timeout(500)
    assert get(page, "t") == before
    assert get(page, "playing") is False


def test_figure_rests_when_out_of_view(visit: Open) -> None:
    page = visit(FRONT, still=False)
    page.wait_for_function(f"{LAB}.model.get('t') > 0")
    page.evaluate("document.querySelector('main').style.paddingBottom = '4000px'")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.wait_for_function(f"!{LAB}.visible")
    page.wait_for_timeout(100)
    before = get(page, "t")
    page.wait_for_timeout(400)
    assert get(page, "t") == before
    assert page.evaluate(f"{LAB}.request") == 0


def test_eigenvalue_crosses_a_boundary(visit: Open) -> None:
    page = visit(VERTICES)
    verdict, plane = page.locator(".lab-verdict"), page.locator(".lab-plane")
    assert verdict.get_attribute("data-theorem") == "3.1"
    plane.focus()
    page.keyboard.press("ArrowLeft")
    settle(page)
    assert verdict.get_attribute("data-theorem") == "4.2"
    assert_verdict_is_attnlibs(page)
    box = plane.bounding_box()
    assert box
    values, scale = page.evaluate(f"[{LAB}.values, {LAB}.planeScale]")
    x = box["x"] + box["width"] / 2 + scale * values[0]["re"]
    y = box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for k in range(1, 9):  # up, off the real axis: a pair that turns
        page.mouse.move(x, y - 4 * k)
    page.mouse.up()
    settle(page)
    assert np.iscomplex(np.linalg.eigvals(get(page, "V"))).all()
    assert verdict.get_attribute("data-theorem") == "none"
    assert classify(get(page, "Q"), get(page, "K"), get(page, "V")).theorem is None


def test_keyboard_alone_moves_a_token(visit: Open) -> None:
    page = visit(FRONT)
    before = get(page, "tokens")
    page.locator(".lab-space").focus()
    page.keyboard.press(".")
    page.wait_for_function("document.querySelector('.lab-say').textContent.includes('Token 0')")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowUp")
    settle(page)
    after = get(page, "tokens")
    assert after[0][0] > before[0][0] and after[0][1] > before[0][1] and after[1:] == before[1:]
    page.keyboard.press("+")
    settle(page)
    assert get(page, "n") == len(before) + 1
    page.keyboard.press("Delete")
    settle(page)
    assert get(page, "n") == len(before)
    assert_verdict_is_attnlibs(page)


def test_link_restores_the_state(visit: Open, site: str) -> None:
    page = visit(VERTICES)
    page.get_by_label("setting", exact=True).select_option("Tilted hyperplanes (4.2)")
    settle(page)
    page.locator(".lab-space").focus()
    page.keyboard.press(".")
    page.keyboard.press("ArrowUp")
    page.locator(".lab-plane").focus()
    page.keyboard.press("ArrowLeft")
    settle(page)
    page.get_by_role("button", name="Link", exact=True).click()
    page.wait_for_function("location.hash.startsWith('#lab=')")
    names = ("tokens", "Q", "K", "V", "t", "preset", "preset_index", "n", "seed", "state")
    wanted = {name: get(page, name) for name in names}
    again = visit(page.url.removeprefix(site))
    again.wait_for_function(f"{LAB}.model.get('preset') === {json.dumps(wanted['preset'])}")
    settle(again)
    for name in names:
        found = get(again, name)
        if name == "tokens":
            assert np.allclose(found, wanted[name], rtol=1e-7)
        elif name == "t":
            assert found == pytest.approx(wanted[name], rel=1e-5)
        elif name == "state":
            assert found["leaders"] == wanted[name]["leaders"]
            assert found["theorem"] == wanted[name]["theorem"]
        else:
            assert found == wanted[name], name
    assert again.get_by_label("setting", exact=True).input_value() == wanted["preset"]


GOOD = {
    "preset": "Hyperplanes (4.2)",
    "tokens": [[1.0, 2.0], [-1.0, 0.5], [0.25, 0.0]],
    "V": [[1.0, 0.0], [0.0, -0.5]],
    "Q": [[1.0, 0.0], [0.0, 1.0]],
    "K": [[1.0, 0.0], [0.0, 1.0]],
    "seed": 3,
    "half_width": 2.0,
    "original": False,
    "discrete": False,
    "step": 0.1,
    "t": 1.5,
}


def fragment(state: Any) -> str:
    """The fragment of a link that holds the state."""
    code = base64.urlsafe_b64encode(json.dumps(state).encode()).decode().rstrip("=")
    return f"#lab=0.{code}"


def test_python_links_to_a_state_as_the_button_does(visit: Open) -> None:
    lab = AttentionLab("Hyperplanes (4.2)", n=7, seed=5, t=1.25, discrete=True, step=0.5)
    page = visit(FRONT + lab.link())
    page.wait_for_function(f"{LAB}.model.get('n') === 7")
    settle(page)
    for name in ("preset", "V", "Q", "K", "seed", "half_width", "t", "discrete", "step"):
        assert get(page, name) == getattr(lab, name), name
    assert np.allclose(get(page, "tokens"), lab.tokens, rtol=1e-7)
    page.get_by_role("button", name="Link", exact=True).click()
    page.wait_for_function("location.hash.startsWith('#lab=')")
    given, made = (re.search(r"#lab=0\.(.*)", link)[1] for link in (page.url, lab.link()))
    assert json.loads(base64.urlsafe_b64decode(given + "===")) == json.loads(
        base64.urlsafe_b64decode(made + "===")
    )


def test_cases_of_the_atlas_are_chosen_on_its_map(visit: Open) -> None:
    page = visit("chapters/atlas.html")
    cases = page.locator("svg a[aria-label]")
    assert cases.count() > 30
    for name, theorem in (("0.71, 0.71: points", "3.1"), (": parallel hyperplanes", "4.2")):
        one = page.locator(f"svg a[aria-label*='{name}']").first
        one.focus()
        page.keyboard.press("Enter")
        page.wait_for_function(
            f"document.querySelectorAll('.lab')[1]?.parentElement.lab?.model.get('state').theorem === '{theorem}'"
        )
        assert page.locator(".lab-verdict").nth(1).get_attribute("data-theorem") == theorem


def test_link_sets_what_it_may_and_nothing_else(visit: Open) -> None:
    code = {"_esm": "document.title = 'taken'; export default {}", "_css": ".lab {display: none}"}
    page = visit(FRONT + fragment({**GOOD, **code, "label": "taken"}))
    page.wait_for_function(f"{LAB}.model.get('n') === 3")
    settle(page)
    for name, value in GOOD.items():
        assert get(page, name) == value
    assert "taken" not in page.title() and "taken" not in get(page, "label")
    assert page.locator(".lab-space").is_visible()
    assert_verdict_is_attnlibs(page)


@pytest.mark.parametrize(
    "state",
    [
        {**GOOD, "tokens": [[1, 2], [3]]},
        {**GOOD, "tokens": "no"},
        {**GOOD, "tokens": []},
        {**GOOD, "V": [[1, 0], [0, None]]},
        {**GOOD, "preset": "constructor"},
        {**GOOD, "t": -1},
        {**GOOD, "step": 0},
        {"t": 1},
        [1, 2],
        None,
    ],
)
def test_link_that_holds_no_state_changes_nothing(visit: Open, state: Any) -> None:
    page = visit(FRONT + fragment(state))
    page.wait_for_function("document.querySelector('.lab-note').textContent")
    settle(page)
    assert get(page, "preset") == "Vertices (3.1)" and get(page, "n") == 40
    assert "does not hold a state" in page.locator(".lab-note").inner_text()
    assert_verdict_is_attnlibs(page)


def test_tokens_and_picture_are_saved(visit: Open) -> None:
    page = visit(FRONT)
    with page.expect_download() as waiting:
        page.get_by_role("button", name="CSV", exact=True).click()
    text = waiting.value.path().read_text()
    head, *rows = text.splitlines()
    assert head == "token,leader,t,x1,x2,z1,z2" and len(rows) == 40
    t, tokens = get(page, "t"), get(page, "tokens")
    found = limit(SelfAttention(np.eye(2), np.eye(2), np.eye(2)), tokens)
    table = np.array([[float(v) for v in row.split(",")] for row in rows])
    assert np.abs(table[:, 5:] - found.rescaled_at(t)).max() < 1e-7
    assert table[:, 1].astype(int).tolist() == found.leader_of.tolist()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="PNG", exact=True).click()
    assert waiting.value.path().read_bytes().startswith(b"\x89PNG")


def test_attention_row_points_at_its_token(visit: Open) -> None:
    page = visit(VERTICES)
    heat = page.locator(".lab-heat")
    heat.scroll_into_view_if_needed()
    box = heat.bounding_box()
    assert box
    n = get(page, "n")
    page.mouse.move(box["x"] + 20, box["y"] + (3 + 0.5) * box["height"] / n)
    settle(page)
    assert page.evaluate(f"{LAB}.hover === {LAB}.order[3]")


@pytest.mark.parametrize("name", [FRONT, VERTICES])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_the_switch_is_followed(visit: Open, name: str, scheme: Any) -> None:
    page = visit(name, color_scheme=scheme)
    pixel = f"""() => {{
      const {{canvas, pen}} = {LAB}.space;
      return [...pen.getImageData(canvas.width - 3, 3, 1, 1).data].slice(0, 3);
    }}"""
    paper = sum(page.evaluate(pixel)) / 3
    assert (paper > 200) == (scheme == "light")
    for details in page.locator(".lab details").all():
        details.evaluate("(e) => { e.open = true; }")
    page.evaluate(AXE.read_text())
    other = "dark" if scheme == "light" else "light"
    for theme in (scheme, other):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        settle(page)
        result = page.evaluate("axe.run('.live-figure', {resultTypes: ['violations']})")
        found = [
            f"{violation['id']}: {node['target']} {node['html'][:160]}"
            for violation in result["violations"]
            for node in violation["nodes"]
        ]
        assert found == []
    assert (sum(page.evaluate(pixel)) / 3 > 200) == (other == "light")


@pytest.mark.parametrize("width", [320, 390, 768, 1280, 2000])
def test_figure_fits_every_width(visit: Open, width: int) -> None:
    page = visit(VERTICES, viewport={"width": width, "height": 900})
    assert page.evaluate(TOO_WIDE) == []
    box = page.locator(".lab-space").bounding_box()
    assert box and box["width"] >= 220 and box["height"] >= 220
    sizes = page.locator(".lab button").evaluate_all(
        "(all) => all.map((e) => e.getBoundingClientRect().height)"
    )
    assert min(sizes) >= 24


def test_figure_is_crisp_on_dense_screens(visit: Open) -> None:
    page = visit(FRONT, device_scale_factor=2)
    ratio = page.evaluate(f"{LAB}.space.canvas.width / {LAB}.space.canvas.clientWidth")
    assert ratio == pytest.approx(2, abs=0.01)


def test_nothing_is_left_running(visit: Open) -> None:
    page = visit(FRONT, still=False)
    page.evaluate(
        f"""() => {{
          window.gone = {LAB};
          gone.destroy();
          window.calls = 0;
          const own = window.requestAnimationFrame;
          window.requestAnimationFrame = (call) => {{ window.calls++; return own(call); }};
        }}"""
    )
    assert page.locator(".lab").count() == 0
    page.evaluate("gone.model.set({t: 1, n: 7, playing: true}); scrollBy(0, 50)")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.wait_for_timeout(500)
    assert page.evaluate("calls") == 0


def test_several_figures_on_one_page_do_not_meet(visit: Open) -> None:
    page = visit(FRONT)
    page.evaluate(
        f"""async () => {{
          const {{ model }} = {LAB}, place = document.createElement('div');
          const twin = new model.constructor(structuredClone(model.state));
          const script = performance.getEntriesByType('resource').find((e) => e.name.includes('attentionlab.js'));
          document.querySelector('.live-figure').after(place);
          (await import(script.name)).default.render({{ model: twin, el: place }});
          window.twin = place.lab;
        }}"""
    )
    page.wait_for_function("twin.future && !twin.solver && !twin.request")
    before = get(page, "tokens")
    page.locator(".lab-space").nth(1).focus()
    for key in (".", "ArrowRight", "ArrowUp"):
        page.keyboard.press(key)
    page.wait_for_function("twin.chosen === 0 && !twin.wanted && !twin.solver")
    assert get(page, "tokens") == before
    assert page.evaluate("twin.model.get('tokens')[0]") != before[0]
    assert page.evaluate(f"[{LAB}.index(), twin.index()]") == [0, 1]
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))
    page.get_by_role("button", name="Link", exact=True).nth(1).click()
    page.wait_for_function("location.hash.startsWith('#lab=1.')")


@pytest.mark.parametrize("name", [FRONT, VERTICES])
def test_still_picture_without_javascript(visit: Open, name: str) -> None:
    page = visit(name, java_script_enabled=False)
    still = page.locator(
        ".cell_output:has(script[type='application/vnd.jupyter.widget-view+json'])"
    ).locator("img, svg[role='img']")
    assert still.count() == 1 and still.is_visible()
    assert (still.get_attribute("alt") or still.get_attribute("aria-label") or "").strip()


def test_code_comes_once_and_is_light() -> None:
    code = SITE / "_static" / "attentionlab.js"
    assert len(gzip.compress(code.read_bytes(), 9)) <= 60_000
    for name in (FRONT, VERTICES):
        page = (SITE / name).read_text()
        assert "class Lab " not in page and "attentionlab.js?v=" in page
        states = re.findall(r'widget-state\+json">(.*?)</script>', page, flags=re.S)
        assert states and all(json.loads(state)["state"] for state in states)
