import math

import pytest

from windtunnel.cli.fleet_predicted import with_predictions
from windtunnel.fleet.jobs.read import read_jobs
from windtunnel.fleet.outcome import STATES
from windtunnel.fleet.run import Options, simulate
from windtunnel.fleet.site import parse_site
from windtunnel.training import predict

TRACE = """job,submit_s,gpus,duration_s,model,batch_size,seq_len,iterations,tp
named,0,8,,llama-3.1-8b,8,2048,10,
sharded,0,8,,llama-3.1-8b,8,2048,10,2
traced,0,8,77,llama-3.1-8b,8,2048,10,
short,0,8,,llama-3.1-8b,8,,10,
large,0,8,,llama-3.1-405b,8,2048,10,
"""


def test_a_job_that_names_model_and_batch_needs_no_profile(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    site = parse_site("h100-sxm:8")
    jobs, unfit = with_predictions(read_jobs(path), site)
    plan = {"global_batch": 8, "seq_len": 2048}
    plain = predict("llama-3.1-8b", "h100-sxm:8", plan).step_time_s
    sharded = predict("llama-3.1-8b", "h100-sxm:8", {**plan, "tp": 2}).step_time_s
    assert plain != sharded
    assert jobs.duration_s[:3].tolist() == pytest.approx([10 * plain, 10 * sharded, 77])
    assert all(math.isnan(duration) for duration in jobs.duration_s[3:])
    assert len(unfit) == 1
    assert "line 6: llama-3.1-405b does not fit in memory on 8 GPUs" in unfit[0]
    run = simulate(jobs, site, "fifo", Options())
    assert run.end_s[0] == pytest.approx(10 * plain, abs=1e-6)
    assert [STATES[state] for state in run.state] == ["completed"] * 3 + ["dropped"] * 2
    assert run.why == dict.fromkeys((3, 4), "does not say how long it runs")
