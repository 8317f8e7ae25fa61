"""A body of the API to a request: lengths, limits, and what the answer must look like; or the API's own error.

`input` and `instructions` of `/v1/responses` are messages under other names. Nothing is kept between requests.

What would change the answer in a way that simulated words cannot (several choices, log probabilities, echo, images, a
tool that must be called, a schema) is refused; what only steers sampling (temperature, seed, stop, tools that may be
called) has to lie in the API's range and is read past. An answer in JSON is an object with one text.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from windtunnel.studies.serving.emulator.tokens import (
    AROUND_MESSAGE,
    BEFORE_ANSWER,
    BYTES_PER_TOKEN,
    names_of,
    tokens_of_text,
)

COMPLETION_TOKENS = 16  # of `/v1/completions` that names none: the API's own
RANGES = {  # of sampling, as vLLM has them (sampling_params.py): lowest, whether it may be that, highest
    "temperature": (0.0, True, 2.0),
    "top_p": (0.0, False, 1.0),
    "min_p": (0.0, True, 1.0),
    "presence_penalty": (-2.0, True, 2.0),
    "frequency_penalty": (-2.0, True, 2.0),
    "repetition_penalty": (0.0, False, 1e6),
    "top_k": (-1.0, True, 1e9),
}
ONES = {"n": (None, 1), "best_of": (None, 1), "echo": (None, False), "logprobs": (None, False), "suffix": (None, "")}


ONE_RESPONSE = {"top_logprobs": (None, 0), "background": (None, False)}
UNKEPT = ("previous_response_id", "conversation", "prompt")  # of responses: what another request has left here
ECHOED = ("instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "temperature", "text", "tool_choice",
          "tools", "top_p", "user")  # of a response, as they were asked  # fmt: skip
Route = Literal["chat", "completion", "response"]


class ApiError(Exception):
    """What the API answers where it cannot do as asked."""

    def __init__(
        self, status: int, message: str, kind: str = "invalid_request_error", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param = status, message, kind, param

    def body(self) -> dict[str, object]:
        """As the API writes it."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One request of the API."""

    route: Route
    prompt: int  # tokens
    most: int  # tokens of the answer
    has_own_most: bool  # whether the request says so itself
    least: int
    exact: bool  # `ignore_eos`: the answer is as long as `most`
    stream: bool
    usage: bool  # whether a stream ends with its usage
    names: tuple[int, ...]
    json: bool = False  # whether the answer is a JSON object
    echoed: Mapping[str, object] | None = None  # of a response: the fields that it repeats


def read(raw: bytes, route: Route, served: tuple[str, ...], longest: int, block_size: int) -> ApiRequest:
    """What a body asks for, of a server of the models `served`. Raises ApiError.

    `longest`: tokens that prompt and answer may have together. `block_size` 0: prompts get no names.
    """
    body = _object(raw)
    model = body.get("model")
    if not isinstance(model, str):
        raise ApiError(400, "model: give the name of the model", param="model")
    if model not in served:
        raise ApiError(404, f"The model `{model[:200]}` does not exist.", "not_found_error", "model")
    for name, allowed in (ONES | ONE_RESPONSE if route == "response" else ONES).items():
        if body.get(name) not in allowed:
            raise ApiError(400, f"{name}: simulated answers have one choice, without {name}", param=name)
    for name in UNKEPT if route == "response" else ():
        if body.get(name) is not None:
            raise ApiError(400, f"{name}: nothing is kept here; send the whole input", param=name)
    _check_sampling(body)
    _check_tools(body)
    chat, where = route != "completion", {"chat": "messages", "completion": "prompt", "response": "input"}[route]
    messages = _input(body) if route == "response" else body.get("messages")
    before = int(route == "response" and body.get("instructions") is not None)
    tokens, content, width = _chat(messages, where, before) if chat else _prompt(body)
    stream = _flag(body, "stream")
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise ApiError(400, "stream_options: give an object", param="stream_options")
    if options is not None and not stream:
        raise ApiError(400, "stream_options: only with stream", param="stream_options")
    room = longest - tokens
    limit = "max_completion_tokens" if chat and body.get("max_completion_tokens") is not None else "max_tokens"
    limit = "max_output_tokens" if route == "response" else limit
    has_limit = not chat or body.get(limit) is not None
    most = _whole(body, limit, 1, room if chat else min(room, COMPLETION_TOKENS))
    if room < 1 or most > room:
        raise ApiError(
            400,
            f"This model's maximum context length is {longest} tokens. However, you requested {tokens + max(most, 1)}"
            f" tokens ({tokens} in the {where}, {max(most, 1)} in the completion).",
            param=where,
        )
    least = _whole(body, "min_tokens", 0, 0)
    if least > most:
        raise ApiError(400, f"min_tokens {least} is more than max_tokens {most}", param="min_tokens")
    names = names_of(content, width, tokens, block_size) if block_size else ()
    return ApiRequest(
        route=route,
        prompt=tokens,
        most=most,
        has_own_most=has_limit,
        least=least,
        exact=_flag(body, "ignore_eos"),
        stream=stream,
        usage=bool((options or {}).get("include_usage")),
        names=names,
        json=_wants_json(body, route),
        echoed={name: body[name] for name in ECHOED if body.get(name) is not None} if route == "response" else None,
    )


def tokenized(raw: bytes, longest: int) -> dict[str, object]:
    """What `/tokenize` answers: the count that a request with this prompt or these messages has. Raises ApiError.

    Ids are numbers of the text's pieces, equal for equal pieces: there is no vocabulary.
    """
    body = _object(raw)
    messages = body.get("messages")
    tokens, content, width = _prompt(body) if messages is None else _chat(messages, "messages")
    pieces = [int.from_bytes(content[at : at + width], "little") for at in range(0, len(content), width)]
    ids = [*pieces[:tokens], *[0] * (tokens - len(pieces))]  # marks around messages are the rest
    return {"count": tokens, "max_model_len": longest, "tokens": ids}


def _check_sampling(body: Mapping[str, object]) -> None:
    for name, (lowest, itself, highest) in RANGES.items():
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ApiError(400, f"{name}: give a number", param=name)
        if not lowest <= value <= highest or (value == lowest and not itself):
            least = "at least" if itself else "above"
            raise ApiError(400, f"{name} {value}: give a number {least} {lowest:g}, at most {highest:g}", param=name)


def _check_tools(body: Mapping[str, object]) -> None:
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools is not None and not isinstance(tools, list):
        raise ApiError(400, "tools: give a list", param="tools")
    if choice in (None, "none", "auto"):
        return
    if not tools:
        raise ApiError(400, "tool_choice: only with tools", param="tool_choice")
    if choice == "required" or isinstance(choice, dict):
        raise ApiError(400, "tool_choice: simulated answers call no tool; give auto or none", param="tool_choice")
    raise ApiError(400, f"tool_choice {str(choice)[:100]!r}: give none, auto or required", param="tool_choice")


def _wants_json(body: Mapping[str, object], route: Route) -> bool:
    name = "text" if route == "response" else "response_format"
    wanted = body.get(name)
    if name == "text" and isinstance(wanted, dict):
        name, wanted = "text.format", wanted.get("format")
    if wanted is None:
        return False
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind == "json_schema":
        raise ApiError(400, f"{name}: simulated words follow no schema; give json_object", param=name)
    if kind not in ("text", "json_object"):
        raise ApiError(400, f"{name}: give type text or json_object", param=name)
    return bool(kind == "json_object")


def _input(body: Mapping[str, object]) -> object:
    """The messages of a response: its instructions, and its input as one text or as items."""
    instructions, content = body.get("instructions"), body.get("input")
    if instructions is not None and not isinstance(instructions, str):
        raise ApiError(400, "instructions: give a text", param="instructions")
    items = [{"role": "user", "content": content}] if isinstance(content, str) else content
    if not isinstance(items, list) or not items:
        raise ApiError(400, "input: give a text, or a list with at least one item", param="input")
    messages = [] if instructions is None else [{"role": "system", "content": instructions}]
    for place, item in enumerate(items):
        kind = item.get("type", "message") if isinstance(item, dict) else None
        text = {"function_call": "arguments", "function_call_output": "output"}.get(str(kind))
        if text is not None:
            messages.append({"role": "tool", "content": item.get(text)})
        elif kind == "message":
            messages.append(item)
        else:
            raise ApiError(400, f"input[{place}]: give messages, or calls of functions and their output", param="input")
    return messages


def _object(raw: bytes) -> Mapping[str, object]:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise ApiError(400, "the body is no JSON") from None
    if not isinstance(body, dict):
        raise ApiError(400, "the body is no JSON object")
    return body


def _flag(body: Mapping[str, object], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(400, f"{name}: give true or false", param=name)
    return bool(value)


def _whole(body: Mapping[str, object], name: str, lowest: int, otherwise: int) -> int:
    value = body.get(name)
    if value is None:
        return otherwise
    if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
        raise ApiError(400, f"{name}: give a whole number of at least {lowest}", param=name)
    return value


def _prompt(body: Mapping[str, object]) -> tuple[int, bytes, int]:
    """(tokens, content to be named, bytes of it per token)."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        text = prompt.encode("utf-8", "replace")
        return tokens_of_text(text), text, BYTES_PER_TOKEN
    if isinstance(prompt, list) and prompt and all(type(token) is int and 0 <= token < 1 << 31 for token in prompt):
        ids = array("i", prompt)
        return len(ids), ids.tobytes(), ids.itemsize
    raise ApiError(400, "prompt: give one text, or one list of token ids", param="prompt")


def _chat(messages: object, where: str, before: int = 0) -> tuple[int, bytes, int]:
    """As `_prompt`; the first `before` of the messages are none of those that the body calls `where`."""
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, f"{where}: give a list with at least one message", param=where)
    tokens, parts = BEFORE_ANSWER, []
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ApiError(400, f"{where}[{place - before}]: give an object with role and content", param=where)
        text = _text(message.get("content"), f"{where}[{place - before}].content", where)
        tokens += AROUND_MESSAGE + (tokens_of_text(text) if text else 0)
        parts += [message["role"].encode("utf-8", "replace"), b"\0", text, b"\0"]
    return tokens, b"".join(parts), BYTES_PER_TOKEN


def _text(content: object, place: str, param: str) -> bytes:
    if content is None:
        return b""
    if isinstance(content, str):
        return content.encode("utf-8", "replace")
    if isinstance(content, list) and all(
        isinstance(part, dict)
        and part.get("type") in ("text", "input_text", "output_text")
        and isinstance(part.get("text"), str)
        for part in content
    ):
        return "".join(part["text"] for part in content).encode("utf-8", "replace")
    raise ApiError(400, f"{place}: simulated models read text only", param=param)
