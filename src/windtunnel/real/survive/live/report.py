"""What became of a job and of the processes that died in it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field


@dataclass
class Replacement:
    """One change of members; downtime from the first sign of a death to the first step of the new view."""

    generation: int
    dead: list[str]
    planned: bool
    downtime_s: float | None = None


@dataclass
class JobReport:
    """What happened to a job."""

    status: int = 0
    start_s: float | None = None  # from starting the processes to their first step
    replacements: list[Replacement] = field(default_factory=list)
    begun_again: int = 0  # how often all ranks began from the first line of the script
    not_replaced: list[tuple[int, int]] = field(default_factory=list)  # (rank, step) that were asked for in vain
    reason: str = ""

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return asdict(self)
