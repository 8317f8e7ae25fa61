import math
from dataclasses import replace

import pytest

from windtunnel.errors import SpecError, UserError
from windtunnel.studies.fleet.clock.decision import JobView, Snapshot
from windtunnel.studies.fleet.clock.work import Scaling
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.outcome import STATES
from windtunnel.studies.fleet.policies.elastic.optimus import Optimus
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import parse_site
from windtunnel.studies.fleet.speeds.predicted import predicted_speeds, with_predictions
from windtunnel.studies.fleet.study import fleet
from windtunnel.studies.training import predict

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


def test_a_layout_that_is_no_number_is_one_clear_error(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(TRACE.replace("10,2", "10,two"))
    with pytest.raises(SpecError, match="line 3: tp = 'two': give a whole number from 1 on"):
        with_predictions(read_jobs(path), parse_site("h100-sxm:8"))
    path.write_text(TRACE.replace("2048", "²"))
    jobs, unfit = with_predictions(read_jobs(path), parse_site("h100-sxm:8"))
    assert unfit == []
    assert math.isnan(jobs.duration_s[0])  # as where none is said


def test_a_job_whose_model_is_not_known_is_named_by_its_line(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("submit_s,gpus,model,batch_size,seq_len,iterations\n0,8,nobody,8,2048,10\n")
    with pytest.raises(UserError, match=r"trace\.csv line 2: .*unknown model 'nobody'"):
        with_predictions(read_jobs(path), parse_site("h100-sxm:8"))


SIZED = """job,submit_s,gpus,model,batch_size,seq_len,iterations,deadline_s,tp
whole,0,4,llama-3.2-1b,4,1024,1000,100000,
sharded,1,2,llama-3.2-1b,2,1024,1000,100000,2
large,2,8,llama-3.1-405b,8,1024,10,100000,
"""


def test_policies_that_choose_gpus_are_told_predicted_speeds(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(SIZED)
    site = parse_site("h100-sxm:8")
    jobs, _ = with_predictions(read_jobs(path), site)
    speeds = predicted_speeds()
    whole, sharded, large = (dict(speeds(jobs, at, "h100-sxm", 8, 8)) for at in range(3))
    assert list(whole) == [1, 2, 4]  # up to the batch in data parallel
    assert list(sharded) == [2, 4]
    assert large == {}
    step_s = predict("llama-3.2-1b", "h100-sxm:2", {"global_batch": 4, "seq_len": 1024}).step_time_s
    assert whole[2] == pytest.approx(1 / step_s)
    for policy in ("optimus", "pollux", "elasticflow", "edf", "sia"):
        run = simulate(jobs, site, policy, Options(speeds=speeds))
        assert [STATES[state] for state in run.state] == ["completed", "completed", "impossible"], policy
        assert "fits in memory on no number of GPUs" in run.why[2]
        fastest = [1000 / max(whole.values()), 1000 / max(sharded.values())]
        took = run.end_s[:2] - jobs.submit_s[:2]
        assert all(each >= least - 1e-6 for each, least in zip(took, fastest, strict=True)), policy
    with pytest.raises(UserError, match="line 2: how fast this job is"):
        simulate(replace(jobs, columns={}), site, "pollux", Options(speeds=speeds))


def test_a_job_without_batch_is_not_said_to_be_too_large(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("job,submit_s,gpus,model,iterations,deadline_s\na,0,2,m,100,1000\n")
    for policy in ("elasticflow", "pollux", "sia"):
        with pytest.raises(UserError, match=r"line 2: .*batch_size"):
            fleet(path, "v100:4", policy, iteration_s=lambda model, batch, gpus: 1.0 / gpus)


def test_nodes_are_those_of_the_site(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(SIZED)
    jobs = read_jobs(path)
    whole, halves = (dict(predicted_speeds()(jobs, 0, "h100-sxm", per_node, 8)) for per_node in (4, 2))
    assert whole[1] == halves[1]
    assert whole[2] == halves[2]
    assert whole[4] > halves[4]


def test_optimus_goes_from_one_size_with_a_speed_to_the_next():
    work = Scaling(100.0, {2: 2.0, 4: 3.0, 8: 3.5}, 8)
    views = [JobView(at, 0.0, 2, work=work, progress=(0, 0.0)) for at in range(2)]
    assert dict(Optimus().decide(Snapshot(0.0, views, [7])).gpus) == {0: 4, 1: 2}
    assert dict(Optimus().decide(Snapshot(0.0, views[:1], [8])).gpus) == {0: 8}
    assert work.speedups(4, 1)[0].tolist() == [0.0, 0.0, 0.0, 0.0, 0.0]  # nodes of one GPU hold none of it
    assert work.speedups(4, 1)[1].tolist() == [0.0, 0.0, 1.0, 1.0, 1.5]
