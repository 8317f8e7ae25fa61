"""Who may ask the servers of this program (`ui`, `serve --listen`), how much, and how slowly.

A server on loopback is open to every site that a browser of this machine visits. So a request must name this server as
its one Host (against names that are made to resolve here), and where a browser says who sends it (Origin,
Sec-Fetch-Site) that must be a page of this very server. Elsewhere than on loopback it must bring the token as well.
Bodies are read here, whole, up to a limit and no slower than a least rate; heads are cut by `guarded_protocol`.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import os
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from windtunnel.errors import SpecError

if TYPE_CHECKING:
    from uvicorn import Server

Scope = MutableMapping[str, Any]
Message = Scope
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TOKEN_VARIABLE = "WINDTUNNEL_TOKEN"
COOKIE = "windtunnel"
SAFE = ("GET", "HEAD")
HEAD_S, HEAD_BYTES_MOST = 10.0, 64 << 10  # of the lines before a body
BODY_S, BODY_BYTES_PER_S = 10.0, 64 << 10  # a body may take so long, and longer by what has come at the least rate
BACKLOG = 2048


def bound_socket(host: str, port: int, field: str) -> socket.socket:
    """A socket that listens there. SpecError names `field`."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(BACKLOG)  # at once: who is told the address may connect
    except OSError as error:
        bound.close()
        words = f"cannot be listened on ({error.strerror or error}); give another address or port"
        raise SpecError(field, f"{host}:{port}", words) from None
    return bound


def origin_of(host: str, port: int) -> str:
    """The address as one types it."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def token_of(bound: socket.socket) -> str:
    """The token that requests must bring: WINDTUNNEL_TOKEN, else a new one; "" on loopback without that variable."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if token and not re.fullmatch(r"[A-Za-z0-9_.~-]{16,256}", token):
        raise SpecError(TOKEN_VARIABLE, "(not shown)", "give at least 16 letters, digits, _ . ~ or -")
    if token or ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback:
        return token
    return secrets.token_urlsafe(24)


def hosts_of(host: str, bound: socket.socket) -> frozenset[str]:
    """Values of the Host header that mean this server, each with its port."""
    address, port = bound.getsockname()[:2]
    names = {*LOOPBACK, host, address}
    if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        names.add(socket.gethostname())
    return frozenset(origin_of(name.lower(), port).removeprefix("http://") for name in names if name)


def _is_address(host: str, port: int) -> bool:
    """Whether this is an address in figures and this port."""
    try:
        ipaddress.ip_address(host.removesuffix(f":{port}").removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


class _RefusedError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class Guard:
    """Around an ASGI application: what must not reach it is refused.

    `hosts`: values of Host, each with its port, which programs may leave out; where a token is wanted, addresses in
    figures too, which no site can make resolve here. `most`: bytes of a body, by path. `headers`: of every answer.
    `page`: for people with a browser, so the token comes in the address once and then as a cookie, and what changes
    something must say where it comes from; else for programs, which send `Authorization: Bearer TOKEN` and get errors
    as the API of OpenAI writes them.
    """

    def __init__(
        self,
        app: Application,
        hosts: frozenset[str],
        token: str = "",
        *,
        page: bool,
        most: Callable[[str], int],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.app, self.hosts, self.token, self.page, self.most = app, hosts, token, page, most
        self.headers = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        assert scope["type"] == "http", "the protocol offers no other"
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1").strip())
        more = list(self.headers)
        try:
            self._look_at_sender(scope, headers)
            if self.token:
                more += self._look_at_token(scope, headers)
            body = await self._body(scope["path"], headers, receive)
        except _RefusedError as refusal:
            await self._refuse(send, refusal)
            return
        if body is None:  # hung up
            return
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> MutableMapping[str, object]:
            return messages.pop() if messages else await receive()

        async def answered(message: Message) -> None:
            if more and message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(header for header in more if header[0] not in present)]
            await send(message)

        await self.app(scope, receive_again, answered)

    def _look_at_sender(self, scope: Scope, entry: Mapping[str, list[str]]) -> None:
        hosts, port = entry.get("host", []), scope["server"][1]
        host = hosts[0].lower() if len(hosts) == 1 else ""
        whole = host if host.endswith(f":{port}") or (self.page and port != 80) else f"{host}:{port}"
        if whole not in self.hosts and not (self.token and _is_address(whole, port)):
            raise _RefusedError(421, f"this server is at {min(self.hosts)}, not at {', '.join(hosts)[:80]!r}")
        sites, origins = entry.get("sec-fetch-site", []), entry.get("origin", [])
        foreign = any(site not in ("same-origin", "none") for site in sites)
        if scope["method"] in SAFE:  # but a link on another site may lead a person here
            if foreign and entry.get("sec-fetch-mode") != ["navigate"]:
                raise _RefusedError(403, "another site may not ask here")
            return
        ours = (f"http://{whole}", f"http://{whole}".removesuffix(":80"))  # browsers leave out port 80
        if foreign or any(origin.lower() not in ours for origin in origins):
            raise _RefusedError(403, "another site may not change anything here")
        if self.page and not origins and not sites:
            raise _RefusedError(403, "a request that changes something must say that it comes from this page")

    def _look_at_token(self, scope: Scope, headers: Mapping[str, list[str]]) -> list[tuple[bytes, bytes]]:
        """Headers that keep a right token for the next request."""
        if not self.page:
            scheme, _, token = headers.get("authorization", [""])[0].partition(" ")
            if scheme.lower() != "bearer" or not self._is_token(token.strip()):
                raise _RefusedError(401, "this server wants its token: send it as Authorization: Bearer (`api_key`)")
            return []
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        cookie: SimpleCookie = SimpleCookie()
        try:
            cookie.load("; ".join(headers.get("cookie", [])))
        except CookieError:  # no browser sends this
            cookie.clear()
        if not self._is_token(token or (cookie[COOKIE].value if COOKIE in cookie else "")):
            raise _RefusedError(403, "open the address that `windtunnel ui` printed: it holds the token")
        return [(b"set-cookie", f"{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/".encode())] if token else []

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self.token.encode())

    async def _body(self, path: str, headers: Mapping[str, list[str]], receive: Receive) -> bytes | None:
        """All of it; None from a client that hung up."""
        most, parts, size, begin_s = self.most(path), [], 0, asyncio.get_running_loop().time()
        too_large = _RefusedError(413, f"too large: at most {most >> 20} MiB")
        length = headers.get("content-length", ["0"])[0]
        if not length.isdecimal() or len(length) > 15 or int(length) > most:  # before any of it is read
            raise too_large
        while True:
            try:
                async with asyncio.timeout_at(begin_s + BODY_S + size / BODY_BYTES_PER_S):
                    message = await receive()
            except TimeoutError:
                raise _RefusedError(408, "the body came too slowly") from None
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most:
                raise too_large
            if not message.get("more_body", False):
                return b"".join(parts)

    async def _refuse(self, send: Send, refusal: _RefusedError) -> None:
        text, kind = refusal.text, "text/plain; charset=utf-8"
        if not self.page:
            error = {"message": text, "type": "invalid_request_error", "param": None, "code": refusal.status}
            text, kind = json.dumps({"error": error}), "application/json"
        fields = {"content-type": kind, "content-length": str(len(text.encode())), "connection": "close"}
        if refusal.status == 401:
            fields["www-authenticate"] = "Bearer"
        headers = [*((name.encode(), value.encode()) for name, value in fields.items()), *self.headers]
        await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": text.encode()})


def guarded_protocol(base: Any) -> type[asyncio.Protocol]:
    """A uvicorn protocol (h11's or httptools') that cuts connections whose heads come too slowly or are too long.

    Both have a `cycle` from the moment that a request's head is whole; until the next, what comes is of a head.
    """

    class Guarded(base):  # type: ignore[misc]
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.head_bytes = 0
            self.head_timer: asyncio.TimerHandle | None = None
            self._expect_head()

        def data_received(self, data: bytes) -> None:
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:
                self.head_bytes = 0
                self._forget_head()
            elif before is None or before.response_complete:
                self.head_bytes += len(data)
                if self.head_bytes > HEAD_BYTES_MOST:
                    self._cut(b"431 Request Header Fields Too Large")
                elif self.head_timer is None:
                    self._expect_head()

        def connection_lost(self, error: Exception | None) -> None:
            self._forget_head()
            super().connection_lost(error)

        def _expect_head(self) -> None:
            self.head_timer = self.loop.call_later(HEAD_S, self._cut, b"408 Request Timeout")

        def _forget_head(self) -> None:
            if self.head_timer is not None:
                self.head_timer.cancel()
                self.head_timer = None

        def _cut(self, status: bytes) -> None:
            if not self.transport.is_closing():
                self.transport.write(b"HTTP/1.1 %s\r\nconnection: close\r\ncontent-length: 0\r\n\r\n" % status)
                self.transport.close()

    return Guarded


def server(app: Guard, *, stop_s: int | None = None, protocol: object = None) -> Server:
    """uvicorn with the application, to run on a bound socket. `protocol`: h11's or httptools'; the faster one."""
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=guarded_protocol(protocol or AutoHTTPProtocol),
            ws="none",
            proxy_headers=False,  # nobody else says who asks, or by which scheme
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="on",
            timeout_graceful_shutdown=stop_s,
            backlog=BACKLOG,
        )
    )
