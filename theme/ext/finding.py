"""Search and index know theorems, exercises and symbols by their names.

Sphinx's search offers a domain's objects by name, so the book has a domain of its own; the same names
are entries of the index.
"""

import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.domains import Domain, ObjType
from sphinx.environment import BuildEnvironment
from sphinx_exercise.nodes import (  # type: ignore[import-untyped]
    exercise_enumerable_node,
    exercise_node,
)
from sphinx_proof.nodes import NODE_TYPES  # type: ignore[import-untyped]

PROOFS = tuple(set(NODE_TYPES.values()))
#: The page whose table rows are the symbols, one each.
NOTATION = "notation"
CITED = re.compile(r" (of|after|in|from) \{cite.*$")


def named_proofs(document: nodes.document) -> Iterator[tuple[str, str, str]]:
    """Kind, name and anchor of every theorem, lemma and the like that has a label."""
    for node in document.findall(lambda node: isinstance(node, PROOFS)):
        kind, title = node["realtype"], CITED.sub("", node["title"].strip()[1:-1])
        if node["label"] and title:
            name = title if title.startswith(kind.title()) else f"{kind.title()}: {title}"
            yield kind, name, node["ids"][0]


def named_exercises(document: nodes.document) -> Iterator[tuple[str, str, str]]:
    """Kind, name and anchor of every exercise, named by its label and its first words."""
    for node in document.findall(lambda n: isinstance(n, exercise_node | exercise_enumerable_node)):
        label = node.get("label", "").replace("-", " ")
        if node.get("ids"):
            yield "exercise", f"Exercise: {label}", node["ids"][0]


def named_symbols(document: nodes.document) -> Iterator[tuple[str, str, str]]:
    """Kind, name and anchor of every symbol of the notation page; its row gets the anchor."""
    for row in document.findall(nodes.row):
        cells = [entry.astext().strip() for entry in row.findall(nodes.entry)]
        if not isinstance(row.parent, nodes.tbody) or len(cells) < 2:
            continue
        anchor = "symbol-" + re.sub(r"[^a-z0-9]+", "-", cells[1].lower()).strip("-")
        next(iter(row.findall(nodes.entry))).insert(0, nodes.target("", "", ids=[anchor]))
        yield "symbol", f"{plain(cells[0])}: {cells[1]}", anchor


def plain(tex: str) -> str:
    """A symbol's TeX as one would type it into a search box."""
    text = re.sub(
        r"\\(langle|rangle|lVert|rVert|mathcal|mathbb|mathrm|dot|operatorname|text)\b", "", tex
    )
    text = re.sub(r"\\([A-Za-z]+)", r"\1 ", text)
    return " ".join(re.sub(r"[{}$\\]", "", text).split())


class BookDomain(Domain):
    """The named things of the book."""

    name = "book"
    label = "Book"
    object_types = {  # noqa: RUF012
        kind: ObjType(kind) for kind in [*NODE_TYPES, "exercise", "symbol"]
    }
    initial_data: dict[str, Any] = {"named": {}}  # noqa: RUF012
    data_version = 1

    def clear_doc(self, docname: str) -> None:
        self.data["named"].pop(docname, None)

    def merge_domaindata(self, docnames: list[str], otherdata: dict[str, Any]) -> None:
        for name in docnames:
            if name in otherdata["named"]:
                self.data["named"][name] = otherdata["named"][name]

    def process_doc(self, env: BuildEnvironment, docname: str, document: nodes.document) -> None:
        found = [*named_proofs(document), *named_exercises(document)]
        if docname.rpartition("/")[2] == NOTATION:
            found += named_symbols(document)
        self.data["named"][docname] = found
        entries = env.get_domain("index").data["entries"].setdefault(docname, [])
        for kind, name, anchor in found:
            word = name.removeprefix(f"{kind.title()}: ")
            entry = word if kind == "symbol" else f"{kind}; {word}"
            entries.append(("single", entry, anchor, "", None))

    def get_objects(self) -> Iterator[tuple[str, str, str, str, str, int]]:
        for docname, found in self.data["named"].items():
            for kind, name, anchor in found:
                yield name, name, kind, docname, anchor, 0


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the domain."""
    app.add_domain(BookDomain)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
