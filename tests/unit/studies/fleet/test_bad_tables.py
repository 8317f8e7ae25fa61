"""Tables, sites and options that cannot be: one error each, or an answer that adds up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from in_this_process import command_line

HEAD = "gpu_type,model,batch_size,gpus,iterations_per_s\n"
JOBS = "job,submit_s,model,batch_size,gpus,iterations,duration_s,deadline_s\n"
TWO = "a,0,m,256,2,100,60,1000\nb,0,m,256,2,100,60,1000\n"


def fleet(folder: Path, jobs: str, rates: str, *words: str) -> tuple[int, str]:
    """Status and what is said, of the exact figures or of the error."""
    (folder / "jobs.csv").write_text(JOBS + jobs)
    if rates:
        (folder / "ef_throughput.csv").write_text(HEAD + rates)
        words = (*words, "--tables", str(folder))
    done = command_line("fleet", str(folder / "jobs.csv"), *words)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("rate", ["-1", "0", "nan", "inf", "fast"])
def test_a_rate_that_cannot_be_names_its_line(tmp_path: Path, rate: str) -> None:
    status, said = fleet(
        tmp_path, TWO, f"t4,m,256,1,1\nt4,m,256,2,{rate}\n", "--cluster", "t4:2x4", "--policy", "optimus"
    )
    assert status == 2
    assert "line 3" in said


def test_jobs_that_were_only_measured_on_several_gpus_get_so_many(tmp_path: Path) -> None:
    status, said = fleet(
        tmp_path, TWO, "t4,m,256,2,1\nt4,m,256,4,1.5\n", "--cluster", "t4:1x4", "--policy", "optimus", "--json"
    )
    assert status == 0
    assert json.loads(said)["completed_jobs"] == 2
    status, said = fleet(tmp_path, TWO, "t4,m,256,8,1\n", "--cluster", "t4:1x4", "--policy", "optimus")
    assert status == 2
    assert "measured on 8 GPUs or more" in said


def test_levels_need_not_be_powers_of_two(tmp_path: Path) -> None:
    jobs, rates = TWO.replace(",256,2,", ",256,3,"), "t4,m,256,3,1\n"
    assert fleet(tmp_path, jobs, rates, "--cluster", "t4:2x4", "--policy", "elasticflow")[0] == 0


def test_nodes_that_fail_never_have_less_than_nothing(tmp_path: Path) -> None:
    jobs = "short,0,,,1,,60,\nlong,0,,,8,,2000000,\n"
    words = ("--cluster", "t4:2x4", "--mtbf-node", "1d", "--checkpoint-every", "never", "--restart", "0", "--json")
    status, said = fleet(tmp_path, jobs, "", *words)
    figures = json.loads(said)
    assert status == 0
    assert figures["unfinished_jobs"] == 1
    assert figures["capacity_gpu_hours"] > 0
    assert 0 < figures["utilisation"] <= 1


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--cluster", "t4:8", "--gpus-per-node", "-4"), "--gpus-per-node"),
        (("--cluster", "t4:8", "--elastic", "7"), "--elastic"),
        (("--cluster", "t4:8", "--spread", "99"), "--spread"),
        (("--cluster", "nodes.csv", "--report", "x.html"), "fleet pack"),
        (("--cluster", "t4:8", "--clock", "adaptdl"), "validation/oracles"),
        (("--cluster", "t4:8", "--slot", "30"), "slot_s"),
        (("--cluster", "t4:8", "--live", "live.yaml"), "fleet live"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_options_without_meaning_are_refused(tmp_path: Path, words: tuple[str, ...], named: str) -> None:
    status, said = fleet(tmp_path, TWO, "", *words)
    assert status == 2
    assert named in said


def test_jobs_left_out_by_any_policy_are_named(tmp_path: Path) -> None:
    file = tmp_path / "ran.csv"
    file.write_text("job,submit_s,gpus,duration_s,start_s\na,0,1,60,5\nb,0,1,60,\n")
    done = command_line("fleet", str(file), "--cluster", "t4:4", "--policy", "fifo,current", "--json")
    assert list(json.loads(done.stdout)["left_out"]) == ["b"]
