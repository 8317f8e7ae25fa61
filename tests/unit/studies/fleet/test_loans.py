"""A serving pool's file, the study's attainment, and Lyra on the command line."""

import json
import math
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from windtunnel.errors import InputFileError, SpecError, UserError
from windtunnel.faces.cli.app import main
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.loans import pool_file
from windtunnel.studies.fleet.loans.frontier import frontier
from windtunnel.studies.fleet.loans.pool import Loans, ServingPool
from windtunnel.studies.fleet.loans.pool_file import read_pool
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import parse_site
from windtunnel.studies.serving.attainment import attained
from windtunnel.studies.serving.goodput import rate_of
from windtunnel.studies.serving.workload.lengths import arrivals
from windtunnel.studies.serving.workload.requests import Workload

POOL = """
model: llama-3.2-1b
gpu: h100-sxm
servers: 2
gpus_per_server: 4
requests: {prompt: 256, output: 32, stream: demand.csv}
slo: {ttft: 500 ms, tpot: 30 ms}
lend: {headroom: 0.0, interval: 60 s, lookback: 0 s, load: 10 s}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pool.yaml").write_text(POOL)
    (tmp_path / "demand.csv").write_text("time_s,servers_needed\n0,2\n600,0.5\n1200,2\n1800,0.5\n")
    rows = [f"{at},{30 * at},{400 + 37 * (at % 5)},{(1, 2, 4)[at % 3]}" for at in range(40)]
    (tmp_path / "jobs.csv").write_text("job,submit_s,duration_s,gpus\n" + "\n".join(rows) + "\n")
    return tmp_path


def test_the_command_line_lends_servers_and_says_who_was_late(folder, monkeypatch, capsys):
    monkeypatch.setattr(pool_file, "PROBED", 500)
    question = ["fleet", str(folder / "jobs.csv"), "--cluster", "a100:2x4", "--policy", "lyra-none,lyra", "--json"]
    assert main([*question, "--serving", str(folder / "pool.yaml"), "--report", str(folder / "page.html")]) == 0
    figures = json.loads(capsys.readouterr().out)["policies"]
    none, both = figures["lyra-none"], figures["lyra"]
    assert none["completed_jobs"] == both["completed_jobs"] == 40
    assert both["queueing_delay_mean_s"] < none["queueing_delay_mean_s"]
    assert both["servers_lent_mean"] > 0 == none["servers_lent_mean"]
    assert none["loan_violations"] == none["loan_violations_alone"] <= both["loan_violations"]
    assert "What lending costs" in (folder / "page.html").read_text()


def test_lyra_without_a_pool_is_refused_and_its_elastic_half_is_not(folder):
    jobs, site = read_jobs(folder / "jobs.csv"), parse_site("a100:2x4")
    with pytest.raises(UserError, match="--serving"):
        simulate(jobs, site, "lyra", Options())
    assert simulate(jobs, site, "lyra-elastic", Options()).state.tolist() == [0] * 40


def test_max_gpus_of_the_trace_come_before_the_draw(folder):
    text = (folder / "jobs.csv").read_text().splitlines()
    lines = [text[0] + ",max_gpus", *(line + ("," if at else ",8") for at, line in enumerate(text[1:]))]
    (folder / "wide.csv").write_text("\n".join(lines) + "\n")
    site = parse_site("a100:2x4")
    outcome = simulate(read_jobs(folder / "wide.csv"), site, "lyra-elastic", Options(loans=Loans(elastic=1.0)))
    held = outcome.gpu_seconds / (outcome.end_s - outcome.start_s)
    assert held[0] > 1.0
    assert held[1:] == pytest.approx(outcome.jobs.gpus[1:])


def test_more_headroom_makes_fewer_late_and_jobs_wait_longer(folder):
    jobs, site = read_jobs(folder / "jobs.csv"), parse_site("a100:2x4")

    def pool(begin_s, end_s):
        times = [begin_s + 60.0 * at for at in range(1000)]
        rates = [10.0 + 5.0 * math.sin(at / 3) for at in range(1000)]
        share = lambda rate: float(np.clip(1.0 - rate / 20.0, 0.0, 1.0))  # noqa: E731
        return ServingPool(3, times, rates, 5.0, share, interval_s=60.0, lookback_s=0.0, gpus_per_server=4)

    points = frontier(jobs, site, Options(loans=Loans(pool)), (0.0, 0.5, 5.0))
    late = [point["loan_violations"] for point in points]
    waits = [point["queueing_delay_mean_s"] for point in points]
    assert late[0] > late[1] > late[2]
    assert waits[0] < waits[2]


def test_a_stream_starts_again_when_it_ends(folder):
    pool = read_pool(folder / "pool.yaml").pool(3.0, lambda rate: 1.0, 1000.0, 6000.0)
    assert pool.server_rate_per_s == 12.0
    assert [pool.rate_at(time) for time in (1000.0, 1600.0, 2200.0, 2800.0, 3400.0, 4000.0)] == [
        24.0, 6.0, 24.0, 6.0, 24.0, 6.0,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (("servers: 2", "servers: 0"), "servers"),
        (("slo:", "sla:"), "sla"),
        (("prompt: 256", "prompt: -1"), "prompt"),
        (("gpus_per_server: 4", "tp: 16"), "tp"),
        (("interval: 60 s", "interval: 0 s"), "interval"),
        (("servers: 2", "servers: 2\nattain: 99"), "attain = 99"),  # no share: no rate keeps it, however long one looks
        (("servers: 2", "servers: 2\nattain: 0"), "attain = 0"),
    ],
)
def test_a_wrong_pool_is_one_message_that_names_the_field(folder, change, what):
    (folder / "pool.yaml").write_text(POOL.replace(*change))
    with pytest.raises(SpecError, match=what):
        read_pool(folder / "pool.yaml")


@pytest.mark.parametrize(
    "stream", ["", "time_s,rate\n0,1\n", "time_s,rate_per_s\n0,1\n0,2\n", "time_s,rate_per_s\n0,x\n"]
)
def test_a_wrong_stream_is_refused(folder, stream):
    (folder / "demand.csv").write_text(stream)
    with pytest.raises(InputFileError, match=r"demand\.csv"):
        read_pool(folder / "pool.yaml")


def test_attainment_falls_with_the_rate_and_is_kept_up_to_the_goodput():
    promise = 0.99

    def run(workload):
        share = float(np.clip(2.0 - rate_of(workload) / 10.0, 0.0, 1.0))
        return SimpleNamespace(feasible=True, slo_attainment=share)

    ones = np.ones(50, np.int64)
    found = attained(run_as_result(run), Workload(ones, ones, arrivals(50, 1.0, 1.0, 0)), promise)
    assert found.goodput_per_s == pytest.approx(10.1, rel=0.02)
    assert found.at(found.goodput_per_s) == pytest.approx(promise, abs=0.02)
    assert found.at(5.0) >= found.at(11.0) > found.at(13.0)
    assert found.at(1000.0) == 0.0


def run_as_result(run):
    """A serving run of which only attainment is asked."""

    @dataclass(frozen=True)
    class Answer:
        feasible: bool
        slo_attainment: float
        goodput_requests_per_s: float = 0.0
        search: object = None
        regime: str = "stable"
        stamps: object = None

    return lambda workload: Answer(True, run(workload).slo_attainment)
