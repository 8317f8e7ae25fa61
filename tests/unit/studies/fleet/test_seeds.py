"""Bands over seeds: what they are made of, alike on every executor."""

import json

import pytest

from windtunnel.faces.cli.app import main
from windtunnel.studies.fleet.study import one_seed

ROWS = ["job,submit_s,gpus,duration_s"] + [f"j{at},{at * 300},{1 + at % 9},15000" for at in range(20)]


def asked(trace, **more):
    nodes = {"mtbf_node": "6h"}
    return {"question": {"question": "fleet", "trace": str(trace), "cluster": "gpu:2x8", "capacity": nodes, **more}}


def test_a_band_is_of_the_runs_at_each_seed(tmp_path, capsys):
    trace = tmp_path / "jobs.csv"
    trace.write_text("\n".join(ROWS) + "\n")
    command = ["fleet", str(trace), "--cluster", "gpu:2x8", "--policy", "fifo,easy", "--mtbf-node", "6h"]
    assert main([*command, "--seeds", "5", "--seed", "3", "--json"]) == 0
    policies = json.loads(capsys.readouterr().out)["policies"]
    runs = [one_seed(**asked(trace, policy="easy", seed=3 + at)) for at in range(5)]
    for name in ("jct_mean_s", "failure_lost_gpu_hours", "makespan_s"):
        values = sorted(run[name] for run in runs)
        low, middle, high = policies["easy"]["bands"][name]
        assert middle == pytest.approx(values[2], abs=1e-5)
        assert values[0] <= low <= middle <= high <= values[-1]
        assert policies["easy"][name] == pytest.approx(sum(values) / 5, abs=1e-5)
    assert policies["easy"]["seeds"] == 5
    assert policies["fifo"]["bands"]["jct_mean_s"][0] < policies["fifo"]["bands"]["jct_mean_s"][2]
    assert main([*command, "--seeds", "2"]) == 0
    assert " to " in capsys.readouterr().out
    assert main([*command, "--seeds", "0"]) == 2
    assert main([*command, "--seeds", "2", "--jobs-out", str(tmp_path / "o.csv")]) == 2
    assert main([*command, "--seeds", "2", "--executor", "magic"]) == 2


@pytest.mark.extras
def test_ray_gives_the_same_bands(tmp_path, capsys):
    ray = pytest.importorskip("ray")
    trace = tmp_path / "jobs.csv"
    trace.write_text("\n".join(ROWS) + "\n")
    command = ["fleet", str(trace), "--cluster", "gpu:2x8", "--policy", "fifo,srtf", "--mtbf-node", "6h", "--json"]
    found = []
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)  # or processes take these few
    try:
        for executor in ("serial", "ray"):
            assert main([*command, "--seeds", "3", "--executor", executor]) == 0
            found.append(json.loads(capsys.readouterr().out)["policies"])
    finally:
        ray.shutdown()
    assert found[0] == found[1]
