"""Units and groups of several models: closed forms, conservation, and searches against brute force."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from sm_table import read_sm_tables

from windtunnel.errors import InputFileError
from windtunnel.studies.serving.multiplex.group import Group, serve_groups
from windtunnel.studies.serving.multiplex.unit import Llm, UnitRequest, run_unit
from windtunnel.studies.serving.placement.alpaserve import Groups, Outcome, greedy, group_layouts

HEADER = "model,gpu,gpus,sm_percent,batch,seq_len,prefill_ms,decode_ms\n"


def table(tmp_path: Path) -> Path:
    """Decode 10 ms + batch x 0.1 ms + length x 0.01 ms at full share, twice that at half; prefill 0.1 ms a token."""
    rows = [
        f"m,A100,1,{share},{batch},{length},{0.1 * batch * length * 100 / share},"
        f"{(10 + 0.1 * batch + 0.01 * length) * 100 / share}\n"
        for share, batch, length in product((50, 100), (1, 8, 64), (32, 512))
    ]
    path = tmp_path / "sm.csv"
    path.write_text(HEADER + "".join(rows))
    return path


def llm(tmp_path: Path, asked: list[UnitRequest], most: float = 256, token_bytes: float = 0.0) -> Llm:
    times = read_sm_tables(table(tmp_path))["m", 1]
    return Llm("m", times, asked, 100.0, 100.0, 0.0, 0.0, most, 0.0, token_bytes, 1e12)


def test_tables_are_read_between_their_nodes(tmp_path: Path) -> None:
    times = read_sm_tables(table(tmp_path))["m", 1]
    assert times.decode_s(100.0, 8, 32) == pytest.approx(11.12e-3)
    assert times.decode_s(100.0, 36, 272) == pytest.approx((10 + 3.6 + 2.72) * 1e-3)
    assert times.decode_s(80.0, 8, 32) == pytest.approx(11.12e-3 / 0.8)
    assert times.decode_s(25.0, 8, 32) == pytest.approx(4 * 11.12e-3)
    assert times.prefill_s(50.0, 1000) == pytest.approx(0.2)
    path = tmp_path / "bad.csv"
    path.write_text("model,gpu\n")
    with pytest.raises(InputFileError, match="lacks batch"):
        read_sm_tables(path)


def test_one_request_alone_takes_its_prompt_and_its_steps(tmp_path: Path) -> None:
    answer = run_unit([llm(tmp_path, [UnitRequest(1.0, 32, 11)])], "fcfs", 1.0)[0]
    steps = sum(10.1 + 0.01 * ((32 + k) // 8 * 8) for k in range(1, 11)) * 1e-3
    assert answer.mean_latency_s == pytest.approx(3.2e-3 + steps, rel=1e-6)
    assert answer.throughput_per_s == pytest.approx(1 / (1.0 + answer.mean_latency_s))


@pytest.mark.parametrize("policy", ["adbs", "fcfs"])
def test_all_requests_of_all_models_end_and_give_their_memory_back(tmp_path: Path, policy: str) -> None:
    rng = np.random.default_rng(1)
    models = []
    for _ in range(3):
        asked = [
            UnitRequest(float(t), int(p), int(o))
            for t, p, o in zip(
                np.sort(rng.uniform(0, 20, 40)), rng.integers(1, 300, 40), rng.integers(1, 100, 40), strict=True
            )
        ]
        models.append(llm(tmp_path, asked, 8.0, 1.0))
    run_unit(models, policy, 1000.0)  # type: ignore[arg-type]
    assert all(one.finished == 40 and one.context == 0 and one.inside == 0 for one in models)
    assert sum(one.most for one in models) == pytest.approx(24.0)


def test_one_job_at_a_time_serves_whoever_has_waited_longest(tmp_path: Path) -> None:
    """A model that has the oldest request decodes; the other's request, prompted meanwhile, waits for its end."""
    early, late = llm(tmp_path, [UnitRequest(0.0, 16, 50)]), llm(tmp_path, [UnitRequest(0.05, 16, 50)])
    first, second = run_unit([early, late], "fcfs", 1.0)
    assert first.mean_latency_s < 0.6 < 0.9 < second.mean_latency_s


def test_a_full_pool_takes_back_the_newest_and_computes_it_again(tmp_path: Path) -> None:
    """Three sequences that grow beyond the pool: all end, and the newest last, later than with room for all."""
    asked = [UnitRequest(0.001 * k, 20, 60) for k in range(3)]
    tight, wide = (run_unit([llm(tmp_path, asked, 256, 1.0)], "adbs", pool)[0] for pool in (150.0, 1e6))
    assert tight.mean_latency_s > 1.2 * wide.mean_latency_s


def test_sharing_beats_taking_turns_when_halves_are_enough(tmp_path: Path) -> None:
    """Two models that each keep up with half a GPU: together they end sooner side by side than in turns."""

    def both(policy: str) -> float:
        asked = [UnitRequest(0.05 * k, 16, 50) for k in range(60)]
        models = [llm(tmp_path, asked), llm(tmp_path, asked)]
        for one in models:
            one.prefill_sm = one.decode_sm = 50.0
            one.table.decode_ms[50] = one.table.decode_ms[100]  # decode does not need its SMs
        return sum(answer.mean_latency_s for answer in run_unit(models, policy, 1.0))  # type: ignore[arg-type]

    assert both("adbs") < 0.7 * both("fcfs")


def test_a_pipeline_takes_requests_one_stage_apart() -> None:
    group = Group({0: (1.0, 1.0), 1: (0.5, 0.5)})
    served = serve_groups([group], [(0.0, 0), (0.0, 0), (0.0, 1)], overhead=0.0, slack_s=0.0)
    assert [one.end_s for one in served] == [2.0, 3.0, 3.5]
    limits = (2.5, 3.0)
    served = serve_groups([group], [(0.0, 0), (0.0, 0), (0.0, 1)], limits, overhead=0.0, slack_s=0.0)
    assert [one.end_s for one in served] == [2.0, float("inf"), 2.5]  # the second would be late: it takes no place


def test_utilisation_near_one_is_an_md1_queue() -> None:
    """One stage, Poisson arrivals: mean wait of M/D/1 is rho / (2 (1 - rho)) services."""
    rng = np.random.default_rng(0)
    at = np.cumsum(rng.exponential(1 / 0.7, 200_000))
    served = serve_groups([Group({0: (1.0,)})], [(float(t), 0) for t in at], overhead=0.0)
    wait = np.mean([one.end_s - one.arrival_s - 1.0 for one in served])
    assert wait == pytest.approx(0.7 / (2 * 0.3), rel=0.05)


def simulated(loads: tuple[float, ...], n_groups: int) -> object:
    """Every group serves one unit of load, shared by its models; a model's load goes to all its groups."""

    def run(groups: Groups) -> Outcome:
        homes = [[g for g, models in enumerate(groups) if m in models] for m in range(len(loads))]
        busy = [sum(loads[m] / len(homes[m]) for m in models) for models in groups]
        met = [
            sum(loads[m] / len(homes[m]) * min(1.0, 1.0 / busy[g]) for g in homes[m]) if homes[m] else 0.0
            for m in range(len(loads))
        ]
        missed = tuple(round(1000 * (load - ok)) for load, ok in zip(loads, met, strict=True))
        return Outcome(sum(met) / sum(loads), missed, tuple(busy))

    return run


def test_the_search_comes_close_to_brute_force_and_never_overfills() -> None:
    loads, memory, n = (0.9, 0.6, 0.5, 0.3), (2.0, 1.0, 1.0, 1.0), 2
    simulate = simulated(loads, n)
    sets = [frozenset(m for m in range(4) if bits >> m & 1) for bits in range(16)]
    able = [one for one in sets if sum(memory[m] for m in one) <= 3.0]
    best = max(simulate(groups).attainment for groups in product(able, able))  # type: ignore[operator]
    quick = greedy(n, memory, 3.0, simulate)  # type: ignore[arg-type]
    assert 0.9 * best <= quick.attainment <= best * (1 + 1e-9)
    assert all(sum(memory[m] for m in group) <= 3.0 for group in quick.groups)
    assert quick.attempts > 0


def test_group_layouts_are_uniform_partitions() -> None:
    assert list(group_layouts(4)) == [(4, 1, 1), (2, 1, 2), (2, 2, 1), (1, 1, 4), (1, 2, 2), (1, 4, 1)]
