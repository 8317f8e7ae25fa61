"""The policies of the exact clock, by the names that users give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from windtunnel.studies.fleet.decision import Decision, Policy, Snapshot
from windtunnel.studies.fleet.policies.auction import Auction
from windtunnel.studies.fleet.policies.gittins import Gittins
from windtunnel.studies.fleet.policies.optimus import Optimus
from windtunnel.studies.fleet.policies.pollux import Pollux
from windtunnel.studies.fleet.policies.srtf import Srtf
from windtunnel.studies.fleet.policies.themis import Themis
from windtunnel.studies.fleet.policies.tiresias import Tiresias
from windtunnel.studies.fleet.policies.waiting import Waiting
from windtunnel.studies.fleet.site import Site

NAMES = ("tiresias", "gittins", "srtf", "themis", "optimus", "pollux")
DIVIDED = ("themis-auction",)  # that give traced jobs fewer GPUs than they ask for
TYPED = ("gavel", "sia")  # that choose between kinds of GPU
ROUND_S = 60.0
LEASE_S = 1200.0  # of Themis: 20 minutes in its paper
MODELLED = ("optimus", "pollux")  # that size jobs, and so need a model of their speed


@dataclass(frozen=True)
class Rounds:
    """A policy that is asked at fixed intervals."""

    inner: Any
    interval_s: float = ROUND_S

    def decide(self, snapshot: Snapshot) -> Decision:
        """As the inner policy does."""
        decision: Decision = self.inner.decide(snapshot)
        return decision


def policy_of(name: str, seed: int) -> Policy:
    """The policy of this name."""
    if name == "optimus":
        return Rounds(Optimus())
    if name == "pollux":
        return Rounds(Pollux())
    if name == "themis-auction":
        return Auction(seed=seed)
    if name == "themis":
        return Rounds(Themis(), LEASE_S)
    plain: dict[str, Policy] = {"tiresias": Tiresias(), "gittins": Gittins(), "srtf": Srtf()}
    return plain[name]


def queue_of(name: str, site: Site, pool: bool) -> Policy:
    """A queue (`policies/queues.py`) by its name, for nodes that come and go."""
    rule = "easy" if name == "easy" else "skip" if name.endswith("-skip") else "block"
    return Waiting(name.startswith("sjf"), rule, 0 if pool else site.per_node)
