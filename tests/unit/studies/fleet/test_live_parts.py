"""Live jobs on shares of GPUs, with real processes, and what a script is told when a job did not complete."""

from __future__ import annotations

import json
import os
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
    ("policy", "part", "why", "cluster"),
    [
        ("fifo", "1g.10gb", "give --cluster a100:1x2", "gpu:1x2"),
        ("slurm", "0.5", "slurm gives live jobs whole ones", "gpu:1x2"),
        ("gittins", "0.5", "gittins gives live jobs whole ones", "gpu:1x2"),
        ("fifo", "7", "write a profile", "gpu:1x2"),
        *(
            ("fifo", f"1g.10gb{engines}", "no slice with media engines: give part: 1g.10gb$", "a100:1x2")
            for engines in (".me", "+me", "+me.all", ".me.all")
        ),
    ],
)
def test_what_a_live_run_cannot_give_is_one_line(
    tmp_path: Path, policy: str, part: str, why: str, cluster: str
) -> None:
    path = trace(tmp_path, f"job: notebook, submit_s: 0, gpus: 1, part: {part}, duration_s: 1, command: 'true'")
    with pytest.raises(UserError, match=f"notebook asks for .*{why}"):
        run_live(read_jobs(path), parse_site(cluster), [policy], tmp_path / "live")


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


SMI = """#!{python}
import json, os, sys
from pathlib import Path
who = os.environ.get("WHO", "")
state = Path({state!r} + who)
words = sys.argv[1:]
held = json.loads(state.read_text()) if state.exists() else dict(next=1, gpus={{}}, said=[])
held["said"].append(" ".join(words))
sizes = {{"1g.10gb": 1, "3g.40gb": 4, "7g.80gb": 8}}
rc = 0
if words == ["-L"]:
    for gpu, slices in sorted(held["gpus"].items()):
        print(f"GPU {{gpu}}: NVIDIA A100-SXM4-80GB (UUID: GPU-{{gpu}})")
        for at, (number, name, start) in enumerate(slices):
            print(f"  MIG {{name}}     Device  {{at}}: (UUID: MIG-{{gpu}}{{who}}-{{number}})")
else:
    gpu = held["gpus"].setdefault(words[2], [])
    if "-cgi" in words:
        name, start = words[words.index("-cgi") + 1].split(":")
        start, size = int(start), sizes[name]
        if any(begin < start + size and start < begin + sizes[other] for _, other, begin in gpu):
            print("Unable to create a GPU instance: Insufficient Resources")
            rc = 19
        else:
            gpu.append([held["next"], name, start])
            held["next"] += 1
    elif "-dgi" in words:
        gpu[:] = [each for each in gpu if each[0] != int(words[words.index("-gi") + 1])]
    elif "-lgi" in words:
        if not gpu:
            print("No GPU instances found: Not Found")
            rc = 6
        for number, name, start in gpu:
            print(f"|   {{words[2]}}  MIG {{name}}     19     {{number:2}}      {{start}}:{{sizes[name]}}   |")
state.write_text(json.dumps(held))
sys.exit(rc)
"""


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str = SMI) -> Path:
    """A stand-in for nvidia-smi that keeps slices, and refuses those that overlap."""
    (folder / "bin").mkdir(exist_ok=True)
    tool, state = folder / "bin" / "nvidia-smi", folder / "smi.json"
    tool.write_text(script.format(python=sys.executable, state=str(state)))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    return state


@pytest.mark.parametrize("hosts", [(), ("env WHO=b", "")])
def test_slices_are_cut_where_the_scheduler_places_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: tuple[str, ...]
) -> None:
    """Two large slices fill a GPU; a third and the pair have others; in the place of small ones a large one is cut."""
    smi(tmp_path, monkeypatch)
    rows = (
        ("a", 0, 1, "3g.40gb", 1), ("b", 0, 1, "3g.40gb", 1), ("c", 0, 1, "3g.40gb", 1), ("d", 0, 2, "1g.10gb", 1),
        ("e", 0.1, 2, "7g.80gb", 0.5),
    )  # fmt: skip
    path = trace(
        tmp_path,
        *(
            f"job: {name}, submit_s: {at}, gpus: {gpus}, part: {part}, duration_s: {lasts}, "
            f"command: '{TELLS}; sleep {lasts}'"
            for name, at, gpus, part, lasts in rows
        ),
    )
    run = run_live(
        read_jobs(path), parse_site("a100:2x1" if hosts else "a100:1x2"), ["fifo"], tmp_path / "live", 0.0, hosts
    )
    assert all(row["state"] == "completed" for row in run.jobs)
    told = {name: (tmp_path / "live" / name / "told").read_text().split() for name in "abcde"}
    names = [name for told_of in told.values() for name in told_of[1].split(",")]
    assert len(set(names)) == len(names) == 7 - bool(hosts)  # there each half of the last job tells its own
    assert all(len(words) == 2 for words in told.values())  # no share of threads
    assert {name.split("-")[1] for name in told["e"][1].split(",")} <= ({"0", "0b"} if hosts else {"0", "1"})
    held = [json.loads(each.read_text()) for each in tmp_path.glob("smi.json*")]
    assert len(held) == 1 + bool(hosts)
    assert not any(slices for each in held for slices in each["gpus"].values())


def test_what_stands_in_the_way_of_slices_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = "job: a, submit_s: 0, gpus: 1, part: 1g.10gb, command: 'true'"
    jobs, site = read_jobs(trace(tmp_path, row)), parse_site("a100:1x1")
    state = smi(tmp_path, monkeypatch)
    state.write_text(json.dumps({"next": 5, "gpus": {"0": [[4, "1g.10gb", 3]]}, "said": []}))
    with pytest.raises(UserError, match="GPU 0 has 1 slices that this run did not cut"):
        run_live(jobs, site, ["fifo"], tmp_path / "one")
    assert json.loads(state.read_text())["gpus"] == {"0": [[4, "1g.10gb", 3]]}
    smi(tmp_path, monkeypatch, "#!/bin/sh\necho No MIG-enabled devices found.\n")
    with pytest.raises(UserError, match=r"MIG is turned on by `nvidia-smi -i GPU -mig 1`"):
        run_live(jobs, site, ["fifo"], tmp_path / "two")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"does not run .*a live cut of MIG needs it"):
        run_live(jobs, site, ["fifo"], tmp_path / "three")
    both = read_jobs(trace(tmp_path, row, "job: b, submit_s: 0, gpus: 1, command: 'true'"))
    with pytest.raises(UserError, match="b asks for whole GPUs beside jobs of slices"):
        run_live(both, site, ["fifo"], tmp_path / "four")


def test_only_slices_that_a_run_cut_are_destroyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a scheduler that was killed the next clears slices away and cuts in their place; others' stay, whenever."""
    state, journal = smi(tmp_path, monkeypatch), tmp_path / "live" / "journal.jsonl"
    jobs = read_jobs(trace(tmp_path, "job: a, submit_s: 0, gpus: 1, part: 3g.40gb, command: 'true'"))
    journal.parent.mkdir()
    # Cut: two, and before the second (at 6) somebody else's at 2 was there; the third was not cut any more.
    entries = [{"what": "begin", "origin": 0.0}]
    entries += [{"what": "cut", "cut": cut} for cut in ([0, 0, 3, 1], [0, 0, 6, 1, 4, 7], [0, 0, 2, 1, 4, 7, 8])]
    journal.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    there = [[4, "1g.10gb", 3], [7, "1g.10gb", 2], [8, "1g.10gb", 6]]
    state.write_text(json.dumps({"next": 9, "gpus": {"0": there}, "said": []}))
    (job,) = run_live(jobs, parse_site("a100:1x1"), ["fifo"], tmp_path / "live").jobs
    assert job["state"] == "completed"
    held = json.loads(state.read_text())
    assert held["gpus"] == {"0": [[7, "1g.10gb", 2]]}
    assert "mig -i 0 -cgi 3g.40gb:4 -C" in held["said"]
    for slices in ([[9, "3g.40gb", 4]], [[4, "1g.10gb", 3], [9, "1g.10gb", 6]]):  # cut by others since
        state.write_text(json.dumps({"next": 10, "gpus": {"0": slices}, "said": []}))
        run_live(jobs, parse_site("a100:1x1"), ["fifo"], tmp_path / "live")
        assert json.loads(state.read_text())["gpus"] == {"0": slices}


def test_a_cut_that_failed_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are in the way; what they cut in that place once the run has ended is theirs."""
    state = smi(tmp_path, monkeypatch)
    rows = (
        "job: a, submit_s: 0, gpus: 1, part: 1g.10gb, command: 'true'",
        "job: b, submit_s: 1, gpus: 1, part: 7g.80gb, command: 'true'",
    )
    jobs, site = read_jobs(trace(tmp_path, *rows)), parse_site("a100:1x1")
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "journal.jsonl").write_text(json.dumps({"what": "begin", "origin": 0.0}) + "\n")
    for slices in ([[8, "3g.40gb", 0]], [[9, "7g.80gb", 0]]):
        state.write_text(json.dumps({"next": 10, "gpus": {"0": slices}, "said": []}))
        with pytest.raises(UserError, match=r"Insufficient Resources$"):
            run_live(jobs, site, ["fifo"], tmp_path / "live")
        assert [each for each in json.loads(state.read_text())["gpus"]["0"] if each in slices] == slices


@pytest.mark.parametrize("hosts", [(), ("env WHO=b", "")])
def test_a_slice_in_use_at_the_end_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], hosts: tuple[str, ...]
) -> None:
    """What cannot be destroyed is named beside the answer; the same command again destroys it."""
    in_use = SMI.replace(
        '    if "-cgi"', '    if "-dci" in words:\n        print(\'In use\')\n        rc = 19\n    if "-cgi"'
    )
    state = smi(tmp_path, monkeypatch, in_use)
    path = trace(tmp_path, "job: a, submit_s: 0, gpus: 2, part: 7g.80gb, command: 'true'")
    cluster = "a100:2x1" if hosts else "a100:1x2"
    question = FleetLive(trace=str(path), cluster=cluster, policy="fifo", host=hosts)
    assert command_line.show_live(question, Outputs(), out=tmp_path / "live") == 0
    shown = capsys.readouterr()
    assert "completed" in shown.out
    said = " ".join((shown.out + shown.err).split())
    for place in ("node 0, GPU 0", "node 1, GPU 0" if hosts else "GPU 1"):
        assert f"{place}, place 0 (" in said
    assert "-dci` failed: In use): free it" in said
    assert "MIG is turned on" not in said
    smi(tmp_path, monkeypatch)
    assert not run_live(read_jobs(path), parse_site(cluster), ["fifo"], tmp_path / "live", 0.0, hosts).warnings
    held = [json.loads(each.read_text()) for each in state.parent.glob("smi.json*")]
    assert not any(slices for each in held for slices in each["gpus"].values())
