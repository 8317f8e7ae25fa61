"""Disturbed steps: folding is exact, more trouble never helps, and noise is what it says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.engine import Slowdown, replay
from windtunnel.engine.samples import sample_makespans, topological_order
from windtunnel.errors import SpecError
from windtunnel.hardware import parse_cluster
from windtunnel.model import transformer
from windtunnel.training import predict, read_plan
from windtunnel.training.disturbances import cell_factors, parse_disturbances
from windtunnel.training.layout import resolve
from windtunnel.training.lower import lower
from windtunnel.training.pieces import pieces_of
from windtunnel.training.pricing import Pricer
from windtunnel.training.replicas import unfold
from windtunnel.training.schedules import schedule

MODEL = transformer(hidden=512, layers=8, heads=8, vocab=4096, ffn=2048, name="small")
MOE = transformer(
    hidden=512, layers=8, heads=8, vocab=4096, ffn=512, experts=8, topk=2, family="mixtral", name="small-moe"
)
PLANS = {
    "1f1b": {"pp": 4, "tp": 2},
    "gpipe": {"pp": 4, "tp": 2, "schedule": "gpipe"},
    "interleaved": {"pp": 4, "virtual_stages": 2},
    "zb-h1": {"pp": 4, "schedule": "zb-h1"},
    "zb-v": {"pp": 4, "schedule": "zb-v"},
    "dualpipe": {"pp": 4, "schedule": "dualpipe"},
    "dualpipe-v": {"pp": 4, "schedule": "dualpipe-v"},
    "no pipeline": {"tp": 4, "cp": 2},
    "fsdp": {"zero_stage": 3, "shard_group": 8},
    "experts": {"ep": 4, "tp": 2, "sequence_parallel": True},
}


def lowered(name: str, gpus: int = 64):
    model = MOE if name == "experts" else MODEL
    fields = {"global_batch": 128, "seq_len": 512} | PLANS[name]
    layout = resolve(model, parse_cluster(f"h100-sxm:{gpus}"), read_plan(fields))
    pieces, pricer = pieces_of(layout), Pricer(layout)
    table = schedule(layout.schedule, layout.plan.pp, layout.micro_batches, layout.plan.virtual_stages)
    return layout, pieces, pricer, lower(layout, pieces, table, pricer)


def run(parts, slow, fold=True, seed=0):
    layout, pieces, pricer, step = parts
    asked = parse_disturbances(slow, layout.cluster, seed=seed)
    unfolded = unfold(step, layout, pieces, pricer, *cell_factors(layout, asked.slow), fold=fold)
    factors = np.array(pricer.training.slowdown_factors())
    timeline = replay(unfolded.graph, unfolded.duration_ns, Slowdown(unfolded.interference, factors))
    return unfolded, timeline


@pytest.mark.parametrize("name", PLANS)
@given(data=st.data())
def test_folded_equals_unfolded(name, data):
    parts = lowered(name)
    gpus = st.builds("gpu={}:{}".format, st.integers(0, 63), st.sampled_from([1.1, 1.5, 3.0]))
    links = st.builds("link=node{}.nic{}:{}".format, st.integers(0, 7), st.integers(0, 7), st.sampled_from([0.25, 0.5]))
    slow = data.draw(st.lists(gpus | links, max_size=4))
    folded, short = run(parts, slow)
    naive, long = run(parts, slow, fold=False)
    assert short.makespan_ns == long.makespan_ns
    stages, n = parts[0].plan.pp, parts[3].graph.n_ops
    ends_folded = short.end_ns.reshape(-1, n)
    ends_naive = long.end_ns.reshape(-1, n)
    # Every replica's whole timeline is that of its class, to the nanosecond.
    assert (ends_folded[folded.class_of] == ends_naive).all()
    assert folded.sizes.sum() == parts[0].dp == len(naive.sizes)
    assert folded.graph.n_programs == len(folded.sizes) * stages
    assert folded.graph.multiplicity.sum() == parts[0].cluster.n_gpus


def test_undisturbed_is_one_class_and_the_same_step():
    parts = lowered("1f1b")
    factors = np.array(parts[2].training.slowdown_factors())
    alone = replay(parts[3].graph, parts[3].duration_ns, Slowdown(parts[3].interference, factors))
    folded, timeline = run(parts, [])
    assert len(folded.sizes) == 1
    assert (timeline.end_ns == alone.end_ns).all()


def test_one_slow_gpu_splits_its_replica_only():
    folded, _ = run(lowered("1f1b"), ["gpu=5:1.3"])
    assert sorted(folded.sizes) == [1, 7]


def test_more_trouble_never_helps():
    parts = lowered("1f1b")
    steps = [
        run(parts, slow)[1].makespan_ns for slow in ([], ["gpu=9:1.2"], ["gpu=9:1.4"], ["gpu=9:1.4", "gpu=40:1.4"])
    ]
    assert steps == sorted(steps)
    assert steps[0] < steps[2]


def test_two_slow_gpus_of_one_cell_cost_as_much_as_one():
    parts = lowered("1f1b")  # tp 2: GPUs 8 and 9 share a cell
    assert run(parts, ["gpu=8:1.4"])[1].makespan_ns == run(parts, ["gpu=8:1.4", "gpu=9:1.3"])[1].makespan_ns


@given(seed=st.integers(0, 2**32))
def test_samples_are_seeded_and_agree_with_the_replay(seed):
    parts = lowered("1f1b", gpus=16)
    unfolded, timeline = run(parts, [], fold=False)
    passes = unfolded.graph.category < len(parts[3].segments)
    taken = timeline.end_ns - timeline.start_ns
    silent = sample_makespans(unfolded.graph, taken, passes, 0.0, 3, seed)
    fixed = replay(unfolded.graph, taken).makespan_ns
    assert (abs(silent - fixed) <= 1).all()
    few = sample_makespans(unfolded.graph, taken, passes, 0.05, 10, seed)
    many = sample_makespans(unfolded.graph, taken, passes, 0.05, 150, seed)
    assert (few == many[:10]).all()
    assert many.mean() > fixed  # whoever waits for the slowest waits longer on average


def test_topological_order_respects_what_ops_wait_for():
    unfolded, _ = run(lowered("interleaved"), ["gpu=5:1.3"])
    graph = unfolded.graph
    place = np.empty(graph.n_ops, np.int64)
    place[topological_order(graph)] = np.arange(graph.n_ops)
    waiter = np.repeat(np.arange(graph.n_ops), np.diff(graph.dep_ptr))
    assert (place[graph.dep_idx] < place[waiter]).all()


def test_blame_of_a_single_disturbance_is_its_whole_cost():
    plan = {"pp": 4, "tp": 2, "global_batch": 128, "seq_len": 512}
    calm = predict(MODEL, "h100-sxm:64", plan)
    rough = predict(MODEL, "h100-sxm:64", plan, slow=["gpu=5:1.3"])
    assert rough.disturbed is not None
    (only,) = rough.disturbed.blame
    assert only.alone_ns == only.without_ns == rough.step_time_ns - calm.step_time_ns > 0
    assert sum(rough.breakdown_ns.values()) == rough.step_time_ns
    assert rough.to_json() == predict(MODEL, "h100-sxm:64", plan, slow=["gpu=5:1.3"]).to_json()


@pytest.mark.parametrize(
    "text",
    ["gpu=64:1.2", "gpu=1:0.5", "gpu=x:2", "link=node9.nic0:0.5", "link=node1.nic1:0", "random=0%:1.2", "gpu=1", ""],
)
def test_bad_disturbances_name_the_remedy(text):
    with pytest.raises(SpecError, match="slow"):
        parse_disturbances([text], parse_cluster("h100-sxm:64"))
