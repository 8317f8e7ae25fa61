"""Laws of planning: bounds never exceed what is replayed, and the search equals looking at every plan."""

from __future__ import annotations

import random

import pytest
from every_plan import best_of_all, every_plan

from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.studies.planning.oracle import checked, laid_out, memory_bytes, predict, replayed, straggling
from windtunnel.studies.planning.search.best_first import LET_GO, Search
from windtunnel.studies.planning.search.bounds import Bounds
from windtunnel.studies.planning.space.plan_space import Space, count, structures, switches

CASES = [
    ("llama-3-8b", 8, "h100-sxm:16", {"global_batch": 16, "seq_len": 2048}, 3),
    ("llama-3-8b", 6, "a100-sxm4-80gb:8", {"global_batch": 8, "seq_len": 4096, "framework": "torchtitan"}, 3),
    ("mixtral-8x7b", 3, "h100-sxm:16", {"global_batch": 32, "seq_len": 2048}, 3),
    ("llama-3-8b", 5, "h100-sxm:8", {"global_batch": 16, "seq_len": 2048, "framework": "nanotron"}, 2),
    ("llama-3-8b", 4, "h100-sxm:8", {"global_batch": 16, "seq_len": 2048, "framework": "pytorch"}, 2),
    ("llama-3-8b", 4, "h100-sxm:8", {"global_batch": 16, "seq_len": 2048, "framework": "fsdp"}, 2),
    ("deepseek-v2-lite", 5, "h100-sxm:16", {"global_batch": 32, "seq_len": 2048}, 2),
]


def space_of(model: str, layers: int, cluster: str, given: dict) -> Space:
    return Space(load_model(model).with_changes(layers=layers), parse_cluster(cluster), given)


def sample_of_plans(space: Space, number: int, seed: int) -> list:
    """Plans drawn over structures first, so that rare ones come up."""
    draw = random.Random(seed)
    kept = list(structures(space))
    chosen = draw.sample(kept, min(number, len(kept)))
    return [draw.choice(list(every_plan(fixed(space, one)))) for one in chosen]


def fixed(space: Space, layout) -> Space:
    plan = layout.user_plan
    names = ("tp", "pp", "cp", "cp_kind", "ep", "etp", "micro_batch", "virtual_stages", "schedule", "compile")
    return Space(space.model, space.cluster, {**space.fixed, **{n: getattr(plan, n) for n in names}})


@pytest.mark.parametrize(("model", "layers", "cluster", "given", "number"), CASES)
def test_bounds_never_exceed_what_is_replayed(model, layers, cluster, given, number) -> None:
    space = space_of(model, layers, cluster, given)
    bounds = Bounds(straggling(space.cluster))
    for layout in sample_of_plans(space, 2 * number, seed=number):
        saving = {"zero_stage": layout.plan.zero_stage, "recompute": layout.plan.recompute}
        options = switches(space, layout, saving)
        found = replayed(layout)
        rising = [
            bounds.work_ns(layout),
            bounds.structure_ns(layout, options),
            bounds.recomputed_ns(layout, options),
            bounds.saving_ns(layout, options),
            bounds.best_switches_ns(layout, options),
            bounds.step_ns(layout),
        ]
        assert max(rising) <= found.step_ns, (layout.plan, [one / found.step_ns for one in rising])
        assert bounds.state_bytes(layout) <= bounds.memory_bytes(layout) <= found.peak_bytes == memory_bytes(layout)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "zb-v", "dualpipe", "dualpipe-v"])
def test_bounds_hold_for_every_schedule(schedule: str) -> None:
    space = space_of("llama-3-8b", 8, "h100-sxm:8", {"global_batch": 32, "seq_len": 2048, "pp": 4, "tp": 2})
    space = Space(space.model, space.cluster, {**space.fixed, "schedule": schedule, "recompute": "none"})
    bounds = Bounds(straggling(space.cluster))
    seen = 0
    for layout in structures(space):
        if layout.plan.micro_batch > 2:
            continue
        found = replayed(layout)
        assert bounds.step_ns(layout) <= found.step_ns
        assert bounds.memory_bytes(layout) <= found.peak_bytes
        seen += 1
    assert seen


def test_the_memory_bound_counts_every_piece_in_flight() -> None:
    """One layer in a piece, none in the first and the last: most of the memory is what micro-batches keep."""
    plan = {"global_batch": 256, "seq_len": 8192, "tp": 4, "pp": 2, "virtual_stages": 5, "micro_batch": 4}
    plan |= {"layers_per_stage": [0, *[1] * 8, 0], "recompute": "none", "zero_stage": 1}
    cluster = parse_cluster("h100-sxm:64")
    layout = laid_out(load_model("llama-3-70b").with_changes(layers=8), cluster, checked(plan))
    least, exact = Bounds(straggling(cluster)).memory_bytes(layout), memory_bytes(layout)
    assert 0.8 * exact < least <= exact  # the rest is what a pass needs while it runs


def test_a_replay_is_what_predict_says() -> None:
    space = space_of(*CASES[0][:4])
    for layout in sample_of_plans(space, 4, seed=1):
        result = predict(space.model, space.cluster, layout.user_plan)
        found = replayed(layout)
        assert found.step_ns == result.step_time_ns
        assert found.peak_bytes == result.peak_memory.device_bytes
        assert found.fits == (result.status == "ok")


SMALL = [
    ("llama-3-8b", 4, "h100-sxm:4", {"global_batch": 4, "seq_len": 2048, "cp": 1, "tp": 2, "cuda_graphs": False}),
    ("llama-3-8b", 6, "h100-sxm:2", {"global_batch": 2, "seq_len": 16384, "cp": 1, "tp": 1, "cuda_graphs": False}),
    ("mixtral-8x7b", 1, "h100-sxm:2", {"global_batch": 2, "seq_len": 2048, "cp": 1, "zero_stage": 1, "etp": 1}),
]


@pytest.mark.parametrize(("model", "layers", "cluster", "given"), SMALL)
def test_the_search_equals_looking_at_every_plan(model, layers, cluster, given) -> None:
    space = space_of(model, layers, cluster, given)
    answer = Search(space, Bounds(straggling(space.cluster))).run(1)
    best = best_of_all(space)
    assert answer.gap == 0.0
    assert (best is None) == (not answer.plans)
    if best is not None:
        assert answer.plans[0].replay.step_ns == best[1].step_ns
        assert answer.counts.replayed + answer.counts.memory <= answer.counts.legal


def test_counts_are_those_of_all_plans_and_all_are_legal() -> None:
    space = space_of("mixtral-8x7b", 2, "h100-sxm:4", {"global_batch": 4, "seq_len": 2048, "cp": 1})
    kept = list(structures(space))
    assert sum(count(space, one) for one in kept) == sum(1 for _ in every_plan(space))


def test_a_search_leaves_time_for_what_comes_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by a millisecond at each look: replays of the answer, and letting the nodes go."""
    ticks = iter(range(10**9))
    monkeypatch.setattr("windtunnel.studies.planning.search.best_first.monotonic", lambda: next(ticks) / 1000)
    space = space_of("llama-3-8b", 4, "h100-sxm:4", {"global_batch": 4, "seq_len": 2048, "cp": 1})
    search = Search(space, Bounds(straggling(space.cluster)))
    whole = search.run(10**6).seconds
    for within, spare in ((0.2, 0), (0.5, 0), (0.5, 20)):
        assert within < whole
        found = search.run(10**6, within, spare=spare)
        assert found.seconds * (1.0 + LET_GO) + spare * 0.001 <= within + 0.005
        assert found.seconds > within / 2


def test_less_is_never_better() -> None:
    """A fixed field or less memory cannot make the best plan faster."""
    free = space_of("llama-3-8b", 4, "h100-sxm:4", {"global_batch": 4, "seq_len": 2048, "cp": 1, "zero_stage": 1})
    bounds = Bounds(straggling(free.cluster))
    best = Search(free, bounds).run(1).plans[0]
    for field, value in (("tp", 4), ("pp", 2), ("recompute", "full")):
        space = Space(free.model, free.cluster, {**free.fixed, field: value})
        assert Search(space, bounds).run(1).plans[0].score_ns >= best.score_ns
    tight = Search(free, bounds, capacity_bytes=int(best.replay.peak_bytes * 0.9)).run(1)
    assert tight.plans[0].score_ns >= best.score_ns
    assert tight.plans[0].replay.peak_bytes <= best.replay.peak_bytes * 0.9
    early = Search(free, bounds).run(1, within_s=0.0)
    assert 0.0 <= early.gap < 1.0
    assert early.plans[0].score_ns * (1.0 - early.gap) <= best.score_ns <= early.plans[0].score_ns
