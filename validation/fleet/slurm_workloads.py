"""Workloads for a Slurm of eight nodes of eight GPUs: six kinds of site, jobs of 2 to 45 s with limits of minutes.

Seeds from 200 on are of the sixth, `layers`: limits of a partition's QOS, of a job's, of accounts and users at once.
Those from 300 on are of another machine, `unlike`: four nodes of 8 H100 and four of 4 A100, of other CPUs and weights.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

LAYERS, UNLIKE = 200, 300
KINDS = ("limits", "partitions", "qos", "preempt", "fair")
USERS = ("games", "news", "uucp", "backup", "list", "irc")  # who are there on every Debian
FAST = "bf_interval=1,bf_resolution=1,sched_min_interval=0,batch_sched_delay=0"
ALIKE = ("n[1-8] CPUs=64 Gres=gpu:8",)
ALL = "PartitionName=p Nodes=n[1-8] Default=YES MaxTime=INFINITE State=UP"


@dataclass(frozen=True)
class Job:
    """What is submitted when: words of sbatch."""

    submit_s: float
    lasts_s: float
    words: tuple[str, ...]


@dataclass(frozen=True)
class Workload:
    """A kind of site, its lines of slurm.conf, its words of sacctmgr, its jobs, and its nodes."""

    seed: int
    kind: str
    configuration: tuple[str, ...]
    accounting: tuple[tuple[str, ...], ...]
    jobs: tuple[Job, ...]
    nodes: tuple[str, ...] = ALIKE


def draw(seed: int, jobs: int) -> Workload:
    """The workload of a seed; its kind follows from the seed."""
    chance = random.Random(1000 + seed)
    kind = KINDS[seed % len(KINDS)] if seed < LAYERS else "layers" if seed < UNLIKE else "unlike"
    lines = [f"SchedulerParameters={FAST}", "PriorityType=priority/multifactor"]
    accounts = ("vision", "nlp", "robots")
    shares = [chance.choice((1, 2, 4)) for _ in accounts] if kind == "fair" else [1] * 3
    words: list[tuple[str, ...]] = [
        ("add", "account", name, "cluster=CLUSTER", f"fairshare={share}")
        for name, share in zip(accounts, shares, strict=True)
    ]
    owner = {user: accounts[at // 2] for at, user in enumerate(USERS)}
    for user, account in owner.items():
        share = chance.choice((1, 1, 3)) if kind == "fair" else 1
        words.append(("add", "user", user, f"account={account}", "cluster=CLUSTER", f"fairshare={share}"))
    qos_names: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ("p",)
    if kind == "limits":
        lines += [ALL, f"PriorityWeightAge={chance.choice((0, 1000))}", "PriorityMaxAge=00:10:00"]
    elif kind == "partitions":
        partitions = ("long", "short", "urgent")
        lines += [
            "PartitionName=long Nodes=n[1-8] Default=YES MaxTime=INFINITE State=UP PriorityJobFactor=1",
            "PartitionName=short Nodes=n[5-8] MaxTime=00:02:00 State=UP PriorityJobFactor=3",
            f"PartitionName=urgent Nodes=n[3-8] MaxTime=INFINITE State=UP PriorityTier={chance.choice((1, 3))} "
            "PriorityJobFactor=5",
            "PriorityWeightPartition=1000",
            f"PriorityWeightJobSize={chance.choice((0, 500))}",
            "PriorityWeightAge=1000",
            "PriorityMaxAge=00:10:00",
        ]
    elif kind == "qos":
        qos_names = ("low", "mid", "high")
        lines += [ALL, "AccountingStorageEnforce=limits,qos", "PriorityWeightQOS=1000", "PriorityWeightAge=300"]
        lines += ["PriorityMaxAge=00:10:00"]
        for name, priority in zip(qos_names, (1, 10, 100), strict=True):
            words.append(("add", "qos", f"{name}SEED", f"priority={priority}"))
        words.append(("modify", "qos", "lowSEED", "set", f"GrpTRES=gres/gpu={chance.choice((16, 24, 32))}"))
        words.append(("modify", "qos", "midSEED", "set", f"MaxTRESPerUser=gres/gpu={chance.choice((16, 24))}"))
        words.append(("modify", "qos", "highSEED", "set", f"MaxJobsPerUser={chance.choice((1, 2))}"))
    elif kind == "preempt":
        qos_names = ("scav", "prod")
        mode = chance.choice(("REQUEUE", "CANCEL"))
        lines += [ALL, "AccountingStorageEnforce=limits,qos", "PriorityWeightQOS=1000", "PreemptType=preempt/qos"]
        lines += [f"PreemptMode={mode}"]
        words += [("add", "qos", "scavSEED", "priority=1"), ("add", "qos", "prodSEED", "priority=100")]
        words.append(("modify", "qos", "prodSEED", "set", "preempt=scavSEED"))
    elif kind == "layers":
        qos_names, partitions = ("plain", "over"), ("p", "capped")
        lines += [ALL, "PartitionName=capped Nodes=n[1-8] MaxTime=INFINITE State=UP QOS=capSEED"]
        lines += ["AccountingStorageEnforce=limits,qos", "PriorityWeightAge=300", "PriorityMaxAge=00:10:00"]
        for name in ("plain", "over", "cap"):
            words.append(("add", "qos", f"{name}SEED"))
        most = {
            "cap": (f"GrpTRES=gres/gpu={chance.choice((16, 24))}", f"MaxJobsPerUser={chance.choice((2, 3))}"),
            "plain": (
                f"GrpTRES=gres/gpu={chance.choice((24, 40))}", f"MaxTRESPerUser=gres/gpu={chance.choice((16, 24))}",
            ),
            "over": ("flags=OverPartQOS", f"MaxTRESPerAccount=gres/gpu={chance.choice((16, 32))}", "MaxJobsPerUser=4"),
        }  # fmt: skip
        words += [("modify", "qos", f"{name}SEED", "set", *limits) for name, limits in most.items()]
        of = ("where", "cluster=CLUSTER", "set")
        words.append(("modify", "account", accounts[0], *of, f"GrpTRES=gres/gpu={chance.choice((16, 24))}"))
        words.append(("modify", "account", accounts[1], *of, f"GrpJobs={chance.choice((2, 4))}"))
        words.append(("modify", "user", USERS[4], *of, f"MaxJobs={chance.choice((1, 2))}"))
    elif kind == "unlike":
        partitions = ("p", "small")
        lines += [ALL, "PartitionName=small Nodes=n[5-8] MaxTime=INFINITE State=UP"]
        lines += ["AccountingStorageTRES=gres/gpu,gres/gpu:h100,gres/gpu:a100", "PriorityWeightAge=300"]
    else:
        lines += [ALL, "PriorityWeightFairshare=10000", "PriorityWeightAge=500", "PriorityMaxAge=00:10:00"]
        lines += ["PriorityDecayHalfLife=00:05:00", "PriorityCalcPeriod=00:01:00"]
    words = [tuple(word.replace("SEED", str(seed)) for word in each) for each in words]
    lines = [line.replace("SEED", str(seed)) for line in lines]
    if qos_names:
        names = ",".join(f"{name}{seed}" for name in qos_names)
        words += [("modify", "user", user, "where", "cluster=CLUSTER", "set", f"qos+={names}") for user in USERS]
    if kind == "unlike":
        weights = chance.choice(((1, 1), (20, 10), (10, 20)))
        large = f"n[1-4] CPUs=64 Weight={weights[0]} Gres=gpu:h100:8"
        nodes = large, f"n[5-8] CPUs=32 Weight={weights[1]} Gres=gpu:a100:4"
        return Workload(seed, kind, tuple(lines), tuple(words), tuple(_on_unlike(chance, jobs)), nodes)
    return Workload(seed, kind, tuple(lines), tuple(words), tuple(_jobs(chance, seed, jobs, partitions, qos_names)))


def _on_unlike(chance: random.Random, jobs: int) -> list[Job]:
    """Jobs of less than a node, of whole nodes of a type, and of 4 GPUs on each of several nodes of any."""
    now_s, made = 0.0, []
    for _ in range(jobs):
        now_s += chance.expovariate(1 / 1.7)
        lasts_s = round(min(45.0, max(2.0, chance.lognormvariate(2.1, 0.7))), 1)
        kind = chance.choice(("part", "part", "h100", "a100", "any"))
        partition = chance.choice(("p", "small")) if kind in ("part", "a100") else "p"
        words = ["-p", partition, "-t", str(chance.choice((1, 1, 2, 3))), f"--uid={chance.choice(USERS)}"]
        if kind == "part":
            of = chance.choice(("gpu", "gpu", "gpu:a100", "gpu:h100" if partition == "p" else "gpu"))
            words += ["-N", "1", f"--gres={of}:{chance.choice((1, 2, 4))}"]
        else:
            size = chance.choice((1, 1, 2, 2, 3, 4, 6) if kind == "any" else (1, 1, 2, 3, 4))
            each = {"h100": "gpu:h100:8", "a100": "gpu:a100:4", "any": "gpu:4"}[kind]
            words += ["-N", str(size), f"--gres={each}"]
        made.append(Job(round(now_s, 2), lasts_s, tuple(words)))
    return made


def _jobs(chance: random.Random, seed: int, jobs: int, partitions: tuple[str, ...], qos: tuple[str, ...]) -> list[Job]:
    now_s, made = 0.0, []
    for _ in range(jobs):
        now_s += chance.expovariate(1 / 1.7)
        lasts_s = round(min(45.0, max(2.0, chance.lognormvariate(2.1, 0.7))), 1)
        partition = chance.choice(partitions)
        most = {"short": 4, "urgent": 6}.get(partition, 8)
        minutes = chance.choice((1, 1, 2) if partition == "short" else (1, 1, 2, 3))
        words = ["-p", partition, "-t", str(minutes), f"--uid={chance.choice(USERS)}"]
        if chance.random() < 0.4:
            words += ["-N", "1", f"--gres=gpu:{chance.choice((1, 2, 4))}"]
        else:
            size = min(chance.choice((1, 1, 1, 2, 2, 4, 4, 6, 8)), most)
            if qos and qos[0] in ("low", "plain"):
                size = min(size, 2)  # what its limits let run
            words += ["-N", str(size), "--gres=gpu:8"]
        if qos:
            words.append(f"--qos={chance.choice(qos)}{seed}")
        made.append(Job(round(now_s, 2), lasts_s, tuple(words)))
    return made
