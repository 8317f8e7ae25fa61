"""Where in the model an op belongs: module, phase, micro-batch, and whether it is done a second time.

Forward: a stack kept by PyTorch's global forward hooks. Backward: an op carries the place of the forward op whose
autograd node is running. Nodes are known by their sequence number, and every node made since the last look belongs to
the place we are in; that holds for `backward()`, for `autograd.grad` of zero-bubble schedules, and for hooks.

A compiled region is one call of what `torch.compile` gave, with the nodes of the backward pass that it made; what FSDP
does in its hooks meanwhile is outside.

A micro-batch is one forward of a root module (one with parameters, called from no other module) within the step: each
root counts its own, so that several pipeline stages on one rank number the same chunks alike.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from windtunnel.real.capture.torch_private import compile as compiler
from windtunnel.real.capture.torch_private import recorder as compat

_WRAPPERS = ("_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_orig_mod")
_OUTER = ("DistributedDataParallel", "FullyShardedDataParallel", "OptimizedModule")


class Place(NamedTuple):
    """The place of an op in the model."""

    module: str
    phase: str
    micro_batch: int
    recompute: bool
    stream: int = 0
    compiled: int = 0  # number of the compiled region; 0: none


class Whereabouts:
    """Follows the script through its model;
    `on_forward` is called before a root module's forward that will be trained on.
    """

    def __init__(self, on_forward: Callable[[], None]) -> None:
        self.optimizers = 0  # depth of optimizer steps
        self.steps_in_backward = False  # the optimizer steps while gradients come, not the other way round (a closure)
        self.roots: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self.stream: Callable[[], int] = lambda: 0
        self.on_module: Callable[[torch.nn.Module], None] = lambda module: None  # has run
        self._on_forward = on_forward
        self._stack: list[str] = []
        self._names: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._forwards: dict[int, int] = {}  # root -> how many in this step
        self._micro_batch = 0
        self._by_node: dict[int, Place] = {}
        self._nodes_seen = 0
        self._backward = Place("", "backward", 0, False)
        self._forward = Place("", "forward", 0, False)
        self._recomputing = 0
        self.compiles = False  # there was a compiled region
        self._regions = 0  # of this step
        self._compiled = 0  # the one that Python is in
        self._compiled_depth = self._hooks_depth = 0
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Whereabouts:
        self._nodes_seen = compat.sequence_number()
        for handle in (
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ):
            self._undo.append(handle.remove)
        self._undo.append(compat.on_recompute(self._recomputation))
        if compat.fake_mode() is not None:  # a real run is compiled, and its ops are not seen one by one
            self._undo.append(compiler.on_compiled(self.one_graph))
            self._undo.append(compat.on_sharding_hooks(self._in_hooks))
            self._undo.append(compiler.on_disabled(self._kept_out))
            self._undo.append(compiler.on_graph_break(self.graph_breaks))
        return self

    def __exit__(self, *_: object) -> None:
        while self._undo:
            self._undo.pop()()
        self._by_node.clear()
        self._stack.clear()

    # ---- the model

    def _enter_module(self, module: torch.nn.Module, _inputs: object) -> None:
        in_backward = compat.in_backward()
        self._remember_nodes()
        if not self._stack and not in_backward:
            self._root(module)
        name = self._names.get(module)
        if name is None:
            name = self._names[module] = type(module).__name__
        self._stack.append(name)
        self._forward = Place(name, "forward", self._micro_batch, False, self.stream(), self._compiled)

    def _leave_module(self, module: torch.nn.Module, _inputs: object, _output: object) -> None:
        self._remember_nodes()
        self.on_module(module)
        if self._stack:
            self._stack.pop()
        self._forward = Place(
            self._stack[-1] if self._stack else "", "forward", self._micro_batch, False, self.stream(), self._compiled
        )

    def _root(self, module: torch.nn.Module) -> None:
        if module not in self.roots:
            self.roots.add(module)
            outer = type(module).__name__ in _OUTER
            for name, child in module.named_modules():
                self._names[child] = _cleaned(name.removeprefix("module.") if outer else name, child)
        if not torch.is_grad_enabled() or next(module.parameters(), None) is None:
            return
        self._on_forward()
        count = self._forwards.get(id(module), 0)
        self._forwards[id(module)] = count + 1
        self._micro_batch = count

    def name_of(self, module: torch.nn.Module) -> str:
        """The name of a module, as its ops carry it."""
        return self._names.get(module, type(module).__name__)

    # ---- recomputation

    @contextmanager
    def _recomputation(self) -> Iterator[None]:
        self._recomputing += 1
        try:
            yield
        finally:
            self._recomputing -= 1

    # ---- compiled regions

    @contextmanager
    def one_graph(self) -> Iterator[None]:
        """What runs within is compiled together, whoever calls it."""
        self._compiled_depth += 1
        if self._compiled_depth == 1:
            self.compiles = True
            self._regions += 1
            self._compiled_is(self._regions)
        try:
            yield
        finally:
            self._compiled_depth -= 1
            if not self._compiled_depth:
                self._compiled_is(0)

    def graph_breaks(self) -> None:
        """What runs next cannot be of the same graph; the backward graphs are cut where the forward ones are."""
        if self._compiled and not self._hooks_depth and not compat.in_backward():
            self._regions += 1
            self._compiled_is(self._regions)

    @contextmanager
    def _kept_out(self) -> Iterator[None]:
        """What `torch.compiler.disable` keeps out of graphs."""
        depth, region = self._compiled_depth, self._compiled
        self._compiled_depth = 0
        if region:
            self._compiled_is(0)
        try:
            yield
        finally:
            self._compiled_depth = depth
            if region:
                self._compiled_is(region)
                self.graph_breaks()

    def _compiled_is(self, number: int) -> None:
        self._remember_nodes()
        self._compiled = number
        self._forward = self._forward._replace(compiled=number)

    @contextmanager
    def _in_hooks(self) -> Iterator[None]:
        self._hooks_depth += 1
        try:
            yield
        finally:
            self._hooks_depth -= 1

    # ---- ops

    def place_of(self, inputs: Iterable[torch.Tensor]) -> Place:
        """The place of the op that runs now and takes `inputs`."""
        place = self._here(inputs)
        return place._replace(compiled=0) if self._hooks_depth else place

    def _here(self, inputs: Iterable[torch.Tensor]) -> Place:
        if compat.in_backward():
            return self._in_backward()
        if compat.sequence_number() != self._nodes_seen:
            self._remember_nodes()
        if self._stack:
            return self._forward
        if self.optimizers and not torch.is_grad_enabled():  # with gradients: its closure
            return Place("", "optimizer", self._micro_batch, False, compiled=self._compiled)
        if torch.is_grad_enabled():
            for tensor in inputs:
                if tensor.requires_grad:
                    return self._forward
        return Place("", "other", self._micro_batch, False, compiled=self._compiled)

    def _in_backward(self) -> Place:
        if self.optimizers and self.steps_in_backward:
            return Place("", "optimizer", self._backward.micro_batch, False)
        node = compat.running_node()
        if node is not None:
            place = self._by_node.get(node._sequence_nr())
            if place is not None:
                self._backward = place._replace(phase="backward", recompute=False)
        again = self._stack or self._recomputing
        if not again:
            return self._backward
        module = self._stack[-1] if self._stack else self._backward.module
        place = self._backward._replace(module=module, recompute=True)
        if self._compiled:  # the forward graph is run again, not the part of the backward graph that recomputes
            place = place._replace(compiled=self._compiled)
        if compat.sequence_number() != self._nodes_seen:
            self._fill(place._replace(phase="forward", recompute=False))
        return place

    def _remember_nodes(self) -> None:
        if compat.in_backward():
            module = self._stack[-1] if self._stack else self._backward.module
            compiled = self._compiled or self._backward.compiled
            self._fill(self._backward._replace(module=module, phase="forward", recompute=False, compiled=compiled))
        else:
            self._fill(self._forward)

    def _fill(self, place: Place) -> None:
        now = compat.sequence_number()
        for number in range(self._nodes_seen, now):
            self._by_node[number] = place
        self._nodes_seen = now

    def optimizer_stepped(self) -> None:
        """What follows, up to the next forward pass, is of the first micro-batch of the next step."""
        self._micro_batch = 0

    def begin_step(self) -> None:
        """Micro-batches are counted anew; nodes of earlier steps are over."""
        self._forwards.clear()
        self._micro_batch = 0
        self._by_node.clear()
        self._nodes_seen = compat.sequence_number()
        self._regions = self._compiled
        module = self._stack[-1] if self._stack else ""
        self._forward = Place(module, "forward", 0, False, self.stream(), self._compiled)


def _cleaned(name: str, module: torch.nn.Module) -> str:
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    return ".".join(parts) or type(module).__name__
