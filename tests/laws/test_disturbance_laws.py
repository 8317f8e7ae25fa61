"""Disturbed steps: folding is exact, more trouble never helps, and noise is what it says."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import SpecError
from windtunnel.physics.engine import Slowdown, replay
from windtunnel.physics.engine.samples import sample_makespans, topological_order
from windtunnel.physics.engine.sharing import contenders
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.hardware.cluster import cluster_with
from windtunnel.physics.model import transformer
from windtunnel.physics.step.disturbances.disturbances import parse_disturbances
from windtunnel.physics.step.nic_sharing import step_sharing
from windtunnel.questions.asked.parts.scenario import Scenario
from windtunnel.studies.training import predict, read_plan
from windtunnel.studies.training.disturbances.cells import cell_factors, placed
from windtunnel.studies.training.disturbances.op_noise import pass_factors
from windtunnel.studies.training.disturbances.planned import PlannedStep, disturb, uneven_fabric
from windtunnel.studies.training.disturbances.replicas import unfold
from windtunnel.studies.training.layout import resolve
from windtunnel.studies.training.lowering.lower import lower
from windtunnel.studies.training.lowering.model_chunks import pieces_of
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import schedule

MODEL = transformer(hidden=512, layers=8, heads=8, vocab=4096, ffn=2048, name="small")
WIDE = transformer(hidden=1024, layers=8, heads=16, vocab=4096, ffn=4096, name="wide")
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
    "fsdp2, 1f1b": {"framework": "torchtitan", "pp": 4, "tp": 2, "shard_group": 4},
    "fsdp2, interleaved": {"framework": "torchtitan", "pp": 2, "virtual_stages": 4},
}
# On nodes of four GPUs with slow NICs, where passes use them and gradients or parameters meet them there.
EAGER = {"overlap_grad_reduce": True, "overlap_param_gather": True}
NARROW = {
    "wide tensors": {"tp": 8, "pp": 2, "zero_stage": 0},
    "contexts": {"cp": 8, "tp": 2, "zero_stage": 1},
    "contexts, no pipeline": {"cp": 16, "zero_stage": 0},
    "contexts, interleaved": {"cp": 8, "tp": 2, "pp": 2, "virtual_stages": 2},
    "contexts, zb-v": {"cp": 4, "tp": 2, "pp": 4, "schedule": "zb-v", "zero_stage": 0},
    "contexts, dualpipe": {"cp": 4, "tp": 2, "pp": 4, "schedule": "dualpipe", "zero_stage": 1},
    "wide experts": {"ep": 8, "tp": 2, "sequence_parallel": True, "zero_stage": 1},
    "sharded gradients": {"zero_stage": 2},
    "sharded in islands": {"zero_stage": 3, "shard_group": 8},
    "sharded": {"zero_stage": 3},
}
PLANS |= {name: EAGER | fields for name, fields in NARROW.items()}
MATTERS = ("contexts", "contexts, no pipeline", "contexts, interleaved")  # sharing makes these steps longer


@cache
def lowered(name: str, gpus: int = 64):
    model = MOE if "experts" in name else WIDE if name in NARROW else MODEL
    fields = {"global_batch": 128, "seq_len": 512} | PLANS[name]
    cluster = parse_cluster(f"h100-sxm:{gpus}")
    if name in NARROW:
        slow_nics = replace(cluster.scale_out, bandwidth_bytes_per_s=4e9, latency_s=1e-6)
        cluster = cluster_with(cluster, gpus_per_node=4, gpus_per_pod=16, scale_out=slow_nics)
    layout = resolve(model, cluster, read_plan(fields))
    pieces, pricer = pieces_of(layout), Pricer(layout)
    table = schedule(layout.schedule, layout.plan.pp, layout.micro_batches, layout.plan.virtual_stages)
    return layout, pieces, pricer, lower(layout, pieces, table, pricer)


def others(stages, leaves):
    factor = st.sampled_from([1.05, 1.4])
    return (
        st.builds("stage={}:{}".format, st.integers(0, stages - 1), factor)
        | st.builds("thermal={}:{}:60".format, st.integers(0, 63), factor)
        | st.builds("random=10%:{}".format, factor)
        | st.builds("lost=node{}.nic{}".format, st.integers(0, 7), st.integers(0, 3))
        | st.builds("uplink=leaf{}:{}".format, st.integers(0, leaves - 1), st.sampled_from([0.1, 0.5]))
    )


def run(parts, slow, fold=True, seed=0):
    layout, pieces, pricer, step = parts
    asked = placed(parse_disturbances(Scenario(slow, seed=seed), layout.cluster), layout)
    shared = uneven_fabric(layout, asked.slow)
    unfolded = unfold(step, layout, pieces, pricer, *cell_factors(layout, asked.slow), shared, fold=fold)
    return unfolded, unfolded.step.replay()


@pytest.mark.parametrize("name", PLANS)
@settings(max_examples=25)
@given(data=st.data())
def test_folded_equals_unfolded(name, data):
    parts = lowered(name)
    gpus = st.builds("gpu={}:{}".format, st.integers(0, 63), st.sampled_from([1.1, 1.5, 3.0]))
    links = st.builds("link=node{}.nic{}:{}".format, st.integers(0, 7), st.integers(0, 3), st.sampled_from([0.25, 0.5]))
    slow = data.draw(st.lists(gpus | links | others(parts[0].plan.pp, 16 if name in NARROW else 64), max_size=4))
    slow += data.draw(st.lists(st.builds("ecmp={}".format, st.integers(0, 9)), max_size=1))
    folded, short = run(parts, slow)
    naive, long = run(parts, slow, fold=False)
    assert short.makespan_ns == long.makespan_ns
    stages, n = parts[0].plan.pp, parts[3].graph.n_ops
    ends_folded = short.end_ns.reshape(-1, n)
    ends_naive = long.end_ns.reshape(-1, n)
    # Every replica's whole timeline is that of its class, to the nanosecond.
    assert (ends_folded[folded.class_of] == ends_naive).all()
    assert folded.sizes.sum() == parts[0].dp == len(naive.sizes)
    assert folded.step.graph.n_programs == len(folded.sizes) * stages
    assert folded.step.graph.multiplicity.sum() == parts[0].cluster.n_gpus


def alone(parts):
    """The step as it is lowered, undisturbed."""
    factors, step = np.array(parts[2].training.slowdown_factors()), parts[3]
    return replay(
        step.graph, step.duration_ns, Slowdown(step.interference, factors), step_sharing(step.graph, step.nic_share)
    )


@pytest.mark.parametrize("name", PLANS)
def test_undisturbed_is_one_class_and_the_same_step(name):
    parts = lowered(name)
    folded, timeline = run(parts, [])
    naive, long = run(parts, [], fold=False)
    assert len(folded.sizes) == 1
    assert len(naive.sizes) == parts[0].dp
    assert (timeline.end_ns == alone(parts).end_ns).all()
    assert (long.end_ns.reshape(len(naive.sizes), -1) == timeline.end_ns).all()


@pytest.mark.parametrize("name", MATTERS)
def test_nics_are_full_in_these_laws(name):
    """Or folded would equal unfolded for want of anything to share."""
    parts = lowered(name)
    for slow in ([], ["gpu=5:1.3"], ["link=node1.nic1:0.5"]):
        unfolded, shared = run(parts, slow, fold=False)
        assert contenders(unfolded.step.graph, unfolded.step.duration_ns, unfolded.step.sharing) is not None
        factors = np.array(parts[2].training.slowdown_factors())
        free = replay(unfolded.step.graph, unfolded.step.duration_ns, Slowdown(unfolded.step.interference, factors))
        assert shared.makespan_ns > free.makespan_ns


@pytest.mark.parametrize("name", [*NARROW, "fsdp"])
def test_a_pass_moves_the_same_bytes_whatever_slows_it(name):
    """What it takes of its NIC is bytes over time over what is left of the NIC."""
    parts = lowered(name)
    step, passes = parts[3], np.flatnonzero(parts[3].graph.category < len(parts[3].segments))
    slower = ["gpu=5:3"], ["link=node1.nic1:0.5"], ["link=node1.nic1:0.5", "gpu=5:3"], ["uplink=leaf1:0.1"]
    for slow in ([], *slower):
        unfolded, _ = run(parts, slow, fold=False)
        weak = cell_factors(parts[0], parse_disturbances(Scenario(slow), parts[0].cluster).slow)[1]
        share = nic_use(unfolded).reshape(-1, step.graph.n_ops)[:, passes]
        taken = unfolded.step.duration_ns.reshape(share.shape[0], -1)[:, passes]
        assert (share <= 1.0).all()
        moved = share * taken / weak[:, step.graph.program[passes]]
        usual = (step.nic_share * step.duration_ns)[passes]
        assert moved == pytest.approx(np.broadcast_to(usual, moved.shape), rel=2e-3, abs=2.0)


def nic_use(unfolded):
    """What each op takes of the NIC of its own program."""
    found = np.zeros(unfolded.step.graph.n_ops)
    sharing = unfolded.step.sharing
    if sharing is None:
        return found
    for demand in range(sharing.n_demands):
        entries = slice(sharing.link_ptr[demand], sharing.link_ptr[demand + 1])
        use = np.zeros(len(sharing.capacity))
        use[sharing.link_idx[entries]] = sharing.use[entries]
        ops = np.flatnonzero(sharing.demand_of == demand)
        found[ops] = use[unfolded.step.graph.program[ops]]
    return found


def test_a_ring_that_waits_for_a_slow_nic_or_uplink_leaves_the_rest_of_sound_nics():
    parts = lowered("contexts")  # four replicas of sixteen GPUs each
    usual = nic_use(run(parts, [], fold=False)[0])
    for slow, sick in (("link=node1.nic1:0.5", [0]), ("uplink=leaf5:0.1", [])):
        unfolded, _ = run(parts, [slow], fold=False)
        reduces = np.flatnonzero((unfolded.step.graph.rendezvous >= 0) & (usual > 0.0))
        replica = unfolded.step.graph.program[reduces] // parts[0].plan.pp
        uplinks = uneven_fabric(parts[0], parse_disturbances(Scenario([slow]), parts[0].cluster).slow).reduced[0]
        assert (uplinks > 1.0) == (not sick)
        expected = np.where(np.isin(replica, sick), 1.0, 1.0 / (2.0 if sick else uplinks))
        assert nic_use(unfolded)[reduces] / usual[reduces] == pytest.approx(expected, rel=1e-6)


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
    passes = unfolded.step.graph.category < len(parts[3].segments)
    taken = timeline.end_ns - timeline.start_ns
    silent = sample_makespans(unfolded.step.graph, taken, passes, 0.0, 3, seed)
    fixed = replay(unfolded.step.graph, taken).makespan_ns
    assert (abs(silent - fixed) <= 1).all()
    few = sample_makespans(unfolded.step.graph, taken, passes, 0.05, 10, seed)
    many = sample_makespans(unfolded.step.graph, taken, passes, 0.05, 150, seed)
    assert (few == many[:10]).all()
    assert many.mean() > fixed  # whoever waits for the slowest waits longer on average


def test_topological_order_respects_what_ops_wait_for():
    unfolded, _ = run(lowered("interleaved"), ["gpu=5:1.3"])
    graph = unfolded.step.graph
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


FIXED = [
    "gpu=9:1.3", "stage=1:1.1", "thermal=33:1.2:60", "random=10%:1.1", "link=node5.nic1:0.3", "lost=node2.nic0",
    "uplink=leaf9:0.25",
]  # fmt: skip


@pytest.mark.parametrize("name", ["1f1b", *MATTERS, "sharded in islands"])
@settings(max_examples=25)
@given(chosen=st.lists(st.sampled_from(FIXED), unique=True), more=st.sampled_from(FIXED))
def test_one_more_disturbance_never_makes_a_step_faster(name, chosen, more):
    parts = lowered(name)
    last = f"stage={parts[0].plan.pp - 1}"
    chosen, more = ([text.replace("stage=1", last) for text in some] for some in (chosen, [more]))
    # A slower pass leaves more of its NIC to gradients, which may end a little sooner for it.
    anomaly = 1e-4 if name in MATTERS else 0.0
    assert run(parts, [*chosen, *more])[1].makespan_ns >= run(parts, chosen)[1].makespan_ns * (1.0 - anomaly)


@pytest.mark.parametrize(
    ("weak", "strong"),
    [
        ("gpu=9:1.1", "gpu=9:1.5"),
        ("stage=2:1.1", "stage=2:1.5"),
        ("thermal=9:1.1:60", "thermal=9:1.5:60"),
        ("random=5%:1.1", "random=5%:1.5"),
        ("link=node5.nic1:0.5", "link=node5.nic1:0.2"),
    ],
)
def test_the_step_grows_with_the_factor(weak, strong):
    parts = lowered("1f1b")
    calm, light, heavy = (run(parts, slow)[1].makespan_ns for slow in ([], [weak], [strong]))
    assert calm < light < heavy


def test_a_lost_nic_slows_both_gpus_of_the_other_as_half_a_link_would():
    parts = lowered("1f1b")
    factors = [
        cell_factors(parts[0], parse_disturbances(Scenario(slow), parts[0].cluster).slow)[1]
        for slow in (
            ["lost=node2.nic0"],
            ["link=node2.nic0:0.5", "link=node2.nic1:0.5"],
            ["lost=node2.nic0", "link=node2.nic0:0.1"],  # how fast the lost one was no longer matters
            ["lost=node2.nic0", "link=node2.nic1:0.5"],  # the other carries both at half its rate
            ["lost=node2.nic0", "lost=node2.nic1"],  # 2 takes over for 0, 3 and so on for the next
        )
    ]
    assert (factors[0] == factors[1]).all()
    assert (factors[0] == factors[2]).all()
    assert factors[0].max() == 2.0
    assert factors[3].max() == 4.0
    assert factors[4].max() == 3.0


def sampled(parts, slow, samples=40, seed=0, **more):
    """Step times with these disturbances, sample by sample: blame against nothing at all."""
    layout, pieces, pricer, step = parts
    factors = np.array(pricer.training.slowdown_factors())
    sharing = step_sharing(step.graph, step.nic_share)
    calm = replay(step.graph, step.duration_ns, Slowdown(step.interference, factors), sharing).makespan_ns
    asked = parse_disturbances(Scenario(slow, samples=samples, seed=seed, **more), layout.cluster)
    final, told = disturb(step, layout, pieces, pricer, calm, asked, {})
    parts = placed(asked, layout).parts
    planned = PlannedStep(step, layout, pieces, pricer, calm)
    job, random = planned.disturbed(parts), planned.random_sources(parts, seed, {})
    return planned.makespans(job, random, [job.everything], samples)[0], final, told, calm


def test_thermal_heats_up_to_a_constant():
    parts = lowered("1f1b")
    hot = run(parts, ["gpu=9:20"])[1].makespan_ns
    at_once, *_ = sampled(parts, ["thermal=9:20:1us"], 20)
    assert (abs(at_once[1:] - hot) <= 1).all()
    slowly, _, told, calm = sampled(parts, ["thermal=9:20:4"], 400)  # a step is a ninth of a second
    assert abs(slowly[0] - calm) <= 0.001 * calm  # the first step is a cold one
    assert (np.diff(slowly) >= -1).all()
    assert abs(slowly[-1] - hot) < 0.001 * (hot - calm)
    assert told.samples.p5_ns < 0.9 * told.samples.p50_ns
    assert run(parts, ["thermal=9:20:7"])[1].makespan_ns == hot  # without samples: when it is hot


def test_a_pause_that_never_comes_changes_nothing_and_a_sure_one_costs_its_length():
    parts = lowered("no pipeline")
    never, final, told, calm = sampled(parts, ["pause=0%:200ms"])
    assert (abs(never - calm) <= 1).all()
    assert final == calm
    assert told.blame[0].without_p5_p50_p95_ns == (0, 0, 0)
    rare, *_ = sampled(parts, ["pause=0.2%:200ms"], 400)
    late = rare - calm
    assert ((late <= 1) | (late > 150e6)).all()
    # 64 ranks at 0.2 % each: a step is paused with probability 1 - 0.998 ** 64 = 0.12.
    assert 0.05 < (late > 1).mean() < 0.2


def test_jitter_of_zero_changes_nothing():
    parts = lowered("1f1b")
    quiet, _, _, calm = sampled(parts, ["noise=0%"])
    assert (abs(quiet - calm) <= 1).all()


def test_op_noise_grows_with_the_ranks_that_wait_for_each_other_and_with_sigma():
    means = []
    for tp in (1, 2, 4):
        fields = {"global_batch": 128, "seq_len": 512, "tp": tp}
        layout = resolve(MODEL, parse_cluster("h100-sxm:64"), read_plan(fields))
        pieces, pricer = pieces_of(layout), Pricer(layout)
        step = lower(layout, pieces, schedule("1f1b", 1, layout.micro_batches, 1), pricer)
        means.append(float(pass_factors(layout, step.segments, 0.1, 0).mean()))
    assert means == sorted(means)
    assert means[0] == pytest.approx(1.0, abs=0.01)  # nobody to wait for: noise evens out
    assert means[2] > means[0] + 0.01
    sigmas = [float(pass_factors(layout, step.segments, sigma, 0).mean()) for sigma in (0.0, 0.02, 0.1, 0.3)]
    assert sigmas[0] == 1.0
    assert sigmas == sorted(set(sigmas))


RANDOM = ["pause=1%:30ms", "noise=3%", "thermal=9:1.3:1"]


@pytest.mark.parametrize("name", ["1f1b", "fsdp", "dualpipe-v"])
def test_samples_do_not_depend_on_how_many_are_asked_but_on_the_seed(name):
    parts = lowered(name)
    few = sampled(parts, RANDOM, 10, jitter="2%")[0]
    many = sampled(parts, RANDOM, 150, jitter="2%")[0]
    assert (few == many[:10]).all()
    assert (sampled(parts, RANDOM, 10, jitter="2%", seed=1)[0] != few).any()


def test_what_others_draw_does_not_change_when_one_is_mended():
    parts = lowered("1f1b")
    assert (sampled(parts, ["noise=3%", "pause=1%:30ms"])[0] >= sampled(parts, ["noise=3%"])[0] - 1).all()
    both, _, told, _ = sampled(parts, ["gpu=9:1.0", "pause=1%:30ms"], jitter="2%")
    assert (both == sampled(parts, ["pause=1%:30ms"], jitter="2%")[0]).all()
    mended = {one.what: one.without_p5_p50_p95_ns for one in told.blame}
    assert mended["gpu=9:1.0"] == (0, 0, 0)
    assert min(mended["pause=1%:30ms"]) >= 0


def test_blame_of_samples_is_in_order_and_headline_is_the_median():
    found, final, told, _ = sampled(lowered("1f1b"), ["gpu=9:1.3", "pause=1%:30ms"], 100, jitter="5%")
    assert final == told.samples.p50_ns == int(np.percentile(found, 50))
    assert {one.what for one in told.blame} == {"gpu=9:1.3", "pause=1%:30ms", "jitter 5%"}
    for one in told.blame:
        low, middle, high = one.without_p5_p50_p95_ns
        assert low <= middle <= high
        assert middle == one.without_ns
    assert sum(told.replica_classes) == 8


def test_the_same_question_gives_the_same_bytes_and_says_how_to_ask_it_again():
    plan = {"pp": 4, "tp": 2, "global_batch": 128, "seq_len": 512}
    asked = {"slow": ["gpu=5:1.3", "pause=0.5%:20ms"], "jitter": "2%", "samples": 30, "seed": 7}
    one, two = (predict(MODEL, "h100-sxm:64", plan, **asked) for _ in range(2))
    assert one.to_json() == two.to_json()
    flags = "--slow gpu=5:1.3 --slow pause=0.5%:20ms --jitter 0.02 --samples 30 --seed 7"
    assert one.reproduce.endswith(flags)


def test_a_stage_that_is_not_there_is_refused():
    with pytest.raises(SpecError, match="numbered 0 to 3"):
        run(lowered("1f1b"), ["stage=4:1.1"])


@pytest.mark.parametrize("seq_len", [4096, 8192, 32768])
@pytest.mark.parametrize("factor", [1.02, 1.2, 3.0])
def test_one_slow_gpu_costs_at_most_its_factor_however_long_passes_are(seq_len: int, factor: float) -> None:
    plan = {"tp": 8, "global_batch": 8, "seq_len": seq_len}
    calm, slowed = (predict("llama-3.1-405b", "h100-sxm:8", plan, slow=slow) for slow in ((), (f"gpu=3:{factor}",)))
    assert 1.0 + 0.8 * (factor - 1.0) < slowed.step_time_ns / calm.step_time_ns <= factor + 1e-9
