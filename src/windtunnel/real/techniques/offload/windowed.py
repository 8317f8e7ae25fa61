"""STRONGHOLD's working window in PyTorch: hooks on the layers of a module, the same arithmetic, less device memory.

The last w layers, and all that is no layer, stay on the device. The others live on the host:

    before forward i    wait until i is here; ask for i + w          after forward i     i goes
    before backward i   wait until i is here; ask for i - w          after backward i    gradients to the host, where
                                                                     *this layer* is updated in a worker; i goes

A fetch waits for the update of its layer, so all is bit-equal. A parameter that several layers share, or a layer and
the rest, stays on the device. With `process_group` each layer's gradients are averaged on the device behind its
backward pass.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypedDict
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import nn

from windtunnel.errors import SpecError
from windtunnel.real.techniques.hooking import begin_alike
from windtunnel.real.techniques.offload.arena import Arena, HostedLayer, Link, device_bytes_of, tensors_in

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


MakeOptimizer = Callable[[list[torch.Tensor]], torch.optim.Optimizer]
KEPT = 10_000
AWAY: WeakSet[nn.Module] = WeakSet()  # layers that some window has taken


class WindowState(TypedDict):
    """A window of a model, to be gone on from."""

    model: dict[str, torch.Tensor]
    layers: list[Mapping[str, object] | None]  # of each layer's optimizer
    rest: Mapping[str, object] | None  # of the optimizer of what stays


class LayerWindow:
    """The hooks and what they keep. `arena.peak`: most bytes of state on the device at once."""

    def __init__(
        self, model: nn.Module, layers: list[nn.Module], optimizer: MakeOptimizer, window: int, updaters: int,
        link_bytes_per_s: float | None, process_group: dist.ProcessGroup | None = None,
    ) -> None:  # fmt: skip
        self.model, self.window, self.arena, self.group = model, window, Arena(), process_group
        if process_group is not None:
            begin_alike(model, process_group)
        self.away = len(layers) - window
        down, up = Link(link_bytes_per_s), Link(link_bytes_per_s)
        own = owned(model, layers)
        self.hosted = [
            HostedLayer(layer, parameters, self.arena, down, up)
            for layer, parameters in zip(layers[: self.away], own[: self.away], strict=True)
        ]
        hosted = {id(parameter) for layer in self.hosted for parameter in layer.parameters}
        self.rest = [p for p in model.parameters() if id(p) not in hosted and p.requires_grad]
        self.arena.take(sum(p.nbytes for p in model.parameters() if id(p) not in hosted))
        taught = [[p for p in layer.host if p.requires_grad] for layer in self.hosted]
        self.optimizers = [optimizer(each) if each else None for each in taught]  # a frozen layer has none
        self.rest_optimizer = optimizer(list(self.rest)) if self.rest else None
        self._fetches = ThreadPoolExecutor(1, "fetch")
        self._outs = ThreadPoolExecutor(1, "gradients")
        self._updates = ThreadPoolExecutor(updaters, "update")
        self._coming: dict[int, Future[None]] = {}
        self._updating: dict[int, Future[None]] = {}
        self._leaving: dict[int, Future[None]] = {}
        self._left = [0] * self.away
        self._open: set[int] = set()  # layers whose backward has begun and not ended
        self._accumulating, self._pending_add = False, [False] * self.away
        self._rest_state = 0
        self._half_done = False  # layers that are away have been updated, and `step` has not been called
        self.events: deque[tuple[str, int]] = deque(maxlen=KEPT)  # the newest: what became of which layer
        self._lock = threading.Lock()
        self._handles = [self._hook(number, layer) for number, layer in enumerate(self.hosted)]
        self._handles.append([model.register_forward_pre_hook(lambda module, args: self._new_pass())])
        model._ddp_params_and_buffers_to_ignore = _NoDDP()
        for layer in self.hosted:
            AWAY.add(layer.layer)
            layer.drop()
        self.arena.peak = self.arena.now
        for number in range(min(self.window, self.away)):
            self._ask(number)

    def _hook(self, number: int, hosted: HostedLayer) -> list[RemovableHandle]:
        taught = [parameter for parameter in hosted.parameters if parameter.requires_grad]
        self._left[number] = len(taught)

        def accumulated(_: torch.Tensor) -> None:
            self._left[number] -= 1
            if self._left[number] == 0:
                self._after_backward(number)

        def refuse(*_: object) -> None:  # memory that has been given back would be read or written
            raise RuntimeError(
                "parameters of this model are on the host: use the window's state_dict(), load_state_dict() or"
                " whole_parameters(), or close() it first"
            )

        return [
            hosted.layer.register_state_dict_pre_hook(refuse),
            hosted.layer.register_load_state_dict_pre_hook(refuse),
            hosted.layer.register_forward_pre_hook(lambda module, args: self._before_forward(number)),
            hosted.layer.register_forward_hook(lambda module, args, out: self._after_forward(number, out)),
            *(parameter.register_post_accumulate_grad_hook(accumulated) for parameter in taught),
        ]

    def _ask(self, number: int) -> None:
        if not 0 <= number < self.away or number in self._coming:
            return
        hosted, update = self.hosted[number], self._updating.get(number)
        self.arena.take(hosted.bytes)  # from now on there must be room for it

        def fetch() -> None:
            if update is not None:
                update.result()
            hosted.fetch()
            self._note("here", number)

        self._coming[number] = self._fetches.submit(fetch)

    def _note(self, what: str, number: int) -> None:
        with self._lock:
            self.events.append((what, number))

    def _go(self, number: int) -> None:
        self._coming.pop(number)
        self.hosted[number].drop()
        self._note("gone", number)

    def _new_pass(self) -> None:
        """Raises RuntimeError where the step before was left in the middle: by an exception, or without `step`."""
        if self._half_done and torch.is_grad_enabled():
            raise RuntimeError(
                "a backward pass has updated layers and step() was not called: wrap all backward passes of a step but"
                " the last in accumulate(); behind one that raised, load a checkpoint, as some layers are a step ahead"
            )

    def _before_forward(self, number: int) -> None:
        self._finish_open()
        self._ask(number)
        self._coming[number].result()
        self._note("forward", number)
        self._ask(number + self.window)

    def _after_forward(self, number: int, out: object) -> None:
        taught = next((tensor for tensor in tensors_in(out) if tensor.requires_grad), None)
        if torch.is_grad_enabled() and taught is not None:
            taught.register_hook(lambda gradient: self._before_backward(number))
        self._go(number)
        if number == self.away - 1 and torch.is_grad_enabled():
            for ahead in range(min(self.window, self.away)):
                self._ask(number - ahead)

    def _before_backward(self, number: int) -> None:
        self._open.add(number)
        self._ask(number)
        self._coming[number].result()
        self._note("backward", number)
        if number + 2 in self._leaving:  # no more than two layers' gradients at once
            self._leaving.pop(number + 2).result()
        self.arena.take(self.hosted[number].gradient_bytes)
        self._ask(number - self.window)

    def _after_backward(self, number: int) -> None:
        hosted = self.hosted[number]
        gradients = [parameter.grad for parameter in hosted.parameters]
        for parameter in hosted.parameters:
            parameter.grad = None
        self._left[number] = sum(parameter.requires_grad for parameter in hosted.parameters)
        self._open.discard(number)
        add, last = self._pending_add[number], not self._accumulating
        before = self._updating.get(number)
        if last and self.group is not None:
            if add:  # what earlier micro-batches left is averaged with it
                assert before is not None, "an earlier micro-batch left gradients"
                before.result()
                hosted.add_left(gradients)
            taught = zip(hosted.parameters, gradients, strict=True)
            _average([gradient for parameter, gradient in taught if parameter.requires_grad], self.group)
            add = False
        out = self._leaving[number] = self._outs.submit(self._out, number, gradients, add, before)
        self._pending_add[number] = not last
        self._updating[number] = self._updates.submit(self._update, number, out) if last else out
        self._half_done |= last
        self._go(number)
        if number < self.window:
            self._ask(number)

    def _out(
        self, number: int, gradients: list[torch.Tensor | None], add: bool, before: Future[None] | None
    ) -> None:  # fmt: skip
        if before is not None:
            before.result()
        self.hosted[number].gradients_out(gradients, add=add)
        self.arena.take(-self.hosted[number].gradient_bytes)

    def _update(self, number: int, out: Future[None]) -> None:
        out.result()
        layer_optimizer = self.optimizers[number]
        if layer_optimizer is not None:
            layer_optimizer.step()
            layer_optimizer.zero_grad()

    def _finish_open(self) -> None:
        """Layers of which some parameter got no gradient: their backward is over all the same."""
        for number in sorted(self._open, reverse=True):
            self._after_backward(number)

    def step(self) -> None:
        """End of a step: what is on the device is updated here; the layers that are away are updated already."""
        self._finish_open()
        self._half_done = False
        self._raise_failures(wait=False)
        if self.rest_optimizer is not None:
            if self.group is not None:
                _average([p.grad for p in self.rest], self.group)
            gradients = sum(p.grad.nbytes for p in self.rest if p.grad is not None)
            self.arena.take(gradients)
            self.rest_optimizer.step()
            state = device_bytes_of(self.rest_optimizer)
            self.arena.take(state - self._rest_state)
            self._rest_state = state
            self.rest_optimizer.zero_grad()
            self.arena.take(-gradients)

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Backward passes inside add up gradients and update nothing (`no_sync` of DistributedDataParallel)."""
        self._accumulating = True
        try:
            yield
        finally:
            self._finish_open()
            self._accumulating = False

    def wait(self) -> None:
        """Until all updates and copies have ended. Raises what one of them raised."""
        self._finish_open()
        self._raise_failures(wait=True)

    def _raise_failures(self, *, wait: bool) -> None:
        for future in (*self._updating.values(), *self._coming.values()):
            if wait or future.done():
                future.result()

    def state_dict(self) -> WindowState:
        """Parameters as a plain run would have them, and all optimizers' state."""
        self.wait()
        return {
            "model": self.whole_parameters(),
            "layers": [optimizer and optimizer.state_dict() for optimizer in self.optimizers],
            "rest": self.rest_optimizer.state_dict() if self.rest_optimizer is not None else None,
        }

    def load_state_dict(self, state_dict: WindowState) -> None:
        """Go on from a `state_dict` of the same model and window. Raises SpecError for another window."""
        if len(state_dict["layers"]) != len(self.optimizers):
            raise SpecError(
                "window", self.window, f"the state has {len(state_dict['layers'])} layers away from the device"
            )
        self.wait()
        self._half_done = False
        for number in list(self._coming):
            self._go(number)
        self._updating.clear()
        hosted = self._on_host()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                hosted.get(id(parameter), parameter).copy_(state_dict["model"][name])
        for optimizer, state in zip(self.optimizers, state_dict["layers"], strict=True):
            if optimizer is not None:
                optimizer.load_state_dict(state)
        if self.rest_optimizer is not None:
            self.rest_optimizer.load_state_dict(state_dict["rest"])
        for number in range(min(self.window, self.away)):
            self._ask(number)

    def _on_host(self) -> dict[int, torch.Tensor]:
        """What stands on the host for a parameter, by its identity."""
        return {id(p): there for layer in self.hosted for p, there in zip(layer.parameters, layer.host, strict=True)}

    def whole_parameters(self) -> dict[str, torch.Tensor]:
        """Every parameter by name, those of the host from there; copies."""
        self.wait()
        hosted = self._on_host()
        return {
            name: hosted.get(id(parameter), parameter).detach().clone()
            for name, parameter in self.model.named_parameters()
        }

    def close(self) -> None:
        """Bring every layer back to the device for good and take the hooks off."""
        self.wait()
        for handles in self._handles:
            for handle in handles:
                handle.remove()
        for number, hosted in enumerate(self.hosted):
            self._ask(number)
            self._coming[number].result()
            assert hosted.here, "just fetched"
            AWAY.discard(hosted.layer)
        del self.model._ddp_params_and_buffers_to_ignore
        for pool in (self._fetches, self._outs, self._updates):
            pool.shutdown()


def owned(model: nn.Module, layers: Sequence[nn.Module]) -> list[list[nn.Parameter]]:
    """Parameters of each layer that nothing else holds."""
    holders: dict[int, int] = {}
    inside: set[int] = set()
    for layer in layers:
        for parameter in layer.parameters():
            holders[id(parameter)] = holders.get(id(parameter), 0) + 1
        inside |= {id(module) for module in layer.modules()}
    outside = {
        id(parameter)
        for module in model.modules()
        if id(module) not in inside
        for parameter in module.parameters(recurse=False)
    }
    return [[p for p in layer.parameters() if holders[id(p)] == 1 and id(p) not in outside] for layer in layers]


class _NoDDP(list[str]):
    """What DistributedDataParallel reads first of a module: it would go on to read parameters that are not there."""

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError(
            "parameters of this model are on the host: give offload.apply the ranks as process_group in place of"
            " DistributedDataParallel"
        )


def _average(gradients: Sequence[torch.Tensor | None], group: dist.ProcessGroup) -> None:
    """The mean over ranks in place, as DistributedDataParallel takes it: shares first, then one sum."""
    there = [gradient for gradient in gradients if gradient is not None]
    if len(there) < len(gradients):
        raise RuntimeError(
            "a parameter got no gradient: with process_group each needs one on every rank; freeze it"
            " (requires_grad_(False)) where it is not used"
        )
    share = 1.0 / group.size()
    works = [dist.all_reduce(gradient.mul_(share), group=group, async_op=True) for gradient in there]
    for work in works:
        work.wait()
