"""Predict a captured script: price its programs, fold its ranks, replay the step, and read off a `Result`.

    result = predict_captured("captured/", "h200:8192", slow=["gpu=77:1.2"])

The captured folder holds what a few ranks executed and which rank runs which of it; everything that can be asked of a
planned job can be asked of it: report, trace, comparison, disturbances.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputFileError, ScheduleError, SpecError, UserError
from windtunnel.physics.cost.device_memory import outside_of_allocator
from windtunnel.physics.graph.allocator_settings import AllocatorSettings, allocator_settings
from windtunnel.physics.hardware import Cluster, parse_cluster
from windtunnel.physics.step.disturbances.disturbances import parse_disturbances
from windtunnel.physics.step.disturbances.disturbed_step import Replayed
from windtunnel.physics.step.result import Disturbed, Infeasible, Result, StageMemory
from windtunnel.physics.step.result_of import limits_of, read, result_of
from windtunnel.questions.asked.parts import ClusterPart, ModelPart
from windtunnel.questions.asked.parts.plan import Framework, Script
from windtunnel.questions.asked.parts.scenario import CALM, Parts, Scenario, with_parts
from windtunnel.questions.asked.predict import Predict
from windtunnel.questions.header import product_version
from windtunnel.questions.typed import check
from windtunnel.studies.programs.compiler.fused_program import fused
from windtunnel.studies.programs.disturbances.disturbed import disturb, disturbed_job
from windtunnel.studies.programs.disturbances.pace import placed_on
from windtunnel.studies.programs.excerpt import captured_excerpt
from windtunnel.studies.programs.facts import (
    classes_of,
    has_experts,
    kernels_of,
    tokens_of,
    traffic_of,
    warnings_of,
    work_of,
)
from windtunnel.studies.programs.job import CapturedJob
from windtunnel.studies.programs.lowering.lower import CapturedGraph, PricedJob, priced_job
from windtunnel.studies.programs.lowering.pricing import OpPricer, op_pricer
from windtunnel.studies.programs.lowering.stages import class_names
from windtunnel.studies.programs.memory import CapturedMemory, memory_of_program
from windtunnel.studies.programs.period_mean import mean_of
from windtunnel.studies.programs.program import RankProgram
from windtunnel.studies.programs.rank_classes.agreement import deadlock
from windtunnel.studies.programs.replicas import replicated

MIB = 1 << 20
HASH = "@"  # between a captured folder and the hash of its content, as `reproduce` names it
POINTS = 400  # of the drawn timeline
Ints = NDArray[np.int64]
PERIOD = "period"  # fact of a job whose steps differ: how many are of each kind, and in which folder


def predict_captured(
    job: CapturedJob | str | Path,
    cluster: Cluster | str | Path,
    *,
    scenario: Scenario = CALM,
    framework: Framework = "pytorch",
    cuda_graphs: bool = False,
    allocator: str | None = None,
    **parts: Unpack[Parts],
) -> Result:
    """How long one step of a captured script takes on a cluster, where the time goes, and whether it fits.

    `job`: a captured folder or what was read from it. `cluster`: `h100-sxm:8192`, a YAML file or a Cluster; as many
    GPUs as the script was captured for, or any number for a script of one rank (`replicas.py`). `scenario` or its parts
    as keywords: as `training.predict` takes them, but for `router_load` and `lengths`, which the script has in it.
    `framework`: whose launch costs hold; `cuda_graphs`: the host replays graphs instead. `allocator`: PyTorch's
    settings of its allocator, as PYTORCH_ALLOC_CONF takes them; None: those that the script was captured with. Raises
    UserError on what cannot be; a job that runs out of memory is a Result whose status is "infeasible".
    """
    check(locals(), job=CapturedJob | str | PathLike, framework=Framework, cuda_graphs=bool, allocator=str | None)
    cluster_spec, scenario = cluster, with_parts(scenario, parts)
    for name in ("router_load", "lengths"):
        if getattr(scenario, name) is not None:
            raise SpecError(name, str(getattr(scenario, name)), "leave it out: the captured script has its own")
    job = job if isinstance(job, CapturedJob) else load(job)
    cluster = cluster if isinstance(cluster, Cluster) else parse_cluster(cluster)
    if job.world_size == 1 < cluster.n_gpus:
        job = replicated(job, cluster.n_gpus)
    disturbances = parse_disturbances(scenario, cluster)
    priced = price_captured(job, cluster, framework=framework, cuda_graphs=cuda_graphs)
    disturbances = placed_on(priced, disturbances)
    step = disturbed_job(priced, disturbances.parts)
    try:
        base = step.replayed(())
    except ScheduleError as error:  # of a folder that was captured for a CPU, say, where sends need nobody
        finding = deadlock(job)
        waits = finding.text if finding is not None else str(error)
        raise UserError(f"the captured job hangs: {waits}; on a cluster the script would hang there too") from None
    makespan, disturbed = base.timeline.makespan_ns, None
    if disturbances.parts:
        makespan, disturbed = disturb(priced, step, disturbances)
    question = Predict(
        model=ModelPart(base=_source(job)),
        cluster=ClusterPart(base=_cluster_word(cluster_spec, cluster)),
        plan=Script(
            framework=None if framework == "pytorch" else framework,
            cuda_graphs=cuda_graphs or None,
            allocator=allocator,
        ),
        scenario=disturbances.scenario(),
    )
    settings = allocator_settings(allocator_of(job) if allocator is None else allocator)
    memory = captured_memory(priced, base, settings=settings)
    result = _result(priced, base, memory, makespan, disturbed, question, settings)
    step_kinds = job.facts.get(PERIOD)
    period = step_kinds if step_kinds and isinstance(step_kinds, Sequence) else [{"steps": 1}]
    others = [
        (
            int(kind["steps"]),
            predict_captured(
                Path(job.source) / str(kind["folder"]),
                cluster,
                scenario=scenario,
                framework=framework,
                cuda_graphs=cuda_graphs,
                allocator=allocator,
            ),
        )
        for kind in period[1:]
    ]
    return mean_of([(int(period[0]["steps"]), result), *others])


def names_captured(text: str | Path) -> bool:
    """Whether this names a captured folder: `captured`, or with its content hash as `reproduce` writes it."""
    from windtunnel.studies.programs.folder import is_captured

    return is_captured(Path(text)) or is_captured(Path(str(text).rpartition(HASH)[0] or " "))


def load(path: str | Path) -> CapturedJob:
    """Read a captured folder; `FOLDER@HASH` reads it if it is still the one with this content.

    Raises InputFileError for a folder that is none, is damaged, or was captured anew.
    """
    from windtunnel.studies.programs.folder import is_captured, load_job

    folder, at, wanted = str(path).rpartition(HASH)
    if not at or is_captured(Path(path)):
        return load_job(Path(path))
    job = load_job(Path(folder))
    if not job.content_hash.startswith(wanted):
        prefix = job.content_hash[: len(wanted)]
        raise InputFileError(
            folder, f"has the content hash {prefix}, not {wanted}", f"use {folder} to take it as it is"
        )
    return job


def price_captured(
    job: CapturedJob, cluster: Cluster, *, framework: str = "pytorch", cuda_graphs: bool = False
) -> PricedJob:
    """A job priced on a cluster, its compiled regions compiled, with what its hosts do between steps."""
    programs = {rank: fused(program) for rank, program in job.programs.items()}
    if any(program is not job.programs[rank] for rank, program in programs.items()):
        job = replace(job, programs=programs)
    pricer = op_pricer(cluster, framework=framework, cuda_graphs=cuda_graphs)
    return priced_job(job, cluster, pricer, step_s=between_steps_s(cluster, pricer, framework))


def between_steps_s(cluster: Cluster, pricer: OpPricer, framework: str) -> float:
    """What hosts do between steps. A CPU's script does what was captured; GPUs wait for more, as published runs did."""
    per_doubling = 0.0 if pricer.on_cpu else pricer.training.step_per_doubling_s[framework]
    speed = cluster.host.cpu_speed if cluster.calibration is None else 1.0
    return per_doubling * math.log2(cluster.n_gpus) / speed


def captured_memory(
    priced: PricedJob, now: Replayed[CapturedGraph], *, settings: AllocatorSettings = AllocatorSettings()
) -> list[tuple[StageMemory, CapturedMemory]]:
    """Memory of each captured program on the ranks that run it."""
    on_cpu, cluster = priced.pricer.on_cpu, priced.places.cluster
    capacity = cluster.gpu.usable_memory_bytes
    memories = []
    for number, template in enumerate(priced.templates):
        used = {slot.family for slot in template.slots}
        families = [family for family in used if max(map(len, priced.job.families[family].groups)) > 1]
        outside = 0 if on_cpu else outside_of_allocator(cluster, len(families))
        # Without a limit first: an infeasible job is told how much it lacks.
        memory = memory_of_program(template.program, exact=on_cpu, settings=settings)
        device = memory.peak_reserved_bytes + outside
        if device > capacity and not on_cpu:
            tight = memory_of_program(template.program, capacity_bytes=capacity - outside, settings=settings)
            if tight.oom_op is None:  # giving back cached blocks makes it fit
                device, memory = tight.peak_reserved_bytes + outside, tight
        programs = np.flatnonzero(now.step.template_of == number)
        times = _event_times(now, int(programs[0]), template.op_of, memory)
        at = int(memory.allocated_bytes.argmax()) if len(memory.allocated_bytes) else -1
        stage = StageMemory(
            stage=number,
            ranks=int(now.step.step.graph.multiplicity[programs].sum()),
            categories=memory.categories,
            peak_allocated_bytes=memory.peak_allocated_bytes,
            peak_reserved_bytes=memory.peak_reserved_bytes,
            device_bytes=device,
            peak_time_ns=int(times[at]) if at >= 0 else 0,
            timeline=_thinned(times, memory.allocated_bytes),
        )
        memories.append((stage, memory))
    return memories


def _event_times(now: Replayed[CapturedGraph], program: int, op_of: NDArray[np.int32], memory: CapturedMemory) -> Ints:
    """When each allocation and free comes: with its op's kernel, else with the last one before."""
    first = int(now.step.first_op[program])
    start = now.timeline.start_ns[first : first + len(op_of)]
    size = 1 + max(int(op_of.max(initial=-1)), int(memory.event_op.max(initial=-1)))
    begins = np.zeros(size + 1, np.int64)
    np.maximum.at(begins, np.maximum(op_of, -1), start)  # a launch comes before its kernel
    begins[size] = 0  # where ops of no captured op went
    return np.maximum.accumulate(np.maximum.accumulate(begins[:size])[memory.event_op]) if size else memory.event_op


def _thinned(times: Ints, levels: Ints) -> tuple[tuple[int, int], ...]:
    """At most POINTS points, the peak among them."""
    if not len(times):
        return ()
    chosen = np.unique(np.append(np.linspace(0, len(times) - 1, POINTS).astype(int), int(levels.argmax())))
    return tuple(zip(times[chosen].tolist(), levels[chosen].tolist(), strict=True))


def _result(
    priced: PricedJob,
    base: Replayed[CapturedGraph],
    memories: Sequence[tuple[StageMemory, CapturedMemory]],
    makespan_ns: int,
    disturbed: Disturbed | None,
    question: Predict,
    settings: AllocatorSettings,
) -> Result:
    cluster, job = priced.places.cluster, priced.job
    reading = read(
        base.timeline.makespan_ns, makespan_ns, disturbed, classes_of(priced, base), kernels_of(priced, base.step),
        priced.pricer.training, n_gpus=cluster.n_gpus, experts=has_experts(job),
    )  # fmt: skip
    work = work_of(priced)
    return result_of(
        reading,
        work,
        cluster,
        spec=_spec(priced, memories, work.dtype),
        memory=tuple(stage for stage, _ in memories),
        infeasible=_infeasible(priced, memories, settings),
        # What would shrink them in a script was not tried: not said.
        limits=limits_of(reading.breakdown_ns, reading.total_ns),
        defaults=(
            f"captured from {len(priced.templates)} of {job.world_size:,} ranks",
            tokens_of(job)[1],
            "launches of one kernel each, from eager PyTorch" + (" and compiled graphs" if _compiles(priced) else ""),
            *_allocator_words(settings, priced),
        ),
        warnings=tuple(warnings_of(priced, reading.provenance)),
        question=question,
        n_classes=base.step.step.graph.n_programs,
        n_ops=base.step.step.graph.n_ops,
        excerpt=captured_excerpt(priced, base),
        traffic_bytes=traffic_of(priced, base.step),
        class_names=class_names(priced),
    )


def allocator_of(job: CapturedJob) -> str:
    """How the script's environment set up PyTorch's allocator; "" where it did not."""
    facts = {**next(iter(job.programs.values())).facts, **job.facts}
    return str(facts.get("allocator", "") or "")


def _allocator_words(settings: AllocatorSettings, priced: PricedJob) -> list[str]:
    if priced.pricer.on_cpu:
        return []
    words = ["expandable segments" if settings.expandable_segments else "segments of fixed size"]
    if settings.max_split_bytes is not None:
        words.append(f"no block from {settings.max_split_bytes // MIB} MiB split")
    if settings.not_followed:
        words.append(f"not followed: {', '.join(settings.not_followed)}")
    return [f"allocator: {', '.join(words)}"]


def _compiles(priced: PricedJob) -> bool:
    return any(op.compiled for template in priced.templates for op in template.program.ops)


def _infeasible(
    priced: PricedJob, memories: Sequence[tuple[StageMemory, CapturedMemory]], settings: AllocatorSettings
) -> Infeasible | None:
    capacity = priced.places.cluster.gpu.usable_memory_bytes
    number = max(range(len(memories)), key=lambda candidate: memories[candidate][0].device_bytes)
    stage, memory = memories[number]
    if stage.device_bytes <= capacity:
        return None
    program = priced.templates[number].program
    outside = stage.device_bytes - memory.peak_reserved_bytes
    exact = priced.pricer.on_cpu
    room = max(0, capacity - outside)
    tight = memory if exact else memory_of_program(program, capacity_bytes=room, settings=settings)
    return Infeasible(
        reason=f"out of memory in {tight.where(program, tight.oom_op)}{_line_at_peak(program)}",
        stage=number,
        needed_bytes=stage.device_bytes,
        capacity_bytes=capacity,
    )


def _line_at_peak(program: RankProgram) -> str:
    """The line of the script that holds most: a program keeps no other op's."""
    peak = program.facts.get("peak")
    stack = peak.get("stack") if isinstance(peak, dict) else None
    return f"; most is held at {stack[0]}" if stack else ""


def _spec(priced: PricedJob, memories: Sequence[tuple[StageMemory, CapturedMemory]], dtype: str) -> dict[str, object]:
    job = priced.job
    facts = {**next(iter(job.programs.values())).facts, **job.facts}
    script = str(facts.get("script", "") or job.source or "captured script")
    return {
        "version": product_version(),
        "model": {"name": Path(script).name},
        "cluster": priced.places.cluster.summary_dict(),
        "plan": {**_degrees(job), "precision": dtype, "framework": "captured script"},
        "captured": {
            "source": job.source,
            "content_hash": job.content_hash,
            "world_size": job.world_size,
            "captured_ranks": [template.program.rank for template in priced.templates],
            "groups": {family.name: max(len(group) for group in family.groups) for family in job.families},
            "facts": {str(key): _plain(value) for key, value in facts.items()},
            "op_at_peak": {
                str(template.program.rank): memory.where(template.program)
                for template, (_, memory) in zip(priced.templates, memories, strict=True)
            },
        },
    }


def _degrees(job: CapturedJob) -> dict[str, int]:
    """Degrees of parallelism as far as the script's meshes name them; data parallelism is what is left."""
    sizes: dict[str, int] = {}
    for program in job.programs.values():
        for names, lengths in program.meshes:
            sizes |= {name: max(size, sizes.get(name, 1)) for name, size in zip(names, lengths, strict=False)}
    mesh_sizes = {name: sizes[name] for name in ("tp", "pp", "cp") if name in sizes}
    if not mesh_sizes and not any(name.startswith("dp") for name in sizes):
        return {}
    degrees = {name: mesh_sizes.get(name, 1) for name in ("tp", "pp", "cp")}
    rest, left = divmod(job.world_size, math.prod(degrees.values()))
    if left:
        return {}
    return degrees | {"dp": rest} | ({"ep": sizes["ep"]} if "ep" in sizes else {})


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def _source(job: CapturedJob) -> str:
    """The captured folder as the command line names it, with its hash: `captured/@0123456789ab`."""
    return f"{job.source or 'captured'}{HASH + job.content_hash[:12] if job.content_hash else ''}"


def _cluster_word(spec: object, cluster: Cluster) -> str:
    return str(spec) if isinstance(spec, (str, Path)) else f"{cluster.gpu.name}:{cluster.n_gpus}"
