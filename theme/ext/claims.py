"""The book's labels for what it says: *proved*, *conjectured*, *seen here*, *metaphor*.

The role {claim}`proved` puts a label into a sentence. The directive states a claim and names it:

    :::{claim} proved
    :label: hull-shrinks
    :check: tests/test_theory.py::test_hull_shrinks

    The hull of the rescaled tokens never grows.
    :::

Refer to it with {ref}`hull-shrinks`. Every claim is a `claim_node` that carries `status`, `label`
and `check`, for whoever gathers them into a table.
"""

from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
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
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
