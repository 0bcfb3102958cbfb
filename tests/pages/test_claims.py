"""The book's label of claims, in a book of one page."""

import io
import re
from pathlib import Path

import pytest
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

ROOT = Path(__file__).resolve().parents[2]

PAGE = """\
# One page

It is so, {{claim}}`seen here`. See {{ref}}`the hull <hull>`.

:::{{claim}} {status}
:label: hull
:check: tests/test_hull.py

The hull *never* grows.
:::
"""


def build(folder: Path, status: str, more: str = "") -> tuple[str, str]:
    """Build the page; return its HTML and the warnings."""
    import claims

    (folder / "index.md").write_text(PAGE.format(status=status) + more)
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


def test_table_holds_every_claim_with_its_link_and_check(tmp_path: Path) -> None:
    page, warnings = build(tmp_path, "proved", more="\n```{claims}\n```\n")
    assert warnings == ""
    table = page[page.index("<table") : page.index("</table>")]
    assert "The hull <em>never</em> grows." in table and "claim-proved" in table
    assert 'href="#hull"' in table and "tests/test_hull.py" in table


def test_checks_that_claims_name_exist() -> None:
    count = 0
    for chapter in sorted((ROOT / "chapters").glob("*.md")):
        for path, name in re.findall(r"^:check: (\S+?)::(\w+)", chapter.read_text(), flags=re.M):
            assert f"def {name}(" in (ROOT / path).read_text(), (chapter.name, path, name)
            count += 1
    assert count > 10
