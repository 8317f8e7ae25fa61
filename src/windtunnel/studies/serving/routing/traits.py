"""What the rest of the program must know about a router besides its choices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from windtunnel.studies.serving.loop import Router


@dataclass(frozen=True, slots=True)
class Traits:
    """One row, which stands in the router's own file."""

    make: Callable[[], Router]
    looks_into_caches: bool = False  # means something with replicas that do both phases only
