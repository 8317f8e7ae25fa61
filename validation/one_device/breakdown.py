"""Where the time of one run goes, part by part, beside what was predicted for the same part.

    python validation/one_device/breakdown.py 34m-fp32 --device my-device.yaml

Measured by torch.profiler: forward ops belong to the module or function around them, and an autograd node to the
forward op with the same sequence number. Each instant counts for the innermost part, so the parts sum to the step under
the profiler (slower than the step without: use it to compare parts, not to time steps). Predicted are the ops of one
pass as windtunnel priced them, times the passes of a step.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cases import Case, read_cases

HERE = Path(__file__).parent
MARK = "part:"
# Part -> category of `Result.breakdown_ns` that holds it.
CATEGORY = {
    "gemm": "gemm",
    "attention": "attention",
    "optimizer": "optimizer",
    **dict.fromkeys(("norm", "rope", "activation", "residual", "embedding", "loss", "routing"), "memory-bound"),
    **dict.fromkeys(("gradient sum", "between ops"), "host"),
}
# Start of a predicted op's name -> part; what is not here is a GEMM.
PREDICTED = {
    "norm": "norm", "final_norm": "norm", "rope": "rope", "core_attention": "attention", "residual": "residual",
    "embedding": "embedding", "loss": "loss", "activation": "activation", "expert_activation": "activation",
    "permute": "routing", "unpermute": "routing", "gradient": "gradient sum",
}  # fmt: skip


def label_parts(torch: Any, model: Any) -> None:
    """Wrap modules and functions of the truth model in profiler ranges."""
    import model as truth

    names = {
        torch.nn.Linear: "gemm", torch.nn.LayerNorm: "norm", truth.RMSNorm: "norm", torch.nn.Embedding: "embedding",
        truth.SwiGLU: "activation", truth.Ungated: "activation", truth.Experts: "routing", truth.Block: "residual",
    }  # fmt: skip
    for module in model.modules():
        if type(module) in names:
            module.forward = ranged(torch, names[type(module)], module.forward)
    truth.rotate = ranged(torch, "rope", truth.rotate)
    truth.loss_of = ranged(torch, "loss", truth.loss_of)
    attend = truth.functional.scaled_dot_product_attention
    truth.functional.scaled_dot_product_attention = ranged(torch, "attention", attend)


def ranged(torch: Any, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def inside(*args: Any, **kwargs: Any) -> Any:
        with torch.profiler.record_function(MARK + name):
            return function(*args, **kwargs)

    return inside


def measured_parts(case: Case, threads: int, steps: int = 3) -> tuple[dict[tuple[str, str], float], float]:
    """Seconds per step of (part, pass), and of the whole step without the profiler."""
    import torch
    from model import build
    from torch.profiler import ProfilerActivity, profile, record_function

    torch.set_num_threads(threads)
    torch.manual_seed(17)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[case.precision]
    model = build(case.config, case.seq, dtype, recompute=case.recompute)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    data = torch.randint(0, case.config["vocab_size"], (2, case.accumulate, case.batch, case.seq))

    def step() -> None:
        for micro in range(case.accumulate):
            with record_function("forward"):
                loss = model(data[0, micro], data[1, micro]) / case.accumulate
            with record_function("backward"):
                loss.backward()
        with record_function("optimizer"):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    times = []
    for _ in range(5):
        begun = time.perf_counter()
        step()
        times.append(time.perf_counter() - begun)
    label_parts(torch, model)
    step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            with record_function("step"):
                step()
    parts = parts_of(profiler.profiler.kineto_results.events())  # type: ignore[union-attr]
    return {key: seconds / steps for key, seconds in parts.items()}, statistics.median(times[2:])


def parts_of(events: Any) -> dict[tuple[str, str], float]:
    """Exclusive seconds of (part, pass): intervals nest, each instant belongs to the innermost one that has a part."""
    spans = [(e.start_ns(), e.end_ns(), e.name(), e.sequence_nr()) for e in events if e.name() != "[memory]"]
    spans.sort(key=lambda span: (span[0], -span[1]))
    part_of_sequence: dict[int, str] = {}
    found: dict[tuple[str, str], float] = defaultdict(float)
    stack: list[tuple[int, str, str, str]] = []  # end, part, pass, name
    clock = 0

    def advance(to: int) -> None:
        nonlocal clock
        while stack:
            end, part, phase, _ = stack[-1]
            until = min(end, to)
            if until > clock:
                found[part, phase] += (until - clock) / 1e9
                clock = until
            if end > to:
                return
            stack.pop()
        clock = max(clock, to)

    for begun, ended, name, sequence in spans:
        advance(begun)
        _, part, phase, around = stack[-1] if stack else (0, "between ops", "between", "")
        if name in ("forward", "backward", "optimizer"):
            part, phase = ("optimizer" if name == "optimizer" else "between ops"), name
        elif name.startswith(MARK):
            part = name.removeprefix(MARK)
        elif name.startswith("autograd::engine::evaluate_function"):
            kind = name.rsplit(" ", 1)[-1]
            part = "gradient sum" if "AccumulateGrad" in kind else part_of_sequence.get(sequence, "between ops")
        elif name in ("aten::add", "aten::add_") and around.startswith("autograd::engine::evaluate_function"):
            part = "residual"  # beside the node, not in it: two gradients of one value meet
        elif phase == "forward" and sequence >= 0:
            # Ops that make no node show the number of the next node: the last to show a number is the one that made it.
            part_of_sequence[sequence] = part
        if stack or name == "step":
            stack.append((ended, part, phase, name))
    advance(clock + (stack[0][0] - clock if stack else 0))
    return dict(found)


def predicted_parts(case: Case, device: str) -> tuple[dict[tuple[str, str], float], Any]:
    """Seconds per step of (part, pass) as priced, and the whole Result."""
    import windtunnel
    from windtunnel.studies.training.layout import resolve
    from windtunnel.studies.training.lowering.model_chunks import pieces_of
    from windtunnel.studies.training.lowering.pass_lowering import build_segment
    from windtunnel.studies.training.pricing import Pricer
    from windtunnel.studies.training.schedules import Kind

    result = windtunnel.predict(case.config, device, case.plan)
    layout = resolve(
        windtunnel.load_model(case.config), windtunnel.parse_cluster(device), windtunnel.read_plan(case.plan)
    )
    pricer = Pricer(layout)
    found: dict[tuple[str, str], float] = defaultdict(float)
    for piece in pieces_of(layout):
        for phase in (Kind.FORWARD, Kind.BACKWARD):
            segment = build_segment(pricer, piece.blocks, phase)
            labels = segment.graph.labels
            for index, duration in enumerate(segment.end_ns - segment.start_ns):
                name = labels[segment.graph.label[index]]
                found[part_named(name), phase.value] += float(duration) / 1e9 * case.accumulate
    found["optimizer", "optimizer"] = result.breakdown_ns.get("optimizer", 0) / 1e9
    return dict(found), result


def part_named(name: str) -> str:
    """The part of a predicted op, "recompute norm_1" or "qkv backward weight"."""
    bare = name.removeprefix("recompute ")
    return next((part for start, part in PREDICTED.items() if bare.startswith(start)), "gemm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(read_cases()), metavar="NAME", help="a run of configs.yaml")
    parser.add_argument("--device", metavar="FILE", help="what `windtunnel calibrate` wrote; without it, measure only")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    case = read_cases()[options.name]
    if case.compile:
        parser.error(f"{case.name} is compiled: its parts are fused, so there is nothing to set beside")
    predicted: dict[tuple[str, str], float] = {}
    result = None
    if options.device:
        device = options.device if ":" in options.device else f"{options.device}:1"
        predicted, result = predicted_parts(case, device)
    parts, plain = measured_parts(case, options.threads)
    whole = sum(parts.values())
    print(f"{case.name}: {plain:.4f} s a step, {whole:.4f} s under the profiler\n")
    print(f"{'part':14s} {'pass':10s} {'measured':>10s} {'share':>7s} {'predicted':>10s} {'error':>7s}")
    for key in sorted({*parts, *predicted}, key=lambda key: -parts.get(key, 0.0)):
        one, other = parts.get(key, 0.0), predicted.get(key, 0.0)
        error = f"{other / one - 1:+7.0%}" if one and other else "      -"
        print(f"{key[0]:14s} {key[1]:10s} {one * 1e3:8.2f}ms {one / whole:7.1%} {other * 1e3:8.2f}ms {error}")
    if result is None:
        return
    print(f"\n{'category':16s} {'measured':>10s} {'predicted':>10s}")
    totals: dict[str, float] = defaultdict(float)
    for (part, _), seconds in parts.items():
        totals[CATEGORY.get(part, part)] += seconds
    for category in {**totals, **result.breakdown_ns}:
        nanoseconds = result.breakdown_ns.get(category, 0)
        print(f"{category:16s} {totals.get(category, 0.0) * 1e3:8.2f}ms {nanoseconds / 1e6:8.2f}ms")


if __name__ == "__main__":
    main()
