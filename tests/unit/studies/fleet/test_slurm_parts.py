"""Parts of GPUs under Slurm: slices that are cut beforehand, shares, limits of their TRES, and the files that tell."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_parts import check, columns, running, write

from windtunnel.errors import UserError
from windtunnel.studies.fleet.clock.clock import Clock
from windtunnel.studies.fleet.clock.running import NS
from windtunnel.studies.fleet.emit import slurm_files
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.parts.devices import BoardOfParts
from windtunnel.studies.fleet.parts.profile import UNITS, cuts_of, profiles_of
from windtunnel.studies.fleet.policies.slurm.cluster import Cluster
from windtunnel.studies.fleet.policies.slurm.gres import Gres
from windtunnel.studies.fleet.policies.slurm.nodes import Gang
from windtunnel.studies.fleet.policies.slurm.policy import Slurm
from windtunnel.studies.fleet.policies.table import names_of
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import parse_site
from windtunnel.studies.fleet.speeds.predicted import predicted_speeds
from windtunnel.studies.fleet.study import fleet

CUT = ({"1g.10gb": 7, "3g.40gb": 2}, {})  # two GPUs of the first node, none of the second
SITE = Cluster(nodes=2, per_node=4, gpu="h100-sxm", divided=CUT, shares=4)
TEXTS = ("", "", "0.5", "0.25", "1g.10gb", "1g.10gb", "3g.40gb")
ROWS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 20), st.integers(1, 4), st.sampled_from(TEXTS)),
    min_size=1,
    max_size=20,
)


def possible(rows: list[tuple[int, int, int, str]]) -> list[tuple[int, int, int, str]]:
    """With no more parts than there are: two slices of 3g, and shares on two nodes."""
    return [(submit, lasts, min(count, 2) if text else count, text) for submit, lasts, count, text in rows]


@given(rows=ROWS, leaves_s=st.sampled_from([0.0, 3.0]))
@settings(max_examples=40, deadline=None)
def test_no_part_is_given_twice(rows: list[tuple[int, int, int, str]], leaves_s: float) -> None:
    """Slices only where they are cut, whole jobs only on GPUs that are not; everything ends."""
    rows = [*possible(rows), (0, 1, 1, "0.5")]
    jobs = running(rows)
    policy = Slurm(4, UNITS, completing_s=leaves_s, backfill_interval_s=5.0, cluster=SITE)
    clock = Clock(jobs, [4 * UNITS] * 2, policy)
    choose, cuts = type(policy).choose, cuts_of(CUT[0], "h100-sxm")[0]

    def looks(board):
        for move in choose(policy, board):
            yield move
            assert isinstance(board, BoardOfParts)
            check(board, [4 * UNITS] * 2)
            whole = [0, 0]
            for job in board.running.values():
                for node, number, start in board.spots.get(job.index, ()):
                    assert (node, (number, start) in cuts[job.part]) == (0, True) if job.part.slices else number < 0
                for node, units in job.placement if job.part is None else ():
                    whole[node] += units // UNITS
            shared = [{number for job in board.running.values() for at, number, _ in board.spots.get(job.index, ())
                       if at == node and number < 0} for node in (0, 1)]  # fmt: skip
            assert whole[0] + len(shared[0]) <= 2
            assert whole[1] + len(shared[1]) <= 4

    object.__setattr__(policy, "choose", looks)
    clock.run()
    assert all(job.end_ns is not None for job in jobs)
    assert all(job.gpu_ns == lasts * NS * job.gpus for job, (_, lasts, _, _) in zip(jobs, rows, strict=True))
    assert not clock.board.running


@given(rows=ROWS)
@settings(max_examples=30, deadline=None)
def test_what_fits_is_what_is_left_one_by_one(rows: list[tuple[int, int, int, str]]) -> None:
    """Held to a count of each GPU and slice by itself: what is said to fit does, and nothing else is refused."""
    free = Gres(SITE, 2, 4)
    slices = [{profiles_of("h100-sxm")[name]: count for name, count in divided.items()} for divided in CUT]
    gpus = [[UNITS] * 2, [UNITS] * 4]  # what is left of those that are not cut
    for job in running(possible(rows)):
        if job.part is None:
            idle = [each.count(UNITS) for each in gpus]
            need, fits = Gang(job.gpus // UNITS, 4), max(idle) >= job.gpus // UNITS
        else:
            count = job.gpus // job.part.units
            need = job.part, count
            if job.part.slices:
                fits = slices[0].get(job.part, 0) >= count
            else:
                fits = sum(any(left >= job.part.units for left in each) for each in gpus) >= count
        chosen = free.choose(need, 3)
        assert free.fits(need, 3) == (chosen is not None) == fits
        if chosen is None:
            continue
        free.add(chosen, -1)
        for node, held in chosen:
            if isinstance(held, int):
                for _ in range(held):
                    gpus[node][gpus[node].index(UNITS)] = 0
            elif held[0].slices:
                slices[node][held[0]] -= held[1]
            else:  # on a GPU that others share, where one has room
                open_ = [at for at, left in enumerate(gpus[node]) if UNITS > left >= held[0].units]
                at = open_[0] if open_ else gpus[node].index(UNITS)
                gpus[node][at] -= held[0].units


CONF = """\
NodeName=n[1-2] CPUs=64 Gres=gpu:a100:2,gpu:a100_1g.10gb:7,gpu:a100_3g.40gb:2(S:0-1),shard:8
NodeName=n3 CPUs=64 Gres=gpu:a100:4,shard:16
PartitionName=all Nodes=ALL Default=YES
AccountingStorageEnforce=limits
"""
QOS = "Name|GrpTRES|MaxTRESPU\nnormal||gres/gpu:a100_3g.40gb=1\nfew|gres/gpu=4,gres/shard=3|\n"


def site_of(tmp_path: Path, conf: str = CONF, **files: str) -> str:
    write(tmp_path, conf, "slurm.conf")
    names = ["slurm.conf", *(write(tmp_path, text, name.replace("_", ".")).name for name, text in files.items())]
    return str(write(tmp_path, f"gpu: a100\nslurm: [{', '.join(names)}]\n", "site.yaml"))


def starts(tmp_path: Path, site: str, rows: str, policy: str = "slurm") -> dict[str, float]:
    trace = write(tmp_path, "job,submit_s,gpus,duration_s,part,qos,user\n" + rows)
    (outcome,) = fleet(trace, site, policy).outcomes
    return dict(zip(outcome.jobs.name, outcome.start_s.tolist(), strict=True))


def test_limits_of_tres_are_of_slices_and_shards(tmp_path: Path) -> None:
    """gres/gpu counts a slice as one, its type only slices of it, gres/shard only shards."""
    site = site_of(tmp_path, qos_txt=QOS)
    assert parse_site(site).per_node == 4
    rows = (
        "a,0,2,100,1g.10gb,few,u\nb,0,3,100,1g.10gb,few,u\n"  # four of gres/gpu
        "c,0,1,100,3g.40gb,normal,u\nd,0,1,100,3g.40gb,normal,u\ne,0,1,100,3g.40gb,normal,v\n"  # one each
        "f,0,1,100,2 shares,few,u\ng,0,1,100,2 shares,few,u\nh,0,1,100,2 shares,normal,u\n"  # three shards
    )
    assert starts(tmp_path, site, rows) == {"a": 0, "b": 100, "c": 0, "d": 100, "e": 0, "f": 0, "g": 100, "h": 0}


def test_a_gpu_is_never_cut_anew(tmp_path: Path) -> None:
    """Whole jobs leave slices alone, though they are free; what nothing can hold is named."""
    site = site_of(tmp_path)
    rows = "a,0,4,50,,,\nb,0,2,50,,,\nc,0,2,50,,,\nd,0,1,50,,,\n"
    assert sorted(starts(tmp_path, site, rows).values()) == [0, 0, 0, 50]  # 4 + 2 + 2 whole GPUs
    rows = "a,0,15,9,1g.10gb,,\nb,0,1,9,7g.80gb,,\nc,0,4,9,1 shares,,\nd,0,9,9,,,\ne,0,1,9,1g.5gb,,\n"
    trace = write(tmp_path, "job,submit_s,gpus,duration_s,part,qos,user\n" + rows)
    (outcome,) = fleet(trace, site, "slurm").outcomes
    words = ("has 14: Slurm cuts", "Gres=gpu:7g.80gb:N", "one GPU each, of 3", "4 a node at most", "has 1g.10gb")
    assert all(word in outcome.why[at] for at, word in enumerate(words)), outcome.why
    (plain,) = fleet(trace, "a100:1x8", "slurm").outcomes  # nothing is cut there
    assert "slurm.conf has 0" in plain.why[0]
    with pytest.raises(UserError, match=r"7g\.99gb"):
        parse_site(site_of(tmp_path, CONF.replace("3g.40gb", "7g.99gb")))


def test_a_site_of_slices_and_a_trace_of_none(tmp_path: Path) -> None:
    """Slices of slurm.conf are no whole GPUs: they were counted as such."""
    trace = write(tmp_path, "job,submit_s,gpus,duration_s\na,0,2,10\nb,0,2,10\nc,0,4,10\nd,0,1,10\n")
    (outcome,) = fleet(trace, site_of(tmp_path), "slurm").outcomes
    assert columns(outcome) == [(0, 10, 20), (0, 10, 20), (0, 10, 40), (10, 20, 10)]
    with pytest.raises(UserError, match="slices of MIG"):
        simulate(outcome.jobs, parse_site(site_of(tmp_path)), "slurm", Options(pool=True))


def test_types_of_gres_conf(tmp_path: Path) -> None:
    conf = "NodeName=n[1-2] Gres=gpu:9\nNodeName=n3 Gres=gpu:4\n"
    gres = (
        "AutoDetect=off\nNodeName=n[1-2] Name=gpu Type=a100 File=/dev/nvidia[0-1]\n"
        "NodeName=n[1-2] Name=gpu Type=a100_1g.10gb Count=14\nNodeName=n[1-2] Name=shard Count=8\n"
        "NodeName=n3 Name=shard Count=16\n"
    )
    cluster = parse_site(site_of(tmp_path, conf, gres_conf=gres)).slurm_cluster
    assert cluster.per_node == 4
    assert [dict(each) for each in cluster.divided] == [{"1g.10gb": 14}, {"1g.10gb": 14}, {}]
    assert cluster.shares == 4


def test_what_is_emitted_reads_back(tmp_path: Path) -> None:
    site = parse_site(site_of(tmp_path, qos_txt=QOS))
    files = slurm_files(site.slurm_cluster, site)
    assert "gres/gpu=4,gres/shard=3" in files["load.sh"]
    (tmp_path / "out").mkdir()
    for name, text in files.items():
        write(tmp_path / "out", text, name)
    again = parse_site(str(tmp_path / "out" / "site.yaml"))
    assert again.slurm_cluster.qos == site.slurm_cluster.qos
    assert again.slurm_cluster.divided == site.slurm_cluster.divided
    assert (again.per_node, again.shares, again.gpu) == (site.per_node, site.shares, site.gpu)


def test_sacct_is_replayed(tmp_path: Path) -> None:
    head = "JobID|Submit|Start|End|Elapsed|State|NNodes|Timelimit|AllocTRES|ReqTRES"
    times = "2026-03-02T08:00:00|2026-03-02T08:00:00|2026-03-02T08:01:40|00:01:40|COMPLETED"
    tres = ("gres/gpu:a100_1g.10gb=2,gres/gpu=2|", "|gres/gpu:a100_3g.40gb=1", "gres/shard=4|", "gres/gpu=4|")
    rows = [f"{at}|{times}|1|00:05:00|{text}" for at, text in enumerate(tres)]
    trace = write(tmp_path, "\n".join([head, *rows]) + "\n", "log.txt")
    (outcome,) = fleet(trace, site_of(tmp_path), "slurm").outcomes
    assert np.ptp(outcome.start_s) in (0.0, 100.0)
    assert outcome.gpu_seconds.tolist() == [25, 50, 100, 400]


@pytest.mark.parametrize(
    ("asked", "gpus", "part"),
    [
        ("gpu:a100_3g.20gb:1", 2, "3g.20gb"),
        ("gres:gpu:1g.10gb:2", 4, "1g.10gb"),
        ("gres/shard:4", 2, "4 shares"),
        ("gres:mps:50", 2, "0.5"),
        ("gpu:4(S:0-1)", 8, ""),
        ("gpu:a100:2,gpu:h100:1", 6, ""),
    ],
)
def test_what_is_asked_of_each_node_keeps_its_kind(tmp_path: Path, asked: str, gpus: int, part: str) -> None:
    """ReqGRES of old logs and TresPerNode of scontrol: slices there were whole GPUs."""
    times = "2026-03-02T08:00:00|2026-03-02T08:00:00|2026-03-02T08:01:40|00:01:40|COMPLETED"
    text = f"JobID|Submit|Start|End|Elapsed|State|NNodes|ReqGRES\n1|{times}|2|{asked}\n"
    jobs = read_jobs(write(tmp_path, text, "log.txt"))
    assert (jobs.gpus.tolist(), jobs.columns["part"]) == ([gpus], [part])


@pytest.mark.parametrize("tres", ["gres/gpu=2|", "|gres/gpu=2", "gres/gpu=2,gres/gpu:a100_3g.20gb=2|"])
def test_types_stand_beside_a_count_without_them(tmp_path: Path, tres: str) -> None:
    """Slurm counts `gres/gpu=1` of a slice unless its types are accounted for: it was a whole GPU."""
    times = "2026-03-02T08:00:00|2026-03-02T08:00:00|2026-03-02T08:01:40|00:01:40|COMPLETED"
    head = "JobID|Submit|Start|End|Elapsed|State|NNodes|AllocTRES|ReqTRES|ReqGRES"
    text = f"{head}\n1|{times}|2|{tres}|gres/gpu:a100_3g.20gb:1\n"
    jobs = read_jobs(write(tmp_path, text, "log.txt"))
    assert (jobs.gpus.tolist(), jobs.columns["part"]) == ([2], ["3g.20gb"])


@pytest.mark.parametrize("name", names_of(lambda traits: not traits.parts and traits.loop != "log"))
def test_who_knows_no_parts_says_so(tmp_path: Path, name: str) -> None:
    """In one line that names the job; nobody runs a part as a whole GPU."""
    trace = write(tmp_path, "job,submit_s,gpus,duration_s,part,deadline_s\nnotebook,0,1,100,1g.10gb,9000\n")
    outcome = simulate(read_jobs(trace), parse_site("h100-sxm:2x4"), name, Options(speeds=predicted_speeds()))
    assert outcome.why[0] == f"asks for parts of GPUs, and {name} knows whole ones only"
