"""Tasks: what one rank computes and sends in a step, each on one lane, waiting for those named in `after`."""

from __future__ import annotations

from dataclasses import dataclass, field

COMPUTE, SCALE_UP, SCALE_OUT, HOST_COPY = "compute", "scale_up", "scale_out", "host copy"


@dataclass(frozen=True, slots=True)
class Task:
    """One kernel, collective or copy. `after`: indices of earlier tasks; `latency_ns`: what cutting does not divide."""

    name: str
    lane: str
    work_ns: int  # alone on its lane
    after: tuple[int, ...] = ()
    role: str = ""  # what techniques look for: "all_to_all", "expert", "reduce", "gather", "exchange", "update"
    urgency: int = 0  # of two that are ready the lesser goes first, on a lane that asks
    bytes_total: float = 0.0
    latency_ns: int = 0
    phase: str = ""  # forward, backward, end
    block: int = -1


@dataclass
class Tasks:
    """A list of tasks under construction."""

    tasks: list[Task] = field(default_factory=list)

    def add(self, task: Task) -> int:
        """Append; the index is what later tasks wait for."""
        assert all(0 <= number < len(self.tasks) for number in task.after), (
            f"{task.name} waits for a task that is not there"
        )
        self.tasks.append(task)
        return len(self.tasks) - 1

    def finish(self) -> tuple[Task, ...]:
        """The finished list."""
        return tuple(self.tasks)
