"""The dispatch mode that sees every op of a script, below autograd, and decides what becomes of it.

On real tensors it is an observer: the op runs as it is. On fake ones it also gives what they do not hold: what Python
reads, sizes that data decide, and, through the virtual world, what peers send.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from windtunnel.real.capture.fake_tensors.dispatch_cache import Entry, FastFakes
from windtunnel.real.capture.recorder.call_tensors import leaf_tensors, tensors_of
from windtunnel.real.capture.recorder.exchanges import Exchanges
from windtunnel.real.capture.recorder.op_table import OpFacts, facts_of
from windtunnel.real.capture.recorder.protocol import Recording
from windtunnel.real.capture.torch_private import compile as compiler
from windtunnel.real.capture.torch_private import distributed as world_compat
from windtunnel.real.capture.torch_private import recorder as compat
from windtunnel.real.capture.torch_private.addresses import is_used_map

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from windtunnel.real.operator_call import Arguments, Keywords

_NOT_HELD = "meta"
_DEVICE_QUERY = torch.ops.prim.device.default  # C++ asks a fake tensor for its device so, several times an op


class Watch(TorchDispatchMode):  # type: ignore[misc]
    """The dispatch mode of one recorder."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No wrapper that keeps torch.compile out: nothing is compiled, and it costs as much as an op."""
        return False

    def __init__(self, recorder: Recording, exchanges: Exchanges) -> None:
        super().__init__()
        self._recorder, self._exchanges = recorder, exchanges
        self._rows, self._reader = recorder.rows, recorder.reader
        self._fake = world_compat.fake_tensor_class()
        self._fakes: FastFakes | None = None
        self._facts: dict[int, tuple[OpFacts, OpOverload]] = {}  # by identity, which the op beside them keeps its own
        self._sugar: dict[object, bool] = {}
        self._rewritten: list[weakref.ref[torch.Tensor]] = []  # views that the last op wrote
        self.unseen = 0  # depth of what is not the script's work
        self.real_integers = 0  # depth of C++ that reads integers it has made

    def answer_with(self, fakes: FastFakes) -> None:
        """Tensors hold no data: this makes them."""
        self._fakes = fakes

    def __torch_dispatch__(
        self, func: OpOverload, types: tuple[type, ...], args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        if func is _DEVICE_QUERY and type(args[0]) is self._fake:
            return args[0]._fake_device
        sugar = self._sugar.get(types)
        if sugar is None:
            sugar = self._sugar[types] = any(compat.desugars_first(kind) for kind in types)
        if sugar:
            return NotImplemented
        kwargs = kwargs or {}
        if self.unseen:
            return func(*args, **kwargs)
        if not types and args and is_used_map(args[0]):
            with world_compat.outside_modes():
                return func(*args, **kwargs)
        facts_of_func = self._facts.get(id(func))
        if facts_of_func is None:
            if not isinstance(func, torch._ops.OpOverload) and str(func) == "run_dtensor_rng_op":
                # (offset before, offset after, op, ...): DTensor's way to draw random numbers
                with self:
                    return args[2](*args[3:], **kwargs)
            facts_of_func = self._facts[id(func)] = (facts_of(func), func)
        facts = facts_of_func[0]
        if facts.draws:
            self._recorder.replicas.drew(args[0] if args else None, kwargs)
        if facts.special or self.real_integers:
            return self._special(func, facts, args, kwargs)
        fakes = self._fakes
        if fakes is None:
            return self._ran(func, facts, args, kwargs, func(*args, **kwargs))
        if self._rewritten and not facts.view:
            self._rewritten, done = [], self._rewritten
            for reference in done:
                if (view := reference()) is not None:
                    compat.backward_as_strided(view)
        if facts.written and torch.is_grad_enabled() and args and type(args[0]) is self._fake and args[0]._is_view():
            self._rewritten.append(weakref.ref(args[0]))
        out = fakes.run(func, types, args, kwargs)
        inputs = fakes.take_inputs()
        if facts.view:
            return out
        entry = fakes.entry
        if entry is None or entry.note is None or facts.silent:
            return self._ran(func, facts, args, kwargs, out, entry)
        outputs = leaf_tensors(out) if not facts.returns_written else []
        seen = self._rows.write_again(facts, entry.note, inputs, outputs)
        if seen is None:
            return self._ran(func, facts, args, kwargs, out, entry)
        numbers, positions = seen
        written = [inputs[i] for i in positions] if positions else []
        self._reader.values.follow_op(func, facts.short, args, kwargs, inputs, outputs, written, numbers)
        return out

    def _ran(
        self,
        func: OpOverload,
        facts: OpFacts,
        args: Arguments,
        kwargs: Keywords,
        out: object,
        entry: Entry | None = None,
    ) -> object:
        """Write down an op that has run; `entry`: what is kept of this very call."""
        if facts.view:
            return out
        inputs, outputs = tensors_of(args, kwargs), leaf_tensors(out)
        if (outputs or inputs) and (outputs or inputs)[0].device.type == _NOT_HELD:
            return out
        if facts.returns_written:
            outputs = []
        fakes, values = self._fakes, self._reader.values
        if facts.silent:
            number = self._recorder.ledger.number
            for tensor in outputs:
                number(tensor)
            if fakes is not None:
                values.follow_op(func, facts.short, args, kwargs, inputs, outputs, [])
            return out
        numbers, positions = self._rows.write(facts, args, kwargs, inputs, outputs, out, entry)
        if fakes is not None:
            written = [inputs[i] for i in positions]
            values.follow_op(func, facts.short, args, kwargs, inputs, outputs, written, numbers)
        return out

    def run(self, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
        """The op alone: nothing is written down."""
        if self._fakes is None:
            return func(*args, **kwargs)
        out = self._fakes.run(func, (), args, kwargs)
        self._fakes.take_inputs()
        return out

    def _special(self, func: OpOverload, facts: OpFacts, args: Arguments, kwargs: Keywords) -> object:
        """An op that does not simply run."""
        recorder, reader, fake = self._recorder, self._reader, self._fakes is not None
        if facts.view and not facts.communication:
            if self.real_integers:
                return reader.with_real_integers(func, facts, args, kwargs)
            out = self.run(func, args, kwargs)
            if facts.short == "lift_fresh" and fake and type(args[0]) is torch.Tensor:
                reader.values.lifted(out, args[0])
            return out
        if facts.wraps:
            return compat.unwaited(args[0]) if fake else func(*args, **kwargs)
        if facts.composite:  # in inference mode only: elsewhere autograd has taken it apart already
            with self:
                answer = func.decompose(*args, **kwargs)
            if answer is not NotImplemented:
                return answer
        pretended = recorder.cuda is not None
        if facts.short == "is_pinned" and pretended:
            return True  # DDP's reducer asks, of what it has just pinned; Python asks Tensor.is_pinned
        if facts.short == "empty_strided" and pretended and kwargs.get("pin_memory") and _is_integer(kwargs):
            with world_compat.outside_modes():  # DDP's reducer compares its address, which fake tensors share
                return func(*args, **{**kwargs, "pin_memory": False})
        if facts.fused_exchange:
            with self:
                return self._exchanges.fused(func, args, kwargs)
        if facts.communication:
            return self._exchanges.communicate(func, facts, args, kwargs, tensors_of(args, kwargs))
        if facts.reads:
            return recorder.read(func, facts, args, kwargs, tensors_of(args, kwargs))
        if self.real_integers:
            out = reader.with_real_integers(func, facts, args, kwargs)
        elif facts.shaped_by_data:
            out = reader.run_data_dependent(func, facts, args, kwargs, tensors_of(args, kwargs))
        else:
            out = self.run(func, args, kwargs)
        out = self._ran(func, facts, args, kwargs, out)
        if facts.shaped_by_data and compiler.shapes_break():
            recorder.where.graph_breaks()
        return out


def _is_integer(kwargs: dict[str, object]) -> bool:
    return kwargs.get("dtype") is torch.int32
