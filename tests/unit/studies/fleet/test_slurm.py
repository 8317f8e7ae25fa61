"""Slurm's backfill: planned by limits, run by the truth; nobody who comes later delays anybody."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import InputFileError, SpecError
from windtunnel.questions.asked.fleet.study import Fleet
from windtunnel.studies.fleet.clock.clock import Clock
from windtunnel.studies.fleet.clock.running import NS, Running
from windtunnel.studies.fleet.clock.work import Rigid
from windtunnel.studies.fleet.emit import slurm_files
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.policies.own import Own
from windtunnel.studies.fleet.policies.slurm.cluster import Association, Cluster, Weights
from windtunnel.studies.fleet.policies.slurm.files import read_cluster
from windtunnel.studies.fleet.policies.slurm.nodes import Free, Future, Gang, Holder, Space
from windtunnel.studies.fleet.policies.slurm.order import fair_tree
from windtunnel.studies.fleet.policies.slurm.policy import Slurm
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import parse_site
from windtunnel.studies.fleet.study import answer

JOBS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40), st.integers(1, 8)), min_size=1, max_size=14)
EACH_SECOND = Slurm(0, backfill_interval_s=1.0, resolution_s=1.0, batch_s=0.0)


def starts(jobs: list[tuple[int, int, int]], extra: int = 0) -> list[int | None]:
    """Jobs of (submission, duration, GPUs) on 8 GPUs; limits are durations and so much more."""
    running = [
        Running(at, submit * NS, gpus, Rigid(float(lasts)), limit_s=float(lasts + extra))
        for at, (submit, lasts, gpus) in enumerate(jobs)
    ]
    Clock(running, [8], EACH_SECOND).run()
    return [job.start_ns for job in running]


@given(JOBS)
@settings(max_examples=40)
def test_with_true_limits_the_last_job_delays_nobody(jobs: list[tuple[int, int, int]]) -> None:
    jobs = sorted(jobs)
    assert starts(jobs)[:-1] == starts(jobs[:-1])


@given(JOBS, st.integers(0, 30))
@settings(max_examples=40)
def test_every_job_runs_and_no_gpu_is_given_twice(jobs: list[tuple[int, int, int]], extra: int) -> None:
    began = starts(sorted(jobs), extra)
    assert None not in began
    spans = [(begin, begin + lasts * NS, gpus) for begin, (_, lasts, gpus) in zip(began, sorted(jobs), strict=True)]
    for now, _, _ in spans:
        assert sum(gpus for begin, end, gpus in spans if begin <= now < end) <= 8


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9), st.integers(1, 15)), max_size=6), st.integers(1, 9))
def test_nodes_that_no_reservation_holds_are_those_of_trying_every_second(
    taken: list[tuple[int, int, int]], lasts: int
) -> None:
    space, free = Space(0, 15), [15] * 60
    for begin, length, nodes in taken:
        space.reserve(begin, begin + length, nodes)
        for second in range(begin, begin + length):
            free[second] &= ~nodes
    for begin in range(20):
        among = space.among(15, begin, begin + lasts)[0]
        tried = 15
        for each in free[
            begin : begin + lasts + 1
        ]:  # Slurm takes a reservation that begins at the end for one meanwhile
            tried &= each
        assert among == tried
        assert space.overlaps(6, begin, begin + lasts) == any(6 & ~each for each in free[begin : begin + lasts])


def test_limits_decide_who_is_backfilled(tmp_path: Path) -> None:
    """8 GPUs: c takes 5 s, but asked for 100; so it waits for the gap before b; d asked for 10 and goes."""
    (tmp_path / "jobs.csv").write_text(
        "job,submit_s,gpus,duration_s,limit_s\na,0,4,20,20\nb,1,8,10,30\nc,2,4,5,100\nd,3,4,5,10\n"
    )
    jobs = read_jobs(tmp_path / "jobs.csv")

    def run(jobs):
        outcome = simulate(jobs, parse_site("gpu:1x8"), "slurm", Options(decider=replace(EACH_SECOND, per_node=8)))
        return outcome.start_s.tolist()

    assert run(jobs) == [0, 20, 30, 3]
    blind = replace(jobs, columns={key: value for key, value in jobs.columns.items() if key != "limit_s"})
    assert run(blind) == [0, 20, 2, 7]  # without limits what a job takes is known


def test_priority_of_the_log_comes_before_submission(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("job,submit_s,gpus,duration_s,priority\na,0,8,10,1\nb,1,8,10,1\nc,2,8,10,5\n")
    outcome = simulate(read_jobs(tmp_path / "jobs.csv"), parse_site("gpu:1x8"), "slurm", Options())
    assert np.argsort(outcome.start_s).tolist() == [0, 2, 1]


CONF = """\
NodeName=n[1-4] CPUs=64 Gres=gpu:h100:8 State=UNKNOWN
PartitionName=DEFAULT MaxTime=1-00:00:00
PartitionName=wide Nodes=ALL Default=YES
PartitionName=fast Nodes=n[3-4] PriorityTier=5 MaxTime=00:10:00
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,bf_resolution=1,bf_max_job_test=50
PriorityType=priority/multifactor
PriorityWeightQOS=1000
PreemptType=preempt/qos
PreemptMode=REQUEUE
AccountingStorageEnforce=limits,qos
"""
QOS = """\
Name|Priority|GraceTime|Preempt|PreemptMode|GrpTRES|MaxTRESPU|MaxJobsPU
low|1|00:00:00||cluster|gres/gpu=16||
high|10|00:00:00|low|cluster|||2
"""
ASSOC = """\
Account|ParentName|User|Share
root|||1
a|root||3
a||ann|1
a||abe|1
b|root||1
b||bob|1
"""


def site_of(folder: Path, conf: str = CONF):
    for name, text in (("slurm.conf", conf), ("qos.txt", QOS), ("assoc.txt", ASSOC)):
        (folder / name).write_text(text)
    (folder / "site.yaml").write_text("slurm: [slurm.conf, qos.txt, assoc.txt]\n")
    return parse_site(str(folder / "site.yaml"))


def run_table(folder: Path, rows: str, conf: str = CONF, **options):
    (folder / "jobs.csv").write_text("job,submit_s,gpus,duration_s,limit_s,user,account,queue,qos\n" + rows)
    return simulate(read_jobs(folder / "jobs.csv"), site_of(folder, conf), "slurm", Options(**options))


def test_its_own_files_are_read(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    cluster = read_cluster(site.slurm)
    assert (site.nodes, site.per_node, cluster.cpus) == (4, 8, (64,) * 4)
    assert {name: (each.nodes, each.tier, each.most_s) for name, each in cluster.partitions.items()} == {
        "wide": (0b1111, 1, 86_400.0),
        "fast": (0b1100, 5, 600.0),
    }
    assert (cluster.default_partition, cluster.weights.qos, cluster.preempt) == ("wide", 1000.0, "REQUEUE")
    assert cluster.settings == {"backfill_interval_s": 1.0, "resolution_s": 1.0, "depth": 50.0}
    assert cluster.qos["low"].limits.gpus == 16
    assert (cluster.qos["high"].stops, cluster.qos["high"].limits.user_jobs) == ({"low"}, 2)
    assert [each.share for each in cluster.associations if not each.user] == [1, 3, 1]


@pytest.mark.parametrize("text", ["ClusterName=x\n", "NodeName=a CPUs=8\n"])
def test_nodes_that_cannot_be_taken_are_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(text)
    with pytest.raises(InputFileError, match=r"slurm\.conf"):
        parse_site(str(tmp_path / "slurm.conf"))


def test_a_partition_holds_its_jobs_and_a_tier_comes_first(tmp_path: Path) -> None:
    rows = "hold,0,32,10,20,ann,a,wide,high\nlate,1,16,5,20,ann,a,wide,high\nfirst,2,16,5,20,bob,b,fast,high\n"
    outcome = run_table(tmp_path, rows)
    assert outcome.start_s.tolist() == [0, 10, 10]  # both fit: fast on n3-4, wide on n1-2
    small = run_table(tmp_path, rows.replace("late,1,16", "late,1,32"))
    assert small.start_s.tolist() == [0, 15, 10]  # the higher tier before the older job


def test_limits_of_a_qos_hold_and_block_nobody(tmp_path: Path) -> None:
    rows = "".join(f"low{at},0,8,10,20,ann,a,wide,low\n" for at in range(4)) + "other,1,8,4,20,bob,b,wide,high\n"
    assert run_table(tmp_path, rows).start_s.tolist() == [0, 0, 10, 10, 1]
    jobs = "".join(f"j{at},0,1,10,20,ann,a,wide,high\n" for at in range(3))
    assert run_table(tmp_path, jobs).start_s.tolist() == [0, 0, 10]


OF_A_JOB = "Name|MaxTRES|MaxTRESPerNode|MinTRES\nlow|gres/gpu=16|gres/gpu=4|\nhigh|||gres/gpu=4\nplain|||\n"
OF_ACCOUNTS = "Account|ParentName|User|Share|MaxTRES|MaxTRESPerNode\nroot|||1||\na|root||1|gres/gpu=8|gres/gpu=6\n"
OF_ACCOUNTS += "a||ann|1|gres/gpu=24|\na||abe|1||\n"


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("17,ann,a,wide,low,", "asks gres/gpu=17, and MaxTRES of QOS low is 16: Slurm lets it wait (QOSMaxGRESPerJob)"),
        ("16,ann,a,wide,low,4", ""),  # 16 is above the account's 8: the first limit that is set holds
        ("6,ann,a,wide,low,", "a node, and MaxTRESPerNode of QOS low is 4: Slurm lets it wait (QOSMaxGRESPerNode)"),
        ("9,ann,a,wide,low,2", ""),  # 4.5 a node, a fraction left off
        ("3,ann,a,wide,high,", "gres/gpu=3, and MinTRES of QOS high is 4: Slurm lets it wait (QOSMinGRES)"),
        ("24,ann,a,wide,plain,4", ""),  # the user's own before the account's
        ("25,ann,a,wide,plain,4", "MaxTRES of association a ann is 24: Slurm lets it wait (AssocMaxGRESPerJob)"),
        ("9,abe,a,wide,plain,2", "MaxTRES of association a is 8"),
        ("8,abe,a,wide,plain,1", "asks gres/gpu=8 a node, and MaxTRESPerNode of association a is 6"),
        ("9,who,b,wide,none,", ""),
    ],
)
def test_what_a_job_by_itself_may_ask_is_held_to(row: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("job,submit_s,duration_s,gpus,user,account,queue,qos,nodes\nj,0,10," + row)
    for name, text in (("slurm.conf", CONF), ("qos.txt", OF_A_JOB), ("assoc.txt", OF_ACCOUNTS)):
        (tmp_path / name).write_text(text)
    (tmp_path / "site.yaml").write_text("slurm: [slurm.conf, qos.txt, assoc.txt]\n")
    site = parse_site(str(tmp_path / "site.yaml"))
    outcome = simulate(read_jobs(tmp_path / "jobs.csv"), site, "slurm", Options())
    assert why in outcome.why.get(0, "")
    assert bool(outcome.why) == bool(why)
    (tmp_path / "slurm.conf").write_text(CONF.replace("=limits,qos", "=associations"))
    free = simulate(read_jobs(tmp_path / "jobs.csv"), parse_site(str(tmp_path / "site.yaml")), "slurm", Options())
    assert not free.why
    files = slurm_files(site.slurm_cluster, site)
    (tmp_path / "out").mkdir()
    for name, text in files.items():
        (tmp_path / "out" / name).write_text(text)
    again = read_cluster([tmp_path / "out" / name for name in files if name.endswith((".txt", ".conf"))])
    assert {name: each.limits for name, each in again.qos.items()} == {
        name: each.limits for name, each in site.slurm_cluster.qos.items()
    }
    assert again.associations == site.slurm_cluster.associations


LAYERS = CONF.replace("MaxTime=00:10:00", "MaxTime=00:10:00 QOS=cap") + "PartitionName=open Nodes=ALL\n"
OF_LAYERS = """\
Name|Flags|GrpTRES|MaxJobsPU|MaxTRESPA
cap||gres/gpu=8|3|
plain||gres/gpu=12||
over|DenyOnLimit,OverPartQOS|gres/gpu=12|1|
free||||gres/gpu=20
"""
UNDER_LAYERS = (
    "Account|ParentName|User|Share|GrpTRES|MaxJobs\nroot|||1||\na|root||1|gres/gpu=16|\na||ann|1||2\na||abe|1||\n"
)


@pytest.mark.parametrize(
    ("rows", "together"),
    [
        (["4,ann,fast,plain"] * 3, 2),  # 8 of the partition's QOS, though the job's has 12
        (["4,ann,fast,over", "4,abe,fast,over"] * 2, 2),  # with its flag the job's own, one of a user: not 3
        (["4,ann,fast,over", "4,abe,fast,free", "4,abe,fast,free"], 2),  # its 4 count against the partition's 8
        (["4,ann,fast,free", "4,ann,open,plain", "4,ann,open,plain", "4,ann,open,plain"], 2),  # MaxJobs of ann is 2
        (["1,ann,fast,free"] * 4, 3),  # 3 jobs of a user by the QOS: the association's 2 gives way
        (["5,abe,open,free"] * 5, 3),  # no QOS sets GrpTRES: the account's 16 holds, of 20 of MaxTRESPA
        (["4,abe,open,cap"] * 3, 2),  # the same QOS of a job and of a partition is one count
        (["4,abe,open,cap", "4,abe,fast,free", "4,abe,fast,free"], 2),
    ],
)
def test_of_limits_in_layers_the_first_that_sets_one_holds(rows: list[str], together: int, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(
        "job,submit_s,duration_s,limit_s,account,gpus,user,queue,qos\n"
        + "".join(f"j{at},0,10,20,a,{row}\n" for at, row in enumerate(rows))
    )
    for name, text in (("slurm.conf", LAYERS), ("qos.txt", OF_LAYERS), ("assoc.txt", UNDER_LAYERS)):
        (tmp_path / name).write_text(text)
    (tmp_path / "site.yaml").write_text("slurm: [slurm.conf, qos.txt, assoc.txt]\n")
    site = parse_site(str(tmp_path / "site.yaml"))
    outcome = simulate(read_jobs(tmp_path / "jobs.csv"), site, "slurm", Options())
    assert (outcome.start_s == 0).sum() == together
    assert "|DenyOnLimit" not in slurm_files(site.slurm_cluster, site)["qos.txt"]
    assert slurm_files(site.slurm_cluster, site)["qos.txt"].count("OverPartQOS") == 1


@pytest.mark.parametrize("nodes", ["inf", "1e400"])
def test_endless_nodes_of_a_job_are_one_line(nodes: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(f"job,submit_s,duration_s,gpus,qos,nodes\nj,0,10,4,low,{nodes}\n")
    for name, text in (("slurm.conf", CONF), ("qos.txt", OF_A_JOB)):
        (tmp_path / name).write_text(text)
    (tmp_path / "site.yaml").write_text("slurm: [slurm.conf, qos.txt]\n")
    site = parse_site(str(tmp_path / "site.yaml"))
    with pytest.raises(SpecError, match=rf"jobs.csv line 2: nodes of j = '{nodes}': give the number of its nodes"):
        simulate(read_jobs(tmp_path / "jobs.csv"), site, "slurm", Options())


def test_a_requeued_job_loses_what_it_did_and_waits(tmp_path: Path) -> None:
    rows = "low,0,16,30,60,ann,a,wide,low\nmore,0,16,40,60,ann,a,wide,high\nhigh,10,16,20,60,bob,b,wide,high\n"
    outcome = run_table(tmp_path, rows)
    assert outcome.start_s.tolist() == [0, 0, 10]
    assert outcome.restarts.tolist() == [1, 0, 0]
    assert outcome.end_s[0] == 10 + 121 + 30  # its credential's life, then all of it again
    ended = run_table(tmp_path, rows, CONF.replace("=REQUEUE", "=CANCEL"))
    assert (ended.end_s[0], ended.restarts[0]) == (10, 0)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9)), min_size=2, max_size=3), st.data())
def test_a_better_account_stands_before_a_worse_one(accounts: list[tuple[int, int]], data: st.DataObject) -> None:
    rows = [Association("root")]
    usage = {}
    for at, (share, users) in enumerate(accounts):
        rows.append(Association(f"a{at}", parent="root", share=share))
        for user in range(users % 3 + 1):
            rows.append(Association(f"a{at}", f"u{at}{user}", share=data.draw(st.integers(1, 3))))
            usage[f"a{at}", f"u{at}{user}"] = data.draw(st.floats(1, 100))
    factors = fair_tree(tuple(rows), usage)
    assert max(factors.values()) == 1

    def level(at: int) -> float:
        return accounts[at][0] / sum(used for (account, _), used in usage.items() if account == f"a{at}")

    for one in range(len(accounts)):
        for other in range(len(accounts)):
            if level(one) > level(other):
                mine, theirs = ([f for (name, _), f in factors.items() if name == f"a{at}"] for at in (one, other))
                assert min(mine) > max(theirs)


def test_ends_that_are_close_are_foreseen_together() -> None:
    """Two nodes end at limits of 40 and 55 s: a job for one of them is foreseen at the second."""
    free = Free([0, 0], 8)
    holders = [Holder(40 * NS, ((0, 8),), 1), Holder(55 * NS, ((1, 8),), 2)]
    assert Future(0, free, holders).start(Gang(8, 8), 3)[0] == 55 * NS
    assert Future(0, free, holders, 0).start(Gang(8, 8), 3)[0] == 40 * NS


def test_the_fullest_node_is_that_of_the_most_cpus_in_use(tmp_path: Path) -> None:
    """Jobs of one CPU and of 1 and 4 GPUs, as in workload 46 (`slurm_2026_12_01`): Slurm counts CPUs, not GPUs."""
    free = Free([8, 8, 8], 8, cpus=[64] * 3)
    for node, gpus, cpus in ((0, 1, 1), (1, 4, 1)):
        free.add(((node, gpus),), -1)
        free.load(((node, gpus),), cpus)
    assert free.choose(Gang(1, 8), 0b111) == ((0, 1),)  # as many CPUs on both: the first
    free.load(((1, 4),), 3)
    assert free.choose(Gang(1, 8), 0b111) == ((1, 1),)
    free.load(((1, 4),), 3, -1)
    assert (free.busy, free.copy().busy) == ([1, 1, 0], [1, 1, 0])
    for cpus in (0, 96):  # where nobody says the node's CPUs: by GPUs, whatever the log says of jobs'
        plain = Free([7, 4, 8], 8)
        for node, gpus in ((0, 1), (1, 4)):
            plain.load(((node, gpus),), cpus // (node + 1) ** 9)
        assert plain.copy().choose(Gang(1, 8), 0b111) == ((1, 1),)
    (tmp_path / "slurm.conf").write_text(CONF.replace("CPUs=64 ", ""))
    silent = read_cluster([tmp_path / "slurm.conf"])
    assert (silent.cpus, silent.node_cpus) == ((1,) * 4, ())


def test_plans_are_in_whole_seconds(tmp_path: Path) -> None:
    """As Slurm 22.05 planned job 11 of workload 45: what begins as a reservation ends waits for no more nodes."""
    conf = CONF.replace("fast Nodes=n[3-4]", "fast Nodes=n[2-3]")
    rows = (
        "a,1.5,8,170,180,ann,a,wide,\n"  # on n1, foreseen to 181, not to 181.5
        "b,1.6,16,50,60,ann,a,wide,\n"  # on n2 and n3
        "c,2.5,16,50,120,abe,a,fast,\n"  # reserves n2 and n3 from 61 to 181
        "d,2.6,16,20,180,bob,b,wide,\n"  # n1 and n4 from 181 on; a half second later it would look again, and take n2
        "e,2.7,8,20,180,bob,b,wide,\n"  # would hold n4 to 183
    )
    assert run_table(tmp_path, rows, conf).start_s[4] > 4


def test_windows_of_ends_are_aligned_to_the_half_minutes_of_slurm_s_clock() -> None:
    """From an end at 40 s the window goes to 60 and 30 s on; where Slurm's clock is 10 s ahead, to 50 and 30 s on."""
    holders = [Holder(40 * NS, ((0, 8),), 1), Holder(85 * NS, ((1, 8),), 2)]
    assert Future(0, Free([0, 0], 8), holders).start(Gang(8, 8), 3)[0] == 85 * NS
    assert Future(0, Free([0, 0], 8), holders, epoch_ns=10 * NS).start(Gang(8, 8), 3)[0] == 40 * NS


def test_a_job_has_the_priority_of_its_submission_until_the_next_calculation() -> None:
    """The main loop sees the second after .1 s and the third after 9.9: neither is older for that."""
    cluster = Cluster(nodes=1, per_node=8, multifactor=True, weights=Weights(age=1000), most_age_s=600.0)
    policy = Slurm(8, cluster=cluster, main_interval_s=10.0, backfill_interval_s=1000.0)
    jobs = [Running(at, round(submit_s * NS), 8, Rigid(25.0)) for at, submit_s in enumerate((0.0, 9.9, 10.1))]
    Clock(jobs, [8], policy).run()
    assert jobs[1].start_ns < jobs[2].start_ns


def test_a_job_elsewhere_that_ends_in_the_window_draws_in_the_next_here() -> None:
    """As Slurm 22.05 planned job 30 of workload 24 (`slurm_2026_11_29`): at 172.96 s, not at 112.96 s."""
    free = Free([0, 0, 8], 8)
    holders = [Holder(end * NS, ((node, 8),), 1 << node) for end, node in ((113, 0), (129, 2), (173, 1))]
    assert Future(75 * NS, free, holders).start(Gang(8, 8), 0b011)[0] == 173 * NS
    assert Future(75 * NS, free, [holders[0], holders[2]]).start(Gang(8, 8), 0b011)[0] == 113 * NS


def test_nodes_that_come_back_after_the_time_that_was_tried_are_tried_later() -> None:
    space = Space(0, 0b11)
    space.reserve(50 * NS, 100 * NS, 0b01)
    assert space.among(0b11, 0, 60 * NS) == (0b10, 100 * NS)
    assert space.among(0b11, 0, 40 * NS) == (0b11, None)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=6), st.integers(1, 24), st.integers(1, 63))
def test_a_choice_of_nodes_fits_and_is_found_where_there_is_one(free: list[int], gpus: int, among: int) -> None:
    nodes = Free(free.copy(), 8)
    placed = nodes.choose(Gang(gpus, 8), among)
    whole, rest = divmod(gpus, 8)
    usable = [count for node, count in enumerate(free) if among >> node & 1]
    idle = usable.count(8)
    possible = idle >= whole and (not rest or sum(count >= rest for count in usable) > whole * (whole <= idle))
    assert (placed is not None) == (possible if whole or rest else True)
    if placed is not None:
        assert sum(count for _, count in placed) == gpus
        assert all(among >> node & 1 and free[node] >= count for node, count in placed)
        assert len({node for node, _ in placed}) == len(placed)


def test_policies_that_pay_no_heed_to_priorities_are_named(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("job,submit_s,gpus,duration_s,priority\na,0,8,10,1\nb,1,8,10,2\n")
    question = Fleet(trace=str(path), cluster="gpu:1x8", policy="fifo,slurm,srtf")
    assert answer(question).warnings == ("fifo, srtf pay no heed to the priorities of the log",)


def test_limits_that_do_not_hold_and_a_policy_that_is_not_slurm_are_said(tmp_path: Path) -> None:
    site_of(tmp_path, CONF.replace("=limits,qos", "=associations"))
    trace = tmp_path / "jobs.csv"
    trace.write_text("job,submit_s,start_s,gpus,duration_s,qos\na,0,0,32,10,low\nb,1,10,8,10,low\n")
    question = Fleet(trace=str(trace), cluster=str(tmp_path / "site.yaml"))
    plain = answer(question)
    assert plain.notes[0] == "--cluster has Slurm's files: --policy slurm does what they say, fifo does not"
    assert not any("do not hold" in line for line in plain.warnings)
    changed = answer(replace(question, policy="slurm", change=("slurm.settings.depth=9",)))
    assert [line.partition(":")[0] for line in changed.warnings] == ["limits of QOS and associations do not hold"]
    assert sum("is nearest to the log" in note for note in changed.notes) == 1
    held = answer(replace(question, policy="slurm", change=("slurm.limits_hold=true",)))
    assert not any(line.startswith("changed: limits") for line in held.warnings)


def starts_after_stops(folder: Path, rows: str, seconds: float) -> list[float]:
    (folder / "jobs.csv").write_text("job,submit_s,gpus,duration_s,limit_s,user,account,queue,qos\n" + rows)
    policy = Own("slurm", "slurm", {"stopped_completing_s": seconds})
    return simulate(read_jobs(folder / "jobs.csv"), site_of(folder), policy, Options()).start_s.tolist()


def test_a_preemptor_is_planned_as_if_whom_it_may_stop_were_gone(tmp_path: Path) -> None:
    """As Slurm 22.05 planned job 39 of workload 68: what begins before 60 s may not last beyond it."""
    rows = (
        "kept,0,16,50,60,ann,a,wide,\n"  # on two nodes, until 60 s
        "low,0,8,900,1000,bob,b,wide,low\n"  # on the third
        "high,5,32,10,20,abe,a,wide,high\n"  # wants all four: at 60 s, as `low` can be stopped at any time
        "short,6,8,20,40,bob,b,wide,\n"  # over by 46 s: starts on the fourth at once
        "long,30,8,20,100,bob,b,wide,\n"  # would keep the fourth beyond 60 s
    )
    begins = starts_after_stops(tmp_path, rows, 0)
    assert begins[2] == 50  # `kept` ended early, and `low` is stopped then
    assert begins[3] == 6
    assert begins[4] >= 60


def test_nothing_starts_where_a_stopped_job_is_still_ending(tmp_path: Path) -> None:
    """`low` leaves its half of a node 4 s after it was stopped; the other half is free at 6 s, and nobody's until 9."""
    rows = (
        "kept,0,24,900,1000,ann,a,wide,\n"
        "low,0,4,90,100,bob,b,wide,low\n"
        "other,0,4,6,10,ann,a,wide,\n"
        "high,5,4,10,20,abe,a,wide,high\n"
    )
    assert starts_after_stops(tmp_path, rows, 4)[3] == 9


def test_a_requeued_job_may_start_again_from_when_its_nodes_are_back(tmp_path: Path) -> None:
    rows = "low,0,16,30,60,ann,a,wide,low\nmore,0,16,40,60,ann,a,wide,high\nhigh,10,16,20,60,bob,b,wide,high\n"
    path = tmp_path / "jobs.csv"
    path.write_text("job,submit_s,gpus,duration_s,limit_s,user,account,queue,qos\n" + rows)
    policy = Own("slurm", "slurm", {"stopped_completing_s": 3.7})
    outcome = simulate(read_jobs(path), site_of(tmp_path), policy, Options())
    assert outcome.end_s[0] == 13 + 121 + 30  # nodes are back at 13.7 s; whole seconds count
