"""Batching policies and routers side by side on the same requests."""

from __future__ import annotations

from typing import Any

import pytest

from windtunnel.errors import UserError
from windtunnel.questions import read
from windtunnel.questions.asked.serve import Serve
from windtunnel.questions.asked.serve_policies import ServePolicies
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
