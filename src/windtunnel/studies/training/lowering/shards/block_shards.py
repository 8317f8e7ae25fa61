"""What ranks that share parameters send each other inside a pass: gathers before a block, reductions behind it."""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.physics.model.operations import Transfer
from windtunnel.studies.training.lowering.block import Block
from windtunnel.studies.training.lowering.pass_builder import PassBuilder
from windtunnel.studies.training.memory.saved_tensors import keeping
from windtunnel.studies.training.pricing import parameter_bytes
from windtunnel.studies.training.schedules import Kind


class Gathers:
    """Parameter gathers before and gradient reductions after each block (ZeRO-2 and -3), one block ahead.

    Where a framework has embedding and head in one root unit (`root_gathered`), that is gathered when a forward pass
    begins, stays until the backward pass has ended, and is reduced then.
    """

    def __init__(self, build: PassBuilder, order: list[Block], phase: Kind, left_out: int = 0) -> None:
        plan, layout = build.pricer.layout.plan, build.pricer.layout
        self._build, self._order = build, order
        self._left_out = left_out  # blocks of the forward pass before the first that learns
        self._gather = layout.gathers_in_passes and phase is not Kind.BACKWARD_WEIGHT
        self._reduce = layout.reduces_in_passes and phase in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT)
        self._parameter_bytes = parameter_bytes(plan)
        self._gradient_bytes = layout.gradient_bytes
        self._replicas = layout.replicas
        self._overlap_gather, self._overlap_reduce = plan.overlap_param_gather, plan.overlap_grad_reduce
        self._ready: dict[int, list[int]] = {}
        self._ends: dict[int, int] = {}
        gathered, reduced = [[block] for block in order], [[block] for block in order]
        ends = [number for number, block in enumerate(order) if block.is_end]
        if ends and layout.reduces_in_passes and keeping(plan.framework).root_gathered:
            root = [order[number] for number in ends]
            for number in ends:
                gathered[number], reduced[number] = [], []
            gathered[ends[0]] = root if phase is Kind.FORWARD else []
            reduced[ends[-1]] = root
        self._gathered, self._reduced = gathered, reduced
        self._forward = phase is Kind.FORWARD

    @property
    def idle(self) -> bool:
        """Whether nothing is gathered or reduced inside the pass."""
        return not (self._gather or self._reduce)

    def state(self, number: int) -> tuple[object, ...]:
        """What the block will wait for, counted back from the next op."""
        if not self._gather:
            return ()
        n, ready = self._build.builder.n_ops, self._ready.get(number)
        ends = [n - self._ends[at] if at in self._ends else None for at in (number - 2, number - 1)]
        return (None if ready is None else [n - op for op in ready], ends)

    def moved_on(self, number: int, blocks: int, ops: int) -> None:
        """What block `number` would have waited for, so many blocks and ops further on."""
        ends = [(at, self._ends[at]) for at in (number - 2, number - 1) if at in self._ends]
        self._ends.update((at + blocks, op + ops) for at, op in ends)
        if number in self._ready:
            self._ready[number + blocks] = [op + ops for op in self._ready[number]]

    def index(self, number: int) -> int:
        """Place of the block in a forward pass."""
        return number if self._forward else self._left_out + len(self._order) - 1 - number

    def before(self, number: int) -> None:
        """Make the block's parameters present; issue the next block's gather."""
        if not self._gather:
            return
        for ahead in (number, number + 1) if self._overlap_gather else (number,):
            if ahead < len(self._order) and ahead not in self._ready:
                # The prefetch may start once the block before last is done: its buffer is then free.
                done = self._ends.get(ahead - 2)
                self._build.block = self.index(ahead)
                self._ready[ahead] = self._fetch(self._gathered[ahead], after=(done,) if done is not None else ())
        self._build.pending += self._ready[number]

    def after(self, number: int) -> None:
        """Reduce the block's gradients as soon as they are complete."""
        if self._build.last >= 0:
            self._ends[number] = self._build.last
        if not self._reduce:
            return
        summed = self._sum_norms(self._reduced[number])
        if self._build.pricer.layout.shard_group == 1 and self._replicas > 1:
            whole = sum(block.learning[0] for block in self._reduced[number]) * self._gradient_bytes
            if whole:
                op = self._build.transfer("reduce replicas", Transfer("all_reduce", "replica", whole), after=summed)
                self._build.pending += [] if self._overlap_reduce else [op]
        for parameters, group in self._shared([block.learning for block in self._reduced[number]]):
            size = parameters * self._gradient_bytes
            op = self._build.transfer("reduce gradients", Transfer("reduce_scatter", group, size), after=summed)
            if group == "dp" and self._replicas > 1:
                shard = size * self._replicas / max(1, self._build.pricer.layout.plan.cp * self._build.pricer.layout.dp)
                op = self._build.transfer("reduce replicas", Transfer("all_reduce", "replica", shard), after=(op,))
            if not self._overlap_reduce:
                self._build.pending.append(op)

    def _sum_norms(self, blocks: Sequence[Block]) -> list[int]:
        """Every rank's norms have seen its own tokens only: their gradients are summed, one by one, before anything."""
        layout = self._build.pricer.layout
        if not layout.sums_norms:
            return []
        width = 4.0 if layout.plan.precision == "fp32" else 2.0
        sum_of_one = Transfer("all_reduce", "tp", width * layout.model.norm_parameters)
        summed = [self._build.transfer("sum norms", sum_of_one) for block in blocks for _ in range(block.norms)]
        self._build.pending += summed
        return summed

    def _shared(self, parameters: Sequence[tuple[float, float]]) -> list[tuple[float, str]]:
        """Parameters with the group that shards them, where there are any and anybody to share with."""
        dense, experts = (sum(counts) for counts in zip(*parameters, strict=True)) if parameters else (0.0, 0.0)
        groups = ((dense, "dp"), (experts, "edp"))
        return [(count, group) for count, group in groups if count and self._build.pricer.layout.group(group).size > 1]

    def _fetch(self, blocks: Sequence[Block], after: Sequence[int]) -> list[int]:
        ops = []
        # Adapters are gathered with what they stand beside; they are a few parts in a thousand of it.
        for parameters, group in self._shared([(block.dense_parameters, block.expert_parameters) for block in blocks]):
            transfer = Transfer("all_gather", group, parameters * self._parameter_bytes)
            # Nothing to wait for at the start of a pass: the gather is the first thing that runs.
            ops.append(self._build.transfer("gather parameters", transfer, after=after))
        return ops
