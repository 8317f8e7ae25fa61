"""What is in the way of running a whole script on fake tensors, on any device, each with why. Tried on 2.13."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from windtunnel.real.capture.replacements import Replacements
from windtunnel.real.capture.torch_private.distributed import fake_tensor_class

if TYPE_CHECKING:
    from torch._ops import OpOverload
    from torch._subclasses.fake_tensor import FakeTensorMode


@contextmanager
def unrecognised_fakes() -> Iterator[None]:
    """A program that asks whether a tensor is a `FakeTensor` hears no: transformers 5 takes a yes for tracing, and then
    never looks whether a mask hides anything, nor waits for the GPU to know. PyTorch and we still read the class.
    """
    from torch._subclasses import fake_tensor as defining

    from windtunnel.real.capture.fake_tensors.control_flow import is_script

    real = fake_tensor_class()

    class FakeTensor:
        """No tensor is one."""

    def read(_module: ModuleType) -> type:
        return FakeTensor if is_script(sys._getframe(1).f_code.co_filename) else real

    watched = type("Watched", (ModuleType,), {"FakeTensor": property(read)})
    with ExitStack() as undo:
        for module in (torch._subclasses, defining):
            undo.callback(setattr, module, "__class__", type(module))
            module.__class__ = watched
        yield


@contextmanager
def eager_compile() -> Iterator[None]:
    """`torch.compile` does nothing: stance "force_eager" until exit.

    It asks its backend for settings, which loads all of Inductor for it (a second of each rank): they are what it has
    in a file of its own. It wraps it to find faults, which loads half a second more: it is left as it is. Nor is a step
    marked for CUDA graphs: PyTorch without CUDA cannot load what would note it.
    """

    from torch._dynamo import eval_frame

    def get_compiler_config(backend: torch._TorchCompileInductorWrapper) -> dict[str, object]:
        from torch._inductor import config

        with config.patch(backend.config):
            settings: dict[str, object] = config.get_config_copy()
        return settings

    lighter = (torch._TorchCompileInductorWrapper, "get_compiler_config", get_compiler_config)
    unwrapped = (eval_frame, "get_compiler_fn", lambda backend: backend)
    unmarked = (torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    with torch.compiler.set_stance("force_eager"), Replacements(lighter, unwrapped, unmarked):
        yield


@contextmanager
def uncompiled_internals() -> Iterator[None]:
    """Functions of PyTorch's own that keep the compiler out, at some microseconds a call: there is none to keep out.

    Each is wrapped when it is first called, and keeps the wrapped form as an attribute.
    """
    import torch._dynamo

    wrap, functions = torch._dynamo.disable, []

    def disable(fn: object = None, recursive: bool = True, *, reason: object = None, wrapping: bool = True) -> object:
        if wrapping or fn is None:
            return wrap(fn, recursive, reason=reason, wrapping=wrapping)
        functions.append(fn)
        return fn

    with Replacements((torch._dynamo, "disable", disable)):
        yield
        for fn in functions:
            vars(fn).pop("__dynamo_disable", None)


def numpy_of_fakes() -> Replacements:
    """`tensor.numpy()` reads values one by one through `item`, which a recorder answers: the C form wants memory."""
    import numpy as np

    fake_tensor = fake_tensor_class()

    old = torch.Tensor.numpy
    old_array = torch.Tensor.__array__

    def numpy(self: torch.Tensor, *, force: bool = False) -> Any:
        if not isinstance(self, fake_tensor):
            return old(self, force=force)
        constant = self.constant
        if constant is not None:
            return old(constant, force=force)
        number = self.detach().reshape(-1)[:1].sum().item() if self.numel() else 0
        return np.full(tuple(self.shape), number)

    def array(self: torch.Tensor, dtype: torch.dtype = None) -> object:
        if not isinstance(self, fake_tensor):
            return old_array(self, dtype)
        return numpy(self) if dtype is None else numpy(self).astype(dtype)

    return Replacements((torch.Tensor, "numpy", numpy), (torch.Tensor, "__array__", array))


def kernels_of_each_thread() -> Replacements:
    """A mode says in one place whether it is inside a kernel, where fake tensors are of no device but meta: of all
    threads, though one of the script's may compute beside the main one. Say it of each.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    name, inside = "in_kernel_invocation", threading.local()

    def of_this_thread() -> set[int]:
        if not hasattr(inside, "modes"):
            inside.modes = set()
        modes: set[int] = inside.modes
        return modes

    def read(mode: FakeTensorMode) -> bool:
        return id(mode) in of_this_thread()

    def write(mode: FakeTensorMode, value: bool) -> None:
        vars(mode)[name] = value  # which it is again afterwards
        (of_this_thread().add if value else of_this_thread().discard)(id(mode))

    return Replacements((FakeTensorMode, name, property(read, write)))


def tensors_numbered_in_turn() -> Replacements:
    """The mode numbers real tensors and storages, and keeps a fake one for each number. Threads that came at once got
    the same number for two of them, and so one tensor the other's shape.
    """
    from torch._subclasses.meta_utils import MetaTensorDescriber

    lock = threading.RLock()  # what is freed meanwhile may come back here

    def in_turn(give: Callable[[object, object], int]) -> Callable[[object, object], int]:
        def number(describer: object, thing: object) -> int:
            with lock:
                return give(describer, thing)

        return number

    names = ("get_tensor_id", "get_storage_id")
    return Replacements(*((MetaTensorDescriber, name, in_turn(getattr(MetaTensorDescriber, name))) for name in names))


def swappable_fakes() -> Replacements:
    """`module.to(...)` swaps fake parameters with converted ones, and refuses when somebody refers weakly to one.

    The fake mode itself does, in the table that gives a real tensor the same fake one twice: take swapped ones out of
    it. What the script has set on a parameter stays there, as on real ones, whose data alone is replaced: by it
    Megatron-LM knows which are sharded or shared.
    """
    fake_tensor = fake_tensor_class()
    old = torch.utils.swap_tensors

    def swap_tensors(first: torch.Tensor, other: torch.Tensor) -> None:
        for tensor in (first, other):
            if isinstance(tensor, fake_tensor):
                memo = tensor.fake_mode.fake_tensor_converter.meta_converter.tensor_memo
                for key in [getattr(reference, "key", None) for reference in weakref.getweakrefs(tensor)]:
                    if key is not None and memo.get(key) is tensor:
                        del memo[key]
        # The script made its class, or refers to it.
        as_data = type(first) is not fake_tensor or weakref.getweakrefs(first)
        if isinstance(first, fake_tensor) and isinstance(other, fake_tensor) and as_data:
            first.data = other  # as `module.to(...)` does with real ones
            return
        attributes = vars(first)
        old(first, other)
        if isinstance(first, fake_tensor) and not torch.__future__.get_swap_module_params_on_conversion():
            vars(first).update({name: value for name, value in attributes.items() if name not in vars(first)})

    return Replacements((torch.utils, "swap_tensors", swap_tensors))


def multi_tensor_optimizers() -> Replacements:
    """Optimizers and gradient norms take their multi-tensor form for the tensor classes in two private lists."""
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    name = "_foreach_supported_types"
    return Replacements(
        *((module, name, [*getattr(module, name), fake_tensor_class()]) for module in (optimizer, _foreach_utils))
    )


def collectives_as_in_a_run() -> Replacements:
    """Functional collectives and DTensor take a fake mode for tracing: they wait at once, pad, and learn nothing.

    A run waits when it reads, and looks shardings up. Each module keeps its own reference to the function that tells.
    """
    from torch.distributed import _functional_collectives

    tells = _functional_collectives._are_we_tracing

    def no() -> bool:
        return False

    of_torch = (module for name, module in list(sys.modules.items()) if name.startswith("torch.distributed"))
    return Replacements(
        *((module, "_are_we_tracing", no) for module in of_torch if vars(module).get("_are_we_tracing") is tells)
    )


@contextmanager
def gpus_of_threads(mode: FakeTensorMode) -> Iterator[None]:
    """Modes are a thread's own, so one of the script's makes real tensors, and there is no GPU to put them on: what it
    puts there is fake, as what the pool makes in which transformers loads weights (`device_map`).
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class OnGpus(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self,
            func: OpOverload,
            types: Sequence[type],
            args: Sequence[object] = (),
            kwargs: Mapping[str, object] | None = None,
        ) -> object:
            given = kwargs or {}
            device = given.get("device")
            if not isinstance(device, torch.device) or device.type != "cuda":
                return func(*args, **given)
            return mode.dispatch(func, types, args, given)

    start = threading.Thread.start

    def start_on_gpus(thread: threading.Thread) -> None:
        run = thread.run

        def run_on_gpus() -> None:
            del thread.run  # this one: its class has its own
            with OnGpus():
                run()

        thread.run = run_on_gpus  # type: ignore[method-assign]
        start(thread)

    with Replacements((threading.Thread, "start", start_on_gpus)):
        yield
