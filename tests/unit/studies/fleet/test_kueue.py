"""Kueue: quotas are never broken, what is lent comes back, and only whom a queue may stop is stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import UserError
from windtunnel.studies.fleet.clock.clock import Clock, NodeChange
from windtunnel.studies.fleet.clock.running import NS, Running
from windtunnel.studies.fleet.clock.work import Rigid
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.jobs.trace import Quota
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.policies.kueue.policy import Kueue
from windtunnel.studies.fleet.policies.own import policy_of_text
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import parse_site

Row = tuple[int, int, int, str, int]  # submission, duration, GPUs, queue, priority


def run(rows: list[Row], *quotas: Quota, gpus: int = 16, fair: bool = False, qps: float = 0.0) -> list[Running]:
    jobs = [
        Running(at, submit * NS, wide, Rigid(float(lasts)), queue=queue, priority=float(priority))
        for at, (submit, lasts, wide, queue, priority) in enumerate(rows)
    ]
    Clock(jobs, [gpus], Kueue(0, {quota.name: quota for quota in quotas}, fair, qps=qps, burst=2)).run()
    return jobs


def seconds(jobs: list[Running]) -> list[tuple[float, float, int]]:
    return [((job.start_ns or 0) / NS, (job.end_ns or 0) / NS, job.restarts) for job in jobs]


def test_a_queue_borrows_what_its_cohort_does_not_use() -> None:
    a, b = Quota("a", 8, "c", borrowing_limit=4), Quota("b", 8, "c")
    rows: list[Row] = [(0, 10, 8, "a", 0), (0, 10, 4, "a", 0), (0, 10, 4, "a", 0)]
    assert seconds(run(rows, a, b)) == [(0, 10, 0), (0, 10, 0), (10, 20, 0)]  # 12 = 8 and the limit of 4
    keeps = Quota("b", 8, "c", lending_limit=2)
    assert [start for start, _, _ in seconds(run(rows, Quota("a", 8, "c"), keeps))] == [0, 10, 10]
    assert [start for start, _, _ in seconds(run(rows, Quota("a", 8), Quota("b", 8)))] == [0, 10, 10]  # no cohort


@pytest.mark.parametrize(("reclaim", "ends"), [("Any", [(0, 30), (5, 15)]), ("Never", [(0, 20), (20, 30)])])
def test_what_is_lent_comes_back(reclaim: str, ends: list[tuple[float, float]]) -> None:
    a, b = Quota("a", 8, "c"), Quota("b", 8, "c", reclaim=reclaim)
    jobs = seconds(run([(0, 20, 16, "a", 9), (5, 10, 8, "b", 0)], a, b))
    assert [(start, end) for start, end, _ in jobs] == ends
    assert jobs[0][2] == (reclaim == "Any")


def test_only_lower_priority_is_stopped_in_a_queue_and_the_fewest() -> None:
    within = Quota("a", 16, within="LowerPriority")
    rows: list[Row] = [
        (0, 50, 8, "a", 1),
        (1, 50, 4, "a", 1),
        (0, 50, 4, "a", 2),
        (10, 5, 4, "a", 3),
        (10, 5, 4, "a", 1),
    ]
    assert [restarts for _, _, restarts in seconds(run(rows, within))] == [0, 1, 0, 0, 0]
    wide: list[Row] = [(0, 50, 8, "a", 1), (1, 50, 4, "a", 1), (0, 50, 4, "a", 2), (10, 5, 8, "a", 3)]
    assert [restarts for _, _, restarts in seconds(run(wide, within))] == [1, 0, 0, 0]  # the newer one is not needed
    assert [restarts for _, _, restarts in seconds(run(rows, Quota("a", 16)))] == [0] * 5


def test_strict_queues_wait_behind_their_first() -> None:
    rows: list[Row] = [(0, 10, 6, "a", 0), (1, 10, 8, "a", 0), (2, 10, 2, "a", 0)]
    assert [start for start, _, _ in seconds(run(rows, Quota("a", 8)))] == [0, 12, 2]
    assert [start for start, _, _ in seconds(run(rows, Quota("a", 8, strict=True)))] == [0, 10, 20]


ROWS = st.lists(
    st.tuples(
        st.integers(0, 30), st.integers(1, 20), st.integers(1, 6), st.sampled_from(["a", "b", "d"]), st.integers(0, 2)
    ),
    min_size=1,
    max_size=14,
)
QUOTAS = st.tuples(
    *(
        st.builds(
            Quota,
            st.just(name),
            st.integers(6, 8),
            st.just(cohort),
            st.none() | st.integers(0, 6),
            st.none() | st.integers(0, 8),
            st.booleans(),
            st.sampled_from(["Never", "LowerPriority", "LowerOrNewerEqualPriority"]),
            st.sampled_from(["Never", "LowerPriority", "Any"]),
        )
        for name, cohort in (("a", "c"), ("b", "c"), ("d", ""))
    )
)


def lent(quota: Quota) -> int:
    return quota.nominal if quota.lending_limit is None else min(quota.nominal, quota.lending_limit)


class Watched(Kueue):
    """Holds what it leaves running against the quotas."""

    def choose(self, board):
        yield from super().choose(board)
        used = dict.fromkeys(self.quotas, 0)
        for job in board.running.values():
            used[job.queue] += job.held_gpus
        for name, quota in self.quotas.items():
            others = [each for each in self.quotas.values() if each.cohort == quota.cohort != "" and each is not quota]
            free = sum(min(lent(each), each.nominal - min(used[each.name], each.nominal)) for each in others)
            limit = free if quota.borrowing_limit is None else quota.borrowing_limit
            assert used[name] <= quota.nominal + limit
            assert used[name] - quota.nominal <= sum(lent(each) for each in others)
        assert sum(used.values()) <= sum(quota.nominal for quota in self.quotas.values())


@given(ROWS, QUOTAS, st.booleans(), st.sampled_from([0.0, 2.0, 50.0]))
@settings(max_examples=60)
def test_quotas_hold_and_every_job_ends(rows: list[Row], quotas: tuple[Quota, ...], fair: bool, qps: float) -> None:
    jobs = [
        Running(at, submit * NS, wide, Rigid(float(lasts)), queue=queue, priority=float(priority))
        for at, (submit, lasts, wide, queue, priority) in enumerate(sorted(rows))
    ]
    Clock(jobs, [64], Watched(0, {quota.name: quota for quota in quotas}, fair, qps=qps)).run()
    assert all(job.end_ns is not None for job in jobs)


def test_quotas_come_from_the_objects_of_the_file(tmp_path: Path) -> None:
    def queue(name: str, **spec: object) -> dict[str, object]:
        flavor = {"name": "h100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "8", "borrowingLimit": 4}]}
        return {
            "kind": "ClusterQueue",
            "metadata": {"name": name},
            "spec": {"resourceGroups": [{"flavors": [flavor]}], **spec},
        }

    def job(name: str, local: str, gpus: int) -> dict[str, object]:
        meta = {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": "2026-03-02T08:00:00Z"}
        container = {"resources": {"limits": {"nvidia.com/gpu": gpus}}}
        labels = {"kueue.x-k8s.io/queue-name": local}
        annotations = {"windtunnel/duration-s": "60"}
        spec = {"template": {"spec": {"containers": [container]}}}
        return {"kind": "Job", "metadata": {**meta, "labels": labels, "annotations": annotations}, "spec": spec}

    local = {"kind": "LocalQueue", "metadata": {"name": "lq", "namespace": "ns"}, "spec": {"clusterQueue": "cq"}}
    preemption = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}
    objects = [queue("cq", cohort="all", preemption=preemption), queue("other", cohort="all"), local]
    objects += [
        job("one", "lq", 8),
        job("two", "lq", 8),
        job("lost", "nobody", 1),
        job("huge", "lq", 13),
        job("free", "", 4),
    ]
    (tmp_path / "k8s.json").write_text(json.dumps({"items": objects}))
    jobs = read_jobs(tmp_path / "k8s.json")
    assert jobs.quotas[0] == Quota("cq", 8, "all", 4, None, False, "LowerPriority", "Any")
    outcome = simulate(jobs, parse_site("gpu:2x8"), "kueue", Options())
    assert outcome.why == {
        2: "is of a queue whose ClusterQueue the file does not tell",
        3: "asks 13 GPUs, more than its queue may ever have",
    }
    assert [outcome.start_s[at] for at in (0, 1, 4)] == [0, 60, 0]
    (tmp_path / "plain.csv").write_text("job,submit_s,gpus,duration_s\na,0,1,1\n")
    with pytest.raises(UserError, match="needs the quotas of queues"):
        simulate(read_jobs(tmp_path / "plain.csv"), parse_site("gpu:8"), "kueue", Options())


@pytest.mark.parametrize(("weight", "share"), [(1.0, 8), (3.0, 12)])
def test_what_is_borrowed_is_shared_by_weight(weight: float, share: int) -> None:
    """Two queues without a quota borrow 16 GPUs of a third; neither stops the other below its share."""
    queues = Quota("a", 0, "c", reclaim="Any", weight=weight), Quota("b", 0, "c", reclaim="Any"), Quota("d", 16, "c")
    rows: list[Row] = [(0, 100, 1, "b", 0)] * 16 + [(1, 100, 1, "a", 0)] * 16
    jobs = run(rows, *queues, fair=True)
    held = sum(job.start_ns == NS for job in jobs if job.queue == "a")
    assert held == share
    assert sum(job.restarts for job in jobs if job.queue == "b") == share


@pytest.mark.parametrize(("most", "starts"), [(None, 5), (1.0, 5), (0.0, 20)])
def test_a_queue_that_borrows_stops_others_up_to_a_priority(most: float | None, starts: int) -> None:
    a = Quota("a", 4, "c", reclaim="LowerPriority", borrow_within="LowerPriority", borrow_priority=most)
    jobs = run([(0, 20, 12, "b", 1), (5, 10, 8, "a", 2)], a, Quota("b", 4, "c"), Quota("d", 8, "c"))
    assert jobs[1].start_ns == starts * NS


@pytest.mark.parametrize("qps", [0.0, 50.0])
@pytest.mark.parametrize(("strict", "starts"), [(True, 10), (False, 2)])
def test_the_first_job_of_a_queue_is_one_of_whole_gpus_and_of_slices(qps: float, strict: bool, starts: int) -> None:
    quotas = Quota("a", 8, strict=strict), Quota("a slices", 4, strict=strict, whole_queue="a")
    rows: list[Row] = [(0, 10, 8, "a", 0), (1, 10, 8, "a", 0), (2, 10, 4, "a slices", 0)]
    assert round((run(rows, *quotas, qps=qps)[2].start_ns or 0) / NS) == starts


def test_what_kueue_writes_in_a_second_is_what_begins() -> None:
    rows: list[Row] = [(0, 10, 1, "a", 0)] * 6
    jobs = run(rows, Quota("a", 16), qps=0.5)
    # the bucket holds two writes and gets one every 2 s; one job of a queue is admitted in a cycle of 1 ms
    assert [round((job.start_ns or 0) / NS, 2) for job in jobs] == [0, 0, 2, 4, 6, 8]
    assert [round(job.gpu_ns / NS, 2) for job in jobs] == [10, 10, 12, 14, 16, 18]  # held while the write waits
    assert all((job.end_ns or 0) == (job.start_ns or 0) + 10 * NS for job in jobs)


def test_a_victim_runs_until_its_eviction_is_written_and_what_found_no_room_is_looked_at_a_second_later() -> None:
    quota = Quota("a", 8, within="LowerPriority")
    rows: list[Row] = [(0, 100, 4, "a", 0), (0, 100, 4, "a", 0), (10, 5, 8, "a", 1), (11, 5, 8, "a", 1)]
    *low, high, other = run(rows, quota, qps=0.5)
    assert [job.restarts for job in low] == [1, 1]
    assert round((high.start_ns or 0) / NS, 1) == 12.0  # the third write, after those of its victims
    assert round((other.start_ns or 0) / NS, 1) == 18.0  # the end at 17 and a second
    assert all((job.end_ns or 0) > (other.end_ns or 0) for job in low)


def test_what_wants_gpus_and_has_quota_is_looked_at_when_any_job_ends_or_a_node_joins() -> None:
    policy = Kueue(8, {"a": Quota("a", 32), "b": Quota("b", 32)}, qps=50)
    jobs = [
        Running(0, 0, 8, Rigid(20.0), queue="b"),
        Running(1, 1 * NS, 8, Rigid(5.0), queue="a"),
        Running(2, 2 * NS, 16, Rigid(5.0), queue="a"),
    ]
    Clock(jobs, [8, 0], policy, changes=[NodeChange(50 * NS, 1, 8)]).run()
    assert [round((job.start_ns or 0) / NS, 1) for job in jobs] == [0, 21, 51]  # a second later each


def test_a_policy_file_of_kueue_keeps_the_quotas_of_the_objects(tmp_path: Path) -> None:
    quota = {"name": "h100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "8"}]}
    queue = {"kind": "ClusterQueue", "metadata": {"name": "cq"}, "spec": {"resourceGroups": [{"flavors": [quota]}]}}
    ours = [{"job": f"j{at}", "submit_s": 0, "gpus": 8, "duration_s": 10, "queue": "cq"} for at in range(2)]
    (tmp_path / "k8s.json").write_text(json.dumps([queue, *ours]))
    (tmp_path / "fair.yaml").write_text("policy: kueue\nfair_sharing: true\n")
    jobs = read_jobs(tmp_path / "k8s.json")
    for policy in ("kueue", policy_of_text(str(tmp_path / "fair.yaml"))):
        assert simulate(jobs, parse_site("h100:64"), policy, Options()).start_s.tolist() == [0, 10]


class Asked:
    """The same policy by its answers to snapshots."""

    def __init__(self, policy: Kueue) -> None:
        self.decide = policy.decide


@pytest.mark.parametrize("hashing", [True, False])
def test_a_pace_goes_on_at_another_snapshot(hashing: bool) -> None:
    policy = Kueue(0, {"a": Quota("a", 2)}, qps=1.0, burst=1, hashing=hashing)
    jobs = [Running(at, at * NS // 10, 2, Rigid(5.0), queue="a") for at in range(3)]
    Clock(jobs, [16], policy).run()
    again = [Running(at, at * NS // 10, 2, Rigid(5.0), queue="a") for at in range(3)]
    Clock(again, [16], Asked(policy)).run()
    assert [(job.end_ns or 0) // NS for job in jobs] == [5, 11, 17]  # a second after each end
    assert [job.end_ns for job in again] == [job.end_ns for job in jobs]
