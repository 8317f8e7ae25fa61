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
