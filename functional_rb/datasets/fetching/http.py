"""One request for a file over HTTP(S), from a byte on, by the standard library.

`urllib.request` knows proxies and certificates, and follows redirects; what it would do beyond that (other schemes,
redirects to an address without encryption) is left out here. It takes long to import, so its users import this module
when they need it.
"""

from __future__ import annotations

import dataclasses
import http.client
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import IO

from functional_rb.datasets.fetching.remote import Origin, PassingError, RefusedError

# The answers after which the same request may succeed.
PASSING = (408, 425, 429, 500, 502, 503, 504)
# Seconds without a byte after which a connection is given up.
TIMEOUT = 60.0


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a server gives of a file."""

    start: int  # the byte that it begins with: the one asked for, or 0
    origin: Origin  # what the server says of the whole file
    body: http.client.HTTPResponse  # what is read from

    def read(self, n: int) -> bytes:
        """Up to so many bytes, none at the end."""
        try:
            return self.body.read(n)
        except (OSError, http.client.HTTPException) as error:
            raise PassingError(f"the connection broke: {error!r}") from None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but not from https to http."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        old, new = (urllib.parse.urlsplit(url).scheme for url in (req.full_url, newurl))
        if new not in ("http", "https") or (old == "https" and new != "https"):
            raise RefusedError(f"it redirects to {newurl}, from {old} to {new or 'nothing'}, which is refused")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener(context: ssl.SSLContext | None) -> urllib.request.OpenerDirector:
    # Not that of `build_opener`, which knows file:, ftp: and data: too: a redirect could lead to these.
    opener = urllib.request.OpenerDirector()
    handlers = (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=context),
        _Redirects(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    )
    for handler in handlers:
        opener.add_handler(handler)
    return opener


def ask(url: str, start: int, same: str, context: ssl.SSLContext | None = None) -> Answer | None:
    """Ask for a file from a byte on; None if the server has no byte there.

    `same` is the ETag or Last-Modified that the file must still have: of a file that has another, all comes. `context`
    has the certificates that are believed.
    """
    # `urllib` would read local files by file:, too.
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise RefusedError("expected an address that begins with https:// or http://")
    headers = {"User-Agent": "functional_rb", "Accept-Encoding": "identity"}
    if start:
        # If-Range: of a file that has changed since, all comes, and not the end of another one.
        headers |= {"Range": f"bytes={start}-"} | ({"If-Range": same} if same else {})
    try:
        body = _opener(context).open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:
            return None
        reason = f"HTTP {error.code} {error.reason}"
        if error.code in PASSING:
            asked = error.headers.get("Retry-After", "").strip()  # which may be a date, too
            raise PassingError(reason, float(asked) if re.fullmatch(r"\d{1,6}", asked, re.ASCII) else None) from None
        raise RefusedError(reason) from None
    # A certificate that is refused now is refused in a second; a name that cannot be looked up may be found by then.
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise RefusedError(f"its certificate is not believed: {error.reason.verify_message}") from None
        raise PassingError(f"no connection: {error.reason}") from None
    except (http.client.InvalidURL, UnicodeError, ValueError) as error:
        raise RefusedError(f"no address: {error}") from None
    except (OSError, http.client.HTTPException) as error:
        raise PassingError(f"no answer: {error!r}") from None
    try:
        return _answer(url, start, body)
    except BaseException:
        body.close()
        raise


def _answer(url: str, start: int, body: http.client.HTTPResponse) -> Answer:
    headers = body.headers
    if headers.get("Content-Encoding", "identity").lower() != "identity":
        raise RefusedError(f"it sends the file as {headers['Content-Encoding']!r}, though asked for it as it is")
    size = headers.get("Content-Length")
    if size is not None and not re.fullmatch(r"\d{1,18}", size.strip(), re.ASCII):
        raise RefusedError(f"expected a number as Content-Length, got {size!r}")
    length = None if size is None else int(size)
    begin = 0
    if body.status != 200:
        # Any other span would be appended at the wrong place.
        span = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", headers.get("Content-Range", "").strip(), re.ASCII)
        if body.status != 206 or span is None or int(span[1]) != start or (length or 0) > int(span[2]) - start + 1:
            raise RefusedError(
                f"expected HTTP 200, or 206 with the bytes from {start} on, got {body.status} with Content-Range "
                f"{headers.get('Content-Range')!r}"
            )
        begin, length = start, None if span[3] == "*" else int(span[3])
    # A weak ETag is shared by files that mean the same, though their bytes differ.
    etag = headers.get("ETag", "")
    origin = Origin(url, length, "" if etag.startswith("W/") else etag, headers.get("Last-Modified", ""))
    return Answer(begin, origin, body)
