"""Laws and values of memory: lifetimes balance, sharding and recomputation never cost memory, published components."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest

from windtunnel.physics.cost.device_memory import memory_document
from windtunnel.physics.graph.allocator import replay_allocator
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import Model, load_model, transformer
from windtunnel.physics.model.layers.layer import layer_operations
from windtunnel.physics.model.operations import Operation, Shard
from windtunnel.physics.step.result import StageMemory
from windtunnel.studies.training import predict
from windtunnel.studies.training.layout import Layout, resolve
from windtunnel.studies.training.lowering.model_chunks import pieces_of
from windtunnel.studies.training.memory import peak
from windtunnel.studies.training.memory.allocations import Action, Passes, Resident, two_steps
from windtunnel.studies.training.memory.model_state import optimizer_price, state_bytes
from windtunnel.studies.training.memory.peak import memory_of, peak_bytes
from windtunnel.studies.training.plan import Framework, Plan
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import Kind, Schedule, schedule

GIB = 2**30


class _Passes:
    """The part of a lowered step that memory reads: its schedule, one op per action."""

    def __init__(self, table: Schedule) -> None:
        self.schedule, self.action_last = table, np.arange(len(table.rank))


def layout_of(model: Model, cluster: str = "h100-sxm:8", **plan: Any) -> Layout:
    fields = {"global_batch": 64, "seq_len": 4096} | plan
    return resolve(model, parse_cluster(cluster), Plan(**fields))


def memory(model: Model, cluster: str = "h100-sxm:8", **plan: Any) -> tuple[StageMemory, ...]:
    layout = layout_of(model, cluster, **plan)
    table = schedule(layout.schedule, layout.plan.pp, layout.micro_batches, layout.plan.virtual_stages)
    step: Any = _Passes(table)
    return memory_of(layout, pieces_of(layout), step, np.arange(len(table.rank), dtype=np.int64))


def dense(**changes: Any) -> Model:
    shape = {"hidden": 2048, "layers": 8, "heads": 16, "vocab": 32768, "ffn": 8192, "family": "llama"} | changes
    return transformer(**shape)


def layer_of(model: Model, **shard: Any) -> tuple[Operation, ...]:
    return layer_operations(model.layers[0], model, Shard(batch=1, seq_len=4096, **shard))


def experts(ffn: int = 2048) -> Model:
    return transformer(
        hidden=1024, layers=4, heads=16, vocab=32768, ffn=ffn, experts=8, topk=2, family="mixtral", kv_heads=4
    )


def test_per_op_recomputation_keeps_nothing_of_experts() -> None:
    def saved(ffn: int, recompute: str) -> int:
        layout = layout_of(experts(ffn), framework="torchtitan", compile=True, recompute=recompute)
        return pieces_of(layout)[0].passes.saved_bytes

    assert saved(4096, "none") > 1.2 * saved(2048, "none")
    assert saved(4096, "selective:ops") == saved(2048, "selective:ops") < saved(2048, "none")


def balanced(passes: Passes) -> None:
    """Nothing is freed that is not there, nothing made twice, nothing left behind."""
    alive: dict[int, int] = {}
    for slot, size in np.concatenate((passes.forward, passes.backward)).tolist():
        if size > 0:
            assert slot not in alive
            alive[slot] = size
        else:
            assert alive.pop(slot) == -size
    assert not alive


FAMILIES = {
    "llama": dense(),
    "gpt3": dense(family="gpt3"),
    "gpt-neox": dense(family="gpt-neox"),
    "experts": experts(),
    "latent attention": load_model("deepseek-v3").with_changes(layers=4),
}
PLANS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tensor parallel": {"tp": 4},
    "no sequence parallelism": {"tp": 4, "sequence_parallel": False},
    "pipeline": {"tp": 2, "pp": 2},
    "sharded": {"zero_stage": 3},
    "full": {"recompute": "full"},
    "two layers": {"recompute": "full:2"},
    "core attention": {"recompute": "selective:core_attention"},
    "attention and mlp": {"recompute": "selective:attention,mlp"},
    "cheap parts": {"recompute": "selective:norms,activation,moe_activation"},
    "per op": {"recompute": "selective:ops", "framework": "torchtitan"},
    "offload": {"offload_activations": 2},
    "fp8": {"precision": "fp8"},
    "ring": {"cp": 2},
    "ulysses": {"cp": 2, "cp_kind": "ulysses"},
    "unfused": {"attention_impl": "unfused"},
    "nanotron": {"framework": "nanotron", "tp": 2},
    "composer": {"framework": "fsdp", "release": "llm-foundry-23.10"},
    "fsdp": {"framework": "fsdp"},
    "torchtitan": {"framework": "torchtitan", "tp": 2},
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("model", FAMILIES.values(), ids=FAMILIES)
def test_every_tensor_is_freed_once(model: Model, plan: dict[str, Any]) -> None:
    for piece in pieces_of(layout_of(model, **plan)):
        balanced(piece.passes)


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "fsdp", "nanotron"])
def test_activations_are_linear_in_the_micro_batch(framework: str) -> None:
    one, two, four = (
        pieces_of(layout_of(dense(), framework=framework, micro_batch=size))[0].passes.saved_bytes for size in (1, 2, 4)
    )
    assert four - two == pytest.approx(2 * (two - one), rel=1e-6)
    assert two == pytest.approx(2 * one, rel=1e-3)


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "nanotron"])
@pytest.mark.parametrize("model", [dense(), experts()], ids=["dense", "experts"])
def test_more_tensor_parallelism_never_keeps_more(model: Model, framework: str) -> None:
    saved = [pieces_of(layout_of(model, framework=framework, tp=tp))[0].passes.saved_bytes for tp in (1, 2, 4, 8)]
    assert saved == sorted(saved, reverse=True)
    # nanotron and DTensor keep what they gathered; an expert-tensor group's experts all see each other's tokens.
    if framework == "megatron" and model.layers[0].feed_forward.kind == "dense":
        assert all(after <= before * 0.51 for before, after in pairwise(saved))


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("model", [dense(), dense(family="gpt3"), experts()], ids=["llama", "gpt3", "experts"])
def test_recomputation_never_keeps_more(model: Model, tp: int) -> None:
    def saved(recompute: str) -> int:
        return pieces_of(layout_of(model, tp=tp, recompute=recompute))[0].passes.saved_bytes

    none = saved("none")
    for part in ("core_attention", "norms", "activation", "norms,activation", "mlp", "attention", "attention,mlp"):
        assert saved("full") <= saved(f"selective:{part}") <= none, part
    assert saved("selective:norms,activation") < none
    assert saved("full") < saved("full:2") < none


def test_zero_stages_never_hold_more() -> None:
    for framework in ("megatron", "fsdp"):
        states = [state_bytes(layout_of(dense(), framework=framework, zero_stage=z), 1e9, 0.0) for z in range(4)]
        sums = [state.parameters + state.gradients + state.optimizer for state in states]
        assert all(after < before for before, after in pairwise(sums))
    eight = state_bytes(layout_of(dense(), zero_stage=3), 1e9, 0.0)
    alone = state_bytes(layout_of(dense(), zero_stage=0), 1e9, 0.0)
    assert eight.optimizer * 8 == pytest.approx(alone.optimizer)


def test_plain_cross_entropy_holds_logits_log_softmax_and_two_gradients() -> None:
    """14 bytes a logit. flash-attention's, in llm-foundry, works in place, and has its peak a little later."""
    model = dense(vocab=262144, layers=1)

    def most(**plan: Any) -> float:
        plan = {"framework": "fsdp", "recompute": "full", "compile": False, **plan}
        return max(one.peak_allocated_bytes for one in memory(model, "h100-sxm:8", **plan))

    logits = 4096 * model.vocab_size
    assert 9 * logits < most() - most(release="llm-foundry-23.10") < 12 * logits


def test_a_chained_norm_keeps_its_input_in_fp32_and_what_its_weight_scales() -> None:
    """Six bytes an element by PyTorch's saved tensors: 24 h + 8 f a token and layer of an eager Llama.

    Llama 2 13B ran so on 64 A100 of 80 GB, two sequences of 4,096 each (torchtitan, 2024-06).
    """
    model = load_model("llama-2-13b")

    def saved(layers: int) -> int:
        plan = {"framework": "torchtitan", "release": "torchtitan-24.06", "compile": False, "micro_batch": 2}
        return pieces_of(layout_of(model.with_changes(layers=layers), **plan))[0].passes.saved_bytes

    tokens, h, f = 2 * 4096, model.hidden_size, model.layers[0].feed_forward.size
    assert (saved(3) - saved(2)) / tokens == pytest.approx(24 * h + 8 * f, rel=0.01)


def test_a_compiled_loss_keeps_its_logits_and_writes_one_gradient() -> None:
    """Inductor's partitioner makes log-softmax again from 16-bit logits, their maximum and log-sum-exp."""
    model = dense(vocab=262144, layers=1)

    def most(**plan: Any) -> float:
        plan = {"framework": "torchtitan", "recompute": "full", **plan}
        return max(one.peak_allocated_bytes for one in memory(model, "h100-sxm:8", **plan))

    logits, compiled = 4096 * model.vocab_size, most(compile=True)
    assert 6 * logits < most(compile=False) - compiled < 12 * logits
    assert most(compile=True, release="torchtitan-25.03") > compiled + 6 * logits  # which did not compile it


def test_offloaded_layers_leave_the_device() -> None:
    kept = [pieces_of(layout_of(dense(), offload_activations=n))[0].passes.saved_bytes for n in (0, 4, 8)]
    assert kept[0] - kept[1] == pytest.approx(kept[1] - kept[2], rel=0.01)
    assert kept[2] < 0.25 * kept[0]  # what is left belongs to embedding and head


@pytest.mark.parametrize("framework", ["fsdp", "pytorch", "megatron"])
def test_checkpoints_of_recomputation_leave_the_device_one_by_one(framework: str) -> None:
    def kept(**plan: Any) -> int:
        layout = layout_of(dense(), recompute="full", framework=framework, **plan)
        return pieces_of(layout)[0].passes.saved_bytes

    model = dense()
    checkpoint = 4096 * model.hidden_size * 2  # tokens, width, bf16
    assert kept() - kept(offload_activations=3) == 3 * checkpoint
    assert kept() - kept(offload_activations=model.n_layers) == model.n_layers * checkpoint


def test_vocabulary_is_sharded_over_tensor_parallel_ranks() -> None:
    large, small = dense(vocab=131072), dense(vocab=32768)

    def moving(model: Model, tp: int) -> int:
        parts = memory(model, tp=tp, release="nemo-24.11")[0].categories
        return parts["activations"] + parts["workspace"]

    extra = [moving(large, tp) - moving(small, tp) for tp in (1, 8)]
    assert extra[1] == pytest.approx(extra[0] / 8, rel=0.05)


def test_hopper_keeps_a_transposed_fp8_copy_and_blackwell_does_not() -> None:
    def held(cluster: str, **plan: Any) -> float:
        return state_bytes(layout_of(dense(), cluster, precision="fp8", **plan), 1e9, 0.0).parameters

    assert held("h100-sxm:8") == 2e9
    assert held("b200:8") == 1e9
    assert held("h100-sxm:8", fp8_parameters=False) == 4e9


def test_what_fsdp_gathered_stays_in_16_bits_where_gradients_are_sharded() -> None:
    own = 1000.0 / 8
    for stage, parameters in ((0, 4000.0), (1, 4000.0), (2, 4 * own + 2000.0), (3, 4 * own)):
        assert state_bytes(layout_of(dense(), framework="fsdp", zero_stage=stage), 1000.0, 0.0).parameters == parameters
    wide = layout_of(dense(), framework="fsdp", zero_stage=2, precision="fp32")
    assert state_bytes(wide, 1000.0, 0.0).parameters == 4000.0


def test_pytorch_makes_fp8_copies_in_each_pass_and_keeps_none_between_them() -> None:
    plan = {"framework": "fsdp", "zero_stage": 0, "master_dtype": "bf16"}
    whole = [state_bytes(layout_of(dense(), precision=p, **plan), 1000.0, 0.0) for p in ("bf16", "fp8")]
    assert whole[0] == whole[1]
    kept = [
        sum(size for _, size in pieces_of(layout_of(dense(), precision="fp8", **{**plan, **more}))[0].passes.forward)
        for more in ({}, {"fp8_parameters": True})
    ]
    weights = sum(op.weight_elements for op in layer_of(dense(), precision="fp8") if op.low_precision)
    assert kept[0] - kept[1] == pytest.approx(8 * weights, rel=1e-3)


@pytest.mark.parametrize("loss", ["eager", "compiled"])
def test_megatrons_own_cross_entropy_is_in_place_in_fp32(loss: str) -> None:
    own, kernel = (layout_of(dense(), release="megatron-26.08", loss=code) for code in (loss, None))
    kept, kernels = (pieces_of(layout)[0].passes.saved_bytes for layout in (own, kernel))
    assert kept - kernels == 2 * 4096 * 32768  # four bytes a logit for two


def test_parameters_are_not_kept_in_four_bits() -> None:
    def held(precision: str) -> float:
        return state_bytes(layout_of(dense(), "b200:8", precision=precision), 1e9, 0.0).parameters

    assert held("mxfp8") == pytest.approx(2 * 1.03e9)
    assert held("nvfp4") == pytest.approx(2e9 + 2 * 0.56e9)


def test_copies_of_gathered_weights_stay_until_the_backward() -> None:
    def most(**plan: Any) -> int:
        fields = {"precision": "mxfp8", "zero_stage": 3, "micro_batch": 1, "fp8_parameters": False} | plan
        return max(stage.categories["activations"] for stage in memory(dense(), "b200:8", **fields))

    low = 1.03 * 8 * (4 * 2048 * 2048 + 3 * 2048 * 8192)
    held = most() - most(fp8_parameters=True)
    assert 0.95 * low < held < 1.05 * low
    # Offloaded activations leave them where they are; what is run again makes them again, one block at a time.
    away = most(offload_activations=8) - most(offload_activations=8, fp8_parameters=True)
    assert away > 0.8 * low
    assert most(recompute="full") - most(recompute="full", fp8_parameters=True) < 1.5 * low / 8
    # Not where copies are made once in a step, nor in torchao, which makes them again.
    assert most(zero_stage=1) == most(zero_stage=1, fp8_parameters=True)
    titan = {"framework": "torchtitan", "precision": "fp8-current"}
    assert most(**titan) == most(fp8_parameters=True, **titan)


def test_categories_sum_and_definitions_nest() -> None:
    for framework in ("megatron", "nanotron"):
        for stage in memory(dense(), framework=framework, pp=4, tp=2, micro_batch=2):
            assert sum(stage.categories.values()) == stage.peak_allocated_bytes
            assert stage.peak_allocated_bytes <= stage.peak_reserved_bytes < stage.device_bytes
            assert max(level for _, level in stage.timeline) <= stage.peak_allocated_bytes + len(stage.categories)


def test_the_replay_reaches_the_same_allocated_peak() -> None:
    """Two descriptions of one thing: the walk over passes and the tensors one by one, one rank, three micro-batches."""
    piece = pieces_of(layout_of(dense(), "h100-sxm:1", global_batch=3))[0]
    passes, kinds = piece.passes, (Kind.FORWARD, Kind.BACKWARD)
    actions = [Action(passes, kind, number, number > 0) for number in range(3) for kind in kinds]
    events, _ = two_steps(actions, Resident((GIB,), (), ()))
    walked = GIB + max(passes.load(Kind.FORWARD).most, passes.saved_bytes + passes.load(Kind.BACKWARD).most)
    replayed = replay_allocator(events[:, 0], events[:, 1]).peak_allocated_bytes
    # The allocator rounds requests up, and counts a rest of up to 1 MiB as part of a block.
    assert walked <= replayed <= 1.02 * walked


def test_gradients_that_are_there_are_added_to_and_not_made_a_second_time() -> None:
    """Qwen3-30B-A3B on 8 H100 in prime-rl, two micro-batches: 74.6 GiB reserved where segments grow, 71.3 allocated."""
    model, fields = load_model("qwen3-30b-a3b"), {"framework": "torchtitan", "zero_stage": 3, "recompute": "full"}
    fields |= {"seq_len": 16384, "compile": True, "loss": "chunked"}
    of_one, of_two = (memory(model, global_batch=8 * micro, **fields)[0] for micro in (1, 2))
    assert of_two.peak_reserved_bytes < 1.06 * of_two.peak_allocated_bytes
    assert of_two.peak_reserved_bytes == pytest.approx(of_one.peak_reserved_bytes, rel=0.01)


def test_segments_of_a_fixed_size_reserve_more_and_lists_of_tensors_find_no_room_in_them() -> None:
    """The same on 8 B200: 74.6 GiB where segments grow, 85.6 and 86.6 where they do not."""
    fields = {"framework": "torchtitan", "zero_stage": 3, "recompute": "full", "compile": True, "loss": "chunked"}
    job = load_model("qwen3-30b-a3b"), "b200-sxm:8"
    reserved = {
        (release, grow): memory(
            *job, release=release, expandable_segments=grow, global_batch=16, seq_len=16384, **fields
        )[0].peak_reserved_bytes
        / GIB
        for release in ("torchtitan-26.02", "prime-rl-26.02")
        for grow in (True, False)
    }
    assert reserved["prime-rl-26.02", True] == pytest.approx(74.6, rel=0.03)
    assert reserved["prime-rl-26.02", False] == pytest.approx(86.1, rel=0.03)
    assert reserved["torchtitan-26.02", False] < 77, "its AdamW is one kernel"
    assert memory(*job, global_batch=16, seq_len=4096, zero_stage=1, ep=8, expandable_segments=True) == memory(
        *job, global_batch=16, seq_len=4096, zero_stage=1, ep=8
    ), "as Megatron's recipes have it"


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "nanotron", "pytorch"])
def test_whether_a_plan_fits_takes_no_allocator_where_its_tensors_alone_do_not(
    framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = layout_of(dense(), framework=framework, micro_batch=2)
    job = layout, pieces_of(layout), schedule(layout.schedule, 1, layout.micro_batches, 1)
    exact = peak_bytes(*job)
    assert peak_bytes(*job, exact) == exact, "what fits is told to the byte"

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("an allocator was replayed")

    monkeypatch.setattr(peak, "replay_allocator", refused)
    assert exact // 2 < peak_bytes(*job, exact // 2) <= exact


def test_what_is_hopeless_and_long_is_told_by_its_tensors_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = {"framework": "pytorch", "micro_batch": 8}
    small, large = dense(), dense(layers=64)
    fits, whole = memory(small, **plan)[0], memory(large, **plan)[0]
    assert fits.device_bytes <= parse_cluster("h100-sxm:8").gpu.usable_memory_bytes < whole.peak_allocated_bytes
    monkeypatch.setattr(peak, "EVENTS_MOST", 0)
    assert memory(small, **plan)[0].device_bytes == fits.device_bytes, "what may fit is replayed, however long"
    least = memory(large, **plan)[0]
    assert least.peak_allocated_bytes == whole.peak_allocated_bytes <= least.peak_reserved_bytes
    assert least.device_bytes <= whole.device_bytes


def test_a_bigger_job_does_not_reserve_less() -> None:
    shape = {"framework": "nanotron", "zero_stage": 1}
    sizes = [memory(dense(), micro_batch=size, **shape)[0].peak_reserved_bytes for size in (1, 2, 4)]
    assert sizes == sorted(sizes)


def test_a_job_that_does_not_fit_says_so() -> None:
    plan = {"framework": "nanotron", "global_batch": 32, "micro_batch": 4, "seq_len": 4096}
    fits = predict(dense(), "h100-sxm:8", plan)
    assert fits.status == "ok"
    too_large = predict(dense(layers=64), "h100-sxm:8", plan)
    assert too_large.status == "infeasible"
    assert too_large.infeasible is not None
    assert too_large.infeasible.needed_bytes > too_large.infeasible.capacity_bytes


# Korthikanti et al. 2022 (arXiv 2205.05198), figures 1 and 7: GiB of the first stage's layers.
SELECTIVE = "selective:core_attention"
GPT_22B = {"hidden": 6144, "layers": 48, "heads": 64, "tp": 8, "micro_batch": 4, "global_batch": 4, "cluster": 8}
GPT_175B = {"hidden": 12288, "layers": 96, "heads": 96, "tp": 8, "pp": 8, "virtual_stages": 3, "global_batch": 64,
            "cluster": 64}  # fmt: skip
PUBLISHED = [
    (GPT_22B, False, "none", 59.25),
    (GPT_22B, True, "none", 0.6684 * 59.25),
    (GPT_22B, False, SELECTIVE, 0.4942 * 59.25),
    (GPT_22B, True, SELECTIVE, 9.5625),
    (GPT_22B, False, "full", 0.0764 * 59.25),
    (GPT_175B, False, "none", 66.84),
    (GPT_175B, True, "none", 0.6204 * 66.84),
    (GPT_175B, False, SELECTIVE, 0.5653 * 66.84),
    (GPT_175B, True, SELECTIVE, 12.35),
    (GPT_175B, False, "full", 0.0871 * 66.84),
]


def published(shape: dict[str, Any], **more: Any) -> Layout:
    plan = dict(shape)
    n_gpus = plan.pop("cluster")
    sizes = {name: plan.pop(name) for name in ("hidden", "layers", "heads")}
    model = transformer(**sizes, vocab=51200, ffn=4 * sizes["hidden"], family="gpt3", max_sequence_length=2048)
    more = {"seq_len": 2048, "precision": "fp16", "attention_impl": "unfused", "zero_stage": 0} | more
    return layout_of(model, f"a100-80gb:{n_gpus}", **plan, **more)


@pytest.mark.parametrize(("shape", "sequence_parallel", "recompute", "gib"), PUBLISHED)
def test_activations_of_korthikanti(shape: dict[str, Any], sequence_parallel: bool, recompute: str, gib: float) -> None:
    layout = published(shape, sequence_parallel=sequence_parallel, recompute=recompute)
    pieces = pieces_of(layout)
    per_layer = (pieces[1] if len(pieces) > 1 else pieces[0]).passes.saved_bytes
    layers = len(layout.virtual_layers[1 if len(pieces) > 1 else 0])
    if len(pieces) == 1:  # the paper counts layers only
        without = pieces_of(published(shape | {"layers": 24}, sequence_parallel=sequence_parallel, recompute=recompute))
        per_layer, layers = per_layer - without[0].passes.saved_bytes, 24
    stages = layout.plan.pp
    in_flight = layout.model.n_layers * (1 + (stages - 1) / (stages * layout.plan.virtual_stages))
    assert per_layer / layers * in_flight / GIB == pytest.approx(gib, rel=0.02)


def test_state_of_korthikanti() -> None:
    layout = published(GPT_22B, gradient_dtype="fp32")
    state = state_bytes(layout, 48 * 12 * 6144**2 / 8, 0.0)
    assert (state.parameters + state.gradients + state.optimizer) / GIB == pytest.approx(45.5625, rel=0.001)


def test_constants_are_whole() -> None:
    document = memory_document()
    assert set(document["frameworks"]) == set(get_args(Framework))
    assert 0 <= document["slack"]["expandable"] <= document["slack"]["segments"] < 0.1


def test_torch_pipelines_have_a_buffer_for_every_micro_batch() -> None:
    """PyTorch keeps a receive buffer for each (`torch.distributed.pipelining`): 16 bits of every token's width."""
    model = dense()
    few, many = (
        memory(model, "h100-sxm:2", framework="torchtitan", pp=2, seq_len=1024, micro_batch=1, global_batch=batches)
        for batches in (8, 24)
    )
    for before, after in zip(few, many, strict=True):
        assert after.peak_allocated_bytes - before.peak_allocated_bytes >= 16 * 1024 * model.hidden_size * 2
    first = [parts[0].categories["workspace"] for parts in (few, many)]
    assert first[1] - first[0] == 16 * 1024 * model.hidden_size * 2


@pytest.mark.parametrize("stage", [2, 3])
def test_with_gradients_sharded_an_optimizer_step_costs_each_of_eight_times_the_ranks_an_eighth(stage: int) -> None:
    """Nothing of it is left whole on a rank: norm, update, and clearing the gradients."""
    seconds = []
    for ranks in (8, 64):
        layout = layout_of(dense(), f"h100-sxm:{ranks}", zero_stage=stage, framework="megatron-deepspeed")
        seconds.append(optimizer_price(layout, Pricer(layout), 8e9, 0.0).seconds)
    assert seconds[0] == pytest.approx(8 * seconds[1], rel=0.02)
