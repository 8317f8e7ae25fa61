"""A gradient's all-reduce by primitive or by group, as a communication hook of DistributedDataParallel.

    by primitive   reduce-scatter | all-gather
    by group       reduce-scatter inside the node | all-reduce of the shard across nodes | all-gather inside

The parts of one bucket need each other, so they are chained over buckets: when bucket k is ready its first part begins,
the second of bucket k - 1 and the third of bucket k - 2. The backward pass waits only for what was begun a bucket
before; the last bucket brings all to their end. Every rank has the buckets in one order, so all begin the same things
in one order. By primitive the additions are those of an all-reduce; by group they come in another order, and all ranks
hold the same bits.
"""

# No `from __future__ import annotations` here: DistributedDataParallel reads the hook's annotations as objects.

import os
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from windtunnel.errors import LayoutError
from windtunnel.real.techniques.collective_partitioning.partitioned import _gather, _padded, _scatter, two_levels
from windtunnel.real.techniques.hooking import require_bare, world_of
from windtunnel.studies.techniques.parameters import PartitionPlan


@dataclass
class PartitionState:
    """What the hook keeps: the groups, and the buckets under way in this backward pass."""

    inside: dist.ProcessGroup
    across: object  # None: by primitive
    world: int
    underway: list["_Bucket"] = field(default_factory=list)

    @classmethod
    def from_plan(cls, plan: PartitionPlan, local: int, group: dist.ProcessGroup | None = None) -> "PartitionState":
        """Groups for nodes of `local` ranks. A collective of all ranks. Raises LayoutError.

        By group if the plan says so, or leaves it open and several nodes hold several ranks each.
        """
        world = dist.get_world_size(group)
        nodes = 1 < local < world
        if plan.group and not nodes:
            raise LayoutError(
                f"group=true with {world} ranks, {local} to a node", "several nodes of several ranks each"
            )
        if not (nodes if plan.group is None else plan.group):
            return cls(group if group is not None else dist.group.WORLD, None, world)
        if world != dist.get_world_size():
            raise LayoutError("group=true with a process group of fewer ranks than all", "give group=false")
        return cls(*two_levels(local, world), world)


class _Bucket:
    """One bucket on its way through the parts."""

    def __init__(self, state: PartitionState, buffer: torch.Tensor) -> None:
        self.state, self.buffer = state, buffer
        self.result: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        size = dist.get_world_size(state.inside)
        self.flat = _padded(buffer, size)
        self.shard = self.flat.new_empty(self.flat.numel() // size)
        self.parts = ["scatter", *(["across"] if state.across is not None else []), "gather"]
        self.work: dist.Work | None = None

    def go_on(self) -> bool:
        """Wait for the part under way and begin the next; whether all are done."""
        if self.work is not None:
            self.work.wait()  # raises what the collective raised
        if not self.parts:
            self.buffer.copy_(self.flat[: self.buffer.numel()].view_as(self.buffer) / self.state.world)
            self.result.set_result(self.buffer)
            return True
        part = self.parts.pop(0)
        if part == "scatter":
            self.work = _scatter(self.shard, self.flat, self.state.inside, async_op=True)
        elif part == "across":
            self.work = dist.all_reduce(self.shard, group=self.state.across, async_op=True)
        else:
            self.work = _gather(self.flat, self.shard, self.state.inside, async_op=True)
        return False


def partitioned_hook(state: PartitionState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduce one bucket: to be given to `DistributedDataParallel.register_comm_hook` with a `PartitionState`."""
    if bucket.index() == 0:
        state.underway.clear()  # of a backward pass that raised
    reduction = _Bucket(state, bucket.buffer())
    state.underway.append(reduction)
    state.underway[:] = [other for other in state.underway if not other.go_on()]
    while bucket.is_last() and state.underway:
        state.underway[:] = [other for other in state.underway if not other.go_on()]
    return reduction.result


def apply(model: object, local: int | None = None, **parameters: object) -> PartitionState:
    """Put the hook into `model`, a DistributedDataParallel; `local`: ranks of a node, as torchrun says. On all ranks.

    Raises SpecError, LayoutError.
    """
    ddp = require_bare(model)
    here = local if local is not None else int(os.environ.get("LOCAL_WORLD_SIZE", world_of(ddp)))
    plan = PartitionPlan(**parameters)  # type: ignore[arg-type]  # it checks them
    state = PartitionState.from_plan(plan, here, ddp.process_group)
    ddp.register_comm_hook(state, partitioned_hook)
    return state
