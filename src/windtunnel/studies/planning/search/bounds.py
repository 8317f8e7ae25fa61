"""Bounds: how fast a plan could be at best, from prices of single blocks, before anything is replayed.

Passes. A stage that holds blocks a..b of the chain (embedding, layers, head) takes in a forward pass at least

    F = lead(a) + sum over k in (a, b] of step(k - 1, k) + trail(b)          (`oracle.py`; backward from b to a)

and no less than what any one stream has to do, launches on the host thread among them. As sums over a chain these are
differences of two prefix sums.

Step. Rank r runs m micro-batches through its stages one after the other. It begins when a micro-batch has come through
all stages before its first, and, where a schedule ends with the backward pass of that stage, all stages before still
have to go backward when it has ended:

    makespan >= max over ranks r of  sum over u < r of (F_u + hop)  +  m sum over its stages (F + B)  +  sum over u < r
                of (B_u + hop)   [+ first gather, last reduction, gradient norm, optimizer, host]

An op never runs faster beside others than alone, and every wait above is one that the schedule has. So the bound never
exceeds the replayed time; a property test holds the two together on random plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from windtunnel.studies.planning.least.beside_passes import (
    Ends,
    Ranks,
    ends_of,
    kept_in_flight,
    least_memory,
    ranks_of,
)
from windtunnel.studies.planning.least.block_times import (
    BACKWARD,
    FORWARD,
    BlockCosts,
    block_costs,
    block_work,
    forward_costs,
    splits_backward,
)
from windtunnel.studies.planning.least.blocks import (
    EMBEDDING,
    HEAD,
    block_parameters,
    blocks_of,
    kept_bytes,
    kinds_of,
    pairs_of,
)
from windtunnel.studies.planning.oracle import PEAK_DTYPE, Layout
from windtunnel.studies.training.lowering.block import Block
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import TRAITS

ROUNDING = 1.0 - 1e-6  # of floats
Floats = NDArray[np.float64]
Class = tuple[object, ...]
Options = Mapping[str, tuple[object, ...]]  # of switches


@dataclass(frozen=True, eq=False)
class Recomputation:
    """What recomputation adds to the backward pass of each stage, [stages]: to its path, and to each stream.

    A pass that one stream binds has room on the others, so nothing is added to the pass as a whole.
    """

    path: Floats
    busy: tuple[Floats, ...] = ()


@dataclass(frozen=True, eq=False)
class Chain:
    """Prefix sums over the blocks of a model, [blocks] each, and what a stage adds at its ends."""

    total: tuple[Floats, Floats]  # forward, backward: of steps up to each block
    begin: tuple[Floats, Floats]
    end: tuple[Floats, Floats]
    busy: tuple[tuple[Floats, Floats], ...] = ()  # of each stream, up to each block and behind the last

    def passes(
        self, first: NDArray[np.int64], last: NDArray[np.int64], recomputed: Recomputation | None = None
    ) -> tuple[Floats, Floats]:
        """Shortest forward and backward pass of stages that hold the blocks first..last, [stages] each."""
        passes = []
        for which in (FORWARD, BACKWARD):
            a, b = (first, last) if which == FORWARD else (last, first)
            least = self.begin[which][a] + (self.total[which][last] - self.total[which][first]) + self.end[which][b]
            again = recomputed if which == BACKWARD else None
            if again is not None:
                least = least + again.path
            for number, sums in enumerate(self.busy):
                more = again.busy[number] if again is not None and again.busy else 0.0
                least = np.maximum(least, sums[which][last + 1] - sums[which][first] + more)
            passes.append(np.where(last >= first, least, 0.0))
        return passes[0], passes[1]


def chain_of_work(kinds: tuple[int, ...], work: Mapping[tuple[int, int], int]) -> Chain:
    """Chain of a step's kernels alone."""
    own, of_block = _own(kinds)
    zero = np.zeros(len(of_block))
    total, begin = [], []
    for which in (FORWARD, BACKWARD):
        each = np.array([work[which, kind] for kind in own], np.float64)[of_block]
        sums = np.cumsum(each)
        total.append(sums if which == FORWARD else sums - each)
        begin.append(each)
    return Chain((total[0], total[1]), (begin[0], begin[1]), (zero, zero))


@lru_cache(maxsize=16)
def _own(kinds: tuple[int, ...]) -> tuple[tuple[int, ...], NDArray[np.int64]]:
    """The distinct blocks of a chain, and of each block in it which of them it is."""
    blocks = (EMBEDDING, *kinds, HEAD)
    own = tuple(dict.fromkeys(blocks))
    return own, np.array([own.index(kind) for kind in blocks])


@lru_cache(maxsize=16)
def _neighbours(kinds: tuple[int, ...]) -> tuple[tuple[tuple[int, int], ...], NDArray[np.int64]]:
    """The distinct pairs of neighbours in a chain, and of each pair in it which of them it is."""
    pairs = pairs_of(kinds)
    return pairs, np.array([pairs.index(pair) for pair in pairwise((EMBEDDING, *kinds, HEAD))])


def chain_of_costs(kinds: tuple[int, ...], costs: BlockCosts) -> Chain:
    """Chain of longest paths, and of what each stream has to do."""
    pairs, place = _neighbours(kinds)
    own, of_block = _own(kinds)
    total, begin, end = [], [], []
    for which in (FORWARD, BACKWARD):
        step = [costs.step[(which, a, b) if which == FORWARD else (which, b, a)] for a, b in pairs]
        total.append(np.concatenate([[0.0], np.cumsum(np.array(step, np.float64)[place])]))
        begin.append(np.array([costs.lead.get((which, kind), 0) for kind in own], np.float64)[of_block])
        end.append(np.array([costs.trail.get((which, kind), 0) for kind in own], np.float64)[of_block])
    busy = []
    for stream in dict.fromkeys(name for name, _, _ in costs.busy):
        if stream == "compute":
            continue
        each = np.array([[costs.busy.get((stream, which, kind), 0) for kind in own] for which in (FORWARD, BACKWARD)])
        sums = np.zeros((2, len(of_block) + 1))
        np.cumsum(each.astype(np.float64)[:, of_block], axis=1, out=sums[:, 1:])
        busy.append((sums[0], sums[1]))
    return Chain((total[0], total[1]), (begin[0], begin[1]), (end[0], end[1]), tuple(busy))


@lru_cache(maxsize=1024)
def spans(virtual_layers: tuple[tuple[int, ...], ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First and last block of each virtual stage in the chain; the last lies before the first in one without any."""
    count = np.array([len(layers) for layers in virtual_layers])
    ends = np.cumsum(count)
    first, last = ends - count + 1, ends.copy()
    first[0], last[-1] = 0, last[-1] + 1
    return first, last


def busy_ns(layout: Layout, forward: Floats, backward: Floats, hop: float = 0.0) -> float:
    """The makespan of passes and what is sent between them, at least. `forward`, `backward`: [virtual stages]."""
    stages, micro_batches = layout.plan.pp, layout.micro_batches
    if stages == 1:
        return float(micro_batches * (forward.sum() + backward.sum()))
    traits = TRAITS[layout.schedule]
    blocking = 0.0 if layout.plan.overlap_p2p else hop
    if hop:
        forward, backward = forward.copy(), backward.copy()
        forward[:-1] += blocking
        backward[1:] += blocking
        if traits.turns:  # the turn of the V is on one rank
            forward[stages - 1] -= blocking
            backward[stages] -= blocking
    rank = np.arange(stages)
    latency = 0.0 if blocking else hop
    if traits.in_line:
        both = (forward + backward).reshape(-1, stages).sum(axis=0) * micro_batches
        head = (np.cumsum(forward[:stages]) - forward[:stages]) + rank * latency
        tail = np.zeros(stages)
        if traits.ends_with_first:
            tail = (np.cumsum(backward[:stages]) - backward[:stages]) + rank * latency
        return float((both + head + tail).max())
    if traits.both_ways:  # each rank works on half of the micro-batches of two stages
        both = (forward + backward) * (micro_batches // 2)
        head = np.cumsum(forward) - forward + rank * latency
        return float((both + both[::-1] + np.minimum(head, head[::-1])).max())
    both = (forward + backward) * micro_batches  # two stages in a V
    head = np.cumsum(forward[:stages]) - forward[:stages] + rank * latency
    return float((both[:stages] + both[: stages - 1 : -1] + head).max())


def work_class(layout: Layout) -> Class:
    """What the kernels of a block depend on."""
    plan = layout.plan
    return (
        plan.tp, plan.cp, plan.cp_kind, plan.ep, layout.etp, plan.micro_batch, plan.sequence_parallel, plan.compile,
        layout.shares_once, TRAITS[layout.schedule].hides_dispatch,
    )  # fmt: skip


def forward_class(layout: Layout) -> Class:
    """What the shortest forward passes over a block depend on."""
    plan = layout.plan
    inside = layout.gathers_in_passes or layout.reduces_in_passes
    sharded: Class = ()
    if inside:
        sharded = (
            plan.zero_stage, layout.shard_group, layout.replicas, layout.dp, plan.overlap_grad_reduce,
            plan.overlap_param_gather,
        )  # fmt: skip
    return (*work_class(layout), plan.overlap_tp, plan.overlap_ep, plan.cuda_graphs, layout.late_members, sharded)


class Bounds:
    """Bounds of the plans of one model, length and cluster. What plans share is priced once."""

    def __init__(self, straggling: float, document_tokens: int | None = None) -> None:
        self.straggling = straggling  # waiting for the slowest of all ranks, in parts of the step
        self.document_tokens = document_tokens  # of rows that are packed
        self._blocks: dict[Class, dict[int, Block]] = {}
        self._pricers: dict[Class, Pricer] = {}
        self._work: dict[Class, Chain] = {}
        self._chains: dict[Class, Chain] = {}
        self._forward: dict[Class, BlockCosts] = {}
        self._ends: dict[Class, Ends] = {}
        self._sums: dict[Class, Floats] = {}
        self._parameters: dict[Class, tuple[Floats, Floats]] = {}
        self._ranks: dict[Class, Ranks] = {}
        self._in_flight: dict[Class, list[float]] = {}

    def blocks(self, layout: Layout) -> dict[int, Block]:
        """The distinct blocks of a layout."""
        key = work_class(layout)
        if key not in self._blocks:
            self._blocks[key] = blocks_of(layout)
        return self._blocks[key]

    def _pricer(self, layout: Layout) -> Pricer:
        """Prices of a layout; those of its blocks' ops are shared by all layouts that have these blocks."""
        key = work_class(layout)
        if key not in self._pricers:
            template = next(iter(self._pricers.values()), None)
            self._pricers[key] = self._of_documents(
                Pricer(layout) if template is None else template.like(layout, same_ops=False)
            )
        return self._of_documents(self._pricers[key].like(layout, same_ops=True))

    def _of_documents(self, pricer: Pricer) -> Pricer:
        pricer.document_length = self.document_tokens
        return pricer

    def work_ns(self, layout: Layout) -> float:
        """Step time of a structure by kernels alone, at least: no transfer, no launch, nothing recomputed."""
        return self._busy(layout, *self.works(layout).passes(*spans(layout.virtual_layers)))

    def peak_ns(self, layout: Layout) -> float:
        """Step time of any plan with this batch, at least: its products at the peak rate of the GPU, on all GPUs."""
        plan, cluster = layout.plan, layout.cluster
        flops = 3.0 * plan.global_batch * plan.seq_len * layout.model.forward_flops_per_token(plan.seq_len)
        return 1e9 * flops / cluster.n_gpus / cluster.gpu.peak_flops(PEAK_DTYPE.get(plan.precision, plan.precision))

    def even_ns(self, layout: Layout) -> float:
        """Step time by kernels alone, however layers lie on stages: some rank has its share of all kernels, or more."""
        blocks = np.array([layout.model.n_layers + 1])
        forward, backward = self.works(layout).passes(blocks * 0, blocks)
        whole = layout.micro_batches * float(forward[0] + backward[0])
        return whole / layout.plan.pp * (1.0 + self.straggling) * ROUNDING

    def works(self, layout: Layout) -> Chain:
        """Chain of the kernels of all blocks."""
        key = work_class(layout)
        if key not in self._work:
            work = block_work(self._pricer(layout), self.blocks(layout))
            self._work[key] = chain_of_work(kinds_of(layout.model), work)
        return self._work[key]

    def passes(self, layout: Layout, recomputed: Recomputation | None = None) -> tuple[Floats, Floats]:
        """Shortest passes of every virtual stage; `recomputed`: what their backward passes do besides."""
        recompute, some = layout.plan.recompute, layout.plan.recompute_layers
        span = spans(layout.virtual_layers)
        if some == 0 or some is None:
            return self.chain(layout, "full" if some is None else recompute).passes(*span, recomputed)
        # The first layers of each stage are recomputed, the others are not.
        plain, full = self.chain(layout, "none"), self.chain(layout, "full")
        path = self._beyond(layout, full.total[BACKWARD] - plain.total[BACKWARD], some)
        busy = (
            self._beyond(layout, full_busy[BACKWARD] - plain_busy[BACKWARD], some)
            for plain_busy, full_busy in zip(plain.busy, full.busy, strict=True)
        )
        return plain.passes(*span, Recomputation(path, tuple(busy)))

    def _beyond(self, layout: Layout, sums: Floats, some: int | None) -> Floats:
        """What the recomputed layers of each stage add, of prefix sums over all blocks."""
        first, last = spans(layout.virtual_layers)
        first, last = np.maximum(first, 1), np.minimum(last, layout.model.n_layers)
        end = last + 1 if some is None else np.minimum(first + some, last + 1)
        end = np.maximum(end, first)
        return np.maximum(sums[end] - sums[first], 0.0)

    def chain(self, layout: Layout, recompute: str) -> Chain:
        """Least prices of the blocks that a layout strings together, with that recomputation."""
        ahead = forward_class(layout)
        key = (*ahead, recompute, splits_backward(layout))
        if key not in self._chains:
            blocks, pricer = self.blocks(layout), self._pricer(layout)
            if ahead not in self._forward:
                self._forward[ahead] = forward_costs(pricer, blocks)
            costs = block_costs(pricer, blocks, recompute=recompute == "full", forward=self._forward[ahead])
            self._chains[key] = chain_of_costs(kinds_of(layout.model), costs)
        return self._chains[key]

    def _quickest(
        self, layout: Layout, options: Options, recompute: str, recomputed: Recomputation | None = None
    ) -> tuple[Floats, Floats]:
        """Shortest passes at the best of these switches.

        A launch by a graph is shorter than any other, and a wait that is hidden is no longer than one that is not: the
        same ops then end no later. So only overlapped tensor parallelism has to be tried both ways. Sharding that
        gathers inside of passes only adds to them.
        """
        changes: dict[str, object] = {"recompute": recompute}
        for name in ("cuda_graphs", "overlap_ep"):
            changes[name] = max(options[name], key=bool)
        if not layout.shares_once:
            changes["zero_stage"] = min(1, layout.zero_stage)
        passes = []
        for overlap in options["overlap_tp"]:
            filled = layout.plan.overlap_tp if overlap is None else overlap
            plan = layout.plan.with_fields({**changes, "overlap_tp": filled})
            passes.append(self.passes(replace(layout, plan=plan), recomputed))
        forward, backward = (np.minimum.reduce(list(parts)) for parts in zip(*passes, strict=True))
        return forward, backward

    def structure_ns(self, layout: Layout, options: Options) -> float:
        """Step time of any plan of a structure, at least: passes at the best switches, nothing recomputed."""
        return self._busy(layout, *self._quickest(layout, options, "none"))

    def recomputed_ns(self, layout: Layout, options: Options) -> float:
        """The same with a saving: the kernels of layers that are recomputed whole run again; 0 where no layer is."""
        some, recomputed = layout.plan.recompute_layers, None
        whole = some != 0 and layout.habits.reentrant_recompute
        if not (whole or layout.shares_once):
            return 0.0
        if whole:
            work = self.works(layout).total[FORWARD]
            recomputed = Recomputation(self._beyond(layout, np.concatenate([[0.0], work[:-1]]), some))
        return self._busy(layout, *self._quickest(layout, options, "none", recomputed))

    def saving_ns(self, layout: Layout, options: Options) -> float:
        """Step time of any plan of a structure with a saving, at least: its own passes at the best switches."""
        return self._busy(layout, *self._quickest(layout, options, layout.plan.recompute))

    def best_switches_ns(self, layout: Layout, options: Options) -> float:
        """Step time of one plan, at least, its passes still at the best switches."""
        return self._whole(layout, *self._quickest(layout, options, layout.plan.recompute))

    def step_ns(self, layout: Layout) -> float:
        """Step time of one plan, at least: passes, transfers between stages, gathers and reductions, optimizer."""
        return self._whole(layout, *self.passes(layout))

    def _busy(self, layout: Layout, forward: Floats, backward: Floats) -> float:
        return busy_ns(layout, forward, backward) * (1.0 + self.straggling) * ROUNDING

    def _whole(self, layout: Layout, forward: Floats, backward: Floats) -> float:
        ends = self.ends(layout)
        return (busy_ns(layout, forward, backward, ends.hop) + ends.outside) * (1.0 + self.straggling) * ROUNDING

    def ends(self, layout: Layout) -> Ends:
        """Times of a plan outside of its passes."""
        plan = layout.plan
        key = (
            *work_class(layout), plan.pp, layout.virtual_layers, layout.schedule, plan.zero_stage, layout.shard_group,
            plan.overlap_grad_reduce, plan.overlap_param_gather, plan.offload_optimizer,
        )  # fmt: skip
        if key not in self._ends:
            self._ends[key] = ends_of(layout, *self._stage_parameters(layout))
        return self._ends[key]

    def _stage_parameters(self, layout: Layout) -> tuple[Floats, Floats]:
        """Dense and expert parameters of every virtual stage on one rank."""
        key = work_class(layout)
        if key not in self._parameters:
            counts = block_parameters(self.blocks(layout))
            each = np.array([counts[kind] for kind in (EMBEDDING, *kinds_of(layout.model), HEAD)]).T
            sums = np.concatenate([np.zeros((2, 1)), np.cumsum(each, axis=1)], axis=1)
            self._parameters[key] = (sums[0], sums[1])
        first, last = spans(layout.virtual_layers)
        last = np.maximum(last + 1, first)
        dense, expert = self._parameters[key]
        return dense[last] - dense[first], expert[last] - expert[first]

    def state_bytes(self, layout: Layout) -> int:
        """State of the fullest rank, at least, whatever it keeps for backward passes."""
        return least_memory(layout, self._held_by_ranks(layout)[1], [0.0] * layout.plan.pp)

    def even_state_bytes(self, layout: Layout) -> int:
        """The same, however layers lie on stages: some rank has its share of all parameters, or more."""
        dense, expert = (float(parameters.sum()) / layout.plan.pp for parameters in self._stage_parameters(layout))
        return least_memory(layout, [(dense, expert)], [0.0])

    def _held_by_ranks(self, layout: Layout) -> tuple[Class, Ranks]:
        chain = (*work_class(layout), layout.plan.pp, layout.virtual_layers, layout.schedule)
        if chain not in self._ranks:
            self._ranks[chain] = ranks_of(layout, *self._stage_parameters(layout))
        return chain, self._ranks[chain]

    def memory_bytes(self, layout: Layout) -> int:
        """Memory of the fullest rank, at least."""
        chain, ranks = self._held_by_ranks(layout)
        in_flight = (*chain, layout.micro_batches, layout.plan.recompute, layout.plan.offload_activations)
        if in_flight not in self._in_flight:
            self._in_flight[in_flight] = kept_in_flight(layout, self.kept_per_stage(layout)[2]).tolist()
        return least_memory(layout, ranks, self._in_flight[in_flight])

    def kept_per_stage(self, layout: Layout) -> tuple[Floats, Floats, Floats]:
        """Dense and expert parameters on one rank of every virtual stage, and what its layers keep of a micro-batch."""
        first, last = spans(layout.virtual_layers)
        plan, some = layout.plan, layout.plan.recompute_layers
        activations = np.zeros(len(first))
        if not plan.offload_activations:
            plain = self._kept_by(layout, "none" if plan.recompute.startswith("full") else plan.recompute)
            a = np.maximum(first, 1)
            b = np.maximum(np.minimum(last, layout.model.n_layers), a - 1)
            again = a if some == 0 else np.maximum(a, b + 1) if some is None else np.clip(a + some, a, b + 1)
            activations = plain[b] - plain[np.minimum(again - 1, b)]
            if some != 0:
                activations += (
                    self._kept_by(layout, "full")[np.minimum(again - 1, b)] - self._kept_by(layout, "full")[a - 1]
                )
        return *self._stage_parameters(layout), np.maximum(activations, 0.0)

    def _kept_by(self, layout: Layout, recompute: str) -> Floats:
        """What layers keep, summed up to each block of the chain."""
        key = (*work_class(layout), recompute, layout.plan.pp > 1)
        if key not in self._sums:
            each = kept_bytes(layout, recompute, self.blocks(layout))
            self._sums[key] = np.cumsum([0.0, *(float(each[kind]) for kind in kinds_of(layout.model)), 0.0])
        return self._sums[key]
