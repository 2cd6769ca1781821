"""An HTTP server of the tests' own, on a free port, which gives files as it is told to."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclasses.dataclass
class Served:
    """A file, and what happens to the requests for it.

    Attributes:
        content: of the file.
        etag, modified: what the answers say.
        ranges: whether it is given from a byte on.
        faults: what happens to the next requests: an HTTP status; ("cut", n), after so many bytes; None, all goes well.
        headers: more of them, or others.
        requests: the Range that each has asked for.
    """

    content: bytes
    etag: str = '"first"'
    modified: str = ""
    ranges: bool = True
    faults: list[Any] = dataclasses.field(default_factory=list)
    headers: dict[str, str | None] = dataclasses.field(default_factory=dict)
    requests: list[str | None] = dataclasses.field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    files: dict[str, Served]

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.close_connection = True
        served = self.files.get(self.path)
        if served is None:
            return self._say(404)
        served.requests.append(self.headers.get("Range"))
        fault = served.faults.pop(0) if served.faults else None
        if isinstance(fault, int):
            return self._say(fault, served.headers)
        start, status = self._start(served)
        if start >= len(served.content) > 0:
            return self._say(416)
        headers: dict[str, str | None] = {"ETag": served.etag, "Last-Modified": served.modified}
        if status == 206:
            size = len(served.content)
            headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
        rest = served.content[start:]
        self._say(status, {**headers, "Content-Length": str(len(rest)), **served.headers})
        with contextlib.suppress(OSError):  # who asked may be gone
            self.wfile.write(rest[: fault[1]] if fault else rest)

    def _start(self, served: Served) -> tuple[int, int]:
        """The first byte that is given, and the status."""
        asked, same = self.headers.get("Range"), self.headers.get("If-Range")
        if asked is None or not served.ranges or same not in (None, served.etag, served.modified):
            return 0, 200
        return int(asked.removeprefix("bytes=").removesuffix("-")), 206

    def _say(self, status: int, headers: dict[str, str | None] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": "0", **(headers or {})}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()


@contextlib.contextmanager
def serving(files: dict[str, Served]) -> Iterator[str]:
    """Serve files by their paths ("/a.bin"); the address of the server, without a slash at the end."""
    handler = type("Handler", (_Handler,), {"files": files})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
