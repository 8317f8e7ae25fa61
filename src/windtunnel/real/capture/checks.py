"""What is held against each other when ranks have been run, and what that says about the real job."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias

from windtunnel.real.capture.arguments import Launch
from windtunnel.real.capture.processes.fork_server import BYTECODE
from windtunnel.real.capture.processes.rank_process import ASIDE, program_file
from windtunnel.real.capture.processes.rank_server import ScriptError
from windtunnel.real.capture.processes.scheduler import Workers
from windtunnel.real.capture.source.branches import deciding_clocks, deciding_places
from windtunnel.real.capture.source.conditions import calls_not_reached, ranks_named
from windtunnel.real.capture.source.set_order import numbers_drawn, orders_taken
from windtunnel.real.capture.uneven_loops import CALLS, Outcome, uneven_loops
from windtunnel.studies.programs.program import RankProgram
from windtunnel.studies.programs.program_file import read_program
from windtunnel.studies.programs.rank_classes.equality import first_difference
from windtunnel.studies.programs.rank_classes.findings import CORRUPT, CallEntry, CallLog, Finding, compare
from windtunnel.studies.programs.rank_classes.replicas import compare_replicas

MOST_RANKS = 64  # that a finding names where it may be any
MOST_NOT_REACHED = 12
LARGE = 1e30  # for what cannot be reckoned with infinity: `int` takes none
HASH_SEEDS = ("1", "2", "3")  # under which a rank is run again
AGAIN = {"goes_on": False, "is_again": True}  # of a rank's task: it was run before, and what its source says is known
MOST_CPU_S = 30.0  # that this is to take: of it, with those that it waits for, under all of them, not the first alone


_Pair: TypeAlias = tuple[CallEntry | None, CallEntry | None]


class FindingsError(ScriptError):
    """The real job would hang or crash. `document` has `findings`, and what else is known of the script."""

    def __init__(self, message: str, details: str, document: Mapping[str, Any]) -> None:
        self.document = document
        super().__init__(message, details)


class _Trial(NamedTuple):
    """How a rank is run again, and what a difference says."""

    task: Mapping[str, object]
    kind: str
    source: str
    otherwise: str
    remedy: str


def _own(value: float, places: Sequence[tuple[str, int]]) -> _Trial:
    remedy = "Ranks with other data part here and wait for ever: reduce the value among the ranks first"
    lines = [f"{path}:{line}" for path, line in places]
    return _Trial(
        {"own": value, "own_lines": lines},
        "data",
        "comes from its own data alone",
        "where it is large" if value > 1.0 else "where it is next to nothing",
        remedy,
    )


def _fast_clock(places: Sequence[tuple[str, int]]) -> _Trial:
    remedy = "Ranks come to it at different times, part here and wait for ever: let one rank decide, and broadcast it"
    return _Trial({"clock": places}, "clock", "is the time of its own", "where that goes faster", remedy)


class Checks:
    """Of one capture. Raises FindingsError where something is found that would end the real job."""

    def __init__(self, launch: Launch, device: Literal["cuda", "cpu"], workers: Workers) -> None:
        self._launch, self._device, self._workers = launch, device, workers
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self._compared = ""
        self._known_logs: dict[str, tuple[int, CallLog | None]] = {}  # and when they were written

    def explain(self, error: ScriptError) -> None:
        """Say what ended a capture, where that is a fault of the script that would end the real job too."""
        if isinstance(error, FindingsError):
            return
        self.findings += compare(self._logs(), self._launch.world_size)
        fatal = [finding for finding in self.findings if finding.is_fatal]
        if fatal:
            self._refuse(f"{fatal[0].text} ({error})", error.details)
        raised = (
            self._workers.exception(rank) for rank, of in self._workers.outcomes.items() if of["status"] == "error"
        )
        finding = error.finding or next((finding for finding in raised if finding is not None), None)
        if finding is not None:
            self.findings.append(finding)
            self._refuse(str(error), error.details)

    def compare_calls(self) -> None:
        """All calls of the ranks that were run, and what they read too early."""
        races: dict[tuple[str, str], Finding] = {}
        for outcome in self._workers.outcomes.values():
            for race in outcome.get("races", ()):
                finding = Finding(**{**race, "ranks": tuple(race["ranks"])})
                before = races.get((finding.line, finding.group))
                ranks = (*before.ranks, *finding.ranks) if before is not None else finding.ranks
                text = before.text if before is not None else finding.text
                races[finding.line, finding.group] = Finding(
                    finding.kind, ranks, finding.group, finding.line, text, CORRUPT
                )
        self.findings += races.values()
        replicas = {rank: outcome.get("replicas", ()) for rank, outcome in self._workers.outcomes.items()}
        self.findings += compare_replicas(replicas, self._launch.world_size)
        found_now: list[Finding] = []
        for finding in (
            *compare(self._logs(), self._launch.world_size),
            *uneven_loops(self._workers.outcomes, self._logs(), self._launch.world_size),
        ):
            (found_now if finding.is_fatal else self.findings).append(finding)
        self.findings[:0] = found_now
        if found_now:
            self._refuse(f"the job could not run: {found_now[0].text}; compared were {self._who()}")

    def compare_programs(self, document: Mapping[str, object], files: Mapping[int, Path], *, whole: bool) -> None:
        """The captured step of every class of ranks. `whole`: it is known of every rank whose class it is of."""
        from windtunnel.studies.programs.folder import load_job, publish
        from windtunnel.studies.programs.rank_classes.agreement import book_of, book_of_some, deadlock, disagreement

        self._compared = self._who()
        late = None
        if not whole:
            played = f"{len(self._workers.outcomes):,} of {self._launch.world_size:,} ranks"
            self._compared = f"{played} with each other; nothing is known of the others"
            finding = disagreement(book_of_some({rank: read_program(path) for rank, path in files.items()}))
        else:
            draft = self._workers.folder / "draft"
            publish(draft, document, files)
            job = load_job(draft)
            finding = disagreement(book_of(job))
            if finding is None:
                finding = deadlock(job)
                if finding is not None and self._device == "cpu" and deadlock(job, eager_sends=True) is None:
                    finding, late = None, finding
        if finding is not None:
            self.findings.insert(0, finding)
            self._refuse(f"the job could not run: {finding.text}; compared were {self._compared}")
        if late is not None:
            self.notes.append(
                f"on GPUs the job would hang: {late.text}; on CPUs it runs as long as gloo takes the messages at once"
            )

    def compare_own_data(self, task: Mapping[str, object]) -> None:
        """Whether what a rank reads of its own data alone, or its clock, decides what it calls: it is run again.

        The first rank that was run; the last, where its step is another: of a pipeline's, the one with the loss; any
        that reads at other lines; and with clocks, those that the source names.
        """
        outcomes = self._workers.outcomes
        first, last = min(outcomes), max(outcomes)
        files = list(outcomes[first].get("files", {}))
        clocks = deciding_clocks(files)
        ranks_in_source = ranks_named(files, self._launch.world_size) if clocks else ()
        earlier_reads: set[str] = set()
        for rank in sorted(outcomes):
            reads = set(outcomes[rank].get("own_reads", ()))
            is_other = rank == last and outcomes[last]["digest"] != outcomes[first]["digest"]
            if rank == first or is_other or rank in ranks_in_source or reads - earlier_reads:
                self._try_other_values(rank, clocks, task)
                earlier_reads |= reads

    def _try_other_values(self, rank: int, clocks: Sequence[tuple[str, int]], task: Mapping[str, object]) -> None:
        outcome, log = self._workers.outcomes[rank], self._log(str(rank))
        deciding = deciding_places(
            list(outcome.get("files", {})), [_split(line) for line in outcome.get("own_reads", ())]
        )
        if log is None:
            return
        trials = [(deciding, _own(value, deciding)) for value in (1e-12, math.inf)]
        for places, trial in (*trials, (clocks, _fast_clock(clocks))):
            if not places:
                continue
            path, line = places[-1]
            where = f"{_short(path, outcome)}:{line}"
            how = f"with what it reads at {where} changed ({trial.otherwise})"
            pair = self._parted(rank, log, {**task, **trial.task}, how)
            if pair is None or self._parted(rank, log, {**task, "own": None}, "as it is") is not None:
                continue  # as it is, too: it draws numbers, and all ranks go by the first one's
            mine, its = pair
            call = mine or its
            assert call is not None
            group = log.groups[call.group].text(self._launch.world_size) if call.group >= 0 else "world"
            words = [f"{entry.words()}{entry.at()}" if entry is not None else "no more" for entry in (mine, its)]
            text = (
                f"what a rank reads at {where} {trial.source}, and decides what it calls: as it is, {words[0]};"
                f" {trial.otherwise}, {words[1]}. {trial.remedy}"
            )
            ranks = tuple(range(min(self._launch.world_size, MOST_RANKS)))
            self.findings.insert(0, Finding(trial.kind, ranks, group, where, text))
            self._refuse(f"the job could hang: {text}")

    def _parted(self, rank: int, log: CallLog, task: Mapping[str, object], how: str) -> _Pair | None:
        """The first calls that differ when a rank is run again under this task; None where it did not come through,
        which a note says.
        """
        after = self._workers.again(rank, {**task, **AGAIN})
        raised = after["status"] == "error" and not after.get("ended") and not after.get("contradicts")
        if task.get("own") == math.inf and raised:
            after = self._workers.again(rank, {**task, "own": LARGE, **AGAIN})
        other = self._log(ASIDE)
        if other is None or (after["status"] != "ok" and not after.get("ended")):
            self._not_compared(rank, how, after.get("message", ""))
            return None
        return first_call_that_differs(log, other, ends=after["status"] != "ok")

    def _not_compared(self, rank: int, how: str, reason: str) -> None:
        self.notes.append(
            f"rank {rank}, run again {how}, did not come to the end of the step ({reason}):"
            " whether that decides what it calls is not known"
        )

    def compare_orders_of_sets(self, task: Mapping[str, object]) -> None:
        """Whether the order of a set decides what a rank calls: it is run again in processes with other hash seeds.

        What differs under the first seed as well hangs on something else: a number that is drawn and broadcast, say,
        or that this rank is run alone.
        """
        first_seed = first_hash_seed()
        if not first_seed:
            return  # given to all ranks: their sets have one order
        rank = min(self._workers.outcomes)
        outcome, log = self._workers.outcomes[rank], self._log(str(rank))
        files = outcome.get("files", {})
        draws = numbers_drawn(files)
        places = sorted({*orders_taken(files), *draws})
        if not places or log is None:
            return
        before = ended_children_cpu_s()
        for count, seed in enumerate(HASH_SEEDS):
            if count and (ended_children_cpu_s() - before) * (count + 1) / count > MOST_CPU_S:
                return
            with self._run_under(seed, rank, task) as others:
                other = _whole_log(others, rank)
                if other is None:
                    continue
                pair = first_call_that_differs(log, other, ends=False)
                mixed = None if pair else _mixed_by_order(self._workers, others, rank, log, places)
                if pair is None and mixed is None:
                    continue
                if not draws:
                    with self._run_under(first_seed, rank, task) as again:
                        if not _alike(self._workers, again, rank):
                            return
                if pair is not None:
                    text, finding = _parted_by_order(pair, log, places, self._launch.world_size)
                    self.findings.insert(0, finding)
                    self._refuse(f"the job could hang: {text}")
                self.findings += [mixed] if mixed is not None else []
                return

    @contextmanager
    def _run_under(self, seed: str, rank: int, task: Mapping[str, object]) -> Iterator[Workers]:
        """A rank, run in a process with this hash seed."""
        bytecode = str(self._workers.folder / BYTECODE)
        settings = {**self._workers.settings, "bytecode": bytecode}
        limits = {"cores": self._workers.cores, "timeout_s": self._workers.timeout_s}
        with Workers(settings, **limits, hash_seed=seed) as others:  # type: ignore[arg-type]
            try:
                others.run([rank], {**task, **AGAIN}, helpers_end=True)
            except ScriptError as error:
                self._not_compared(rank, "in a process with another order of sets", str(error))
            yield others

    def not_reached(self) -> list[str]:
        """Calls that stand in the script and that no rank came to."""
        seen = {entry.line for log in self._logs().values() for entry in log.entries}
        files: dict[str, str] = {}
        for outcome in self._workers.outcomes.values():
            files |= outcome.get("files", {})
        lines = calls_not_reached(files, seen, CALLS)
        shown = [f"{line} was not reached" for line in lines[:MOST_NOT_REACHED]]
        more = len(lines) - len(shown)
        return [*shown, *([f"... and {more} more calls were not reached"] if more > 0 else [])]

    def document(self) -> dict[str, object]:
        """What was found, and what was compared."""
        return {"findings": [finding.to_dict() for finding in self.findings], "compared": self._compared}

    # ----

    def _refuse(self, message: str, details: str = "") -> NoReturn:
        document = {
            "script": {"line": self._launch.line, "arguments": list(self._launch.arguments)},
            "world_size": self._launch.world_size,
            "period_steps": None,
            "not_seen": [],
            "notes": list(self.notes),
            **self.document(),
            "compared": self._compared or self._who(),
        }
        raise FindingsError(message, details, document) from None

    def _who(self) -> str:
        played = len(self._workers.outcomes)
        alike = "" if played == self._launch.world_size else "; the others are taken to be like these"
        return f"{played:,} of {self._launch.world_size:,} ranks with each other{alike}"

    def _logs(self) -> dict[int, CallLog]:
        folder = self._workers.folder
        ranks = [path.stem.removeprefix("calls_") for path in folder.glob("calls_*.json")]
        logs = {int(rank): self._log(rank) for rank in ranks if rank.isdigit()}
        return {rank: log for rank, log in sorted(logs.items()) if log is not None}

    def _log(self, rank: str) -> CallLog | None:
        """What a rank called; read once, until it is run again."""
        path = self._workers.folder / f"calls_{rank}.json"
        written = path.stat().st_mtime_ns if path.exists() else 0
        if self._known_logs.get(rank, (-1, None))[0] != written:
            self._known_logs[rank] = written, call_log(self._workers, rank)
        return self._known_logs[rank][1]


def call_log(workers: Workers, rank: str) -> CallLog | None:
    """What a rank of these called."""
    path = workers.folder / f"calls_{rank}.json"
    return CallLog.from_plain(json.loads(path.read_bytes())) if path.exists() else None


def _whole_log(workers: Workers, rank: int) -> CallLog | None:
    """What a rank of these called; None where it did not come to its end."""
    return call_log(workers, str(rank)) if workers.outcomes.get(rank, {}).get("status") == "ok" else None


def first_hash_seed() -> str:
    """Of the processes that play the script first: a known one, so that one can be run again under it. "" where the
    user gives one.
    """
    return "0" if os.environ.get("PYTHONHASHSEED", "random") == "random" else ""


def ended_children_cpu_s() -> float:
    """CPU seconds of all processes that this one started, and theirs, and that have ended."""
    used = os.times()
    return used.children_user + used.children_system


def _alike(workers: Workers, others: Workers, rank: int) -> bool:
    """Whether a rank did the same twice."""
    log, other = (_whole_log(of, rank) for of in (workers, others))
    if log is None or other is None or first_call_that_differs(log, other, ends=False) is not None:
        return False
    return bool(workers.outcomes[rank]["digests"][0] == others.outcomes[rank]["digests"][0])


def _split(line: str) -> tuple[str, int]:
    path, _, number = line.rpartition(":")
    return path, int(number)


def _short(path: str, outcome: Outcome) -> str:
    files = outcome.get("files", {})
    return str(files.get(path) or files.get(str(Path(path).resolve())) or path)


def first_call_that_differs(log: CallLog, other: CallLog, *, ends: bool) -> _Pair | None:
    """The first calls that differ between two logs; with `ends`, the other script was over where its log is."""
    for mine, its in zip(log.entries, other.entries, strict=False):
        if _identity(log, mine) != _identity(other, its):
            return mine, its
    if ends and len(other.entries) < len(log.entries):
        return log.entries[len(other.entries)], None
    return None


def _identity(log: CallLog, entry: CallEntry) -> object:
    return entry.kind, entry.bytes, entry.line, log.groups[entry.group] if entry.group >= 0 else None


def _parted_by_order(pair: _Pair, log: CallLog, places: Sequence[tuple[str, int]], world: int) -> tuple[str, Finding]:
    mine, its = pair
    call = mine or its
    assert call is not None
    words = [f"{entry.words()}{entry.at()}" if entry is not None else "no more" for entry in pair]
    where, cause = _orders_near(places, call.line)
    text = (
        f"{cause}: as it is, the script calls {words[0]}; in a process of its own, {words[1]}."
        " Ranks part there: sort or seed it first"
    )
    group = log.groups[call.group].text(world) if call.group >= 0 else "world"
    ranks = tuple(range(min(world, MOST_RANKS)))
    return text, Finding("set-order", ranks, group, where, text)


def _mixed_by_order(
    workers: Workers, others: Workers, rank: int, log: CallLog, places: Sequence[tuple[str, int]]
) -> Finding | None:
    """Where all calls are alike, and the first op of a step that differs is one of them: it takes another tensor."""
    digest, other = workers.outcomes[rank]["digests"][0], others.outcomes[rank]["digests"][0]
    if digest == other:
        return None
    mine, its = (_program(of, rank, key) for of, key in ((workers, digest), (others, other)))
    difference = first_difference(mine, its)
    op = mine.ops[difference.op] if difference is not None and difference.op >= 0 else None
    if op is None or op.communication is None:
        return None
    members = op.communication.members
    group = next((of.text(mine.world_size) for of in log.groups if of.members == members), op.communication.group)
    where, cause = _orders_near(places, op.line)
    text = (
        f"{cause}: {op.communication.kind} at {op.line} takes one tensor here and another in a"
        " process of its own, so ranks would mix what does not belong together: sort it first"
    )
    return Finding("set-order", members[:MOST_RANKS], group, where, text, CORRUPT)


def _program(workers: Workers, rank: int, key: str) -> RankProgram:
    path = program_file(workers.folder, rank, key)
    return read_program(path if path.exists() else program_file(workers.folder, rank))


def _orders_near(places: Sequence[tuple[str, int]], line: str) -> tuple[str, str]:
    """A line that takes such an order: in the call's file the last before it, else the first; and what that means."""
    name, number = _split(line) if line else ("", 0)
    before = [place for place in places if place[0] == name and place[1] <= number]
    where = "{}:{}".format(*(before[-1] if before else places[0]))
    return where, f"the order of a set, hash() or an unseeded number at {where} is another in each process"
