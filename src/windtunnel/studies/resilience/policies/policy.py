"""What a policy is: how it reacts to each cause of interruption, and how it lives with machines that are away.

A policy is data made by pure functions, one file each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from windtunnel.studies.resilience.failures import Cause
from windtunnel.studies.resilience.recovery import RecoveryTimes


class Phases(NamedTuple):
    """Seconds from an interruption until the job works again, in this order."""

    detect: float = 0.0
    localise: float = 0.0
    schedule: float = 0.0
    groups: float = 0.0
    warm_up: float = 0.0
    load: float = 0.0


NO_PAUSE = Phases()


@dataclass(frozen=True, slots=True)
class Reaction:
    """What happens after one interruption."""

    phases: Phases
    keeps_step: bool  # state survives up to the step under way; otherwise the last complete checkpoint is read
    away_s: float = 0.0  # how long the machines are then missing from the job, or from its standbys


@dataclass(frozen=True, slots=True)
class Job:
    """What policies ask of a job."""

    gpus: int
    gpus_per_node: int
    replicas: int  # of the model: the data-parallel degree
    stages: int  # pipeline stages of a replica
    step_s: float
    times: RecoveryTimes
    rate: Callable[[int], float]  # replicas -> samples a second, over those of all replicas

    @property
    def hosts(self) -> int:
        """Machines of the job."""
        return -(-self.gpus // self.gpus_per_node)

    def replicas_hit(self, hosts: int) -> int:
        """Replicas that stop when so many neighbouring machines go."""
        return min(self.replicas, -(-hosts * self.gpus_per_node * self.replicas // self.gpus)) if hosts else 0

    @property
    def hosts_of_pipeline(self) -> int:
        """Machines that one group of pipeline ranks is spread over."""
        return min(self.stages, self.hosts)


MachinesAway = Literal["replaced", "from standbys", "from the job"]


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to live with failures."""

    name: str
    react: Callable[[Cause, bool], Reaction]  # cause, whether enough standbys are at hand
    away: MachinesAway = "replaced"
    units: Callable[[Cause], int] = lambda cause: cause.hosts  # standbys or parts of the job that a cause takes away
    rate: Callable[[int], float] = lambda units: 1.0  # speed of the job, of its full speed, with so many parts away
    rejoin: Phases = NO_PAUSE  # pause when what was away comes back to the job
    evicts: bool = True  # a host that failed does not come back: lemons fail once
    slow_found_s: float | None = None  # a slow host is sent away after so long, by a planned change; None: never
    swap: Phases = NO_PAUSE  # pause of that change


def detection(cause: Cause, times: RecoveryTimes) -> float:
    """Seconds until somebody knows: nothing for what people do themselves."""
    seconds = {"explicit": times.detect_explicit, "hang": times.detect_hang, "silent": times.detect_silent}
    return seconds.get(cause.symptom, 0.0)


def noticed(cause: Cause, times: RecoveryTimes) -> Phases:
    """The part that no policy is spared: until somebody knows, and knows where."""
    localise = {"hang": times.localise_hang, "silent": times.localise_silent}.get(cause.symptom, 0.0)
    return Phases(detect=detection(cause, times), localise=localise)  # an explicit fault names its machine


def full_restart(cause: Cause, times: RecoveryTimes) -> Reaction:
    """All processes start again from the last checkpoint; a new machine is scheduled where one is needed.

    People stop a job after saving it, so what they do loses no work.
    """
    planned = cause.symptom in ("manual", "planned")
    phases = noticed(cause, times)._replace(
        schedule=times.schedule if cause.hosts else 0.0,
        groups=times.groups,
        warm_up=times.warm_up,
        load=times.load,
    )
    return Reaction(phases, keeps_step=planned)
