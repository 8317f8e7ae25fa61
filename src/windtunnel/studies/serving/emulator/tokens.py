"""Tokens without a tokeniser: how many a text has, what its blocks are called, and the words of an answer.

    given ids        as many as there are
    text             one per four bytes of UTF-8, rounded up: a stated estimate, about right for English
    chat             its messages' texts, four tokens around each (role and marks), three that open the answer

A block's name is a hash over all that precedes it and itself, so equal names mean equal prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

BYTES_PER_TOKEN = 4
AROUND_MESSAGE = 4
BEFORE_ANSWER = 3
NAMED = 16  # tokens of a block that is named

WORDS = (
    "wind",
    "tunnel",
    "answers",
    "mean",
    "nothing",
    "but",
    "their",
    "number",
    "and",
    "pace",
    "are",
    "as",
    "predicted",
)


def tokens_of_text(text: bytes) -> int:
    """The estimate for a text; an empty one still has the token that begins it."""
    return max(1, -(-len(text) // BYTES_PER_TOKEN))


def word(request: int, place: int) -> str:
    """The token at a place of an answer: the same for the same request."""
    text = WORDS[(request * 7 + place) % len(WORDS)]
    return text if place == 0 else f" {text}"


def names_of(content: bytes, bytes_per_token: int, tokens: int, block_size: int) -> tuple[int, ...]:
    """Names of the full blocks of a prompt; none where the block size is no multiple of NAMED tokens.

    `content` has `bytes_per_token` bytes for each of (about) `tokens` tokens.
    """
    if block_size % NAMED:
        return ()
    width = NAMED * bytes_per_token
    whole = min(len(content) // width, tokens // NAMED)
    names, before = [], b""
    for place in range(whole):
        before = blake2b(before + content[place * width : (place + 1) * width], digest_size=7).digest()
        names.append(int.from_bytes(before, "big"))
    return tuple(names)


def in_blocks(names: Sequence[int], block_size: int) -> tuple[int, ...]:
    """Names of the engine's blocks, from those of NAMED tokens."""
    per = block_size // NAMED
    return tuple(names[per - 1 :: per]) if per else ()
