"""A Result with the numbers of a real run: Llama 3.1 405B on 8,192 H100, tp 8, pp 16, cp 2, dp 32.

The 1F1B arithmetic below is only as true as a picture needs; nothing is asserted about its physics.
"""

from __future__ import annotations

from dataclasses import replace

from windtunnel.physics.step.result import (
    Advice,
    Blame,
    Disturbed,
    Infeasible,
    Interval,
    Limit,
    PathPart,
    RankClass,
    Result,
    Samples,
    StageMemory,
    StageReport,
    Waiting,
)
from windtunnel.views.text import split_exactly

GIB = 1 << 30
PP, MICRO_BATCHES = 16, 48
FORWARD_NS, BACKWARD_NS = 88_123_457, 171_654_321
CAPACITY = 85_017_624_576  # 79.18 GiB
STEP_NS = (MICRO_BATCHES + PP - 1) * (FORWARD_NS + BACKWARD_NS) + 611_000_003


def _stage_breakdown(stage: int, layers: int) -> dict[str, int]:
    busy = STEP_NS - 611_000_003 - (PP - 1) * (FORWARD_NS + BACKWARD_NS)
    work = busy * layers // 8
    parts = {
        "compute": work * 68 // 100,
        "memory_bound": work * 11 // 100,
        "exposed_nvlink": work * 13 // 100,
        "exposed_network": work * 4 // 100 + 320_000_001,
        "optimizer": 142_000_003,
        "host": 31_000_007,
        "waiting": 91_000_000 + 7_000_001 * stage,
    }
    return {**parts, "pipeline_bubble": STEP_NS - sum(parts.values())}


def _ops(stage: int, start: int, length: int, tag: str, layers: int) -> list[Interval]:
    per_layer = (("attention", 22), ("attention out", 10), ("norm", 4), ("mlp up", 30), ("mlp down", 26), ("norm", 4))
    ops, at = [], start
    slot = length // layers
    for layer in range(layers):
        begin = start + layer * slot
        quanta = split_exactly([slot * share for _, share in per_layer], 96, slot)
        at = begin
        for (name, _), span in zip(per_layer, quanta, strict=True):
            category = "memory_bound" if name == "norm" else "compute"
            if name == "norm":
                ops.append(
                    Interval(stage, "tp", f"all-gather L{layer} {tag}", "exposed_nvlink", at, at + span * 2 // 3)
                )
            else:
                ops.append(Interval(stage, "compute", f"{name} L{layer} {tag}", category, at, at + span))
            at += span
    return ops


def _excerpt() -> tuple[Interval, ...]:
    ops: list[Interval] = []
    for stage in range(PP):
        layers = 7 if stage in (0, PP - 1) else 8
        for micro in range(2):
            start = (stage + micro) * FORWARD_NS
            ops += _ops(stage, start, FORWARD_NS * layers // 8, f"fwd {micro}", layers)
            end = start + FORWARD_NS
            if stage < PP - 1:
                ops.append(Interval(stage, "pp", f"send activations {micro}", "exposed_network", end, end + 1_200_000))
        if stage >= PP - 4:
            start = PP * FORWARD_NS + (PP - 1 - stage) * BACKWARD_NS
            ops += _ops(stage, start, BACKWARD_NS * layers // 8, "bwd 0", layers)
    return tuple(sorted(ops, key=lambda op: (op.stage, op.stream, op.start_ns)))


def _memory(stage: int) -> StageMemory:
    in_flight = PP - stage
    state = {"parameters": 6.3, "gradients": 12.6, "optimizer": 4.9, "communication": 2.1, "workspace": 1.4}
    if stage in (0, PP - 1):
        state = {**state, "parameters": 7.4, "gradients": 13.9}
    fixed = {key: int(value * GIB) for key, value in state.items()}
    one = int(1.93 * GIB)
    categories = {**fixed, "activations": one * in_flight}
    base, allocated = sum(fixed.values()), sum(fixed.values()) + one * in_flight
    points, slot = [(0, base)], FORWARD_NS + BACKWARD_NS
    for micro in range(in_flight):
        points.append(((stage + micro) * FORWARD_NS + 1, base + one * (micro + 1)))
    at = (stage + in_flight) * FORWARD_NS + in_flight * BACKWARD_NS
    while at < STEP_NS - 611_000_003 - in_flight * BACKWARD_NS:
        points += [(at, allocated - one), (at + BACKWARD_NS, allocated)]
        at += slot
    for micro in range(in_flight):
        points.append((at + micro * BACKWARD_NS, allocated - one * (micro + 1)))
    points.append((STEP_NS, base))
    return StageMemory(
        stage=stage,
        ranks=512,
        categories=categories,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=allocated + int(2.3 * GIB),
        device_bytes=allocated + int(2.3 * GIB) + int(3.1 * GIB),
        peak_time_ns=(stage + in_flight) * FORWARD_NS,
        timeline=tuple(sorted((min(t, STEP_NS), b) for t, b in points)),
    )


def sample() -> Result:
    stages = tuple(
        StageReport(
            stage, 512, 7 if stage in (0, PP - 1) else 8, _stage_breakdown(stage, 7 if stage in (0, PP - 1) else 8)
        )
        for stage in range(PP)
    )
    keys = sorted(stages[0].breakdown_ns)
    sums = [sum(stage.breakdown_ns[key] for stage in stages) for key in keys]
    mean = dict(zip(keys, split_exactly(sums, PP, STEP_NS), strict=True))
    step_s = STEP_NS / 1e9
    tokens = 1536 * 8192
    return Result(
        status="ok",
        spec={
            "version": "0.1.0",
            "model": {
                "name": "llama-3.1-405b",
                "layers": 126,
                "hidden": 16384,
                "heads": 128,
                "kv_heads": 8,
                "ffn_hidden": 53248,
                "vocab": 128256,
                "parameters": 405_853_388_800,
                "tied_embeddings": False,
            },
            "cluster": {
                "gpu": "h100-sxm",
                "n_gpus": 8192,
                "gpus_per_node": 8,
                "nvlink_bandwidth_bytes_per_s": 450e9,
                "nic_bandwidth_bytes_per_s": 50e9,
                "oversubscription": 1.0,
            },
            "plan": {
                "framework": "megatron",
                "tp": 8,
                "pp": 16,
                "cp": 2,
                "dp": 32,
                "ep": 1,
                "virtual_stages": 1,
                "global_batch": 1536,
                "micro_batch": 1,
                "seq_len": 8192,
                "precision": "bf16",
                "schedule": "1f1b",
                "zero_stage": 1,
                "sequence_parallel": True,
                "recompute": "none",
                "overlap_grad_reduce": True,
                "overlap_param_gather": True,
                "overlap_tp": None,
                "optimizer": "adam",
            },
        },
        step_time_ns=STEP_NS,
        step_time_p5_ns=int(STEP_NS * 0.955),
        step_time_p95_ns=int(STEP_NS * 1.062),
        tokens_per_step=tokens,
        tokens_per_s=tokens / step_s,
        tokens_per_s_per_gpu=tokens / step_s / 8192,
        mfu=0.2247,
        hfu=0.2247,
        mfu_convention="6 N per token + causal attention; dense bf16 peak 989.4 TFLOP/s",
        model_tflops_per_gpu=222.3,
        breakdown_ns=mean,
        stages=stages,
        memory=tuple(_memory(stage) for stage in range(PP)),
        memory_capacity_bytes=CAPACITY,
        provenance={"measured": 0.312, "interpolated": 0.401, "fitted": 0.223, "roofline": 0.064},
        limits=(
            Limit("pipeline bubble", 0.262, step_s * 0.74),
            Limit("exposed NVLink", 0.09, step_s * 0.91),
            Limit("memory-bound ops", 0.08, step_s * 0.93),
        ),
        advice=(
            Advice({"virtual_stages": 4}, "--virtual-stages 4", "plan", int(step_s * 0.875e9), 0.125, 68 * GIB),
            Advice({"overlap_tp": True}, "--overlap-tp true", "plan", int(step_s * 0.97e9), 0.03, 66 * GIB),
            Advice({"precision": "fp8"}, "--precision fp8", "numbers", int(step_s * 0.7e9), 0.3, 60 * GIB),
        ),
        advice_tried=41,
        defaults=(
            "zero_stage = 1 (megatron)",
            "sequence_parallel = yes (megatron, tp > 1)",
            "schedule = 1f1b (megatron, pp > 1)",
            "overlap_grad_reduce = yes (megatron)",
            "gradient_dtype = fp32 (megatron)",
        ),
        warnings=("attention backward has no measured table for h100-sxm: fitted formula used",),
        reproduce=(
            "windtunnel predict llama-3.1-405b --cluster h100-sxm:8192 --tp 8 --pp 16 --cp 2 --global-batch 1536 "
            "--seq-len 8192 --framework megatron"
        ),
        n_gpus=8192,
        n_classes=16,
        n_ops=412_318,
        excerpt=_excerpt(),
        traffic_bytes={
            "tp nvlink": 118 * GIB,
            "cp network": 22 * GIB,
            "pp network": 6 * GIB,
            "dp network": 51 * GIB // 2,
        },
    )


def faster() -> Result:
    """The sample with interleaving: less bubble, more pipeline traffic, more memory."""
    base = sample()
    change = {"pipeline_bubble": -2_900_000_001, "exposed_network": 180_000_007, "host": 12_000_011}

    def moved(parts: dict[str, int]) -> dict[str, int]:
        return {key: value + change.get(key, 0) for key, value in parts.items()}

    step = STEP_NS + sum(change.values())
    stages = tuple(replace(stage, breakdown_ns=moved(dict(stage.breakdown_ns))) for stage in base.stages)
    memory = tuple(
        replace(
            stage,
            categories={**stage.categories, "activations": stage.categories["activations"] + GIB},
            peak_allocated_bytes=stage.peak_allocated_bytes + GIB,
            peak_reserved_bytes=stage.peak_reserved_bytes + GIB + 12_345_678,
            device_bytes=stage.device_bytes + GIB + 12_345_678,
        )
        for stage in base.memory
    )
    plan = {**base.spec["plan"], "virtual_stages": 4, "schedule": "interleaved"}
    return replace(
        base,
        spec={**base.spec, "plan": plan},
        step_time_ns=step,
        step_time_p5_ns=int(step * 0.955),
        step_time_p95_ns=int(step * 1.062),
        tokens_per_s=base.tokens_per_step / (step / 1e9),
        tokens_per_s_per_gpu=base.tokens_per_step / (step / 1e9) / base.n_gpus,
        mfu=base.mfu * STEP_NS / step,
        hfu=base.hfu * STEP_NS / step,
        breakdown_ns=moved(dict(base.breakdown_ns)),
        stages=stages,
        memory=memory,
        reproduce=base.reproduce + " --virtual-stages 4",
    )


SLOW, SLOW_RANK, DP = "gpu=1037:1.15", 1037, 32


def disturbed() -> Result:
    """The sample with one slow GPU: rank 1037, of stage 2 and replica 0."""
    base, makespan = sample(), STEP_NS - 161_000_000
    classes, runs = [], []
    for stage in range(PP):
        first = stage * 512
        waits = makespan * (26 + stage) // 100
        own = RankClass(16, first, stage, 0, makespan - waits, waits)
        rest = RankClass(496, first + 16, stage, 1, makespan - waits + 7_000_001, waits - 7_000_001)
        classes.append(own)
        runs.append((len(classes) - 1, 16))
        if stage == SLOW_RANK // 512:
            classes[-1] = replace(own, ranks=15)
            least = makespan * 9 // 100
            classes.append(RankClass(1, SLOW_RANK, stage, 0, makespan - least, least, (SLOW,)))
            before = SLOW_RANK - first
            runs[-1:] = [(len(classes) - 2, before), (len(classes) - 1, 1), (len(classes) - 2, 15 - before)]
        classes.append(rest)
        runs.append((len(classes) - 1, 496))
    way = [*range(PP), *range(PP - 2, 1, -1)]
    fast, at, path = BACKWARD_NS // 2, 0, []
    for number, stage in enumerate(way):
        rank = SLOW_RANK if stage == 2 else stage * 512
        end = makespan if number == len(way) - 1 else at + fast
        path.append(PathPart(rank, stage, 0, "forward" if number < PP else "backward", at, end))
        at = end
    return replace(
        base,
        disturbed=Disturbed(
            undisturbed_step_time_ns=STEP_NS * 92 // 100,
            gpus_lost=655.4,
            programs=32,
            replica_classes=(1, 31),
            blame=(
                Blame(SLOW, STEP_NS // 15, STEP_NS // 16, 2, 0, (STEP_NS // 20, STEP_NS // 16, STEP_NS // 14)),
                Blame("pause=1%:50ms", 12_345_678, 2_345_678, -1, -1),
            ),
            samples=Samples(0.02, 1000, 7, STEP_NS * 99 // 100, STEP_NS, STEP_NS * 102 // 100),
            rank_classes=tuple(classes),
            class_runs=tuple(runs),
            critical_path=tuple(path),
            waiting=(
                Waiting("pp 1 to 0", 3_100_000_000, 3_900_000_000, 512),
                Waiting("tp x cp of stage 2", 930_000_000, 992_000_000, SLOW_RANK),
                *(
                    Waiting(f"dp of stage {stage}", 700_000_000 - stage, 790_000_000, 512 * stage)
                    for stage in range(PP)
                ),
                Waiting("gradient norm", 0, 0, -1),
            ),
        ),
    )


def infeasible() -> Result:
    """The sample with twice the micro-batch: stage 0 does not fit."""
    base = sample()
    memory = tuple(
        replace(
            stage,
            categories={**stage.categories, "activations": stage.categories["activations"] * 2},
            peak_allocated_bytes=stage.peak_allocated_bytes + stage.categories["activations"],
            peak_reserved_bytes=stage.peak_reserved_bytes + stage.categories["activations"],
            device_bytes=stage.device_bytes + stage.categories["activations"],
            timeline=tuple((t, b + GIB) for t, b in stage.timeline),
        )
        for stage in base.memory
    )
    return replace(
        base,
        status="infeasible",
        memory=memory,
        infeasible=Infeasible(
            reason="activations of 16 micro-batches in flight do not fit",
            stage=0,
            needed_bytes=memory[0].device_bytes,
            capacity_bytes=CAPACITY,
        ),
        advice=(
            Advice({"micro_batch": 1}, "--micro-batch 1", "plan", int(base.step_time_ns * 1.03), -0.03, 70 * GIB),
            Advice({"cp": 4}, "--cp 4", "plan", int(base.step_time_ns * 1.05), -0.05, 71 * GIB),
        ),
    )


def bare() -> Result:
    """An infeasible job that was never replayed: no times, no memory, no excerpt."""
    return replace(
        sample(),
        status="infeasible",
        step_time_ns=0,
        step_time_p5_ns=0,
        step_time_p95_ns=0,
        tokens_per_s=0.0,
        tokens_per_s_per_gpu=0.0,
        mfu=0.0,
        hfu=0.0,
        breakdown_ns={},
        stages=(),
        memory=(),
        provenance={},
        limits=(),
        excerpt=(),
        traffic_bytes={},
        infeasible=Infeasible("parameters alone do not fit", 3, 200 * GIB, CAPACITY),
        advice=(),
        advice_tried=0,
    )


HOSTILE = "</script><script>alert(1)</script>[red]\x1b[31m{{ 7*7 }}\n\"'&"


def hostile() -> Result:
    """Every text that can come from a user's file says something it should not."""
    base = disturbed()
    known = base.disturbed
    assert known is not None
    slow = replace(
        known,
        blame=(replace(known.blame[0], what=HOSTILE), *known.blame[1:]),
        rank_classes=tuple(
            replace(one, disturbed_by=(HOSTILE,)) if one.disturbed_by else one for one in known.rank_classes
        ),
        critical_path=(replace(known.critical_path[0], what=HOSTILE), *known.critical_path[1:]),
        waiting=(replace(known.waiting[0], communicator=HOSTILE), *known.waiting[1:]),
    )
    spec = {**base.spec, "model": {**base.spec["model"], "name": HOSTILE}, HOSTILE: HOSTILE}
    return replace(
        base,
        spec=spec,
        disturbed=slow,
        warnings=(HOSTILE,),
        defaults=(HOSTILE,),
        mfu_convention=HOSTILE,
        reproduce=f"windtunnel predict '{HOSTILE}",
        limits=(replace(base.limits[0], what=HOSTILE),),
        excerpt=(replace(base.excerpt[0], label=HOSTILE, stream=HOSTILE), *base.excerpt[1:]),
        provenance={**base.provenance, HOSTILE: 0.0},
        traffic_bytes={HOSTILE: 5},
    )
