"""Who may ask: the host and origin of a request, a token where the page is not on loopback, sizes, and what may run.

A page on loopback is open to every site that the same browser visits, so a request must name this host (against names
that are made to resolve here) and, where it changes something, come from this page. No script may run but the files of
this package: text from a spec, a trace or a run is escaped, and would be refused if it were not.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self';"
    " frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
UPLOAD_BYTES_MOST = 256 << 20
FORM_BYTES_MOST = 1 << 20
COOKIE = "windtunnel"
SAFE = ("GET", "HEAD")


class Guard:
    """Around an ASGI application: refuses what must not reach it, and adds the headers that browsers obey."""

    def __init__(self, app: Any, hosts: Iterable[str], token: str = "") -> None:
        self.app, self.hosts, self.token = app, frozenset(hosts), token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal:
            await _plain(send, *refusal)
            return
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0] if self.token else ""

        async def answered(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                more = {
                    "content-security-policy": POLICY,
                    "x-content-type-options": "nosniff",
                    "referrer-policy": "same-origin",
                    "cross-origin-opener-policy": "same-origin",
                }
                message["headers"] = [
                    *message["headers"],
                    *((k.encode(), v.encode()) for k, v in more.items() if k.encode() not in present),
                ]
                if given:
                    cookie = f"{COOKIE}={given}; HttpOnly; SameSite=Strict; Path=/"
                    message["headers"].append((b"set-cookie", cookie.encode()))
            await send(message)

        await self.app(scope, receive, answered)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if host not in self.hosts:
            return 421, f"this page is at {sorted(self.hosts)[0]}, not at {host[:80]!r}"
        if scope["method"] not in SAFE:
            origin = headers.get("origin")
            if origin is not None and origin.partition("://")[2] not in self.hosts:
                return 403, "another site may not change anything here"
            if origin is None and headers.get("sec-fetch-site") not in ("same-origin", "none"):
                return 403, "a request that changes something must say that it comes from this page"
            length, most = headers.get("content-length", ""), UPLOAD_BYTES_MOST
            most = most if scope["path"] == "/uploads" else FORM_BYTES_MOST
            if not length.isdigit():  # so that a body is known to be bounded before any of it is read
                return 411, "say how long the request is (content-length)"
            if int(length) > most:
                return 413, f"too large: at most {most >> 20} MiB"
        if not self.token:
            return None
        cookie: SimpleCookie = SimpleCookie(headers.get("cookie", ""))
        known = cookie[COOKIE].value if COOKIE in cookie else ""
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [known])[0]
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return 403, "open the address that `windtunnel ui` printed: it holds the token"
        return None


async def _plain(send: Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"x-content-type-options", b"nosniff")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
