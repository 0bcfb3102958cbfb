"""The live figures of the site: their code once, and on each page no more state than they need.

A notebook carries a figure's JavaScript in its widget's state, since it has nowhere else to look. The site
keeps it in `_static/attentionlab.js` (and the style in `attentionlab.css`) and writes the name into the
state for `figures.js`, which has the browser's own controls in place of the widget manager's.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

STATE = "application/vnd.jupyter.widget-state+json"
VIEW = re.compile(
    r'<script (?P<type>type="application/vnd\.jupyter\.widget-view\+json")>(?P<view>.*?)</script>',
    re.S,
)
REFERENCE = "IPY_MODEL_"

#: What figures.js can show or follow.
KNOWN = {
    "AnyModel",
    "BoxModel",
    "CheckboxModel",
    "DropdownModel",
    "FloatSliderModel",
    "IntSliderModel",
    "LinkModel",
    "VBoxModel",
}
SILENT = {"CheckboxStyleModel", "DescriptionStyleModel", "LayoutModel", "SliderStyleModel"}

logger = logging.getLogger(__name__)


def references(value: Any) -> set[str]:
    """The names of all models that a value mentions."""
    if isinstance(value, str):
        return {value.removeprefix(REFERENCE)} if value.startswith(REFERENCE) else set()
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {name for part in parts for name in references(part)}


def reachable(state: dict[str, Any], roots: set[str]) -> set[str]:
    """The models that the views show, and the links between them."""
    found: set[str] = set()
    waiting = roots & state.keys()
    while waiting:
        found |= waiting
        waiting = {
            name for key in waiting for name in references(state[key]["state"])
        } & state.keys()
        waiting -= found
    for name, model in state.items():
        if model["model_name"] == "LinkModel" and references(model["state"]) & found:
            found.add(name)
    return found


def publish(text: str, name: str, folder: Path) -> str:
    """Write a file of the site; its name with the version of its content."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return f"{name}?v={hashlib.sha256(text.encode()).hexdigest()[:12]}"


def hold_places(body: str, models: dict[str, Any]) -> str:
    """Say of each view whether it is wide, so that the style sheet can keep its place."""

    def named(match: re.Match[str]) -> str:
        inside = reachable(models, {json.loads(match["view"])["model_id"]})
        shown = {view for name in inside for view in models[name]["state"].get("views", ())}
        beside = " figure-beside" if shown & {"attention", "spectrum"} else ""
        return f'<script class="figure-view{beside}" {match["type"]}>{match["view"]}</script>'

    return VIEW.sub(named, body)


def slim(body: str, roots: set[str], folder: Path) -> tuple[str, set[str]]:
    """A page's widget state without code and without what no view shows; the models nobody knows."""
    state = json.loads(body)
    models = state["state"]
    kept = {name: models[name] for name in models if name in reachable(models, roots)}
    for model in kept.values():
        own = model["state"]
        if "_esm" in own:
            own["_module"] = publish(own.pop("_esm"), "attentionlab.js", folder)
            publish(own.pop("_css", ""), "attentionlab.css", folder)
    unknown = {model["model_name"] for model in kept.values()} - KNOWN - SILENT
    kept = {name: model for name, model in kept.items() if "Style" not in model["model_name"]}
    return json.dumps({**state, "state": kept}).replace("</", "<\\/"), unknown


def share(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Slim the widget state of one page, or take it and its script off a page that shows none."""
    if app.builder.format != "html":
        return
    body = context.get("body", "")
    roots = {json.loads(match["view"])["model_id"] for match in VIEW.finditer(body)}
    folder = Path(app.outdir, "_static")
    scripts = []
    for script in context["script_files"]:
        attributes = getattr(script, "attributes", {})
        if attributes.get("type") == STATE and attributes.get("body"):
            if not roots:
                continue
            context["body"] = hold_places(body, json.loads(attributes["body"])["state"])
            state, unknown = slim(attributes["body"], roots, folder)
            if unknown:
                names = ", ".join(sorted(unknown))
                logger.warning("figures.js cannot show %s", names, location=pagename)
            script = type(script)(
                script.filename, priority=script.priority, **{**attributes, "body": state}
            )
        elif str(getattr(script, "filename", "")).endswith("figures.js") and not roots:
            continue
        scripts.append(script)
    context["script_files"] = scripts
    if roots:
        app.add_css_file("attentionlab.css")  # on this page only: Sphinx forgets it with the page


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the above."""
    app.connect("html-page-context", share, priority=850)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
