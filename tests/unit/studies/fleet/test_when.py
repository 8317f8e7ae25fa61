import json
import math
from statistics import NormalDist

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import SpecError, UserError
from windtunnel.faces.cli.app import main
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.site import parse_site
from windtunnel.studies.fleet.when import when

TRACE = "job,submit_s,gpus,duration_s\na,0,8,100\nb,80,8,50\nc,90,4,20\nd,95,4,10\nbig,96,640,5\n"
SITE = parse_site("v100:8")
COUNTED = Options(pool=True)


def jobs_of(folder, text=TRACE):
    path = folder / "trace.csv"
    path.write_text(text)
    return read_jobs(path)


@pytest.mark.parametrize("policy", ["fifo", "fifo-skip", "sjf", "sjf-skip", "easy", "tiresias", "gittins", "srtf"])
@settings(max_examples=12, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 40), st.sampled_from([1, 2, 4, 8]), st.integers(1, 30)), min_size=2),
    pick=st.integers(0, 1),
)
def test_without_spread_the_run_goes_on_as_traced(tmp_path_factory, policy, rows, pick):
    text = "job,submit_s,gpus,duration_s\n" + "".join(f"{at},{s},{g},{d}\n" for at, (s, g, d) in enumerate(rows))
    answer = when(jobs_of(tmp_path_factory.mktemp("when"), text), SITE, policy, COUNTED, str(pick), draws=1, spread=0)
    assert answer.start_band_s == pytest.approx((answer.start_s,) * 3, abs=1e-5)
    assert answer.end_band_s == pytest.approx((answer.end_s,) * 3, abs=1e-5)


@pytest.mark.parametrize("policy", ["fifo", "tiresias"])
def test_the_wait_behind_one_job_is_what_is_left_of_it(tmp_path, policy):
    answer = when(jobs_of(tmp_path), SITE, policy, Options(), "b", draws=600, spread=0.3)
    normal, least = NormalDist(), math.log(80 / 100) / 0.3  # b comes when 80 of the 100 s are done
    for found, share in zip(answer.start_band_s, (0.05, 0.5, 0.95), strict=True):
        begun = normal.cdf(least)
        assert found == pytest.approx(100 * math.exp(0.3 * normal.inv_cdf(begun + share * (1 - begun))), rel=0.06)
    assert answer.start_band_s[0] > 80
    assert answer.ended_draws == 600
    assert answer == when(jobs_of(tmp_path), SITE, policy, Options(), "b", draws=600, spread=0.3)


def test_why_it_waits(tmp_path):
    jobs = jobs_of(tmp_path)
    held = when(jobs, SITE, "fifo", Options(), "c", draws=2).why
    assert [(holder.job, holder.gpus, holder.end_s) for holder in held.holders] == [("a", 8, 100.0)]
    assert (held.free_gpus, held.ahead, held.freed_by) == (0, ("b",), ("b",))
    assert "0 of 8 are free" in held.text
    assert when(jobs, SITE, "sjf", Options(), "b", draws=2).why.overtaking == ("c", "d")
    assert "does not wait" in when(jobs, SITE, "fifo", Options(), "a", draws=2).why.text
    scattered = "job,submit_s,gpus,duration_s\na,0,5,9\nb,0,5,9\nc,1,6,9\n"
    answer = when(jobs_of(tmp_path, scattered), parse_site("v100:16"), "fifo-skip", Options(), "c", draws=2)
    assert (answer.why.free_gpus, "not on nodes" in answer.why.text) == (6, True)


def test_what_cannot_be_answered(tmp_path):
    jobs = jobs_of(tmp_path)
    with pytest.raises(SpecError, match="has no such job; it has a, b"):
        when(jobs, SITE, "fifo", Options(), "nobody")
    with pytest.raises(UserError, match=r"job big .* cannot run: it asks 640 GPUs of 8"):
        when(jobs, SITE, "fifo", Options(), "big")
    with pytest.raises(SpecError, match="this is answered for fifo"):
        when(jobs, SITE, "current", Options(), "a")


def run_cli(capsys, *words):
    assert main([*map(str, words)]) == 0
    return capsys.readouterr()


def test_the_command_answers_for_each_policy(tmp_path, capsys):
    jobs_of(tmp_path)
    words = ("fleet", "when", tmp_path / "trace.csv", "c", "--cluster", "v100:8", "--policy", "fifo,backfill")
    document = json.loads(run_cli(capsys, *words, "--seeds", "3", "--json").out)
    assert set(document["when"]) == {"fifo", "easy"}
    assert document["when"]["fifo"]["start_s"] == 150
    assert document["when"]["fifo"]["draws"] == 3
    text = run_cli(capsys, *words).out
    assert "held by: a (8 GPUs, until 100 s)" in text
    assert "ahead: b" in text
    assert "40 draws" in text


def test_a_job_of_a_part_is_left_out_beside_others(tmp_path):
    text = "job,submit_s,gpus,duration_s,part\na,0,8,100,\nslice,10,1,500,1g.10gb\nb,80,8,50,\n"
    answer = when(jobs_of(tmp_path, text), SITE, "fifo", Options(), "b", draws=2)
    assert answer.start_s == 100.0
    assert answer.uncertainty.endswith("; 1 job of parts of GPUs left out")
    with pytest.raises(UserError, match="slice asks for"):
        when(jobs_of(tmp_path, text), SITE, "fifo", Options(), "slice", draws=2)
