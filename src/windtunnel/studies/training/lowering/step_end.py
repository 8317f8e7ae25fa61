"""The end of a step: gradients added up and reduced, their norm over all ranks, the optimizer, and the host itself."""

from __future__ import annotations

from collections import Counter

from windtunnel.physics.cost.price import FREE, Price
from windtunnel.physics.cost.training import MATH
from windtunnel.physics.graph import OpKind
from windtunnel.physics.model.operations import Transfer
from windtunnel.studies.training.lowering.model_chunks import tensors_of
from windtunnel.studies.training.lowering.shards.step_shards import Buckets, add_reductions
from windtunnel.studies.training.lowering.step import COMPUTE
from windtunnel.studies.training.lowering.step_actions import Actions
from windtunnel.studies.training.lowering.step_builder import StepBuilder
from windtunnel.studies.training.memory.model_state import optimizer_price
from windtunnel.studies.training.memory.new_pages import NONE, NewBytes, new_bytes


def add_end(
    build: StepBuilder, buckets: Buckets, actions: Actions, shared: dict[int, int]
) -> tuple[Price, ...]:  # fmt: skip
    """Everything behind the passes. `shared`: the last reduction of a rank that has reduced already.

    Returns each rank's price of the optimizer step.
    """
    schedule, layout = build.schedule, build.layout
    fresh = [
        new_bytes(layout, build.pieces, schedule, rank) if build.pricer.on_cpu else NONE
        for rank in range(schedule.stages)
    ]
    ends: list[int] = []
    added: list[Price] = []
    for rank in range(schedule.stages):
        final = int(actions.last[schedule.rank_offset[rank + 1] - 1])
        price, summed = _added(build, rank)
        added.append(price)
        final = max(final, summed, _new_pages(build, rank, fresh[rank]))
        reduced = add_reductions(build, buckets, actions, rank, final)
        done = reduced if reduced >= 0 else shared.get(rank, final)
        if layout.sums_norms and rank not in shared and not layout.reduces_in_passes:
            done = build.sum_norms(rank, build.pieces_of(rank), [done])[0]
        ends.append(done)
    _tie_embeddings(build, ends)
    build.category("optimizer")
    prices = []
    updates: dict[tuple[int, ...], Price] = {}  # by identity of a rank's pieces
    for rank in range(schedule.stages):
        own_pieces = build.pieces_of(rank)
        if layout.habits.clips_gradients:
            squares = build.collective("gradient norm", Transfer("all_reduce", "world", 4.0), shared=False)
            norm = build.add(squares, rank, rendezvous=0, stream=COMPUTE)
            build.ops.wait(norm, ends[rank])
        pieces = tuple(id(piece) for piece in own_pieces)
        if pieces not in updates:
            updates[pieces] = optimizer_price(
                layout,
                build.pricer,
                sum(piece.learning[0] for piece in own_pieces),
                sum(piece.learning[1] for piece in own_pieces),
                tensors_of(own_pieces) if layout.habits.pure_precision else (),
            )
        new = fresh[rank]
        price = updates[pieces].plus(build.pricer.new_pages(new.optimizer, new.peak, update=True))
        prices.append(price.plus(added[rank]))
        op = build.compute("optimizer", "optimizer", OpKind.COMPUTE, price.seconds, MATH, rank)
        if not layout.habits.clips_gradients:
            build.ops.wait(op, ends[rank])
        build.compute("between steps", "host", OpKind.HOST, build.pricer.host.step_s, 0, rank)
    return tuple(prices)


def _tie_embeddings(build: StepBuilder, ends: list[int]) -> None:
    """Where first and last stage hold a copy each of the same table, its gradients are summed."""
    layout = build.layout
    first, last = build.schedule.holders(0), build.schedule.holders(len(build.pieces) - 1)
    if not layout.model.tied_embeddings or first == last or layout.plan.freezes_text:
        return
    vocabulary = layout.vocab_padded * layout.model.hidden_size / build.plan.tp
    for rank in sorted({*first, *last}):
        transfer = Transfer("all_reduce", "pp", vocabulary * build.layout.gradient_bytes)
        op = build.add(build.collective("tied embedding", transfer), rank, rendezvous=1)
        build.ops.wait(op, ends[rank])
        ends[rank] = op


def _added(build: StepBuilder, rank: int) -> tuple[Price, int]:
    """Gradients of all micro-batches but the first are added to the first's, where no GEMM does so itself.

    One op behind the last pass, before anything is reduced; -1 where there is none.
    """
    later = build.layout.micro_batches - 1
    if not (build.layout.habits.pure_precision and later):
        return FREE, -1
    price = FREE
    for size, count in sorted(Counter(tensors_of(build.pieces_of(rank))).items(), reverse=True):
        price = price.plus(build.pricer.added(size).scaled(float(count * later)))
    return price, build.compute("add gradients", "memory-bound", OpKind.COMPUTE, price.seconds, MATH, rank)


def _new_pages(build: StepBuilder, rank: int, new: NewBytes) -> int:
    """On a CPU, the faults of a step's passes, in one piece behind the last of them; -1 where there are none."""
    last = -1
    for phase, count in (("forward", new.forward), ("backward", new.backward)):
        if count:
            seconds = build.pricer.new_pages(count, new.peak).seconds
            last = build.compute(f"{phase}: new pages", "host", OpKind.HOST, seconds, 0, rank)
    return last
