"""What a run of the fleet may be told beyond trace, site and policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from windtunnel.studies.fleet.capacity import Changes
    from windtunnel.studies.fleet.clock.decision import Policy
    from windtunnel.studies.fleet.jobs.trace import Cohort, Quota
    from windtunnel.studies.fleet.loans.pool import Loans
    from windtunnel.studies.fleet.site import Site
    from windtunnel.studies.fleet.speeds.tables import Speeds, Tables


@dataclass(frozen=True)
class Options:
    """Options of a run."""

    tables: Tables | None = None
    seed: int = 0
    pool: bool = False  # GPUs are a count, not on nodes
    compatible: bool = False  # gangs go where their traffic fits that of others
    until_s: float | None = None
    restart_s: float | None = None
    speeds: Speeds | None = None  # of jobs where `tables` is None: the training predictor
    loans: Loans | None = None  # for lyra
    changes: Changes | None = None  # nodes that come and go
    quotas: tuple[Quota, ...] = ()  # of the trace's queues
    cohorts: tuple[Cohort, ...] = ()
    decider: Policy | None = None  # in place of the named policy's own
    make: Callable[[Site, Options], Policy | None] | None = None  # the named policy, with parameters of the user's
