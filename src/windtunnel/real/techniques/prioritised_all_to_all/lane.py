"""One line in a user's loop: their all-to-alls and DistributedDataParallel's reductions take turns on one lane.

    lane = prioritised_all_to_all.apply(ddp)      # and lane.close() behind the loop, on all ranks

From then on `torch.distributed.all_to_all_single` over all ranks of `ddp` goes through the lane, and a communication
hook hands it the buckets; until `close`, which puts PyTorch's own function back. Functional collectives and all-to-alls
over fewer ranks pass by.
"""

# No `from __future__ import annotations` here: DistributedDataParallel reads the hook's annotations as objects.

from collections.abc import Sequence

import torch
import torch.distributed as dist

from windtunnel.real.techniques.hooking import require_bare, world_of
from windtunnel.real.techniques.prioritised_all_to_all.communicator import Communicator, Operation, Policy


class Lane(Communicator):
    """A communicator that the script's own calls go through."""

    def __init__(self, group: dist.ProcessGroup, policy: Policy, order: Sequence[str] | str, piece_bytes: int) -> None:
        super().__init__(policy, order=order, micro_op_bytes=piece_bytes, group=group)
        self._members = dist.get_process_group_ranks(group)
        self._exchange = dist.all_to_all_single
        dist.all_to_all_single = self._instead

    def _instead(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: list[int] | None = None,
        input_split_sizes: list[int] | None = None,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
    ) -> object:
        members = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
        if members != self._members or group in self._groups.values():
            return self._exchange(output, input, output_split_sizes, input_split_sizes, group, async_op)
        done = self.all_to_all(output, input, output_split_sizes, input_split_sizes)
        if async_op:
            return done
        done.wait()
        return None

    def close(self) -> None:
        """As `Communicator.close`; PyTorch's own function is back."""
        dist.all_to_all_single = self._exchange
        super().close()


def apply(
    model: object, policy: Policy = "leader", *, order: Sequence[str] | str = "", micro_op_bytes: int = 30_000_000
) -> Lane:
    """Give all-to-alls precedence over the reductions of `model`, a DistributedDataParallel. Raises SpecError."""
    ddp = require_bare(model)
    lane = Lane(ddp.process_group, policy, order, micro_op_bytes)
    ddp.register_comm_hook((lane, world_of(ddp)), hook)
    return lane


def hook(state: tuple[Lane, int], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The mean of a bucket over all ranks, when the lane has carried it."""
    lane, world = state
    buffer = bucket.buffer().div_(world)
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def over(operation: Operation) -> None:
        if operation.failure is None:
            future.set_result(buffer)
        else:
            future.set_exception(RuntimeError(f"a collective failed on the communication thread: {operation.failure}"))

    lane.all_reduce(buffer).then(over)
    return future
