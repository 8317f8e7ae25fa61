"""What Slurm's policy remembers between decisions."""

from __future__ import annotations

from dataclasses import dataclass, field

from windtunnel.studies.fleet.clock.decision import Placement
from windtunnel.studies.fleet.clock.running import Running
from windtunnel.studies.fleet.policies.slurm.nodes import Free, Units, mask_of
from windtunnel.studies.fleet.policies.slurm.order import Fairness


@dataclass
class State:
    """What Slurm remembers between decisions. Units are nodes; GPUs where these are a count."""

    free: Free
    placed: dict[int, tuple[Running, Placement, Units]] = field(default_factory=dict)  # on the board, in units
    completing: list[tuple[int, Units]] = field(default_factory=list)
    gpus: dict[str, int] = field(default_factory=dict)  # held, by what limits count
    jobs: dict[str, int] = field(default_factory=dict)
    fairness: Fairness = field(default_factory=Fairness)
    priorities: dict[int, tuple[float, ...]] = field(default_factory=dict)
    not_before: dict[int, int] = field(default_factory=dict)  # of requeued jobs
    doomed: dict[int, int] = field(default_factory=dict)  # running jobs in their grace time
    preempting: dict[int, int] = field(default_factory=dict)  # when a waiting job stopped others
    calculated_ns: int | None = None  # the period of the last calculation of priorities
    valued_ns: int = 0  # when it was; jobs that came after have the priority of their submission
    waiting: int = 0  # as it was last asked
    changed: bool = True  # since the last backfill
    news: bool = True  # since the main loop looked last

    @property
    def busy(self) -> int:
        """Units on which a job is still ending, as bits: nothing starts there, and nobody is stopped there for it."""
        return mask_of(node for _, units in self.completing for node, _ in units)

    @property
    def whole(self) -> int:
        """All units, as bits."""
        return (1 << len(self.free.gpus)) - 1


def state_units(job: Running, state: State) -> Units:
    """Where a running job is, in units."""
    return state.placed[job.index][2]
