"""Build the site into _build/html, unless it already shows what the sources say.

Warnings are errors. A build that failed leaves no stamp, so the next one repeats it and its
warnings; a build that succeeds starts from an empty folder, so nothing stale remains.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import frontend

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"
FILES = ["_config.yml", "_toc.yml", "references.bib", "requirements.txt", "benchmarks/scale.json"]
FOLDERS = ["attnlib", "chapters", "tests/data", "theme", "tools"]


def sources() -> Iterator[Path]:
    """Every file that the site is made from."""
    for name in FILES:
        yield ROOT / name
    for name in FOLDERS:
        for path in sorted((ROOT / name).rglob("*")):
            hidden = any(part.startswith((".", "__pycache__")) for part in path.parts)
            if path.is_file() and not hidden:
                yield path


def fingerprint() -> str:
    """Name the contents of all sources."""
    settings = [os.environ.get(name, "") for name in ("BOOK_ADDRESS", "BOOK_REPOSITORY")]
    digest = hashlib.sha256("\0".join([sys.version, *settings]).encode())
    for path in sources():
        digest.update(f"{path.relative_to(ROOT)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def main() -> int:
    """Build if needed; return the exit code."""
    frontend.main()
    stamp = BUILD / "html-made-from"
    wanted = fingerprint()
    if stamp.exists() and stamp.read_text() == wanted and (BUILD / "html/index.html").exists():
        print("The book is up to date.")
        return 0
    stamp.unlink(missing_ok=True)
    for folder in ("html", ".doctrees", "jupyter_execute"):
        shutil.rmtree(BUILD / folder, ignore_errors=True)
    print("Executing the chapters and building the site ...", flush=True)
    jupyter_book = str(Path(sys.executable).with_name("jupyter-book"))
    command = [jupyter_book, "build", ".", "-W", "--keep-going", "-q"]
    code = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL).returncode
    if code:
        print("The book was not built: see the warnings above.", file=sys.stderr)
    elif fingerprint() == wanted:
        stamp.write_text(wanted)
    return code


if __name__ == "__main__":
    sys.exit(main())
