"""Parts of GPUs: no GPU holds more than one, nothing whole meets a part, quotas count them, and readers tell them."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import UserError
from windtunnel.studies.fleet.clock.board import Board
from windtunnel.studies.fleet.clock.clock import Clock, NodeChange
from windtunnel.studies.fleet.clock.queue_policy import QueuePolicy, board_for
from windtunnel.studies.fleet.clock.running import NS, Moment, Running
from windtunnel.studies.fleet.clock.work import Rigid
from windtunnel.studies.fleet.emit import queues_text
from windtunnel.studies.fleet.jobs.lint import lint_jobs
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.outcome import Outcome
from windtunnel.studies.fleet.parts.devices import BoardOfParts
from windtunnel.studies.fleet.parts.part import part_of
from windtunnel.studies.fleet.parts.profile import UNITS, Part, profiles_of
from windtunnel.studies.fleet.policies.table import POLICIES, names_of
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import parse_site
from windtunnel.studies.fleet.study import fleet

NAMES = ("fifo", "fifo-skip", "sjf-skip", "easy", "tiresias", "srtf")
SITE = parse_site("h100-sxm:2x4")
TEXTS = ("", "", "0.5", "0.3", "1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
jobs_strategy = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 20), st.sampled_from([1, 1, 2, 3, 4]), st.sampled_from(TEXTS)),
    min_size=1,
    max_size=20,
)


def made(name: str, nodes: int = 2) -> QueuePolicy:
    from dataclasses import replace

    policy = POLICIES[name].make_policy(replace(SITE, nodes=nodes, per_node=4 * UNITS, unit=UNITS), Options())
    assert isinstance(policy, QueuePolicy)
    return policy


def running(rows: list[tuple[int, int, int, str]]) -> list[Running]:
    jobs = []
    for at, (submit, lasts, count, text) in enumerate(rows):
        part = part_of(text, "h100-sxm") if text else None
        assert not isinstance(part, str)
        units = UNITS if part is None else part.units
        jobs.append(Running(at, submit * NS, count * units, Rigid(float(lasts)), part=part))
    return jobs


def test_whole_jobs_where_gpus_are_cut_see_gpus_and_not_their_units() -> None:
    """Nodes were kept by free units, four million lists of them: `when` took 18 s on two nodes."""
    jobs = running([(0, 1, 2, "")])
    board = board_for(jobs, [4 * UNITS] * 2, Moment(), lambda job: job.gpus)
    assert len(board.by_free) == 5
    assert board.gang(jobs[0].gpus, 4 * UNITS) == ((0, 2 * UNITS),)
    assert type(board_for(jobs, [4] * 2, Moment(), lambda job: job.gpus)) is Board


def check(board: BoardOfParts, nodes: list[int]) -> None:
    """Every GPU holds at most one, by what each running job says that it holds."""
    held: dict[int, int] = defaultdict(int)  # GPUs of nodes
    devices: dict[tuple[int, int], list[tuple[Part, int]]] = defaultdict(list)
    for job in board.running.values():
        if job.part is None:
            for node, count in job.placement:
                assert count % UNITS == 0
                held[node] += count // UNITS
            continue
        assert len(board.spots[job.index]) * job.part.units == job.gpus
        if not job.part.slices:
            assert len({(node, number) for node, number, _ in board.spots[job.index]}) == job.gpus // job.part.units
        for node, number, start in board.spots[job.index]:
            devices[node, number].append((job.part, start))
    for (node, _), parts in devices.items():
        held[node] += 1
        assert sum(part.units for part, _ in parts) <= UNITS
        assert len({part.slices for part, _ in parts}) == 1
        taken = [at for part, start in parts for at in range(start, start + part.size)]
        assert len(taken) == len(set(taken))
        assert all(start in part.starts for part, start in parts if part.slices)
    assert all(count <= nodes[node] // UNITS for node, count in held.items()), held


class Looks:
    """A policy that looks at the board after each of its moves; at the end nothing that waits has a place."""

    def __init__(self, inner: QueuePolicy, clock: list[Clock], *, leaves_none: bool) -> None:
        self.inner, self.clock, self.leaves_none = inner, clock, leaves_none

    def choose(self, board: Board):
        assert isinstance(board, BoardOfParts)
        for move in self.inner.choose(board):
            yield move
            check(board, self.clock[0].nodes)
        if self.leaves_none:
            waiting = [job for line in board.lines.values() for _, job in line]
            assert all(board.copy().anywhere(job) is None for job in waiting)


@pytest.mark.parametrize("name", NAMES)
@given(rows=jobs_strategy, lost=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 1)), max_size=2))
@settings(max_examples=30, deadline=None)
def test_no_gpu_holds_more_than_one(name: str, rows: list[tuple[int, int, int, str]], lost) -> None:
    rows = [*rows, (0, 1, 1, "0.5")]
    jobs, policy, clocks = running(rows), made(name), list[Clock]()
    looks = Looks(policy, clocks, leaves_none=name in ("srtf", "tiresias"))
    object.__setattr__(policy, "choose", looks.choose)
    looks.inner = made(name)
    changes = [
        NodeChange(time_ns, node, gpus)
        for begin, node in lost
        for time_ns, gpus in ((begin * NS, 0), ((begin + 5) * NS, 4 * UNITS))
    ]
    clocks.append(Clock(jobs, [4 * UNITS] * 2, policy, changes=sorted(changes, key=lambda each: each.time_ns)))
    clocks[0].run()
    assert all(job.end_ns is not None for job in jobs)
    assert not clocks[0].board.running
    assert clocks[0].board.free_gpus == clocks[0].board.capacity == sum(clocks[0].board.free)
    if not lost:
        assert all(job.gpu_ns == lasts * NS * job.gpus for job, (_, lasts, _, _) in zip(jobs, rows, strict=True))


@pytest.mark.parametrize("name", [*NAMES, "slurm"])
@given(rows=jobs_strategy)
@settings(max_examples=30, deadline=None)
def test_whole_gpus_are_given_as_where_none_is_divided(name: str, rows: list[tuple[int, int, int, str]]) -> None:
    """One part, after all others have ended, changes nothing for them; preemptive policies on one node."""
    nodes = 1 if name in ("tiresias", "srtf") else 2
    whole = [(submit, lasts, count, "") for submit, lasts, count, _ in rows]
    jobs = running([*whole, (10_000, 1, 1, "0.5")])
    Clock(jobs, [4 * UNITS] * nodes, made(name, nodes)).run()
    plain = [Running(at, each[0] * NS, each[2], Rigid(float(each[1]))) for at, each in enumerate(whole)]
    site = parse_site(f"h100-sxm:{nodes}x4")
    Clock(plain, [4] * nodes, POLICIES[name].make_policy(site, Options())).run()
    assert [(job.start_ns, job.end_ns, job.restarts) for job in plain] == [
        (job.start_ns, job.end_ns, job.restarts) for job in jobs[:-1]
    ]


def test_a_gpu_holds_as_many_slices_as_nvidia_says() -> None:
    """ "Number of instances available" of the MIG user guide, and its example of 4g beside 3g, by placement."""
    assert [part.most for part in profiles_of("a100-40gb-sxm").values()] == [7, 4, 3, 2, 1, 1]
    assert [part.most for part in profiles_of("a30").values()] == [4, 2, 1]
    for rows, together in (
        ([(1, "4g.40gb"), (1, "3g.40gb")], True),
        ([(1, "3g.40gb"), (1, "4g.40gb")], True),
        ([(1, "2g.20gb"), (1, "1g.10gb"), (1, "4g.40gb")], True),
        ([(2, "3g.40gb"), (1, "1g.10gb")], False),
        ([(7, "1g.10gb"), (1, "1g.10gb")], False),
        ([(1, "0.5"), (1, "3g.40gb")], False),  # shares and slices do not meet
        ([(1, "0.5"), (1, "0.3"), (1, "0.2")], True),
        ([(2, "0.5")], False),  # the shares of one job lie on a GPU each
    ):
        jobs = running([(0, 1, count, text) for count, text in rows])
        board = BoardOfParts([UNITS], jobs[0].moment, lambda job: 0)
        places = []
        for job in jobs:
            places.append(board.room(job, UNITS))
            if places[-1]:
                board.take(job, places[-1])
        assert (None not in places) == together, rows


def write(tmp_path: Path, text: str, name: str = "jobs.csv") -> Path:
    (tmp_path / name).write_text(text)
    return tmp_path / name


def columns(outcome: Outcome) -> list[tuple[float, float, float]]:
    return list(zip(outcome.start_s.tolist(), outcome.end_s.tolist(), outcome.gpu_seconds.tolist(), strict=True))


def test_a_trace_with_parts_and_one_that_says_whole(tmp_path: Path) -> None:
    rows = "a,0,1,10,0.5\nb,0,1,10,0.5\nc,0,1,10,1g.10gb\nd,0,2,10,\ne,5,1,10,0.25\n"
    trace = write(tmp_path, "job,submit_s,gpus,duration_s,part\n" + rows)
    (outcome,) = fleet(trace, "h100-sxm:1x4").outcomes
    assert columns(outcome) == [(0, 10, 5), (0, 10, 5), (0, 10, 1.25), (0, 10, 20), (10, 20, 2.5)]
    figures = fleet(trace, "h100-sxm:1x4").figures["fifo"]
    assert figures["utilisation"] == pytest.approx(33.75 / 80)
    assert figures["total_wait_mean_s"] == 1
    fleet(trace, "h100-sxm:1x4").write_jobs(tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().splitlines()[3].startswith("c,,,0.125,0,0,10")
    whole = write(tmp_path, "job,submit_s,gpus,duration_s,part\na,0,1,10,1\nb,0,4,10,\n")
    (outcome,) = fleet(whole, "h100-sxm:1x4").outcomes
    assert columns(outcome) == [(0, 10, 10), (10, 20, 40)]


@given(shares=st.integers(1, 1000), data=st.data())
@settings(max_examples=200)
def test_a_gpu_holds_as_many_shares_as_it_has(shares: int, data) -> None:
    """Of 48 it held 50, of 600 a thousand. However they come, all of them fit, and no more."""
    one = part_of("1 shares", shares=shares)
    assert isinstance(one, Part)
    assert one.most == shares
    left, held = shares, 0
    while left:
        count = data.draw(st.integers(1, left)) if left < 20 else data.draw(st.integers(left // 3, left))
        part = part_of(f"{count} shares", shares=shares)
        assert isinstance(part, Part)
        left, held = left - count, held + part.units
    assert held <= UNITS < held + one.units


def test_what_is_no_part_of_this_gpu_is_named(tmp_path: Path) -> None:
    rows = "a,0,1,10,1g.5gb\nb,0,1,10,half\nc,0,1,10,2 shares\nd,0,1,10,0.5\n"
    trace = write(tmp_path, "job,submit_s,gpus,duration_s,part\n" + rows)
    (outcome,) = fleet(trace, "h100-sxm:1x4").outcomes
    why = list(outcome.why.values())
    assert "h100-sxm has 1g.10gb" in why[0]
    assert "write a profile" in why[1]
    assert "shares_per_gpu" in why[2]
    assert list(outcome.why) == [0, 1, 2]
    assert any(finding.kind == "part" for finding in lint_jobs(read_jobs(trace), parse_site("h100-sxm:1x4")))
    site = write(tmp_path, "gpu: h100-sxm\ngpus: 4\nshares_per_gpu: 8\n", "site.yaml")
    (outcome,) = fleet(trace, str(site)).outcomes
    assert outcome.gpu_seconds[2] == 2.5
    for name in names_of(lambda traits: traits.loop == "clock" and not traits.parts and not traits.sizes):
        if not POLICIES[name].kinds:
            (outcome,) = fleet(trace, "h100-sxm:1x4", name).outcomes
            assert "whole ones only" in outcome.why[3]
    with pytest.raises(UserError, match="shares_per_gpu"):
        parse_site(str(write(tmp_path, "gpus: 4\nshares_per_gpu: -1\n", "bad.yaml")))


def test_lint_finds_what_is_a_part_of_no_gpu(tmp_path: Path) -> None:
    """Without a cluster too; how many shares a GPU has only the cluster's file says."""
    rows = "".join(f"j{at},{at},1,10,{text}\n" for at, text in enumerate(
        ("9g.99gb", "-1", "nan", "{0}", "0 shares", "2 shares", "1g.5gb", "1g.10gb", "0.5", "")))  # fmt: skip
    jobs = read_jobs(write(tmp_path, "job,submit_s,gpus,duration_s,part\n" + rows))

    def odd(site: str) -> list[str]:
        findings = lint_jobs(jobs, parse_site(site) if site else None)
        return [name for finding in findings if finding.kind == "part" for name in finding.jobs]

    assert odd("") == ["j0", "j1", "j2", "j3", "j4"]
    assert odd("h100-sxm:1x4") == ["j0", "j1", "j2", "j3", "j4", "j5", "j6"]


def k8s(tmp_path: Path, *objects: object) -> Path:
    return write(tmp_path, json.dumps({"items": objects}), "k8s.json")


def job(name: str, limits: dict[str, str], pods: int = 1, lasts: str = "100", **marks: object) -> dict[str, object]:
    metadata = {
        "name": name,
        "namespace": "n",
        "creationTimestamp": "2026-05-01T00:00:00Z",
        "labels": {"kueue.x-k8s.io/queue-name": "q"},
        "annotations": {"windtunnel/duration-s": lasts},
    }
    template = {"metadata": marks, "spec": {"containers": [{"resources": {"limits": limits}}]}}
    return {"kind": "Job", "metadata": metadata, "spec": {"parallelism": pods, "template": template}}


def queue(**quotas: int) -> list[dict[str, object]]:
    resources = [{"name": name, "nominalQuota": count} for name, count in quotas.items()]
    groups = [{"flavors": [{"resources": resources}]}]
    spec = {"resourceGroups": groups}
    local = {"kind": "LocalQueue", "metadata": {"name": "q", "namespace": "n"}, "spec": {"clusterQueue": "c"}}
    return [{"kind": "ClusterQueue", "metadata": {"name": "c"}, "spec": spec}, local]


def test_kubernetes_objects_tell_their_parts(tmp_path: Path) -> None:
    jobs = read_jobs(
        k8s(
            tmp_path,
            job("a", {"nvidia.com/mig-1g.10gb": "2"}, pods=3),
            job("b", {"nvidia.com/gpu.shared": "1"}),
            job("c", {}, pods=2, annotations={"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}),
            job("d", {"nvidia.com/gpu": "8"}),
            job("e", {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.10gb": "2"}),
        )
    )
    assert jobs.columns["part"] == ["1g.10gb", "1 shares", "0.5", "", ""]
    assert jobs.gpus.tolist() == [6, 1, 4, 8, 3]
    assert [(unread.count, unread.reason[:23]) for unread in jobs.not_understood] == [(1, "asks for parts of sever")]


def test_quotas_count_parts(tmp_path: Path) -> None:
    halves = [job(f"h{at}", {}, annotations={"gpu-fraction": "0.5"}) for at in range(3)]
    trace = k8s(tmp_path, *queue(**{"nvidia.com/gpu": 1}), *halves, job("w", {"nvidia.com/gpu": "1"}))
    (outcome,) = fleet(trace, "h100-sxm:1x8", "kueue").outcomes
    assert outcome.start_s.tolist() == [0, 0, 100, 200]  # one GPU of eight
    slices = [job(f"s{at}", {"nvidia.com/mig-3g.40gb": "1"}) for at in range(3)]
    quotas = queue(**{"nvidia.com/gpu": 0, "nvidia.com/mig-3g.40gb": 2})
    (outcome,) = fleet(k8s(tmp_path, *quotas, *slices), "h100-sxm:1x8", "kueue").outcomes
    assert outcome.start_s.tolist() == [0, 0, 100]
    jobs = read_jobs(k8s(tmp_path, *quotas, *slices))
    written = write(tmp_path, queues_text(jobs.quotas, jobs.cohorts) + "---\n" + json.dumps(slices[0]), "again.yaml")
    assert read_jobs(written).quotas == jobs.quotas


def test_slices_and_whole_gpus_have_quotas_of_their_own(tmp_path: Path) -> None:
    """Neither stands in for the other, whatever else is in the file; a queue has one first job of both."""
    slices, whole = job("a", {"nvidia.com/mig-1g.10gb": "2"}), job("b", {"nvidia.com/gpu": "2"})

    def starts(quotas: list[dict[str, object]], *jobs: dict[str, object]) -> dict[str, float]:
        (outcome,) = fleet(k8s(tmp_path, *quotas, *jobs), "h100-sxm:1x8", "kueue").outcomes
        return dict(zip((name.split("/")[1] for name in outcome.jobs.name), outcome.start_s.tolist(), strict=True))

    no_gpus = queue(**{"nvidia.com/gpu": 0, "nvidia.com/mig-1g.10gb": 16})
    for jobs in ((whole,), (whole, slices), (slices, whole)):
        assert np.isnan(starts(no_gpus, *jobs)["b"])
    no_slices = queue(**{"nvidia.com/gpu": 4, "nvidia.com/mig-1g.10gb": 1})
    assert np.isnan(starts(no_slices, slices)["a"])
    both = queue(**{"nvidia.com/gpu": 2, "nvidia.com/mig-1g.10gb": 2})
    later = job("c", {"nvidia.com/gpu": "2"}), job("d", {"nvidia.com/mig-1g.10gb": "2"})
    assert starts(both, slices, whole, *later) == {"a": 0, "b": 0, "c": 100, "d": 100}
    for strategy, start in (("StrictFIFO", 100), ("BestEffortFIFO", 0)):
        both[0]["spec"]["queueingStrategy"] = strategy  # type: ignore[index]
        assert starts(both, whole, later[0], slices)["a"] == start


def test_slices_are_borrowed_of_slices(tmp_path: Path) -> None:
    def cluster_queue(name: str, quotas: dict[str, int], **limits: int) -> list[dict[str, object]]:
        found, local = queue(**quotas)
        found["metadata"], found["spec"]["cohortName"] = {"name": name}, "all"  # type: ignore[index]
        for row in found["spec"]["resourceGroups"][0]["flavors"][0]["resources"]:  # type: ignore[index]
            row.update(limits)
        local["metadata"], local["spec"] = {"name": name, "namespace": "n"}, {"clusterQueue": name}
        return [found, local]

    jobs = [job(f"a{at}", {"nvidia.com/mig-1g.10gb": "4"}) for at in range(2)]
    for each in jobs:
        each["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "c"  # type: ignore[index]
    for lender, limits, starts in (
        ({"nvidia.com/gpu": 0, "nvidia.com/mig-1g.10gb": 4}, {}, [0, 0]),
        ({"nvidia.com/gpu": 8, "nvidia.com/mig-1g.10gb": 0}, {}, [0, 100]),
        ({"nvidia.com/gpu": 8, "nvidia.com/mig-1g.10gb": 4}, {"borrowingLimit": 3}, [0, 100]),
    ):
        queues = cluster_queue("c", {"nvidia.com/gpu": 0, "nvidia.com/mig-1g.10gb": 4}, **limits)
        trace = k8s(tmp_path, *queues, *cluster_queue("d", lender), *jobs)
        (outcome,) = fleet(trace, "h100-sxm:1x8", "kueue").outcomes
        assert outcome.start_s.tolist() == starts
        read = read_jobs(trace)
        again = write(tmp_path, queues_text(read.quotas, read.cohorts) + "---\n" + json.dumps(jobs[0]), "again.yaml")
        assert read_jobs(again).quotas == read.quotas


def test_slurm_tells_its_parts(tmp_path: Path) -> None:
    head = "JobID|Submit|Start|End|Elapsed|State|NNodes|AllocTRES"
    times = "2026-03-02T08:00:00|2026-03-02T08:00:00|2026-03-02T08:01:40|00:01:40|COMPLETED"
    tres = (
        "gres/gpu:a100_1g.10gb=2,gres/gpu=2", "gres/mps=50", "gres/shard=3", "gres/gpu=4",
        "gres/gpu:a100=1,gres/gpu:a100_1g.10gb=1,gres/gpu=2",
    )  # fmt: skip
    rows = [f"{at}|{times}|1|{text}" for at, text in enumerate(tres)]
    jobs = read_jobs(write(tmp_path, "\n".join([head, *rows]) + "\n", "log.txt"))
    assert jobs.columns["part"] == ["1g.10gb", "0.5", "3 shares", "", ""]
    assert jobs.gpus.tolist() == [2, 1, 1, 4, 2]
    assert [unread.examples for unread in jobs.not_understood] == [("4",)]
    site = write(tmp_path, "gpu: a100\ngpus: 8\nshares_per_gpu: 4\n", "site.yaml")
    (current, tiresias) = fleet(tmp_path / "log.txt", str(site), ["current", "tiresias"]).outcomes
    for outcome in (current, tiresias):
        assert outcome.gpu_seconds.tolist() == [25, 50, 75, 400, 200]
    assert not np.isnan(tiresias.end_s).any()


def test_shares_of_slurm_that_are_on_no_node_alike_are_named(tmp_path: Path) -> None:
    """Nine shards on four nodes, 300 hundredths on two: by its total alone nobody can say what lies where."""
    head = "JobID|Submit|Start|End|Elapsed|State|NNodes|AllocTRES"
    times = "2026-03-02T08:00:00|2026-03-02T08:00:00|2026-03-02T08:01:40|00:01:40|COMPLETED"
    tres = (("gres/shard=9", 4), ("gres/mps=300", 2), ("gres/mps=0", 1), ("gres/shard=8", 4), ("gres/mps=100", 2))
    rows = [f"{at}|{times}|{nodes}|{text}" for at, (text, nodes) in enumerate(tres)]
    jobs = read_jobs(write(tmp_path, "\n".join([head, *rows]) + "\n", "log.txt"))
    assert jobs.gpus.tolist() == [0, 0, 0, 4, 2]
    assert jobs.columns["part"] == ["", "", "", "2 shares", "0.5"]
    (unread,) = jobs.not_understood
    assert unread.examples == ("0 (gres/shard=9 on 4 nodes)", "1 (gres/mps=300 on 2 nodes)")
    (outcome,) = fleet(tmp_path / "log.txt", "a100:8").outcomes
    assert {at: why for at, why in outcome.why.items() if at < 3} == dict.fromkeys(range(3), "asks no GPU")
    alone = read_jobs(write(tmp_path, "\n".join([head, rows[0]]) + "\n", "alone.txt"))
    assert alone.not_understood[0].count == 1


def test_nodes_that_fail_take_parts_with_them(tmp_path: Path) -> None:
    rows = "a,0,1,100,0.5\nb,0,4,100,\n"
    jobs = read_jobs(write(tmp_path, "job,submit_s,gpus,duration_s,part\n" + rows))
    from windtunnel.studies.fleet.capacity import Changes

    capacity = write(tmp_path, "time_s,node,gpus\n10,0,0\n20,0,2\n", "capacity.csv")
    changes = Changes(trace=capacity, checkpoint_s=0.0)
    outcome = simulate(jobs, parse_site("h100-sxm:2x4"), "fifo-skip", Options(changes=changes))
    assert outcome.end_s.tolist() == [110, 100]
    assert outcome.gpu_seconds.tolist() == [50, 400]
    assert (outcome.extra or {})["down_gpu_hours"] == pytest.approx((10 * 4 + 90 * 2) / 3600, abs=1e-6)


def test_the_page_says_what_is(tmp_path: Path) -> None:
    """The example of docs/fleet-sharing.md: its list of jobs as it stands there, and when they start."""
    page = (Path(__file__).parents[4] / "docs" / "fleet-sharing.md").read_text()
    lines = page[page.index("    job,submit_s,gpus,duration_s,part") :].split("\n\n")[0].splitlines()
    trace = write(tmp_path, "".join(line.split("#")[0].strip() + "\n" for line in lines), "parts.csv")
    (outcome,) = fleet(trace, "h100-sxm:1x8").outcomes
    assert dict(zip(outcome.jobs.name, outcome.start_s.tolist(), strict=True)) == {
        **dict.fromkeys(("notebook", "sweep", "server", "train"), 0.0),
        "late": 100.0,
    }
