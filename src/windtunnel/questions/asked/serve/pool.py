"""What `serve pool` is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from windtunnel.questions.about import STRICT, About


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePool:
    """Several models on groups of machines, or in a pool of weights, as a file says."""

    __pydantic_config__: ClassVar = STRICT
    verb: ClassVar[str] = "serve pool"
    positional: ClassVar[tuple[str, ...]] = ("pool",)
    pool: Annotated[str, About("A pool in YAML, with `groups:` or `weights:`, and `models:`.")]
