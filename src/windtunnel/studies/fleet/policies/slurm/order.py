"""The order of Slurm's queue: priority/multifactor, and the fair tree.

    priority = weights x (age, fairshare, size, partition, qos, association, GPUs), factors from 0 to 1
    order    those that may preempt, partition tier, priority, submission, row

Age and fairshare are worked out anew each `calculated_every_s`; between, a job keeps what it had. Fair tree: siblings
by Level FS = share / usage, depth first, users ranked as they are met. Usage is that of jobs that run when it is worked
out: what one used since the last time is not counted when it ends (so on a real 22.05, 104 of 110 priorities; by its
text it should be). Source: Slurm 22.05, its pages priority_multifactor
and fair_tree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from windtunnel.studies.fleet.clock.running import NS, Running
from windtunnel.studies.fleet.policies.slurm.cluster import Association, Cluster

Key = tuple[str, str]  # account, user


@dataclass
class Fairness:
    """Decayed usage of each user of an account, and the factors that follow from it."""

    usage: dict[Key, float] = field(default_factory=dict)
    factors: dict[Key, float] = field(default_factory=dict)
    last_ns: int | None = None

    def tick(self, running: Mapping[int, Running], now_ns: int, cluster: Cluster) -> None:
        """Usage decays, that of running jobs is added, and users are ranked."""
        decay = per_second(cluster)
        if self.last_ns is not None:
            remaining = decay ** ((now_ns - self.last_ns) / NS)
            self.usage = {key: used * remaining for key, used in self.usage.items()}
            for job in running.values():
                key = job.owner.account, job.owner.user
                lasted_s = (now_ns - max(job.placed_ns, self.last_ns)) / NS
                self.usage[key] = self.usage.get(key, 0.0) + lasted_s * decay**lasted_s * job.owner.billing
        self.last_ns = now_ns
        self.factors = fair_tree(cluster.associations, self.usage)


def per_second(cluster: Cluster) -> float:
    """What is left of usage after a second."""
    return 1 - 0.693 / cluster.half_life_s if cluster.half_life_s > 1 else 1.0


def fair_tree(associations: tuple[Association, ...], usage: Mapping[Key, float]) -> dict[Key, float]:
    """The fairshare factor of each user of an account."""
    children: dict[str, list[Association]] = {}
    for each in associations:
        if each.user:
            children.setdefault(each.account, []).append(each)
        elif each.account != "root":
            children.setdefault(each.parent or "root", []).append(each)
    used: dict[str, float] = {}

    def account_usage(account: str, seen: frozenset[str] = frozenset()) -> float:
        if account not in used:
            total = 0.0
            for child in children.get(account, ()):
                if child.user:
                    total += usage.get((child.account, child.user), 0.0)
                elif child.account not in seen:
                    total += account_usage(child.account, seen | {account})
            used[account] = total
        return used[account]

    users = sum(1 for association in associations if association.user)
    factors: dict[Key, float] = {}
    rank = next_rank = users

    def of(each: Association) -> float:
        return usage.get((each.account, each.user), 0.0) if each.user else account_usage(each.account)

    def visit(siblings: list[Association], tied: bool, seen: frozenset[str]) -> None:
        """Siblings, the best first; `tied`: the first of them stands no lower than who came before."""
        nonlocal rank, next_rank
        shares, total = sum(sibling.share for sibling in siblings), sum(of(sibling) for sibling in siblings)
        level: dict[Association, float] = {}
        for each in siblings:
            own = of(each)
            level[each] = math.inf if not own else each.share / shares * total / own if each.share else 0.0
        ordered = sorted(siblings, key=lambda each: (-level[each], not each.user, each.account, each.user))
        at = 0
        while at < len(ordered):
            each = ordered[at]
            tied = level[each] == level[ordered[at - 1]] if at else tied
            at += 1
            if each.user:
                rank = rank if tied else next_rank
                factors[each.account, each.user] = rank / users
                next_rank -= 1
                continue
            equal = [each, *(other for other in ordered[at:] if level[other] == level[each])]
            at += len(equal) - 1
            names = {other.account for other in equal} - seen
            below = [child for name in sorted(names) for child in children.get(name, ())]
            if below:
                visit(below, tied, seen | names)

    visit(children.get("root", []), False, frozenset({"root"}))
    return factors


def levels(cluster: Cluster) -> dict[str, int]:
    """How far above others a QOS stands by whom it may preempt."""
    if cluster.preempts_by != "qos":
        return {}
    level_of: dict[str, int] = {}

    def level(name: str, seen: frozenset[str]) -> int:
        if name not in level_of:
            below = [stop for stop in cluster.qos[name].stops if stop in cluster.qos and stop not in seen]
            level_of[name] = 1 + max((level(word, seen | {name}) for word in below), default=-1)
        return level_of[name]

    for name in cluster.qos:
        level(name, frozenset({name}))
    return level_of


@dataclass(frozen=True)
class Factors:
    """What priorities are made of, once for a cluster."""

    cluster: Cluster
    most_factor: float
    most_qos: float
    most_association: float
    association: Mapping[Key, Association]
    unit: int  # in which jobs count GPUs

    def priority(self, job: Running, now_ns: int, fair: Mapping[Key, float]) -> float:
        """By priority/multifactor; without it what the log says."""
        cluster, owner = self.cluster, job.owner
        weights = cluster.weights
        if not cluster.multifactor:
            return job.priority
        value = 0.0
        if weights.age:
            waited_s = max(now_ns - job.submit_ns, 0) / NS
            value += weights.age * min(waited_s / cluster.most_age_s, 1.0)
        if weights.fairshare:
            value += weights.fairshare * fair.get((owner.account, owner.user), 0.0)
        if weights.size:
            value += weights.size * self._size(job)
        partition = cluster.partition(job.queue)
        if weights.partition and partition is not None and self.most_factor:
            value += weights.partition * partition.factor / self.most_factor
        qos = cluster.qos.get(owner.qos)
        if weights.qos and qos is not None and self.most_qos:
            value += weights.qos * qos.priority / self.most_qos
        if weights.association and self.most_association:
            own = self.association.get((owner.account, owner.user))
            value += weights.association * (own.priority if own else 0) / self.most_association
        if weights.gpus:
            value += weights.gpus * job.gpus / (cluster.gpus * self.unit)
        return float(max(int(value), 1))

    def _size(self, job: Running) -> float:
        cluster = self.cluster
        share = -(-job.gpus // (cluster.per_node * self.unit)) / cluster.nodes
        if job.owner.cpus and cluster.cpus:
            share = (share + job.owner.cpus / sum(cluster.cpus)) / 2
        return min(max(1 - share if cluster.favours_small else share, 0.0), 1.0)


def factors_of(cluster: Cluster, unit: int) -> Factors:
    """The factors of a cluster."""
    return Factors(
        cluster,
        max((partition.factor for partition in cluster.partitions.values()), default=0),
        max((qos.priority for qos in cluster.qos.values()), default=0),
        max((association.priority for association in cluster.associations), default=0),
        {(association.account, association.user): association for association in cluster.associations},
        unit,
    )
