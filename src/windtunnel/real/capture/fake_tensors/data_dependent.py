"""What a script without data is told: values it reads, and sizes that values decide.

See `control_flow` for the answers and `known_values` for what is known after all. On real tensors nothing is
answered: ops run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import torch

from windtunnel.real.capture.fake_tensors.control_flow import Answers, is_asserted, line_of_script
from windtunnel.real.capture.fake_tensors.known_values import CREATED, KnownValues
from windtunnel.real.capture.recorder.op_table import OpFacts
from windtunnel.real.capture.recorder.rows import AFTER, COMMUNICATION, OUTPUTS, Row, Rows
from windtunnel.real.capture.recorder.storages import Ledger
from windtunnel.real.capture.torch_private import distributed as compat
from windtunnel.real.capture.torch_private import factories as plain

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from windtunnel.real.operator_call import Arguments, Keywords

_INTEGERS = (torch.int32, torch.int64)
_NORMS = ("norm", "_foreach_norm", "linalg_vector_norm")
_TRUE_OF_SOUND = ("all", "mul", "eq", "logical_and", "bitwise_and")  # isfinite is |x| != inf times x == x
_FALSE_OF_SOUND = ("any", "isnan", "isinf", "ne", "logical_or", "bitwise_or")
_AGREES = ("all_reduce", "broadcast", "reduce_scatter", "all_to_all", "recv")
_DRAWN = ("rand", "randn", "rand_like", "randn_like", "normal", "normal_", "uniform_", "bernoulli", "bernoulli_")
_OWN = -1
_OWN_BACK = 5000  # ops to look back for a communication
_BACK = 12  # ops to look back for a norm
_MANY = 1 << 12  # a count that is tried beside 0: a loop over it has to end


class Records(Protocol):
    """What a reader needs of its recorder."""

    device: str
    ledger: Ledger
    rows: Rows

    def record_answer(self, what: str, answer: object, where: str) -> None:
        """Python was told something."""

    def read_own(self, where: str) -> None:
        """Python read what depends on this rank's own data alone."""


class Reader:
    """Answers for one recorder; `fake` says whether tensors hold data."""

    def __init__(self, recorder: Records, answers: Answers) -> None:
        self._recorder, self._answers = recorder, answers
        self._fake_class = compat.fake_tensor_class()
        self.fake = False
        self._own: dict[str, int] = {}  # line of the script -> the step in which it was no rank's own; _OWN: it is
        self.values = KnownValues(recorder.ledger.number, self._constant, compat.outside_modes, answers.integer)
        recorder.ledger.on_gone = self.values.forget

    def _constant(self, tensor: torch.Tensor) -> object:
        if isinstance(tensor, self._fake_class):
            return tensor.constant
        return tensor if tensor.device.type == "cpu" and tensor.numel() <= CREATED else None

    # ---- values

    def read_value(
        self, func: OpOverload, facts: OpFacts, args: Arguments, kwargs: Keywords, inputs: list[torch.Tensor]
    ) -> object:
        """What Python gets for a value."""
        if not self.holds_nothing(inputs):
            return self.run_outside(func, args, kwargs)
        where = line_of_script(2)
        override = self._answers.at(where) if len(inputs) == 1 else None
        if override is not None:
            override = _as(inputs[0].dtype, override)
            self._note(inputs[0], override, facts, where)
            self.values.assume(inputs[0], override)
            return override
        values = [self.values.value(t) for t in inputs]
        if all(value is not None for value in values):
            with compat.outside_modes():
                value = func(*values, *args[len(inputs) :], **kwargs)
            if any(self.values.is_assumed(t) for t in inputs):
                if inputs[0].dtype == torch.bool and value is False and is_asserted(2):
                    value = True
                    self.values.assume(inputs[0], value)
                value = self._as_own(inputs[0], where, value)
                self._note(inputs[0], value, facts)
            return value
        if facts.short in ("equal", "allclose"):
            same = facts.short == "allclose" or tuple(inputs[0].shape) == tuple(inputs[1].shape)
            self._note(inputs[0], same, facts)
            return same
        answer: float | int | bool | None = self._sound(inputs[0]) if inputs[0].dtype == torch.bool else None
        if answer is None:
            answer = _as(inputs[0].dtype, self._answers.value(inputs[0].dtype, self._from_norm(inputs[0])))
        self.values.assume(inputs[0], answer)
        answer = self._as_own(inputs[0], where, answer)
        self._note(inputs[0], answer, facts, where)
        return answer

    def _as_own(self, tensor: torch.Tensor, where: str, answer: Any) -> Any:
        """What is told at this line alone, where another value of this rank's data is tried; else the same."""
        own = self._answers.own_at(where)
        if not self._is_own(tensor, where) or own is None:
            return answer
        if isinstance(answer, bool):
            return answer != (own == math.inf)  # unsound numbers, where they are infinite
        return own if isinstance(answer, float) else _MANY if own == math.inf else 0

    def holds_nothing(self, inputs: list[torch.Tensor]) -> bool:
        """Whether one of the tensors is fake."""
        return self.fake and any(isinstance(t, self._fake_class) for t in inputs)

    def run_outside(self, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
        """Run on tensors that hold data: in a fake mode they must be kept from it."""
        if not self.fake:
            return func(*args, **kwargs)
        with compat.outside_modes():
            return func(*args, **kwargs)

    def _sound(self, tensor: torch.Tensor) -> bool | None:
        """Whether a check of numbers, known by the op that made it, finds them sound;
        None where it is no such check.
        """
        ledger, base, rows = self._recorder.ledger, self._recorder.rows.base, self._recorder.rows.rows
        number, negated = ledger.number_if_known(tensor), False
        at = ledger.writer.get(number, -1) if number is not None else -1
        for _ in range(4):
            if at < base:
                return None
            name = rows[at - base][0].split(".")[-1]
            if name in _TRUE_OF_SOUND or name in _FALSE_OF_SOUND:
                return (name in _TRUE_OF_SOUND) != negated
            negated ^= name in ("logical_not", "bitwise_not")
            at = max(rows[at - base][AFTER], default=-1)
        return None

    def _note(self, tensor: torch.Tensor, answer: object, facts: OpFacts, where: str | None = None) -> None:
        dtype = str(tensor.dtype).removeprefix("torch.")
        self._recorder.record_answer(f"{facts.name} {dtype} {list(tensor.shape)}", answer, where or line_of_script(3))

    def _is_own(self, tensor: torch.Tensor, where: str) -> bool:
        """Whether a value comes from this rank's data, as far back as the step goes, and no peer had a say in it.

        That is where no exchange is among what made it, or where a float that this rank loaded or drew comes to it by
        no exchange: of weights that were gathered and data, as a loss. (Whole numbers, as texts and labels, may be the
        same on ranks that share a layer.)
        """
        ledger, base, rows = self._recorder.ledger, self._recorder.rows.base, self._recorder.rows.rows
        if (mark := self._own.get(where)) in (base, _OWN):
            return mark == _OWN
        number = ledger.number_if_known(tensor)
        ahead = [ledger.writer[number]] if number is not None and number in ledger.writer else []
        seen: set[int] = set()
        agreed = loaded = False
        while ahead:
            at = ahead.pop()
            if at in seen or at < base:
                continue
            seen.add(at)
            self._own[where] = base
            if len(seen) > _OWN_BACK:
                return False
            row = rows[at - base]
            if row[COMMUNICATION] is not None and row[COMMUNICATION].kind in _AGREES:
                agreed = True
                continue
            ahead.extend(row[AFTER])
            loaded = loaded or (base > 0 and not row[AFTER] and _is_data(row))  # before the first step: weights
        if seen and (loaded or not agreed):
            self._own[where] = _OWN
            self._recorder.read_own(where)
        return bool(seen) and (loaded or not agreed)

    def _from_norm(self, tensor: torch.Tensor) -> bool:
        """Whether one of the last few ops that made this value was a norm."""
        ledger, base, rows = self._recorder.ledger, self._recorder.rows.base, self._recorder.rows.rows
        number = ledger.number_if_known(tensor)
        ahead = [ledger.writer[number]] if number is not None and number in ledger.writer else []
        seen: set[int] = set()
        while ahead and len(seen) < _BACK:
            at = ahead.pop()
            if at in seen or at < base:
                continue
            seen.add(at)
            row = rows[at - base]
            if row[0].split(".")[-1] in _NORMS:
                return True
            ahead.extend(sorted(row[AFTER])[-3:])
        return False

    def with_real_integers(self, func: OpOverload, facts: OpFacts, args: Arguments, kwargs: Keywords) -> object:
        """C++ makes integers, sends them round and reads them: those hold data, wherever they are said to be."""
        if kwargs.get("device") is not None and (facts.short == "_to_copy" or kwargs.get("dtype") in _INTEGERS):
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if facts.short == "empty" and kwargs.get("dtype") in _INTEGERS:
            return self.run_outside(func, args, kwargs)
        inputs = [t for t in args if isinstance(t, torch.Tensor)]
        return (
            func(*args, **kwargs) if self.holds_nothing(inputs) or not inputs else self.run_outside(func, args, kwargs)
        )

    # ---- sizes

    def run_data_dependent(
        self, func: OpOverload, facts: OpFacts, args: Arguments, kwargs: Keywords, inputs: list[torch.Tensor]
    ) -> object:
        """Run an op whose result's shape depends on data, or give it the shape that the answers say."""
        if not self.holds_nothing(inputs):
            out = self.run_outside(func, args, kwargs)
            if facts.short != "index" or _masks(args):
                self._sync(inputs)
            return out
        if facts.short == "index" and not _masks(args):
            return func(*args, **kwargs)
        values = [self.values.value(t) for t in inputs]
        size: int | None = None
        if all(value is not None for value in values) and facts.short != "index":
            with compat.outside_modes():
                exact = func(*values, *args[len(inputs) :], **kwargs)
            size = _length(exact)
            assumed = any(self.values.is_assumed(t) for t in inputs)
        else:
            assumed = True
        out, size = self._outputs(facts.short, args, kwargs, inputs, size)
        if assumed:
            self._note(inputs[0], f"{size} entries", facts)
        self._sync(inputs)
        return out

    def _sync(self, inputs: list[torch.Tensor]) -> None:
        recorder = self._recorder
        if inputs and inputs[0].device.type == recorder.device:
            recorder.rows.sync(recorder.rows.writers(inputs))

    def _true(self, mask: torch.Tensor) -> int:
        value = self.values.value(mask)
        if value is not None:
            with compat.outside_modes():
                return int(torch.count_nonzero(value))
        share = self.values.choices.shares.get(self._recorder.ledger.number(mask), self._answers.true_share)
        return round(share * int(mask.numel()))

    def _outputs(
        self, short: str, args: Arguments, kwargs: Keywords, inputs: list[torch.Tensor], size: int | None
    ) -> tuple[object, int]:
        first = inputs[0]
        long = {"dtype": torch.int64, "device": first.device}
        if short in ("nonzero", "argwhere"):
            n = self._true(first) if size is None else size
            return self._empty((n, first.dim()), **long), n
        if short == "nonzero_numpy":
            n = self._true(first) if size is None else size
            return [self._empty((n,), **long) for _ in range(first.dim())], n
        if short == "masked_select":
            n = self._true(inputs[1]) if size is None else size
            return self._empty((n,), dtype=first.dtype, device=first.device), n
        if short == "index":
            return self._indexed(args)
        if short == "bincount":
            least = kwargs.get("minlength", next((a for a in args[1:] if isinstance(a, int)), 0))
            n = size or max(least, self.values.choices.widths.get(self._recorder.ledger.number(first), 1))
            dtype = inputs[1].dtype if len(inputs) > 1 else torch.int64
            return self._empty((n,), dtype=dtype, device=first.device), n
        if short == "repeat_interleave":
            if size is None:
                size = kwargs.get("output_size") or first.numel() * self._answers.integer
            return self._empty((size,), **long), size
        n = size or min(
            first.numel(), self.values.choices.widths.get(self._recorder.ledger.number(first), first.numel())
        )
        dims = next((a for a in args[1:] if isinstance(a, int) and not isinstance(a, bool)), None)
        if short in ("unique_dim",) or (short == "unique_consecutive" and dims is not None):
            dim = dims or 0
            shape = tuple(min(n, s) if i == dim % first.dim() else s for i, s in enumerate(first.shape))
            n = shape[dim]
            return (
                self._empty(shape, dtype=first.dtype, device=first.device),
                *self._pair((first.shape[dim],), (n,), long),
            ), n
        values = self._empty((n,), dtype=first.dtype, device=first.device)
        inverse, counts = self._pair(tuple(first.shape), (n,), long)
        return ((values, inverse) if short == "_unique" else (values, inverse, counts)), n

    def _pair(self, shape: tuple[int, ...], other: tuple[int, ...], how: dict[str, object]) -> tuple[object, object]:
        return self._empty(shape, **how), self._empty(other, **how)

    def _indexed(self, args: Arguments) -> tuple[object, int]:
        """x[mask]: each mask becomes the indices it selects, and the index is done with those."""
        source, indices = args[0], args[1]
        selected = 0
        plain: list[object] = []
        for index in indices:
            if index is not None and index.dtype in (torch.bool, torch.uint8):
                selected = self._true(index)
                plain.extend(
                    self._empty((selected,), dtype=torch.int64, device=index.device) for _ in range(index.dim())
                )
            else:
                plain.append(index)
        return torch.ops.aten.index.Tensor(source, plain), selected

    def _empty(self, shape: tuple[int, ...], **how: object) -> object:
        """A fake tensor: made while the recorder's own mode is off, below which the fake mode is on."""
        return plain.empty(shape, **how)


def _as(dtype: torch.dtype, value: float | int | bool) -> float | int | bool:
    """As Python gets it from a tensor of this dtype."""
    if dtype == torch.bool:
        return bool(value)
    return float(value) if dtype.is_floating_point else int(value)


def _masks(args: Arguments) -> bool:
    return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])


def _length(answer: Any) -> int:
    first = answer[0] if isinstance(answer, list | tuple) else answer
    return int(first.shape[0]) if first.dim() else int(first)


def _is_data(row: Row) -> bool:
    """Whether an op brings floating-point numbers of this rank: drawn, or copied from the host (one is a constant)."""
    name, kind, _, outputs = row[: OUTPUTS + 1]
    drawn = name.split(".")[-1] in _DRAWN
    return (drawn or kind == "copy") and any(
        "float" in spec.dtype and (drawn or math.prod(spec.shape) > 1) for spec in outputs
    )
