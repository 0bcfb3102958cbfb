"""Serve _build/html on localhost: `python tools/serve.py [port]`."""

import functools
import http.server
import sys
from pathlib import Path

SITE = Path(__file__).resolve().parent.parent / "_build" / "html"


def main(port: int) -> None:
    """Serve until interrupted."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(SITE))
    try:
        server = http.server.ThreadingHTTPServer(("localhost", port), handler)
    except OSError as error:
        sys.exit(f"Port {port} cannot be used ({error.strerror}). Try: make serve PORT={port + 1}")
    print(f"The book is at http://localhost:{port}/ (Ctrl-C ends)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8000)
