"""What answers look like: of chat and completions as choices, of `/v1/responses` as items and named events.

A form is asked for the text of a stream, piece by piece, or for the whole as JSON. Its words are simulated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Protocol, final

from windtunnel.studies.serving.emulator.api_request import ApiError
from windtunnel.studies.serving.emulator.engine import Answer
from windtunnel.studies.serving.emulator.tokens import word


class Form(Protocol):
    """An answer in the words of one route."""

    def __init__(self, answer: Answer, model: str, created: int) -> None:
        """`created`: seconds since 1970."""

    def opening(self) -> str:
        """What a stream begins with."""

    def line(self, place: int) -> str:
        """One token of a stream."""

    def closing(self) -> str:
        """What it ends with."""

    def broken(self, error: ApiError) -> str:
        """What it ends with where it does not come to its end."""

    def whole(self) -> dict[str, object]:
        """All at once."""


def token(answer: Answer, place: int) -> str:
    """The token at a place; of an answer in JSON the first and the last close it in."""
    text = word(answer.index, place)
    if not answer.request.json:
        return text
    return ('{"text": "' if place == 0 else "") + text + ('"}' if place == answer.length - 1 else "")


def _text(answer: Answer) -> str:
    return "".join(token(answer, place) for place in range(answer.tokens))


def _cached(answer: Answer) -> int:
    return min(answer.sequence.cached_len, answer.request.prompt)


@final
class Choices:
    """`/v1/chat/completions` and `/v1/completions`."""

    def __init__(self, answer: Answer, model: str, created: int) -> None:
        self.answer, self.model, self.created = answer, model, created
        self._chat = answer.request.route == "chat"
        self._before = f'data: {{{json.dumps(self._frame(True))[1:-1]}, "choices":[{{"index":0,'

    def opening(self) -> str:
        """What a stream begins with."""
        return ""

    def line(self, place: int) -> str:
        """One token of a stream; of what needs escapes its words have quotation marks alone."""
        reason = f'"{self._reason()}"' if place == self.answer.length - 1 else "null"
        text = token(self.answer, place).replace('"', '\\"')
        role = '"role":"assistant",' if self._chat and place == 0 else ""
        content = f'"delta":{{{role}"content":"{text}"}}' if self._chat else f'"text":"{text}"'
        return f'{self._before}{content},"logprobs":null,"finish_reason":{reason}}}]}}\n\n'

    def closing(self) -> str:
        """What a stream ends with."""
        usage = ""
        if self.answer.request.usage:
            usage = f"data: {json.dumps({**self._frame(True), 'choices': [], 'usage': self._usage()})}\n\n"
        return f"{usage}data: [DONE]\n\n"

    def broken(self, error: ApiError) -> str:
        """What a stream ends with where it breaks off."""
        return f"data: {json.dumps(error.body())}\n\ndata: [DONE]\n\n"

    def whole(self) -> dict[str, object]:
        """All at once."""
        text = _text(self.answer)
        choice: dict[str, object] = {"index": 0, "logprobs": None, "finish_reason": self._reason()}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}
        else:
            choice["text"] = text
        return {**self._frame(False), "choices": [choice], "usage": self._usage()}

    def _frame(self, stream: bool) -> dict[str, object]:
        kind = ("chat.completion.chunk" if stream else "chat.completion") if self._chat else "text_completion"
        name = f"{'chatcmpl' if self._chat else 'cmpl'}-{self.answer.index}"
        return {"id": name, "object": kind, "created": self.created, "model": self.model}

    def _reason(self) -> str:
        return "length" if self.answer.length == self.answer.request.most else "stop"

    def _usage(self) -> dict[str, object]:
        answer = self.answer
        return {
            "prompt_tokens": answer.request.prompt,
            "completion_tokens": answer.tokens,
            "total_tokens": answer.request.prompt + answer.tokens,
            "prompt_tokens_details": {"cached_tokens": _cached(answer)},
        }


@final
class Response:
    """`/v1/responses`: one message with one text; a stream is events with names and numbers."""

    def __init__(self, answer: Answer, model: str, created: int) -> None:
        self.answer, self.model, self.created = answer, model, created
        self._item = f"msg_{answer.index}"
        self._at = {"item_id": self._item, "output_index": 0, "content_index": 0}
        self._number = 0

    def opening(self) -> str:
        """What a stream begins with."""
        response = {"response": self._body("in_progress")}
        added = {"output_index": 0, "item": self._message("in_progress", [])}
        part = {**self._at, "part": self._part("")}
        return (
            self._event("response.created", response)
            + self._event("response.in_progress", response)
            + self._event("response.output_item.added", added)
            + self._event("response.content_part.added", part)
        )

    def line(self, place: int) -> str:
        """One token of a stream."""
        delta = {**self._at, "delta": token(self.answer, place), "logprobs": []}
        return self._event("response.output_text.delta", delta)

    def closing(self) -> str:
        """What a stream ends with."""
        body, part = self.whole(), self._part(_text(self.answer))
        text = {**self._at, "text": part["text"], "logprobs": []}
        item = {"output_index": 0, "item": self._message(str(body["status"]), [part])}
        return (
            self._event("response.output_text.done", text)
            + self._event("response.content_part.done", {**self._at, "part": part})
            + self._event("response.output_item.done", item)
            + self._event(f"response.{body['status']}", {"response": body})
        )

    def broken(self, error: ApiError) -> str:
        """What a stream ends with where it breaks off."""
        reason = {"code": "server_error", "message": error.message}
        return self._event("response.failed", {"response": {**self._body("failed"), "error": reason}})

    def whole(self) -> dict[str, object]:
        """All at once."""
        answer = self.answer
        cut = answer.length == answer.request.most and answer.request.has_own_most
        status = "incomplete" if cut else "completed"
        return {
            **self._body(status),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self._message(status, [self._part(_text(answer))])],
            "usage": {
                "input_tokens": answer.request.prompt,
                "input_tokens_details": {"cached_tokens": _cached(answer)},
                "output_tokens": answer.tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": answer.request.prompt + answer.tokens,
            },
        }

    def _event(self, name: str, fields: Mapping[str, object]) -> str:
        body = {"type": name, "sequence_number": self._number, **fields}
        self._number += 1
        return f"event: {name}\ndata: {json.dumps(body)}\n\n"

    def _body(self, status: str) -> dict[str, object]:
        otherwise: dict[str, object] = {
            "error": None, "incomplete_details": None, "instructions": None, "max_output_tokens": None, "metadata": {},
            "output": [], "parallel_tool_calls": True, "previous_response_id": None, "store": False,
            "temperature": 1.0, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "top_p": 1.0,
            "truncation": "disabled", "usage": None, "user": None,
        }  # fmt: skip
        identity = {"id": f"resp_{self.answer.index}", "object": "response", "created_at": self.created}
        return {**identity, "model": self.model, "status": status, **otherwise, **(self.answer.request.echoed or {})}

    def _message(self, status: str, content: list[dict[str, object]]) -> dict[str, object]:
        return {"id": self._item, "type": "message", "status": status, "role": "assistant", "content": content}

    def _part(self, text: str) -> dict[str, object]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
