"""The pinned environment agrees with the ranges it was compiled from."""

import re
import tomllib

from packaging.requirements import Requirement
from packaging.version import Version

from .conftest import ROOT

PIN = re.compile(r"^(?P<name>[a-z0-9.-]+)==(?P<version>[^ ;\\]+)", re.MULTILINE)


def test_every_range_is_pinned_inside_itself() -> None:
    pins: dict[str, list[Version]] = {}
    for match in PIN.finditer((ROOT / "requirements.txt").read_text()):
        pins.setdefault(match["name"], []).append(Version(match["version"]))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ranges = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        ranges += extra
    checked = 0
    for requirement in map(Requirement, ranges):
        if requirement.name == project["name"]:
            continue
        versions = pins.get(requirement.name, [])
        assert versions, f"{requirement.name} is not in requirements.txt: run `make lock`"
        for version in versions:
            assert version in requirement.specifier, f"{requirement} against {version}"
        checked += 1
    assert checked > 10


def test_every_pin_has_a_hash() -> None:
    text = (ROOT / "requirements.txt").read_text()
    blocks = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(blocks) > 50
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == []
