"""A policy that notes what it was asked and what it decided: what a replay must make again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from windtunnel.studies.fleet.clock.decision import Decision, Policy, Snapshot, copied


class Step(NamedTuple):
    """One decision as it was made."""

    snapshot: Snapshot
    decision: Decision


@dataclass(frozen=True)
class Recorded:
    """`inner`, each of whose decisions goes to `log`."""

    inner: Policy
    log: list[Step]

    @property
    def interval_s(self) -> Any:
        """As the inner policy has it; 0 for one that is asked whenever something happens."""
        return getattr(self.inner, "interval_s", 0.0)

    def decide(self, snapshot: Snapshot) -> Decision:
        """As the inner policy does."""
        kept = copied(snapshot)
        decision = self.inner.decide(snapshot)
        self.log.append(Step(kept, decision))
        return decision
