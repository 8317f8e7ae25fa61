"""Batching policies and routers side by side on the same requests."""

from __future__ import annotations

from typing import Any

import pytest

from windtunnel.errors import UserError
from windtunnel.questions import read
from windtunnel.questions.asked.serve.policies import ServePolicies
from windtunnel.questions.asked.serve.study import Serve
from windtunnel.studies.serving import study
from windtunnel.studies.serving.policies import answer

ASKED = {
    "model": "llama-3.1-8b",
    "cluster": "h100-sxm:2",
    "requests": {"prompt": 2000, "output": 200, "length_ratio": 0.05, "requests": 150},
    "load": {"rate": 40.0},
}


def asked(**more: Any) -> ServePolicies:
    question: ServePolicies = read({"question": "serve policies", **ASKED, **more})
    return question


def test_the_engines_own_is_what_serve_says_and_every_request_ends_under_each() -> None:
    found = answer(asked()).results
    question: Serve = read({"question": "serve", **ASKED})
    plain = study.answer(question).result
    assert found["fcfs"].to_dict() == plain.to_dict()
    assert {one.finished for one in found.values()} == {150}
    assert found["skip-join"].ttft != found["fcfs"].ttft


def test_each_router_stands_beside_each_policy() -> None:
    found = answer(asked(router="round-robin,least-loaded", replicas={"replicas": 2})).results
    assert list(found) == [
        f"{policy}, {router}" for policy in ("fcfs", "skip-join") for router in ("round-robin", "least-loaded")
    ]


def test_swapped_out_requests_come_back() -> None:
    """With 300 blocks of 16 tokens two or three requests fit at once, and the queues take turns."""
    found = answer(asked(engine={"num_gpu_blocks": 300}, policy="skip-join")).results["skip-join"]
    assert found.finished == 150


@pytest.mark.parametrize(
    "more", [{"policy": "sjf"}, {"policy": "fcfs,fcfs"}, {"router": ""}, {"router": "prefix-aware"}, {"router": "x"}]
)
def test_a_mistake_is_one_error(more: dict[str, str]) -> None:
    with pytest.raises(UserError):
        answer(asked(**more))


SEVERAL = {"model": "llama-3.1-8b=4,qwen3-8b=1", "requests": {"prompt": 500, "output": 100, "requests": 120}}


def test_models_that_share_gpus_are_all_served_and_more_load_is_never_sooner() -> None:
    """Hardly asked, a model answers as fast whether it takes turns or not; with a share of the SMs never faster."""
    found = [answer(asked(**SEVERAL, load={"rate": rate}, limits={"ttft": 1.0})).policies for rate in (0.5, 60.0)]
    for policies in found:
        assert list(policies) == ["shares", "turns", "apart"]
        for total, models, _ in policies.values():
            assert total.requests == sum(one.requests for one in models.values()) == 120
            assert total.refused == 0
            assert total.slo_attainment is not None
    for policy in found[0]:
        slow, fast = (policies[policy][0].e2e_s for policies in found)
        assert slow is not None
        assert fast is not None
        assert slow.mean < fast.mean
    light = {policy: total.e2e_s.mean for policy, (total, _, _) in found[0].items() if total.e2e_s}
    assert light["turns"] < 1.3 * light["apart"]
    assert light["shares"] > 0.99 * light["turns"]


def test_ways_to_share_that_are_not_possible_are_said() -> None:
    found = answer(asked(**SEVERAL, cluster="h100-sxm:1", load={"rate": 4.0}))
    assert set(found.policies) == {"shares", "turns"}
    assert "apart: not possible" in found.warnings[0]
    for more in (
        {"policy": "fcfs"},
        {"replicas": {"tp": 2}},
        {"load": {"concurrency": 4}},
        {"model": "llama-3.1-8b,x"},
    ):
        with pytest.raises(UserError):
            answer(asked(**{**SEVERAL, "load": {"rate": 4.0}, **more}))


def test_a_policy_is_known_by_its_papers_name() -> None:
    few = {"requests": {"prompt": 100, "output": 10, "requests": 5}}
    assert list(answer(asked(policy="FastServe,fcfs", **few)).results) == ["skip-join", "fcfs"]
    with pytest.raises(UserError, match="each once"):
        answer(asked(policy="fastserve,skip-join", **few))
