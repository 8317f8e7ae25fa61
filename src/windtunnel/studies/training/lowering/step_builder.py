"""The step under construction: ops, their names and categories, and what they send.

What adds ops to it: `step_actions` (passes and the transfers between stages), `step_shards` (parameters gathered and
gradients reduced by ranks that share them) and `step_end` (the optimizer).
"""

from __future__ import annotations

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
        self._known: dict[tuple[str, Transfer, int, bool], tuple[str, dict[str, int]]] = {}  # collectives

    def held(self, rank: int) -> list[Piece]:
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

    def collective(
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
        known = self._known.get((name, transfer, messages, shared))
        if known is None:
            known = self._known[name, transfer, messages, shared] = self._collective(name, transfer, messages, shared)
        key, columns = known
        if key:
            self.traffic[key] = self.traffic.get(key, 0.0) + transfer.bytes_total
        at = rank * len(STREAMS) + stream
        return self.ops.one(
            kind=OpKind.COLLECTIVE, stream=at, rendezvous=rendezvous, bytes_total=transfer.bytes_total, **columns
        )

    def _collective(self, name: str, transfer: Transfer, messages: int, shared: bool) -> tuple[str, dict[str, int]]:
        """As what its bytes count, "" for nothing; and columns of the op that hang on nothing else."""
        message = transfer._replace(bytes_total=transfer.bytes_total / messages)
        price, tier = self.pricer.transfer(message)
        apart = tier.replace("_", "-")
        columns = {
            "label": self.label(name),
            "category": self.category(f"exposed {transfer.group} ({apart})"),
            "duration": nanoseconds(price.seconds * messages),
        }
        if shared:
            columns["interference"] = TIER_CLASS[tier]
            columns["nic"] = round(PARTS * self.pricer.nic_share(message))
        sent = self.layout.group(transfer.group).size > 1
        return f"{transfer.kind} {transfer.group} ({apart})" if sent else "", columns

    def compute(self, name: str, category: str, kind: OpKind, seconds: float, interference: int, rank: int) -> int:
        """One op on a rank's compute stream."""
        return self.ops.one(
            kind=kind,
            stream=rank * len(STREAMS) + COMPUTE,
            label=self.label(name),
            category=self.category(category),
            duration=nanoseconds(seconds),
            interference=interference,
        )

    def sum_norms(self, rank: int, pieces: list[Piece], after: list[int]) -> list[int]:
        """Norms' gradients over tensor-parallel ranks: one collective for each where DTensor does it, else one."""
        count = sum(block.norms for piece in pieces for block in piece.blocks)
        if not count:
            return after
        size = count * self.layout.model.norm_parameters * self.layout.gradient_bytes
        messages = count if self.layout.habits.sums_norms_apart else 1
        op = self.collective("sum norms", Transfer("all_reduce", "tp", size), rank, messages=messages, shared=False)
        for one in after:
            self.ops.wait(op, one)
        return [op]
