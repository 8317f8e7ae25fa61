"""Lower one optimizer step of a layout to a graph: one program per pipeline rank, one op per pass of a model piece.

A program's streams are `compute`, one per direction of arriving pipeline traffic, and `dp`. A pipeline transfer sits on
the *receiver's* stream, where waiting for it is felt; a transfer that the framework does not overlap also holds its
sender's compute stream. The first forward and the last backward of a piece are cut into buckets, so that parameters
gathered and gradients reduced bucket by bucket overlap them as far as they really can.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.price import FREE, Price
from windtunnel.cost.training import MATH, SCALE_OUT, SCALE_UP
from windtunnel.graph import Graph, OpKind
from windtunnel.model.operations import Transfer
from windtunnel.training.layout import Layout
from windtunnel.training.new_pages import NONE, new_bytes
from windtunnel.training.op_arrays import OpArrays
from windtunnel.training.pass_builder import Segment
from windtunnel.training.passes import PARTS, distinct_passes, nic_parts
from windtunnel.training.pieces import Piece, tensors_of
from windtunnel.training.pipelined_shards import LAYER_BY_LAYER, fetches
from windtunnel.training.pricing import GRADIENT_BYTES, Pricer, nanoseconds, parameter_bytes
from windtunnel.training.schedules import Kind, Schedule
from windtunnel.training.state import optimizer_price

BUCKET_PARAMETERS = 40e6  # Megatron-Core's default bucket, before its growth with the data-parallel degree
BUCKETS_MOST = 8
STREAMS = ("compute", "pp forward", "pp backward", "dp")
COMPUTE, PP_FORWARD, PP_BACKWARD, DP = range(4)


@dataclass(frozen=True, eq=False)
class Step:
    """A lowered step. Ops of pass `i` have category `i`; the other categories are named in `graph.categories`."""

    graph: Graph
    duration_ns: NDArray[np.int64]
    interference: NDArray[np.uint8]
    segments: tuple[Segment, ...]
    segment_names: tuple[str, ...]
    segment_of: NDArray[np.int32]  # [virtual stages, kinds] -> segment, -1 where there is none
    action_first: NDArray[np.int64]  # [actions] first op of each action
    action_last: NDArray[np.int64]  # [actions] last compute op of each action
    schedule: Schedule
    optimizer: tuple[Price, ...]  # per program
    traffic_bytes: dict[str, float]  # per GPU and step, mean over programs, of what is not inside passes
    nic_share: NDArray[np.float64]  # [ops] share of a GPU's NIC that each op takes while it runs
    sender: NDArray[np.int64]  # [ops] of a send: the program that it comes from; -1 elsewhere
    receiver: NDArray[np.int64]  # [ops] of a send: the program that it goes to; -1 elsewhere


def lower(layout: Layout, pieces: tuple[Piece, ...], schedule: Schedule, pricer: Pricer) -> Step:
    """Build the step graph of a layout under a schedule."""
    segments, names, segment_of = distinct_passes(pieces, schedule, pricer)
    return _Lowering(layout, pieces, schedule, pricer, segments, names, segment_of).step()


class _Lowering:
    def __init__(
        self,
        layout: Layout,
        pieces: tuple[Piece, ...],
        schedule: Schedule,
        pricer: Pricer,
        segments: tuple[Segment, ...],
        names: tuple[str, ...],
        segment_of: NDArray[np.int32],
    ) -> None:
        self.layout, self.pieces, self.schedule, self.pricer = layout, pieces, schedule, pricer
        self.segments, self.names, self.segment_of = segments, names, segment_of
        self.plan = layout.plan
        self.ops = OpArrays()
        self.categories = [*(f"segment {i}" for i in range(len(segments)))]
        self.labels: list[str] = list(names)
        self.traffic: dict[str, float] = {}
        self.held = _pieces_of_ranks(schedule)
        self.optimizers: list[Price] = []
        self.new_bytes = [
            new_bytes(layout, pieces, schedule, rank) if pricer.on_cpu else NONE for rank in range(schedule.stages)
        ]

    def step(self) -> Step:
        buckets, first, last = self._buckets()
        gathers = self._gathers(buckets) if self._gathered() else {}
        self._actions(buckets, first, last)
        self._connect(gathers, buckets, first)
        self._finish(buckets, last, self._share_once(buckets, last) if self._shared_once() else {})
        pointer, index = self.ops.dependencies()
        columns = self.ops.columns()
        stages = self.schedule.stages
        graph = Graph(
            kind=columns["kind"].astype(np.uint8),
            stream=columns["stream"].astype(np.int32),
            stream_rank=np.repeat(np.arange(stages, dtype=np.int32), len(STREAMS)),
            dep_ptr=pointer,
            dep_idx=index,
            rendezvous=columns["rendezvous"].astype(np.int32),
            label=columns["label"].astype(np.int32),
            category=columns["category"].astype(np.uint8),
            flops=np.zeros(self.ops.n),
            bytes=self.ops.bytes(),
            multiplicity=np.full(stages, self.layout.cluster.n_gpus // stages, np.int64),
            labels=tuple(self.labels),
            categories=tuple(self.categories),
            stream_names=STREAMS * stages,
        )
        return Step(
            graph=graph,
            duration_ns=np.ascontiguousarray(columns["duration"]),
            interference=columns["class"].astype(np.uint8),
            segments=self.segments,
            segment_names=self.names,
            segment_of=self.segment_of,
            action_first=self.action_first,
            action_last=self.action_last,
            schedule=self.schedule,
            optimizer=tuple(self.optimizers),
            traffic_bytes={key: value / stages for key, value in self.traffic.items()},
            nic_share=columns["nic"] / PARTS,
            sender=columns["sender"],
            receiver=columns["receiver"],
        )

    def _holders(self, stage: int) -> set[int]:
        """Ranks that hold a virtual stage: two where a schedule runs in both directions."""
        return {rank for rank, row in enumerate(self.held) if stage in row}

    def _gathered(self) -> bool:
        return self.plan.zero_stage in (1, 2) and self._replicated() and not self.layout.shares_once

    def _reduced(self) -> bool:
        return (self.plan.zero_stage or 0) < 2 and self._replicated()

    def _shared_once(self) -> bool:
        return self.layout.shares_once and self._replicated()

    def _replicated(self) -> bool:
        return self.layout.dp * self.plan.cp > 1 or self.layout.group("edp").size > 1

    def _category(self, name: str) -> int:
        if name not in self.categories:
            self.categories.append(name)
        return self.categories.index(name)

    def _label(self, name: str) -> int:
        if name not in self.labels:
            self.labels.append(name)
        return self.labels.index(name)

    def _buckets(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Buckets per [rank, chunk], and the index of the first forward and the last backward action of each."""
        schedule = self.schedule
        stages, chunks = schedule.stages, schedule.chunks
        parameters = np.array(
            [
                [self.pieces[v].dense_parameters + self.pieces[v].expert_parameters for v in row]
                for row in schedule.virtual_stage
            ]
        )
        size = BUCKET_PARAMETERS * max(1.0, self.layout.shard_group / 40.0)
        # With several chunks only the last one's reduction is exposed, so fewer buckets each say as much.
        most = max(2, BUCKETS_MOST // chunks)
        buckets = np.clip(np.ceil(parameters / size), 1, most).astype(np.int64)
        if self._shared_once() and schedule.name in LAYER_BY_LAYER:
            units = np.array([[_units(self.pieces[v]) for v in row] for row in schedule.virtual_stage])
            buckets = np.clip(units, 1, most).astype(np.int64)
        elif not (self._gathered() or self._reduced()):
            buckets[:] = 1
        cell = schedule.rank.astype(np.int64) * chunks + schedule.chunk
        index = np.arange(len(cell))
        first = np.full(stages * chunks, -1, np.int64)
        forward = np.flatnonzero(schedule.kind == Kind.FORWARD)[::-1]
        first[cell[forward]] = index[forward]
        last = np.full(stages * chunks, -1, np.int64)
        ending = np.flatnonzero((schedule.kind == Kind.BACKWARD) | (schedule.kind == Kind.BACKWARD_WEIGHT))
        last[cell[ending]] = index[ending]
        return buckets, first.reshape(stages, chunks), last.reshape(stages, chunks)

    def _collective(
        self,
        name: str,
        transfer: Transfer,
        rank: int,
        *,
        messages: int = 1,
        shared: bool = True,
        rendezvous: int = -1,
        stream: int = DP,
    ) -> int:
        """One collective, or several of equal size in a row that the timeline need not tell apart."""
        message = transfer._replace(bytes_total=transfer.bytes_total / messages)
        price, tier = self.pricer.transfer(message)
        op = self.ops.one(
            OpKind.COLLECTIVE,
            rank * len(STREAMS) + stream,
            self._label(name),
            self._category(f"exposed {transfer.group} ({tier.replace('_', '-')})"),
            nanoseconds(price.seconds * messages),
            (SCALE_UP if tier == "scale_up" else SCALE_OUT) if shared else 0,
            rendezvous,
            transfer.bytes_total,
            round(PARTS * self.pricer.nic_share(message)) if shared else 0,
        )
        if self.layout.group(transfer.group).size > 1:
            key = f"{transfer.kind} {transfer.group} ({tier.replace('_', '-')})"
            self.traffic[key] = self.traffic.get(key, 0.0) + transfer.bytes_total
        return op

    def _gathers(self, buckets: NDArray[np.int64]) -> dict[tuple[int, int], list[int]]:
        """Parameters that the last optimizer step updated in shards are gathered at the start of this one."""
        width = parameter_bytes(self.plan)
        gathers: dict[tuple[int, int], list[int]] = {}
        for rank, row in enumerate(self.schedule.virtual_stage):
            for chunk, stage in enumerate(row):
                piece, count = self.pieces[stage], int(buckets[rank, chunk])
                gathers[rank, chunk] = [
                    self._piecewise("gather parameters", "all_gather", piece, count, width, rank) for _ in range(count)
                ]
        return gathers

    def _piecewise(self, name: str, kind: str, piece: Piece, count: int, width: float, rank: int) -> int:
        """One bucket's collectives of a piece: dense and expert parameters have their own groups. Returns the last."""
        op = -1
        for parameters, group in ((piece.dense_parameters, "dp"), (piece.expert_parameters, "edp")):
            if parameters and self.layout.group(group).size > 1:
                whole = _units(piece) if self.layout.shares_once else parameters / self.layout.habits.message_parameters
                messages = max(1, round(whole / count))
                op = self._collective(name, Transfer(kind, group, parameters * width / count), rank, messages=messages)
                if kind == "reduce_scatter" and group == "dp" and self.layout.replicas > 1:
                    own = parameters * width / count / self.layout.shard_group
                    op = self._collective("reduce replicas", Transfer("all_reduce", "replica", own), rank)
        return op

    def _share_once(self, buckets: NDArray[np.int64], last: NDArray[np.int64]) -> dict[int, int]:
        """Gathers and reductions of FSDP2 in a pipeline. Returns each rank's last reduction."""
        schedule, pointer, needs = self.schedule, *self.schedule.depends()
        layer_by_layer = schedule.name in LAYER_BY_LAYER
        widths = {"all_gather": parameter_bytes(self.plan), "reduce_scatter": self._gradient_bytes()}
        ends: dict[int, int] = {}
        for rank in range(schedule.stages):
            begin, end = (int(offset) for offset in schedule.rank_offset[rank : rank + 2])
            # What a chunk's last backward leaves is reduced before the next chunks are fetched.
            todo = [(int(last[rank, chunk]) + 1, "", chunk, 0) for chunk in range(schedule.chunks)]
            todo += [(begin + one.before, "gather", one.chunk, begin + one.used) for one in fetches(schedule, rank)]
            for place, gather, chunk, used in sorted(todo, key=lambda one: (one[0], one[1], one[3])):
                piece = self.pieces[int(schedule.virtual_stage[rank, chunk])]
                name, kind = ("gather parameters", "all_gather") if gather else ("reduce gradients", "reduce_scatter")
                count = int(buckets[rank, chunk]) if gather and layer_by_layer else 1
                begins = [int(self.action_last[place - 1])] if place > begin else []
                if gather and layer_by_layer:  # not before its input has come
                    begins = [int(self.arrival[one]) for one in needs[pointer[used] : pointer[used + 1]]]
                if not gather and self.layout.sums_norms:
                    begins = self._sum_norms(rank, [piece], begins)
                for number in range(count):
                    following = self.ops.n
                    op = self._piecewise(name, kind, piece, count, widths[kind], rank)
                    if op < 0:
                        continue
                    for one in begins if number == 0 else ():
                        self.ops.wait(following, one)
                    if gather:
                        self.ops.wait(int(self.action_first[used]) + number, op)
                    elif place < end:
                        self.ops.wait(int(self.action_first[place]), op)
                    if not gather:
                        ends[rank] = op
        return ends

    def _sum_norms(self, rank: int, pieces: list[Piece], after: list[int]) -> list[int]:
        """Norms' gradients over tensor-parallel ranks: one collective for each where DTensor does it, else one."""
        count = sum(block.norms for piece in pieces for block in piece.blocks)
        if not count:
            return after
        size = count * self.layout.model.norm_parameters * self._gradient_bytes()
        messages = count if self.layout.habits.sums_norms_apart else 1
        op = self._collective("sum norms", Transfer("all_reduce", "tp", size), rank, messages=messages, shared=False)
        for one in after:
            self.ops.wait(op, one)
        return [op]

    def _gradient_bytes(self) -> float:
        return float(GRADIENT_BYTES[self.plan.gradient_dtype or "bf16"])

    def _actions(self, buckets: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64]) -> None:
        """The compute ops, and behind each the transfer that its framework does not overlap."""
        schedule, n = self.schedule, len(self.schedule.rank)
        parts = np.ones(n, np.int64)
        parts[first.ravel()] = buckets.ravel()
        parts[last.ravel()] = buckets.ravel()
        self.sends, self.receiver = self._transfers()
        blocking = not self.plan.overlap_p2p
        width = parts + (self.sends if blocking else 0)
        base = np.zeros(n + 1, np.int64)
        np.cumsum(width, out=base[1:])
        total = int(base[-1])
        action = np.repeat(np.arange(n), width)
        place = np.arange(total) - base[action]
        segment = self.segment_of[schedule.stage_of, schedule.kind][action].astype(np.int64)
        whole = np.array([s.duration_ns for s in self.segments], np.int64)[segment]
        split = parts[action]
        duration = whole * (place + 1) // split - whole * place // split
        is_send = place >= split
        hop_ns, hop = self._hops()
        inside = nic_parts(self.segments)[segment]
        stream = schedule.rank[action].astype(np.int64) * len(STREAMS) + COMPUTE
        columns: dict[str, Any] = {
            "kind": np.where(is_send, OpKind.SEND, OpKind.COMPUTE),
            "stream": stream,
            "label": np.where(is_send, self._label("send"), segment),
            "category": np.where(is_send, hop[action], segment),
            "duration": np.where(is_send, hop_ns[action], duration),
            "class": np.where(is_send, 0, MATH),
            "nic": np.where(is_send, 0, inside),
            "sender": np.where(is_send, schedule.rank[action], -1),
            "receiver": np.where(is_send, self.receiver[action], -1),
        }
        start = self.ops.add(total, columns)
        self.action_first = base[:-1] + start
        self.action_last = self.action_first + parts - 1
        self.arrival = self.action_last.copy()  # op after which the action's output is where it is needed
        if blocking:
            self.arrival[self.sends] = self.action_last[self.sends] + 1
        elif self.sends.any():
            sent = np.flatnonzero(self.sends)
            forward = schedule.kind[sent] == Kind.FORWARD
            # Ops of a stream run in array order, so arrivals are listed in the order in which the receiver needs them.
            order = np.argsort(self.needed[sent], kind="stable")
            sent, forward = sent[order], forward[order]
            receiver_stream = self.receiver[sent] * len(STREAMS) + np.where(forward, PP_FORWARD, PP_BACKWARD)
            columns = {
                "kind": OpKind.SEND,
                "stream": receiver_stream,
                "label": self._label("receive"),
                "category": hop[sent],
                "duration": hop_ns[sent],
                "sender": schedule.rank[sent],
                "receiver": self.receiver[sent],
            }
            at = self.ops.add(len(sent), columns, self._hop_bytes())
            arrivals = np.arange(at, at + len(sent))
            self.ops.depend(arrivals, self.action_last[sent])
            self.arrival[sent] = arrivals
        for category in np.unique(hop[self.sends]):
            key = self.categories[category].replace("exposed", "send_recv")
            self.traffic[key] = float((hop == category)[self.sends].sum()) * self._hop_bytes()

    def _transfers(self) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Which actions' outputs another rank needs, and which rank."""
        schedule = self.schedule
        pointer, needs = schedule.depends()
        consumer = np.repeat(np.arange(len(schedule.rank)), np.diff(pointer))
        crossing = schedule.rank[consumer] != schedule.rank[needs]
        sends = np.zeros(len(schedule.rank), bool)
        receiver = np.zeros(len(schedule.rank), np.int64)
        self.needed = np.zeros(len(schedule.rank), np.int64)
        sends[needs[crossing]] = True
        receiver[needs[crossing]] = schedule.rank[consumer[crossing]]
        self.needed[needs[crossing]] = consumer[crossing]
        return sends, receiver

    def _hop_bytes(self) -> float:
        tokens = self.layout.tokens_per_rank / (self.plan.tp if self.plan.sequence_parallel else 1)
        return tokens * self.layout.model.hidden_size * (4 if self.plan.precision == "fp32" else 2)

    def _hops(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Duration and category of the transfer behind each action: neighbours may share a scale-up domain or not."""
        n = len(self.schedule.rank)
        durations, categories = np.zeros(n, np.int64), np.zeros(n, np.int64)
        if not self.sends.any():
            return durations, categories
        gpus = self.layout.cluster.n_gpus // self.schedule.stages
        domain = self.layout.cluster.scale_up_domain
        far = self.schedule.rank * gpus // domain != self.receiver * gpus // domain
        for apart in (False, True):
            there = self.sends & (far == apart)
            if there.any():
                price, tier = self.pricer.hop(self._hop_bytes(), far=apart)
                durations[there] = nanoseconds(price.seconds)
                categories[there] = self._category(f"exposed pp ({tier.replace('_', '-')})")
        return durations, categories

    def _connect(
        self, gathers: dict[tuple[int, int], list[int]], buckets: NDArray[np.int64], first: NDArray[np.int64]
    ) -> None:
        pointer, needs = self.schedule.depends()
        consumer = np.repeat(np.arange(len(self.schedule.rank)), np.diff(pointer))
        crossing = self.schedule.rank[consumer] != self.schedule.rank[needs]
        # What the same rank needs of itself comes earlier in its own stream.
        self.ops.depend(self.action_first[consumer[crossing]], self.arrival[needs[crossing]])
        for (rank, chunk), bucket_ops in gathers.items():
            start = int(self.action_first[first[rank, chunk]])
            if self.plan.overlap_param_gather:
                for number, op in enumerate(bucket_ops):
                    if op >= 0:
                        self.ops.wait(start + number, op)
            else:
                earliest = int(self.action_first[self.schedule.rank_offset[rank]])
                done = [op for op in bucket_ops if op >= 0]
                if done:
                    self.ops.wait(earliest, done[-1])

    def _finish(self, buckets: NDArray[np.int64], last: NDArray[np.int64], shared: dict[int, int]) -> None:
        """Gradient reduction, gradient norm over all ranks, optimizer."""
        schedule, plan = self.schedule, self.plan
        kind = "all_reduce" if (plan.zero_stage or 0) == 0 else "reduce_scatter"
        width = self._gradient_bytes()
        ends: list[int] = []
        added: list[Price] = []
        for rank in range(schedule.stages):
            final = int(self.action_last[schedule.rank_offset[rank + 1] - 1])
            price, summed = self._added(rank)
            added.append(price)
            final = done = max(final, summed, self._new_pages(rank))
            done = shared.get(rank, done)
            if self._reduced():
                for chunk in sorted(range(schedule.chunks), key=lambda c: int(last[rank, c])):
                    piece, count = self.pieces[schedule.virtual_stage[rank, chunk]], int(buckets[rank, chunk])
                    for number in range(count):
                        before = self.ops.n
                        op = self._piecewise("reduce gradients", kind, piece, count, width, rank)
                        if op >= 0:
                            ready = int(self.action_first[last[rank, chunk]]) + number
                            self.ops.wait(before, ready if plan.overlap_grad_reduce else final)
                            done = op
            if self.layout.sums_norms and rank not in shared and not self.layout.reduces_in_passes:
                done = self._sum_norms(rank, [self.pieces[v] for v in self.held[rank]], [done])[0]
            ends.append(done)
        ends_of_chain = self._holders(0), self._holders(len(self.pieces) - 1)
        if self.layout.model.tied_embeddings and ends_of_chain[0] != ends_of_chain[1]:
            vocabulary = self.layout.vocab_padded * self.layout.model.hidden_size / plan.tp
            for rank in sorted(ends_of_chain[0] | ends_of_chain[1]):
                transfer = Transfer("all_reduce", "pp", vocabulary * width)
                op = self._collective("tied embedding", transfer, rank, rendezvous=1)
                self.ops.wait(op, ends[rank])
                ends[rank] = op
        update = self._category("optimizer")
        for rank in range(schedule.stages):
            held = [self.pieces[v] for v in self.held[rank]]
            if self.layout.habits.clips_gradients:
                norm = self._collective(
                    "gradient norm", Transfer("all_reduce", "world", 4.0), rank, shared=False, rendezvous=0,
                    stream=COMPUTE,
                )  # fmt: skip
                self.ops.wait(norm, ends[rank])
            price = optimizer_price(
                self.layout,
                self.pricer,
                sum(piece.dense_parameters for piece in held),
                sum(piece.expert_parameters for piece in held),
                tensors_of(held) if self.layout.habits.pure_precision else (),
            )
            found = self.new_bytes[rank]
            price = price.plus(self.pricer.new_pages(found.optimizer, found.held, update=True))
            self.optimizers.append(price.plus(added[rank]))
            update_op = self.ops.one(
                OpKind.COMPUTE,
                rank * len(STREAMS) + COMPUTE,
                self._label("optimizer"),
                update,
                nanoseconds(price.seconds),
                MATH,
                -1,
            )
            if not self.layout.habits.clips_gradients:
                self.ops.wait(update_op, ends[rank])
            self.ops.one(
                OpKind.HOST,
                rank * len(STREAMS) + COMPUTE,
                self._label("between steps"),
                self._category("host"),
                nanoseconds(self.pricer.step_s),
                0,
                -1,
            )

    def _added(self, rank: int) -> tuple[Price, int]:
        """Gradients of all micro-batches but the first are added to the first's, where no GEMM does so itself.

        One op behind the last pass, before anything is reduced; -1 where there is none.
        """
        later = self.layout.micro_batches - 1
        if not (self.layout.habits.pure_precision and later):
            return FREE, -1
        price = FREE
        for size, count in sorted(Counter(tensors_of([self.pieces[v] for v in self.held[rank]])).items(), reverse=True):
            price = price.plus(self.pricer.added(size).scaled(float(count * later)))
        op = self.ops.one(
            OpKind.COMPUTE,
            rank * len(STREAMS) + COMPUTE,
            self._label("add gradients"),
            self._category("memory-bound"),
            nanoseconds(price.seconds),
            MATH,
            -1,
        )
        return price, op

    def _new_pages(self, rank: int) -> int:
        """On a CPU, the faults of a step's passes, in one piece behind the last of them; -1 where there are none."""
        found = self.new_bytes[rank]
        last = -1
        for phase, count in (("forward", found.forward), ("backward", found.backward)):
            if count:
                last = self.ops.one(
                    OpKind.HOST,
                    rank * len(STREAMS) + COMPUTE,
                    self._label(f"{phase}: new pages"),
                    self._category("host"),
                    nanoseconds(self.pricer.new_pages(count, found.held).seconds),
                    0,
                    -1,
                )
        return last


def _units(piece: Piece) -> int:
    """Units in which FSDP2 shards a piece: its layers, and what is left as one."""
    return piece.n_layers + any(block.is_end for block in piece.blocks)


def _pieces_of_ranks(schedule: Schedule) -> list[list[int]]:
    return [[int(v) for v in row] for row in schedule.virtual_stage]
