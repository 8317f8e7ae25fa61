"""The endpoint: OpenAI's routes over an engine. It reads no file and writes none; every error is the API's own.

    POST /v1/chat/completions   POST /v1/completions      stream or whole
    POST /tokenize                                        how many tokens a prompt or messages have
    GET  /v1/models   /v1/models/{name}   /health   /metrics   /version

A stream is one `data:` line per token, written together where several are there, and `data: [DONE]`. A client that
hangs up, or is cut off, drops its request at once.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, final

from windtunnel.http_guard import Receive, Scope, Send
from windtunnel.studies.serving.emulator.asked import ApiError, read, tokenized
from windtunnel.studies.serving.emulator.engine import Answer, Engine
from windtunnel.studies.serving.emulator.tokens import word

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response


KINDS = {404: "not_found_error", 405: "invalid_request_error", 500: "server_error"}


def application(
    engine: Engine, names: tuple[str, ...], longest: int, version: str, named_blocks: int = 0, created: int = 0
) -> Starlette:
    """The ASGI application. `names`: what the model may be called; `longest`: tokens of prompt and answer together.

    `named_blocks`: the block size where prefixes are cached, else 0. `created`: the model's date, seconds.
    """
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    def refusal(error: ApiError) -> Response:
        return JSONResponse(error.body(), error.status)

    async def ask(request: Request) -> Response:
        chat = request.url.path.endswith("/chat/completions")
        try:
            asked = read(await request.body(), chat, names, longest, named_blocks)
            return Telling(engine, engine.submit(asked), names[0], int(time.time()))  # type: ignore[return-value]
        except ApiError as error:
            return refusal(error)

    async def tokenize(request: Request) -> Response:
        try:
            return JSONResponse(tokenized(await request.body(), longest))
        except ApiError as error:
            return refusal(error)

    def card(name: str) -> dict[str, object]:
        return {
            "id": name, "object": "model", "created": created, "owned_by": "windtunnel", "root": names[0],
            "parent": None, "max_model_len": longest, "permission": [],
        }  # fmt: skip

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [card(names[0])]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in names:
            return refusal(ApiError(404, f"The model `{name[:200]}` does not exist.", "not_found_error", "model"))
        return JSONResponse(card(name))

    async def health(request: Request) -> Response:
        well = not engine.broken and bool(engine.fleet.able)
        return Response(status_code=200 if well else 503)

    async def metrics(request: Request) -> Response:
        text = engine.metrics.text(names[0], engine.fleet.gauges(engine.clock.now_ns()), engine.fleet.cache_config())
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def told_version(request: Request) -> Response:
        return JSONResponse({"version": version})

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        kind = KINDS.get(error.status_code, "invalid_request_error")
        words = f"{request.method} {request.url.path[:200]}: {error.detail}"
        body = ApiError(error.status_code, words, kind).body()
        return JSONResponse(body, error.status_code, headers=error.headers)

    async def mistake(request: Request, error: Exception) -> Response:
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
            Route("/v1/chat/completions", ask, methods=["POST"]),
            Route("/v1/completions", ask, methods=["POST"]),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/v1/models", models, methods=["GET"]),
            Route("/v1/models/{name:path}", model, methods=["GET"]),
            Route("/health", health, methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
            Route("/version", told_version, methods=["GET"]),
        ],
        exception_handlers={HTTPException: http_error, Exception: mistake},
        lifespan=life,
    )


@final
class Telling:
    """The ASGI response that tells an answer as it comes, or when it is whole."""

    def __init__(self, engine: Engine, answer: Answer, model: str, created: int) -> None:
        self.engine, self.answer, self.model = engine, answer, model
        self.created = created
        frame = json.dumps(self._frame(True))[1:-1]
        self._before = f'data: {{{frame}, "choices":[{{"index":0,'

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until it is done or nobody listens."""
        answer = self.answer
        gone = asyncio.create_task(_hung_up(receive))
        gone.add_done_callback(lambda task: answer.ready.set())
        try:
            if answer.asked.stream:
                await self._stream(send, gone)
            else:
                await self._whole(send, gone)
        finally:
            gone.cancel()
            self.engine.drop(answer)

    async def _stream(self, send: Send, gone: asyncio.Task[None]) -> None:
        answer, told = self.answer, 0
        started = False
        while True:
            await answer.ready.wait()
            answer.ready.clear()
            if gone.done():
                return
            if not started:
                if answer.error is not None and not answer.tokens:
                    await _send_json(send, answer.error.status, answer.error.body())
                    return
                await send(
                    {
                        "type": "http.response.start",
                        "status": 200,
                        "headers": [
                            (b"content-type", b"text/event-stream; charset=utf-8"),
                            (b"cache-control", b"no-cache"),
                        ],
                    }
                )
                started = True
            done, tokens = answer.done, answer.tokens
            text = "".join(self._line(place) for place in range(told, tokens))
            told = tokens
            if done:
                if answer.error is not None:
                    text += f"data: {json.dumps(answer.error.body())}\n\n"
                elif answer.asked.usage:
                    text += f"data: {json.dumps({**self._frame(True), 'choices': [], 'usage': self._usage()})}\n\n"
                text += "data: [DONE]\n\n"
            await send({"type": "http.response.body", "body": text.encode(), "more_body": not done})
            if done:
                return

    async def _whole(self, send: Send, gone: asyncio.Task[None]) -> None:
        answer = self.answer
        while not answer.done:
            await answer.ready.wait()
            answer.ready.clear()
            if gone.done():
                return
        if answer.error is not None:
            await _send_json(send, answer.error.status, answer.error.body())
            return
        text = "".join(self._word(place) for place in range(answer.tokens))
        choice: dict[str, object] = {"index": 0, "logprobs": None, "finish_reason": self._reason()}
        if answer.asked.chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}
        else:
            choice["text"] = text
        await _send_json(send, 200, {**self._frame(False), "choices": [choice], "usage": self._usage()})

    def _line(self, place: int) -> str:
        """One token of a stream; of what needs escapes its words have quotation marks alone."""
        answer = self.answer
        chat = answer.asked.chat
        reason = f'"{self._reason()}"' if place == answer.length - 1 else "null"
        text = self._word(place).replace('"', '\\"')
        role = '"role":"assistant",' if chat and place == 0 else ""
        content = f'"delta":{{{role}"content":"{text}"}}' if chat else f'"text":"{text}"'
        return f'{self._before}{content},"logprobs":null,"finish_reason":{reason}}}]}}\n\n'

    def _word(self, place: int) -> str:
        """The token at a place; of an answer in JSON the first and the last close it in."""
        answer = self.answer
        text = word(answer.index, place)
        if not answer.asked.json:
            return text
        return ('{"text": "' if place == 0 else "") + text + ('"}' if place == answer.length - 1 else "")

    def _frame(self, stream: bool) -> dict[str, object]:
        chat, index = self.answer.asked.chat, self.answer.index
        kind = ("chat.completion.chunk" if stream else "chat.completion") if chat else "text_completion"
        return {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{index}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }

    def _reason(self) -> str:
        return "length" if self.answer.length == self.answer.asked.most else "stop"

    def _usage(self) -> dict[str, object]:
        answer = self.answer
        return {
            "prompt_tokens": answer.asked.prompt,
            "completion_tokens": answer.tokens,
            "total_tokens": answer.asked.prompt + answer.tokens,
            "prompt_tokens_details": {"cached_tokens": min(answer.sequence.cached_len, answer.asked.prompt)},
        }


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
