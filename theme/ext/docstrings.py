"""Docstrings are written to be read in a terminal; the reference shows them as they are meant."""

import re
from typing import Any

from sphinx.application import Sphinx

#: Literals, kept as they are, or one of the characters that would be markup.
PIECE = re.compile(r"(?P<double>``.+?``)|`(?P<single>[^`]+)`|(?P<mark>[*|]|(?<=\w)_(?=\W|$))")


def literal(match: re.Match[str]) -> str:
    """Names in single backticks are code; stars, bars and trailing underscores are themselves."""
    if match["double"]:
        return match["double"]
    return f"``{match['single']}``" if match["single"] else f"\\{match['mark']}"


def tidy(app: Sphinx, what: str, name: str, item: Any, options: Any, lines: list[str]) -> None:
    """Protect the docstring's text, but not its examples."""
    text = "\n".join(lines)
    pieces = re.split(r"(^ *>>> (?:.|\n(?!\s*\n))*)", text, flags=re.M)
    pieces[::2] = [PIECE.sub(literal, piece) for piece in pieces[::2]]
    lines[:] = "".join(pieces).split("\n")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the above, before napoleon reads the sections."""
    app.connect("autodoc-process-docstring", tidy, priority=100)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
