"""The book's label of claims, in a book of one page."""

import io
from pathlib import Path

import pytest
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

PAGE = """\
# One page

It is so, {{claim}}`seen here`. See {{ref}}`the hull <hull>`.

:::{{claim}} {status}
:label: hull
:check: tests/test_hull.py

The hull *never* grows.
:::
"""


def build(folder: Path, status: str) -> tuple[str, str]:
    """Build the page; return its HTML and the warnings."""
    import claims

    (folder / "index.md").write_text(PAGE.format(status=status))
    overrides = {
        "extensions": ["myst_parser", claims.__name__],
        "myst_enable_extensions": ["colon_fence"],
    }
    warnings = io.StringIO()
    out = folder / "out"
    with docutils_namespace():
        app = Sphinx(
            folder, None, out, out / "trees", "html", overrides, status=None, warning=warnings
        )
        app.build()
    return (out / "index.html").read_text(), warnings.getvalue()


@pytest.mark.parametrize("status", ["proved", "conjectured", "seen here", "metaphor"])
def test_claim_shows_its_label_and_can_be_referred_to(tmp_path: Path, status: str) -> None:
    page, warnings = build(tmp_path, status)
    assert warnings == ""
    assert '<div class="claim" id="hull">' in page
    assert f'<span class="claim-label claim-{status.replace(" ", "-")}">{status}</span>' in page
    assert 'href="#hull"' in page


def test_unknown_label_is_an_error(tmp_path: Path) -> None:
    _, warnings = build(tmp_path, "obvious")
    assert (
        "claim must be one of proved, conjectured, seen here, metaphor: got 'obvious'" in warnings
    )
