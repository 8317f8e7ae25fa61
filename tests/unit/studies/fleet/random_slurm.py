"""Random jobs on random Slurm clusters, run by the policy on the clock and by its compiled loops.

NUMBA_DISABLE_JIT=1 python random_slurm.py 20     prints `equal` where 20 of them start every job alike
"""

import random
import sys
from dataclasses import replace

from windtunnel.studies.fleet.clock.clock import Clock
from windtunnel.studies.fleet.clock.decision import Owner
from windtunnel.studies.fleet.clock.running import NS, Running
from windtunnel.studies.fleet.clock.work import Rigid
from windtunnel.studies.fleet.policies.slurm.cluster import Association, Cluster, Limits, Partition, Qos, Weights
from windtunnel.studies.fleet.policies.slurm.policy import Slurm
from windtunnel.studies.fleet.policies.slurm.whole import can_run, run_whole

PER_NODE = 4


def draw(seed: int, count: int) -> tuple[Slurm, int, list[Running]]:
    """A policy, nodes and so many jobs."""
    chance = random.Random(seed)
    nodes = chance.choice((3, 5, 8, 70 if count > 20 else 6))
    whole = (1 << nodes) - 1
    partitions = {
        "all": Partition("all", whole, most_s=chance.choice((None, 90.0))),
        "some": Partition("some", chance.getrandbits(nodes) or 1, tier=chance.choice((1, 2)), factor=3, qos="mid"),
    }
    qos = {
        "low": Qos("low", 1, Limits(gpus=chance.choice((None, 4 * nodes // 2)), user_jobs=2)),
        "mid": Qos("mid", 10, Limits(user_gpus=chance.choice((None, 6)), account_jobs=3)),
        "": Qos("", 5, first=seed % 3 == 0, limits=Limits(user_gpus=chance.choice((None, 8)))),
    }
    people = [("a", "ann"), ("a", "abe"), ("b", "bob")]
    associations = (
        Association("a", parent="root", share=chance.choice((1, 3)), limits=Limits(gpus=chance.choice((None, 8)))),
        Association("b", parent="root"),
        *(Association(account, user, account) for account, user in people),
    )
    weights = chance.choice((Weights(), Weights(qos=100, partition=50, size=30), Weights(fairshare=1000, age=50)))
    cluster = Cluster(
        nodes=nodes,
        per_node=PER_NODE,
        sizes=chance.choice(((), (*(chance.choice((1, 2, PER_NODE)) for _ in range(nodes - 1)), PER_NODE))),
        cpus=chance.choice(((), (16,) * nodes, tuple(chance.choice((8, 16)) for _ in range(nodes)))),
        partitions=partitions if chance.random() < 0.7 else {},
        default_partition="all",
        qos=qos if chance.random() < 0.6 else {},
        associations=associations,
        multifactor=chance.random() < 0.6,
        weights=weights,
        most_age_s=100.0,
        half_life_s=60.0,
        calculated_every_s=20.0,
    )
    policy = Slurm(
        PER_NODE,
        backfill_interval_s=chance.choice((1.0, 5.0, 30.0)),
        resolution_s=chance.choice((1.0, 10.0)),
        window_s=chance.choice((60.0, 1e5)),
        depth=chance.choice((3, 500)),
        depth_user=chance.choice((0, 2)),
        depth_partition=chance.choice((0, 0, 4)),
        main_depth=chance.choice((0, 2, 100)),
        reserved_after_s=chance.choice((0.0, 0.0, 7.0)),
        batch_s=chance.choice((0.0, 4.0, 30.0)),
        completing_s=chance.choice((0.0, 0.4, 3.0)),
        cluster=cluster,
    )
    if not policy.recalculates:
        policy = replace(policy, deferred=chance.choice((0, 0, 1)))
    jobs, now_ns = [], 0
    for at in range(count):
        now_ns += int(chance.expovariate(nodes / 30) * NS) if chance.random() < 0.8 else 0
        lasts_s = round(chance.lognormvariate(2.5, 0.8), 3)
        gpus = chance.choice((1, 2, 3, 4, 5, 8, 4 * (nodes // 3 or 1)))
        account, user = chance.choice(people)
        owner = Owner(user, account, chance.choice(("low", "mid", "")), float(gpus), chance.choice((0, 1, 5, 16)))
        owner = replace(owner, nodes=chance.choice((0, 0, 1, 2, 3)))
        limit_s = chance.choice((None, lasts_s * chance.uniform(1, 3), lasts_s * 0.7))
        queue = chance.choice(("all", "some", "some,all", ""))
        priority = float(chance.choice((0, 0, 5)))
        jobs.append(Running(at, now_ns, gpus, Rigid(lasts_s), None, limit_s, priority, queue, owner))
    chance.shuffle(jobs)
    for at, job in enumerate(jobs):
        job.index = at
    return policy, nodes, jobs


def differences(seed: int, count: int = 40) -> list[tuple[int, int | None, int | None]]:
    """(job, start on the clock, start by the loops) where they differ."""
    policy, nodes, jobs = draw(seed, count)
    assert can_run(policy, jobs)
    Clock(jobs, list(policy.cluster.sizes) or [PER_NODE] * nodes, policy).run()
    again = draw(seed, count)[2]
    run_whole(policy, again, nodes)
    pairs = zip(jobs, again, strict=True)
    return [(a.index, a.start_ns, b.start_ns) for a, b in pairs if (a.start_ns, a.end_ns) != (b.start_ns, b.end_ns)]


if __name__ == "__main__":
    found = {seed: differences(seed, 16) for seed in range(int(sys.argv[1]))}
    print({seed: each for seed, each in found.items() if each} or "equal")
