"""Records what one rank of a running script executes: ops, communications, waits, memory.

One dispatch mode sees every op that reaches PyTorch's dispatcher, below autograd: on real tensors, as an observer
that changes nothing, and on fake ones, where it also answers communications (through the virtual world) and what
Python reads.

    with fake_tensors("cuda"), World(rank, world_size, ...) as world, Recorder(rank, world_size, world) as recorder:
        ...                                  # the script
    program = recorder.program               # of the last finished step

A step ends with the last optimizer that stepped before the next forward pass that is trained on, and the next begins
there; the first begins with the first such forward. `begin_step` and `end_step` set other bounds.

An op depends on the last writer of every storage it reads, on the last op of each stream that its stream was told to
wait for, and, if it is a wait, on the communication it waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from windtunnel.capture.script import _torch_compat as world_compat
from windtunnel.capture.script import _torch_compat_recorder as compat
from windtunnel.capture.script.assembly import STREAM, measured, ops_of
from windtunnel.capture.script.call_tensors import leaf_tensors, local_part, tensors_of, written_tensors
from windtunnel.capture.script.communication import Communication
from windtunnel.capture.script.control_flow import Answers
from windtunnel.capture.script.data_dependent import Reader
from windtunnel.capture.script.exchanges import Exchanges
from windtunnel.capture.script.fast_fakes import FastFakes
from windtunnel.capture.script.flops import traffic
from windtunnel.capture.script.modules import Place, Whereabouts
from windtunnel.capture.script.op_table import OpFacts, facts_of
from windtunnel.capture.script.program import Answer, RankProgram, TensorSpec
from windtunnel.capture.script.storages import Ledger, categorised
from windtunnel.capture.script.stream_order import StreamOrder

_NOT_HELD = ("meta",)
_DEVICE_QUERY = torch.ops.prim.device.default  # C++ asks a fake tensor for its device so, several times an op


class Recorder:
    """Of one rank. `programs` holds the finished steps ("all"), or the last of them."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        world: Any = None,
        *,
        answers: Answers | None = None,
        keep: Literal["last", "all"] = "last",
        on_step: Callable[[RankProgram], None] | None = None,
        device: str | None = None,
    ) -> None:
        from windtunnel.capture.script.pretend_cuda import pretended

        self.rank, self.world_size, self.world = rank, world_size, world
        self.keep, self.on_step = keep, on_step
        self.programs: list[RankProgram] = []
        self.cuda = pretended()
        self.device = device or ("cuda" if self.cuda is not None or torch.cuda.is_available() else "cpu")
        self.ledger = Ledger(lambda: self._count, self.device)
        self.where = Whereabouts(self._forward_begins)
        self.streams = StreamOrder(self.count, self._synchronised)
        self.reader = Reader(self, answers or Answers())
        self.notes: dict[str, None] = {}
        self._rows: list[tuple[Any, ...]] = []  # of this step: what an Op is made of, `after` counted from the start
        self._count = 0  # ops since the start: rows[i] is op _base + i
        self._base = self._earlier = 0
        self._resident: dict[int, int] = {}
        self._bound: tuple[int, int] | None = None  # (ops, memory events) when the last optimizer had stepped
        self._by_hand = self._began = False
        self._began_at = time.perf_counter()
        self._steps = 0
        self._specs: dict[tuple[Any, ...], tuple[TensorSpec, int]] = {}
        self._facts: dict[Any, OpFacts] = {}
        self._sugar: dict[type, bool] = {}
        self._answers: list[Answer] = []
        self.exchanges = Exchanges(self)
        self.unseen = 0  # depth of what is not the script's work
        self.real_integers = 0  # depth of C++ that reads integers it has made
        self._parameters: dict[int, int] = {}  # of all optimizers: elements that are here
        self._mode = _Mode(self)
        self._run = _plain
        self._fake = compat.fake_class()
        self._open = ExitStack()

    # ---- life

    def __enter__(self) -> Recorder:
        with ExitStack() as opening:
            opening.enter_context(self.where)
            self.where.stream = self.streams.now
            opening.callback(compat.watch_resize(self.ledger.resized))
            opening.callback(compat.around_sharding_propagation(_Depth(self, "unseen")))
            if compat.fake_mode() is not None:
                opening.callback(compat.around_reducer_integers(_Depth(self, "real_integers")))
            opening.callback(register_optimizer_step_pre_hook(self._optimizer_begins).remove)
            opening.callback(register_optimizer_step_post_hook(self._optimizer_ends).remove)
            if self.cuda is not None:
                opening.enter_context(self.cuda.recorded_by(self.streams, self.ledger))
            if self.world is not None:
                opening.enter_context(self._listening())
            opening.callback(self.ledger.close)
            opening.enter_context(self._mode)
            self._open = opening.pop_all()
        self.ledger.begin()
        mode = compat.fake_mode()
        self.reader.fake = mode is not None
        if mode is not None:
            fakes = FastFakes(mode)
            self._run = fakes.run
            if self.cuda is not None:
                self.cuda.watch_device(lambda _: fakes.forget())
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._open.close()
        if self._bound is not None and not self._by_hand:
            self._finish(self._bound, report=kind is None)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        world, values = self.world, self.reader.values
        before, fake = world.listener, world.fake
        world.listener, self.exchanges.before = self.exchanges, before
        if compat.fake_mode() is not None:
            world.fake, world.known_value, world.let_know = True, values.value, values.learn
        try:
            yield
        finally:
            world.listener, world.fake = before, fake
            for name in ("known_value", "let_know"):
                vars(world).pop(name, None)

    def rows(self) -> tuple[int, list[tuple[Any, ...]]]:
        """(number of the first, rows) of this step's ops so far."""
        return self._base, self._rows

    @property
    def program(self) -> RankProgram:
        """Of the last finished step."""
        if not self.programs:
            raise LookupError("no step was finished: the script stepped no optimizer, nor was end_step called")
        return self.programs[-1]

    # ---- steps

    def begin_step(self) -> None:
        """A step begins here; it ends at `end_step`, wherever optimizers step."""
        self._by_hand = True
        self._start((self._count, len(self.ledger.events)))

    def end_step(self) -> RankProgram:
        """The step that began at `begin_step` (or with the first forward pass) is over."""
        self._finish((self._count, len(self.ledger.events)), report=True)
        self._by_hand = False
        return self.programs[-1]

    def _forward_begins(self) -> None:
        if self._by_hand or (self.where.optimizers and not torch.is_grad_enabled()):  # with gradients: its closure
            return
        if self._bound is not None:
            self._finish(self._bound, report=True)
        elif not self._began:
            self._start((self._count, len(self.ledger.events)))

    def _start(self, bound: tuple[int, int]) -> None:
        ops, events = bound
        later = self.ledger.events[events:]
        self._rows = self._rows[ops - self._base :]
        self._base = ops
        self._resident = self.ledger.begin()
        self.ledger.events = later
        for _, number, gained in later:  # these belong to the step that begins: take them back from what it finds
            self._resident[number] = self._resident.get(number, 0) - gained
        self._resident = {number: held for number, held in self._resident.items() if held > 0}
        self._answers = [a for a in self._answers if a.op >= ops]
        self.exchanges.forget(self._earlier)
        self._earlier = ops
        self._bound, self._began = None, True
        self._began_at = time.perf_counter()
        self.where.begin_step()

    def _finish(self, bound: tuple[int, int], *, report: bool) -> None:
        program = self._assembled(*bound)
        self._steps += 1
        if self.keep == "last":
            self.programs.clear()
        self.programs.append(program)
        self._start(bound)
        if report and self.on_step is not None:
            self.on_step(program)

    def _assembled(self, ops: int, events: int) -> RankProgram:
        base, ledger = self._base, self.ledger
        made = ops_of(self._rows[: ops - base], base)
        last = max(0, len(made) - 1)
        resident, memory = categorised(
            ledger.events[:events],
            self._resident,
            ledger.categories,
            lambda i: made[i].phase if i < len(made) else "other",
            base,
            last,
        )
        meshes = tuple(getattr(self.world, "meshes", ()) or ())
        return RankProgram(
            rank=self.rank,
            world_size=self.world_size,
            ops=made,
            memory=memory,
            resident=resident,
            answers=tuple(a._replace(op=a.op - base) for a in self._answers if base <= a.op < max(ops, base + 1)),
            meshes=meshes,
            coordinates=tuple(getattr(self.world, "coordinates", ()) or ()),
            notes=tuple(self.notes),
            facts={"device": self.device, "step": self._steps, **self._figures(base, last)},
        )

    def _figures(self, base: int, last: int) -> dict[str, object]:
        seconds = round(time.perf_counter() - self._began_at, 3)
        parameters = sum(self._parameters.values())
        return {"parameters": parameters, "seconds_to_capture": seconds, **measured(self.ledger, base, last)}

    # ---- optimizers

    def _optimizer_begins(self, optimizer: Any, *_: Any) -> None:
        self.where.optimizers += 1
        if self.where.optimizers == 1:
            self.where.steps_in_backward = compat.in_backward()
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            self._parameters |= {id(p): local_part(p).numel() for p in parameters}
            self.ledger.mark((local_part(p) for p in parameters), "parameter")
            self.ledger.mark((local_part(p.grad) for p in parameters if p.grad is not None), "gradient")

    def _optimizer_ends(self, optimizer: Any, *_: Any) -> None:
        states = (v for state in optimizer.state.values() if isinstance(state, dict) for v in state.values())
        self.ledger.mark((local_part(v) for v in states if isinstance(v, torch.Tensor)), "optimizer")
        gradients = (
            p.grad for group in optimizer.param_groups for p in group["params"]
        )  # a closure has made them just now
        self.ledger.mark((local_part(g) for g in gradients if g is not None), "gradient")
        self.where.optimizers -= 1
        if self.where.optimizers:  # one that another one steps
            return
        if self._began:
            self._bound = (self._count, len(self.ledger.events))
            self.where.optimizer_stepped()

    # ---- ops

    def count(self) -> int:
        """Ops since the script began."""
        return self._count

    def spec(self, tensor: Any) -> tuple[TensorSpec, int]:
        """Of a tensor, and its bytes."""
        key = (tensor.shape, tensor.dtype, tensor.device.type)
        found = self._specs.get(key)
        if found is None:
            where = "device" if key[2] == self.device else "host"
            spec = TensorSpec(tuple(int(n) for n in key[0]), str(key[1]).removeprefix("torch."), where)
            found = self._specs[key] = (spec, tensor.numel() * tensor.element_size())
        return found

    def see(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One op: run it, write it down."""
        if func is _DEVICE_QUERY and type(args[0]) is self._fake:
            return args[0].fake_device
        for tensor_type in types:
            sugar = self._sugar.get(tensor_type)
            if sugar is None:
                sugar = self._sugar[tensor_type] = compat.desugars_first(tensor_type)
            if sugar:
                return NotImplemented
        if self.unseen:
            return func(*args, **kwargs)
        facts = self._facts.get(func)
        if facts is None:
            facts = self._facts[func] = facts_of(func)
        if facts.view and not facts.communication:
            if self.real_integers:
                return self.reader.with_real_integers(func, facts, args, kwargs)
            out = self._run(func, types, args, kwargs)
            if facts.short == "lift_fresh" and self.reader.fake and type(args[0]) is torch.Tensor:
                self.reader.values.lifted(out, args[0])
            return out
        if facts.wraps:
            return compat.unwaited(args[0]) if self.reader.fake else func(*args, **kwargs)
        if facts.composite:  # in inference mode only: elsewhere autograd has taken it apart already
            with self._mode:
                answer = func.decompose(*args, **kwargs)
            if answer is not NotImplemented:
                return answer
        if facts.short == "is_pinned" and self.cuda is not None:
            return True  # DDP's reducer asks, of what it has just pinned; Python asks Tensor.is_pinned
        if (
            facts.short == "empty_strided"
            and kwargs.get("pin_memory")
            and kwargs.get("dtype") == torch.int32
            and self.cuda is not None
        ):
            with world_compat.outside_modes():  # DDP's reducer compares its address, which fake tensors share
                return func(*args, **{**kwargs, "pin_memory": False})
        inputs = tensors_of(args, kwargs)
        if facts.communication:
            return self.exchanges.communicate(func, facts, args, kwargs, inputs)
        if facts.reads:
            return self._read(func, facts, args, kwargs, inputs)
        if self.real_integers:
            out = self.reader.with_real_integers(func, facts, args, kwargs)
        elif facts.shaped_by_data:
            out = self.reader.shaped(func, facts, args, kwargs, inputs)
        else:
            out = self._run(func, types, args, kwargs)
        outputs = leaf_tensors(out)
        if (outputs or inputs) and (outputs or inputs)[0].device.type in _NOT_HELD:
            return out
        if facts.returns_written:
            outputs = []
        if not facts.silent:
            self._write(func, facts, args, kwargs, inputs, outputs, out)
        else:
            number = self.ledger.number
            for tensor in outputs:
                number(tensor)
            if self.reader.fake:
                self.reader.values.after(func, facts.short, args, kwargs, inputs, outputs, [])
        return out

    def _write(
        self, func: Any, facts: OpFacts, args: Any, kwargs: Any, inputs: list[Any], outputs: list[Any], out: Any
    ) -> None:
        """Write down an op that has run."""
        ledger, writer = self.ledger, self.ledger.writer
        numbers = [ledger.number(t) for t in inputs]
        specs = [self.spec(t) for t in inputs]
        after = {writer[n] for n in numbers if n in writer}
        written = written_tensors(facts, args, kwargs) if facts.written or facts.written_names else ()
        identities = {id(t) for t in written}
        positions = [i for i, t in enumerate(inputs) if id(t) in identities] if written else []
        changed = [numbers[i] for i in positions]
        taken = set(numbers)
        made: list[int] = []
        given: list[TensorSpec] = []
        new_bytes: list[int] = []
        for tensor in outputs:
            n = ledger.number(tensor)
            spec, size = self.spec(tensor)
            given.append(spec)
            if n not in taken:
                made.append(n)
                new_bytes.append(size)
        held = ledger.live
        sizes = [min(size, held.get(n, size)) for n, (_, size) in zip(numbers, specs, strict=True)]
        read, wrote = traffic(facts.short, sizes, new_bytes, positions)
        stream = self.streams.now()
        waits = self.streams.take()
        if waits:
            after |= waits
        place = self.where.here(inputs)
        index = self._count
        for n in changed:
            writer[n] = index
        for n in made:
            writer[n] = index
        kind = (
            "copy" if facts.moves and len({s.device for s, _ in specs} | {s.device for s in given}) > 1 else "compute"
        )
        self._append(
            (
                *(facts.name, kind, tuple(s for s, _ in specs), tuple(given)),
                facts.flops(args, kwargs, out) if facts.flops is not None else 0.0,
                *(read, wrote, after, place.stream if place.phase == "backward" and not stream else stream, place),
                *(None, facts.scalars(args, kwargs) if facts.scalars is not None else ()),
            )
        )
        if self.reader.fake:
            self.reader.values.after(func, facts.short, args, kwargs, inputs, outputs, [inputs[i] for i in positions])

    def _append(self, row: tuple[Any, ...]) -> int:
        index = self._count
        self._rows.append(row)
        self._count = index + 1
        self.streams.issued(row[STREAM], index)
        return index

    def note(
        self,
        name: str,
        kind: str,
        after: set[int],
        inputs: tuple[TensorSpec, ...] = (),
        scalars: tuple[object, ...] = (),
        *,
        outputs: tuple[TensorSpec, ...] = (),
        traffic: tuple[float, float] = (0.0, 0.0),
        communication: Communication | None = None,
        place: Place | None = None,
    ) -> int:
        """Write down what is no ATen op: a communication, a wait, a sync. Returns its number."""
        place = place or self.where.here(())
        after = after | self.streams.take()
        stream = self.streams.now()
        return self._append((name, kind, inputs, outputs, 0.0, *traffic, after, stream, place, communication, scalars))

    def _synchronised(self, what: str, after: set[int]) -> None:
        self.note("sync", "sync", after, (), (what,))

    # ---- what Python reads

    def _read(self, func: Any, facts: OpFacts, args: Any, kwargs: Any, inputs: list[Any]) -> Any:
        value = self.reader.told(func, facts, args, kwargs, inputs)
        on_device = [t for t in inputs if t.device.type == self.device]
        if on_device:
            writer = self.ledger.writer
            after = {writer[n] for t in on_device if (n := self.ledger.known(t)) is not None and n in writer}
            self.note("sync", "sync", after, tuple(self.spec(t)[0] for t in inputs))
        return value

    def answered(self, what: str, told: object, where: str) -> None:
        """Python was told something that nobody computed."""
        self._answers.append(Answer(self._count, what, str(told), where))


class _Depth:
    """Counts up one of the recorder's depths while it is entered, which it can be again and again."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder, self._name = recorder, name

    def __enter__(self) -> None:
        setattr(self._recorder, self._name, getattr(self._recorder, self._name) + 1)

    def __exit__(self, *_: object) -> None:
        setattr(self._recorder, self._name, getattr(self._recorder, self._name) - 1)


class _Mode(TorchDispatchMode):  # type: ignore[misc]
    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No wrapper that keeps torch.compile out: nothing is compiled, and it costs as much as an op."""
        return False

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, torch._ops.OpOverload) and str(func) == "run_dtensor_rng_op":
            func, args = (
                args[2],
                args[3:],
            )  # (offset before, offset after, op, ...): DTensor's way to draw random numbers
            with self:
                return func(*args, **(kwargs or {}))
        return self._recorder.see(func, types, args, kwargs or {})


def _plain(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)
