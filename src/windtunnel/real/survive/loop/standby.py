"""`standby`: a step of the user's loop that is done again when a rank dies, and a place for whoever replaces it.

A call counts once every rank has done it: then all have met, told each other digests of their state, and given what no
replica holds to a neighbour. When a rank dies, the others put back what they had at the start of the call, another
process takes that very rank, and all do the call again. What a replacement does until then, and when the job starts
anew instead: docs/resilience-live.md.
"""

from __future__ import annotations

import io
import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

import torch
import torch.distributed as dist

from windtunnel.errors import SpecError, UserError
from windtunnel.real.survive.live.group import PendingGroup, Spare, abort, packed, received, sending, store_of
from windtunnel.real.survive.live.place import newest_view, own_place
from windtunnel.real.survive.loop.between import Between
from windtunnel.real.survive.loop.framework import forget_reductions, forget_step, lay_buckets
from windtunnel.real.survive.loop.groups import GROUPS, is_lost_connection
from windtunnel.real.survive.loop.identity import ENDS, POLL_S, Identity, known_identity
from windtunnel.real.survive.loop.parts import Part, digest, parts_of, random_numbers, set_random_numbers, unchanged
from windtunnel.real.survive.loop.warm import tell_imports

P = ParamSpec("P")
R = TypeVar("R")
ALONE_CALLS = 2  # of a replacement; before so many are done a death starts the job anew
STORED_BYTES = 256 << 10  # of a rank's own state: more than that goes to a neighbour
WATCH_S = 0.1
DEATH_SEEN_S = 1.0


def standby(step: Callable[P, R], *things: object, **keywords: object) -> Callable[P, R]:
    """The step, to be called in its place. Without the launcher it is the step itself.

    `things`: all that a step changes: models, optimizers, scalers, schedulers, averages. What a call returns has to be
    picklable: a replacement gets it for the calls that it leaves out. Raises SpecError for a thing without state.
    """
    every = {f"{at}": thing for at, thing in enumerate(things)} | keywords
    parts = parts_of(every)
    if own_place() is None:
        return step
    if not dist.is_initialized():
        raise UserError("standby: there is no process group: call torch.distributed.init_process_group before it")
    return _Standby(step, every, parts, known_identity())


@dataclass
class _Agreement:
    """What was agreed when a call was committed."""

    table: list[list[int]]  # digests, by rank and part
    neighbour: bytes = b""  # of the rank that gives its shards to this one


class _LostMemberError(Exception):
    """The step does not count: a rank is gone."""


class _Standby(Generic[P, R]):
    def __init__(
        self, step: Callable[P, R], things: Mapping[str, object], parts: Sequence[Part], who: Identity
    ) -> None:
        self.step, self.things, self.parts, self.who = step, things, parts, who
        self.size = who.place.size
        self.calls = 0  # begun and not to be done again
        self.committed = -1 if who.joins else 0
        self.first = True  # no call is committed yet in this view
        self.voting = False
        self.held = self.pending = _Agreement([])
        self.at_commit: list[object] = []  # copies of all parts as they were when the last call counted
        self.before: list[object] = []  # and at the start of the call; the same ones where nothing came between
        self.random_before: object = None
        self.group: Any = None
        self.generation = who.generation - who.joins
        self.between = Between(
            lambda error: is_lost_connection(error) or self._somebody_died(), self._recover, self._start_anew
        )
        self.store, self.spare = who.store, Spare(who.place)
        self.watched = threading.Lock()
        self.over = threading.Event()
        watch = threading.Thread(target=self._watch, daemon=True, name="watch")
        watch.start()
        ENDS.extend((self.over.set, watch.join, self.spare.close))
        if not who.joins:
            self.store.set(who.key("wrapped"), "1")
            members = newest_view(self.store)["members"]  # type: ignore[index]
            building = PendingGroup(who.place, self.generation, members, self.spare.take())
            self.group = building.wait(self._superseded)
            if self.group is None:
                self._start_anew()
            counts = [count for (count,) in self._gathered([len(parts)])]
            if len(set(counts)) > 1:
                raise SpecError("standby", f"{counts} parts by rank", "name the same things on every rank")

    def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> R:
        number, tape = self.calls, GROUPS.tape
        assert tape is not None, "of a known rank"
        GROUPS.between, self.between.is_open = None, False
        tape.begin(f"call {number}")
        left_out = self.committed < 0 or number < self.committed
        value = (self._left_out if left_out else self._done)(number, lambda: self.step(*arguments, **keywords))
        self.calls += 1
        tape.begin(f"after {self.calls}")
        if self.calls >= ALONE_CALLS:
            GROUPS.alone, GROUPS.between = self.calls < self.committed, self.between
            self.between.is_open = True
        return value

    def _done(self, number: int, step: Callable[[], R]) -> R:
        if number and self.random_before is not None and not unchanged(random_numbers(), self.random_before):
            self.store.set(self.who.key("random", self.who.rank, number - 1), pickle.dumps(self.random_before))
        self._keep()
        value: list[R] = []
        while True:
            value.clear()
            problem = self._attempt(number, step, value)
            if problem is None:
                break
            if self._recover():  # all have done this call, as one that went on tells
                break
            self._put_back()
        self.random_before = random_numbers()
        return value[0]

    def _attempt(self, number: int, step: Callable[[], R], value: list[R]) -> str | None:
        """Do the call and commit it; what went wrong where a member was lost. An error of the script's own is raised.

        No traceback survives this: its frames would hold connections that the others wait for.
        """
        self.voting = False
        try:
            self.between.settle()
            value.append(step())
            self._commit(number, value[0])
        except _LostMemberError as lost:
            return str(lost)
        except Exception as error:
            if not is_lost_connection(error) and not self._somebody_died():
                raise
            return str(error)
        return None

    def _somebody_died(self) -> bool:
        """Whether the launcher publishes another view by now: what fails then may fail for that."""
        until = time.time() + DEATH_SEEN_S
        while not self._superseded():
            if time.time() > until:
                return False
            time.sleep(POLL_S)
        return True

    def _keep(self) -> None:
        copies = self.at_commit or [None] * len(self.parts)
        both = zip(self.parts, copies, strict=True)
        self.before = [copy if unchanged(part.read(), copy) else part.copied() for part, copy in both]

    def _put_back(self) -> None:
        forget_step(self.things.values())
        for part, tree in zip(self.parts, self.before, strict=True):
            part.put(tree)

    def _commit(self, number: int, value: R) -> None:
        """All ranks have done the call: tell each other so, and give a neighbour what no replica holds."""
        lay_buckets(self.things.values())
        self.pending = _Agreement(self._gathered([digest(part.read()) for part in self.parts]))
        own = self._alone_with(self.pending)
        data = packed({at: self.parts[at].copied() for at in own})
        if len(data) <= STORED_BYTES:
            self.store.set(self.who.key("own", self.who.rank, (number + 1) % 2), packed((number + 1, data)))
            data = b""
        self.pending.neighbour = self._exchanged(data)
        result = value.detach() if isinstance(value, torch.Tensor) else value
        try:
            self.store.set(self.who.key("value", self.who.rank, number), pickle.dumps(result))
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            remedy = "return a number, a tensor or nothing: a replacement gets it for the calls that it leaves out"
            raise SpecError("standby: what the step returns", type(value).__name__, f"{remedy} ({error})") from None
        self.voting = True
        self._gathered([number + 1])
        self._committed(number + 1)

    def _committed(self, calls: int) -> None:
        self.voting = False
        self.committed, self.held = calls, self.pending
        self.before = self.at_commit = []  # not one more copy at any time
        self.at_commit = [part.copied() for part in self.parts]
        self.between.clear()
        if calls >= ALONE_CALLS:
            GROUPS.recording = False
        if self.who.rank == 0:
            if self.first:
                self.store.set(f"first/{self.generation}", repr(time.time()))
            if calls == ALONE_CALLS + 1:  # by then all others have done two calls for certain
                self.store.set(self.who.key("goes on"), "1")
                tell_imports(self.store)
        self.first = False

    def _gathered(self, row: Sequence[int]) -> list[list[int]]:
        everyone = [torch.zeros(len(row), dtype=torch.int64) for _ in range(self.size)]
        if self.group is None:
            raise _LostMemberError("the group of all ranks is closed")
        self.group.allgather([everyone], [torch.tensor(list(row), dtype=torch.int64)]).wait()
        return [tensor.tolist() for tensor in everyone]

    def _exchanged(self, data: bytes) -> bytes:
        """Give to the rank after this one, get of the one before."""
        if self.size == 1 or not any(length for (length,) in self._gathered([len(data)])):
            return b""
        works = sending(self.group, data, (self.who.rank + 1) % self.size, 2)
        got = received(self.group, (self.who.rank - 1) % self.size, 2)
        for work in works:
            work.wait()
        return got

    def _recover(self) -> bool:
        """Meet in the next view. True where the call under way turns out to be committed."""
        while True:
            if self.group is not None:  # it came apart
                self._close()
                self.store.set(f"broken/{self.generation}", "1")
            view = newest_view(self.store)
            if view is not None and not view["members"]:
                raise UserError("standby: the job has ended while this rank waited for another")
            if view is None or view["generation"] <= self.generation or self.who.place.name not in view["members"]:
                time.sleep(POLL_S)
                continue
            self.generation, self.first = view["generation"], True
            if not self._all_ready(view["members"]):
                continue
            store = self.spare.take()
            group = PendingGroup(self.who.place, self.generation, view["members"], store).wait(self._superseded)
            connections = None if group is None else GROUPS.connections(store, self.generation, self._superseded)
            if connections is None:
                self.store.set(f"broken/{self.generation}", "1")
                continue
            with self.watched:
                self.group = group
                GROUPS.adopt(connections)
            forget_reductions(self.things.values())
            self.between.again()
            committed = self._agreed()
            if committed is not None:
                return committed

    def _all_ready(self, members: Sequence[str]) -> bool:
        """Wait for a replacement that still builds its model; False where another view comes before."""
        self.store.set(f"ready/{self.generation}/{self.who.place.name}", "1")
        keys = [f"ready/{self.generation}/{name}" for name in members]
        while not self.store.check(keys):
            if self._superseded():
                return False
            time.sleep(POLL_S)
        return True

    def _agreed(self) -> bool | None:
        """Compare how far all are. Whether this rank's call is committed by that; None where a member is lost."""
        try:
            rows = self._gathered([self.committed, int(self.voting)])
            furthest = max(committed for committed, _ in rows)
            decided = self.voting and self.committed == furthest - 1
            if decided:
                self._committed(furthest)
            self.voting = False
            newcomers = [rank for rank, (committed, _) in enumerate(rows) if committed < 0]
            if len(newcomers) == self.size:
                self._start_anew()
            self._tell_table()
            self._give_state(furthest, newcomers)
        except _LostMemberError:
            return None
        except RuntimeError as error:
            if not is_lost_connection(error):
                raise
            return None
        return decided

    def _tell_table(self) -> None:
        """Digests of the last call that counts, to those who were not there."""
        has_table, width = bool(self.held.table), len(self.parts)
        flat = [number for row in self.held.table for number in row] if has_table else [-1] * (self.size * width)
        digests = next(row for row in self._gathered(flat) if row[0] >= 0)
        self.held.table = [digests[at : at + width] for at in range(0, len(digests), width)]

    def _give_state(self, furthest: int, newcomers: list[int]) -> None:
        """Newcomers get the state as of the last call that counts.

        What their predecessors alone had comes from the store where it is small, and shards from a neighbour; what
        replicas share from the first that has it.
        """
        got: dict[int, object] = {}
        for rank in newcomers:
            holder = (rank + 1) % self.size
            if holder not in newcomers and self.who.rank == holder:
                self._send(self.held.neighbour, rank)
            elif self.who.rank == rank:
                data = b"" if holder in newcomers else received(self.group, holder)
                key = self.who.key("own", rank, furthest % 2)
                if not data and self.store.check([key]):
                    number, stored = _unpacked(self.store.get(key))
                    data = stored if number == furthest else b""
                if not data:
                    self._start_anew()
                got |= _unpacked(data)
        for rank in newcomers:
            for source, wanted in self._sources(rank, newcomers).items():
                if self.who.rank == source:
                    self._send(packed({at: self.at_commit[at] for at in wanted}), rank)
                elif self.who.rank == rank:
                    got |= _unpacked(received(self.group, source))
        if self.who.rank in newcomers:
            self.at_commit, self.committed = [got[at] for at in range(len(self.parts))], furthest
        for rank in newcomers:  # from here on its neighbour may die too
            if self.who.rank == (rank - 1) % self.size:
                data = packed({at: self.at_commit[at] for at in self._alone_with(self.held)})
                self._send(data if len(data) > STORED_BYTES else b"", rank)
            elif self.who.rank == rank:
                self.held.neighbour = received(self.group, (rank - 1) % self.size)
        self._gathered([0])

    def _alone_with(self, agreed: _Agreement) -> list[int]:
        """Parts that no other rank had."""
        return [at for at in range(len(self.parts)) if _alone_with_it(agreed.table, at, self.who.rank)]

    def _sources(self, rank: int, newcomers: list[int]) -> dict[int, list[int]]:
        """Who gives which shared parts to a newcomer."""
        table, sources = self.held.table, dict[int, list[int]]()
        for at in range(len(self.parts)):
            if _alone_with_it(table, at, rank):
                continue
            alike = [
                number for number, row in enumerate(table) if row[at] == table[rank][at] and number not in newcomers
            ]
            if not alike:
                self._start_anew()
            sources.setdefault(alike[0], []).append(at)
        return sources

    def _start_anew(self) -> None:
        """Nobody has the state: the launcher ends all ranks and begins again."""
        self.store.set(self.who.key("lost"), "1")
        while True:
            time.sleep(1.0)

    def _left_out(self, number: int, step: Callable[[], R]) -> R:
        """A call that the predecessor did: what it gave back. The first ones are done as well, alone."""
        if number < ALONE_CALLS:
            step()
            lay_buckets(self.things.values())  # as the predecessor did, whose answers are on the tape
        if number == ALONE_CALLS - 1:
            forget_step(self.things.values())
            self._recover()
        if number == self.committed - 1:
            for part, tree in zip(self.parts, self.at_commit, strict=True):
                part.put(tree)
            self.random_before = random_numbers()
        else:
            key = self.who.key("random", self.who.rank, number)
            if self.store.check([key]):
                set_random_numbers(pickle.loads(self.store.get(key)))
        value: R = pickle.loads(self.store.get(self.who.key("value", self.who.rank, number)))
        return value

    def _send(self, data: bytes, rank: int) -> None:
        for work in sending(self.group, data, rank):
            work.wait()

    def _close(self) -> None:
        with self.watched:
            group, self.group = self.group, None
            GROUPS.close()
            GROUPS.drop()
            if group is not None:
                abort(group)

    def _watch(self) -> None:
        """A loss that no connection tells of is told by the next view: then nobody waits in the groups of this one."""
        store = store_of(self.who.place)
        with suppress(RuntimeError):  # the launcher has gone
            while not self.over.wait(WATCH_S):
                view = newest_view(store)
                if view is None or view["generation"] <= self.generation or not view["members"]:
                    continue
                with self.watched:
                    if self.group is not None and view["generation"] > self.generation:
                        GROUPS.close()
                        abort(self.group)

    def _superseded(self) -> bool:
        view = newest_view(self.store)
        return view is not None and view["generation"] > self.generation


def _alone_with_it(table: list[list[int]], at: int, rank: int) -> bool:
    return sum(row[at] == table[rank][at] for row in table) == 1


def _unpacked(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=False)  # of a rank of this very job
