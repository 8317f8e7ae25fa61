"""What stands behind a router as one: a replica, or pools of prefill and decode. The same questions of both."""

from __future__ import annotations

from windtunnel.studies.serving.disaggregated import interruption as pools
from windtunnel.studies.serving.disaggregated.server import Disaggregated
from windtunnel.studies.serving.replica import interruption as alone
from windtunnel.studies.serving.replica.replica import Replica
from windtunnel.studies.serving.replica.sequence import Sequence

Unit = Replica | Disaggregated


def replicas_of(unit: Unit) -> list[Replica]:
    """All of its replicas."""
    return [*unit.prefill, *unit.decode] if isinstance(unit, Disaggregated) else [unit]


def decoders_of(unit: Unit) -> list[Replica]:
    """Those that give tokens."""
    return unit.decode if isinstance(unit, Disaggregated) else [unit]


def step_ends_ns(unit: Unit, now_ns: int) -> int:
    """When the step ends that runs at `now_ns`, or something else happens; `NEVER` where nothing does."""
    if isinstance(unit, Disaggregated):
        return pools.step_ends_ns(unit, now_ns)
    return unit.step_ends_ns(now_ns)


def cancel(unit: Unit, index: int, now_ns: int) -> bool:
    """A client hangs up: forget its request; True if it was there."""
    if isinstance(unit, Disaggregated):
        return pools.cancel(unit, index, now_ns)
    return alone.cancel(unit, index, now_ns)


def unfinished(unit: Unit, now_ns: int) -> list[Sequence]:
    """What is lost when its machines go: every request, with the tokens that it was given."""
    if isinstance(unit, Disaggregated):
        return pools.unfinished(unit, now_ns)
    return alone.unfinished(unit, now_ns)
