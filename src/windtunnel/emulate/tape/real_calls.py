"""Asking the real backend of a group, as torch's own kernels of the `c10d` ops do, but with Python's lock let go.

torch's kernels can be called from Python (`torch.library.get_kernel`), which keeps the lock. gloo's threads drop the
last reference to a tensor while they hold the lock of gloo's queue, and that takes Python's lock: a call that waits for
the queue meanwhile waits for ever. The methods of a backend let Python's lock go first.

One entry for each op of the dispatcher that has a method; arguments in the order of the op's schema.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from windtunnel.capture.torch_private import distributed as compat


def issued(name: str, backend: Any, args: Sequence[Any]) -> tuple[Any, Any] | None:
    """The real work of an op, and the outputs that the op gives besides it; None where there is no such method."""
    ask = _ASK.get(name)
    return None if ask is None else ask(backend, *args)


Made = tuple[Any, Any]


def _options(kind: str, is_async: bool, timeout_ms: int, op: Any = None, root: int | None = None) -> Any:
    options = getattr(compat.c10d(), kind)()
    options.asyncOp = is_async
    if timeout_ms >= 0:
        options.timeout = timedelta(milliseconds=timeout_ms)
    if op is not None:
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.RedOpType(int(op.op())))
    if root is not None:
        options.rootRank = root
    return options


def _allreduce(backend: Any, tensors: Any, _: Any, op: Any, sparse: Any, is_async: bool = True, ms: int = -1) -> Made:
    return backend.allreduce(tensors, _options("AllreduceOptions", is_async, ms, op)), tensors


def _allreduce_coalesced(backend: Any, tensors: Any, _: Any, op: Any, is_async: bool = True, ms: int = -1) -> Made:
    return backend.allreduce_coalesced(tensors, _options("AllreduceCoalescedOptions", is_async, ms, op)), None


def _broadcast(
    backend: Any, tensors: Any, _: Any, root: int, root_tensor: int, is_async: bool = True, ms: int = -1
) -> Made:
    options = _options("BroadcastOptions", is_async, ms, root=root)
    options.rootTensor = root_tensor
    return backend.broadcast(tensors, options), tensors


def _reduce(
    backend: Any, tensors: Any, _: Any, op: Any, root: int, root_tensor: int, is_async: bool = True, ms: int = -1
) -> Made:
    options = _options("ReduceOptions", is_async, ms, op, root)
    options.rootTensor = root_tensor
    return backend.reduce(tensors, options), None


def _allgather(backend: Any, outputs: Any, inputs: Any, _: Any, is_async: bool = True, ms: int = -1) -> Made:
    return backend.allgather(outputs, inputs, _options("AllgatherOptions", is_async, ms)), outputs


def _allgather_base(backend: Any, output: Any, given: Any, _: Any, is_async: bool = True, ms: int = -1) -> Made:
    return backend._allgather_base(output, given, _options("AllgatherOptions", is_async, ms)), output


def _allgather_coalesced(backend: Any, outputs: Any, inputs: Any, _: Any, is_async: bool = True) -> Made:
    return backend.allgather_coalesced(outputs, inputs, _options("AllgatherOptions", is_async, -1)), None


def _gather(backend: Any, outputs: Any, inputs: Any, _: Any, root: int, is_async: bool = True, ms: int = -1) -> Made:
    return backend.gather(outputs, inputs, _options("GatherOptions", is_async, ms, root=root)), None


def _scatter(backend: Any, outputs: Any, inputs: Any, _: Any, root: int, is_async: bool = True, ms: int = -1) -> Made:
    return backend.scatter(outputs, inputs, _options("ScatterOptions", is_async, ms, root=root)), outputs


def _reduce_scatter(
    backend: Any, outputs: Any, inputs: Any, _: Any, op: Any, is_async: bool = True, ms: int = -1
) -> Made:
    return backend.reduce_scatter(outputs, inputs, _options("ReduceScatterOptions", is_async, ms, op)), outputs


def _reduce_scatter_base(
    backend: Any, output: Any, given: Any, _: Any, op: Any, is_async: bool = True, ms: int = -1
) -> Made:
    return backend._reduce_scatter_base(output, given, _options("ReduceScatterOptions", is_async, ms, op)), output


def _alltoall_base(
    backend: Any, output: Any, given: Any, _: Any, receive: Any, send: Any, is_async: bool = True, ms: int = -1
) -> Made:
    return backend.alltoall_base(output, given, receive, send, _options("AllToAllOptions", is_async, ms)), None


def _alltoall(backend: Any, outputs: Any, inputs: Any, _: Any, is_async: bool = True, ms: int = -1) -> Made:
    return backend.alltoall(outputs, inputs, _options("AllToAllOptions", is_async, ms)), outputs


def _send(backend: Any, tensors: Any, _: Any, to: int, tag: int) -> Made:
    return backend.send(tensors, to, tag), None


def _recv(backend: Any, tensors: Any, _: Any, source: int, tag: int) -> Made:
    return backend.recv(tensors, source, tag), None


def _recv_any_source(backend: Any, tensors: Any, _: Any, tag: int) -> Made:
    return backend.recv_anysource(tensors, tag), None


def _barrier(backend: Any, _tensor: Any, _: Any, device_ids: Any, is_async: bool = True, ms: int = -1) -> Made:
    options = _options("BarrierOptions", is_async, ms)
    options.device_ids = list(device_ids)
    return backend.barrier(options), None


_ASK: dict[str, Callable[..., Made]] = {
    "allreduce_": _allreduce,
    "allreduce_coalesced_": _allreduce_coalesced,
    "broadcast_": _broadcast,
    "reduce_": _reduce,
    "allgather_": _allgather,
    "_allgather_base_": _allgather_base,
    "allgather_coalesced_": _allgather_coalesced,
    "gather_": _gather,
    "scatter_": _scatter,
    "reduce_scatter_": _reduce_scatter,
    "_reduce_scatter_base_": _reduce_scatter_base,
    "alltoall_base_": _alltoall_base,
    "alltoall_": _alltoall,
    "send": _send,
    "recv_": _recv,
    "recv_any_source_": _recv_any_source,
    "barrier": _barrier,
}
