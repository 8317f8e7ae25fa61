"""What is read off a captured step: how its ranks spend it, FLOPs, tokens, traffic, prices, and what holds it back.

Model FLOPs are the captured ones without what is recomputed: ops of a recomputation, and of attention's backward one of
the five products, which makes the scores again. What ranks of one group compute alike counts on each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod

import numpy as np

from windtunnel.physics.cost.price import Source
from windtunnel.physics.engine import exposed
from windtunnel.physics.graph import OpKind
from windtunnel.physics.step.disturbances.disturbed_step import Replayed
from windtunnel.physics.step.result_of import BUBBLE, ClassTime, Kernels, Work, roofline_warning
from windtunnel.studies.programs.job import CapturedJob
from windtunnel.studies.programs.lowering.lower import CapturedGraph, PricedJob, family_words
from windtunnel.studies.programs.lowering.pricing import DTYPES
from windtunnel.studies.programs.op_shapes import attention_of, plain_name, product_of, tensor_elements
from windtunnel.studies.programs.program import RankProgram

WAITING = "waiting for peers"
GROUPED = ("_grouped_mm", "_scaled_grouped_mm", "grouped_mm", "scaled_grouped_mm")
ANSWERS_MOST = 8
SCORES_AGAIN = 0.2  # of attention's backward: one product of five
_LAYER = re.compile(r"(?:^|\.)(?:layers?|blocks?|h)\.(\d+)(?:\.|$)")


def classes_of(priced: PricedJob, now: Replayed[CapturedGraph]) -> list[ClassTime]:
    """How the ranks that run each captured program spend the step: what they run, and what they wait for."""
    graph = now.step.step.graph
    split = exposed(now.timeline, graph)
    busy = split.compute_ns + split.communication_ns + split.host_ns
    messages = np.zeros(len(graph.categories), np.bool_)
    messages[graph.category[(graph.kind == OpKind.SEND) | (graph.kind == OpKind.RECV)]] = True
    messages[[number for number, name in enumerate(graph.categories) if name == "exposed host copy"]] = False
    per_program = []
    for program in range(graph.n_programs):
        parts = {name: int(ns) for name, ns in zip(graph.categories, busy[program], strict=True) if ns}
        idle = split.idle_ns[program]
        parts[BUBBLE] = int(idle[messages].sum())
        parts[WAITING] = int(idle[~messages].sum() + split.tail_ns[program])
        per_program.append(parts)
    weight = graph.multiplicity.tolist()
    classes = []
    for number, template in enumerate(priced.templates):
        programs = np.flatnonzero(now.step.template_of == number).tolist()
        spent: dict[str, int] = {}
        for captured in programs:
            for name, ns in per_program[captured].items():
                spent[name] = spent.get(name, 0) + ns * weight[captured]
        layers = {match[1] for op in template.program.ops if (match := _LAYER.search(op.module))}
        classes.append(ClassTime(sum(weight[captured] for captured in programs), len(layers), spent))
    return classes


def kernels_of(priced: PricedJob, captured: CapturedGraph) -> Kernels:
    """Prices of all kernels; communication counts by source, but has no band here."""
    busy = dict.fromkeys(Source, 0.0)
    time = wide = 0.0
    for program, weight in enumerate(captured.step.graph.multiplicity.tolist()):
        template = priced.templates[int(captured.template_of[program])]
        time += weight * sum(template.busy_s.values())
        wide += weight * (template.p95_s - template.p5_s)
        for source, seconds in template.busy_s.items():
            busy[source] += weight * seconds
        for traffic in captured.traffic[program]:
            busy[traffic.source] += weight * traffic.seconds * traffic.calls
    return Kernels(time, wide, busy)


def has_experts(job: CapturedJob) -> bool:
    """Whether products are those of routed experts: grouped ones, or behind a router in a layer that picks the top."""
    return any(
        plain_name(op) in GROUPED or (plain_name(op) == "topk" and bool(_LAYER.search(op.module)))
        for program in job.programs.values()
        for op in program.ops
    )


def traffic_of(priced: PricedJob, captured: CapturedGraph) -> dict[str, int]:
    """Mean bytes per GPU and step of each kind, family and tier."""
    total: dict[str, float] = {}
    for program, weight in enumerate(captured.step.graph.multiplicity.tolist()):
        for traffic in captured.traffic[program]:
            family = family_words(priced.job.families[traffic.family].name)
            key = f"{traffic.kind} {family} ({traffic.tier.replace('_', '-')})"
            total[key] = total.get(key, 0.0) + weight * traffic.bytes
    return {key: int(value / priced.job.world_size) for key, value in sorted(total.items()) if value}


def work_of(priced: PricedJob) -> Work:
    """Tokens and FLOPs of the whole job's step, and the format in which most of them are done."""
    ranks, counts = np.unique(priced.job.runs, return_counts=True)
    model = executed = 0.0
    by_dtype: dict[str, float] = {}
    for rank, count in zip(ranks.tolist(), counts.tolist(), strict=True):
        for op in priced.job.programs[rank].ops:
            if not op.flops:
                continue
            executed += count * op.flops
            if not op.recompute:
                attention = attention_of(op)
                again = SCORES_AGAIN if attention is not None and attention.backward else 0.0
                model += count * op.flops * (1.0 - again)
            product = product_of(op)
            dtype = DTYPES.get(product.dtype if product else op.inputs[0].dtype if op.inputs else "", "bf16")
            by_dtype[dtype] = by_dtype.get(dtype, 0.0) + count * op.flops
    dtype = max(by_dtype, key=lambda name: (by_dtype[name], name), default="bf16")
    dtype = dtype if priced.places.cluster.gpu.supports(dtype) else "bf16"
    convention = f"captured FLOPs without recomputation, attention counted in full, against dense {dtype} peak"
    return Work(tokens_of(priced.job)[0], model, executed, dtype, convention)


def tokens_of(job: CapturedJob) -> tuple[int, str]:
    """Tokens of the whole job's step, and how they are known."""
    tokens = job.facts.get("tokens_per_step")
    if isinstance(tokens, int) and tokens > 0:
        return tokens, "tokens per step as given when capturing"
    ranks, counts = np.unique(job.runs, return_counts=True)
    looked_up = sum(count * _looked_up(job.programs[rank]) for rank, count in zip(ranks.tolist(), counts, strict=True))
    same = 1
    for family in job.families:
        if family.name in ("tp", "tensor", "tensor_parallel", "model_parallel"):
            same = max(same, max((len(group) for group in family.groups), default=1))
    if not looked_up:
        return 0, "tokens per step unknown: no embedding was looked up"
    alike = f", {same} ranks of a tensor-parallel group alike" if same > 1 else ""
    return int(looked_up) // same, f"tokens per step read off embedding look-ups{alike}"


def _looked_up(program: RankProgram) -> int:
    """Indices into the largest table: position embeddings are looked up too."""
    lookups: dict[tuple[int, ...], int] = {}
    for op in program.ops:
        if plain_name(op) == "embedding" and op.phase == "forward" and not op.recompute:
            tables = [spec.shape for spec in op.inputs if not spec.dtype.startswith("int")]
            indices = [tensor_elements(spec) for spec in op.inputs if spec.dtype.startswith("int")]
            if tables and indices:
                lookups[tables[0]] = lookups.get(tables[0], 0) + max(indices)
    return lookups[max(lookups, key=lambda shape: (prod(shape), shape))] if lookups else 0


def warnings_of(priced: PricedJob, provenance: Mapping[str, float]) -> Iterator[str]:
    """What a reader should know: answers to control flow, notes of the capture, prices by roofline."""
    job = priced.job
    yield from roofline_warning(provenance, priced.places.cluster.gpu.name)
    if job.facts.get("device") == "cpu" and not priced.pricer.on_cpu:
        yield "captured as on a CPU: kernels, streams and optimizer are those that PyTorch takes there, priced on GPUs"
    answers: dict[tuple[str, str, str], int] = {}
    for rank, program in job.programs.items():
        for answer in program.answers:
            answers.setdefault((answer.what, answer.told, answer.where), rank)
    for what, answered, where in list(answers)[:ANSWERS_MOST]:
        yield f"{where} reads {what} and was told {answered}"
    if len(answers) > ANSWERS_MOST:
        yield f"{len(answers) - ANSWERS_MOST} more reads of tensors were answered; see the captured folder"
    notes = dict.fromkeys((*job.notes, *(note for program in job.programs.values() for note in program.notes)))
    yield from notes
