"""Records what one rank of a running script executes: ops, communications, waits, memory.

One dispatch mode sees every op that reaches PyTorch's dispatcher, below autograd: on real tensors, as an observer
that changes nothing, and on fake ones, where it also answers communications (through the virtual world) and what
Python reads.

    with fake_tensors("cuda"), World(rank, world_size, ...) as world, Recorder(rank, world_size, world) as recorder:
        ...                                  # the script
    program = recorder.program               # of the last finished step

A step ends with the last optimizer that stepped before the next forward pass that is trained on, and the next begins
there; the first begins with the first such forward. In a script that calls no module until it steps, steps begin and
end where its optimizer has stepped, the first with the script; a forward pass after all begins anew. Where no optimizer
of PyTorch's is used, a step ends with the last write of a parameter behind a backward pass.
`begin_step` and `end_step` set other bounds.

An op depends on the last writer of every storage it reads, on the last op of each stream that its stream was told to
wait for, and, if it is a wait, on the communication it waits for.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from windtunnel.real.capture.fake_tensors.control_flow import Answers
from windtunnel.real.capture.fake_tensors.data_dependent import Reader
from windtunnel.real.capture.fake_tensors.dispatch_cache import FastFakes
from windtunnel.real.capture.recorder.call_journal import CallJournal
from windtunnel.real.capture.recorder.call_tensors import local_part
from windtunnel.real.capture.recorder.dispatch import Watch
from windtunnel.real.capture.recorder.exchanges import Exchanges
from windtunnel.real.capture.recorder.flat_buffers import FlatBuffers
from windtunnel.real.capture.recorder.modules import Whereabouts
from windtunnel.real.capture.recorder.op_table import OpFacts, facts_of
from windtunnel.real.capture.recorder.replicas import Replicas
from windtunnel.real.capture.recorder.rows import PLACE, Rows, measured, ops_of
from windtunnel.real.capture.recorder.storages import Ledger, categorised
from windtunnel.real.capture.recorder.uneven_shards import tails_of
from windtunnel.real.capture.torch_private import compile as compiler
from windtunnel.real.capture.torch_private import recorder as compat
from windtunnel.real.capture.torch_private.nested import attention_by_lengths
from windtunnel.studies.programs.program import Answer, RankProgram

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from windtunnel.real.operator_call import Arguments, Keywords


class Recorder:
    """Of one rank. `programs` holds the finished steps ("all"), or the last of them, but for those before `first`."""

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
        first: int = 1,
        on_bound: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_step` is given finished steps from `first` on; `on_bound` hears of every step's end."""
        from windtunnel.real.capture.fake_tensors.pretend_cuda import pretended

        self.rank, self.world_size, self.world = rank, world_size, world
        self.keep, self.on_step, self.first, self.on_bound = keep, on_step, first, on_bound
        self.programs: list[RankProgram] = []
        self.cuda = pretended()
        self.device = device or ("cuda" if self.cuda is not None or torch.cuda.is_available() else "cpu")
        self.ledger = Ledger(lambda: self.rows.count(), self.device)
        self.where = Whereabouts(self._forward_begins)
        self.rows = Rows(self.ledger, self.where, self.device)
        self.reader = Reader(self, answers or Answers())
        self.notes: dict[str, None] = {}
        self.own_reads: dict[str, None] = {}  # lines of the script
        self._earlier = 0
        self._resident: dict[int, int] = {}
        self._bound: tuple[int, int] | None = None  # (ops, memory events) when the last optimizer had stepped
        self._by_hand = self._began = self._without_modules = False
        self._has_optimizer = False
        self._began_at = time.perf_counter()
        self.steps = 0  # that were finished
        self._answers: list[Answer] = []
        self.journal = CallJournal(rank, world_size, self.rows, lambda: self._guessed)
        self._guessed = False  # Python was told a whole number that nobody knows
        self.exchanges = Exchanges(self)
        self._parameters: dict[int, int] = {}  # of all optimizers: elements that are here
        self.tails: dict[tuple[int, ...], set[int]] = {}  # of groups that share a parameter: where parts become shorter
        self.buffers = FlatBuffers(self.ledger)
        self.replicas = Replicas(rank, world_size, self.rows)
        self._mode = Watch(self, self.exchanges)
        self._open = ExitStack()

    # ---- life

    def __enter__(self) -> Recorder:
        with ExitStack() as opening:
            opening.enter_context(self.where)
            self.where.stream = self.rows.streams.current_stream
            self.where.on_module = self.buffers.saw_module
            opening.callback(compat.watch_resize(self.ledger.resized))
            opening.callback(compat.on_partial_taken(self.exchanges.take_partial))
            opening.callback(compat.around_sharding_propagation(_Depth(self._mode, "unseen")))
            if compat.fake_mode() is not None:
                opening.callback(compat.around_reducer_integers(_Depth(self._mode, "real_integers")))
                read = self.reader.read_value
                in_threads = compat.on_reads_in_threads(
                    lambda func, tensor: read(func, facts_of(func), (tensor,), {}, [tensor])
                )
                opening.callback(in_threads)
                opening.callback(attention_by_lengths(self.reader.values.exact_value))
            opening.callback(compat.no_dispatch_rules())
            opening.callback(register_optimizer_step_pre_hook(self._optimizer_begins).remove)
            opening.callback(register_optimizer_step_post_hook(self._optimizer_ends).remove)
            if self.cuda is not None:
                opening.enter_context(self.cuda.recorded_by(self.rows.streams, self.ledger))
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
            self._mode.answer_with(fakes)
            if self.cuda is not None:
                self.cuda.watch_device(lambda _: fakes.forget())
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._bound = self._bound or self._written_by_hand()
        self._open.close()
        if self._bound is not None and not self._by_hand:
            self._finish(self._bound, report=kind is None)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        world, values = self.world, self.reader.values
        before, fake = world.listener, world.fake
        world.on_set_up = self.journal.note_set_up
        world.listener, self.exchanges.before = self.exchanges, before
        if compat.fake_mode() is not None:
            world.fake, world.known_value, world.let_know = True, values.value, values.learn
            world.exact_value = values.exact_value
            world.outputs_of = self._mode.run
        try:
            yield
        finally:
            world.listener, world.fake, world.on_set_up = before, fake, None
            for name in ("known_value", "exact_value", "let_know", "outputs_of"):
                vars(world).pop(name, None)

    @property
    def program(self) -> RankProgram:
        """The program of the last finished step."""
        if not self.programs:
            raise LookupError("no step was finished: the script stepped no optimizer, nor was end_step called")
        return self.programs[-1]

    # ---- steps

    def begin_step(self) -> None:
        """A step begins here; it ends at `end_step`, wherever optimizers step."""
        self._by_hand = True
        self._start((self.rows.count(), len(self.ledger.events)))

    def end_step(self) -> RankProgram:
        """The step that began at `begin_step` (or with the first forward pass) is over."""
        self._finish((self.rows.count(), len(self.ledger.events)), report=True)
        self._by_hand = False
        return self.programs[-1]

    def _forward_begins(self) -> None:
        if self._by_hand or (self.where.optimizers and not torch.is_grad_enabled()):  # with gradients: its closure
            return
        if self._without_modules:  # what stepped before only made state, as loading a checkpoint does
            self._without_modules = self._began = False
            self.steps = 0
            self.programs.clear()
            self.journal.forget_steps()
        self._bound = self._bound or self._written_by_hand()
        if self._bound is not None:
            self._finish(self._bound, report=True)
        elif not self._began:
            self.replicas.begin(self.where.roots)
            self._start((self.rows.count(), len(self.ledger.events)))

    def _written_by_hand(self) -> tuple[int, int] | None:
        """Where a script without PyTorch's optimizers last wrote parameters, if no backward pass came after."""
        if self._has_optimizer or not self._began:
            return None
        rows, base = self.rows.rows, self.rows.base
        backward = next((i for i in range(len(rows) - 1, -1, -1) if rows[i][PLACE].phase == "backward"), None)
        if backward is None:
            return None
        parameters = [p for root in self.where.roots for p in root.parameters() if p.requires_grad]
        written = max(self.rows.writers([local_part(p) for p in parameters]), default=-1)
        if written <= base + backward:
            return None
        sizes = {id(p): local_part(p).numel() for p in parameters}
        optimizers = [value for value in gc.get_objects() if issubclass(type(value), torch.optim.Optimizer)]
        # One that wraps another may have no groups of its own.
        groups = [group for optimizer in optimizers for group in getattr(optimizer, "param_groups", ())]
        stepped = {id(p) for group in groups for p in group["params"]}
        self._has_optimizer = not stepped.isdisjoint(sizes)
        if self._has_optimizer:  # it has not stepped yet
            return None
        self._parameters = sizes
        self.ledger.mark((local_part(p) for p in parameters), "parameter")
        return written + 1, sum(op <= written for op, _, _ in self.ledger.events)

    def _start(self, bound: tuple[int, int]) -> None:
        ops, events = bound
        later = self.ledger.events[events:]
        self.rows.begin(ops)
        self._resident = self.ledger.begin()
        self.ledger.events = later
        for _, number, gained in later:  # these belong to the step that begins: take them back from what it finds
            self._resident[number] = self._resident.get(number, 0) - gained
        self._resident = {number: size for number, size in self._resident.items() if size > 0}
        self._answers = [a for a in self._answers if a.op >= ops]
        self.exchanges.forget(self._earlier)
        self._earlier = ops
        self._bound, self._began = None, True
        self._began_at = time.perf_counter()
        self.where.begin_step()

    def _finish(self, bound: tuple[int, int], *, report: bool) -> None:
        self.journal.end_step(bound[0])
        self.on_bound()
        program = self._assembled(*bound) if self.steps + 1 >= self.first else None
        self.steps += 1
        if program is not None:
            if self.keep == "last":
                self.programs.clear()
            self.programs.append(program)
        self._start(bound)
        # Without any forward or backward pass it may only make an optimizer's state: whoever waits is not told.
        trained = program is not None and any(op.phase == "backward" for op in program.ops)
        if program is not None and report and self.on_step is not None and (trained or not self._without_modules):
            self.on_step(program)

    def _assembled(self, ops: int, events: int) -> RankProgram:
        base, ledger = self.rows.base, self.ledger
        step_ops = ops_of(self.rows.rows[: ops - base], base, self.rows.lines)
        last = max(0, len(step_ops) - 1)
        resident, memory = categorised(
            ledger.events[:events],
            self._resident,
            ledger.categories,
            lambda i: step_ops[i].phase if i < len(step_ops) else "other",
            base,
            last,
        )
        meshes = tuple(getattr(self.world, "meshes", ()) or ())
        return RankProgram(
            rank=self.rank,
            world_size=self.world_size,
            ops=step_ops,
            memory=memory,
            resident=resident,
            answers=tuple(a._replace(op=a.op - base) for a in self._answers if base <= a.op < max(ops, base + 1)),
            meshes=meshes,
            coordinates=tuple(getattr(self.world, "coordinates", ()) or ()),
            notes=tuple(self.notes),
            facts={"device": self.device, "step": self.steps, **self._figures(base, last)},
        )

    def _figures(self, base: int, last: int) -> dict[str, object]:
        seconds = round(time.perf_counter() - self._began_at, 3)
        parameters = sum(self._parameters.values())
        memory = measured(self.ledger, base, last, self.exchanges.symmetric)
        return {"parameters": parameters, "seconds_to_capture": seconds, **memory}

    # ---- optimizers

    def _optimizer_begins(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self.where.optimizers += 1
        self._has_optimizer = True
        if self.where.optimizers == 1:
            self.where.steps_in_backward = compat.in_backward()
            self.replicas.step(optimizer, self.where.roots)
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            for members, places in tails_of(p for p in parameters if id(p) not in self._parameters).items():
                self.tails.setdefault(members, set()).update(places)
            self._parameters |= {id(p): local_part(p).numel() for p in parameters}
            self.ledger.mark((local_part(p) for p in parameters), "parameter")
            self.ledger.mark((local_part(p.grad) for p in parameters if p.grad is not None), "gradient")

    def _optimizer_ends(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        states = (v for state in optimizer.state.values() if isinstance(state, dict) for v in state.values())
        self.ledger.mark((local_part(v) for v in states if isinstance(v, torch.Tensor)), "optimizer")
        gradients = (
            p.grad for group in optimizer.param_groups for p in group["params"]
        )  # a closure has made them just now
        self.ledger.mark((local_part(g) for g in gradients if g is not None), "gradient")
        self.where.optimizers -= 1
        if self.where.optimizers:  # one that another one steps
            return
        if not self._began:
            self._without_modules = True
            self._start((0, 0))
        self._bound = (self.rows.count(), len(self.ledger.events))
        self.where.optimizer_stepped()
        self.replicas.forget_reduced()
        if self._without_modules and not self._by_hand:
            self._finish(self._bound, report=True)

    # ---- what Python reads

    def read(
        self, func: OpOverload, facts: OpFacts, args: Arguments, kwargs: Keywords, inputs: list[torch.Tensor]
    ) -> object:
        """An op that gives Python a value: what it is told; the host waits for the device."""
        value = self.reader.read_value(func, facts, args, kwargs, inputs)
        on_device = [t for t in inputs if t.device.type == self.device]
        if on_device:
            self.rows.streams.host_waited()
            self.rows.sync(self.rows.writers(on_device), tuple(self.rows.spec(t)[0] for t in inputs))
        if compiler.reading_breaks():
            self.where.graph_breaks()
        return value

    def read_own(self, where: str) -> None:
        """Python read what this rank made from its own data alone: others may hold something else."""
        self.own_reads[where] = None

    def record_answer(self, what: str, answer: object, where: str) -> None:
        """Python was told something that nobody computed."""
        self._guessed = self._guessed or "int" in what
        self._answers.append(Answer(self.rows.count(), what, str(answer), where))


class _Depth:
    """Counts up one of the mode's depths while it is entered, which it can be again and again."""

    def __init__(self, mode: Watch, name: str) -> None:
        self._mode, self._name = mode, name

    def __enter__(self) -> None:
        setattr(self._mode, self._name, getattr(self._mode, self._name) + 1)

    def __exit__(self, *_: object) -> None:
        setattr(self._mode, self._name, getattr(self._mode, self._name) - 1)
