"""Communications of a recorded script: what the virtual world is asked, as ops of the program, and what waits for them.

A dispatcher op (of `c10d`, or a functional collective) is answered by the world while the recorder holds it: the
calls that the world begins meanwhile are that op's. Exchanges of Python objects reach no dispatcher, and become ops
of their own. Waiting is heard from the work that the script waits on. Few numbers that another thread of the script
exchanges (is the job to end?) are in the journal of calls alone: it comes to them in any step.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from windtunnel.real.capture.fake_tensors.control_flow import call_site
from windtunnel.real.capture.recorder.call_tensors import leaf_tensors, written_tensors
from windtunnel.real.capture.recorder.modules import Place
from windtunnel.real.capture.recorder.op_table import OpFacts
from windtunnel.real.capture.recorder.protocol import Recording
from windtunnel.real.capture.recorder.rows import PLACE, Flight, extent_of, is_aside
from windtunnel.real.capture.torch_private import compile as compiler
from windtunnel.real.capture.virtual_world.messages import CONTROL_ELEMENTS
from windtunnel.studies.programs.communication import Communication

if TYPE_CHECKING:
    import torch
    from torch._ops import OpOverload

    from windtunnel.real.capture.virtual_world.groups import Group
    from windtunnel.real.capture.virtual_world.work import Due
    from windtunnel.real.capture.virtual_world.world import Listener
    from windtunnel.real.operator_call import Arguments, Keywords

_MOVES = ("all_gather", "gather", "scatter", "all_to_all")  # what they bring is like what is given to them
_PARTS = ("all_gather", "gather", "all_to_all")  # what they bring lies in a tensor for each member
_GIVES_NOTHING = ("send", "barrier", "monitored_barrier_")


class _InHand(threading.local):
    """The ops that a thread is in."""

    def __init__(self) -> None:
        self.depth = 0
        self.begun: list[Communication] = []  # what they asked for


def _is_beside(call: Communication) -> bool:
    """Whether it is no part of the step: few numbers that another thread exchanges, whenever it comes to it."""
    return is_aside() and (call.is_control or call.bytes <= 8 * CONTROL_ELEMENTS)


class Exchanges:
    """Of one recorder. Also the world's listener; hands on to whoever listened before."""

    def __init__(self, recorder: Recording) -> None:
        self._recorder = recorder
        self.before: Listener | None = None  # who listened before
        recorder.rows.on_race = self._raced
        recorder.rows.on_unordered = recorder.journal.note_unordered
        recorder.rows.on_partial = recorder.journal.note_partial
        self._hand = _InHand()
        self._issued: dict[int, tuple[Communication, int]] = {}  # by identity, until waited for: the op
        self._of_storage: dict[int, int] = {}  # storage -> the functional communication that fills it
        self.symmetric: set[str] = set()  # groups that the script itself asked for fused exchanges in

    # ---- what the world tells

    def begin(self, call: Communication) -> Due:
        """The world answers one."""
        self._recorder.journal.note_call(call, self._group(call))
        if self._hand.depth:
            self._hand.begun.append(call)
        elif not _is_beside(call):
            index = self._recorder.rows.note(f"object.{call.kind}", "communication", set(), communication=call)
            self._issued[id(call)] = (call, index)
            self._recorder.rows.lines[index] = self._recorder.journal.line
        return None if self.before is None else self.before.begin(call)

    def _group(self, call: Communication) -> Group | None:
        world = self._recorder.world
        return None if world is None else world.group_named(call.group)

    def _fly(self, call: Communication, filled: list[object]) -> None:
        """Its outputs are being written from now on."""
        in_flight, number = self._recorder.rows.in_flight, self._recorder.ledger.number
        for tensor in filled:
            extent = extent_of(tensor)
            if extent is not None:
                flights = in_flight.setdefault(number(tensor), [])
                flights.append(Flight(call, *extent, self._recorder.journal.line))

    def _land(self, call: Communication) -> None:
        in_flight = self._recorder.rows.in_flight
        for number, flights in list(in_flight.items()):
            rest = [flight for flight in flights if flight.call is not call]
            if rest:
                in_flight[number] = rest
            else:
                del in_flight[number]

    def _raced(self, flight: Flight, op: int) -> None:
        """An op came too early, unless somebody waits in another way: through a future, as part of a batch."""
        world = self._recorder.world
        if world is not None and world.works.is_unwaited(flight.call):
            self._recorder.journal.note_race(flight, op)
        self._land(flight.call)

    def take_partial(self, tensor: torch.Tensor, members: tuple[int, ...]) -> None:
        """The script takes its part of a sum over these ranks out of a DTensor."""
        group = self._recorder.journal.members_text(members)
        self._recorder.rows.partial[self._recorder.ledger.number(tensor)] = f"{call_site(3)} {group}"

    def on_wait(self, call: Communication) -> None:
        """The script waited for one."""
        if self._recorder.rows.in_flight:
            self._land(call)
        entry = self._issued.pop(id(call), None)
        if entry is not None:
            self._recorder.rows.note("wait", "wait", {entry[1]})
        if self.before is not None:
            self.before.on_wait(call)

    def forget(self, before: int) -> None:
        """Calls that ops before this one made are not waited for any more: the reducer of DDP waits on futures."""
        self._issued = {key: entry for key, entry in self._issued.items() if entry[1] >= before}

    # ---- ops

    def fused(self, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
        """An op of `symm_mem` that exchanges and multiplies: the parts that it has, as one compiled graph."""
        arguments = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
        self.symmetric.add(str(arguments["group_name"]))
        with self._recorder.where.one_graph():
            return compiler.unfused_exchange(func._schema.name.split("::")[1])(*args, **kwargs)

    def communicate(
        self, func: OpOverload, facts: OpFacts, args: Arguments, kwargs: Keywords, inputs: list[torch.Tensor]
    ) -> object:
        """An op that exchanges, or waits for an exchange."""
        if facts.wait:
            return self._wait_tensor(func, args, kwargs)
        recorder = self._recorder
        hand = self._hand
        before = len(hand.begun)
        hand.depth += 1
        try:
            out = self._answered(func, args, kwargs, inputs)
        finally:
            hand.depth -= 1
        calls: list[Communication | None] = [*hand.begun[before:]]
        del hand.begun[before:]
        if calls and all(call is not None and _is_beside(call) for call in calls):
            return out
        outputs = leaf_tensors(out)
        ledger, writer = recorder.ledger, recorder.ledger.writer
        numbers = [ledger.number(t) for t in inputs]
        after = {writer[n] for n in numbers if n in writer}
        specs = tuple(recorder.rows.spec(t)[0] for t in inputs)
        output_specs = tuple(recorder.rows.spec(t)[0] for t in outputs)
        size = float(sum(recorder.rows.spec(t)[1] for t in inputs))
        place = self._place(inputs, after, facts.short.startswith("recv"))
        index = -1
        if recorder.rows.streams.made_by_script and calls and calls[0] is not None:
            recorder.rows.look_for_unordered(inputs, numbers, recorder.journal.group_text(calls[0]))
        for call in calls or [None]:
            index = recorder.rows.note(
                *(facts.name, "communication", after, specs),
                outputs=output_specs,
                traffic=(size, size),
                communication=call,
                place=place,
            )
            if call is not None:
                self._issued[id(call)] = (call, index)
                recorder.rows.lines[index] = recorder.journal.line
        written = _filled(facts, args, kwargs)
        if calls and calls[-1] is not None and calls[-1].kind in _PARTS and len(set(map(id, written))) < len(written):
            recorder.journal.note_overlap(calls[-1])
        filled = [*written, *outputs]
        for call in calls:
            if call is not None:
                recorder.buffers.saw_exchange(call, [*inputs, *filled])
                recorder.replicas.exchanged(call, index, filled, recorder.journal.line)
        for tensor in filled:
            n = ledger.number(tensor)
            writer[n] = index
            recorder.rows.partial.pop(n, None)
            ledger.categories.setdefault(n, "communication")
        if any(call is not None and call.kind in _MOVES for call in calls):
            recorder.reader.values.choices.moved(inputs, filled)
        if facts.name.startswith("_c10d_functional"):
            for tensor in outputs:
                self._of_storage[ledger.number(tensor)] = index
        elif calls and calls[-1] is not None:
            self._fly(calls[-1], filled)
        return out

    def _answered(self, func: OpOverload, args: Arguments, kwargs: Keywords, inputs: list[torch.Tensor]) -> object:
        recorder = self._recorder
        if not recorder.reader.fake or recorder.world is None:
            return func(*args, **kwargs)
        answer = recorder.world.answer
        if inputs and not recorder.reader.holds_nothing(inputs):
            return recorder.reader.run_outside(answer, (func, args, kwargs), {})
        return answer(func, args, kwargs)

    def _place(self, inputs: list[torch.Tensor], after: set[int], received: bool) -> Place:
        """Outside all modules: that of what is sent."""
        recorder = self._recorder
        place = recorder.where.place_of(inputs)
        if place.module or place.phase not in ("other", "forward") or received:
            return place
        base, rows = recorder.rows.base, recorder.rows.rows
        source = max((i for i in after if i >= base), default=None)
        if source is None:
            return place
        of_source: Place = rows[source - base][PLACE]
        return place._replace(phase=of_source.phase, micro_batch=of_source.micro_batch)

    def _wait_tensor(self, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
        recorder = self._recorder
        numbers = [recorder.ledger.number(tensor) for tensor in leaf_tensors(args[0])]
        count = recorder.rows.count()
        own = recorder.reader.fake and recorder.world is not None
        out = recorder.world.answer(func, args, kwargs) if own else func(*args, **kwargs)
        issued = {at for number in numbers if (at := self._of_storage.pop(number, None)) is not None}
        if recorder.rows.count() == count and issued:  # otherwise the work's own wait was heard
            recorder.rows.note("wait", "wait", issued)
        for tensor in leaf_tensors(out):
            recorder.ledger.number(tensor)
        return out


def _filled(facts: OpFacts, args: Arguments, kwargs: Keywords) -> list[object]:
    """What an op of c10d writes: its first argument, which its schema does not say."""
    if facts.short in _GIVES_NOTHING:
        return []
    return written_tensors(facts, args, kwargs) or (
        leaf_tensors(args[0]) if facts.name.startswith("c10d.") and args else []
    )
