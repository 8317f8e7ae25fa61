"""The endpoint: OpenAI's routes over an engine. It reads no file and writes none; every error is the API's own.

    POST /v1/chat/completions   /v1/completions   /v1/responses      stream or whole
    POST /tokenize                                        how many tokens a prompt or messages have
    GET  /v1/models   /v1/models/{name}   /health   /metrics   /version

A stream is one `data:` line per token, written together where several are there (`forms.py`). A client that hangs up,
or is cut off, drops its request at once.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, final

from windtunnel.http_guard import Receive, Scope, Send
from windtunnel.studies.serving.emulator.api_request import ApiError, Route, read, tokenized
from windtunnel.studies.serving.emulator.engine import Answer, Engine
from windtunnel.studies.serving.emulator.forms import Choices, Form, Response

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response as Reply


ROUTES: dict[str, Route] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completion",
    "/v1/responses": "response",
}
KINDS = {404: "not_found_error", 405: "invalid_request_error", 500: "server_error"}


def application(
    engine: Engine, names: tuple[str, ...], longest: int, version: str, named_blocks: int = 0, created: int = 0
) -> Starlette:
    """The ASGI application. `names`: what the model may be called; `longest`: tokens of prompt and answer together.

    `named_blocks`: the block size where prefixes are cached, else 0. `created`: the model's date, seconds.
    """
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse, PlainTextResponse
    from starlette.responses import Response as Reply
    from starlette.routing import Route as Path

    def refusal(error: ApiError) -> Reply:
        return JSONResponse(error.body(), error.status)

    async def ask(request: Request) -> Reply:
        try:
            api_request = read(await request.body(), ROUTES[request.url.path], names, longest, named_blocks)
            return AnswerResponse(engine, engine.submit(api_request), names[0], int(time.time()))  # type: ignore[return-value]
        except ApiError as error:
            return refusal(error)

    async def tokenize(request: Request) -> Reply:
        try:
            return JSONResponse(tokenized(await request.body(), longest))
        except ApiError as error:
            return refusal(error)

    def card(name: str) -> dict[str, object]:
        return {
            "id": name, "object": "model", "created": created, "owned_by": "windtunnel", "root": names[0],
            "parent": None, "max_model_len": longest, "permission": [],
        }  # fmt: skip

    async def models(request: Request) -> Reply:
        return JSONResponse({"object": "list", "data": [card(names[0])]})

    async def model(request: Request) -> Reply:
        name = request.path_params["name"]
        if name not in names:
            return refusal(ApiError(404, f"The model `{name[:200]}` does not exist.", "not_found_error", "model"))
        return JSONResponse(card(name))

    async def health(request: Request) -> Reply:
        well = not engine.broken and bool(engine.fleet.able)
        return Reply(status_code=200 if well else 503)

    async def metrics(request: Request) -> Reply:
        text = engine.metrics.text(names[0], engine.fleet.gauges(engine.clock.now_ns()), engine.fleet.cache_config())
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def told_version(request: Request) -> Reply:
        return JSONResponse({"version": version})

    async def http_error(request: Request, error: Exception) -> Reply:
        assert isinstance(error, HTTPException)
        kind = KINDS.get(error.status_code, "invalid_request_error")
        words = f"{request.method} {request.url.path[:200]}: {error.detail}"
        body = ApiError(error.status_code, words, kind).body()
        return JSONResponse(body, error.status_code, headers=error.headers)

    async def mistake(request: Request, error: Exception) -> Reply:
        return refusal(ApiError(500, "the server made a mistake", "server_error"))

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(engine.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return Starlette(
        routes=[
            *(Path(path, ask, methods=["POST"]) for path in ROUTES),
            Path("/tokenize", tokenize, methods=["POST"]),
            Path("/v1/models", models, methods=["GET"]),
            Path("/v1/models/{name:path}", model, methods=["GET"]),
            Path("/health", health, methods=["GET"]),
            Path("/metrics", metrics, methods=["GET"]),
            Path("/version", told_version, methods=["GET"]),
        ],
        exception_handlers={HTTPException: http_error, Exception: mistake},
        lifespan=life,
    )


@final
class AnswerResponse:
    """The ASGI response that tells an answer as it comes, or when it is whole."""

    def __init__(self, engine: Engine, answer: Answer, model: str, created: int) -> None:
        self.engine, self.answer = engine, answer
        self.form: Form = (Response if answer.request.route == "response" else Choices)(answer, model, created)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until it is done or nobody listens."""
        answer = self.answer
        hang_up = asyncio.create_task(_hung_up(receive))
        hang_up.add_done_callback(lambda task: answer.ready.set())
        try:
            if answer.request.stream:
                await self._stream(send, hang_up)
            else:
                await self._whole(send, hang_up)
        finally:
            hang_up.cancel()
            self.engine.drop(answer)

    async def _stream(self, send: Send, hang_up: asyncio.Task[None]) -> None:
        answer, form, sent = self.answer, self.form, 0
        text = ""
        started = False
        while True:
            await answer.ready.wait()
            answer.ready.clear()
            if hang_up.done():
                return
            if not started:
                if answer.error is not None and not answer.tokens:
                    await _send_json(send, answer.error.status, answer.error.body())
                    return
                headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                started, text = True, form.opening()
            done, tokens = answer.done, answer.tokens
            text += "".join(form.line(place) for place in range(sent, tokens))
            sent = tokens
            if done:
                text += form.closing() if answer.error is None else form.broken(answer.error)
            await send({"type": "http.response.body", "body": text.encode(), "more_body": not done})
            if done:
                return
            text = ""

    async def _whole(self, send: Send, hang_up: asyncio.Task[None]) -> None:
        answer = self.answer
        while not answer.done:
            await answer.ready.wait()
            answer.ready.clear()
            if hang_up.done():
                return
        if answer.error is not None:
            await _send_json(send, answer.error.status, answer.error.body())
        else:
            await _send_json(send, 200, self.form.whole())


async def _hung_up(receive: Receive) -> None:
    """Ends when the client has gone."""
    while True:
        if (await receive())["type"] == "http.disconnect":
            return


async def _send_json(send: Send, status: int, body: object) -> None:
    text = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
