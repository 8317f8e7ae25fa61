"""A pass under construction: ops on streams, priced as they are added, replayed when it is finished."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.cost.price import Price, Source, nanoseconds
from windtunnel.physics.cost.training import MATH, SCALE_OUT, SCALE_UP, TRAFFIC
from windtunnel.physics.engine import Exposure, Slowdown, Timeline, exposed, replay
from windtunnel.physics.graph import Graph, GraphBuilder, OpKind
from windtunnel.physics.model.operations import Transfer
from windtunnel.physics.step.nic_sharing import pass_sharing
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import TRAITS

Key = TypeVar("Key", bound=Hashable)
TIER_CLASS = {"scale_up": SCALE_UP, "scale_out": SCALE_OUT}


def _floats() -> array[float]:
    return array("d")


@dataclass(frozen=True, eq=False)
class Segment:
    """One priced pass. `breakdown_ns` sums exactly to `duration_ns`."""

    duration_ns: int
    p5: float  # of duration, relative
    p95: float
    busy_s: dict[Source, float]  # busy seconds by source of price
    flops: float
    traffic_bytes: dict[str, float]
    nic_share: float  # mean share of its GPU's NIC that a pass takes
    graph: Graph
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    block: NDArray[np.int32]  # [ops] of the blocks of its piece: whose work each op is

    @cached_property
    def breakdown_ns(self) -> dict[str, int]:
        """Nanoseconds by category; `idle` is when nothing runs."""
        if not self.graph.n_ops:
            return {}
        return owned(exposed(Timeline(self.start_ns, self.end_ns), self.graph), self.graph)[0]

    def with_host_ns(self, slower: float) -> float:
        """Nanoseconds, at least, if the host took so many times as long: no less than it takes itself."""
        issued = (self.end_ns - self.start_ns)[self.graph.kind == OpKind.HOST].sum()
        return max(self.duration_ns + (slower - 1.0) * self.breakdown_ns.get("host", 0), slower * float(issued))


@dataclass
class PassBuilder:
    """The pass under construction: a builder and what the next op must wait for."""

    pricer: Pricer
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    classes: array[int] = field(default_factory=partial(array, "B"))
    nic_shares: dict[int, float] = field(default_factory=dict)  # op -> share of the NIC that it takes
    pending: list[int] = field(default_factory=list)  # transfers whose result the next compute op needs
    last: int = -1  # last op on the compute stream
    first_op: int = 0  # of the block that is being added
    looks_back: bool = False  # whether one of the block's ops depends on what ran before it on the compute stream
    sync: tuple[int, ...] = ()  # what the host waits for before it launches anything more
    # Of each kernel, transfer and copy: source and seconds of its price, with its band; what transfers send, by key.
    sources: array[int] = field(default_factory=partial(array, "B"))
    seconds: array[float] = field(default_factory=_floats)
    p5_s: array[float] = field(default_factory=_floats)
    p95_s: array[float] = field(default_factory=_floats)
    sent: list[tuple[str, float]] = field(default_factory=list)
    flops: array[float] = field(default_factory=_floats)  # of each kernel
    block: int = 0  # of the blocks given: whose work is being added
    backward: bool = False  # whether autograd launches what is being added
    block_of: array[int] = field(default_factory=partial(array, "i"))  # op -> its block
    noted: list[tuple[int, int, Price]] | None = None  # (op, block, price) of each kernel and transfer, where wanted

    def compute(
        self,
        name: str,
        price: Price,
        category: str,
        *,
        share: float = 1.0,
        after: Sequence[int] = (),
        flops: float = 0.0,
        kernels: int = 1,
    ) -> int:
        """A kernel (or `share` of one) on the compute stream, launched by the host."""
        pricer = self.pricer
        if category == "attention" and pricer.document_length is not None:
            flops *= pricer.document_length / pricer.layout.plan.seq_len
        each = pricer.host.backward_launch_s if self.backward else pricer.host.launch_s
        launch = self._op(OpKind.HOST, "host", kernels * each, name, "host", after=self.sync)
        self.sync = ()
        self.last = self._op(
            OpKind.COMPUTE,
            "compute",
            price.seconds * share * pricer.slow_compute,
            name,
            category,
            interference=TRAFFIC if category == "memory-bound" else MATH,
            after=(launch, *self.pending, *after),
            flops=flops * share,
        )
        self.pending = []
        self._account(self.last, price, share)
        self.flops.append(flops * share)
        return self.last

    def transfer(
        self,
        name: str,
        transfer: Transfer,
        *,
        after: Sequence[int] = (),
        share: float = 1.0,
        skew: float = 1.0,
        launched: bool = True,
    ) -> int:
        """A collective on the stream of its group; not `launched`: the rest of one that is there already."""
        price, tier = self.pricer.links.transfer(transfer, skew)
        slower = self.pricer.slow_links if tier == "scale_out" else 1.0
        handed_over_s = self.pricer.host.exchange_s if transfer.group == "tp" else 0.0
        waits = after or self._behind()
        apart = tier.replace("_", "-")
        if launched:
            launch_s = self.pricer.host.tp_launch_s if transfer.group == "tp" else self.pricer.host.collective_launch_s
            waits = (self._op(OpKind.HOST, "host", launch_s, name, "host"), *waits)
        op = self._op(
            OpKind.SEND if transfer.kind == "send_recv" else OpKind.COLLECTIVE,
            transfer.group,
            price.seconds * share * slower + handed_over_s,
            name,
            f"exposed {transfer.group} ({apart})",
            interference=TIER_CLASS[tier],
            after=waits,
            moved=transfer.bytes_total * share,
        )
        if tier == "scale_out":
            self.nic_shares[op] = self.pricer.links.nic_share(transfer)
        self.sent.append((f"{transfer.kind} {transfer.group} ({apart})", transfer.bytes_total * share))
        self._account(op, price, share)
        return op

    def hidden_share(self, transfer: Transfer) -> float:
        """How much of an expert all-to-all runs under another micro-batch's compute.

        DualPipe hides all of it, across nodes too: SMs are set aside for that (DeepSeek-V3, section 3.2). Others do
        inside a scale-up domain and in a CUDA graph, where no kernel waits for the host; elsewhere `hidden_partly`
        of it.
        """
        layout = self.pricer.layout
        if not layout.plan.overlap_ep or transfer.group != "ep":
            return 0.0
        captured = layout.plan.cuda_graphs and self.pricer.links.transfer(transfer)[1] == "scale_up"
        return 1.0 if captured or TRAITS[layout.schedule].hides_dispatch else self.pricer.training.hidden_partly

    def copy(self, name: str, bytes_total: float) -> int:
        """A copy between host and device on its own stream."""
        seconds = bytes_total / self.pricer.layout.cluster.host.offload_bandwidth_bytes_per_s
        after = self._behind()
        op = self._op(OpKind.SEND, "host copy", seconds, name, "exposed host copy", after=after, moved=bytes_total)
        self._account(op, Price(seconds, seconds, seconds * 1.3, Source.ROOFLINE), 1.0)
        return op

    def _behind(self) -> tuple[int, ...]:
        """The last kernel, if there is one."""
        self.looks_back |= self.last < self.first_op
        return (self.last,) if self.last >= 0 else ()

    def _op(
        self,
        kind: OpKind,
        stream: str,
        seconds: float,
        name: str,
        category: str,
        *,
        interference: int = 0,
        after: Sequence[int] = (),
        flops: float = 0.0,
        moved: float = 0.0,
    ) -> int:
        self.classes.append(interference)
        self.block_of.append(self.block)
        return self.builder.op(
            kind,
            self.builder.stream(0, stream),
            after=after,
            duration_ns=nanoseconds(seconds),
            label=name,
            category=category,
            flops=flops,
            bytes=moved,
        )

    def _account(self, op: int, price: Price, share: float) -> None:
        if self.noted is not None:
            self.noted.append((op, self.block, price.scaled(share)))
        self.sources.append(price.source)
        self.seconds.append(price.seconds * share)
        self.p5_s.append(price.p5 * share)
        self.p95_s.append(price.p95 * share)

    def mark(self) -> tuple[int, ...]:
        """How much there is so far; a block begins here."""
        self.first_op, self.looks_back = self.builder.n_ops, False
        return self._counts()

    def _counts(self) -> tuple[int, ...]:
        noted = 0 if self.noted is None else len(self.noted)
        return (self.builder.n_ops, len(self.sources), len(self.sent), len(self.flops), noted)

    def state(self) -> tuple[tuple[object, ...], int | None]:
        """What the next op will wait for, counted back from it; and the last kernel, for which some ops do not."""
        n = self.builder.n_ops
        waits = ([n - op for op in self.pending], [n - op for op in self.sync])
        return waits, n - self.last if self.last >= 0 else None

    def repeat(self, since: tuple[int, ...], times: int, blocks: int) -> int:
        """Add what was added since a mark so many times more, each time for the block `blocks` further on.

        Returns by how many ops all that is to be waited for has moved on.
        """
        first, account, sent, kernels, noted = since
        n = self.builder.n_ops - first
        moved = n * times
        shares = [(op, share) for op, share in self.nic_shares.items() if op >= first]
        self.nic_shares.update((op + n * copy, share) for copy in range(1, times + 1) for op, share in shares)
        own = self.block_of[first:]
        self.block_of.extend([block + blocks * copy for copy in range(1, times + 1) for block in own])
        if self.noted is not None:
            added = self.noted[noted:]
            copies = range(1, times + 1)
            self.noted += [(op + n * copy, at + blocks * copy, price) for copy in copies for op, at, price in added]
        self.builder.repeat(first, times)
        self.classes += self.classes[first:] * times
        for column in (self.seconds, self.p5_s, self.p95_s):
            column += column[account:] * times
        self.sources += self.sources[account:] * times
        self.sent += self.sent[sent:] * times
        self.flops += self.flops[kernels:] * times
        self.pending = [op + moved for op in self.pending]
        self.sync = tuple(op + moved for op in self.sync)
        self.last += moved
        return moved

    def since(self, mark: tuple[int, ...]) -> Stretch:
        """What was added since a mark, to be copied into passes that have the same."""
        return Stretch(self, mark, self._counts(), tuple(self.pending), self.last, self.sync, self.looks_back)

    def copy_of(self, stretch: Stretch) -> None:
        """Add what this pass or another was given, for the block that is being added, from the same state."""
        other, start, ended = stretch.build, stretch.starts, stretch.ends
        first, end = start[0], ended[0]
        moved = self.builder.copy_of(other.builder, first, end)
        shares = [(op + moved, share) for op, share in other.nic_shares.items() if first <= op < end]
        self.nic_shares.update(shares)
        self.block_of.extend([self.block] * (end - first))
        self.classes += other.classes[first:end]
        accounted = slice(start[1], ended[1])
        self.sources += other.sources[accounted]
        self.seconds += other.seconds[accounted]
        self.p5_s += other.p5_s[accounted]
        self.p95_s += other.p95_s[accounted]
        self.sent += other.sent[start[2] : ended[2]]
        self.flops += other.flops[start[3] : ended[3]]
        self.pending = [op + moved for op in stretch.pending]
        self.sync = tuple(op + moved for op in stretch.sync)
        self.last = stretch.last + moved
        self.looks_back = stretch.looks_back

    def finish(self) -> Segment:
        """Replay, and split the duration."""
        graph, durations = self.builder.build(), self.builder.duration_ns()
        factors = np.array(self.pricer.training.slowdown_factors())
        slowdown = Slowdown(np.array(self.classes, dtype=np.uint8), factors)
        timeline = replay(graph, durations, slowdown, pass_sharing(graph, self.nic_shares))
        total = int(timeline.end_ns.max(initial=0))
        seconds = np.bincount(self.sources, self.seconds)  # adds up in order
        busy_s = {Source(source): float(seconds[source]) for source in dict.fromkeys(self.sources)}
        busy = sum(busy_s.values())
        return Segment(
            duration_ns=total,
            p5=_total(self.p5_s) / busy if busy else 1.0,
            p95=_total(self.p95_s) / busy if busy else 1.0,
            busy_s=busy_s,
            flops=_total(self.flops),
            traffic_bytes=summed_up(self.sent),
            nic_share=sum(share * float(durations[op]) for op, share in self.nic_shares.items()) / max(1, total),
            graph=graph,
            start_ns=timeline.start_ns,
            end_ns=timeline.end_ns,
            block=np.array(self.block_of, np.int32),
        )


@dataclass(frozen=True, eq=False)
class Stretch:
    """Ops of a pass from one mark to another, and what the next op waited for then."""

    build: PassBuilder
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    pending: tuple[int, ...]
    last: int
    sync: tuple[int, ...]
    looks_back: bool


def _total(column: array[float]) -> float:
    """The sum, added up in order."""
    return float(np.cumsum(column)[-1]) if column else 0.0


def summed_up(parts: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """The sum of each key, added up in order."""
    sums: dict[Key, float] = {}
    for key, value in parts:
        sums[key] = sums.get(key, 0.0) + value
    return sums


def owned(exposure: Exposure, graph: Graph) -> list[dict[str, int]]:
    """Nanoseconds of each program by category; `idle` is when nothing runs. Sums exactly to the makespan."""
    busy = exposure.compute_ns + exposure.communication_ns + exposure.host_ns
    idle = exposure.idle_ns.sum(axis=1) + exposure.tail_ns
    result = []
    for program in range(graph.n_programs):
        parts = {name: int(time) for name, time in zip(graph.categories, busy[program], strict=True) if time}
        if idle[program]:
            parts["idle"] = int(idle[program])
        result.append(parts)
    return result
