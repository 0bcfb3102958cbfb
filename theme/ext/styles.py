"""One style sheet for the site, without the rules and icons that no page uses.

The theme and the extensions bring a dozen sheets, nine tenths of which are for other books; a browser shows
nothing before it has them all. A rule stays if all its classes and names occur in some page or script.
"""

import hashlib
import posixpath
import re
from pathlib import Path
from typing import Any

import tinycss2  # type: ignore[import-untyped]
from fontTools import subset  # type: ignore[import-untyped]
from fontTools.ttLib import TTFont  # type: ignore[import-untyped]
from sphinx.application import Sphinx

NAME = "site.css"
LINK = re.compile(
    r'[ \t]*<link(?=[^>]*rel="stylesheet")[^>]*href="(?P<base>[^"]*?)_static/(?P<path>[^"?]+)[^"]*"[^>]*>\n?'
)
#: The theme asks for its scripts before all else; they wait for the text in any case.
PRELOAD = re.compile(r'[ \t]*<link(?=[^>]*rel="preload")(?=[^>]*as="script")[^>]*>\n?')
ADDRESS = re.compile(
    r"""url\((?P<quote>["']?)(?!data:|#|/|https?:)(?P<path>[^)"'?#]+)[^)"']*(?P=quote)\)"""
)
ICON = re.compile("[\ue000-\uf8ff]")  # in the range that Unicode leaves to fonts
GROUPS = {"media", "supports", "container", "layer"}


def names(selector: list[Any]) -> set[str]:
    """The classes and names that an element must have; what stands in brackets is not asked."""
    found = set()
    for before, token in zip([None, *selector], selector, strict=False):
        if token.type == "hash" or (token.type == "ident" and before is not None and before == "."):
            found.add(token.value)
    return found


def selectors(prelude: list[Any]) -> list[list[Any]]:
    """The parts between commas."""
    parts: list[list[Any]] = [[]]
    for token in prelude:
        if token == ",":
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def needed(rules: list[Any], words: set[str]) -> str:
    """The rules that some page may need, as text."""
    kept = []
    for rule in rules:
        if rule.type == "qualified-rule":
            parts = [part for part in selectors(rule.prelude) if names(part) <= words]
            if parts:
                prelude = ",".join(tinycss2.serialize(part).strip() for part in parts)
                kept.append(f"{prelude}{{{tinycss2.serialize(rule.content).strip()}}}")
        elif rule.type == "at-rule" and rule.lower_at_keyword in GROUPS and rule.content:
            inside = tinycss2.parse_rule_list(
                rule.content, skip_comments=True, skip_whitespace=True
            )
            text = needed(inside, words)
            if text:
                kept.append(f"@{rule.at_keyword}{tinycss2.serialize(rule.prelude)}{{{text}}}")
        elif rule.type == "at-rule" and rule.lower_at_keyword != "charset":
            kept.append(rule.serialize())
        elif rule.type == "error":
            raise ValueError(f"a style sheet could not be read: {rule.message}")
    return "\n".join(kept)


def moved(text: str, path: str) -> str:
    """The text of a sheet with its addresses as they are seen from _static."""

    def seen(match: re.Match[str]) -> str:
        return (
            f'url("{posixpath.normpath(posixpath.join(posixpath.dirname(path), match["path"]))}")'
        )

    return ADDRESS.sub(seen, text)


def reduced(static: Path, name: str, words: set[str]) -> str:
    """What the pages need of one sheet and of those that it imports."""
    source = (static / name).read_text(encoding="utf-8")
    rules = tinycss2.parse_stylesheet(source, skip_comments=True, skip_whitespace=True)
    imported = []
    for rule in rules:
        if rule.type == "at-rule" and rule.lower_at_keyword == "import":
            path = next(token.value for token in rule.prelude if token.type in ("string", "url"))
            imported.append(posixpath.normpath(posixpath.join(posixpath.dirname(name), path)))
    own = [rule for rule in rules if rule.type != "at-rule" or rule.lower_at_keyword != "import"]
    before = [reduced(static, other, words) for other in imported]
    return "\n".join([*before, moved(needed(own, words), name)])


def with_fewer_icons(text: str, static: Path) -> str:
    """The sheet with the icon font cut down to the icons that it names."""
    font = next(
        (match["path"] for match in ADDRESS.finditer(text) if "fa-solid" in match["path"]), None
    )
    if font is None or not font.endswith(".woff2"):
        return text
    # To read woff2 takes a compressor that is not there; the same font as ttf stands beside it.
    source = static / font.replace(".woff2", ".ttf")
    if not source.exists():
        return text
    options = subset.Options(flavor="woff", layout_features=[], notdef_outline=True)
    glyphs = subset.Subsetter(options)
    glyphs.populate(unicodes=[ord(icon) for icon in ICON.findall(text)])
    with TTFont(source, recalcTimestamp=False) as icons:
        glyphs.subset(icons)
        icons.flavor = "woff"
        icons.save(static / "icons.woff")
    return text.replace(f'url("{font}") format("woff2")', 'url("icons.woff") format("woff")')


def join(app: Sphinx, exception: Exception | None) -> None:
    """Write the one sheet and link it from every page."""
    if exception or app.builder.name != "html":
        return
    out = Path(app.outdir)
    static = out / "_static"
    found = [path for path in out.rglob("*.html") if static not in path.parents]
    pages = {path: path.read_text(encoding="utf-8") for path in found}
    pages = {path: text for path, text in pages.items() if LINK.search(text)}
    listed = [[match["path"] for match in LINK.finditer(text)] for text in pages.values()]
    order = list(
        dict.fromkeys(name for names in sorted(listed, key=len, reverse=True) for name in names)
    )
    if order == [NAME] or not order:
        return
    # The book's own sheet has the last word.
    order.sort(key=lambda name: name == "book.css")
    scripts = [path.read_text(encoding="utf-8", errors="replace") for path in static.rglob("*.js")]
    words = {word for text in [*pages.values(), *scripts] for word in re.findall(r"[\w-]+", text)}
    sheet = "\n".join(reduced(static, name, words) for name in order)
    sheet = '@charset "utf-8";\n' + with_fewer_icons(sheet, static)
    (static / NAME).write_text(sheet, encoding="utf-8")
    version = hashlib.sha256(sheet.encode()).hexdigest()[:12]
    for path, text in pages.items():
        first = LINK.search(text)
        assert first is not None
        link = f'<link rel="stylesheet" href="{first["base"]}_static/{NAME}?v={version}" />\n'
        rest = LINK.sub("", text[first.end() :])
        path.write_text(PRELOAD.sub("", text[: first.start()] + link + rest), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the above."""
    app.connect("build-finished", join, priority=850)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
