"""A script of one rank on many GPUs: replicas of it, whose gradients are averaged as DistributedDataParallel does.

Every rank runs the captured program with the captured batch. In the backward pass of the last micro-batch (`no_sync`
before it) gradients are copied into buckets in the order in which they are made, the first of 1 MiB and the others of
25, which are there all the time, and each is reduced when it is full (torch/nn/parallel/distributed.py). What follows
the passes waits for all of them. Held against the capture of a script that does so:
`docs/measured/capture.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from windtunnel.errors import LayoutError
from windtunnel.studies.programs.communication import Communication
from windtunnel.studies.programs.job import CapturedJob, Family
from windtunnel.studies.programs.program import MemoryEvent, Op, RankProgram, TensorSpec

FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20  # bytes
GROUP = "replicas"
NOTE = (
    "the script runs on one rank: {} replicas of it are predicted, each with the captured batch, their gradients"
    " averaged as DistributedDataParallel does; no such run was captured"
)


def replicated(job: CapturedJob, ranks: int) -> CapturedJob:
    """The job that so many replicas of a one-rank script make.

    Raises LayoutError where the script meets peers already, is compiled (DistributedDataParallel cuts its graphs
    elsewhere), or makes no gradients.
    """
    ((rank, program),) = job.programs.items()
    why = ""
    if any(op.communication is not None for op in program.ops):
        why = "calls collectives of its own"
    elif any(op.compiled for op in program.ops):
        why = "is compiled, and replicas of it are cut into other graphs"
    if why:
        remedy = f"give a cluster of 1 GPU, or capture with --world-size {ranks}"
        raise LayoutError(f"the script was captured for 1 rank and {why}", remedy)
    members = tuple(range(ranks))
    tokens = job.facts.get("tokens_per_step")
    facts = {**job.facts, "tokens_per_step": tokens * ranks} if isinstance(tokens, int) else job.facts
    return CapturedJob(
        world_size=ranks,
        programs={rank: _averaging(program, members)},
        runs=np.full(ranks, rank, np.int32),
        families=(Family("dp", (members,), (GROUP,)),),
        source=job.source,
        content_hash=job.content_hash,
        facts=facts,
        notes=(*job.notes, NOTE.format(ranks)),
    )


def _averaging(program: RankProgram, members: tuple[int, ...]) -> RankProgram:
    """The program with its buckets' reductions, and a wait for them behind its passes."""
    buckets = dict(_buckets(program))
    last = max(buckets)
    ops: list[Op] = []
    moved: list[int] = []  # of each op: its number now
    reductions: list[int] = []
    for number, op in enumerate(program.ops):
        reads = tuple((storage, moved[by] if by >= 0 else by, size) for storage, by, size in op.reads)
        moved.append(len(ops))
        ops.append(replace(op, after=tuple(moved[earlier] for earlier in op.after), reads=reads))
        if number in buckets:
            call = Communication(
                "all_reduce", GROUP, members, 0, buckets[number], "float32", reduce_op="avg", is_async=True,
                sequence=len(reductions),
            )  # fmt: skip
            size, flat = float(call.bytes), (TensorSpec((call.bytes // 4,), "float32"),)
            own = Op("aten.mul", "compute", stream=op.stream, phase=op.phase, micro_batch=op.micro_batch)
            after = (moved[number],)
            ops.append(replace(own, inputs=flat, outputs=flat, bytes_read=size, bytes_written=size, after=after))
            reductions.append(len(ops))
            after = (len(ops) - 1,)
            ops.append(replace(own, name="c10d.allreduce_", kind="communication", after=after, communication=call))
        if number == last:
            ops.append(Op("wait", "wait", after=tuple(reductions), stream=op.stream, phase=op.phase))
    storage = 1 + max(memory_event.storage for memory_event in (*program.resident, *program.memory))
    return replace(
        program,
        world_size=len(members),
        ops=tuple(ops),
        resident=(*program.resident, MemoryEvent(-1, storage, sum(buckets.values()), "gradient")),
        memory=tuple(
            memory_event._replace(op=moved[memory_event.op] if 0 <= memory_event.op < len(moved) else memory_event.op)
            for memory_event in program.memory
        ),
        answers=tuple(
            answer._replace(op=moved[answer.op] if 0 <= answer.op < len(moved) else answer.op)
            for answer in program.answers
        ),
    )


def _buckets(program: RankProgram) -> Iterator[tuple[int, int]]:
    """Of each bucket: the op of the last micro-batch's backward pass that fills it, and its bytes."""
    passes: dict[int, list[int]] = {}
    for number, op in enumerate(program.ops):
        if op.phase == "backward":
            passes.setdefault(op.micro_batch, []).append(number)
    memory_events = [
        memory_event
        for memory_event in (*program.resident, *program.memory)
        if memory_event.category == "gradient" and memory_event.bytes > 0
    ]
    if not (passes and memory_events):
        raise LayoutError("the script makes no gradients in a backward pass", "give a cluster of 1 GPU")
    first, last = passes[min(passes)], passes[max(passes)]
    # Gradients are made in the first backward pass and added to in the others, which run the same ops; those that stay
    # from step to step are there at the end of it at the latest.
    when = {number: -(-(place + 1) * len(last) // len(first)) - 1 for place, number in enumerate(first)}
    filled = most = 0
    places = sorted((when.get(memory_event.op, len(last) - 1), memory_event.bytes) for memory_event in memory_events)
    for number, (place, size) in enumerate(places):
        filled += size
        most = most or FIRST_BUCKET
        ends = number + 1 == len(places)
        if ends or (filled >= most and places[number + 1][0] > place):
            yield last[-1] if ends else last[place], filled
            filled, most = 0, BUCKET
