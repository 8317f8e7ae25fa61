"""The step under construction: ops, their names and categories, and what they send.

What adds ops to it: `step_actions` (passes and the transfers between stages), `step_shards` (parameters gathered and
gradients reduced by ranks that share them) and `step_end` (the optimizer).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from windtunnel.physics.cost.price import nanoseconds
from windtunnel.physics.graph import OpKind
from windtunnel.physics.model.operations import Transfer
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.model_chunks import Piece
from windtunnel.studies.training.lowering.op_arrays import OpArrays
from windtunnel.studies.training.lowering.pass_builder import TIER_CLASS
from windtunnel.studies.training.lowering.passes import PARTS
from windtunnel.studies.training.lowering.step import COMPUTE, DP, STREAMS
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import Schedule


class Collective(NamedTuple):
    """What a collective is on any rank."""

    key: str  # as what its bytes count, "" for nothing
    bytes_total: float
    label: int
    category: int
    duration_ns: int
    interference: int
    nic: int


class StepBuilder:
    """Ops of all programs of one layout. `categories` begin with one for each distinct pass, `labels` with its name."""

    def __init__(
        self, layout: Layout, pieces: tuple[Piece, ...], schedule: Schedule, pricer: Pricer, names: tuple[str, ...]
    ) -> None:  # fmt: skip
        self.layout, self.pieces, self.schedule, self.pricer = layout, pieces, schedule, pricer
        self.plan = layout.plan
        self.ops = OpArrays()
        self.categories = [f"segment {number}" for number in range(len(names))]
        self.labels: list[str] = list(names)
        self.traffic: dict[str, float] = {}  # bytes of all programs together
        self._collectives: dict[tuple[str, Transfer, int, bool], Collective] = {}
        self._norms_of: dict[int, int] = {}  # by identity of a piece
        self._buckets: dict[tuple[object, ...], list[Collective]] = {}

    def pieces_of(self, rank: int) -> list[Piece]:
        """Pieces of a pipeline rank."""
        return [self.pieces[int(stage)] for stage in self.schedule.virtual_stage[rank]]

    def piece(self, rank: int, chunk: int) -> Piece:
        """One of them."""
        return self.pieces[int(self.schedule.virtual_stage[rank, chunk])]

    def category(self, name: str) -> int:
        """The number of a category, a new one if need be."""
        if name not in self.categories:
            self.categories.append(name)
        return self.categories.index(name)

    def label(self, name: str) -> int:
        """The number of a label, a new one if need be."""
        if name not in self.labels:
            self.labels.append(name)
        return self.labels.index(name)

    def collective(self, name: str, transfer: Transfer, *, messages: int = 1, shared: bool = True) -> Collective:
        """One collective, or several of equal size in a row that the timeline need not tell apart."""
        collective = self._collectives.get((name, transfer, messages, shared))
        if collective is None:
            collective = self._collectives[name, transfer, messages, shared] = self._collective(
                name, transfer, messages, shared
            )
        return collective

    def bucket(self, key: tuple[object, ...], make: Callable[[], list[Collective]]) -> list[Collective]:
        """Collectives of a bucket that is like others: made once."""
        collectives = self._buckets.get(key)
        if collectives is None:
            collectives = self._buckets[key] = make()
        return collectives

    def add(self, collective: Collective, rank: int, *, rendezvous: int = -1, stream: int = DP) -> int:
        """A collective on a rank's stream."""
        if collective.key:
            self.traffic[collective.key] = self.traffic.get(collective.key, 0.0) + collective.bytes_total
        return self.ops.append(
            OpKind.COLLECTIVE,
            rank * len(STREAMS) + stream,
            collective.label,
            collective.category,
            collective.duration_ns,
            collective.interference,
            rendezvous=rendezvous,
            nic=collective.nic,
            bytes_total=collective.bytes_total,
        )

    def _collective(self, name: str, transfer: Transfer, messages: int, shared: bool) -> Collective:
        message = transfer._replace(bytes_total=transfer.bytes_total / messages)
        price, tier = self.pricer.links.transfer(message)
        apart = tier.replace("_", "-")
        sent = self.layout.group(transfer.group).size > 1
        return Collective(
            f"{transfer.kind} {transfer.group} ({apart})" if sent else "",
            transfer.bytes_total,
            self.label(name),
            self.category(f"exposed {transfer.group} ({apart})"),
            nanoseconds(price.seconds * messages),
            TIER_CLASS[tier] if shared else 0,
            round(PARTS * self.pricer.links.nic_share(message)) if shared else 0,
        )

    def compute(self, name: str, category: str, kind: OpKind, seconds: float, interference: int, rank: int) -> int:
        """One op on a rank's compute stream."""
        at = rank * len(STREAMS) + COMPUTE
        return self.ops.append(kind, at, self.label(name), self.category(category), nanoseconds(seconds), interference)

    def _norms(self, piece: Piece) -> int:
        if id(piece) not in self._norms_of:
            self._norms_of[id(piece)] = sum(block.norms for block in piece.blocks)
        return self._norms_of[id(piece)]

    def sum_norms(self, rank: int, pieces: list[Piece], after: list[int]) -> list[int]:
        """Norms' gradients over tensor-parallel ranks: one collective for each where DTensor does it, else one."""
        count = sum(self._norms(piece) for piece in pieces)
        if not count:
            return after
        size = count * self.layout.model.norm_parameters * self.layout.gradient_bytes
        messages = count if self.layout.habits.sums_norms_apart else 1
        transfer = Transfer("all_reduce", "tp", size)
        op = self.add(self.collective("sum norms", transfer, messages=messages, shared=False), rank)
        for number in after:
            self.ops.wait(op, number)
        return [op]
