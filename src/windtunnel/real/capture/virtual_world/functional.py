"""Functional collectives on tensors without data, as a dispatch mode meets them.

With data, torch's own C++ for `_c10d_functional` calls `c10d` ops and so comes to `answers`. Under fake tensors it
makes outputs of the right shape and tells nobody: here the call is made known, and `wait_tensor` finds the work it
waits for by the storage.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from windtunnel.real.capture.torch_private import distributed as compat
from windtunnel.real.capture.virtual_world.collectives import REDUCE_OPS, Answers, bytes_of, uneven_rows
from windtunnel.real.capture.virtual_world.groups import Group
from windtunnel.real.capture.virtual_world.peer_data import Exchange
from windtunnel.real.capture.virtual_world.protocol import AnsweringWorld
from windtunnel.real.capture.virtual_world.refusals import UnsupportedCommunicationError
from windtunnel.studies.programs.communication import MESSAGES

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch._ops import OpOverload

_KINDS = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "broadcast": "broadcast",
    "all_to_all_single": "all_to_all",
    "isend": "send",
    "irecv": "recv",
}


class Functional:
    """Answers by name of the op."""

    def __init__(self, world: AnsweringWorld, answers: Answers) -> None:
        self._world, self._answers = world, answers
        # by storage: an output, and the work that fills it
        self._unwaited: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}

    def answer(self, func: OpOverload, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Outputs of the right shape, and a work for `wait_tensor`; with data, torch's own."""
        arguments = {
            argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)
        } | kwargs
        inputs = _listed(
            arguments.get("input", arguments.get("inputs", arguments.get("tensor", arguments.get("tensors"))))
        )
        if not self._world.is_fake(inputs):
            return func(*args, **kwargs)
        if name == "wait_tensor":
            self._wait(inputs[0])
            return inputs[0]
        if name == "wait_tensors":  # since 2.15
            for tensor in inputs:
                self._wait(tensor)
            return inputs
        if name.endswith("_") or name == "irecv":
            output = arguments.get("input", arguments.get("inputs", arguments.get("tensor")))
        else:
            output = arguments["out"] if name.endswith("_out") else self._world.outputs_of(func, args, kwargs)
        group = self._world.group_of(arguments["group_name"])
        if name == "batch_p2p_ops":
            self._batch(group, arguments, inputs, _listed(output))
        elif name == "shard_dim_alltoall":
            call = self._answers.ask(group, "all_to_all", bytes_of(inputs), inputs, is_async=False)
            self._world.wait_for(call, self._world.begin(call))
        else:
            self._single(group, name, arguments, inputs, _listed(output))
        return output

    def _single(
        self,
        group: Group,
        name: str,
        arguments: dict[str, Any],
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
    ) -> None:
        kind = _KINDS.get(name.removesuffix("_out").removesuffix("_").removesuffix("_coalesced"))
        if kind is None:
            raise UnsupportedCommunicationError(
                f"the dispatcher op _c10d_functional::{name}", "use one of the collectives of torch.distributed instead"
            )
        more: dict[str, Any] = {}
        rows_in: list[int] = []
        rows_out: list[int] = []
        if "reduce_op" in arguments:
            reduction = arguments["reduce_op"]  # since 2.15 it may be a ReduceOp
            more["reduce_op"] = (
                reduction.lower()
                if isinstance(reduction, str)
                else REDUCE_OPS[int(getattr(reduction, "op", reduction))]
            )
        if kind == "all_to_all":
            rows_in, rows_out = (list(arguments[f"{side}_split_sizes"] or ()) for side in ("input", "output"))
            more |= uneven_rows(inputs[0], outputs[0], rows_in, rows_out, group.size)
        position = next((arguments[end] for end in ("src", "dst") if end in arguments), -1)
        if "tag" in arguments:
            more["tag"] = arguments["tag"]
        total = bytes_of(outputs if kind == "all_gather" else inputs)
        call = self._answers.ask(group, kind, total, inputs, position=position, **more)
        if kind not in MESSAGES:
            sent, received = tuple(inputs), tuple(outputs)
            exchange = Exchange(call, sent, received, self._world.noise, None, tuple(rows_in), tuple(rows_out))
            self._world.carry_known(exchange, group, fresh=not name.endswith(("_", "_out")))
        self._remember(outputs if kind != "send" else inputs, call, group)

    def _batch(
        self, group: Group, arguments: dict[str, Any], inputs: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> None:
        group.start_batch()
        ends = zip(arguments["op_list"], arguments["peer_list"], arguments["tag_list"], inputs, outputs, strict=True)
        for op, peer, tag, own, output in ends:
            kind = "recv" if op == "irecv" else "send"
            call = self._answers.ask(group, kind, bytes_of((own,)), (own,), position=peer, tag=tag)
            self._remember([output], call, group)
        group.end_batch()

    def _remember(self, outputs: list[object], call: dist.Work, group: Group) -> None:
        work = self._world.work((call,), self._world.begin(call), outputs, group, -1)
        if len(self._unwaited) > 4096:
            self._unwaited = {key: entry for key, entry in self._unwaited.items() if entry[0]() is not None}
        for output in outputs:
            self._unwaited[compat.storage_key(output)] = (weakref.ref(output), work)

    def _wait(self, tensor: torch.Tensor) -> None:
        entry = self._unwaited.pop(compat.storage_key(tensor), None)
        if entry is not None and entry[0]() is not None:
            entry[1].wait()


def _listed(tensors: object) -> list[object]:
    return list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
