"""The book's labels for what it says: *proved*, *conjectured*, *seen here*, *metaphor*.

The role {claim}`proved` puts a label into a sentence. The directive states a claim and names it:

    :::{claim} proved
    :label: hull-shrinks
    :check: tests/test_theory.py::test_hull_shrinks

    The hull of the rescaled tokens never grows.
    :::

Refer to it with {ref}`hull-shrinks`. The directive {claims}, without content, is the table of all
claims of the book, page by page, made from these very labels.
"""

from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective, SphinxRole

MEANINGS = {
    "proved": "A theorem, proved here or in the work cited",
    "conjectured": "Believed, with reasons; no proof is known",
    "seen here": "Observed in this book's own computations",
    "metaphor": "A picture that helps; it carries no argument",
}


class claim_node(nodes.General, nodes.Element):  # noqa: N801  docutils names nodes so
    """A claim: its label, then its text."""


def badge(status: str) -> nodes.inline:
    """The small label."""
    if status not in MEANINGS:
        raise ValueError(f"claim must be one of {', '.join(MEANINGS)}: got {status!r}.")
    classes = ["claim-label", f"claim-{status.replace(' ', '-')}"]
    return nodes.inline(status, status, classes=classes)


class ClaimRole(SphinxRole):
    """A label in a sentence."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        try:
            return [badge(self.text)], []
        except ValueError as error:
            message = self.inliner.reporter.error(str(error), line=self.lineno)
            return [nodes.problematic(self.rawtext, self.rawtext)], [message]


class ClaimDirective(SphinxDirective):
    """A claim with its label, its name and the test or cell that checks it."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec: ClassVar = {
        "label": directives.unchanged_required,
        "check": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        status = self.arguments[0].strip()
        try:
            label = badge(status)
        except ValueError as error:
            raise self.error(str(error)) from error
        self.assert_has_content()
        claim = claim_node(status=status, check=self.options.get("check", ""), classes=["claim"])
        self.set_source_info(claim)
        claim += nodes.paragraph("", "", label)
        self.state.nested_parse(self.content, self.content_offset, claim)
        name = self.options.get("label")
        if name:
            claim["label"] = name
            identifier = nodes.make_id(name)
            claim["ids"].append(identifier)
            standard = self.env.domaindata["std"]
            if name in standard["labels"]:
                raise self.error(f"claim {name!r} has the name of something else in the book.")
            standard["anonlabels"][name] = self.env.docname, identifier
            standard["labels"][name] = self.env.docname, identifier, f"claim ({status})"
        return [claim]


class table_node(nodes.General, nodes.Element):  # noqa: N801  docutils names nodes so
    """Where the table of all claims goes."""


class TableDirective(SphinxDirective):
    """The table of all claims."""

    def run(self) -> list[nodes.Node]:
        return [table_node()]


def kept(env: BuildEnvironment) -> dict[str, list[claim_node]]:
    """The claims of each page."""
    if not hasattr(env, "book_claims"):
        env.book_claims = {}  # type: ignore[attr-defined]
    return env.book_claims  # type: ignore[attr-defined]


def gather(app: Sphinx, doctree: nodes.document) -> None:
    """Keep a page's claims."""
    found = list(doctree.findall(claim_node))
    kept(app.env)[app.env.docname] = [claim.deepcopy() for claim in found]


def purge(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Forget a page's claims."""
    kept(env).pop(docname, None)


def merge(app: Sphinx, env: BuildEnvironment, docnames: list[str], other: BuildEnvironment) -> None:
    """Take over what another process has read."""
    for name in docnames:
        if name in kept(other):
            kept(env)[name] = kept(other)[name]


def row_of(app: Sphinx, page: str, source: str, claim: claim_node) -> nodes.row:
    """One claim in the table: what it says, what it is, and what checks it."""
    text = nodes.entry()
    paragraphs = [p for p in claim.children if isinstance(p, nodes.paragraph)][1:]
    for paragraph in paragraphs:
        copy = paragraph.deepcopy()
        for link in copy.findall(addnodes.pending_xref):
            link["refdoc"] = page
        text += copy
    status = nodes.entry("", nodes.paragraph("", "", badge(claim["status"])))
    check = nodes.entry()
    address = app.builder.get_relative_uri(page, source)
    label = claim.get("label", "")
    where = nodes.reference("", label or "on the page", internal=True)
    where["refuri"] = f"{address}#{nodes.make_id(label)}" if label else address
    check += nodes.paragraph("", "", where)
    if claim["check"]:
        check += nodes.paragraph("", "", nodes.literal("", claim["check"].rpartition("::")[2]))
    return nodes.row("", text, status, check)


class FillTable(SphinxPostTransform):
    """Writes the table, before references are resolved."""

    default_priority = 5

    def run(self, **_: Any) -> None:
        for place in list(self.document.findall(table_node)):
            place.replace_self(tables(self.app, self.env.docname))


def tables(app: Sphinx, docname: str) -> list[nodes.Node]:
    """A table for each page with claims, in the order of the book."""
    parts: list[nodes.Node] = []
    order = list(app.env.toctree_includes.get(app.config.root_doc, []))
    order += sorted(name for name in kept(app.env) if name not in order)
    for source in order:
        claims = kept(app.env).get(source, [])
        if not claims:
            continue
        title = app.env.titles[source].astext()
        link = nodes.reference("", title, internal=True)
        link["refuri"] = app.builder.get_relative_uri(docname, source)
        table = nodes.table(classes=["claims-table"])
        parts.append(nodes.rubric("", "", link))
        group = nodes.tgroup(cols=3)
        for width in (60, 12, 28):
            group += nodes.colspec(colwidth=width)
        head = nodes.row()
        for name in ("claim", "standing", "where, and what checks it"):
            head += nodes.entry("", nodes.paragraph("", name))
        group += nodes.thead("", head)
        group += nodes.tbody("", *[row_of(app, docname, source, c) for c in claims])
        table += group
        parts.append(table)
    return parts


def visit(self: Any, node: claim_node) -> None:
    """Open the claim's box."""
    self.body.append(self.starttag(node, "div"))


def depart(self: Any, node: claim_node) -> None:
    """Close it."""
    self.body.append("</div>\n")


def skip(self: Any, node: claim_node) -> None:
    """Other formats show the claim's text alone."""


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the role, the directive and the node."""
    app.add_node(
        claim_node,
        html=(visit, depart),
        latex=(skip, skip),
        text=(skip, skip),
    )
    app.add_role("claim", ClaimRole())
    app.add_directive("claim", ClaimDirective)
    app.add_node(table_node)
    app.add_directive("claims", TableDirective)
    app.connect("doctree-read", gather)
    app.connect("env-purge-doc", purge)
    app.connect("env-merge-info", merge)
    app.add_post_transform(FillTable)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
