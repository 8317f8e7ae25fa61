"""What `fleet live` is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from windtunnel.questions.asked.fleet.jobs import Scheduled


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLive(Scheduled):
    """The commands of a trace run here under one policy, beside their simulation."""

    verb: ClassVar[str] = "fleet live"
