"""Find a Chromium for the browser tests, or install Debian's where that is allowed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"]
MACOS = [
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
]
ADVICE = """\
The browser tests need Chromium or Chrome, and none was found. Install one:
  Debian:  sudo apt-get install chromium
  Ubuntu:  sudo snap install chromium
  macOS:   brew install --cask chromium
or name one that is elsewhere:  CHROMIUM=/path/to/chrome make test"""


def find() -> str | None:
    """The path of a Chromium, $CHROMIUM first."""
    named = os.environ.get("CHROMIUM")
    if named:
        return shutil.which(named)
    found = (shutil.which(name) for name in [*NAMES, *MACOS])
    return next((path for path in found if path), None)


def install() -> None:
    """Install Debian's Chromium, as root."""
    run = subprocess.run
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    print("Installing Chromium with apt-get ...", flush=True)
    run(["apt-get", "update", "-qq"], env=environment, stdin=subprocess.DEVNULL)
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
    run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def is_debian() -> bool:
    """Whether this is Debian itself: Ubuntu's package of that name only points to a snap."""
    release = Path("/etc/os-release")
    return release.exists() and "ID=debian" in release.read_text().splitlines()


def main() -> None:
    """Make sure that a Chromium is there, or say what to do."""
    if not find() and is_debian() and os.geteuid() == 0 and shutil.which("apt-get"):
        install()
    if not find():
        sys.exit(ADVICE)


if __name__ == "__main__":
    main()
