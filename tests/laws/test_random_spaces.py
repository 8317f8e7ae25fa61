"""The search equals looking at every plan, and no bound exceeds a replay, on spaces that nobody chose.

`validation/planning/exact.py` does the same on hundreds of larger ones.
"""

from __future__ import annotations

import random
from itertools import islice

import pytest
from every_plan import every_plan
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from windtunnel.errors import UserError
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.studies.planning.oracle import replayed, straggling
from windtunnel.studies.planning.search.best_first import Search
from windtunnel.studies.planning.search.bounds import Bounds
from windtunnel.studies.planning.space.plan_space import Space

PLANS_MOST = 24


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    name = draw(st.sampled_from(["llama-3-8b", "mixtral-8x7b", "deepseek-v2-lite"]))
    framework = draw(st.sampled_from(["megatron", "torchtitan", "nanotron"]))
    fixed = {
        "global_batch": draw(st.sampled_from([8, 16])),
        "seq_len": draw(st.sampled_from([1024, 8192])),
        "framework": framework,
        "tp": draw(st.sampled_from([1, 2])),
        "pp": draw(st.sampled_from([1, 2])),
        "cp": 1,
        "micro_batch": draw(st.sampled_from([1, 2])),
    }
    if name != "llama-3-8b":
        fixed |= {"ep": draw(st.sampled_from([1, 2])), "etp": 1}
    if framework == "megatron":
        fixed["cuda_graphs"] = False
        fixed["zero_stage"] = draw(st.sampled_from([0, 1]))
    model = load_model(name).with_changes(layers=draw(st.integers(1, 5)))
    return Space(model, parse_cluster(f"h100-sxm:{draw(st.sampled_from([4, 8]))}"), fixed)


@settings(max_examples=10, deadline=None)
@given(spaces(), st.integers(0, 2**31))
def test_the_search_equals_looking_at_every_plan_of_random_spaces(space: Space, seed: int) -> None:
    try:
        plans = list(islice(every_plan(space), PLANS_MOST + 1))
    except UserError:
        plans = []
    assume(1 < len(plans) <= PLANS_MOST)
    bounds = Bounds(straggling(space.cluster))
    known = [(layout, replayed(layout)) for layout in plans]
    for layout, one in known:
        assert bounds.step_ns(layout) <= one.step_ns, layout.plan
        assert bounds.memory_bytes(layout) <= one.peak_bytes, layout.plan
    capacity = min(known[0][1].capacity_bytes, random.Random(seed).choice(known)[1].peak_bytes)  # some do not fit
    answer = Search(space, bounds, capacity_bytes=capacity).run(1)
    least = min((one.step_ns for _, one in known if one.peak_bytes <= capacity), default=None)
    assert (answer.plans[0].replay.step_ns if answer.plans else None) == least
    assert answer.gap == 0.0
    assert answer.counts.legal == len(plans)


@pytest.mark.parametrize("recompute", ["none", "full:2", "full:3", "full"])
def test_what_is_recomputed_fits_beside_launches(recompute: str) -> None:
    """Small micro-batches with experts are bound by the host: kernels that run again are not added to that."""
    fixed = {
        "global_batch": 32,
        "seq_len": 1024,
        "tp": 4,
        "pp": 1,
        "ep": 2,
        "etp": 1,
        "micro_batch": 1,
        "zero_stage": 0,
    }
    model = load_model("mixtral-8x7b").with_changes(layers=4)
    space = Space(model, parse_cluster("h100-sxm:8"), {**fixed, "cp": 1, "recompute": recompute})
    bounds = Bounds(straggling(space.cluster))
    for layout in every_plan(space):
        assert bounds.step_ns(layout) <= replayed(layout).step_ns
