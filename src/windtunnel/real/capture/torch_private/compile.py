"""The private names of PyTorch that say how its compiler would cut and change graphs, each with why. Tried on 2.13."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from windtunnel.real.capture.replacements import Context, Replacements, in_context

if TYPE_CHECKING:
    from torch._dynamo.eval_frame import DisableContext, OptimizeContext


def reading_breaks() -> bool:
    """Whether Python's reading of a tensor ends a graph: the compiler's settings may make the value part of it."""
    config = sys.modules.get("torch._dynamo.config")
    return config is None or not config.capture_scalar_outputs


def shapes_break() -> bool:
    """The same of an op whose shape follows from data."""
    config = sys.modules.get("torch._dynamo.config")
    return config is None or not config.capture_dynamic_output_shape_ops


def on_compiled(context: Context) -> Callable[[], None]:
    """Enter `context` for every call of what `torch.compile` makes from now on for its own backend.

    Every form of it, modules included, ends in `OptimizeContext.__call__` with a function, and gives the compiled one.
    """
    import torch
    from torch._dynamo.eval_frame import OptimizeContext, innermost_backend

    def is_compiled(context: OptimizeContext, function: object, result: object) -> bool:
        compiler = getattr(innermost_backend(context.callback), "compiler_name", "")
        return compiler == "inductor" and not isinstance(function, torch.nn.Module | type)

    return _around_made(OptimizeContext, is_compiled, context)


def on_disabled(context: Context) -> Callable[[], None]:
    """Enter `context` for what `torch.compiler.disable` keeps out of graphs from now on; returns the undo.

    Every form of it ends in `DisableContext.__call__`; with `wrapping` where it is not PyTorch's own, which the
    compiler knows by other rules.
    """
    from torch._dynamo.eval_frame import DisableContext

    def is_disabled(context: DisableContext, function: object, result: object) -> bool:
        if not context.wrapping or isinstance(function, type) or not callable(result):
            return False
        return not hasattr(result, "_orig_mod")  # a module keeps its type

    return _around_made(DisableContext, is_disabled, context)


def _around_made(
    made_by: type[OptimizeContext] | type[DisableContext],
    wanted: Callable[[object, object, object], bool],
    context: Context,
) -> Callable[[], None]:
    """Enter `context` for calls of what `made_by` makes of functions, where (self, function, made) is `wanted`."""
    old = made_by.__call__

    def called(self: object, function: object) -> object:
        result = old(self, function)
        return in_context(context, result) if wanted(self, function, result) else result

    return Replacements((made_by, "__call__", called)).undo


def on_graph_break(happens: Callable[[], None]) -> Callable[[], None]:
    """Call `happens` when the script asks for the end of a graph, which does nothing by itself; returns the undo."""
    import torch._dynamo

    old = torch._dynamo.graph_break

    def graph_break(*args: object, **kwargs: object) -> None:
        happens()
        old(*args, **kwargs)

    return Replacements((torch._dynamo, "graph_break", graph_break)).undo


def micro_pipelined_groups() -> list[str]:
    """Names of the groups with symmetric memory, if Inductor is told to take their collectives apart (async TP)."""
    config = sys.modules.get("torch._inductor.config")
    symmetric = sys.modules.get("torch.distributed._symmetric_memory")
    if config is None or symmetric is None or not config._micro_pipeline_tp:
        return []
    return sorted(str(name) for name in symmetric._group_name_to_store)


def unfused_exchange(short: str) -> Callable[..., object]:
    """A fused op of `symm_mem` as the collective and the products that it is made of: what it runs where it is tested.

    They say what tensors come of it; the op itself has kernels for GPUs only.
    """
    from torch.distributed import _symmetric_memory

    fallback: Callable[..., object] = getattr(_symmetric_memory, f"_{short}_fallback")
    return fallback
