"""What Slurm's policy is told, and what follows for a job alone: its order, its limits, its nodes, its plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import repeat

from windtunnel.studies.fleet.clock.running import NS, Running
from windtunnel.studies.fleet.parts.profile import UNITS, Part, cuts_of, profiles_of
from windtunnel.studies.fleet.policies.slurm.cluster import Association, Cluster, Limits
from windtunnel.studies.fleet.policies.slurm.nodes import Gang, Need, bits
from windtunnel.studies.fleet.policies.slurm.order import Factors, Key, factors_of, levels
from windtunnel.studies.fleet.policies.slurm.state import State

YEAR_S = 365 * 86_400.0
BATCH_S = 30.0
AT_ONCE = ("gpus", "jobs", "user_gpus", "user_jobs", "account_gpus", "account_jobs")  # limits of what runs
Held = tuple[str, int, int | None, int | None]  # what is counted, how many a job has, the most of it and of its jobs


@dataclass(frozen=True)
class Rules:
    """`per_node` 0: GPUs are a count."""

    per_node: int
    unit: int = 1  # in which jobs count GPUs, of a GPU
    backfill_interval_s: float = 30.0
    resolution_s: float = 60.0
    window_s: float = 86_400.0
    depth: int = 500
    depth_user: int = 0  # 0: no limit
    depth_partition: int = 0
    main_depth: int = 100
    reserved_after_s: float = 0.0  # bf_min_age_reserve
    main_interval_s: float = 0.0  # slurmctld looks whether anything happened each second; 0: at each event
    main_phase_s: float = 0.0  # when in its interval
    backfill_phase_s: float = 0.0
    batch_s: float = BATCH_S  # of ends that are foreseen at once; 0: each by itself
    epoch_s: float = 0.0  # of Slurm's time at the clock's zero: to it the half minutes of ends are aligned
    completing_s: float = 0.0
    stopped_completing_s: float = 0.0  # the same after a job was stopped for another: signals, KillWait, epilog
    requeue_after_s: float = 121.0  # the life of a job's credential, and 1 s
    deferred: int = 0
    cluster: Cluster = field(default_factory=Cluster)

    @cached_property
    def _factors(self) -> Factors:
        return factors_of(self.cluster, self.unit)

    @cached_property
    def _levels(self) -> dict[str, int]:
        return levels(self.cluster)

    @cached_property
    def _accounts(self) -> dict[str, Association]:
        return {association.account: association for association in self.cluster.associations if not association.user}

    def ending(self, state: State) -> int:
        """Units on which nothing starts now and nobody is stopped, as a job is still ending there; as bits.

        Of sites that preempt: elsewhere it is over at once, and the compiled loops plan its end as that of any job.
        """
        return state.busy if self.cluster.preempts_by else 0

    @property
    def recalculates(self) -> bool:
        """Whether priorities change while jobs wait."""
        return self.cluster.multifactor and self.cluster.weights.change

    @property
    def ordered_by_tier(self) -> bool:
        """Whether there is more to the order than the log's priorities."""
        return bool(self.cluster.partitions) or self.cluster.multifactor

    def band(self, job: Running) -> tuple[int, int]:
        """What comes before priority: whom its QOS may preempt, and the tier of its partition; less is first."""
        partition = self.cluster.partition(job.queue)
        return -self._levels.get(job.owner.qos, 0), -(partition.tier if partition else 1)

    def priority(self, job: Running, now_ns: int, fair: Mapping[Key, float]) -> float:
        """By its factors, at a time and with factors of users."""
        return self._factors.priority(job, now_ns, fair)

    @cached_property
    def _limits(self) -> dict[tuple[object, ...], list[Held]]:
        return {}

    def limits(self, job: Running) -> list[Held]:
        """What a job counts against: worked out once for jobs that are alike."""
        key = job.queue, job.owner, job.part, job.gpus
        if key not in self._limits:
            self._limits[key] = self._limits_of(job)
        return self._limits[key]

    def _limits_of(self, job: Running) -> list[Held]:
        """What a job counts against, and which of it holds.

        Of a limit that several set, the first QOS of `Cluster.qualities` decides, and associations where no QOS does;
        each counts the job. An association's own account and those above hold all of theirs. Source: Slurm's page
        resource_limits, and its acct_policy.c.
        """
        if not self.cluster.limits_hold or not (self.cluster.qos or self.cluster.associations):
            return []
        need = self.need(job)
        owner, budgets = job.owner, list[Held]()
        counts = tres_of(job.part, need.gpus if isinstance(need, Gang) else need[1], self.cluster)
        decided = set[tuple[str, str]]()  # kinds of limits that a QOS sets, of which resource

        def add(prefix: str, limits: Limits, kind: str = "gpu") -> None:
            for whose, gpus, jobs in (
                ("", "gpus", "jobs"),
                (f" user {owner.user}", "user_gpus", "user_jobs"),
                (f" account {owner.account}", "account_gpus", "account_jobs"),
            ):
                mosts = {name: getattr(limits, name) for name in (gpus, jobs)}
                if any(most is not None for most in mosts.values()):
                    most_gpus, most_jobs = (None if (kind, name) in decided else mosts[name] for name in mosts)
                    budgets.append((f"{prefix}{whose}", counts.get(kind, 0), most_gpus, most_jobs))
            for kind_of in limits.of.keys() & counts.keys():
                add(f"{prefix} {kind_of}", limits.of[kind_of], kind_of)

        for qos in self.cluster.qualities(owner.qos, job.queue):
            add(f"qos {qos.name}", qos.limits)
            for kind, limits in {"gpu": qos.limits, **qos.limits.of}.items():
                decided |= {(kind, name) for name in AT_ONCE if getattr(limits, name) is not None}
        if ("gpu", "account_jobs") in decided:
            decided.add(("gpu", "user_jobs"))  # MaxJobs of an association gives way to either
        own = self._factors.association.get((owner.account, owner.user))
        if own is not None:
            add(f"user {owner.account} {owner.user}", own.limits)
        account, seen = owner.account, set[str]()
        while account in self._accounts and account not in seen:
            seen.add(account)
            limits = self._accounts[account].limits
            add(f"account {account}", Limits(gpus=limits.gpus, jobs=limits.jobs, of=limits.of))
            account = self._accounts[account].parent
        return budgets

    def allowed(self, job: Running, state: State) -> bool:
        """Whether limits let it run now."""
        return all(
            (gpus is None or state.gpus.get(name, 0) + count <= gpus)
            and (jobs is None or state.jobs.get(name, 0) < jobs)
            for name, count, gpus, jobs in self.limits(job)
        )

    def need(self, job: Running) -> Need:
        """What a job asks for: GPUs, or parts and how many."""
        if job.part is not None:
            return job.part, job.gpus // job.part.units
        owner, everywhere = job.owner, (1 << self.cluster.nodes) - 1
        return self.gang(job.gpus // self.unit, owner.nodes, owner.gpu, self.nodes_of(job, everywhere))

    @cached_property
    def _whole(self) -> list[int]:
        """Whole GPUs of each node, where they are unlike or some are in slices."""
        sizes, cluster = self.cluster.sizes, self.cluster
        if not cluster.divided:
            return list(sizes)
        of_each = zip(sizes or repeat(self.per_node), cluster.divided, strict=False)
        return [size - cuts_of(divided, cluster.gpu)[1] for size, divided in of_each]

    @cached_property
    def _gangs(self) -> dict[tuple[int, int, str, int], Gang]:
        return {}

    def gang(self, gpus: int, nodes: int, gpu: str, among: int) -> Gang:
        """GPUs of a job, how many it takes of each node, and the nodes of the type that it asks for.

        As many on each as it says by its `nodes` (0: not told); else all of a node, of unlike ones of the largest of
        which there are enough. Where slurm.conf names no types, each is of any.
        """
        key = gpus, nodes, gpu, among
        if key not in self._gangs:
            on = self.cluster.of_type(gpu) if self.per_node and gpu and any(self.cluster.types) else -1
            mixed = self.cluster.mixed if on != -1 else ()
            sizes = sorted(self._whole[node] for node in bits(among & on)) if self._whole else []
            sizes = sorted(mixed[node].get(gpu, 0) for node in bits(among & on)) if mixed else sizes
            each = self.per_node or 1
            if nodes > (not mixed) and gpus % nodes == 0 and gpus // nodes <= each:
                each = gpus // nodes
            elif sizes:
                enough = (size for at, size in enumerate(sizes) if size * (len(sizes) - at) >= gpus)
                each = max(enough, default=sizes[-1]) or 1
            self._gangs[key] = Gang(gpus, each, on, gpu if mixed and on else "")
        return self._gangs[key]

    def nodes_of(self, job: Running, whole: int) -> int:
        """Units of all that it may be given, as bits; types of GPUs apart."""
        return self.of_partition(job.queue, whole)

    def of_partition(self, queue: str, whole: int) -> int:
        """Nodes of a partition, of those that there are."""
        partition = self.cluster.partition(queue)
        if partition is None or not self.per_node or partition.nodes == (1 << self.cluster.nodes) - 1:
            return whole
        return partition.nodes & whole

    def limit_ns(self, job: Running) -> int:
        """For how long it is planned from its start."""
        partition = self.cluster.partition(job.queue)
        most_s = YEAR_S if partition is None or partition.most_s is None else partition.most_s
        limit_s = job.limit_s
        if limit_s is None and partition is not None:
            limit_s = partition.limit_s or partition.most_s
        if limit_s is not None:
            return round(min(limit_s, most_s) * NS)
        return job.left_ns + (job.moment.ns - job.placed_ns if job.placement else 0)


def tres_of(part: Part | None, count: int, cluster: Cluster) -> dict[str, int]:
    """What a job counts of gres/gpu, of which a slice is one, of slices of its profile, and of shard and mps."""
    if part is None:
        return {"gpu": count}
    if part.slices:
        return {"gpu": count, _profiles(cluster.gpu)[part]: count}
    return {
        "shard": round(part.units * cluster.shares / UNITS) * count,
        "mps": round(part.units * 100 / UNITS) * count,
    }


@cache
def _profiles(gpu: str) -> dict[Part, str]:
    return {part: name for name, part in profiles_of(gpu).items()}
