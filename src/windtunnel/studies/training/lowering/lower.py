"""Lower one optimizer step of a layout to a graph: one program per pipeline rank, one op per pass of a model piece.

Passes and what travels between stages come first (`step_actions`), among them what ranks that share parameters send
each other (`step_shards`), then the optimizer (`step_end`).
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.graph import Graph
from windtunnel.questions.asked.parts.plan import Plan
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.model_chunks import Piece
from windtunnel.studies.training.lowering.passes import PARTS, distinct_passes
from windtunnel.studies.training.lowering.shards.step_shards import (
    add_gathers,
    add_shared_once,
    buckets_of,
    wait_for_gathers,
)
from windtunnel.studies.training.lowering.step import FRAMES, STREAMS, LoweredStep, Tokens
from windtunnel.studies.training.lowering.step_actions import add_actions, connect, with_tokens
from windtunnel.studies.training.lowering.step_builder import StepBuilder
from windtunnel.studies.training.lowering.step_end import add_end
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import Schedule

FRAMES_KEPT, FRAME_OPS = 16, 20_000  # and of how many ops at most
_NOT_TOKENS = attrgetter(*sorted(field.name for field in fields(Plan) if field.name != "seq_len"))


def lower(layout: Layout, pieces: tuple[Piece, ...], schedule: Schedule, pricer: Pricer) -> LoweredStep:
    """Build the step graph of a layout under a schedule.

    What is the same for any length of the sequences is remembered: who waits for whom, what is gathered and reduced,
    the optimizer. Not where tensors are updated one by one, or on a CPU, whose new pages are those of activations.
    """
    segments, names, segment_of = distinct_passes(pieces, schedule, pricer)
    plans = (_NOT_TOKENS(layout.plan), _NOT_TOKENS(layout.user_plan))
    parts = (layout.virtual_layers, layout.shard_group, layout.replicas, layout.vocab_padded)
    key = (id(layout.model), plans, layout.cluster, parts, id(schedule), names, segment_of.tobytes())
    frame = FRAMES.pop(key, None)
    if frame is None:
        frame = (layout.model, schedule, *_frame(layout, pieces, schedule, pricer, names, segment_of))
    *_, step, tokens = frame
    if step.graph.n_ops <= FRAME_OPS and not (layout.habits.pure_precision or pricer.on_cpu):
        FRAMES[key] = frame
        while len(FRAMES) > FRAMES_KEPT:
            FRAMES.popitem(last=False)
    return with_tokens(step, tokens, segments, pricer)


def _frame(
    layout: Layout,
    pieces: tuple[Piece, ...],
    schedule: Schedule,
    pricer: Pricer,
    names: tuple[str, ...],
    segment_of: NDArray[np.int32],
) -> tuple[LoweredStep, Tokens]:
    """The step without what hangs on its tokens, and where that belongs."""
    build = StepBuilder(layout, pieces, schedule, pricer, names)
    buckets = buckets_of(build)
    gathers = add_gathers(build, buckets)
    actions = add_actions(build, segment_of, buckets.parts(len(schedule.rank)))
    connect(build, actions)
    wait_for_gathers(build, gathers, buckets, actions)
    optimizer = add_end(build, buckets, actions, add_shared_once(build, buckets, actions))
    pointer, index = build.ops.dependencies()
    columns = build.ops.columns()
    stages = schedule.stages
    graph = Graph(
        kind=columns["kind"].astype(np.uint8),
        stream=columns["stream"].astype(np.int32),
        stream_rank=np.repeat(np.arange(stages, dtype=np.int32), len(STREAMS)),
        dep_ptr=pointer,
        dep_idx=index,
        rendezvous=columns["rendezvous"].astype(np.int32),
        label=columns["label"].astype(np.int32),
        category=columns["category"].astype(np.uint16),
        flops=np.zeros(build.ops.n),
        bytes=build.ops.bytes(),
        multiplicity=np.full(stages, layout.cluster.n_gpus // stages, np.int64),
        labels=tuple(build.labels),
        categories=tuple(build.categories),
        stream_names=STREAMS * stages,
    )
    step = LoweredStep(
        graph=graph,
        duration_ns=np.ascontiguousarray(columns["duration"]),
        interference=columns["interference"].astype(np.uint8),
        segments=(),
        segment_names=names,
        segment_of=segment_of,
        action_first=actions.first,
        action_last=actions.last,
        schedule=schedule,
        optimizer=optimizer,
        traffic_bytes={key: value / stages for key, value in build.traffic.items()},
        nic_share=columns["nic"] / PARTS,
        sender=columns["sender"],
        receiver=columns["receiver"],
    )
    return step, actions.tokens
