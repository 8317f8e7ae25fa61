"""Asking the real backend of a group, as torch's own kernels of the `c10d` ops do, but with Python's lock let go.

torch's kernels can be called from Python (`torch.library.get_kernel`), which keeps the lock. gloo's threads drop the
last reference to a tensor while they hold the lock of gloo's queue, and that takes Python's lock: a call that waits for
the queue meanwhile waits for ever. The methods of a backend let Python's lock go first.

One entry for each op of the dispatcher that has a method; what is an option there is an argument of the op.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from windtunnel.real.capture.torch_private import distributed as compat

_METHODS = {  # of a backend, and the class of its options
    "allreduce_": ("allreduce", "AllreduceOptions"),
    "allreduce_coalesced_": ("allreduce_coalesced", "AllreduceCoalescedOptions"),
    "broadcast_": ("broadcast", "BroadcastOptions"),
    "reduce_": ("reduce", "ReduceOptions"),
    "allgather_": ("allgather", "AllgatherOptions"),
    "_allgather_base_": ("_allgather_base", "AllgatherOptions"),
    "allgather_coalesced_": ("allgather_coalesced", "AllgatherOptions"),
    "gather_": ("gather", "GatherOptions"),
    "scatter_": ("scatter", "ScatterOptions"),
    "reduce_scatter_": ("reduce_scatter", "ReduceScatterOptions"),
    "_reduce_scatter_base_": ("_reduce_scatter_base", "ReduceScatterOptions"),
    "alltoall_base_": ("alltoall_base", "AllToAllOptions"),
    "alltoall_": ("alltoall", "AllToAllOptions"),
    "send": ("send", ""),
    "recv_": ("recv", ""),
    "recv_any_source_": ("recv_anysource", ""),
    "barrier": ("barrier", "BarrierOptions"),
}
_OPTIONS = {"async_op": "asyncOp", "root_rank": "rootRank", "root_tensor": "rootTensor", "device_ids": "device_ids"}


def issued(
    name: str, backend: torch._C._distributed_c10d.Backend, args: Sequence[object]
) -> tuple[dist.Work, object] | None:
    """The real work of an op, and the outputs that the op gives besides it; None where there is no such method."""
    if name not in _METHODS:
        return None
    method, options_class = _METHODS[name]
    schema = getattr(torch.ops.c10d, name).default._schema
    values = (*args, *(argument.default_value for argument in schema.arguments[len(args) :]))
    options: Any = getattr(compat.c10d(), options_class)() if options_class else None
    data = []
    for argument, value in zip((argument.name for argument in schema.arguments), values, strict=True):
        if argument == "timeout":
            if value >= 0:
                options.timeout = timedelta(milliseconds=value)
        elif argument == "reduce_op":
            options.reduceOp = dist.ReduceOp(dist.ReduceOp.RedOpType(int(value.op())))
        elif argument in _OPTIONS:
            setattr(options, _OPTIONS[argument], value)
        elif argument not in ("process_group", "sparse_indices") and name != "barrier":
            data.append(value)
    work = getattr(backend, method)(*data, *([] if options is None else [options]))
    return work, args[0] if len(schema.returns) == 2 else None
