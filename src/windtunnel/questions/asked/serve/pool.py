"""What `serve pool` is asked."""

from __future__ import annotations

from typing import Annotated, ClassVar

from windtunnel.questions.about import About, part


@part
class ServePool:
    """Several models on groups of machines, or in a pool of weights, as a file says."""

    verb: ClassVar[str] = "serve pool"
    positional: ClassVar[tuple[str, ...]] = ("pool",)
    pool: Annotated[str, About("A pool in YAML, with `groups:` or `weights:`, and `models:`.")]
