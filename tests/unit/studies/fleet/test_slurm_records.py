"""What scontrol, squeue and the completion log say of jobs is what sacct says of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from windtunnel.errors import InputFileError
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.jobs.trace import Jobs

SHOWN = """JobId=7 JobName=train model x.sh
   UserId=ana(1001) GroupId=users(100) MCS_label=N/A
   Priority=99 Nice=0 Account=nlp QOS=high WCKey=*
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=01:00:00 TimeLimit=1-00:00:00 TimeMin=N/A
   SubmitTime=2026-03-02T08:00:00 EligibleTime=2026-03-02T08:00:00
   StartTime=2026-03-02T08:10:00 EndTime=2026-03-03T08:10:00 Deadline=N/A
   Partition=gpu AllocNode:Sid=login:1 NodeList=n[1-2] NumNodes=2 NumCPUs=32
   TRES=cpu=32,mem=200G,node=2,billing=32,gres/gpu=16
   Command=/home/ana/train.sh --lr=3e-4 Deep=1
   WorkDir=/home/ana

JobId=12 ArrayJobId=12 ArrayTaskId=3-5%2 JobName=eval
   UserId=ben(1002) Priority=90 Account=cv QOS=normal
   JobState=PENDING Reason=Resources Dependency=(null)
   RunTime=00:00:00 TimeLimit=02:00:00
   SubmitTime=2026-03-02T08:30:00 EligibleTime=2026-03-02T08:30:00
   StartTime=2026-03-02T12:00:00 EndTime=2026-03-02T14:00:00 Deadline=N/A
   Partition=gpu NumNodes=1-1 NumCPUs=8
   TRES=cpu=8,node=1,billing=8 TresPerNode=gres:gpu:a100:4
"""
SACCT = """JobID|Submit|Eligible|Start|End|Elapsed|Timelimit|AllocTRES|User|Account|Partition|QOS|Priority|State|Reason
7|2026-03-02T08:00:00|2026-03-02T08:00:00|2026-03-02T08:10:00|Unknown|01:00:00|1-00:00:00|gres/gpu=16|ana|nlp|gpu|high|99|RUNNING|None
12_[3-5%2]|2026-03-02T08:30:00|2026-03-02T08:30:00|Unknown|Unknown|00:00:00|02:00:00|gres/gpu=4|ben|cv|gpu|normal|90|PENDING|Resources
"""
SQUEUE = """JOBID|SUBMIT_TIME|START_TIME|END_TIME|TIME|TIME_LIMIT|NODES|TRES_PER_NODE|USER|ACCOUNT|PARTITION|QOS|ST
7|2026-03-02T08:00:00|2026-03-02T08:10:00|2026-03-03T08:10:00|1:00:00|1-00:00:00|2|gres:gpu:8|ana|nlp|gpu|high|R
12_[3-5%2]|2026-03-02T08:30:00|2026-03-02T12:00:00|2026-03-02T14:00:00|0:00|2:00:00|1|gres/gpu:4|ben|cv|gpu|normal|PD
"""
LOGGED = (
    "JobId=3 UserId=root(0) GroupId=root(0) Name=j.sh JobState=COMPLETED Partition=p TimeLimit=90"
    " StartTime=2026-03-02T08:00:05 EndTime=2026-03-02T09:00:05 NodeList=n[1-2] NodeCnt=2 ProcCnt=16 WorkDir=/tmp"
    " Tres=cpu=16,node=2,gres/gpu=8 SubmitTime=2026-03-02T08:00:00 EligibleTime=2026-03-02T08:00:00 ExitCode=0:0 \n"
)
SAID_BY_ALL = ("limit_s", "queue", "qos", "account", "log_state", "ended")


def read(tmp_path: Path, text: str) -> Jobs:
    path = tmp_path / "log.txt"
    path.write_text(text)
    return read_jobs(path)


@pytest.mark.parametrize("text", [SHOWN, SHOWN.replace("\n   ", " "), SQUEUE])
def test_scontrol_and_squeue_say_what_sacct_says(tmp_path: Path, text: str) -> None:
    theirs, ours = read(tmp_path, SACCT), read(tmp_path, text)
    assert ours.name == theirs.name == ["7", "12_3", "12_4", "12_5"]
    assert ours.user == theirs.user
    for name in ("submit_s", "start_s", "duration_s", "gpus"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), name)
    for name in SAID_BY_ALL:
        assert ours.columns[name] == theirs.columns[name], name
    assert ours.columns["ended"] == ["unfinished"] * 4
    assert ours.columns["log_state"] == ["RUNNING", "PENDING", "PENDING", "PENDING"]
    assert np.isnan(ours.start_s).tolist() == [False, True, True, True]
    assert ours.columns["gpu_type"] == ["", *["a100" if "a100" in text else ""] * 3]


def test_a_record_of_the_completion_log_has_its_limit_in_minutes(tmp_path: Path) -> None:
    jobs = read(tmp_path, LOGGED)
    assert (jobs.name, jobs.gpus.tolist(), jobs.duration_s.tolist()) == (["3"], [8], [3600.0])
    assert [float(text) for text in jobs.columns["limit_s"]] == [5400.0]
    assert jobs.columns["log_state"] == ["COMPLETED"]


@pytest.mark.parametrize(("code", "state", "ended"), [("CF", "RUNNING", "unfinished"), ("CG", "COMPLETED", "")])
def test_nodes_that_boot_are_held_and_a_job_that_completes_has_ended(
    code: str, state: str, ended: str, tmp_path: Path
) -> None:
    jobs = read(tmp_path, SQUEUE.replace("|high|R", f"|high|{code}"))
    assert (jobs.columns["log_state"][0], jobs.columns["ended"][0]) == (state, ended)
    assert jobs.start_s[0] == jobs.submit_s[0] + 600.0


def test_squeue_must_say_when_jobs_came(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match=r"without SUBMIT_TIME.*%V"):
        read(tmp_path, "JOBID|ST|TIME\n7|R|1:00\n")


@pytest.mark.parametrize("text", ["JobId=1\n", "JobId=1 SubmitTime=now\n", "JobId=1 =\n", "JobId=9 TimeLimit=\n"])
def test_a_torn_record_is_one_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputFileError):
        read(tmp_path, text)
