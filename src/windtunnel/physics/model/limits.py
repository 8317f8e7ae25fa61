"""How large the numbers of a model may be, and the check that every one of them goes through."""

from __future__ import annotations

from collections.abc import Mapping

from windtunnel.errors import SpecError

LAYERS_MAX = 16_384
SIZE_MAX = 2**27  # of one dimension: vocabulary, hidden, feed-forward
HEADS_MAX = 2**16  # heads, size of a head, experts
TOKENS_MAX = 2**31


def counted(field: str, value: object, most: int = TOKENS_MAX, *, least: int = 1, where: str | None = None) -> int:
    """`value` as a whole number in [least, most]; anything else is a SpecError that names the field."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise SpecError(field, showable(value), f"give a whole number from {least} to {most}", where)
    return value


def showable(value: object) -> object:
    """`value` if it can be printed in a message, else a few words: huge integers and deep nesting have no repr."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    if isinstance(value, Mapping):
        return f"an object with {len(value)} fields"
    if isinstance(value, list | tuple | set):
        return f"a list of {len(value)} entries"
    return value
