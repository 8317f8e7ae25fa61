"""Triton kernels that a program launches itself: they need a driver, and tensors with data.

A launch on fake tensors is written down as one op that reads and writes the tensors it is given, and is not run. Its
bytes are a bound from above: a kernel may touch less. `triton.runtime.jit.JITFunction.run` and
`.autotuner.Autotuner.run` are what `kernel[grid](...)` ends in; private, tried on Triton 3.8.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from windtunnel.real.capture.replacements import Replacements

if TYPE_CHECKING:
    from windtunnel.real.operator_call import Arguments, Keywords

_OP = "triton_kernel"


@contextmanager
def kernel_op() -> Iterator[Callable[[str, Sequence[object]], None]]:
    """`launch(name, tensors)` records a kernel of that name as `windtunnel.triton_kernel`, until exit."""
    import torch

    library = torch.library.Library("windtunnel", "FRAGMENT")
    try:
        library.define(f"{_OP}(str name, Tensor(a!)[] tensors) -> ()")
        library.impl(_OP, lambda name, tensors: None, "CompositeExplicitAutograd")
        library.impl(_OP, lambda name, tensors: None, "Meta")
        op = getattr(torch.ops.windtunnel, _OP).default

        def launch(name: str, tensors: Sequence[object]) -> None:
            with torch.no_grad():
                op(name, list(tensors))

        yield launch
    finally:
        library._destroy()  # private: otherwise it goes when it is collected


@contextmanager
def triton_kernels_in_one_op(
    launch: Callable[[str, Sequence[object]], None], note: Callable[[str], None]
) -> Iterator[None]:
    """Launches on fake tensors go to `launch` until exit, and `note` is told of each."""
    if sys.platform != "linux" or find_spec("triton") is None:
        yield
        return
    from torch._subclasses.fake_tensor import FakeTensor
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    with ExitStack() as stack:
        run, tuned = JITFunction.run, Autotuner.run

        def kernel_name(self: object) -> str:
            return str(getattr(getattr(self, "fn", self), "__name__", "kernel"))

        def records_launch(self: object, args: Arguments, kwargs: Keywords) -> bool:
            tensors = [argument for argument in (*args, *kwargs.values()) if isinstance(argument, FakeTensor)]
            if not tensors:
                return False
            launch(kernel_name(self), tensors)
            note(f"the Triton kernel {kernel_name(self)} was not run: priced by the bytes of its tensors")
            return True

        def run_of_kernel(self: object, *args: object, **kwargs: object) -> object:
            return None if records_launch(self, args, kwargs) else run(self, *args, **kwargs)

        def run_of_tuner(self: object, *args: object, **kwargs: object) -> object:
            return None if records_launch(self, args, kwargs) else tuned(self, *args, **kwargs)

        patches = Replacements()
        stack.callback(patches.undo)
        patches.set(JITFunction, "run", run_of_kernel)
        patches.set(Autotuner, "run", run_of_tuner)
        yield
