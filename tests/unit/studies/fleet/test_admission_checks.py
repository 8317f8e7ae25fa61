"""Kueue's admission checks: how long they take is read of the Workloads, and the quota is held meanwhile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windtunnel.errors import SpecError
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.policies.own import read_policy
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import parse_site


def at(seconds: int) -> str:
    return f"2026-01-01T00:{seconds // 60:02d}:{seconds % 60:02d}Z"


def workload(name: str, submit_s: int, state: str = "", quota_s: int = -1, admitted_s: int = -1) -> dict[str, object]:
    """Of 8 GPUs for 60 s; `state` of its check."""
    times = {"QuotaReserved": quota_s, "Admitted": admitted_s, "Finished": admitted_s + 60 if admitted_s >= 0 else -1}
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": at(time)} for kind, time in times.items() if time >= 0
    ]
    pod = {"containers": [{"resources": {"requests": {"nvidia.com/gpu": 8}}}]}
    meta = {"name": name, "creationTimestamp": at(submit_s), "annotations": {"windtunnel/duration-s": "60"}}
    checks = [{"name": "capacity", "state": state}] if state else []
    return {
        "kind": "Workload", "metadata": meta,
        "spec": {"queueName": "q", "podSets": [{"count": 1, "template": {"spec": pod}}]},
        "status": {"conditions": conditions, "admissionChecks": checks},
    }  # fmt: skip


def jobs_of(folder: Path, *workloads: dict[str, object], **spec: object) -> Jobs:
    rows = [{"name": "h100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": 8}]}]
    queue = {
        "kind": "ClusterQueue",
        "metadata": {"name": "cq"},
        "spec": {"resourceGroups": [{"flavors": rows}], **spec},
    }
    local = {"kind": "LocalQueue", "metadata": {"name": "q"}, "spec": {"clusterQueue": "cq"}}
    path = folder / "k8s.json"
    path.write_text(json.dumps({"kind": "List", "items": [queue, local, *workloads]}))
    return read_jobs(path)


CHECKED = {"admissionChecks": ["capacity"]}


def test_checks_take_their_time_while_the_quota_is_held(tmp_path: Path) -> None:
    """a waits 20 s for its check and runs 60 s; b has the quota from 80 s on, and its check takes as long."""
    told, open_check = workload("a", 0, "Ready", 0, 20), workload("b", 5, "Pending", 90)
    jobs = jobs_of(tmp_path, told, open_check, workload("c", 6), **CHECKED)
    assert [float(text) for text in jobs.columns["checks_s"]] == [20, 20, 20]
    assert [row.reason for row in jobs.not_understood] == [
        "has its quota and waits for admission checks: capacity Pending"
    ]
    outcome = simulate(jobs, parse_site("h100:2x8"), "kueue", Options())
    assert outcome.start_s.tolist() == [20, 100, 180]
    assert outcome.end_s.tolist() == [80, 160, 240]


@pytest.mark.parametrize(
    "spec",
    [CHECKED, {"admissionChecksStrategy": {"admissionChecks": [{"name": "capacity"}]}}],
    ids=["list", "strategy"],
)
def test_how_long_checks_take_is_asked_where_no_job_tells(spec: dict[str, object], tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, workload("a", 0), workload("b", 5), **spec)
    assert "waits for admission checks (capacity) of its queue" in jobs.not_understood[0].reason
    site = parse_site("h100:2x8")
    assert simulate(jobs, site, "kueue", Options()).start_s.tolist() == [0, 60]
    (tmp_path / "own.yaml").write_text("policy: kueue\nchecks_s: 30\n")
    assert simulate(jobs, site, read_policy(tmp_path / "own.yaml"), Options()).start_s.tolist() == [30, 120]


def test_a_queue_without_checks_admits_at_once(tmp_path: Path) -> None:
    of_one_flavor = {"admissionChecksStrategy": {"admissionChecks": [{"name": "capacity", "onFlavors": ["spot"]}]}}
    for spec in ({}, of_one_flavor):
        jobs = jobs_of(tmp_path, workload("a", 0), workload("b", 5), **spec)
        assert not jobs.not_understood
        (tmp_path / "own.yaml").write_text("policy: kueue\nchecks_s: 30\n")
        own = read_policy(tmp_path / "own.yaml")
        assert simulate(jobs, parse_site("h100:2x8"), own, Options()).start_s.tolist() == [0, 60]


@pytest.mark.parametrize("value", ["-30", "abc", "1.0e+300"])
def test_checks_of_a_policy_file_are_a_time(value: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(f"policy: kueue\nchecks_s: {value}\n")
    jobs = jobs_of(tmp_path, workload("a", 0), **CHECKED)
    with pytest.raises(SpecError, match="checks_s = "):
        simulate(jobs, parse_site("h100:2x8"), read_policy(tmp_path / "own.yaml"), Options())


def test_checks_of_a_list_are_seconds_from_0_on(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("job,submit_s,gpus,duration_s,checks_s\na,0,8,60,30\nb,0,8,60,-5\n")
    with pytest.raises(SpecError, match=r"jobs.csv line 3: checks_s = -5.0: give seconds from 0 on"):
        simulate(read_jobs(tmp_path / "jobs.csv"), parse_site("h100:2x8"), "slurm", Options())


def test_a_check_that_is_told_to_take_no_time_takes_none(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, workload("a", 0, "Ready", 0, 0), workload("b", 5), **CHECKED)
    assert [float(text) for text in jobs.columns["checks_s"]] == [0, 0]
    (tmp_path / "own.yaml").write_text("policy: kueue\nchecks_s: 30\n")
    own = read_policy(tmp_path / "own.yaml")
    assert simulate(jobs, parse_site("h100:2x8"), own, Options()).start_s.tolist() == [0, 60]
