"""What a Slurm cluster is told: partitions, QOS, associations, weights of priority, and how it schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from windtunnel.studies.fleet.parts.profile import cuts_of

PREEMPT_OFF, REQUEUE, CANCEL, SUSPEND = "OFF", "REQUEUE", "CANCEL", "SUSPEND"


@dataclass(frozen=True, slots=True)
class Limits:
    """GPUs and jobs that may run at once; None: no limit. Of all, of each user, of each account; what a job may ask."""

    gpus: int | None = None
    jobs: int | None = None
    user_gpus: int | None = None
    user_jobs: int | None = None
    account_gpus: int | None = None
    account_jobs: int | None = None
    job_gpus: int | None = None
    node_gpus: int | None = None  # of a job on each of its nodes, in the mean
    least_gpus: int | None = None  # of a job
    of: Mapping[str, Limits] = field(default_factory=dict, hash=False)  # of slices by profile, of `shard` and `mps`


@dataclass(frozen=True, slots=True)
class Partition:
    """Nodes that jobs may ask for together; partitions may share nodes."""

    name: str
    nodes: int  # as bits
    tier: int = 1
    factor: int = 1  # PriorityJobFactor
    most_s: float | None = None  # MaxTime
    limit_s: float | None = None  # DefaultTime
    qos: str = ""  # whose limits hold for all its jobs
    preempt: str = ""  # PreemptMode; empty: the cluster's


@dataclass(frozen=True, slots=True)
class Qos:
    """A quality of service."""

    name: str
    priority: int = 0
    limits: Limits = Limits()
    stops: frozenset[str] = frozenset()  # QOS whose jobs it may preempt
    preempt: str = ""  # PreemptMode of its jobs; empty: the cluster's
    grace_s: float = 0.0
    first: bool = False  # OverPartQOS: its limits come before those of the partition's QOS


@dataclass(frozen=True, slots=True)
class Association:
    """An account, or a user in one."""

    account: str
    user: str = ""
    parent: str = ""
    share: int = 1
    priority: int = 0
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True)
class Weights:
    """Of the factors of priority/multifactor, each of which is from 0 to 1."""

    age: float = 0.0
    fairshare: float = 0.0
    size: float = 0.0
    partition: float = 0.0
    qos: float = 0.0
    association: float = 0.0
    gpus: float = 0.0  # PriorityWeightTRES of gres/gpu

    @property
    def change(self) -> bool:
        """Whether priorities change while jobs wait."""
        return bool(self.age or self.fairshare)


@dataclass(frozen=True)
class Cluster:
    """All of it. `multifactor`: priorities are worked out; else they are the log's, then by submission."""

    nodes: int = 0
    per_node: int = 0  # the most that a node has
    sizes: tuple[int, ...] = ()  # GPUs of each node, where they are unlike
    types: tuple[str, ...] = ()  # of the GPUs of each node, as Gres names them; of several a100:2+h100:2; empty: none
    heavy: tuple[int, ...] = ()  # Weight of each node, where they are unlike: the lightest are taken first
    gpu: str = "gpu"
    divided: tuple[Mapping[str, int], ...] = ()  # of each node, the slices of MIG into which some GPUs are cut
    shares: int = 0  # shards of a GPU
    cpus: tuple[int, ...] = ()  # of each node
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    default_partition: str = ""
    qos: Mapping[str, Qos] = field(default_factory=dict)
    associations: tuple[Association, ...] = ()
    multifactor: bool = False
    weights: Weights = Weights()
    most_age_s: float = 7 * 86_400.0
    half_life_s: float = 7 * 86_400.0  # 0: usage does not decay
    calculated_every_s: float = 300.0
    favours_small: bool = False
    limits_hold: bool = True  # AccountingStorageEnforce has limits
    preempts_by: str = ""  # qos, partition
    preempt: str = PREEMPT_OFF
    youngest_first: bool = False
    exempt_s: float = 0.0
    again_s: float = 40.0  # for so long a job that stopped others stops no more: KillWait and MessageTimeout
    names: tuple[str, ...] = ()  # of the nodes
    settings: Mapping[str, float] = field(default_factory=dict)  # of the policy, as SchedulerParameters say

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(self.sizes) or self.nodes * self.per_node

    @property
    def node_cpus(self) -> tuple[int, ...]:
        """CPUs of each node; none: not known, as where slurm.conf gives fewer than GPUs (1 where it says none)."""
        sizes = self.sizes or (self.per_node,) * len(self.cpus)
        return self.cpus if all(count >= gpus for count, gpus in zip(self.cpus, sizes, strict=False)) else ()

    def of_type(self, name: str) -> int:
        """Nodes that have GPUs of a type, as bits."""
        return sum(1 << node for node, each in enumerate(self.types) if name in each.replace(":", "+").split("+"))

    @property
    def mixed(self) -> tuple[dict[str, int], ...]:
        """Whole GPUs of each node by type, where a node has several types; else nothing."""
        if not any("+" in each for each in self.types):
            return ()
        sizes = self.sizes or (self.per_node,) * self.nodes
        cut = [cuts_of(divided, self.gpu)[1] for divided in self.divided] or [0] * self.nodes
        return tuple(
            {kind: int(count or size - less) for kind, _, count in (word.partition(":") for word in each.split("+"))}
            for each, size, less in zip(self.types, sizes, cut, strict=True)
        )

    @property
    def by_weight(self) -> tuple[int, ...]:
        """Nodes as bits: the lightest, then the next."""
        return tuple(
            sum(1 << node for node, weight in enumerate(self.heavy) if weight == each)
            for each in sorted(set(self.heavy))
        )

    @property
    def limits(self) -> list[Limits]:
        """Of all QOS and associations."""
        return [*(qos.limits for qos in self.qos.values()), *(each.limits for each in self.associations)]

    @property
    def limits_idle(self) -> bool:
        """Whether limits are told, and none of them holds."""
        return not self.limits_hold and any(limits != Limits() for limits in self.limits)

    def qualities(self, name: str, queue: str) -> list[Qos]:
        """Whose limits a job of a QOS meets in a partition: of each kind of limit, the first that sets it holds."""
        own, partition = self.qos.get(name), self.partition(queue)
        of_partition = self.qos.get(partition.qos) if partition else None
        order = (own, of_partition) if own and own.first else (of_partition, own)
        return list(dict.fromkeys(each for each in order if each))

    def partition(self, names: str) -> Partition | None:
        """The partition of a job's log: the first that is known of several; None where there is none."""
        for name in names.split(","):
            if name in self.partitions:
                return self.partitions[name]
        return self.partitions.get(self.default_partition)
