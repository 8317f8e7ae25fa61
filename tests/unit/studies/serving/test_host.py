"""Hosts with fewer CPUs than an engine has processes."""

from __future__ import annotations

import numpy as np
import pytest

from windtunnel.errors import SpecError
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.studies.serving.build import engine_of
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.host import READ_S, crowd_of
from windtunnel.studies.serving.result import ServingResult
from windtunnel.studies.serving.run import serve_with
from windtunnel.studies.serving.workload.clients import ClosedLoop, FrontEnd
from windtunnel.studies.serving.workload.requests import Workload


def served(cpus: int | None, prompt: int = 4096) -> ServingResult:
    deployment = Deployment(engine="vllm-0.14", tp=4, weights="fp8", host_cpus=cpus)
    engine = engine_of(load_model("qwen3-32b"), parse_cluster("h100-sxm:4"), deployment)
    return serve_with(engine, Workload([prompt] * 32, [64] * 32, None, 8))


def test_a_cpu_for_each_process_changes_nothing() -> None:
    free = {**served(None).to_dict(), "spec": None}
    for cpus in (6, 64):  # four workers, a scheduler, an API server
        assert {**served(cpus).to_dict(), "spec": None} == free


def test_fewer_cpus_are_never_faster() -> None:
    """Requests as a whole: one that was held back may find fewer beside it, and is served the faster."""
    rates = [served(cpus).output_tokens_per_s for cpus in (6, 4, 2, 1)]
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == 4


def test_all_prompts_pass_one_reader() -> None:
    """Six processes on one CPU: no more prompt tokens a second than a sixth of a core reads."""
    result = served(1)
    assert result.requests_per_s * 4096 <= 1.0 / (6 * READ_S)


def test_processes_are_workers_schedulers_and_servers() -> None:
    assert crowd_of(Deployment(tp=8, host_cpus=1)) == 10.0
    assert crowd_of(Deployment(attn_dp=8, moe_ep=8, host_cpus=12)) == 2.0
    assert crowd_of(Deployment(tp=8)) == 1.0
    with pytest.raises(SpecError, match="host_cpus"):
        Deployment(host_cpus=0)


def test_a_front_end_reads_in_the_order_of_sending() -> None:
    work = Workload([10, 20, 30], [1, 1, 1], None, 2)
    front = FrontEnd(ClosedLoop(work), work.input_tokens.tolist(), 2.0)
    assert front.start() == [(20, 0), (60, 1)]
    assert front.answered(0, 1000) == [(1060, 2)]
    assert front.waited_ns == {0: 20, 1: 60, 2: 60}
    assert np.all(work.output_tokens == 1)
