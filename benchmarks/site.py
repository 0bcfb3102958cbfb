"""What Lighthouse says of the built site: mobile simulation, compressed local server, median of three.

Run after `make book`; needs Chromium and, the first time, npm for the package lighthouse.
"""

import functools
import gzip
import http.server
import json
import os
import statistics
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build" / "html"
FOLDER = ROOT / "_build" / "lighthouse"
LIGHTHOUSE = "lighthouse@13.5.0"
PAGES = ["chapters/index.html", "chapters/vertices.html", "chapters/hyperplanes.html"]
RUNS = 3
CATEGORIES = ["performance", "accessibility", "best-practices", "seo"]
TEXT = (".html", ".css", ".js", ".json", ".svg", ".xml", ".txt", ".map")

sys.path.insert(0, str(ROOT / "tools"))
import chromium  # noqa: E402
import frontend  # noqa: E402


class Compressed(http.server.SimpleHTTPRequestHandler):
    """Compresses text and lets files be kept, as static hosts do."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        body = path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(str(path)))
        self.send_header("Cache-Control", "max-age=600")
        if path.suffix in TEXT:
            body = packed(path)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@functools.cache
def packed(path: Path) -> bytes:
    """The file's contents, compressed once."""
    return gzip.compress(path.read_bytes(), mtime=0)


def install() -> tuple[str, dict[str, str]]:
    """Lighthouse from npm, run by the environment's own Node."""
    npm = frontend.find("npm")
    search = os.pathsep.join([str(Path(npm).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": search}
    program = FOLDER / "node_modules" / ".bin" / "lighthouse"
    if not program.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--prefix", str(FOLDER), "--no-audit", "--no-fund", LIGHTHOUSE]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return str(program), environment


def look_at(program: str, environment: dict[str, str], address: str) -> dict[str, float]:
    """One run on one page."""
    report = FOLDER / "report.json"
    flags = "--headless=new --no-sandbox --disable-gpu --disable-background-networking"
    command = [program, address, "--quiet", "--output=json", f"--output-path={report}"]
    command += [f"--chrome-flags={flags}", f"--only-categories={','.join(CATEGORIES)}"]
    subprocess.run(command, env=environment, check=True)
    found = json.loads(report.read_text())
    scores = {name: 100 * found["categories"][name]["score"] for name in CATEGORIES}
    audits = found["audits"]
    wrong = [
        f"{name}: {audits[ref['id']]['title']}"
        for name in CATEGORIES[1:]
        for ref in found["categories"][name]["auditRefs"]
        if audits[ref["id"]]["score"] not in (None, 1)
    ]
    for line in wrong:
        print("   ", line)
    return scores | {
        "LCP s": audits["largest-contentful-paint"]["numericValue"] / 1000,
        "CLS": audits["cumulative-layout-shift"]["numericValue"],
        "TBT ms": audits["total-blocking-time"]["numericValue"],
        "kB": audits["total-byte-weight"]["numericValue"] / 1000,
    }


def main() -> None:
    """Print the table."""
    path = chromium.find()
    if path is None or not (SITE / PAGES[0]).exists():
        sys.exit("Build the book first (make book), and have a Chromium: make test says how.")
    program, environment = install()
    environment["CHROME_PATH"] = path
    handler = functools.partial(Compressed, directory=str(SITE))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_address[1]}/"
    title = ""
    for page in PAGES:
        runs = [look_at(program, environment, base + page) for _ in range(RUNS)]
        middle = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        if not title:
            title = f"{'page':<28}" + "".join(f"{name:>15}" for name in middle)
            print(title)
        print(f"{page:<28}" + "".join(f"{value:>15.3g}" for value in middle.values()), flush=True)
    server.shutdown()


if __name__ == "__main__":
    main()
