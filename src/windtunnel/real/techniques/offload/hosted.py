"""A window of layers on the device for the user's own loop: all parameters are on the host, copies come and go.

    before forward i    copies of i are there; those of i + w are asked for     after   they go
    before backward i   they are there again                                    after   they go; i - w - 1 is asked for

While a layer computes, copies stand in the place of its parameters: made by an autograd function whose backward
carries the gradient to the host, where autograd adds it up as always. What is in no layer, or in several, comes with
the forward pass and goes after the backward pass. Storages are emptied in place, since what autograd saved (views
such as `weight.t()`) still points at them, and are filled again through tensors that autograd does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn

from windtunnel.errors import SpecError
from windtunnel.real.techniques.offload.arena import Arena, Link, tensors_in

Hook = Callable[..., None]
WINDOWS: WeakKeyDictionary[nn.Module, HostedModel] = WeakKeyDictionary()


@dataclass(eq=False)
class _Copies:
    """Copies of one unit for one forward pass: storages, no tensors, or autograd's graph would keep itself alive."""

    unit: _Unit
    storages: list[torch.UntypedStorage]
    coming: Future[None] | None = None
    left: int = 0  # gradients that the backward pass has still to give: of parameters, and of what went in
    here: bool = False

    def ask(self) -> None:
        """Room is taken at once, and filled by the thread that copies."""
        if not self.here:
            self.here = True
            self.unit.window.arena.take(self.unit.bytes)
            self.coming = self.unit.window.fetches.submit(self.unit.fill, self.storages)

    def wait(self) -> None:
        """Until they are there."""
        self.ask()
        assert self.coming is not None, "just asked for"
        self.coming.result()

    def drop(self) -> None:
        """Give the room back."""
        if self.here:
            self.wait()
            if self.unit.window.stream is not None:  # kernels that read them are on the current stream
                torch.cuda.current_stream().synchronize()
            for storage in self.storages:
                storage.resize_(0)
            self.here = False
            self.unit.window.arena.take(-self.unit.bytes)

    def arrived(self) -> None:
        """One gradient more; with the last, nothing will read the copies."""
        self.left -= 1
        if self.left == 0:
            self.unit.over(self)

    def __del__(self) -> None:
        self.drop()  # a forward pass without a backward one


class _CopyToDevice(torch.autograd.Function):  # type: ignore[misc]
    """A parameter of the host -> its copy on the device; the gradient back."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, parameter: torch.Tensor, copies: _Copies, number: int
    ) -> torch.Tensor:
        """That of the unit's parameter of this number, which is there."""
        ctx.copies, ctx.host = copies, parameter.device
        return copies.unit.tensor(number, copies.storages[number])

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """To the host."""
        arena, size = ctx.copies.unit.window.arena, gradient.nbytes
        arena.take(size)
        out = gradient.to(ctx.host)
        arena.take(-size)
        ctx.copies.arrived()
        return out, None, None


@dataclass(eq=False)
class _Unit:
    """A layer, or all that is in none: its parameters, and where they stand in modules."""

    window: HostedModel
    number: int  # of the layer; -1 of what is in none
    parameters: list[nn.Parameter]
    places: list[tuple[nn.Module, str, int]] = field(default_factory=list)  # module, name, number of the parameter
    ahead: _Copies | None = None  # asked for before its turn
    entered: list[_Copies] = field(default_factory=list)  # of forward passes under way
    _came: list[ref[_Copies]] = field(default_factory=list)  # of those over, while autograd's graph holds them
    _again: list[_Copies] = field(default_factory=list)  # of those within a backward pass

    def __post_init__(self) -> None:
        self.bytes = sum(p.nbytes for p in self.parameters)

    def waiting_passes(self) -> list[_Copies]:
        """Of forward passes that have not come back, newest last; those of one that failed went with its graph."""
        there = [copies for came in self._came if (copies := came()) is not None]
        self._came = [ref(copies) for copies in there]
        return there

    def keep(self, copies: _Copies) -> None:
        """Until the backward pass; what it recomputes itself is in no graph."""
        if _in_backward():
            self._again.append(copies)
        else:
            self._came.append(ref(copies))

    def end(self, copies: _Copies | None = None) -> None:
        """The backward pass is over for these, or for all."""
        there = self.waiting_passes()
        ended = [each for each in there if copies in (None, each)]
        self._came = [ref(each) for each in there if each not in ended]
        for each in (*ended, *self._again):
            each.drop()
        self._again.clear()

    def ask(self) -> _Copies:
        """Copies for the next forward pass."""
        if self.ahead is None:
            self.ahead = _Copies(self, [torch.UntypedStorage(0, device=self.window.device) for _ in self.parameters])
            self.ahead.ask()
        return self.ahead

    def fill(self, storages: Sequence[torch.UntypedStorage]) -> None:
        """Copy from the host."""

        def copy() -> None:
            with torch.no_grad():
                for number, (parameter, storage) in enumerate(zip(self.parameters, storages, strict=True)):
                    storage.resize_(parameter.nbytes)
                    self.tensor(number, storage).copy_(parameter.detach(), non_blocking=True)

        stream = self.window.stream
        with torch.cuda.stream(stream):  # does nothing for None
            self.window.link.carry(copy, self.bytes)
        if stream is not None:
            stream.synchronize()

    def tensor(self, number: int, storage: torch.UntypedStorage) -> torch.Tensor:
        """A parameter's copy in this storage."""
        parameter = self.parameters[number]
        empty = torch.empty(0, dtype=parameter.dtype, device=self.window.device)
        return empty.set_(storage, 0, parameter.shape, parameter.stride())

    def forget(self) -> None:
        """What was asked for and not used: it will be of a step before."""
        if self.ahead is not None:
            self.ahead.drop()
            self.ahead = None

    def enter(self, inputs: Sequence[torch.Tensor] = ()) -> _Copies:
        """Put copies in the place of the parameters."""
        copies, self.ahead = self.ask(), None
        copies.wait()
        self.put([_CopyToDevice.apply(parameter, copies, at) for at, parameter in enumerate(self.parameters)])
        if torch.is_grad_enabled():
            taught = [tensor for tensor in inputs if tensor.requires_grad and not tensor.is_leaf]
            copies.left = sum(p.requires_grad for p in self.parameters) + len(taught)
            for tensor in taught:
                tensor.register_hook(lambda gradient, copies=copies: copies.arrived())
        return copies

    def put(self, tensors: Sequence[torch.Tensor]) -> None:
        """What the modules find under the parameters' names."""
        for module, name, number in self.places:
            module._parameters[name] = tensors[number]

    def over(self, copies: _Copies) -> None:
        """Their backward pass is over, and that of a recomputation in it."""
        self.end(copies)
        self.window.ask_before(self)


class HostedModel:
    """The window of one model. `arena.peak`: most bytes of parameters, and of gradients on their way, on the device."""

    def __init__(
        self, model: nn.Module, layers: Sequence[nn.Module], own: Sequence[Sequence[nn.Parameter]], window: int,
        device: torch.device, link_bytes_per_s: float | None,
    ) -> None:  # fmt: skip
        self.window, self.device, self.arena, self.link = window, device, Arena(), Link(link_bytes_per_s)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.fetches = ThreadPoolExecutor(1, "fetch")
        self.ending = False
        for parameter in model.parameters():
            on_host = parameter.detach().cpu()
            parameter.data = on_host.pin_memory() if self.stream is not None else on_host
        in_layers = {id(p) for group in own for p in group}
        rest = [p for p in model.parameters() if id(p) not in in_layers]
        self.layers = [_Unit(self, number, list(group)) for number, group in enumerate(own)]
        self.rest = _Unit(self, -1, rest)
        holder = {id(p): (unit, at) for unit in (*self.layers, self.rest) for at, p in enumerate(unit.parameters)}
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    unit, at = holder[id(parameter)]
                    unit.places.append((module, name, at))
        for module, unit in ((model, self.rest), *zip(layers, self.layers, strict=True)):
            module.register_forward_pre_hook(self._before(unit, id(module)), with_kwargs=True)
            module.register_forward_hook(self._after(unit, id(module)), with_kwargs=True, always_call=True)

    # A copy of the model, such as an average of its weights, has the hooks too: it computes where its weights are.

    def _before(self, unit: _Unit, own: int) -> Hook:
        def before(module: nn.Module, arguments: tuple[object, ...], keywords: dict[str, object]) -> None:
            if id(module) != own:
                return
            if unit is self.rest:
                self.ending = False  # of a backward pass that failed
                self._forget()
            unit.entered.append(unit.enter(tensors_in([*arguments, *keywords.values()])))
            ahead = self.layers[: self.window] if unit is self.rest else self.layers[unit.number + self.window :][:1]
            for following in ahead if not _in_backward() else ():
                following.ask()

        return not_traced(before)

    def _after(self, unit: _Unit, own: int) -> Hook:
        stays = unit is self.rest or unit.number >= len(self.layers) - 1 - self.window

        def after(module: nn.Module, arguments: object, keywords: object, out: object) -> None:
            if id(module) != own:
                return
            unit.put(unit.parameters)
            copies, outputs = unit.entered.pop(), tensors_in(out)
            if unit is self.rest:
                self._forget()
            if not torch.is_grad_enabled() or (outputs and not any(tensor.requires_grad for tensor in outputs)):
                copies.drop()
                return
            unit.keep(copies)
            for tensor in outputs:
                if tensor.requires_grad:
                    tensor.register_hook(lambda gradient: self._before_backward(copies))
            if outputs and not stays and not _in_backward():
                copies.drop()

        return not_traced(after)

    def _before_backward(self, copies: _Copies) -> None:
        if not self.ending:
            self.ending = True
            torch.autograd.Variable._execution_engine.queue_callback(self._ended)
        copies.wait()

    def ask_before(self, unit: _Unit) -> None:
        """A layer's backward pass is over, and there is room for another."""
        number = unit.number - self.window - 1
        if unit.number >= 0 <= number and (there := self.layers[number].waiting_passes()):
            there[-1].ask()

    def _forget(self) -> None:
        for unit in self.layers:
            unit.forget()

    def _ended(self) -> None:
        """The backward pass is over: what got no gradient goes too."""
        self.ending = False
        self._forget()
        for unit in (*self.layers, self.rest):
            unit.end()


def not_traced(hook: Hook) -> Hook:
    """Left to Python by torch.compile, which breaks its graph there."""
    plain: Hook = torch.compiler.disable(hook)
    return plain


def _in_backward() -> bool:
    task: int = torch._C._current_graph_task_id()
    return task != -1


def predicted_bytes(model: nn.Module, own: Sequence[Sequence[nn.Parameter]], window: int) -> int:
    """The arena's peak: what is in no layer, w + 1 layers, and the largest gradient on its way."""
    sizes = [sum(p.nbytes for p in group) for group in own]
    rest = sum(p.nbytes for p in model.parameters()) - sum(sizes)
    layers = max(sum(sizes[at : at + window + 1]) for at in range(len(sizes)))
    gradient = max((p.nbytes for p in model.parameters() if p.requires_grad), default=0)
    return int(rest + layers + gradient)


def host(
    model: nn.Module, layers: Sequence[nn.Module], own: Sequence[Sequence[nn.Parameter]], window: int | str,
    budget: int | None, device: torch.device, link_bytes_per_s: float | None,
) -> nn.Module:  # fmt: skip
    """Put a window into the model. `window`: layers asked for ahead; "auto": as many as the budget holds, else one."""
    if window == "auto":
        fitting = [w for w in range(1, len(layers)) if budget is None or predicted_bytes(model, own, w) <= budget]
        if not fitting:
            raise SpecError("device_memory", budget, f"the least is {predicted_bytes(model, own, 1)} bytes")
        window = fitting[0] if budget is None else fitting[-1]
    assert isinstance(window, int), "checked"
    WINDOWS[model] = HostedModel(model, layers, own, window, device, link_bytes_per_s)
    return model
