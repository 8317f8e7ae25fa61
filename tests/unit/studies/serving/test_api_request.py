"""Bodies of the API: what is read, and what is refused in its own words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from windtunnel.studies.serving.emulator.api_request import ApiError, read, tokenized
from windtunnel.studies.serving.emulator.tokens import in_blocks


def _read(body: Any, chat: bool = False, longest: int = 1000, block: int = 16) -> Any:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read(raw, "chat" if chat else "completion", ("m", "alias"), longest, block)


def test_lengths_come_from_ids_text_and_messages() -> None:
    assert _read({"model": "m", "prompt": [1, 2, 3], "max_tokens": 7}).prompt == 3
    assert _read({"model": "m", "prompt": "x" * 41}).prompt == 11
    assert _read({"model": "alias", "prompt": "x"}).most == 16
    chat = _read({"model": "m", "messages": [{"role": "user", "content": "x" * 40}], "max_completion_tokens": 5}, True)
    assert (chat.prompt, chat.most, chat.has_own_most) == (17, 5, True)
    parts = [{"type": "text", "text": "x" * 40}]
    open_ended = _read({"model": "m", "messages": [{"role": "user", "content": parts}]}, True)
    assert (open_ended.prompt, open_ended.most, open_ended.has_own_most) == (17, 983, False)


def test_tokenize_counts_what_a_request_would() -> None:
    for body in ({"prompt": "x" * 41}, {"prompt": [7, 7, 9]}, {"messages": [{"role": "user", "content": "x" * 40}]}):
        said = tokenized(json.dumps({"model": "m", **body}).encode(), 1000)
        asked = _read({"model": "m", "max_tokens": 1, **body}, "messages" in body)
        assert said["count"] == asked.prompt == len(said["tokens"])  # type: ignore[arg-type]
        assert said["max_model_len"] == 1000
    assert tokenized(b'{"prompt": [7, 7, 9]}', 9)["tokens"] == [7, 7, 9]


def test_equal_names_mean_equal_prefixes() -> None:
    long, other = "a" * 200, "a" * 130 + "b" * 70
    first, second = (_read({"model": "m", "prompt": text}).names for text in (long, other))
    assert len(first) == len(second) == 3
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    assert in_blocks(first, 32) == first[1::2]
    ids = [_read({"model": "m", "prompt": [*range(40), last]}).names for last in (1, 2)]
    assert ids[0] == ids[1]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{", 400, None),
        (b"[" * 100_000, 400, None),
        (b"\xff\xfe", 400, None),
        (b'"text"', 400, None),
        ({"prompt": "x"}, 400, "model"),
        ({"model": 3, "prompt": "x"}, 400, "model"),
        ({"model": "other", "prompt": "x"}, 404, "model"),
        ({"model": "m"}, 400, "prompt"),
        ({"model": "m", "prompt": []}, 400, "prompt"),
        ({"model": "m", "prompt": ["a", "b"]}, 400, "prompt"),
        ({"model": "m", "prompt": [1, True]}, 400, "prompt"),
        ({"model": "m", "prompt": [1, -2]}, 400, "prompt"),
        ({"model": "m", "prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
        ({"model": "m", "prompt": "x", "max_tokens": 1.5}, 400, "max_tokens"),
        ({"model": "m", "prompt": "x", "max_tokens": 5, "min_tokens": 6}, 400, "min_tokens"),
        ({"model": "m", "prompt": "x", "n": 2}, 400, "n"),
        ({"model": "m", "prompt": "x", "temperature": 2.1}, 400, "temperature"),
        ({"model": "m", "prompt": "x", "temperature": float("nan")}, 400, "temperature"),
        ({"model": "m", "prompt": "x", "top_p": 0}, 400, "top_p"),
        ({"model": "m", "prompt": "x", "top_k": "all"}, 400, "top_k"),
        ({"model": "m", "prompt": "x", "tool_choice": "required"}, 400, "tool_choice"),
        ({"model": "m", "prompt": "x", "tools": [{}], "tool_choice": "required"}, 400, "tool_choice"),
        ({"model": "m", "prompt": "x", "tools": [{}], "tool_choice": "some"}, 400, "tool_choice"),
        ({"model": "m", "prompt": "x", "response_format": {"type": "json_schema"}}, 400, "response_format"),
        ({"model": "m", "prompt": "x", "response_format": "json"}, 400, "response_format"),
        ({"model": "m", "prompt": "x", "logprobs": 3}, 400, "logprobs"),
        ({"model": "m", "prompt": "x", "stream": "yes"}, 400, "stream"),
        ({"model": "m", "prompt": "x", "stream_options": {}}, 400, "stream_options"),
        ({"model": "m", "prompt": "x" * 4000}, 400, "prompt"),
        ({"model": "m", "prompt": "x" * 400, "max_tokens": 901}, 400, "prompt"),
    ],
)
def test_what_cannot_be_served_is_the_apis_own_error(body: Any, status: int, param: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        _read(body)
    assert caught.value.status == status
    assert caught.value.param == param
    assert set(caught.value.body()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "messages", [None, [], "hello", [3], [{"content": "x"}], [{"role": "user", "content": [{"type": "image_url"}]}]]
)
def test_messages_that_are_none_are_refused(messages: Any) -> None:
    with pytest.raises(ApiError) as caught:
        _read({"model": "m", "messages": messages}, True)
    assert caught.value.param == "messages"
