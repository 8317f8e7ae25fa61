"""The private names of PyTorch that the recorder needs, each with why. Tried on 2.13."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from windtunnel.real.capture.replacements import Context, Replacements, in_context

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch.distributed as dist
    from torch._ops import OpOverload
    from torch._subclasses.fake_tensor import FakeTensorMode

    from windtunnel.real.operator_call import Arguments, Keywords


def sequence_number() -> int:
    """How many autograd nodes this thread has made: tells which forward op a backward node comes from."""
    return int(torch._C._autograd._get_sequence_nr())


def in_backward() -> bool:
    """Whether the autograd engine is running a graph on this thread: the phase of an op."""
    return bool(torch._C._current_graph_task_id() != -1)


def running_node() -> torch.autograd.graph.Node | None:
    """The autograd node that is running, or None between nodes: its sequence number leads to the forward op."""
    return torch._C._current_autograd_node()


def on_recompute(context: Context) -> Callable[[], None]:
    """Enter `context` for every recomputation of `torch.utils.checkpoint`; returns what undoes it.

    Neither of its two forms has a hook: the non-reentrant one hands a closure to `_CheckpointFrame`, the reentrant one
    keeps the function on the context that its backward is given.
    """
    from torch.utils import checkpoint

    frame = checkpoint._CheckpointFrame
    reentrant = checkpoint.CheckpointFunction
    old_init, old_backward = frame.__init__, reentrant.backward

    def init(self: object, recompute_fn: Callable[..., object], *args: object, **kwargs: object) -> None:
        old_init(self, in_context(context, recompute_fn), *args, **kwargs)

    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: torch.Tensor) -> object:
        ctx.run_function = in_context(context, ctx.run_function)
        return old_backward(ctx, *grads)

    return Replacements((frame, "__init__", init), (reentrant, "backward", staticmethod(backward))).undo


def on_sharding_hooks(context: Context) -> Callable[[], None]:
    """Enter `context` for what FSDP2 does from hooks, which the compiler leaves out of its graphs."""
    if not torch.distributed.is_available():
        return lambda: None
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    methods = {name: getattr(FSDPParamGroup, name) for name in ("unshard", "wait_for_unshard", "post_backward")}
    return Replacements(*((FSDPParamGroup, name, in_context(context, method)) for name, method in methods.items())).undo


def watch_resize(seen: Callable[[torch.UntypedStorage, int], None]) -> Callable[[], None]:
    """Call `seen(storage, bytes)` after every `storage.resize_` from Python: no op, so no dispatch mode sees it."""
    old = torch.UntypedStorage.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        answer = old(storage, size)
        seen(storage, int(size))
        return answer

    return Replacements((torch.UntypedStorage, "resize_", resize_)).undo


def on_reads_in_threads(read: Callable[[OpOverload, torch.Tensor], object]) -> Callable[[], None]:
    """Ask `read` for what a thread of the script's reads from a fake tensor; returns the undo.

    A thread is in no mode, so the fake tensor itself answers there, and has nothing to say.
    """
    from torch._subclasses import fake_impls

    rules, read_one = fake_impls.op_implementations_dict, torch.ops.aten._local_scalar_dense.default
    rule = rules[read_one]

    def answered(mode: FakeTensorMode, func: OpOverload, tensor: torch.Tensor) -> object:
        is_main = threading.current_thread() is threading.main_thread()
        return rule(mode, func, tensor) if is_main else read(func, tensor)

    rules[read_one] = answered

    def undo() -> None:
        rules[read_one] = rule

    return undo


def desugars_first(tensor_type: type) -> bool:
    """Whether a tensor subclass turns its ops into ops on plain tensors: DTensor, AsyncCollectiveTensor, and others.

    Fake tensors are plain in this sense. Everything else with a `__torch_dispatch__` of its own goes first.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    if not issubclass(tensor_type, torch.Tensor) or issubclass(tensor_type, FakeTensor):
        return False
    own = getattr(tensor_type, "__torch_dispatch__", None)
    return own is not None and own is not torch._C._disabled_torch_dispatch_impl


def fake_mode() -> object:
    """The fake-tensor mode that is on, or None: it stands apart from the stack of other modes."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)


def around_sharding_propagation(context: object) -> Callable[[], None]:
    """Enter `context` while DTensor finds output shapes by running an op on fake tensors: no work of the script.

    The private lock that PyTorch's multi-threaded tests set is entered around exactly that.
    """
    if not torch.distributed.is_available():
        return lambda: None
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    return Replacements((ShardingPropagator, "_fake_mode_lock", context)).undo


def on_partial_taken(seen: Callable[[torch.Tensor, tuple[int, ...]], None]) -> Callable[[], None]:
    """Call `seen(tensor, ranks)` where a script takes, out of a DTensor, its part of a sum over several ranks."""
    if not torch.distributed.is_available():
        return lambda: None
    from torch.distributed.tensor import DTensor, Partial

    old: Callable[..., torch.Tensor] = DTensor.to_local

    def to_local(self: DTensor, **kwargs: object) -> torch.Tensor:
        local = old(self, **kwargs)
        for dimension, placement in enumerate(self.placements):
            # A mean over this rank's rows, or a figure of its own, is one that programs print.
            if type(placement) is Partial and placement.reduce_op == "sum" and local.dim() > 0:
                ranks = torch.distributed.get_process_group_ranks(self.device_mesh.get_group(dimension))
                if len(ranks) > 1:
                    seen(local, tuple(ranks))
        return local

    return Replacements((DTensor, "to_local", to_local)).undo


def no_dispatch_rules() -> Callable[[], None]:
    """Every dispatch to a mode or subclass asks Python for a rule registered for that op and class: there is none.

    C++ keeps the function that it asks, so its code is replaced; the first rule that is registered puts it back.
    """
    from torch._library import simple_registry

    find_rule, holder = simple_registry.find_torch_dispatch_rule, simple_registry.GenericTorchDispatchRuleHolder
    code, register = find_rule.__code__, holder.register

    def no_rule(op: object, torch_dispatch_class: object) -> None:
        return None

    def undo() -> None:
        find_rule.__code__ = code
        holder.register = register

    def registered(self: object, *args: object, **kwargs: object) -> object:
        undo()
        return register(self, *args, **kwargs)

    if not any(entry.torch_dispatch_rules._data for entry in simple_registry.singleton._data.values()):
        find_rule.__code__ = no_rule.__code__
        holder.register = registered
    return undo


def unwaited(tensor: torch.Tensor) -> torch.Tensor:
    """What functional collectives hand out: waits when it is read.

    Under a fake mode the op would make an empty tensor.
    """
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    return AsyncCollectiveTensor(tensor)


def around_reducer_integers(context: AbstractContextManager[object]) -> Callable[[], None]:
    """Enter `context` where DDP's C++ exchanges integers that it has made, and reads them raw.

    At start-up it compares the parameters' shapes among ranks; in the second iteration it lays out its buckets anew.
    Replaces whatever stood in for both.
    """
    if not torch.distributed.is_available():
        return lambda: None
    import torch.distributed as dist
    from torch._C import _distributed_c10d as native
    from torch.nn.parallel import distributed as ddp

    lay_out = getattr(dist.Reducer._rebuild_buckets, "__wrapped__", dist.Reducer._rebuild_buckets)

    def rebuild(reducer: dist.Reducer) -> object:
        with context:
            return lay_out(reducer)

    def verify(group: dist.ProcessGroup, tensors: list[torch.Tensor], logger: dist.Logger | None = None) -> object:
        with context:
            return native._verify_params_across_processes(group, tensors, logger)

    verified = (ddp, "_verify_param_shape_across_processes", verify)
    return Replacements((dist.Reducer, "_rebuild_buckets", rebuild), verified).undo


def backward_as_strided(view: torch.Tensor) -> None:
    """Have the backward pass do what it does where a view of a whole tensor was written in place.

    Autograd takes the gradient of such a view through `as_strided` of its base: it is copied into zeros
    (`as_strided_backward`, torch/csrc/autograd/FunctionsManual.cpp of 2.13). Of a subclass, as fake tensors are, it
    takes the view once more, which costs nothing. To be called once the op is over; other views of the base that
    are used after it are left as they are.
    """
    base, node = view._base, view.grad_fn
    if base is None or node is None or view.numel() != base.numel() or node.name() == "AsStridedBackward0":
        return
    shape, stride, offset = view.shape, view.stride(), view.storage_offset() - base.storage_offset()
    inner = [(size, step) for size, step in zip(shape, stride, strict=True) if size != 1]
    room = 1 + sum((size - 1) * step for size, step in zip(base.shape, base.stride(), strict=True))

    def into_zeros(gradients: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
        if gradients[0] is None:
            return gradients
        gradient = gradients[0].squeeze()
        zeros = gradient.new_zeros(room)
        zeros.as_strided([size for size, _ in inner], [step for _, step in inner], offset).copy_(gradient)
        return (zeros.as_strided(shape, stride, offset), *gradients[1:])

    node.register_prehook(into_zeros)


# ---- fake tensors, made as the fake-tensor mode makes them


_FAKE_KEY = torch._C._TorchDispatchModeKey.FAKE
_META = torch.device("meta")
_unset, _reset = torch._C._unset_dispatch_mode, torch._C._set_dispatch_mode


class set_aside:  # noqa: N801 - a context, entered for every op: cheaper as a class than as a generator
    """As the dispatcher does while it asks the fake-tensor mode: the mode is off inside."""

    __slots__ = ("_mode",)

    def __init__(self, mode: object) -> None:
        self._mode = mode

    def __enter__(self) -> None:
        _unset(_FAKE_KEY)

    def __exit__(self, *_: object) -> None:
        _reset(self._mode)


def keep_no_calls(mode: FakeTensorMode) -> None:
    """Turn off PyTorch's own cache of calls: to find a key and to make an entry takes a third of a call that is new."""
    mode.cache_enabled = False


def may_be_cached(mode: FakeTensorMode, func: OpOverload, args: Arguments, kwargs: Keywords) -> bool:
    """Whether PyTorch's own cache would keep this call: not one whose output depends on data,
    or that changes metadata.
    """
    from torch._subclasses.fake_tensor import _BypassDispatchCache

    if func is torch.ops.aten._unsafe_view.default:  # kept out there only because it hides that it is a view
        return True
    if func.namespace == "_c10d_functional":  # kept out as all that is not ATen: shapes follow from shapes here too
        return not func._schema.is_mutable
    try:
        mode._validate_cache_key(func, args, kwargs)
    except _BypassDispatchCache:
        return False
    return True


def attributes_of_a_fake(fake: torch.Tensor) -> dict[str, object]:
    """What every fake tensor of a mode and a device carries."""
    attributes = {name: value if name in ("fake_mode", "_fake_device") else None for name, value in vars(fake).items()}
    return {name: value for name, value in attributes.items() if name != "_is_param"}


_empty_strided = torch._C._VariableFunctions.empty_strided  # as torch.empty_strided, without a Python frame
_set = torch._C.TensorBase.set_
_make_subclass = torch._C.TensorBase._make_subclass
_no_data_pointer = torch._C._set_throw_on_mutable_data_ptr
storage_address = torch._C._storage_address  # `untyped_storage()._cdata`, without making the Python half


def meta_tensor(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of that shape without memory."""
    return _empty_strided(shape, stride, dtype=dtype, device=_META)


def meta_view(
    storage: torch.UntypedStorage, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
) -> object:
    """One on a storage that is there."""
    return _set(_empty_strided((0,), (1,), dtype=dtype, device=_META), storage, offset, shape, stride)


def made_fake(
    fake: torch.Tensor, element: torch.Tensor, device: torch.device, attributes: dict[str, object]
) -> torch.Tensor:
    """As `FakeTensor.__new__`, for one of whom all is known; `attributes` name its device too."""
    tensor = _make_subclass(fake, element, False, dispatch_device=True, device_for_backend_keys=device)
    _no_data_pointer(tensor)
    tensor.__dict__.update(attributes)
    return tensor
