"""Shortest times of single blocks, from the passes that `predict` builds.

A block's shortest times hold for any pass that it is part of. In a pass, ops of one stream run in order and nothing
runs faster beside something else than alone; so the longest path through the ops at their prices alone is a lower bound
of the pass. Blocks follow each other on the compute stream, so with c(k) the last compute op of block k

    pass of blocks 1..n  >=  lead(1) + sum of step(k-1, k) + trail(n)
    lead(k)     longest path from the start to c(k), block k first
    step(j, k)  longest path from c(j) to c(k), block k behind block j
    trail(k)    longest path from c(k) to the end

and it is no shorter than all its launches on the host thread. A block's ops are the same wherever it stands in a pass,
so all is read off one pass over a chain in which every two neighbours of the model are neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

from windtunnel.physics.cost.price import Price, nanoseconds
from windtunnel.physics.graph import OpKind
from windtunnel.physics.model.operations import Operation, Transfer
from windtunnel.studies.planning.least.blocks import kinds_of, pairs_of
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.block import Block
from windtunnel.studies.training.lowering.pass_builder import PassBuilder
from windtunnel.studies.training.lowering.pass_lowering import build_pass
from windtunnel.studies.training.memory.saved_tensors import keeping
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import TRAITS, Kind

Key = TypeVar("Key")


@dataclass(frozen=True, eq=False)
class BlockCosts:
    """Shortest times in ns by pass (FORWARD or BACKWARD) and kind of block; `step` by the block before it too.

    `busy`: of each stream, the host thread among them, by block. A backward in two halves is the sum of both.
    """

    lead: dict[tuple[int, int], int] = field(default_factory=dict)
    step: dict[tuple[int, int, int], int] = field(default_factory=dict)
    trail: dict[tuple[int, int], int] = field(default_factory=dict)
    busy: dict[tuple[str, int, int], int] = field(default_factory=dict)


FORWARD, BACKWARD = 0, 1
WHOLE = {BACKWARD: (Kind.BACKWARD,)}
IN_HALVES = {BACKWARD: (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)}


def calm(pricer: Pricer) -> Pricer:
    """The same prices where nothing slows anything else: every op takes the time that it takes alone."""
    other = copy(pricer)
    other.training = replace(pricer.training, compute_by_scale_up=0.0, compute_by_scale_out=0.0, comm_by_compute=0.0)
    other.links = pricer.links.undisturbed()
    return other


def splits_backward(layout: Layout) -> bool:
    """Whether the gradients of inputs and of weights are passes of their own."""
    return layout.plan.pp > 1 and TRAITS[layout.schedule].splits_backward


def block_costs(
    pricer: Pricer, blocks: Mapping[int, Block], *, recompute: bool, forward: BlockCosts | None = None
) -> BlockCosts:
    """Shortest times of the blocks of a layout; `recompute`: of layers that are recomputed in full; `forward`: those
    of forward passes, where they are known.

    A schedule that splits backward passes may leave some of them whole: then what is less of the two.
    """
    if forward is None:
        forward = forward_costs(pricer, blocks)
    whole = _costs_of(pricer, blocks, WHOLE, recompute=recompute)
    if splits_backward(pricer.layout):
        halves = _costs_of(pricer, blocks, IN_HALVES, recompute=recompute)
        whole = BlockCosts(
            lead=_less(whole.lead, halves.lead),
            step=_less(whole.step, halves.step),
            trail=_less(whole.trail, halves.trail),
            busy=_less(whole.busy, halves.busy),
        )
    return BlockCosts(
        lead=forward.lead | whole.lead,
        step=forward.step | whole.step,
        trail=forward.trail | whole.trail,
        busy=forward.busy | whole.busy,
    )


def forward_costs(pricer: Pricer, blocks: Mapping[int, Block]) -> BlockCosts:
    """Those of forward passes: the same whatever is recomputed, and however backward passes are split."""
    return _costs_of(pricer, blocks, {FORWARD: (Kind.FORWARD,)}, recompute=False)


def _less(entry: dict[Key, int], two: Mapping[Key, int]) -> dict[Key, int]:
    return {key: min(value, two.get(key, 0)) for key, value in entry.items()}


def _costs_of(
    pricer: Pricer, blocks: Mapping[int, Block], passes: Mapping[int, tuple[Kind, ...]], *, recompute: bool
) -> BlockCosts:
    layout, costs = pricer.layout, BlockCosts()
    pricer, pairs = calm(pricer), pairs_of(kinds_of(layout.model))
    own = {kind: replace(block, recompute=recompute and kind >= 0) for kind, block in blocks.items()}
    for which, phases in passes.items():
        wanted = [pair if which == FORWARD else pair[::-1] for pair in pairs]
        for phase in phases:
            # Where a block fetches for the one behind it, its ops depend on what that is: then pair by pair.
            if layout.gathers_in_passes or layout.reduces_in_passes:
                stretches = _pair_by_pair(pricer, own, wanted, phase)
            else:
                stretches = _in_one_chain(pricer, own, pairs, phase) or _pair_by_pair(pricer, own, wanted, phase)
            _add(costs, which, stretches, wanted)
    return costs


@dataclass(frozen=True, slots=True)
class _Stretches:
    """Of one phase: paths by block, or pair in the order of the pass, and work of each stream by block."""

    lead: dict[int, int]
    step: dict[tuple[int, int], int]
    trail: dict[int, int]
    busy: dict[tuple[str, int], int]


def _add(costs: BlockCosts, which: int, stretches: _Stretches, pairs: list[tuple[int, int]]) -> None:
    """What embedding and head gather and reduce may be done for both at once: left out."""
    for kind in dict.fromkeys(number for number, _ in pairs):
        costs.lead[which, kind] = costs.lead.get((which, kind), 0) + stretches.lead[kind]
    for number, two in pairs:
        costs.step[which, number, two] = costs.step.get((which, number, two), 0) + stretches.step[number, two]
    for kind in dict.fromkeys(two for _, two in pairs):
        costs.trail[which, kind] = costs.trail.get((which, kind), 0) + stretches.trail[kind]
    for (name, kind), busy in stretches.busy.items():
        if kind >= 0 or name == "host":
            key = (name, which, kind)
            costs.busy[key] = costs.busy.get(key, 0) + busy


def _in_one_chain(
    pricer: Pricer, own: Mapping[int, Block], pairs: Sequence[tuple[int, int]], phase: Kind
) -> _Stretches | None:
    """Read off one pass over blocks of which every pair of neighbours is one; None where a block computes nothing."""
    chain = [pairs[0][0]]
    for number, two in pairs:
        chain += [two] if chain[-1] == number else [number, two]
    ops = _Ops(build_pass(pricer, [own[kind] for kind in chain], phase))
    stretches = _Stretches({}, {}, {}, {})
    spans = [(chain[place], begin, end) for place, begin, end in ops.spans()]
    lasts = [ops.last_compute(begin, end) for _, begin, end in spans]
    if len(spans) != len(chain) or any(last is None for last in lasts):
        return None
    ends = [last for last in lasts if last is not None]
    for (kind, begin, end), last in zip(spans, ends, strict=True):
        if kind not in stretches.lead:
            stretches.lead[kind] = ops.longest(begin, last + 1, None)[-1]
            stretches.trail[kind] = max(ops.longest(last, end, last))
            stretches.busy.update({(name, kind): busy for name, busy in ops.busy(begin, end).items()})
    for (first, second), last, after in zip(pairwise(spans), ends, ends[1:], strict=False):
        if (first[0], second[0]) not in stretches.step:
            stretches.step[first[0], second[0]] = ops.longest(last, after + 1, last)[-1]
    return stretches


def _pair_by_pair(
    pricer: Pricer, own: Mapping[int, Block], pairs: Sequence[tuple[int, int]], phase: Kind
) -> _Stretches:
    """Read off a pass over each pair, `pairs` in the order in which a pass comes to them; and one over each block."""
    alone = {kind: _Ops(build_pass(pricer, [block], phase)) for kind, block in own.items()}
    stretches = _Stretches({}, {}, {}, {})
    for kind, ops in alone.items():
        stretches.busy.update({(name, kind): busy for name, busy in ops.busy(0, len(ops.kinds)).items()})
    forward = phase is Kind.FORWARD
    for before, after in pairs:
        both = [own[before], own[after]] if forward else [own[after], own[before]]
        lead, stretches.step[before, after], trail = _paths(
            _Ops(build_pass(pricer, both, phase)), alone[before].kinds.count(OpKind.COMPUTE)
        )
        stretches.lead[before] = min(lead, stretches.lead.get(before, lead))
        stretches.trail[after] = min(trail, stretches.trail.get(after, trail))
    return stretches


class _Ops:
    """The ops of a pass under construction."""

    def __init__(self, build: PassBuilder) -> None:
        self.kinds, self.streams, self.pointer, self.index, self.duration, self.names = build.builder.lists()
        self.block = build.block_of

    def spans(self) -> list[tuple[int, int, int]]:
        """Of each block in the order of the pass: its place among those given, its first op, and the one behind."""
        starts = [op for op, block in enumerate(self.block) if op == 0 or block != self.block[op - 1]]
        return [
            (self.block[start], start, end) for start, end in zip(starts, [*starts[1:], len(self.block)], strict=True)
        ]

    def last_compute(self, begin: int, end: int) -> int | None:
        """The last op of these that computes."""
        return next((op for op in range(end - 1, begin - 1, -1) if self.kinds[op] == OpKind.COMPUTE), None)

    def busy(self, begin: int, end: int) -> dict[str, int]:
        """What each stream has to do."""
        total: dict[str, int] = {}
        for stream, duration in zip(self.streams[begin:end], self.duration[begin:end], strict=True):
            total[self.names[stream]] = total.get(self.names[stream], 0) + duration
        return total

    def longest(self, begin: int, end: int, source: int | None) -> list[int]:
        """Longest path from the end of `source`, op `begin`, to the end of each op up to `end`, 0 where there is none.

        From the start for None. Nothing before `begin` counts.
        """
        streams, pointer, index, duration = self.streams, self.pointer, self.index, self.duration
        nothing = 0 if source is None else -1
        paths = [-1] * (end - begin)
        before = [nothing] * len(self.names)  # of each stream: the path to its last op
        first = begin
        if source is not None:
            paths[0] = before[streams[source]] = 0
            first = source + 1
        for op in range(first, end):
            stream = streams[op]
            latest = before[stream]
            for other in index[pointer[op] : pointer[op + 1]]:
                if begin <= other < end and paths[other - begin] > latest:
                    latest = paths[other - begin]
            if latest >= 0:
                paths[op - begin] = before[stream] = latest + duration[op]
        return [max(path, 0) for path in paths]


def _paths(pair: _Ops, begins: int) -> tuple[int, int, int]:
    """Of a pass over two blocks, the first of which has `begins` compute ops: lead, step and trail."""
    compute = [op for op, kind in enumerate(pair.kinds) if kind == OpKind.COMPUTE]
    if begins == 0 or begins == len(compute):  # one of them computes nothing: only what surely follows counts
        inner = sum(pair.duration[op] for op in compute)
        return (inner, 0, 0) if begins else (0, inner, 0)
    last_of_first, last_of_second, end = compute[begins - 1], compute[-1], len(pair.kinds)
    # Where nothing slows anything an op ends when the longest path to it does.
    return (
        pair.longest(0, last_of_first + 1, None)[-1],
        pair.longest(last_of_first, last_of_second + 1, last_of_first)[-1],
        max(pair.longest(last_of_second, end, last_of_second)),
    )


def block_work(pricer: Pricer, blocks: Mapping[int, Block]) -> dict[tuple[int, int], int]:
    """Nanoseconds that each block takes at least, by pass and kind: op by op, at the best switches, without launches.

    Until the op behind it can start, an op takes its kernel, and no less than any one transfer that it waits for or
    that the op behind it waits for; a ring takes all of its exchanges and the last part of its kernel.
    """
    plan = pricer.layout.plan
    slack = 1 + plan.cp  # of rounding each part of an op to whole nanoseconds
    again = not keeping(plan.framework).keeps_all_inputs

    def kernel(price: Price) -> int:
        return max(0, nanoseconds(price.seconds) - slack)

    def sending_ns(transfer: Transfer | None) -> int:
        return 0 if transfer is None else max(0, nanoseconds(pricer.links.transfer(transfer)[0].seconds) - slack)

    def forward(op: Operation) -> int:
        if op.kind == "memory" and not op.forward_bytes:
            return 0
        if op.kind == "transfer":
            return _dispatched(op.before)
        if op.kind == "attention" and op.before is not None:
            whole = kernel(pricer.forward(op))
            return max(whole, (plan.cp - 1) * sending_ns(op.before) + whole // plan.cp)
        return max(kernel(pricer.forward(op)), sending_ns(op.before), sending_ns(op.after))

    def backward(op: Operation) -> int:
        if op.kind == "transfer":
            return _dispatched(op.before_backward)
        if op.kind == "attention":
            whole = kernel(pricer.input_gradient(op))
            return (
                whole if op.before is None else max(whole, 2 * (plan.cp - 1) * sending_ns(op.before) + whole // plan.cp)
            )
        if op.kind == "memory":
            return sending_ns(op.before_backward) + (kernel(pricer.input_gradient(op)) if op.backward_bytes else 0)
        gathered = sending_ns(op.regather) if again and op.weight_elements else 0
        inputs = max(kernel(pricer.input_gradient(op)), sending_ns(op.before_backward), gathered)
        return inputs + max(
            kernel(pricer.weight_gradient(op)) if op.weight_elements else 0, sending_ns(op.after_backward)
        )

    def _dispatched(transfer: Transfer | None) -> int:
        # Another micro-batch's compute may hide what experts send each other.
        return 0 if transfer is None or transfer.group == "ep" else sending_ns(transfer)

    return {
        (which, kind): sum(map(forward if which == FORWARD else backward, block.operations))
        for kind, block in blocks.items()
        for which in (FORWARD, BACKWARD)
    }
