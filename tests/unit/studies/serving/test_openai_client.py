"""The real `openai` client against the endpoint."""

from __future__ import annotations

import asyncio

import pytest
from endpoint import endpoint, settles

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.extras

MESSAGES = [{"role": "user", "content": "hello there"}]


def test_chat_and_completions_whole_and_streamed() -> None:
    with endpoint() as (address, engine), openai.OpenAI(base_url=f"{address}/v1", api_key="none") as client:
        assert [one.id for one in client.models.list()] == ["tiny"]
        whole = client.chat.completions.create(model="tiny", messages=MESSAGES, max_completion_tokens=9)
        assert whole.usage.completion_tokens == 9
        assert whole.choices[0].message.role == "assistant"
        stream = client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=9, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices).count(" ") == 8
        assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
        plain = client.completions.create(model="tiny", prompt=[1, 2, 3], max_tokens=4)
        assert plain.usage.prompt_tokens == 3
        assert settles(engine)


def test_responses_whole_and_streamed() -> None:
    with endpoint() as (address, engine), openai.OpenAI(base_url=f"{address}/v1", api_key="none") as client:
        whole = client.responses.create(
            model="tiny", input="hello there", instructions="be brief", max_output_tokens=9, temperature=0.5
        )
        assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert whole.usage.output_tokens == 9 == len(whole.output_text.split())
        assert (whole.instructions, whole.temperature, whole.max_output_tokens) == ("be brief", 0.5, 9)
        alike = [{"role": "system", "content": "be brief"}, *MESSAGES]
        chat = client.chat.completions.create(model="tiny", messages=alike, max_tokens=9)
        assert chat.usage.prompt_tokens == whole.usage.input_tokens
        items = [{"role": "user", "content": [{"type": "input_text", "text": "hello there"}]}]
        with client.responses.stream(model="tiny", input=items, instructions="be brief", max_output_tokens=9) as stream:
            events = list(stream)
        final = events[-1].response
        names = [one.type for one in events]
        assert names[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
        assert names[-1] == "response.incomplete"
        assert names.count("response.output_text.delta") == 9
        assert [one.sequence_number for one in events] == list(range(len(events)))
        assert "".join(one.delta for one in events if one.type == "response.output_text.delta") == final.output_text
        assert final.usage.input_tokens == whole.usage.input_tokens
        natural = client.responses.create(model="tiny", input="hi", text={"format": {"type": "json_object"}})
        assert natural.status == "completed"
        assert natural.output_text.startswith('{"text"')
        assert settles(engine)


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("input", {"input": []}),
        ("input", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
        ("input", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
        ("instructions", {"instructions": ["x"]}),
        ("previous_response_id", {"previous_response_id": "resp_1"}),
        ("max_output_tokens", {"max_output_tokens": 0}),
        ("temperature", {"temperature": 3.0}),
        ("background", {"background": True}),
        ("text.format", {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}),
        ("tool_choice", {"tool_choice": "required", "tools": [{"type": "function", "name": "f"}]}),
    ],
)
def test_a_wrong_field_of_a_response_is_named(field: str, more: dict[str, object]) -> None:
    with endpoint() as (address, _), openai.OpenAI(base_url=f"{address}/v1", api_key="none") as client:
        with pytest.raises(openai.BadRequestError, match=field) as refused:
            client.post("/responses", body={"model": "tiny", "input": "hi", **more}, cast_to=object)
        assert refused.value.param == field


def test_errors_are_those_of_the_client_library() -> None:
    with endpoint() as (address, engine), openai.OpenAI(base_url=f"{address}/v1", api_key="none") as client:
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="other", prompt="x")
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            client.completions.create(model="tiny", prompt="x" * 100_000)
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="tiny", messages=MESSAGES, n=2)
        assert settles(engine)


def test_forty_streams_at_once_of_which_half_are_left() -> None:
    async def ask(client: openai.AsyncOpenAI, place: int) -> int:
        count = 0
        stream = await client.completions.create(model="tiny", prompt=[place] * 20, max_tokens=60, stream=True)
        async for _ in stream:
            count += 1
            if place % 2 and count == 5:
                await stream.close()
                break
        return count

    async def all_of(address: str) -> list[int]:
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none") as client:
            return await asyncio.gather(*(ask(client, place) for place in range(40)))

    with endpoint(speed=2.0) as (address, engine):
        assert asyncio.run(all_of(address)) == [60, 5] * 20
        assert settles(engine)
