"""A trace that was written as JSON, before anyone reads what its events mean."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, eq=False)
class JsonTrace:
    """One file: its events (Kineto) or nodes (Chakra), and what else its top level holds."""

    path: Path
    items: list[Any]
    is_kineto: bool
    top: dict[str, Any]
    notes: tuple[str, ...] = ()
