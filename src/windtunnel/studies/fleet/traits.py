"""What the rest of the fleet must know about a policy besides its decisions: one row each, in the policy's file.

A new policy is a file with a `POLICY` (or `POLICIES`) and a line in `policies/table.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from windtunnel.studies.fleet.clock.decision import Policy, Rounds

if TYPE_CHECKING:
    from windtunnel.studies.fleet.options import Options
    from windtunnel.studies.fleet.site import Site

Asks = Literal["lines", "all", "rounds", "arrival", "log"]
Need = Literal["duration", "speed", "deadline", "start", "quota"]
Capacity = Literal["own", "failing", "loaned", "spot", "cloud", "shared"]
Loop = Literal["clock", "loans", "clouds", "machines", "log"]
OWN: frozenset[Capacity] = frozenset({"own"})
FAILING: frozenset[Capacity] = frozenset({"own", "failing"})


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Of one policy. What is not said is as of one that runs jobs on the GPUs that they ask for."""

    name: str
    asks: Asks  # what it sees: lines of waiting jobs, all jobs at events, all in rounds, each on arrival; or the log
    make: Callable[[Site, Options], Policy] | None = None  # None: its loop is no clock of decisions
    loop: Loop = "clock"
    needs: frozenset[Need] = frozenset({"duration"})
    measured: Literal["no", "whole", "each"] = (
        "no"  # durations that a trace leaves out: from tables, of all jobs or any
    )
    sizes: bool = False  # chooses how many GPUs a job gets
    kinds: bool = False  # chooses between kinds of GPU
    divides: bool = False  # gives traced jobs fewer GPUs than they ask for
    capacity: frozenset[Capacity] = field(default=OWN)
    interval_s: float | None = None  # between rounds
    slots: bool = False  # decides in slots: at least its `slot_s` apart
    restarts: bool = True  # jobs pay --restart
    compatible: bool = False  # its gangs may go where their traffic fits
    parts: bool = False  # knows jobs that ask for parts of GPUs
    priorities: bool = False  # heeds those of the log
    compiled: bool = False  # the same starts come from `policies/rigid/queues.py`, where no node comes or goes
    other_names: tuple[str, ...] = ()

    def make_policy(self, site: Site, options: Options) -> Policy:
        """The policy as it is asked."""
        assert self.make is not None, f"{self.name} makes no decisions on the clock"
        policy = self.make(site, options)
        if self.interval_s is None or hasattr(policy, "interval_s"):
            return policy
        return Rounds(policy, self.interval_s)
