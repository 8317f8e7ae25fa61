"""What a rank needs of memory, and what a step takes beside its passes, at least."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.cost.price import nanoseconds
from windtunnel.physics.model.operations import Transfer
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.model_chunks import fresh_gradients
from windtunnel.studies.training.lowering.shards.step_shards import BUCKETS_MOST, gathers_first, reduces_last
from windtunnel.studies.training.memory.model_state import optimizer_price, state_bytes
from windtunnel.studies.training.memory.peak import least_reserved, outside_bytes
from windtunnel.studies.training.pricing import Pricer, parameter_bytes
from windtunnel.studies.training.schedules import TRAITS, chunks_in_flight

CATEGORIES = 8  # of memory at most, each rounded down to a whole byte
ROUNDED = 2  # bytes: times that reserved memory is rounded down


def held_by_ranks(layout: Layout, of_stage: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums over the virtual stages of each pipeline rank."""
    stages = layout.plan.pp
    sums = of_stage.reshape(-1, stages).sum(axis=0) if len(of_stage) % stages == 0 else of_stage
    if stages > 1 and TRAITS[layout.schedule].turns:
        sums = of_stage[:stages] + of_stage[: stages - 1 : -1]
    elif stages > 1 and TRAITS[layout.schedule].both_ways:
        sums = of_stage + of_stage[::-1]
    return np.asarray(sums, np.float64)


def kept_in_flight(layout: Layout, activations: NDArray[np.float64]) -> NDArray[np.float64]:
    """What each rank holds of its forward passes, at least, when its first backward pass begins.

    `activations`: by virtual stage, of one micro-batch.
    """
    stages, chunks, micro_batches = layout.plan.pp, layout.plan.virtual_stages, layout.micro_batches
    rank = np.arange(stages)
    if len(activations) % stages:
        return np.zeros(stages)
    by_chunk = activations.reshape(-1, stages)
    if layout.schedule == "interleaved" and stages > 1:
        of_chunk = chunks_in_flight(stages, micro_batches, chunks, layout.plan.micro_batch_group or stages)
        return np.asarray((of_chunk.T * by_chunk).sum(axis=0), np.float64)
    least = by_chunk.min(axis=0)
    if layout.schedule in ("1f1b", "zb-h1") and stages > 1:
        return np.asarray(np.minimum(micro_batches, stages - rank) * least, np.float64)
    if layout.schedule == "gpipe" and stages > 1:
        return np.asarray(micro_batches * least, np.float64)
    return np.asarray(least, np.float64)


Ranks = list[tuple[float, float]]  # dense and expert parameters that each pipeline rank holds


def ranks_of(layout: Layout, dense: NDArray[np.float64], expert: NDArray[np.float64]) -> Ranks:
    """Of parameters of every virtual stage, those of each pipeline rank."""
    return list(zip(held_by_ranks(layout, dense).tolist(), held_by_ranks(layout, expert).tolist(), strict=True))


def least_memory(layout: Layout, ranks: Ranks, activations: list[float]) -> int:
    """Bytes that the fullest rank needs at least: state, activations in flight (of each rank), context and buffers."""
    fresh = fresh_gradients(layout) or layout.shares_once  # then gradients come and go
    states: dict[tuple[float, float], float] = {}
    for rank in set(ranks):
        state = state_bytes(layout, *rank)
        states[rank] = state.parameters + state.optimizer + (0.0 if fresh else state.gradients)
    most = max(states[rank] + more for rank, more in zip(ranks, activations, strict=True))
    return int((most - CATEGORIES) * least_reserved(layout)) - ROUNDED + outside_bytes(layout)


@dataclass(frozen=True, slots=True)
class Ends:
    """What a step takes beside its passes at least, in ns."""

    hop: float
    outside: float


def ends_of(layout: Layout, dense: NDArray[np.float64], expert: NDArray[np.float64]) -> Ends:
    """The first parameters gathered, the last gradients reduced, gradient norm, optimizer and host between steps."""
    pricer, plan = Pricer(layout), layout.plan
    hop = 0.0
    if plan.pp > 1:
        tokens = layout.tokens_per_rank / (plan.tp if plan.sequence_parallel or layout.habits.scatters_sends else 1)
        size = tokens * layout.model.hidden_size * (4 if plan.precision == "fp32" else 2)
        hop = float(min(nanoseconds(pricer.links.hop(size, far=far)[0].seconds) for far in (False, True)))
    ranks = sorted(set(ranks_of(layout, dense, expert)))
    outside = 0.0
    if gathers_first(layout):
        outside += _first_bucket(layout, pricer, float(dense[0]), float(expert[0]), len(dense))
    if reduces_last(layout):
        outside += min(_last_bucket(layout, pricer, value, other, len(dense)) for value, other in ranks)
    if layout.habits.clips_gradients:
        outside += nanoseconds(pricer.links.transfer(Transfer("all_reduce", "world", 4.0))[0].seconds)
    tensors = layout.habits.pure_precision  # then the update goes through tensors that are not known here
    if not tensors:
        updates = [nanoseconds(optimizer_price(layout, pricer, value, other).seconds) for value, other in ranks]
        outside += max(updates) if layout.habits.clips_gradients else min(updates)
    outside += nanoseconds(pricer.host.step_s)
    return Ends(hop, outside)


def _buckets(layout: Layout, parameters: float, chunks: int) -> int:
    """At most so many buckets of one piece: `step_shards.buckets_of`."""
    return int(np.clip(np.ceil(parameters / layout.message_parameters), 1, max(2, BUCKETS_MOST // chunks)))


def _first_bucket(layout: Layout, pricer: Pricer, dense: float, expert: float, pieces: int) -> float:
    """The gather that the very first pass waits for."""
    chunks = max(1, pieces // layout.plan.pp)
    count = _buckets(layout, dense + expert, chunks) if layout.plan.overlap_param_gather else 1
    return _shared(layout, pricer, "all_gather", dense / count, expert / count, parameter_bytes(layout.plan))


def _last_bucket(layout: Layout, pricer: Pricer, dense: float, expert: float, pieces: int) -> float:
    """The reduction behind a rank's last backward pass: of one bucket where buckets overlap, else of everything."""
    chunks = max(1, pieces // layout.plan.pp)
    parts = _buckets(layout, dense + expert, chunks) if layout.plan.overlap_grad_reduce else 1
    kind = "all_reduce" if layout.zero_stage == 0 else "reduce_scatter"
    width = layout.gradient_bytes
    if layout.plan.overlap_grad_reduce and chunks > 1:
        return 0.0  # which piece is last, and how much of the rank it is, is the schedule's business
    return _shared(layout, pricer, kind, dense / parts, expert / parts, width)


def _shared(layout: Layout, pricer: Pricer, kind: str, dense: float, expert: float, width: float) -> float:
    total = 0.0
    for parameters, group in ((dense, "dp"), (expert, "edp")):
        if group == "dp" and layout.shard_group == 1 and layout.replicas > 1:
            continue  # every rank shards with itself alone
        if parameters and layout.group(group).size > 1:
            total += nanoseconds(pricer.links.transfer(Transfer(kind, group, parameters * width))[0].seconds)
    return total
