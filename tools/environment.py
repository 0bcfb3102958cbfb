"""Make the pinned environment: `python3 tools/environment.py [folder]`.

Runs under any Python 3 without other packages. Does nothing when the folder already holds the
environment that requirements.txt and pyproject.toml ask for.
"""

import hashlib
import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WANTED = (3, 11)


def check_python() -> None:
    """Stop with a sentence if this Python cannot make the environment."""
    version = platform.python_version()
    if sys.version_info < WANTED:
        sys.exit(
            f"Python 3.11 or newer is needed: {sys.executable} is {version}. "
            "Name a newer one, as in: make PYTHON=python3.12 book"
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        sys.exit(
            f"This Python ({version}) cannot make virtual environments. On Debian or Ubuntu: "
            f"apt-get install python3-venv python{version.rpartition('.')[0]}-venv"
        )


def fingerprint(folder: Path) -> str:
    """Name what the environment is made from."""
    import tomllib

    digest = hashlib.sha256()
    for part in ("requirements.txt", "tools/environment.py", "binder/overrides.json"):
        digest.update((ROOT / part).read_bytes())
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    package = [settings["build-system"], settings["project"], settings["tool"]["setuptools"]]
    digest.update(json.dumps(package, sort_keys=True).encode())
    digest.update(f"{platform.python_version()} {platform.machine()} {folder}".encode())
    return digest.hexdigest()


def main(folder: Path) -> None:
    """Create or renew the environment in `folder`."""
    check_python()
    stamp = folder / "made-from"
    wanted = fingerprint(folder)
    if stamp.exists() and stamp.read_text() == wanted and (folder / "bin/python").exists():
        return
    print(f"Making the pinned environment in {folder.name} ...", flush=True)
    if folder.exists() and not (folder / "pyvenv.cfg").exists() and any(folder.iterdir()):
        sys.exit(f"{folder} is not a virtual environment: choose another, as in make VENV=.venv")
    shutil.rmtree(folder, ignore_errors=True)
    run = subprocess.check_call
    run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    install = [*pip, "install", "--quiet"]
    # The list is complete, so nothing is left to resolve; `pip check` makes sure of it.
    pinned = ["--require-hashes", "-r", "requirements.txt"]
    run([*install, "--no-deps", "--no-compile", *pinned], cwd=ROOT)
    run([*install, "--no-deps", "--no-build-isolation", "--editable", "."], cwd=ROOT)
    run([*pip, "check"], stdout=subprocess.DEVNULL)
    # JupyterLab opens the chapters, which are text files, as notebooks.
    settings = folder / "share/jupyter/lab/settings"
    settings.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "binder/overrides.json", settings)
    stamp.write_text(wanted)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else ".venv").resolve())
    except subprocess.CalledProcessError as failure:
        sys.exit(f"This step failed: {' '.join(map(str, failure.cmd))}")
