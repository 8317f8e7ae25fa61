"""Plain PyTorch: its ops, what it holds, and its prices on a device that was measured itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from calibrated_cpu import calibrated_cpu, config

from windtunnel.errors import LayoutError, SpecError
from windtunnel.physics.cost.price import Price, Source
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.physics.model.operations import Operation
from windtunnel.studies.training import predict
from windtunnel.studies.training.layout import Layout, resolve
from windtunnel.studies.training.lowering.model_chunks import pieces_of, tensors_of
from windtunnel.studies.training.plan import read_plan
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import Kind

PLAN = {"framework": "pytorch", "precision": "fp32", "global_batch": 2, "micro_batch": 2, "seq_len": 256}


def laid_out(cluster: Any = None, model: dict[str, Any] | None = None, **plan: Any) -> Layout:
    cluster = parse_cluster(calibrated_cpu() if cluster is None else cluster)
    return resolve(load_model(model or config()), cluster, read_plan(PLAN | plan))


def operations(layout: Layout) -> list[Operation]:
    return [op for piece in pieces_of(layout) for block in piece.blocks for op in block.operations]


# Peak bytes of the allocator in a real step of PyTorch 2.13 on a CPU, 2 threads: validation/one_device/model.py under
# torch.profiler with profile_memory, second step, AdamW as it comes. Products: `aten::mm` in the same step.
REAL: dict[str, tuple[dict[str, Any], dict[str, Any], int, int]] = {
    "llama, grouped": ({"kv": 2, "layers": 2, "v": 2000, "h": 512, "heads": 8, "f": 1376}, {}, 146_907_228, 45),
    "deep": ({"layers": 4}, {"global_batch": 8, "micro_batch": 8, "seq_len": 64}, 95_401_124, 87),
    "gelu, LayerNorm": (
        {"kind": "nemotron", "f": 1024, "layers": 2},
        {"global_batch": 4, "micro_batch": 4},
        73_062_504,
        39,
    ),
    "experts": ({"kind": "mixtral", "f": 256, "layers": 2, "experts": 4}, {}, 64_345_260, 105),
    "experts, one each": (
        {"kind": "mixtral", "f": 512, "layers": 2, "experts": 8, "top": 1},
        {"global_batch": 4, "micro_batch": 4},
        147_664_140,
        177,
    ),
    "recompute": (
        {"layers": 6},
        {"global_batch": 8, "micro_batch": 8, "recompute": "full"},
        137_591_980,
        171 - 6,
    ),
    "optimizer is the peak": (
        {"h": 512, "heads": 8, "f": 1376, "layers": 2, "v": 500},
        {"seq_len": 64, "recompute": "full"},
        117_874_784,
        59 - 2,
    ),
    "bf16": ({"kv": 2, "layers": 2, "v": 4000}, {"precision": "bf16"}, 59_360_860, 45),
    "bf16, recompute": (
        {"kv": 2, "layers": 4},
        {"precision": "bf16", "global_batch": 8, "micro_batch": 8, "recompute": "full"},
        58_394_724,
        115 - 4,
    ),
    "three micro-batches": ({"layers": 2}, {"global_batch": 12, "micro_batch": 4}, 92_512_348, 135),
    "two micro-batches, bf16": (
        {"layers": 2},
        {"precision": "bf16", "global_batch": 8, "micro_batch": 4},
        57_669_724,
        90,
    ),
    "large vocabulary": ({"layers": 1, "v": 16000}, {"global_batch": 4, "micro_batch": 4}, 329_339_960, 24),
}


@pytest.mark.parametrize("name", REAL)
def test_peak_memory_is_what_a_real_step_allocates(name: str) -> None:
    model, plan, real, _ = REAL[name]
    memory = predict(config(**model), calibrated_cpu(), PLAN | plan).memory[0]
    assert memory.peak_allocated_bytes == pytest.approx(real, rel=0.001)
    assert memory.peak_reserved_bytes == memory.device_bytes == memory.peak_allocated_bytes
    assert max(level for _, level in memory.timeline) == pytest.approx(memory.peak_allocated_bytes, abs=10)


@pytest.mark.parametrize("name", REAL)
def test_matrix_products_are_those_of_a_real_step(name: str) -> None:
    """A recomputation is cut off inside the last product of a layer: PyTorch names it, but does not run it."""
    model, plan, _, real = REAL[name]
    layout = laid_out(model=config(**model), **plan)
    count = 0
    for block in pieces_of(layout)[0].blocks:
        products = [max(1, op.repeats) for op in block.operations if op.kind in ("gemm", "grouped_gemm")]
        count += 3 * sum(products) + (sum(products) - 1 if block.recompute else 0)
    assert count * layout.micro_batches == real


@pytest.mark.parametrize("kind", ["llama", "mixtral", "nemotron"])
@pytest.mark.parametrize("tied", [False, True])
def test_every_parameter_is_in_one_tensor(kind: str, tied: bool) -> None:
    document = config(kind=kind, experts=4, kv=2) | {"tie_word_embeddings": tied}
    layout = laid_out(model=document)
    pieces = pieces_of(layout)
    assert (
        sum(tensors_of(pieces))
        == layout.model.parameters
        == sum(p.dense_parameters + p.expert_parameters for p in pieces)
    )
    assert pieces[0].passes.load(Kind.BACKWARD).learns == 4 * layout.model.parameters


def test_flops_are_those_of_the_fused_layer() -> None:
    plain, fused = laid_out(), laid_out("h100-sxm:1", framework="megatron", tp=1)
    assert sum(op.flops for op in operations(plain)) == pytest.approx(
        sum(op.flops for op in operations(fused) if op.name != "head")
        + 2.0 * 512 * plain.model.vocab_size * plain.model.hidden_size
    )
    names = Counter(op.name for op in operations(plain) if op.kind == "gemm")
    layers = plain.model.n_layers
    assert names == dict.fromkeys(("q", "k", "v", "out", "mlp_gate", "mlp_up", "mlp_down"), layers) | {"head": 1}


@pytest.mark.parametrize(("precision", "width"), [("fp32", 4), ("bf16", 2)])
def test_state_has_one_format(precision: str, width: int) -> None:
    layout = laid_out(precision=precision)
    memory = predict(config(), calibrated_cpu(), PLAN | {"precision": precision}).memory[0]
    parameters = layout.model.parameters
    assert memory.categories["parameters"] == width * parameters
    assert memory.categories["optimizer"] == 2 * width * parameters
    assert layout.plan.gradient_dtype == layout.plan.optimizer_dtype == precision
    assert memory.categories["gradients"] <= width * parameters


def test_gradients_of_later_micro_batches_are_there_while_they_run() -> None:
    one, three = (predict(config(), calibrated_cpu(), PLAN | {"global_batch": 2 * count}).memory[0] for count in (1, 3))
    assert three.peak_allocated_bytes > one.peak_allocated_bytes
    assert three.categories["gradients"] == 4 * laid_out().model.parameters


@pytest.mark.parametrize(
    "wrong",
    [
        {"tp": 2},
        {"cp": 2},
        {"zero_stage": 3},
        {"zero_stage": 2},
        {"gradient_dtype": "bf16"},
        {"optimizer_dtype": "bf16"},
        {"precision": "bf16", "optimizer_dtype": "fp32"},
        {"precision": "fp8"},
        {"recompute": "selective:norms"},
        {"attention_impl": "unfused"},
    ],
)
def test_what_no_plain_script_does_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((LayoutError, SpecError)):
        laid_out("h100-sxm:8", **({"global_batch": 16} | wrong))


def test_a_result_can_be_asked_for_again() -> None:
    """The plan that a result prints, moments and gradients spelled out, is the same question."""
    result = predict(config(), "h100-sxm:1", PLAN)
    again = predict(
        config(), "h100-sxm:1", {k: v for k, v in result.spec["plan"].items() if k not in ("schedule", "etp")}
    )
    assert again.step_time_ns == result.step_time_ns
    assert again.memory[0].categories == result.memory[0].categories


def test_a_gpu_has_launches_and_a_caching_allocator() -> None:
    result = predict(config(), "h100-sxm:1", PLAN | {"precision": "bf16"})
    memory = result.memory[0]
    assert result.breakdown_ns["host"] > 0
    assert memory.peak_reserved_bytes >= memory.peak_allocated_bytes
    assert memory.device_bytes > memory.peak_reserved_bytes + 500 * 2**20


# --------------------------------------------------------------------------------------------- on a calibrated device


def test_a_cpu_has_no_host_beside_it() -> None:
    result = predict(config(), calibrated_cpu(), PLAN)
    assert set(result.breakdown_ns) == {"gemm", "attention", "memory-bound", "optimizer"}
    assert result.provenance["roofline"] < 0.05


def test_step_is_the_sum_of_its_measured_ops() -> None:
    layout = laid_out()
    pricer = Pricer(layout)
    total = 0.0
    for op in operations(layout):
        total += pricer.forward(op).seconds if not op.backward_only else 0.0
        total += pricer.input_gradient(op).seconds + pricer.weight_gradient(op).seconds
    step = predict(config(), calibrated_cpu(), PLAN)
    assert step.step_time_ns - step.breakdown_ns["optimizer"] == pytest.approx(total * 1e9, rel=1e-4)


@pytest.mark.parametrize("role", ["forward", "dgrad", "wgrad"])
def test_linear_layers_have_the_price_of_their_role(role: str) -> None:
    layout = laid_out()
    pricer = Pricer(layout)
    op = next(op for op in operations(layout) if op.name == "mlp_gate")
    m, n, k = (float(size) for size in op.shape)
    assert (m, n, k) == (512, 688, 256)
    found = {
        "forward": pricer.forward(op), "dgrad": pricer.input_gradient(op), "wgrad": pricer.weight_gradient(op),
    }[role]  # fmt: skip
    assert pricer.calibrated is not None
    assert found == pricer.calibrated.gemm(role, m, n, k, "fp32")


@pytest.mark.parametrize(
    ("op", "name", "rows", "width", "times"),
    [
        ("norm_1", "rms_norm", 512, 256, 1),
        ("q_rope", "rope", 512 * 4, 64, 1),
        ("k_rope", "rope", 512 * 2, 64, 1),
        ("activation", "swiglu", 512, 688, 1),
        ("residual_1", "add", 512, 256, 1),
        ("loss", "cross_entropy", 512, 1000, 1),
    ],
)
def test_element_wise_ops_are_looked_up_by_rows_and_width(
    op: str, name: str, rows: float, width: float, times: float
) -> None:
    pricer = Pricer(laid_out(model=config(kv=2)))
    operation = next(one for one in operations(pricer.layout) if one.name == op)
    assert pricer.calibrated is not None
    for phase, price in (("forward", pricer.forward(operation)), ("backward", pricer.input_gradient(operation))):
        assert price == pricer.calibrated.elementwise(f"{name} {phase}", rows, width, "fp32").scaled(times)


def test_gradients_of_several_readers_are_added() -> None:
    ops = {op.name: op for op in operations(laid_out())}
    pricer = Pricer(laid_out())
    assert pricer.calibrated is not None
    add = pricer.calibrated.elementwise("add backward", 512, 256, "fp32")
    assert pricer.input_gradient(ops["norm_1 sum"]) == add.scaled(2.0)  # queries, keys, values
    assert pricer.input_gradient(ops["norm_2 sum"]) == add  # gate, up
    assert ops["norm_1 sum"].backward_only


def test_what_was_not_measured_moves_its_bytes() -> None:
    pricer = Pricer(laid_out(model=config(kind="mixtral", experts=4)))
    index = next(op for op in operations(pricer.layout) if op.name == "index")
    price = pricer.forward(index)
    assert price.source is Source.ROOFLINE
    assert pricer.calibrated is not None
    launches = index.kernels * 5e-6
    assert price.seconds == pytest.approx(pricer.calibrated.copy(index.forward_bytes / 2).seconds + launches)
    assert price.p5 < price.seconds < price.p95


def test_experts_run_one_by_one() -> None:
    pricer = Pricer(laid_out(model=config(kind="mixtral", experts=4)))
    ops = {op.name: op for op in operations(pricer.layout)}
    assert pricer.calibrated is not None
    assert ops["experts_gate"].shape == (4, 512 * 2 / 4, 688, 256)
    assert pricer.forward(ops["experts_gate"]) == pricer.calibrated.grouped_gemm("forward", 4, 256, 688, 256, "fp32")
    rows = pricer.calibrated.elementwise("gather_rows forward", 256, 256, "fp32")
    assert pricer.forward(ops["permute"]) == rows.scaled(4.0)


def test_the_gradient_of_the_table_is_filled_whatever_the_tokens() -> None:
    small, large = (Pricer(laid_out(model=config(v=v))) for v in (1000, 50000))
    op = operations(small.layout)[0]
    assert op.name == "embedding"
    assert small.forward(op) == large.forward(op)
    assert large.calibrated is not None
    grown = large.input_gradient(op).seconds - small.input_gradient(op).seconds
    fills = [large.calibrated.optimizer("zero_grad", 256.0 * vocabulary, "fp32") for vocabulary in (1000, 50000)]
    assert grown == pytest.approx(fills[1].seconds - fills[0].seconds)


def test_later_micro_batches_add_their_gradients() -> None:
    one, three = (predict(config(), calibrated_cpu(), PLAN | {"global_batch": 2 * count}) for count in (1, 3))
    layout = laid_out()
    pricer = Pricer(layout)
    added = sum(pricer.added(size).seconds for size in tensors_of(pieces_of(layout)))
    passes = one.step_time_ns - one.breakdown_ns["optimizer"]
    expected = 3 * passes + one.breakdown_ns["optimizer"] + 2e9 * added
    assert three.step_time_ns == pytest.approx(expected, rel=1e-6)
    assert three.breakdown_ns["optimizer"] == pytest.approx(one.breakdown_ns["optimizer"], rel=1e-6)


def test_a_cpu_updates_tensor_by_tensor() -> None:
    layout = laid_out()
    pricer = Pricer(layout)
    assert pricer.calibrated is not None
    each: list[Price] = [
        pricer.calibrated.optimizer("adamw single", size, "fp32") for size in tensors_of(pieces_of(layout))
    ]
    step = predict(config(), calibrated_cpu(), PLAN)
    assert step.breakdown_ns["optimizer"] == pytest.approx(1e9 * sum(price.seconds for price in each), rel=1e-5)


def test_nothing_scales_a_measured_price() -> None:
    """Neither power, nor a release, nor the host's speed."""
    document = calibrated_cpu()
    slower = document | {"host": document["host"] | {"cpu_speed": 0.5}}
    one, other = (predict(config(), cluster, PLAN) for cluster in (document, slower))
    assert one.step_time_ns == other.step_time_ns
    assert one.step_time_ns == predict(config(), document, PLAN | {"release": "mlperf-v4.1"}).step_time_ns


def test_another_framework_runs_on_a_calibrated_device_too() -> None:
    result = predict(config(), calibrated_cpu(), PLAN | {"framework": "megatron", "precision": "bf16"})
    assert result.status == "ok"
    assert result.breakdown_ns["gemm"] > 0


def test_compiled_layers_are_priced_by_bytes_and_hold_less() -> None:
    eager, compiled = (predict(config(), calibrated_cpu(), PLAN | {"compile": wanted}) for wanted in (False, True))
    assert compiled.breakdown_ns["gemm"] == eager.breakdown_ns["gemm"]
    assert compiled.breakdown_ns["memory-bound"] < eager.breakdown_ns["memory-bound"]
    assert compiled.memory[0].peak_allocated_bytes < eager.memory[0].peak_allocated_bytes


def core(cluster: str = "h100-sxm:1", kv_heads: int = 2, **plan: Any) -> Operation:
    model = config(kv=kv_heads, h=512, heads=8)
    (first, *_) = (op for op in operations(laid_out(cluster, model, **plan)) if op.kind == "attention")
    return first


def test_a_gpu_has_no_fused_attention_for_fp32_and_fewer_heads_for_keys_and_values() -> None:
    """PyTorch 2.13: flash takes 16 bits only, the memory-efficient kernel as many heads for all three."""
    products, fused = core(), core(kv_heads=8)
    assert products.variant == "products"
    assert {one.variant for one in (fused, core(precision="bf16"), core(calibrated_cpu()))} == {"flash"}
    scores = 4 * 2 * 8 * 256**2
    assert products.saved_bytes == scores + 3 * 4 * 2 * 256 * 512
    assert products.flops == fused.flops
    one, other = (Pricer(laid_out("h100-sxm:1", config(kv=kv, h=512, heads=8), seq_len=4096)) for kv in (2, 8))
    many, few = (core(kv_heads=kv, seq_len=4096) for kv in (2, 8))
    assert one.forward(many).seconds > 2 * other.forward(few).seconds
    assert one.input_gradient(many).seconds > one.forward(many).seconds


def test_beside_a_kernel_on_a_cpu_are_the_calls_that_were_measured_in_each_round_of_a_loop() -> None:
    """`linear`: a module's call of 3 us and two views of 2 us; five experts in a loop: five times that."""
    pricer = Pricer(laid_out(calibrated_cpu()))
    pricer._measured_host = {"module_call_s": 3e-6, "view_call_s": 2e-6}
    op = next(op for op in operations(laid_out(calibrated_cpu())) if op.kind == "gemm")
    calls = {"gemm": {"module_call_s": 1.0, "view_call_s": 2.0}}
    for repeats, times in ((0, 1), (1, 1), (5, 5)):
        found = pricer._beside(replace(op, repeats=repeats), calls)
        assert (found.seconds, found.p5, found.p95) == pytest.approx([times * f * 7e-6 for f in (1, 0.6, 1.6)])
    assert pricer._beside(replace(op, kind="scan"), calls).seconds == 0


def test_plain_products_keep_their_probabilities() -> None:
    def held(kv_heads: int) -> float:
        result = predict(
            load_model(config(kv=kv_heads, h=512, heads=8, layers=4)), "h100-sxm:1", PLAN | {"seq_len": 2048}
        )
        return result.peak_memory.peak_allocated_bytes

    scores = 4 * 2 * 8 * 2048**2
    assert held(2) - held(8) == pytest.approx(4 * scores, rel=0.6)
    assert held(2) - held(8) > 4 * scores


def test_a_norm_is_one_kernel_on_a_gpu_and_a_chain_on_a_cpu() -> None:
    def norm(cluster: Any, **plan: Any) -> Operation:
        return next(op for op in operations(laid_out(cluster, **plan)) if op.name == "norm_1")

    on_gpu, on_cpu = norm("h100-sxm:1"), norm(None)
    assert (on_gpu.kernels, on_cpu.kernels) == (1, 6)
    assert on_gpu.forward_bytes < on_cpu.forward_bytes / 5
    model = load_model("llama-3-8b").with_changes(layers=1)
    for framework, release, kernels in [
        ("torchtitan", None, 1),
        ("torchtitan", "torchtitan-24.12", 6),
        ("torchtitan", "torchtitan-25.10", 1),
        ("nanotron", None, 6),
    ]:
        plan = {"framework": framework, "release": release, "global_batch": 8, "seq_len": 256}
        found = operations(resolve(model, parse_cluster("h100-sxm:8"), read_plan(plan)))
        assert {op.kernels for op in found if op.part == "norms"} == {kernels}
