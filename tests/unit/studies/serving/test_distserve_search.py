"""DistServe's searches against brute force on plain tables, and on the serving core."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from windtunnel import Deployment, load_model, parse_cluster
from windtunnel.errors import SpecError, UserError
from windtunnel.studies.serving.build import engine_of
from windtunnel.studies.serving.disaggregated.decode_only import DecodeOnly
from windtunnel.studies.serving.loop import simulate
from windtunnel.studies.serving.measures import stamps_of
from windtunnel.studies.serving.placement.distserve import high_affinity, layouts, low_affinity
from windtunnel.studies.serving.placement.search import Question, search_distserve
from windtunnel.studies.serving.run import regime_of
from windtunnel.studies.serving.workload.requests import Workload


def test_layouts_are_powers_of_two_inside_a_node() -> None:
    assert list(layouts(4)) == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (4, 1)]
    assert (16, 1) not in list(layouts(16, 2, 8))
    assert (8, 2) in list(layouts(16, 2, 8))


def test_phases_apart_each_get_their_best_per_gpu_and_as_many_as_the_rate_asks() -> None:
    prefill = {(1, 1): 1.0, (2, 1): 3.0, (4, 1): 4.0}
    decode = {(1, 1): 2.0, (2, 1): 3.0, (4, 1): 5.0}
    found = high_affinity(prefill.__getitem__, decode.__getitem__, list(prefill), 7.0)
    assert (found.prefill, found.decode) == ((2, 1), (1, 1))
    assert (found.prefill_instances, found.decode_instances) == (3, 4)
    assert found.gpus == 10
    assert found.goodput_per_gpu_per_s == pytest.approx(1 / (2 / 3 + 1 / 2))
    assert len(found.tried) == 6


def test_pairs_stay_in_their_node_and_the_best_per_gpu_is_copied() -> None:
    def pair(p: tuple[int, int], d: tuple[int, int]) -> float:
        return min(3.0 * p[0] ** 0.8 * p[1] ** 0.9, 2.0 * d[0] ** 0.9 * d[1] ** 0.5)

    choices = list(layouts(7))
    found = low_affinity(pair, choices, 8, 20.0)
    best = max(
        (pair(p, d) / (p[0] * p[1] + d[0] * d[1]), p, d)
        for p in choices
        for d in choices
        if p[0] * p[1] + d[0] * d[1] <= 8
    )
    assert found.goodput_per_gpu_per_s == pytest.approx(best[0])
    assert found.prefill_instances * pair(found.prefill, found.decode) >= 20.0
    assert found.runner_up is not None
    assert found.runner_up.per_gpu <= found.goodput_per_gpu_per_s


def test_nothing_that_holds_is_said() -> None:
    with pytest.raises(SpecError, match="no prefill holds the limits"):
        high_affinity(lambda layout: 0.0, lambda layout: 1.0, [(1, 1)], 1.0)
    with pytest.raises(SpecError, match="--rate"):
        low_affinity(lambda p, d: 1.0, [(1, 1)], 4, 0.0)


def test_the_command_line_finds_a_pair_that_beats_its_runner_up() -> None:
    words = "llama-3.1-8b --cluster h100-sxm:4 --prompt 800 --output 200 --rate 5 --requests 150"
    words += " --slo ttft=200ms,tpot=20ms --attain 0.9 --method distserve --json"
    command = [sys.executable, "-m", "windtunnel", "serve", "plan", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["candidates"] == len(answer["tried"]) > 5
    assert answer["goodput_per_gpu_per_s"] == max(one["goodput_per_gpu_per_s"] for one in answer["tried"])
    assert answer["gpus"] <= 4 * answer["prefill"]["instances"]


def test_what_the_front_end_takes_counts_in_the_search(tmp_path: Path) -> None:
    file = tmp_path / "slow.yaml"
    file.write_text("releases: {'1': {first_token_s: 0.3}}\n")
    slo = {"ttft_s": 0.2, "tpot_s": 0.05}
    load = _load(60, 0.5)
    question = Question(
        load_model("llama-3.1-8b"), parse_cluster("h100-sxm:2"), Deployment(engine=str(file)), load, slo, 0.9, 1.0
    )
    with pytest.raises(SpecError, match="no pair on 2 GPUs holds the limits"):
        search_distserve(question)


@pytest.mark.parametrize(
    ("model", "cluster", "blocks", "told"),
    [
        ("llama-3.1-8b", "h100-sxm:1", None, "two GPUs at least"),
        ("llama-3.1-405b", "h100-sxm:2", None, "no layout has room for llama-3.1-405b"),
        ("llama-3.1-405b", "h100-sxm:16", 10, "no layout has room for llama-3.1-405b and a request of 820 tokens"),
    ],
)
def test_where_no_layout_has_room_looser_limits_are_no_remedy(
    model: str, cluster: str, blocks: int | None, told: str
) -> None:
    slo = {"ttft_s": 1.0, "tpot_s": 0.05}
    layout = Deployment(num_gpu_blocks=blocks)
    with pytest.raises(SpecError, match=told) as found:
        search_distserve(Question(load_model(model), parse_cluster(cluster), layout, _load(9, 0.5), slo, 0.9, 1.0))
    assert "--slo" not in str(found.value)


def _load(requests: int, gap_s: float) -> Workload:
    arrivals = np.arange(requests) * round(gap_s * 1e9)
    return Workload(np.full(requests, 800), np.full(requests, 20), arrivals)


def _question(requests: int) -> Question:
    model, cluster = load_model("llama-3.1-8b"), parse_cluster("h100-sxm:2")
    limits = {"ttft_s": 1000.0, "tpot_s": 100.0}  # longer than all runs
    return Question(model, cluster, Deployment(), _load(requests, 0.2), limits, 0.9, 5.0)


def test_limits_as_long_as_the_run_do_not_make_a_rate_that_no_replica_can_keep() -> None:
    asked = _question(150)
    engine = engine_of(asked.model, asked.cluster, asked.deployment)
    sent, _ = simulate(_load(150, 0.0), [engine.replica()], None, block_size=engine.rules.block_size)
    all_at_once = 150 / stamps_of(sent).last.max()  # requests per second of one GPU that always has work
    found = search_distserve(asked)
    assert 0.5 * all_at_once < found.goodput_per_gpu_per_s * 2 < 4.0 * all_at_once


def test_requests_too_few_to_say_anything_are_refused() -> None:
    with pytest.raises(UserError, match="use more requests"):
        search_distserve(_question(2))


def test_a_decode_replica_that_falls_behind_is_over_its_limit() -> None:
    engine = engine_of(load_model("llama-3.1-8b"), parse_cluster("h100-sxm:1"), Deployment(max_num_seqs=8))
    for gap_s, regime in ((0.001, "over"), (1.0, "stable")):
        load = _load(200, gap_s)
        sent, _ = simulate(load, [DecodeOnly(engine.replica())], None, block_size=engine.rules.block_size)
        assert regime_of(stamps_of(sent), load) == regime
