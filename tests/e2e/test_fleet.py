"""The command line of the fleet study, as users and scripts call it."""

import csv
import json

import pytest
from in_this_process import command_line

TRACE = "job,submit_s,gpus,duration_s\na,0,8,100\nb,5,8,30\nc,6,4,10\nbig,7,640,10\n"


def windtunnel(*words, status=0):
    run = command_line(*map(str, words))
    assert run.returncode == status, run.stderr
    return run


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def test_jobs_out_and_json(trace, tmp_path):
    out = tmp_path / "out.csv"
    run = windtunnel("fleet", trace, "--cluster", "v100:8", "--policy", "fifo", "--jobs-out", out, "--json")
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert ",".join(rows[0]) == "job,queue,priority,gpus,submit_s,start_s,end_s,jct_s,restarts,gpu_seconds,state"
    assert [(row["start_s"], row["end_s"], row["state"]) for row in rows] == [
        ("0", "100", "completed"),
        ("100", "130", "completed"),
        ("130", "140", "completed"),
        ("", "", "impossible"),
    ]
    document = json.loads(run.stdout)
    assert document["impossible_jobs"] == 1
    assert document["left_out"] == {"big": "asks 640 GPUs of 8"}
    assert document["jct_mean_s"] == pytest.approx((100 + 125 + 134) / 3, abs=1e-5)
    assert "1 job left out" in run.stderr


def test_policies_side_by_side_and_a_page(trace, tmp_path):
    page = tmp_path / "fleet.html"
    run = windtunnel("fleet", trace, "--cluster", "v100:8", "--policy", "fifo,backfill,tiresias,srtf", "--report", page)
    assert "easy" in run.stdout
    text = page.read_text()
    assert "<svg" in text
    assert "http" not in text.replace("http-equiv", "")
    assert "restarts cost nothing" in run.stderr
    assert "restarts cost nothing" in text  # whoever is sent the page reads it too


def test_a_restart_takes_a_time_with_its_unit(trace, tmp_path):
    lost = tmp_path / "lost.csv"
    lost.write_text("time_s,nodes\n0,1\n20,0\n40,1\n")
    lasts = []
    for restart in ("30", "30s", "0.5min"):
        words = ["--policy", "fifo", "--capacity", lost, "--checkpoint-every", "0", "--restart", restart, "--json"]
        lasts.append(json.loads(windtunnel("fleet", trace, "--cluster", "v100:8", *words).stdout)["makespan_s"])
    assert lasts == [lasts[0]] * 3
    refused = windtunnel("fleet", trace, "--cluster", "v100:8", "--policy", "fifo", "--restart", "soon", status=2)
    assert "--restart" in refused.stderr


def test_lint(trace):
    run = windtunnel("fleet", "lint", trace, "--cluster", "v100:8", status=3)
    assert "error: 1 job of more than the 8 GPUs" in run.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--policy", "fifo"), "--cluster is not given"),
        (("--cluster", "v100:8", "--policy", "nonsense"), "--policy = 'nonsense'"),
        (("--cluster", "v100:8", "--clock", "sun"), "--clock = 'sun'"),
        (("--cluster", "v100:8", "--policy", "pollux"), "--tables"),
    ],
)
def test_mistakes_are_one_line(trace, words, message):
    run = windtunnel("fleet", trace, *words, status=2)
    assert message in run.stderr
    assert run.stderr.count("\n") == 1


def test_a_gpu_that_no_node_has_is_told(tmp_path):
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text("node,cpu_milli,memory_mib,gpus,gpu_model\nn0,96000,500000,8,T4\n")
    pods.write_text(
        "pod,create_s,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_models\na,0,1,1,1,1000,T4|K9\nb,1,1,1,1,1000,\n"
    )
    run = windtunnel("fleet", "pack", pods, "--cluster", nodes, "--policy", "fgd", "--json")
    assert json.loads(run.stdout)["warnings"] == [f"gpu_models: no node of {nodes} has K9"]
    assert "has K9" in run.stderr
