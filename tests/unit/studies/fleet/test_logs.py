"""Logs of schedulers: every job as a person who knows the fields reads it, and what is not understood by name."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windtunnel.errors import UserError
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.jobs.trace import Jobs, held_at_once
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import parse_site

HEAD = "JobID|Submit|Eligible|Start|End|Elapsed|Suspended|Timelimit|AllocTRES|ReqTRES|Partition|Priority|State|Reason"


def clock(seconds: int) -> str:
    return f"2026-03-02T{8 + seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def line(job: str, *times: int | None, state: str = "COMPLETED", gpus: str = "gres/gpu=8", **cells: str) -> str:
    submit, start, end = (*times, None, None)[:3]
    assert submit is not None
    text = "" if start is None or end is None else str(end - start - int(cells.get("suspended", "0")))
    shown = [clock(submit), clock(int(cells.get("eligible", submit)))]
    shown += ["Unknown" if time is None else clock(time) for time in (start, end)]
    limit, suspended = cells.get("limit", "01:00:00"), cells.get("suspended", "0")
    tres = (gpus, "") if start is not None else ("", gpus)
    return "|".join([job, *shown, text, suspended, limit, *tres, "gpu", "7", state, cells.get("reason", "None")])


def sacct(tmp_path: Path, *lines: str) -> Jobs:
    (tmp_path / "log.txt").write_text("\n".join([HEAD, *lines]) + "\n")
    return read_jobs(tmp_path / "log.txt")


def reasons(jobs: Jobs) -> list[str]:
    return [f"{each.reason}: {', '.join(each.examples)}" for each in jobs.not_understood]


def test_requeues_are_attempts_of_one_job(tmp_path: Path) -> None:
    jobs = sacct(
        tmp_path,
        line("1", 0, 100, 600, state="PREEMPTED"),
        line("1.batch", 0, 100, 600),
        line("1", 600, 900, 1900),
        line("2", 0, 50, 150),
    )
    assert list(jobs.name) == ["1", "2"]
    assert jobs.duration_s.tolist() == [1000, 100]  # of the run that ended it
    outcome = simulate(jobs, parse_site("gpu:2x8"), "current", Options())
    assert (outcome.start_s - jobs.submit_s).tolist() == [100, 50]
    assert outcome.jct_s.tolist() == [1900, 150]
    assert (outcome.restarts.tolist(), outcome.gpu_seconds.tolist()) == ([1, 0], [8 * 1500, 800])
    assert held_at_once(jobs) == 8  # the first run of job 1 is over when job 2 has long ended


def test_arrays_het_jobs_and_suspension(tmp_path: Path) -> None:
    jobs = sacct(
        tmp_path,
        line("5_[2-4,7%2]", 0, state="PENDING", gpus="gres/gpu=1"),
        line("6+0", 0, 10, 20),
        line("6+1", 0, 10, 20, gpus="gres/gpu:h100=4"),
        line("7", 0, 10, 100, suspended="30"),
        line("8", 0, 10, 20, gpus="gres/gpu:a100=8,gres/gpu:h100=8"),
        line("9", 0, 10, 20, gpus="gres/gpu:a100_3g.20gb=2"),
        line("10", 0, state="PENDING", reason="DependencyNeverSatisfied"),
    )
    assert list(jobs.name) == ["5_2", "5_3", "5_4", "5_7", "6+0", "7", "8", "9"]
    assert jobs.gpus.tolist() == [1, 1, 1, 1, 12, 8, 16, 2]
    assert jobs.duration_s[5] == 60
    assert jobs.further("end_s")[5] - jobs.start_s[5] == 90
    assert [text.rsplit(": ", 1)[1] for text in reasons(jobs)] == ["6+1", "10"]
    assert jobs.columns["part"] == [""] * 7 + ["3g.20gb"]


def test_no_policy_starts_a_job_before_it_is_eligible(tmp_path: Path) -> None:
    jobs = sacct(tmp_path, line("1", 0, 500, 600, eligible="400"), line("2", 0, 0, 50))
    outcome = simulate(jobs, parse_site("gpu:2x8"), "fifo", Options())
    assert (outcome.start_s - jobs.submit_s).tolist() == [400, 0]
    assert outcome.jct_s.tolist() == [500, 50]
    assert jobs.further("limit_s").tolist() == [3600, 3600]


def pods(gpus: int, **more: object) -> dict[str, Any]:
    return {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}], **more}}


def thing(kind: str, name: str, spec: object, status: object, created: int = 0, **meta: object) -> dict[str, Any]:
    about = {
        "name": name,
        "namespace": "ns",
        "uid": f"{kind}-{name}",
        "creationTimestamp": clock(created) + "Z",
        **meta,
    }
    return {"kind": kind, "metadata": about, "spec": spec, "status": status}


def held(kind: str, time: int) -> dict[str, str]:
    return {"type": kind, "status": "True", "lastTransitionTime": clock(time) + "Z"}


OWNED = {"ownerReferences": [{"kind": "PyTorchJob", "uid": "PyTorchJob-train", "name": "train", "controller": True}]}
OBJECTS = [
    thing(
        "Job",
        "done",
        {"parallelism": 4, "completions": 8, "activeDeadlineSeconds": 86400, "template": pods(2)},
        {"startTime": clock(20) + "Z", "completionTime": clock(620) + "Z", "conditions": [held("Complete", 620)]},
        labels={"kueue.x-k8s.io/queue-name": "q", "kueue.x-k8s.io/priority-class": "high"},
    ),
    thing(
        "PyTorchJob",
        "train",
        {
            "pytorchReplicaSpecs": {
                "Master": {"replicas": 1, "template": pods(8)},
                "Worker": {"replicas": 3, "template": pods(8)},
            }
        },
        {"startTime": clock(100) + "Z", "conditions": [held("Running", 110)]},
        created=30,
    ),
    thing(
        "Workload",
        "of-train",
        {"queueName": "big", "priority": 500, "podSets": [{"count": 4, "template": pods(8)}]},
        {"conditions": [held("Admitted", 90)]},
        created=31,
        **OWNED,
    ),
    thing("Pod", "train-0", pods(8)["spec"], {"phase": "Running"}, created=91, **OWNED),
    thing(
        "JobSet",
        "set",
        {
            "replicatedJobs": [
                {"replicas": 2, "template": {"spec": {"parallelism": 3, "template": pods(4)}}},
                {"replicas": 1, "template": {"spec": {"template": pods(0)}}},
            ]
        },
        {"conditions": [held("StartupPolicyCompleted", 50), held("Failed", 80)]},
        created=40,
    ),
    thing(
        "RayJob",
        "ray",
        {
            "rayClusterSpec": {
                "headGroupSpec": {"template": pods(0)},
                "workerGroupSpecs": [{"replicas": 2, "numOfHosts": 2, "template": pods(8)}],
            }
        },
        {"jobStatus": "SUCCEEDED", "startTime": clock(60) + "Z", "endTime": clock(90) + "Z"},
        created=50,
    ),
    thing(
        "Pod",
        "init",
        pods(2, initContainers=[{"resources": {"limits": {"nvidia.com/gpu": 8}}}])["spec"],
        {
            "phase": "Succeeded",
            "conditions": [held("PodScheduled", 61)],
            "containerStatuses": [{"state": {"terminated": {"finishedAt": clock(99) + "Z"}}}],
        },
        created=60,
    ),
    thing("Deployment", "web", {"replicas": 2, "template": pods(1)}, {}),
    thing("ClusterQueue", "q", {}, {}),
]


def kubernetes(tmp_path: Path, objects: object) -> Jobs:
    (tmp_path / "log.json").write_text(json.dumps({"kind": "List", "items": objects}))
    return read_jobs(tmp_path / "log.json")


def test_objects_are_jobs_with_their_owners(tmp_path: Path) -> None:
    jobs = kubernetes(tmp_path, OBJECTS)
    assert list(jobs.name) == ["ns/done", "ns/train", "ns/set", "ns/ray", "ns/init"]
    assert jobs.gpus.tolist() == [8, 32, 24, 32, 8]
    assert jobs.submit_s.tolist() == [0, 30, 40, 50, 60]
    assert jobs.start_s.tolist() == [20, 100, 50, 60, 61]
    assert np.nan_to_num(jobs.further("end_s"), nan=-1).tolist() == [620, -1, 80, 90, 99]
    assert jobs.columns["log_state"] == ["COMPLETED", "RUNNING", "FAILED", "COMPLETED", "COMPLETED"]
    assert jobs.columns["queue"] == ["q", "big", "", "", ""]
    assert jobs.columns["priority"] == ["high", "500", "", "", ""]
    assert jobs.further("limit_s")[0] == 86400
    assert [text.rsplit(": ", 1)[1] for text in reasons(jobs)] == ["ns/train", "ns/web"]


def mutated(value: Any, draw: random.Random) -> Any:
    """A copy with one place changed for something of another kind, dropped, or doubled."""
    value = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            places.append((node, key))
            walk(node[key])

    walk(value)
    node, key = draw.choice(places)
    new = draw.choice([None, [], {}, "x", "", -1, 10**30, 1.5, True, [[1]], {"a": 1}, "drop"])
    if new == "drop":
        del node[key]
    else:
        node[key] = new
    return value


def test_mutated_objects_are_read_or_refused(tmp_path: Path) -> None:
    draw, read, errors = random.Random(7), 0, []
    for _ in range(500):
        try:
            read += len(kubernetes(tmp_path, mutated(OBJECTS, draw))) > 0
        except UserError as error:
            errors.append(str(error))
    assert read > 400
    assert all(len(error.splitlines()) == 1 for error in errors)


def test_a_log_of_more_than_the_cluster_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from windtunnel.faces.cli.app import main

    sacct(tmp_path, line("1", 0, 0, 100), line("2", 0, 0, 100))
    log = str(tmp_path / "log.txt")
    assert main(["fleet", log, "--cluster", "gpu:8", "--policy", "current", "--jobs-out", str(tmp_path / "o.csv")]) == 0
    assert "held 16 GPUs at once" in capsys.readouterr().err
    rows = (tmp_path / "o.csv").read_text().splitlines()
    assert rows[0] == "job,queue,priority,gpus,submit_s,start_s,end_s,jct_s,restarts,gpu_seconds,state"
    assert rows[1].startswith("1,gpu,7,8,")
    assert main(["fleet", "lint", log, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["read"], document["not_understood"]) == (2, [])


def test_policies_are_held_against_the_starts_of_the_log(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The log ran FIFO: its starts are found again; the shortest first are off, and the nearest is named."""
    from windtunnel.faces.cli.app import main

    sacct(tmp_path, line("1", 0, 0, 100), line("2", 10, 100, 300), line("3", 20, 300, 310))
    words = ["fleet", str(tmp_path / "log.txt"), "--cluster", "gpu:8", "--policy", "current,fifo,sjf", "--restart", "0"]
    assert main([*words, "--json"]) == 0
    said = capsys.readouterr()
    figures = json.loads(said.out)["policies"]
    assert (figures["fifo"]["log_wait_error"], figures["fifo"]["log_start_error_p50_s"]) == (0, 0)
    assert figures["sjf"]["log_wait_error"] == pytest.approx((100 + 80) / (90 + 280) - 1, abs=1e-5)
    assert "log_wait_error" not in figures["current"]
    assert "fifo is nearest to the log's own starts" in said.err
