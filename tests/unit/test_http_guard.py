"""Who may ask the page and the endpoint: real processes, byte by byte; and a plain application on both parsers."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httptools")

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from windtunnel import http_guard
from windtunnel.errors import SpecError
from windtunnel.http_guard import Guard, bound_socket, hosts_of, server, token_of

TOKEN = "a-token-of-sixteen-and-more"


@dataclass(frozen=True)
class Running:
    """A server: its port, what it said when it began, its process."""

    port: int
    said: str = ""
    process: int = 0

    def raw(self, text: str | bytes, patience_s: float = 30.0) -> bytes:
        """The answer to these bytes, until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=patience_s) as line:
            line.sendall(text if isinstance(text, bytes) else text.encode("latin-1"))
            found = b""
            while part := _part(line):
                found += part
        return found

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str | None) -> bytes:
        """One request; `sec_fetch_site="none"` is `Sec-Fetch-Site: none`, None leaves a header out."""
        given: dict[str, str | None] = {"host": f"127.0.0.1:{self.port}", "connection": "close"}
        given |= {"content-length": str(len(body))} if body or method == "POST" else {}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items() if value is not None)
        return self.raw(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body)

    def status(self, method: str, path: str, body: bytes = b"", **headers: str | None) -> int:
        return status_of(self.ask(method, path, body, **headers))


def _part(line: socket.socket) -> bytes:
    try:
        return line.recv(1 << 16)
    except ConnectionResetError:  # cut while it still sent
        return b""


def status_of(answer: bytes) -> int:
    match = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    return int(match[1]) if match else 0


@contextmanager
def process(*words: str, environment: Mapping[str, str] | None = None) -> Iterator[Running]:
    """`windtunnel ...`, from the line that says where it is until the block ends."""
    command = [sys.executable, "-m", "windtunnel", *words]
    clean = {name: value for name, value in os.environ.items() if name != http_guard.TOKEN_VARIABLE}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env={**clean, **(environment or {})}) as running:
        assert running.stderr is not None
        try:
            assert select.select([running.stderr], [], [], 120)[0]
            said = running.stderr.readline().decode()
            match = re.search(r"http://[^/\s]+?:(\d+)/", said)
            assert match is not None, said
            yield Running(int(match[1]), said, running.pid)
        finally:
            running.send_signal(signal.SIGTERM)
            running.stderr.read()


def page_words(folder: Path, host: str = "127.0.0.1") -> list[str]:
    return ["ui", "--no-open", "--port", "0", "--host", host, "--runs", str(folder / "runs")]


def endpoint_words(address: str = "127.0.0.1:0") -> list[str]:
    return ["serve", "listen", "llama-3.2-1b", address, "--cluster", "h100-sxm:1", "--speed", "100"]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with process(*page_words(tmp_path_factory.mktemp("page"))) as found:
        yield found


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Running]:
    with process(*endpoint_words()) as found:
        yield found


@pytest.fixture(params=["page", "endpoint"])
def either(request: pytest.FixtureRequest) -> tuple[Running, str]:
    """A server, and a place of it that answers 200."""
    return request.getfixturevalue(request.param), "/runs" if request.param == "page" else "/v1/models"


ASK = json.dumps({"model": "llama-3.2-1b", "prompt": "hello", "max_tokens": 2}).encode()


def test_one_host_that_is_this_server(either: tuple[Running, str]) -> None:
    running, place = either
    port = running.port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}", f" 127.0.0.1:{port} "):
        assert running.status("GET", place, host=host) == 200, host
    others = (
        "evil.example", f"evil.example:{port}", f"127.0.0.1:{port}.evil.example", "", f"127.1:{port}",
        f"localhost:{port}@evil.example", f"0.0.0.0:{port}", f"127.0.0.1:{port + 1}", f"10.0.0.1:{port}",
    )  # fmt: skip
    for host in others:
        assert running.status("GET", place, host=host) == 421, host
        assert running.status("POST", place, ASK, host=host) == 421, host
    bare = running.status("GET", place, host="127.0.0.1")
    assert bare == (421 if place == "/runs" else 200)  # a browser names the port; a program may not
    good, evil = f"Host: 127.0.0.1:{port}\r\n", "Host: evil.example\r\n"
    for hosts in (good + evil, evil + good, good + good, ""):
        answer = running.raw(f"GET {place} HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n")
        assert status_of(answer) in (400, 421), hosts  # the parser's refusal, or ours
    assert status_of(running.raw(f"GET {place} HTTP/1.0\r\n\r\n")) == 421


FOREIGN = ("null", "http://evil.example", "http://127.0.0.1:{port}.evil.example", "https://127.0.0.1:{port}", "",
           "x://127.0.0.1:{port}", "http://127.0.0.1:{other}", "http://evil@127.0.0.1:{port}", "http://localhost:{port}",
           "http://127.0.0.1:{port}, http://evil.example")  # fmt: skip


def test_pages_of_other_origins_change_nothing(page: Running, endpoint: Running) -> None:
    for running, place, body in (page, "/studies/start", b"verb=none"), (endpoint, "/v1/completions", ASK):
        for text in FOREIGN:
            origin = text.format(port=running.port, other=running.port + 1)
            assert running.status("POST", place, body, origin=origin) == 403, origin
        ours = f"http://127.0.0.1:{running.port}"
        assert running.status("POST", place, body, origin=ours) == 200
        for site in ("cross-site", "same-site", "anything"):
            assert running.status("POST", place, body, origin=ours, sec_fetch_site=site) == 403
            assert running.status("GET", "/", sec_fetch_site=site, sec_fetch_mode="no-cors") == 403
        assert running.status("POST", place, body, origin=ours, sec_fetch_site="same-origin") == 200
        twice = f"POST {place} HTTP/1.1\r\nHost: 127.0.0.1:{running.port}\r\nOrigin: {ours}\r\nOrigin: http://evil.example\r\n"
        assert status_of(running.raw(f"{twice}Content-Length: 0\r\nConnection: close\r\n\r\n")) == 403
    assert page.status("POST", "/studies/start", b"verb=none") == 403  # a form of long ago says nothing
    assert endpoint.status("POST", "/v1/completions", ASK) == 200  # a program says nothing either
    link = page.status("GET", "/runs", sec_fetch_site="cross-site", sec_fetch_mode="navigate")
    assert link == 200  # a person who follows it


def test_words_that_no_program_can_be_given_are_one_sentence(page: Running) -> None:
    ours = f"http://127.0.0.1:{page.port}"
    for words in (b"x%00y", b"%00", b"x+--cluster+a%00"):
        answer = page.ask("POST", "/studies/start", b"verb=plan&words=" + words, origin=ours)
        assert status_of(answer) == 200
        assert b'class="mistake"' in answer
        assert b"NUL" in answer


def test_what_a_browser_would_never_send_is_no_fault_of_the_server(either: tuple[Running, str]) -> None:
    running, place = either
    here = f"127.0.0.1:{running.port}"
    head = f"POST {place} HTTP/1.1\r\nHost: {here}\r\nOrigin: http://{here}\r\nConnection: close\r\n"
    for more in (
        "Content-Length: \xb2", "Content-Length: -1", "Content-Length: +5", "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: " + "9" * 30, f"Content-Length: {300 << 20}",
        "Transfer-Encoding: chunked\r\nContent-Length: 5", "Upgrade: websocket\r\nConnection: upgrade",
        "Content-Length: 5\r\nCookie: \x01=;;;=[]{}\xff", "Content-Length: 5\r\nX: " + "a" * 200_000,
        "Content-Length: 5\r\nX: a\0b",
    ):  # fmt: skip
        answer = running.raw(f"{head}{more}\r\n\r\nhello", 15.0)
        assert status_of(answer) < 500, more[:60]
        assert b"Traceback" not in answer
    large = f"{head}Content-Length: {9 << 20}\r\n\r\n".replace(place, "/v1/completions")
    assert status_of(running.raw(large, 15.0)) == 413  # before any of it has come
    assert running.status("GET", place) == 200


def test_elsewhere_than_on_loopback_the_endpoint_wants_its_token() -> None:
    with process(*endpoint_words("0.0.0.0:0")) as running:
        token = re.search(r"token (\S{16,}) ", running.said)
        assert token is not None
        wrong = (None, "", "Bearer", "Bearer x", f"Basic {token[1]}", f"Bearer {token[1]}x", f"Bearer {token[1][:-1]}")
        for given in wrong:
            answer = running.ask("POST", "/v1/completions", ASK, authorization=given)
            assert status_of(answer) == 401, given
            assert b"www-authenticate: Bearer" in answer
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == 401
        right = f"Bearer {token[1]}"
        assert running.status("GET", f"/v1/models?token={token[1]}") == 401  # in no address, that logs keep
        assert running.status("POST", "/v1/completions", ASK, authorization=right) == 200
        assert running.status("GET", "/metrics", authorization=right, host=f"10.1.2.3:{running.port}") == 200
        for host in (f"evil.example:{running.port}", f"10.1.2.3:{running.port + 1}", "10.1.2"):
            assert running.status("GET", "/metrics", authorization=right, host=host) == 421


def test_elsewhere_than_on_loopback_the_page_wants_its_token(tmp_path: Path) -> None:
    with process(*page_words(tmp_path, "0.0.0.0"), environment={http_guard.TOKEN_VARIABLE: TOKEN}) as running:
        assert running.status("GET", "/runs") == 403
        assert running.status("GET", f"/runs?token={TOKEN[:-1]}") == 403
        answer = running.ask("GET", f"/runs?token={TOKEN}")
        assert status_of(answer) == 200
        assert f"set-cookie: windtunnel={TOKEN}; HttpOnly; SameSite=Strict".encode() in answer
        assert running.status("GET", "/runs", cookie=f"other=1; windtunnel={TOKEN}") == 200
        assert running.status("GET", "/runs", cookie="windtunnel=\xff") == 403
        assert running.status("GET", "/runs", host=f"evil.example:{running.port}", cookie=f"windtunnel={TOKEN}") == 421


def test_the_client_of_the_api_sends_the_token() -> None:
    openai = pytest.importorskip("openai")
    with process(*endpoint_words(), environment={http_guard.TOKEN_VARIABLE: TOKEN}) as running:
        assert TOKEN not in running.said  # who set it knows it
        address = f"http://127.0.0.1:{running.port}/v1"
        with openai.OpenAI(base_url=address, api_key=TOKEN) as client:
            assert (
                client.completions.create(model="llama-3.2-1b", prompt="x", max_tokens=3).usage.completion_tokens == 3
            )
        with (
            openai.OpenAI(base_url=address, api_key="other", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()


def test_a_token_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(http_guard.TOKEN_VARIABLE, raising=False)
    with bound_socket("127.0.0.1", 0, "--listen") as near, bound_socket("0.0.0.0", 0, "--listen") as far:
        assert token_of(near) == ""
        assert len(token_of(far)) >= 32
        assert token_of(far) != token_of(far)
        for given in ("short", "x" * 15, "with a space in it", "x;y" * 10, "x" * 300):
            monkeypatch.setenv(http_guard.TOKEN_VARIABLE, given)
            with pytest.raises(SpecError, match="at least 16"):
                token_of(near)
        monkeypatch.setenv(http_guard.TOKEN_VARIABLE, TOKEN)
        assert token_of(near) == token_of(far) == TOKEN


@pytest.mark.parametrize("page", [True, False])
def test_port_80_may_be_left_out_and_programs_may_leave_out_any(page: bool) -> None:
    import asyncio

    def status(port: int, host: str, origin: str = "", method: str = "POST") -> int:
        guard = Guard(echo, frozenset({f"localhost:{port}"}), page=page, most=lambda path: 10)
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"host", host.encode()), (b"sec-fetch-site", b"none")]
        headers += [(b"origin", origin.encode())] if origin else []
        scope = {
            "type": "http",
            "method": method,
            "path": "/",
            "query_string": b"",
            "headers": headers,
            "server": ("", port),
        }
        asyncio.run(guard(scope, receive, send))
        return int(sent[0]["status"])

    assert status(80, "localhost") == status(80, "localhost:80") == 200
    assert status(80, "localhost", "http://localhost") == status(80, "localhost", "http://localhost:80") == 200
    assert status(80, "localhost", "http://localhost:8080") == 403
    assert status(8080, "localhost") == (421 if page else 200)
    assert status(8080, "localhost:8080", "http://localhost") == 403
    assert status(8080, "localhost:80") == 421


# Heads and bodies that never end, on both of uvicorn's parsers


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers a request with its body."""
    if scope["type"] == "lifespan":
        for _ in range(2):
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
        return
    message = await receive()
    assert not message["more_body"]
    headers = [(b"content-length", str(len(message["body"])).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": message["body"]})


@pytest.fixture(params=[H11Protocol, HttpToolsProtocol])
def echoing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(http_guard, "HEAD_S", 0.6)
    monkeypatch.setattr(http_guard, "BODY_S", 0.6)
    monkeypatch.setattr(http_guard, "BODY_BYTES_PER_S", 1000)
    bound = bound_socket("127.0.0.1", 0, "--listen")
    guard = Guard(echo, hosts_of("127.0.0.1", bound), page=False, most=lambda path: 5000)
    running = server(guard, stop_s=1, protocol=request.param)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    yield Running(bound.getsockname()[1])
    running.should_exit = True
    thread.join(20)
    bound.close()
    assert not thread.is_alive()


def dribbled(running: Running, first: bytes, each: bytes, every_s: float, most_s: float = 10.0) -> tuple[float, bytes]:
    """(seconds until the server cut it, what it said): `first`, then `each` for ever."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=most_s) as line:
        begun = time.monotonic()
        found = b""
        try:
            line.sendall(first)
            while time.monotonic() - begun < most_s:
                if select.select([line], [], [], every_s)[0]:
                    part = _part(line)
                    if not part:
                        break
                    found += part
                line.sendall(each)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return time.monotonic() - begun, found


def test_heads_that_never_end_are_cut(echoing: Running) -> None:
    head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{echoing.port}\r\n".encode()
    for first in (head, b"", head + b"Content-Length: 0\r\n\r\n" + head):  # the last: after an answered request
        took_s, said = dribbled(echoing, first, b"X-a: b\r\n" if first else b"", 0.05)
        assert 0.3 < took_s < 5.0, first
        assert b" 408 " in said
    assert status_of(echoing.ask("POST", "/", b"whole")) == 200


def test_heads_without_measure_are_cut(echoing: Running) -> None:
    head = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{echoing.port}\r\n".encode()
    took_s, said = dribbled(echoing, head, b"X-a: " + b"b" * 5000 + b"\r\n", 0.005)
    assert took_s < 0.5  # long before its time is over
    assert status_of(said) in (400, 431)  # the parser's limit, or ours


def test_bodies_that_never_end_are_cut(echoing: Running) -> None:
    head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{echoing.port}\r\nContent-Length: 4000\r\n\r\n".encode()
    took_s, said = dribbled(echoing, head, b"x", 0.05)
    assert 0.3 < took_s < 5.0
    assert status_of(said) == 408
    chunked = head.replace(b"Content-Length: 4000", b"Transfer-Encoding: chunked")
    took_s, said = dribbled(echoing, chunked, b"400\r\n" + bytes(0x400) + b"\r\n", 0.01)
    assert status_of(said) == 413
    # At the least rate it may take longer than its first seconds.
    took_s, said = dribbled(echoing, head.replace(b"4000", b"2000"), bytes(250), 0.15, 1.6)
    assert status_of(said) == 200
    assert took_s > 0.9


def test_a_hang_up_ends_a_request_and_others_go_on(echoing: Running) -> None:
    head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{echoing.port}\r\nContent-Length: 400\r\n\r\n".encode()
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", echoing.port)) as line:
            line.sendall(head + b"x")
    assert echoing.ask("POST", "/", b"whole").endswith(b"\r\n\r\nwhole")
    two = f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{echoing.port}\r\nContent-Length: 3\r\n\r\n"
    answer = echoing.raw(f"{two}one{two.replace('Host', 'Connection: close' + chr(13) + chr(10) + 'Host')}two")
    assert answer.count(b"HTTP/1.1 200 ") == 2  # one after the other on one connection
    assert answer.endswith(b"two")
