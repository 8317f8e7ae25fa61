"""Sia: kind and number of GPUs of every job chosen together, by an integer program, every 60 s.

Columns of a job are (kind, GPUs): 1, 2, 4, ... in a node, then whole nodes, as far as its speed there was measured.
A = speed / the job's least; columns other than the one it holds count A x r, r = (age - restarts S) / (age + S), S the
time of a restart. Minimised: the sum of A^-0.5, rounded to two decimals, over chosen columns + 1.1 for each job with
none, within the GPUs of each kind. Jobs that hold nothing are not held back by r: they have nothing to restart.
Source: S. Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling", SOSP 2023,
and its artifact (siasosp23/artifacts), as rules. Speed is goodput where jobs learn theirs (applications of AdaptDL's
tables, on one kind of GPU: the batch is chosen too, and at most twice as many GPUs as were ever tried are columns),
and throughput at the job's batch on several kinds, whose tables hold no goodput.
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.studies.fleet.clock.decision import Decision, JobView, Snapshot
from windtunnel.studies.fleet.kinds.programs import choices
from windtunnel.studies.fleet.kinds.work import capacity_of, decision
from windtunnel.studies.fleet.traits import FAILING, Traits

ROUND_S = 60.0
POWER = -0.5
UNALLOCATED = 1.1


@dataclass(frozen=True)
class Sia:
    """`kinds`: of each node."""

    kinds: tuple[str, ...]
    per_node: int
    interval_s: float = ROUND_S

    def decide(self, snapshot: Snapshot) -> Decision:
        """Jobs need `work` with `rates` and `restart_s`."""
        capacity = capacity_of(snapshot, self.kinds)
        names = list(capacity)
        columns = [self._columns(job, capacity) for job in snapshot.jobs]
        costs = [self._costs(job, mine, snapshot.now_s) for job, mine in zip(snapshot.jobs, columns, strict=True)]
        uses = [[(names.index(kind), gpus) for kind, gpus in mine] for mine in columns]
        column_of = choices(costs, uses, list(capacity.values()), UNALLOCATED)
        chosen = {
            job.index: mine[at]
            for job, mine, at in zip(snapshot.jobs, columns, column_of, strict=True)
            if at is not None
        }
        return decision(snapshot, chosen, self.kinds, self.per_node)

    def _columns(self, job: JobView, capacity: dict[str, int]) -> list[tuple[str, int]]:
        rates = job.work.rates
        return [
            (kind, gpus)
            for kind, most in capacity.items()
            for gpus, rate in rates.get(kind, {}).items()
            if rate > 0 and gpus <= most and is_valid_shape(gpus, self.per_node)
        ]

    def _costs(self, job: JobView, columns: list[tuple[str, int]], now_s: float) -> list[float]:
        if not columns:
            return []
        rates = job.work.rates
        speed = [rates[kind][gpus] for kind, gpus in columns]
        current = (self.kinds[job.placement[0][0]], job.held_gpus) if job.placement else None
        age, restart_s = now_s - job.submit_s, job.work.restart_s
        factor = 1.0
        if current is not None and restart_s > 0:
            factor = max(age - job.restarts * restart_s, 0.0) / (age + restart_s)
        return [
            round((rate / min(speed) * (1.0 if column == current else max(factor, 1e-4))) ** POWER, 2)
            for rate, column in zip(speed, columns, strict=True)
        ]


def is_valid_shape(gpus: int, per_node: int) -> bool:
    """A power of two inside a node, or whole nodes."""
    return gpus % per_node == 0 or (gpus < per_node and gpus & (gpus - 1) == 0)


POLICY = Traits(
    name="sia",
    asks="rounds",
    make=lambda site, options: Sia(site.node_kinds, site.per_node),
    needs=frozenset({"speed"}),
    sizes=True,
    kinds=True,
    capacity=FAILING,
    interval_s=ROUND_S,
)
