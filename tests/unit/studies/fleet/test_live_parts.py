"""Live jobs on shares of GPUs, with real processes, and what a script is told when a job did not complete."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from windtunnel.errors import UserError
from windtunnel.faces.cli import fleet as command_line
from windtunnel.faces.cli.flags import Outputs
from windtunnel.questions.asked.fleet.further import FleetBeside, FleetLive
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.live import beside
from windtunnel.studies.fleet.live.beside import BesideRun
from windtunnel.studies.fleet.live.scheduler import LiveJob, slots_of_parts
from windtunnel.studies.fleet.live.study import run_live
from windtunnel.studies.fleet.parts.profile import Part
from windtunnel.studies.fleet.site import parse_site

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")
TELLS = 'echo "$WINDTUNNEL_GPUS $CUDA_VISIBLE_DEVICES $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" > $WINDTUNNEL_FOLDER/told'


def trace(folder: Path, *rows: str) -> Path:
    path = folder / "jobs.yaml"
    path.write_text("\n".join(f"- {{{row}}}" for row in rows))
    return path


def test_processes_share_gpus_and_are_told_their_share(tmp_path: Path) -> None:
    """Two halves on one of two GPUs; the whole job has the other; the pair of quarters waits for a second GPU."""
    path = trace(
        tmp_path,
        f"job: a, submit_s: 0, gpus: 1, part: 0.5, duration_s: 1, command: '{TELLS}; sleep 0.8'",
        f"job: b, submit_s: 0, gpus: 1, part: 0.5, duration_s: 1, command: '{TELLS}; sleep 0.8'",
        f"job: c, submit_s: 0, gpus: 1, duration_s: 1, command: '{TELLS}; sleep 0.8'",
        f"job: d, submit_s: 0, gpus: 2, part: 0.25, duration_s: 1, command: '{TELLS}'",
    )
    run = run_live(read_jobs(path), parse_site("gpu:1x2"), ["fifo"], tmp_path / "live")
    told = {name: (tmp_path / "live" / name / "told").read_text().split() for name in "abcd"}
    assert told == {"a": ["1", "0", "50"], "b": ["1", "0", "50"], "c": ["1", "1"], "d": ["2", "0,1", "25"]}
    by_name = {row["job"]: row for row in run.jobs}
    assert all(row["state"] == "completed" for row in run.jobs)
    assert by_name["d"]["simulated_jct_s"] == 2.0
    assert by_name["d"]["jct_s"] > 0.8


def test_slots_follow_those_whose_gpu_is_shared() -> None:
    half = Part(500)
    others = [
        LiveJob(0, "a", 0.0, 1, "", part=half, spots=((0, 0, 0),), slots=(2,)),
        LiveJob(1, "b", 0.0, 1, "", slots=(0,)),
    ]
    job = LiveJob(2, "c", 0.0, 3, "", part=half, spots=((0, 0, 0), (0, 1, 0), (1, 0, 0)))
    assert slots_of_parts((4, 4), job, others) == (2, 1, 4)


def test_slices_that_are_there_are_devices_by_their_names(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("gpus: 3\ngpus_per_node: 3\ndevices: [MIG-a, MIG-b, MIG-c]\n")
    rows = (
        f"job: {name}, submit_s: 0, gpus: {gpus}, command: '{TELLS}; sleep 0.3'" for name, gpus in (("a", 1), ("b", 2))
    )
    run_live(read_jobs(trace(tmp_path, *rows)), parse_site(str(site)), ["fifo"], tmp_path / "live")
    told = [(tmp_path / "live" / name / "told").read_text().split() for name in "ab"]
    assert told == [["1", "MIG-a"], ["2", "MIG-b,MIG-c"]]
    for devices in ("[MIG-a]", "[a, a, b]", "all"):
        site.write_text(f"gpus: 3\ngpus_per_node: 3\ndevices: {devices}\n")
        with pytest.raises(UserError, match="give a list of 3 names"):
            parse_site(str(site))


@pytest.mark.parametrize(
    ("policy", "part", "why"),
    [
        ("fifo", "1g.10gb", "a live run cuts none: name slices"),
        ("slurm", "0.5", "slurm gives live jobs whole ones"),
        ("gittins", "0.5", "gittins gives live jobs whole ones"),
        ("fifo", "7", "write a profile"),
    ],
)
def test_what_a_live_run_cannot_give_is_one_line(tmp_path: Path, policy: str, part: str, why: str) -> None:
    path = trace(tmp_path, f"job: notebook, submit_s: 0, gpus: 1, part: {part}, duration_s: 1, command: 'true'")
    with pytest.raises(UserError, match=f"notebook asks for .*{why}"):
        run_live(read_jobs(path), parse_site("gpu:1x2"), [policy], tmp_path / "live")


@pytest.mark.parametrize(("command", "status"), [("true", 0), ("exit 3", 1)])
def test_a_live_job_that_failed_is_told_by_the_exit_status(tmp_path: Path, command: str, status: int) -> None:
    rows = [f"job: a, submit_s: 0, gpus: 1, command: '{command}'", "job: b, submit_s: 0, gpus: 1, command: 'true'"]
    question = FleetLive(trace=str(trace(tmp_path, *rows)), cluster="gpu:1x2", policy="fifo")
    assert command_line.show_live(question, Outputs(), out=tmp_path / "live") == status


@pytest.mark.parametrize(("state", "status"), [("completed", 0), ("failed", 1), ("given up", 1), ("cut off", 1)])
def test_a_batch_job_that_did_not_complete_is_told(monkeypatch, tmp_path: Path, state: str, status: int) -> None:
    jobs = ({"job": "a", "state": "completed", "cpu_s": 1.0, "starts": 1}, {"job": "b", "state": state, "cpu_s": 1.0})
    run = BesideRun("rose", 0.001, 0.001, 0.002, 0.1, 0.5, 2.0, 0, 9, 0, 0, ({**jobs[0]}, {**jobs[1], "starts": 1}))
    monkeypatch.setattr(beside, "answer_beside", lambda question, folder: run)
    question = FleetBeside(jobs=str(tmp_path / "batch.yaml"), service=sys.executable)
    assert command_line.show_beside(question, Outputs(), out=tmp_path) == status
