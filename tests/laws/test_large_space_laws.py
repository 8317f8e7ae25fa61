"""A space too large to be listed one by one, or in time: the same answer, or an honest bound on a better one."""

import itertools

import pytest

from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.studies.planning.answers.choices import Budget, choices
from windtunnel.studies.planning.oracle import laid_out, straggling
from windtunnel.studies.planning.search import best_first as searching
from windtunnel.studies.planning.search.best_first import Answer, Search
from windtunnel.studies.planning.search.bounds import Bounds
from windtunnel.studies.planning.space import plan_space as spaces
from windtunnel.studies.planning.space.plan_space import Space, families, savings, structures

CASES = {
    "dense": ("llama-3-8b", 6, {"tp": 1, "cp": 1, "cuda_graphs": False, "overlap_tp": False}),
    "experts": ("mixtral-8x7b", 5, {"tp": 2, "cp": 1, "zero_stage": 1, "recompute": "none"}),
}


def space_of(case: str) -> Space:
    name, layers, given = CASES[case]
    model = load_model(name).with_changes(layers=layers)
    return Space(model, parse_cluster("h100-sxm:8"), {"global_batch": 16, "seq_len": 2048, **given})


def searched(space: Space, within_s: float | None = None) -> tuple[Search, Answer]:
    search = Search(space, Bounds(straggling(space.cluster)))
    return search, search.run(1, within_s)


@pytest.mark.parametrize("case", CASES)
def test_families_of_structures_find_what_single_ones_do(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flat_search, flat = searched(space_of(case))
    monkeypatch.setattr(spaces, "FLAT_MOST", 0)
    space = space_of(case)
    assert any(len(family.pipelines) > 1 for family in families(space))
    search, large = searched(space)
    assert large.plans[0].layout.user_plan == flat.plans[0].layout.user_plan
    assert (large.gap, large.counts.legal, large.counts.structures) == (0.0, flat.counts.legal, flat.counts.structures)
    assert len(list(structures(space))) == flat.counts.structures
    budget = Budget(10**9, float("inf"))  # enough for all: what other choices cost is the same
    told = [choices(one, each.plans[0], budget) for one, each in ((flat_search, flat), (search, large))]
    assert {(one.field, one.value, round(one.regret, 12)) for one in told[0]} == {
        (one.field, one.value, round(one.regret, 12)) for one in told[1]
    }


@pytest.mark.parametrize("ticks", [30, 100, 300, 1000])
@pytest.mark.parametrize("case", CASES)
def test_what_time_was_too_short_for_is_in_the_gap(case: str, ticks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    optimum = searched(space_of(case))[1].plans[0].score_ns
    clock = itertools.count()  # each look at the clock takes a second
    monkeypatch.setattr(searching, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(searching, "FIRST_S", 1000.0)
    search, answer = searched(space_of(case), ticks)
    if answer.counts.structures < len(list(structures(search.space))):
        assert choices(search, answer.plans[0], Budget(10**9, float("inf"))) == ()  # nobody knows what they cost
    assert answer.bound_ns <= optimum
    assert answer.plans
    least = answer.plans[0].score_ns
    assert least >= optimum
    assert least * (1.0 - answer.gap) <= optimum * (1.0 + 1e-12)
    assert (answer.gap == 0.0) <= (least == optimum)


@pytest.mark.parametrize("case", CASES)
def test_listing_that_stops_again_and_again_leaves_nothing_out(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = searched(space_of(case))[1]
    monkeypatch.setattr(searching, "LISTING", 0.0)
    answer = searched(space_of(case), 600.0)[1]
    assert (answer.gap, answer.counts.structures, answer.counts.legal) == (
        0.0, whole.counts.structures, whole.counts.legal,
    )  # fmt: skip
    assert answer.plans[0].score_ns == whole.plans[0].score_ns


UNFIT = {
    "dense": ("llama-3-70b", 20, "h100-sxm:2", {}),
    "experts": ("mixtral-8x7b", 16, "h100-sxm:4", {"tp": 2}),
    "long": ("llama-3-8b", 6, "h100-sxm:2", {"seq_len": 2**21, "tp": 1}),
    "sharded": ("llama-3-70b", 20, "h100-sxm:2", {"framework": "torchtitan"}),
}


@pytest.mark.parametrize("case", UNFIT)
def test_where_nothing_fits_each_plan_needs_more_than_there_is(case: str) -> None:
    name, layers, cluster, given = UNFIT[case]
    given = {"global_batch": 8, "seq_len": 2048, **given}
    space = Space(load_model(name).with_changes(layers=layers), parse_cluster(cluster), given)
    search, answer = searched(space)
    assert not answer.plans
    assert answer.counts.memory == answer.counts.legal > 0
    assert search.state_alone == (case != "long")
    needed: dict[tuple[int, ...], int] = {}
    for structure in structures(space):
        for saving in savings(space, structure):
            laid = laid_out(space.model, space.cluster, structure.user_plan.with_fields(saving))
            least, plan = search.bounds.memory_bytes(laid), laid.plan
            assert search.bounds.even_state_bytes(laid) <= search.bounds.state_bytes(laid) <= least
            assert least > search.space.cluster.gpu.usable_memory_bytes or not search.state_alone
            degrees = (plan.tp, plan.pp, plan.cp, plan.ep, laid.etp)
            needed[degrees] = min(least, needed.get(degrees, least))
    told = search.misfits.nearest(len(needed) + 1)
    assert len(told) == len(needed)  # one of each choice of degrees
    if search.state_alone:
        assert [one.needed_bytes for one in told] == sorted(needed.values())
