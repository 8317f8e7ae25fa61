"""Logs and configurations as sites print them, beyond what a manual's example has; and a question about the queue."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from windtunnel.errors import UserError
from windtunnel.questions.asked.fleet.further import FleetWhen
from windtunnel.studies.fleet.jobs.lint import lint_jobs
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.policies.slurm.files import read_conf
from windtunnel.studies.fleet.site import parse_site
from windtunnel.studies.fleet.when import answer_when

HEAD = "JobID|JobName|User|Submit|Start|End|Elapsed|State|Timelimit|AllocTRES"


def row(job: str, user: str = "ann", day: int = 2, *, name: str = "train", tres: str = "gres/gpu=4") -> str:
    times = f"2026-03-0{day}T08:00:00|2026-03-0{day}T08:01:00|2026-03-0{day}T09:01:00|01:00:00"
    return f"{job}|{name}|{user}|{times}|COMPLETED|1-00:00:00|{tres}"


def read(tmp_path: Path, *lines: str, head: str = HEAD, name: str = "log.txt") -> Jobs:
    (tmp_path / name).write_text("\n".join([head, *lines]) + "\n")
    return read_jobs(tmp_path / name)


def reasons(jobs: Jobs) -> list[str]:
    return [each.reason for each in jobs.not_understood]


def test_a_bar_in_a_name_is_of_the_name(tmp_path: Path) -> None:
    assert read(tmp_path, row("1", name="a|b|c"), row("2", name='"x" y')).gpus.tolist() == [4, 4]


def test_a_log_that_another_program_wrote_as_csv_and_a_packed_one_are_read(tmp_path: Path) -> None:
    cells = row("1", tres="cpu=4,gres/gpu=8").split("|")
    quoted = ",".join(f'"{cell}"' for cell in cells)
    assert read(tmp_path, quoted, head=HEAD.replace("|", ","), name="log.csv").gpus.tolist() == [8]
    (tmp_path / "log.txt.gz").write_bytes(gzip.compress(f"{HEAD}\n{row('1')}\n".encode()))
    assert read_jobs(tmp_path / "log.txt.gz").gpus.tolist() == [4]


def test_a_line_that_is_there_twice_is_no_restart_and_a_number_given_again_is_another_job(tmp_path: Path) -> None:
    runs = row("1").replace("2026-03-02T09:01:00|01:00:00|COMPLETED", "Unknown|00:30:00|RUNNING")
    jobs = read(tmp_path, runs, row("1"), row("1", user="bob", day=3))
    assert list(jobs.name) == ["1", "1'"]
    assert jobs.duration_s.tolist() == [3600, 3600]
    assert jobs.columns["log_restarts"] == ["0", "0"]
    assert len(jobs.not_understood) == 2


def test_clusters_of_one_log_are_told_apart(tmp_path: Path) -> None:
    head = f"{HEAD}|Cluster"
    with pytest.raises(UserError, match="holds several traces"):
        read(tmp_path, f"{row('1')}|east", f"{row('1')}|west", head=head)
    assert list(read_jobs(tmp_path / "log.txt", "cluster=west").name) == ["west/1"]
    assert list(read(tmp_path, f"{row('1')}|east", head=head).name) == ["1"]


def test_gpus_of_old_logs_are_those_of_each_node(tmp_path: Path) -> None:
    head = "JobID|Submit|Start|End|Elapsed|State|NNodes|ReqGRES"
    times = "2019-03-02T08:00:00|2019-03-02T08:01:00|2019-03-02T09:01:00|01:00:00|COMPLETED"
    assert read(tmp_path, f"1|{times}|2|gpu:a100:4", f"2|{times}|1|gpu:1", head=head).gpus.tolist() == [8, 1]


def test_what_a_site_may_not_know_of_its_log_is_said(tmp_path: Path) -> None:
    lost = row("1").replace("2026-03-02T09:01:00|01:00:00|COMPLETED", "Unknown|90-00:00:00|RUNNING")
    assert "runaway" in reasons(read(tmp_path, lost))[0]
    mixed = row("2", tres="gres/gpu:a100_1g.5gb=1,gres/gpu:a100=1,gres/gpu=2")
    assert "beside whole GPUs" in reasons(read(tmp_path, row("1"), mixed))[0]
    with pytest.raises(UserError, match="AccountingStorageTRES"):
        read(tmp_path, row("1", tres="cpu=4,node=1"))
    with pytest.raises(UserError, match="has no job;"):
        read(tmp_path)
    with pytest.raises(UserError, match="SLURM_TIME_FORMAT"):
        read(tmp_path, row("1").replace("2026-03-02T08:00:00", "02.03.2026 08:00", 1))
    mixed = read(tmp_path, row("2"), row("1", tres="cpu=4,node=1", day=1))
    assert [finding.severity for finding in lint_jobs(mixed)] == [
        "warning"
    ]  # jobs without GPUs are no error of a cluster


SACCT = {
    "job_id": 7, "user": "ann", "partition": "gpu", "priority": {"set": True, "infinite": False, "number": 40},
    "array": {"job_id": 5, "task_id": {"set": True, "infinite": False, "number": 2}, "task": ""},
    "het": {"job_id": 0, "job_offset": {"set": False, "number": 0}}, "state": {"current": ["COMPLETED"]},
    "time": {"submission": 100, "eligible": 100, "start": 160, "end": 760, "elapsed": 600, "suspended": 0,
             "limit": {"set": True, "infinite": False, "number": 30}},
    "tres": {"allocated": [{"type": "gres", "name": name, "count": 8} for name in ("gpu", "gpu:a100")]},
}  # fmt: skip
SQUEUE = {
    "job_id": 9, "user_name": "bob", "job_state": ["RUNNING"], "submit_time": {"set": True, "number": 100},
    "start_time": {"set": True, "number": 200}, "end_time": {"set": True, "number": 9000},
    "node_count": {"set": True, "number": 2}, "time_limit": {"set": True, "number": 60},
    "tres_alloc_str": "cpu=4,node=2", "tres_per_node": "gres/gpu:4",
}  # fmt: skip


def test_json_of_slurm_says_what_its_tables_say(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"jobs": [SACCT], "errors": []}))
    jobs = read_jobs(path)
    assert (list(jobs.name), jobs.gpus.tolist(), jobs.start_s.tolist()) == (["5_2"], [8], [160])
    assert (jobs.duration_s.tolist(), jobs.columns["limit_s"]) == ([600], ["1800.0"])
    path.write_text(json.dumps({"jobs": [SQUEUE], "last_update": {"set": True, "number": 500}}))
    jobs = read_jobs(path)
    assert (list(jobs.name), jobs.gpus.tolist(), jobs.duration_s.tolist()) == (["9"], [8], [300])
    assert jobs.columns["end_s"] == [""]  # what Slurm expects is left out


@pytest.mark.parametrize(
    ("text", "who"),
    [
        ("JobID  JobName  State\n1  a  COMPLETED\n", "sacct"),
        ("   JOBID PARTITION NAME\n1 gpu a\n", "squeue"),
        ("NAMESPACE  NAME  AGE\na  p  3d\n", "kubectl"),
    ],
)
def test_a_table_for_people_is_refused_with_what_to_ask_instead(tmp_path: Path, text: str, who: str) -> None:
    (tmp_path / "log.txt").write_text(text)
    with pytest.raises(UserError, match=f"is {who}'s table for people; write it with `"):
        read_jobs(tmp_path / "log.txt")


def test_slurm_conf_with_includes_continued_lines_and_node_sets(tmp_path: Path) -> None:
    (tmp_path / "nodes.conf").write_text(
        "NodeName=n[1-4] Gres=gpu:a100:8 Features=ib,a100\nNodeName=n[5-6] Gres=gpu:8\n"
    )
    lines = (
        "SchedulerParameters=bf_interval=60,\\\nbf_window=4320\ninclude /etc/slurm/nodes.conf\nNodeSet=fast Feature=ib"
    )
    (tmp_path / "slurm.conf").write_text(f"{lines}\nPartitionName=a Nodes=fast\nPartitionName=b Nodes=n6,n1\n")
    cluster = read_conf(tmp_path / "slurm.conf")
    assert {name: each.nodes for name, each in cluster.partitions.items()} == {"a": 0b001111, "b": 0b100001}
    assert cluster.settings == {"backfill_interval_s": 60.0, "window_s": 259_200.0}
    (tmp_path / "nodes.conf").write_text("include slurm.conf\n")
    with pytest.raises(UserError, match="which includes it"):
        read_conf(tmp_path / "slurm.conf")
    (tmp_path / "site.yaml").write_text("slurm: slurm.conf\ngpus: 64\n")
    with pytest.raises(UserError, match=r"slurm\.conf says which nodes there are"):
        parse_site(str(tmp_path / "site.yaml"))


def queue(tmp_path: Path) -> str:
    head = "JOBID|USER|STATE|TIME|TIME_LIMIT|NODES|TRES_PER_NODE|SUBMIT_TIME|START_TIME|PRIORITY"
    runs = [
        f"{job}|ann|RUNNING|{job}:00:00|10:00:00|1|gpu:8|2026-03-02T07:00:00|2026-03-02T{20 - job}:00:00|1"
        for job in (1, 2)
    ]
    waits = [f"{job}|bob|PENDING|0:00|2:00:00|1|gpu:8|2026-03-02T19:00:00|N/A|{job}" for job in (8, 9)]
    (tmp_path / "queue.txt").write_text("\n".join([head, *runs, *waits]) + "\n")
    return str(tmp_path / "queue.txt")


def test_a_job_that_waits_starts_when_those_that_run_come_to_their_limits(tmp_path: Path) -> None:
    def start(job: str) -> float:
        found = answer_when(FleetWhen(trace=queue(tmp_path), job=job, cluster="gpu:2x8", policy="slurm", seeds=2))
        assert "as the log ends: 2 running and 2 waiting jobs" in found.notes[-1]
        start_s = found.when[0].start_s
        assert start_s is not None
        return (start_s - found.when[0].submit_s) / 3600

    # at eight in the evening one has 8 of its 10 hours left, the other 9; the higher priority starts first
    assert np.allclose([start("9"), start("8")], [8, 9], atol=0.05)
