"""Small tensors whose values are known although their likes hold no data.

Known: what was made from Python numbers, and what follows from known tensors by arithmetic: those ops are simply
done, on real CPU tensors beside the fake ones. A storage is known as a whole, so views of it are too; communications
carry values on as the peers' data says. Tokens per expert are known because routing is taken to be even: `bincount`,
`histc`, `scatter_add_` of equal numbers and sums of masks of indices give every expert the same number (the first ones
one more where it does not divide).

Uniform: a large tensor whose elements are all one number is known by that number, through elementwise ops, reductions
and communications. That unknown numbers are finite is known in this way: `isnan(x)` is false everywhere. What Python
was told of an unknown number stays so for good, and its neighbours in the storage are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from windtunnel.real.capture.fake_tensors.choices import Choices
from windtunnel.real.capture.torch_private import factories as plain

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch._ops import OpOverload

    from windtunnel.real.operator_call import Arguments, Keywords

LIMIT = 65536  # elements: more is data, not control
CREATED = 1024  # elements made from Python: more is a batch of the data loader

_FILLED_WITH = {  # what a new tensor is full of; None: its argument after the shape
    **{"zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1},
    **{"full": None, "full_like": None, "new_full": None},
}
_COMPUTED = ("arange", "scalar_tensor", "eye", "linspace")
_MAKERS = frozenset((*_FILLED_WITH, *_COMPUTED))
_COUNTS = frozenset(("bincount", "histc", "sum", "scatter_add_", "scatter_add"))
_FILLS = frozenset(("fill_", "zero_"))
_RANDOM = frozenset(
    ("bernoulli", "bernoulli_", "normal_", "uniform_", "random_", "multinomial", "randperm", "rand", "randn", "randint")
)
_DRAWS = frozenset(("randint", "random_"))
_CHECKS = frozenset(("isnan", "isinf", "isfinite", "isposinf", "isneginf", "eq", "ne", "lt"))
_ELEMENTWISE = frozenset(
    (
        *("logical_not", "bitwise_not", "logical_or", "logical_and", "bitwise_or", "bitwise_and", "where", "abs"),
        *("neg", "add", "sub", "mul", "div", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge", "_to_copy"),
        *("clone", "any", "all", "amax", "amin", "max", "min", "mean", "cat", "stack", "expand", "contiguous"),
    )
)
_ADDED_UP = frozenset(("sum", "count_nonzero"))


class _Ran(NamedTuple):
    """An op that has run on fake tensors."""

    func: OpOverload
    short: str
    args: Arguments
    kwargs: Keywords
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    written: list[torch.Tensor]


class KnownValues:
    """By number of storage. `number_of` finds or gives a tensor's; `known_of` a fake tensor's constant,
    if it has one. `integer` is what a whole number is that nobody knows.
    """

    def __init__(
        self,
        number_of: Callable[[torch.Tensor], int],
        constant_of: Callable[[torch.Tensor], torch.Tensor | None],
        outside: Callable[[], AbstractContextManager[object]],
        integer: int = 1,
    ) -> None:
        self._number_of, self._constant_of, self._outside = number_of, constant_of, outside
        self._integer = integer
        self.values: dict[int, torch.Tensor] = {}  # storage -> its bytes, as a real CPU tensor
        self.assumed: set[int] = set()  # of these, those that rest on even routing
        self.choices = Choices(number_of)
        self.fills: dict[int, float] = {}  # storage too large to be kept, every element of which is this number

    def forget(self, number: int) -> None:
        """The storage is gone, or was written with something unknown."""
        self.values.pop(number, None)
        self.assumed.discard(number)
        self.choices.forget(number)
        self.fills.pop(number, None)

    def value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A real CPU tensor with the values of `tensor`; None where they are not known.

        Shares memory with what is known.
        """
        constant = self._constant_of(tensor)
        if constant is not None:
            return constant
        number = self._number_of(tensor)
        storage = self.values.get(number)
        if storage is None:
            fill = self.fills.get(number)
            if fill is None or tensor.numel() > LIMIT:
                return None
            with self._outside():
                return plain.full(tuple(tensor.shape), fill, dtype=tensor.dtype, device="cpu")
        with self._outside():
            return storage.view(tensor.dtype).as_strided(tuple(tensor.shape), tensor.stride(), tensor.storage_offset())

    def exact_value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """`value`, where it rests on nothing that was made up."""
        return None if self._number_of(tensor) in self.assumed else self.value(tensor)

    def is_assumed(self, tensor: torch.Tensor) -> bool:
        """Whether its value rests on even routing."""
        return self._number_of(tensor) in self.assumed

    def hold(self, tensor: torch.Tensor, value: torch.Tensor, assumed: bool = False) -> None:
        """Know a whole fake tensor (one that fills its storage)."""
        size = tensor.untyped_storage().nbytes()
        if size > LIMIT * 8 or not size:
            return
        raw = plain.zeros(size, dtype=torch.uint8, device="cpu")
        raw.view(tensor.dtype).as_strided(tuple(tensor.shape), tensor.stride(), tensor.storage_offset()).copy_(value)
        number = self._number_of(tensor)
        self.values[number] = raw
        self.fills.pop(number, None)
        (self.assumed.add if assumed else self.assumed.discard)(number)

    def learn(self, tensor: torch.Tensor, value: torch.Tensor | None, assumed: bool = False) -> None:
        """Peers wrote into a tensor: what, or (None) nobody knows. `assumed`: they are taken to be like this rank."""
        number = self._number_of(tensor)
        if getattr(tensor, "constant", None) is not None:
            tensor.constant = None
        if value is not None and _fills(tensor):
            with self._outside():
                self.hold(tensor, value, assumed)
        elif value is not None and number in self.values:
            own = self.value(tensor)
            assert own is not None
            with self._outside():
                own.copy_(value)
            if assumed:
                self.assumed.add(number)
        else:
            self.forget(number)

    def assume(self, tensor: torch.Tensor, answer: float | int | bool) -> None:
        """Python was told this of a number that nobody knows: so it is from here on."""
        number, size = self._number_of(tensor), tensor.untyped_storage().nbytes()
        if not 0 < size <= CREATED * 8 or size % tensor.element_size():
            if not tensor.dtype.is_floating_point:
                self.fills[number] = answer
                self.assumed.add(number)
            return
        with self._outside():
            count = size // tensor.element_size()
            self.values[number] = plain.full((count,), answer, dtype=tensor.dtype, device="cpu").view(torch.uint8)
        self.assumed.add(number)

    def lifted(self, tensor: torch.Tensor, real: torch.Tensor) -> None:
        """`torch.tensor([1, 2, 3])`: PyTorch keeps the value of a single number only."""
        if real.numel() <= CREATED and self._constant_of(tensor) is None and _fills(tensor):
            with self._outside():
                self.hold(tensor, real)

    # ---- ops

    def follow_op(
        self,
        func: OpOverload,
        short: str,
        args: Arguments,
        kwargs: Keywords,
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        written: list[torch.Tensor],
        numbers: Sequence[int] | None = None,
    ) -> None:
        """An op ran on fake tensors: carry on what is known. Cheap where nothing is. `numbers`: of `inputs`."""
        if short in _MAKERS:
            if len(outputs) == 1:
                self._from_numbers(func, short, args, kwargs, outputs[0])
            return
        if short in _DRAWS:
            for tensor in written:
                self.forget(self._number_of(tensor))
            self._random_numbers(args, (outputs or written)[0])
            return
        if not inputs or (short in _COUNTS and self._even(short, args, outputs, written)):
            return
        if numbers is None:
            numbers = [self._number_of(t) for t in inputs]
        values, constant_of, fills = self.values, self._constant_of, self.fills
        count = sum(
            [n in values or n in fills or constant_of(t) is not None for n, t in zip(numbers, inputs, strict=True)]
        )
        if count or written:
            self._follow(_Ran(func, short, args, kwargs, inputs, outputs, written), count)
        if short in _CHECKS and not count:
            self._checked(short, args, inputs, outputs)
        self.choices.follow_op(short, args, kwargs, inputs, outputs, written)

    def _from_numbers(
        self, func: OpOverload, short: str, args: Arguments, kwargs: Keywords, output: torch.Tensor
    ) -> None:
        """From Python numbers: known where it is small; where it is large, that all elements are the same may be."""
        small = output.numel() <= CREATED and _is_control(output)
        if short in _COMPUTED:
            if small:
                self._compute(func, args, kwargs, [output], [], False)
            return
        fill = _FILLED_WITH[short]
        if fill is None:
            argument = args[2] if short == "new_full" else args[1]
            fill = self.value(argument) if isinstance(argument, torch.Tensor) else argument
        if isinstance(fill, torch.Tensor) or fill is None:
            return
        if small:
            with self._outside():
                self.hold(output, plain.full(tuple(output.shape), fill, dtype=output.dtype, device="cpu"))
        elif _fills(output):
            self.fills[self._number_of(output)] = fill

    def _follow(self, ran: _Ran, count: int) -> None:
        """An op of which `count` inputs are known, or that writes what may be known."""
        func, short, args, kwargs, inputs, outputs, written = ran
        if short in _FILLS and written and _fills(written[0]):
            self._fill(args, written[0])
        elif short == "copy_" and _fills(inputs[0]) and inputs[0].numel() <= LIMIT:
            value = self.value(inputs[1]) if len(inputs) > 1 else None
            if value is None:
                self.forget(self._number_of(inputs[0]))
            else:
                with self._outside():
                    value = value.to(inputs[0].dtype).expand(tuple(inputs[0].shape))
                    self.hold(inputs[0], value, self.is_assumed(inputs[1]))
        elif count == len(inputs) and short not in _RANDOM and _small(outputs) and _small(inputs):
            assumed = any(self._number_of(t) in self.assumed for t in inputs)
            self._compute(func, args, kwargs, outputs, written, assumed)
        elif (
            not (count == len(inputs) and self._uniform(ran)) and short != "_amp_foreach_non_finite_check_and_unscale_"
        ):
            for tensor in written:
                self.forget(self._number_of(tensor))

    # ---- uniform tensors

    def _checked(self, short: str, args: Arguments, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        """A check of numbers that nobody knows: they are finite."""
        if len(outputs) != 1 or not (inputs[0].is_floating_point() or inputs[0].is_complex()):
            return
        if short in ("eq", "ne", "lt"):
            other = args[1] if len(args) > 1 else None
            if other is not inputs[0] and not (isinstance(other, float) and math.isinf(other)):
                return
            if short == "lt" and other != math.inf:
                return
            true = (short == "eq") == (other is inputs[0]) if short != "lt" else True
        else:
            true = short == "isfinite"
        self._spread(outputs[0], true, assumed=True)

    def _spread(self, tensor: torch.Tensor, value: float | int | bool, *, assumed: bool) -> None:
        """All elements of a tensor are known to be this."""
        if not _fills(tensor):
            return
        if tensor.numel() <= CREATED:
            with self._outside():
                self.hold(tensor, plain.full(tuple(tensor.shape), value, dtype=tensor.dtype, device="cpu"), assumed)
            return
        number = self._number_of(tensor)
        self.forget(number)
        self.fills[number] = value
        if assumed:
            self.assumed.add(number)

    def _uniform(self, ran: _Ran) -> bool:
        """An op on tensors of which some are large and each is one number: done on one element of each."""
        func, short, args, kwargs, inputs, outputs, written = ran
        target = written or outputs
        name = short.removesuffix("_") if written else short
        if len(target) != 1 or not (name in _ELEMENTWISE or name in _ADDED_UP) or not _fills(target[0]):
            return False
        numbers: dict[int, object] = {}
        for tensor in inputs:  # of a text of many lines, the first is no single number already
            if numbers.setdefault(id(tensor), self._same(tensor)) is None:
                return False
        with self._outside():
            small = {id(t): plain.full((1,) * t.dim(), numbers[id(t)], dtype=t.dtype, device="cpu") for t in inputs}

            def put(value: object) -> Any:
                if isinstance(value, torch.Tensor):
                    return small[id(value)]
                if isinstance(value, list | tuple):
                    return [put(item) for item in value]
                return torch.device("cpu") if isinstance(value, torch.device) else value

            try:
                result = func(*put(args), **{k: put(v) for k, v in kwargs.items() if k != "pin_memory"})
            except (RuntimeError, TypeError, IndexError):
                return False
            if not isinstance(result, torch.Tensor) or not result.numel():
                return False
            if not bool((result == result.reshape(-1)[0]).all()):
                return False
            value = result.reshape(-1)[0].item()
        if name in _ADDED_UP:
            value *= inputs[0].numel() // max(1, target[0].numel())
        self._spread(target[0], value, assumed=any(self._number_of(t) in self.assumed for t in inputs))
        return True

    def _random_numbers(self, args: Arguments, output: torch.Tensor) -> None:
        """Few whole numbers drawn at random are all the same one, known before Python reads it: `i + 256` follows."""
        numbers = [a for a in args if isinstance(a, int) and not isinstance(a, bool)][:2]
        if numbers and not output.dtype.is_floating_point and output.numel() <= CREATED:
            low, high = numbers if len(numbers) > 1 else (0, numbers[0])
            self._spread(output, max(low, min(self._integer, high - 1)), assumed=True)

    def _compute(
        self,
        func: OpOverload,
        args: Arguments,
        kwargs: Keywords,
        outputs: list[torch.Tensor],
        written: list[torch.Tensor],
        assumed: bool,
    ) -> None:
        with self._outside():
            real_args = [self._real(a) for a in args]
            real_kwargs = {k: self._real(v) for k, v in kwargs.items() if k != "pin_memory"}
            if isinstance(real_kwargs.get("device"), torch.device):
                real_kwargs["device"] = torch.device("cpu")
            try:
                answer = func(*real_args, **real_kwargs)
            except (RuntimeError, TypeError, IndexError):  # a CPU has no such kernel: not known then
                for tensor in written:
                    self.forget(self._number_of(tensor))
                return
            results = [t for t in _leaves(answer) if isinstance(t, torch.Tensor)]
            in_place = {self._number_of(t) for t in written}
            for fake, real in zip(outputs, results, strict=False):
                if self._number_of(fake) not in in_place and tuple(fake.shape) == tuple(real.shape):
                    self.hold(fake, real.to(fake.dtype), assumed)

    def _fill(self, args: Arguments, tensor: torch.Tensor) -> None:
        number, value = self._number_of(tensor), self._real(args[1]) if len(args) > 1 else 0
        self.forget(number)
        if isinstance(value, torch.Tensor):
            with self._outside():
                value = value.item()
        if isinstance(value, int | float):
            if _is_control(tensor):
                with self._outside():
                    self.hold(tensor, plain.full(tuple(tensor.shape), value, dtype=tensor.dtype, device="cpu"))
            else:
                self.fills[number] = value

    def _real(self, argument: object) -> object:
        if isinstance(argument, torch.Tensor):
            return self.value(argument)
        if isinstance(argument, list | tuple):
            return [self._real(a) for a in argument]
        return argument

    # ---- even routing

    def _even(self, short: str, args: Arguments, outputs: list[torch.Tensor], written: list[torch.Tensor]) -> bool:
        """Counts of indices, known because routing is even; False where it is no such count."""
        first = args[0]
        if short.startswith("scatter_add"):
            return self._added(args, (written or outputs)[0])
        if not outputs or not isinstance(first, torch.Tensor) or self.value(first) is not None:
            return False
        total = first.numel()
        if not 0 < outputs[0].numel() <= LIMIT:
            return False
        if short == "sum":
            share = self.choices.shares.get(self._number_of(first))
            if share is None:
                return False
            counted = total // outputs[0].numel()
            self._hold_even(outputs[0], share * total, share * counted)
            return True
        if short == "histc" and not (first.numel() and outputs[0].dim() == 1):
            return False
        self._hold_even(outputs[0], total, total / outputs[0].numel())
        return True

    def _added(self, args: Arguments, out: torch.Tensor) -> bool:
        """`counts.scatter_add_(0, choice, ones)`: indices out of as many as there are counts, of equal numbers."""
        target, dim, index, source = args[:4]
        before, each = self._same(target, whole=True), self._same(source)
        if dim not in (0, -1) or target.dim() != 1 or index.dim() != 1 or before is None or each is None:
            return False
        if (
            self.choices.widths.get(self._number_of(index)) != target.numel()
            or not float(each * index.numel()).is_integer()
        ):
            return False
        with self._outside():
            counts = _split(round(each * index.numel()), target.numel(), target.dtype)
            self.hold(out, before + counts, assumed=True)
        return True

    def _same(self, tensor: torch.Tensor, whole: bool = False) -> torch.Tensor | None:
        """The number that all elements are; where the `whole` is asked for, its value whatever it is."""
        value = self.value(tensor)
        if value is None or whole:
            return self.fills.get(self._number_of(tensor)) if value is None else value
        with self._outside():
            first = value.reshape(-1)[0].item() if value.numel() else 0
            return first if bool((value == first).all()) else None

    def _hold_even(self, tensor: torch.Tensor, total: float, each: float) -> None:
        """Whole numbers that add up to `total`, or `each` where it need not be whole."""
        with self._outside():
            if tensor.dtype.is_floating_point and not float(each).is_integer():
                value = plain.full(tuple(tensor.shape), each, dtype=tensor.dtype, device="cpu")
            else:
                value = _split(round(total), tensor.numel(), tensor.dtype).view(tuple(tensor.shape))
            self.hold(tensor, value, assumed=True)


def _leaves(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _small(tensors: Sequence[torch.Tensor]) -> bool:
    return all(t.numel() <= LIMIT for t in tensors)


def _is_control(tensor: torch.Tensor) -> bool:
    """Few numbers, or integers: not the zeros that a norm's gradient starts from."""
    return bool(tensor.numel() <= 16 or (tensor.numel() <= CREATED and not tensor.dtype.is_floating_point))


def _fills(tensor: torch.Tensor) -> bool:
    return bool(tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes())


def _split(total: int, parts: int, dtype: torch.dtype) -> torch.Tensor:
    each, more = divmod(total, parts)
    return plain.tensor([each + (i < more) for i in range(parts)], dtype=dtype, device="cpu")
