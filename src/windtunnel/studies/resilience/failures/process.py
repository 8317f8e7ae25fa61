"""The failure process: independent Poisson causes, and what a memoryless model per node leaves out.

    rate of a job = sum over causes of  rate x (GPUs | nodes | 1)

A cause counts by GPU, by node or by job. Three things are added where a catalogue gives them: *lemons*, hosts that fail
much more often than others (a share of hosts that makes a share of the failures of machines); *bursts*, a second
failure minutes after a first; *slow* hosts, which fail nothing and delay all. Rates keep their mean whatever lemons
do: a lemon takes over failures, it adds none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Per = Literal["gpu", "node", "job"]
Symptom = Literal["explicit", "hang", "silent", "manual", "planned"]
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause of interruptions."""

    name: str
    component: str
    per: Per
    rate_per_s: float  # of one GPU, node or job
    hosts: int = 1  # that one event takes out; 0 = software, nothing to replace
    symptom: Symptom = "explicit"

    def of_job(self, gpus: int, nodes: int) -> float:
        """Events a second of a job of that size."""
        return self.rate_per_s * {"gpu": gpus, "node": nodes, "job": 1}[self.per]


@dataclass(frozen=True, slots=True)
class Lemons:
    """A few hosts that make many of the failures of machines."""

    share_of_hosts: float = 0.0
    share_of_failures: float = 0.0

    @property
    def times(self) -> float:
        """How much more often a lemon fails than another host."""
        if not 0 < self.share_of_hosts < 1:
            return 1.0
        own, others = self.share_of_hosts, 1.0 - self.share_of_hosts
        return self.share_of_failures / (1.0 - self.share_of_failures) * others / own


@dataclass(frozen=True, slots=True)
class Bursts:
    """A second failure soon after a first."""

    share: float = 0.0
    mean_delay_s: float = 300.0


@dataclass(frozen=True, slots=True)
class SlowHosts:
    """Hosts that for a while take longer, and so make the whole job take longer."""

    rate_per_node_s: float = 0.0
    slower: float = 0.0  # 0.10: a step takes 1.10 times as long
    shortest_s: float = 30.0
    longest_s: float = 36_000.0


@dataclass(frozen=True, slots=True)
class FailureProcess:
    """All that can happen to a job."""

    name: str
    source: str
    causes: tuple[Cause, ...]
    lemons: Lemons = field(default_factory=Lemons)
    bursts: Bursts = field(default_factory=Bursts)
    slow: SlowHosts = field(default_factory=SlowHosts)

    def rate_per_s(self, gpus: int, gpus_per_node: int, *, planned: bool = False) -> float:
        """Interruptions a second of a job on `gpus`, bursts included; planned ones only if asked."""
        nodes = -(-gpus // gpus_per_node)
        total = sum(cause.of_job(gpus, nodes) for cause in self.causes if planned or cause.symptom != "planned")
        return total * (1.0 + self.bursts.share)

    def events(self, gpus: int, gpus_per_node: int, seconds: float) -> float:
        """Events of all kinds that are expected in a run, hosts that become slow among them."""
        slow = self.slow.rate_per_node_s * -(-gpus // gpus_per_node)
        return (self.rate_per_s(gpus, gpus_per_node, planned=True) + slow) * seconds

    def host_rate_per_s(self, gpus_per_node: int) -> float:
        """Events a second by which one host goes, which is what standbys are kept for."""
        share = {"gpu": float(gpus_per_node), "node": 1.0, "job": 0.0}
        causes = [cause for cause in self.causes if cause.hosts and cause.symptom != "planned"]
        return sum(cause.rate_per_s * share[cause.per] * cause.hosts for cause in causes) * (1.0 + self.bursts.share)

    def mttf_s(self, gpus: int, gpus_per_node: int) -> float:
        """Mean time between unplanned interruptions; infinite where nothing fails."""
        rate = self.rate_per_s(gpus, gpus_per_node)
        return 1.0 / rate if rate > 0 else float("inf")
