"""Predict one training step: resolve, lower, price, replay, read.

`predict(model, cluster, plan)` is the whole study. The headline breakdown is the mean over all ranks and sums exactly
to the step; each rank class has its own in `Result.stages`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Unpack

import numpy as np

from windtunnel.errors import SpecError
from windtunnel.physics.cost.device_memory import memory_document
from windtunnel.physics.cost.price import Source
from windtunnel.physics.cost.training import training_document
from windtunnel.physics.engine import Timeline, exposed
from windtunnel.physics.hardware import Cluster, parse_cluster
from windtunnel.physics.hardware.mixed import MixedCluster, parse_mixed
from windtunnel.physics.model import Model, load_model
from windtunnel.physics.model.reading.grammar import TOWERS_NOTE
from windtunnel.physics.step.disturbances.disturbances import parse_disturbances
from windtunnel.physics.step.result import Disturbed, Infeasible, Result, StageMemory
from windtunnel.physics.step.result_of import (
    BUBBLE,
    ClassTime,
    Kernels,
    Reading,
    Work,
    limits_of,
    read,
    result_of,
    roofline_warning,
    sum_to,
)
from windtunnel.questions.asked.parts.scenario import CALM, Parts, Scenario, with_parts
from windtunnel.questions.asked.predict import Predict
from windtunnel.questions.header import product_version
from windtunnel.studies.training.answers import answer_to, remember
from windtunnel.studies.training.distance import distances, memory_spread
from windtunnel.studies.training.disturbances.planned import disturb
from windtunnel.studies.training.excerpt import excerpt_of
from windtunnel.studies.training.forward_only import BEFORE, with_forward_passes
from windtunnel.studies.training.layout import Layout, resolve
from windtunnel.studies.training.layout_checks import towers_of
from windtunnel.studies.training.lowering.block import Block
from windtunnel.studies.training.lowering.pass_builder import owned
from windtunnel.studies.training.lowering.passes import known_pieces
from windtunnel.studies.training.lowering.simulated import Simulated, simulate
from windtunnel.studies.training.lowering.step import LoweredStep
from windtunnel.studies.training.memory.peak import memory_of
from windtunnel.studies.training.mixed import of_all_types, staged
from windtunnel.studies.training.plan import PEAK_DTYPE, Plan, read_plan
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.question import question_by
from windtunnel.studies.training.reading import parts_of, recomputed_flops, unmeasured_of
from windtunnel.studies.training.workload.imbalance import busiest_experts, mean_document, packed, routed, with_router
from windtunnel.studies.training.workload.router_load import parse_router_load
from windtunnel.studies.training.workload.sequence_lengths import read_lengths

SLOWED = "slowed by overlap"
FULL = (
    "memory is full: it fits only because PyTorch's allocator gives cached memory back to the driver; of 18 published"
    " layouts like it 13 crashed; how much longer the others take is not published, which is why the band is wide"
)
TASKS = {
    "dpo": "a reference's forward pass comes before the step and is in its time, not in its timeline",
    "grpo": "forward passes of the old policy and of a reference come before the step and are in its time, not in its"
    " timeline",
    "forward": "time and memory are those of one forward pass; the timeline and the traffic are a training step's",
}
EVENLY = "experts are taken as evenly loaded; --router-load tells otherwise"


def predict(
    model: Model | str | Path | Mapping[str, object],
    cluster: Cluster | MixedCluster | str | Path | Mapping[str, object],
    plan: Plan | str | Path | Mapping[str, object],
    *,
    scenario: Scenario = CALM,
    **parts: Unpack[Parts],
) -> Result:
    """How long one optimizer step takes, where the time goes, and whether it fits.

    `model`: a catalogue name, a Hugging Face `config.json` (path or mapping) or a Model; `cluster`: `h100-sxm:8192`, a
    YAML file or a Cluster, or several types of GPU (`hardware/mixed.py`); `plan`: a YAML file, a mapping or a Plan.
    `scenario`: what disturbs the step, or its parts as keywords: `slow`, disturbances such as `gpu=1037:1.15` or
    `link=node12.nic3:0.5` (docs/disturb.md); `jitter`, relative standard deviation of a pass, sampled `samples` times
    from `seed`; `router_load`, popularity of experts, `zipf:0.5` or a CSV file; `lengths`, a CSV histogram of the
    documents that sequences are packed from. Raises UserError on a spec that cannot be; a job that does not fit in
    memory is a Result whose status is "infeasible".
    """
    scenario = with_parts(scenario, parts)
    mixed = cluster if isinstance(cluster, MixedCluster) else parse_mixed(cluster)
    if mixed is not None:
        has_workload = scenario.router_load is not None or scenario.lengths is not None
        if scenario.disturbs or scenario.samples or has_workload:
            raise SpecError("cluster", mixed.name, "of several types: disturbances, routers and lengths need one type")
        inputs = (model, cluster)
        model = model if isinstance(model, Model) else load_model(model)
        return of_all_types(model, mixed, read_plan(plan), predict, _by_stage, inputs)
    inputs = (model, cluster)
    model = model if isinstance(model, Model) else load_model(model)
    cluster = cluster if isinstance(cluster, Cluster) else parse_cluster(cluster)  # type: ignore[arg-type]
    plan = read_plan(plan)
    words = tuple(word if isinstance(word, str) else None for word in inputs)
    key = (id(model), cluster, plan, words) if scenario == CALM else None
    if key is not None and (answer := answer_to(key)) is not None:
        return answer
    layout = resolve(model, cluster, plan)
    disturbances = parse_disturbances(scenario, cluster)
    router, lengths, seed = scenario.router_load, scenario.lengths, scenario.seed
    pricer = Pricer(layout)
    documents = None if lengths is None else read_lengths(lengths)
    if documents is not None:
        pricer = pricer.with_documents(mean_document(documents, layout, seed))
    chosen = layout.schedule_table()
    even = base = simulate(layout, known_pieces(layout), chosen, pricer)
    uneven = None
    if router is not None:
        loads = parse_router_load(str(router), model, seed=seed)
        uneven = routed(loads, layout, lambda pieces: simulate(layout, pieces, chosen, pricer), seed)
        base = uneven.simulated

    def under_all(simulated: Simulated) -> tuple[int, Disturbed | None]:
        if not (disturbances.parts or documents):
            return simulated.makespan_ns, None
        step, pieces = simulated.step, simulated.pieces
        sources = {}
        if documents is not None:
            sources[f"lengths {lengths}"] = packed(documents, layout, step, pieces, pricer, seed)
        return disturb(step, layout, pieces, pricer, simulated.makespan_ns, disturbances, sources)

    makespan, disturbed = under_all(base)
    if uneven is not None:
        disturbed = with_router(
            disturbed, uneven, layout, makespan, base.makespan_ns, even.makespan_ns, under_all(even)[0]
        )
    # A job runs out of memory in the worst step of a trace, not in its median one.
    steps = (base,) if uneven is None else uneven.steps
    memory_layout = layout
    if layout.plan.task == "forward":  # without gradients a layer leaves nothing, as if it were recomputed
        memory_layout = replace(layout, plan=layout.plan.with_fields({"recompute": "full"}))
    memory = fullest(
        memory_of(
            memory_layout,
            step.pieces if memory_layout is layout else known_pieces(memory_layout),
            step.step,
            step.timeline.end_ns,
        )
        for step in steps
    )
    question = question_by(model, cluster, layout.user_plan, disturbances.scenario(router, lengths), inputs)
    result = _result(layout, (pricer,), base.step, base.timeline, memory, question, makespan, disturbed)
    if key is not None:
        remember(key, model, result)
    if uneven is None:
        return result
    warnings = tuple(busiest_experts(uneven.load, layout) if text == EVENLY else text for text in result.warnings)
    return replace(result, warnings=warnings)


def _by_stage(model: Model, cluster: MixedCluster, plan: Plan) -> tuple[Result, int]:
    """A pipeline whose stages lie on several types; and the type whose memory it is told against.

    That of the stage that needs the largest share of what it has.
    """
    job = staged(model, cluster, plan)
    memory = job.memory()

    shown = job.type_of[
        max(memory, key=lambda stage_memory: stage_memory.device_bytes / stage_memory.capacity_bytes).stage
    ]
    own = tuple(stage_memory for stage_memory in memory if job.type_of[stage_memory.stage] == shown)
    simulated = job.simulated
    pricers = tuple(pricer for number, pricer in enumerate(job.pricers) if number in job.type_of)
    result = _result(
        job.layouts[shown], pricers, simulated.step, simulated.timeline, own, None, simulated.makespan_ns, None
    )
    return replace(result, memory=memory), shown


def fullest(steps: Iterable[tuple[StageMemory, ...]]) -> tuple[StageMemory, ...]:
    """Each stage's memory in the step that needs most of it."""
    return tuple(max(stage, key=lambda stage_memory: stage_memory.device_bytes) for stage in zip(*steps, strict=True))


def _result(
    layout: Layout,
    pricers: Sequence[Pricer],
    step: LoweredStep,
    timeline: Timeline,
    memory: tuple[StageMemory, ...],
    question: Predict | None,
    makespan_ns: int,
    disturbed: Disturbed | None,
) -> Result:
    """`pricers`: of each type of GPU that ranks lie on; each part of a step has the uncertainty of the least known."""
    cluster, plan, experts = layout.cluster, layout.plan, _has_experts(layout)
    training = pricers[0].training
    widest = {name: max(pricer.training.uncertainty[name] for pricer in pricers) for name in training.uncertainty}
    training = replace(training, uncertainty=widest, from_runs=all(pricer.training.from_runs for pricer in pricers))
    classes, forward = with_forward_passes(layout, step, _classes(layout, step, timeline))
    calm_ns = timeline.makespan_ns + forward
    if plan.task == "forward":
        calm_ns, makespan_ns = forward, forward + makespan_ns - timeline.makespan_ns
    else:
        makespan_ns += forward
    reading = read(
        calm_ns, makespan_ns, disturbed, classes, _kernels(step), training,
        n_gpus=cluster.n_gpus, experts=experts,
        distances=max((distances(pricer.layout) for pricer in pricers), key=_width),
    )  # fmt: skip
    most = max(memory, key=lambda stage: stage.device_bytes)
    trouble = None
    full = most.gives_back
    if full:
        reading = replace(reading, p95_ns=max(reading.p95_ns, int(reading.total_ns * memory_document()["given_back"])))
    reading, host = _untuned(layout, step, reading)
    elsewhere = (host, _behind_the_passes(layout, step, reading), _stopped_elsewhere(layout, reading))
    reading = replace(reading, band_reason="; ".join(words for words in (reading.band_reason, *elsewhere) if words))
    memory_p95 = round(most.device_bytes * (1.0 + memory_spread(layout)))
    tight = most.device_bytes <= cluster.gpu.usable_memory_bytes < memory_p95
    if most.device_bytes > cluster.gpu.usable_memory_bytes:
        trouble = Infeasible(
            reason="out of memory",
            stage=most.stage,
            needed_bytes=most.device_bytes,
            capacity_bytes=cluster.gpu.usable_memory_bytes,
        )
    return result_of(
        reading,
        _work(layout, pricers[0], step),
        cluster,
        spec=partial(_spec, layout),
        memory=memory,
        infeasible=trouble,
        limits=limits_of(parts_of(layout, reading.breakdown_ns, reading.total_ns, step), reading.total_ns),
        defaults=layout.defaults,
        warnings=(
            *roofline_warning(reading.provenance, " and ".join(pricer.layout.cluster.gpu.name for pricer in pricers)),
            *dict.fromkeys(word for pricer in pricers for word in unmeasured_of(pricer.layout, pricer)),
            *([FULL] if full else []),
            *([_tight(most, memory_p95, cluster.gpu.usable_memory_bytes)] if tight and not full else []),
            *_warnings(layout),
        ),
        memory_p95_bytes=memory_p95,
        tight=tight,
        question=question,
        n_classes=step.schedule.stages,
        n_ops=step.graph.n_ops + sum(segment.graph.n_ops for segment in step.segments),
        excerpt=excerpt_of(step, timeline, layout),
        traffic_bytes=_traffic(step),
    )


def _spec(layout: Layout) -> dict[str, object]:
    """What was predicted, as it was resolved."""
    return {
        "version": product_version(),
        "model": layout.model.to_dict(),
        "cluster": layout.cluster.summary_dict(),
        "plan": layout.plan.to_dict() | {"dp": layout.dp, "etp": layout.etp, "schedule": layout.schedule},
    }


def _untuned(layout: Layout, step: LoweredStep, reading: Reading) -> tuple[Reading, str]:
    """The band up to a step whose host nobody tuned, and that in words where it reaches further.

    Prices of launches are of runs that their makers tuned (processes bound to cores, graphs, fused routers). On others'
    clusters, kernel by kernel, an op takes up to `slower_host` times as long to issue; a bubble grows with its passes.
    """
    if layout.cluster.calibration is not None or layout.plan.cuda_graphs:
        return reading, ""
    factors, runs = training_document()["distance"]["slower_host"], step.runs()
    slower = factors.get(layout.plan.framework, factors["default"])
    now = sum(float(count) * segment.duration_ns for count, segment in zip(runs, step.segments, strict=True))
    then = sum(float(count) * segment.with_host_ns(slower) for count, segment in zip(runs, step.segments, strict=True))
    longest = round(reading.total_ns * then / max(1.0, now))
    if longest <= reading.p95_ns:
        return reading, ""
    words = f"a host that issues kernels {slower:g} times as slowly would take {longest / reading.total_ns - 1:+.0%}"
    return replace(reading, p95_ns=longest), words


def _behind_the_passes(layout: Layout, step: LoweredStep, reading: Reading) -> str:
    """In words, that a release before Megatron-Core overlapped gradients takes longer than the band reaches."""
    if layout.plan.release is not None or layout.plan.framework != "megatron" or not layout.plan.overlap_grad_reduce:
        return ""
    graph, shared = step.graph, [name.startswith(("exposed dp", "exposed edp")) for name in step.graph.categories]
    exchanged = np.where(np.array(shared)[graph.category], step.duration_ns, 0)
    wider = 1.5 if layout.gradient_bytes == 2.0 else 1.0  # they were reduced in fp32 then, and gathers are as long
    most = int(wider * np.bincount(graph.program, exchanged, graph.n_programs).max())
    seen = sum(ns for name, ns in reading.breakdown_ns.items() if name.startswith(("exposed dp", "exposed edp")))
    longest = reading.total_ns + most - seen
    if longest <= reading.p95_ns:
        return ""
    return f"before 2023-10 gradients waited for the passes: {longest / reading.total_ns - 1:+.0%}, name the release"


def _stopped_elsewhere(layout: Layout, reading: Reading) -> str:
    """In words, that prime-rl's trainer, which is torchtitan's layers, takes longer than the band reaches."""
    if layout.plan.release is not None or layout.plan.framework != "torchtitan":
        return ""
    pricer, most = Pricer(replace(layout, plan=layout.plan.with_fields({"release": "prime-rl-99"}))), 0.0
    for held_layer in _held_layers(layout):
        stops = (pricer.host.stops(block.operations) for block in held_layer)
        most = max(most, sum(price.seconds for price in stops if price is not None))
    passes = 3 if layout.plan.recompute_layers is None else 2
    longer = 1e9 * most * passes * layout.micro_batches / reading.total_ns
    if reading.total_ns * (1.0 + longer) <= reading.p95_ns:
        return ""
    return f"prime-rl's trainer reads from the GPU in every layer: {longer:+.0%}, name the release"


def _held_layers(layout: Layout) -> Iterator[list[Block]]:
    """Blocks of each pipeline rank that are layers."""
    pieces = known_pieces(layout)
    for places in layout.schedule_table().virtual_stage:
        yield [block for stage in places for block in pieces[stage].blocks if not block.is_end]


def _tight(most: StageMemory, p95_bytes: int, usable_bytes: int) -> str:
    needs, may, has = (size / 2**30 for size in (most.device_bytes, p95_bytes, usable_bytes))
    return (
        f"memory is tight: {needs:.1f} of {has:.1f} GiB, and peaks that were published lie up to {may / needs - 1:.0%}"
        " above predicted ones: it may not fit"
    )


def _width(distances: Sequence[tuple[str, float, str]]) -> float:
    return sum(sigma**2 for _, sigma, _ in distances)


def _has_experts(layout: Layout) -> bool:
    return any(layer.feed_forward.kind == "moe" for layer in layout.model.layers)


def _work(layout: Layout, pricer: Pricer, step: LoweredStep) -> Work:
    plan, tokens = layout.plan, layout.tokens_per_step
    # Attention stays inside documents where sequences are packed from them, and only that is work.
    document = pricer.document_length or plan.seq_len
    forward = layout.model.forward_flops_per_token(document, "full")
    linear = layout.model.forward_flops_per_token(1, "full") if plan.freezes_text else 0.0
    flops = tokens * (3.0 * forward - linear)  # frozen weights have no gradient
    flops = tokens * forward if plan.task == "forward" else flops + BEFORE[plan.task] * tokens * forward
    flops += _tower_flops(layout)
    inside = "" if document == plan.seq_len else f" inside documents (s = {document:,})"
    return Work(
        tokens=tokens,
        model_flops=flops,
        executed_flops=flops + (0.0 if plan.task == "forward" else recomputed_flops(layout, step)),
        dtype=PEAK_DTYPE.get(plan.precision, plan.precision),
        convention=f"{_per_token(plan)} per token, attention counted in full{inside},"
        f" against dense {plan.precision} peak",
    )


def _tower_flops(layout: Layout) -> float:
    """Of a step's images and clips: an encoder that is frozen has a forward pass alone."""
    plan, once = layout.plan, layout.plan.task == "forward"
    passes = 1.0 if once or plan.freezes_tower else 3.0
    joined = 1.0 if once or (plan.freezes_tower and plan.frozen is None) else 3.0
    before = BEFORE[plan.task] * (not once)
    flops = 0.0
    for tower, count, patches in towers_of(plan, layout.model):
        encoder, projector = tower.forward_flops(patches)
        flops += count * ((passes + before) * encoder + (joined + before) * projector)
    return plan.global_batch * flops


def _per_token(plan: Plan) -> str:
    more = BEFORE[plan.task]
    if plan.task == "forward":
        return "2 N + 4 L a d s"
    return f"{4 + 2 * more if plan.freezes_text else 6 + 2 * more} N + {12 + 4 * more} L a d s"


def _classes(layout: Layout, step: LoweredStep, timeline: Timeline) -> list[ClassTime]:
    """Each rank class's step, split exactly: passes by what is inside them, the rest by what was exposed."""
    graph, schedule = step.graph, step.schedule
    nominal = np.array([segment.duration_ns for segment in step.segments], np.int64)
    ranks = layout.cluster.n_gpus // schedule.stages
    insides: dict[tuple[int, int], dict[str, int]] = {}  # of so many nanoseconds of a pass
    classes = []
    for rank, parts in enumerate(owned(exposed(timeline, graph), graph)):
        split: dict[str, int] = {}
        own = schedule.of_rank(rank)
        used = step.segment_of[schedule.stage_of[own], schedule.kind[own]]
        counts = np.bincount(used, minlength=len(step.segments))
        for name, nanoseconds in parts.items():
            if not name.startswith("segment "):
                key = BUBBLE if name == "idle" else name
                split[key] = split.get(key, 0) + nanoseconds
                continue
            number = int(name.removeprefix("segment "))
            alone = min(nanoseconds, int(counts[number] * nominal[number]))
            if (number, alone) not in insides:
                insides[number, alone] = sum_to(step.segments[number].breakdown_ns, alone)
            for inner, part in insides[number, alone].items():
                key = "waiting inside a pass" if inner == "idle" else inner
                split[key] = split.get(key, 0) + part
            if nanoseconds > alone:
                split[SLOWED] = split.get(SLOWED, 0) + nanoseconds - alone
        layers = sum(len(layout.virtual_layers[v]) for v in schedule.virtual_stage[rank])
        classes.append(ClassTime(ranks, layers, {name: ranks * ns for name, ns in split.items()}))
    return classes


def _kernels(step: LoweredStep) -> Kernels:
    """Prices of all passes and of the optimizer; only passes have bands."""
    counts = step.runs()
    time = sum(float(count) * segment.duration_ns for count, segment in zip(counts, step.segments, strict=True))
    wide = sum(
        float(count) * segment.duration_ns * (segment.p95 - segment.p5)
        for count, segment in zip(counts, step.segments, strict=True)
    )
    busy = dict.fromkeys(Source, 0.0)
    for count, segment in zip(counts, step.segments, strict=True):
        for source, seconds in segment.busy_s.items():
            busy[source] += float(count) * seconds
    for price in step.optimizer:
        busy[price.source] += price.seconds
    return Kernels(time, wide, busy)


def _traffic(step: LoweredStep) -> dict[str, int]:
    """Mean bytes per GPU and step of each collective kind, group and tier."""
    total = dict(step.traffic_bytes)
    for count, segment in zip(step.runs(), step.segments, strict=True):
        for key, value in segment.traffic_bytes.items():
            total[key] = total.get(key, 0.0) + value * float(count) / step.schedule.stages
    return {key: int(value) for key, value in sorted(total.items())}


def _warnings(layout: Layout) -> Iterator[str]:
    encodes = layout.plan.images or layout.plan.clips
    yield from (note for note in layout.model.notes if not (encodes and note == TOWERS_NOTE))
    if layout.plan.task != "train":
        yield f"task {layout.plan.task}: {TASKS[layout.plan.task]}"
    if _has_experts(layout):
        yield EVENLY
        if layout.replicas > 1:
            yield "shard_group holds for dense parameters; experts are sharded over all their replicas"
