"""How PyTorch's caching allocator is set up: what `PYTORCH_ALLOC_CONF` (before: `PYTORCH_CUDA_ALLOC_CONF`) says.

    expandable_segments:True,max_split_size_mb:512

These two change what the replay in `allocator.py` does; of all others it is only said that they were not followed.
Source: "CUDA semantics - Memory management" in PyTorch's documentation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from windtunnel.errors import SpecError

MIB = 1 << 20
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the first that is set holds
_SMALLEST_SPLIT_MB = 20  # PyTorch takes more than that only
_REMEDY = "give what PYTORCH_ALLOC_CONF takes, e.g. expandable_segments:True,max_split_size_mb:512"


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """What is not given is as PyTorch has it."""

    expandable_segments: bool = False
    max_split_bytes: int | None = None  # blocks from this size on are neither split nor used for smaller requests
    not_followed: tuple[str, ...] = ()


def allocator_settings(text: str) -> AllocatorSettings:
    """Read the variable's value; "" is PyTorch's default. Raises SpecError on a value that PyTorch would refuse."""
    expandable, most = False, None
    others: list[str] = []
    for word in re.split(r",(?![^\[]*\])", text.replace(" ", "")):  # not at commas inside of brackets
        name, colon, value = word.partition(":")
        if not word:
            continue
        if not colon:
            raise SpecError("allocator", word, _REMEDY)
        if name == "expandable_segments":
            if value not in ("True", "False"):
                raise SpecError("allocator", word, _REMEDY)
            expandable = value == "True"
        elif name == "max_split_size_mb":
            if not value.isdecimal() or int(value) <= _SMALLEST_SPLIT_MB:
                raise SpecError("allocator", word, f"give more than {_SMALLEST_SPLIT_MB}, as PyTorch wants it")
            most = int(value) * MIB
        else:
            others.append(name)
    return AllocatorSettings(expandable, most, tuple(others))


def settings_in(environment: Mapping[str, str]) -> str:
    """What an environment asks for; "" where it says nothing."""
    return next((setting for name in VARIABLES if (setting := environment.get(name))), "")
