"""`sacct -P`: what Slurm says of its jobs. One job per JobID; lines of steps (`123.batch`) are left out.

GPUs are `gres/gpu=` of AllocTRES or ReqTRES, or the sum of its kinds, else ReqGRES on each node; times are ISO 8601 in
one zone, or seconds (`SLURM_TIME_FORMAT=%s`). Slices of MIG (`gres/gpu:a100_3g.20gb=2`), `gres/mps` (hundredths of a
GPU) and `gres/shard` are parts of GPUs (`part`). What ran is the trace, and when it started is kept, so that the policy
`current` shows what happened. A job that failed or was cancelled does so again after as long as it ran; one that was
cancelled before it started never asks for GPUs. One that still runs holds its GPUs for as long as it has run, and never
completes; how long one that still waits will run is not known.

    requeues      several lines of one JobID (`-D`) are attempts of one job: submitted with the first, started with
                  the first that started, ended with the last, which is also how long it takes; the others are lost.
                  Of lines with one start, as logs by the month have them, the last counts. Where the user is
                  another, the number was given again, and it is another job
    arrays        tasks that wait are one line, `7_[4-9%2]`: a job each
    het jobs      `7+0`, `7+1` start together: one job, with the GPUs of all
    suspended     Elapsed leaves it out, End does not
    Eligible      when dependencies and holds ended: no policy starts a job before

Source: sacct(1) of Slurm 22.05.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from windtunnel.errors import InputFileError
from windtunnel.files.table import Table, table_of
from windtunnel.studies.fleet.jobs.slurm_records import Row, of_squeue, on_each_node
from windtunnel.studies.fleet.jobs.slurm_table import table_rows
from windtunnel.studies.fleet.jobs.trace import Notes, Unread

GPUS = re.compile(r"gres/gpu(?::([^=,]*))?=(\d+)")
SLICE = re.compile(r"\d+g\.\d+gb")  # MIG's names of its parts, such as a100_3g.20gb
ELAPSED = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)(?:\.\d+)?")
WAITING_TASKS = re.compile(r"(\d+)_\[([\d,:-]+)(?:%\d+)?\]")
FAILED = ("FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED")  # Slurm's words
GOING = ("PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "RESIZING")  # when the log was written
COLUMNS = (
    *("JobID", "Submit", "Eligible", "Start", "End", "Elapsed", "ElapsedRaw", "Suspended", "Timelimit", "TimelimitRaw"),
    *("AllocTRES", "ReqTRES", "NNodes", "User", "Account", "Partition", "QOS", "Priority", "State", "Reason"),
    *("Restarts", "Cluster"),
)
UNKNOWN = ("", "Unknown", "None", "N/A", "NONE", "(null)")
NO_LIMIT = ("", "UNLIMITED", "Partition_Limit", "NOT_SET", "INVALID", "N/A")
SHARES = re.compile(r"gres/(shard|mps)(?::[^=,]*)?=([1-9]\d*)")
UNEVEN = "asks for shares that are not one of a GPU on each node, all alike: left out"
TASKS_MOST = 100_000
OVER = 1.5  # of its time limit, beyond which nothing runs in truth: OverTimeLimit and grace are minutes
ASKED = (
    "JobID,Submit,Eligible,Start,End,Elapsed,Suspended,Timelimit,AllocTRES,ReqTRES,User,Account,Partition,QOS,Priority,"
    "State,Reason,Restarts"
)
TIMES = "unset SLURM_TIME_FORMAT for ISO 8601 times, or set it to %s for seconds"
ASK = f"write it with `sacct -P -D -X -a -o {ASKED}`"


@dataclass(frozen=True)
class Attempt:
    """One line of sacct: a run of a job, or a job that waits."""

    job: str
    line: int
    cells: dict[str, str]
    submit_s: float
    eligible_s: float | None
    start_s: float | None
    end_s: float | None
    held_s: float | None  # without what it was suspended
    gpus: int
    part: str = ""  # of a GPU, each of them

    @property
    def state(self) -> str:
        """Slurm's word: CANCELLED by 1000 is CANCELLED."""
        return self.cells["State"].upper().split(" ")[0]


def read_sacct(path: Path, delimiter: str) -> tuple[Table, tuple[Unread, ...]]:
    """The table of jobs, and what was not understood. Raises InputFileError."""
    columns, rows = table_rows(path, delimiter, ASK)
    if "JOBID" in columns:
        return read_rows(path, ((line, of_squeue(path, row)) for line, row in rows))
    for column in ("JobID", "Submit"):
        if column not in columns:
            raise InputFileError(path, f"has no column {column}", ASK)
    return read_rows(path, ((line, on_each_node(row, row.get("ReqGRES", ""))) for line, row in rows))


def read_rows(path: Path, rows_read: Iterable[tuple[int, Row]]) -> tuple[Table, tuple[Unread, ...]]:
    """The same of rows by the names of sacct's columns."""
    notes = Notes()
    attempts: dict[str, list[Attempt]] = {}
    listed = list(rows_read)
    several = len({row.get("Cluster", "") for _, row in listed}) > 1
    for line, row in listed:
        if several:
            row["JobID"] = f"{row.get('Cluster', '')}/{row['JobID']}"
        if "." not in row["JobID"].rpartition("/")[2]:
            for attempt in _tasks(_attempt(path, line, row, notes), notes):
                _put(attempts, attempt, notes)
    if not attempts:
        raise InputFileError(path, "has no job", ASK)
    rows, lines = [], []
    for together in _components(attempts, notes):
        job_row = _job([sorted(each, key=lambda attempt: attempt.submit_s) for each in together], notes)
        if job_row is not None:
            rows.append(job_row)
            lines.append(together[0][0].line)
    if rows and not any(row["gpus"] for row in rows) and UNEVEN not in notes.jobs:
        remedy = (
            "sites that count GPUs have AccountingStorageTRES=gres/gpu in slurm.conf; else ask for ReqTRES, or ReqGRES"
        )
        raise InputFileError(path, "has no job that asks for a GPU (gres/gpu in AllocTRES or ReqTRES)", remedy)
    return table_of(path, rows, lines), notes.rows()


def _put(attempts: dict[str, list[Attempt]], attempt: Attempt, notes: Notes) -> None:
    """An attempt with those of its job; a line of a start that is known stands in place of the other."""
    job, user = attempt.job, attempt.cells["User"]
    while job in attempts and user and attempts[job][0].cells["User"] not in ("", user):
        job += "'"  # its number was given again, to a job of another user
    if job != attempt.job:
        notes.add("has the number of a job of another user: counted as a job of its own", job)
    runs = attempts.setdefault(job, [])
    same = (attempt.submit_s, attempt.start_s)
    again = next((at for at, run in enumerate(runs) if (run.submit_s, run.start_s) == same), None)
    if again is None:
        runs.append(replace(attempt, job=job))
    else:
        notes.add("is in the log twice: the later line counts", job)
        runs[again] = replace(attempt, job=job)


def _attempt(path: Path, line: int, row: dict[str, str], notes: Notes) -> Attempt:
    cells = {column: row.get(column, "") for column in COLUMNS}
    job = cells["JobID"]
    submit, eligible, start, end = (
        _seconds(cells[key], path, line, key) for key in ("Submit", "Eligible", "Start", "End")
    )
    if submit is None:
        raise InputFileError(path, f"line {line}: Submit is missing", "mend or drop that line")
    lasted = _elapsed(cells["Elapsed"]) if cells["Elapsed"] else _elapsed(cells["ElapsedRaw"])
    if lasted is None and start is not None and end is not None:
        lasted = end - start - (_elapsed(cells["Suspended"]) or 0.0)
    attempt = Attempt(job, line, cells, submit, eligible, start, end, lasted, 0)
    if attempt.state in GOING and start is None:
        attempt = replace(attempt, held_s=None)  # its Elapsed of 0 is no duration
    tres = next((tres for tres in (cells["AllocTRES"], cells["ReqTRES"]) if _gpus(tres) or SHARES.search(tres)), "")
    slices = {match[0] if (match := SLICE.search(kind)) else "" for kind, count in GPUS.findall(tres) if kind}
    if len(slices) > 1:
        notes.add("asks for parts of several kinds, or beside whole GPUs: counted as whole GPUs", job)
    share = None if _gpus(tres) else SHARES.search(tres)
    if share is None:
        return replace(attempt, gpus=_gpus(tres), part=next(iter(slices)) if len(slices) == 1 else "")
    nodes = int(cells["NNodes"]) if cells["NNodes"].isdecimal() else 1
    each, rest = divmod(int(share[2]), max(nodes, 1))
    if rest or (share[1] == "mps" and each > 100):
        notes.add(UNEVEN, f"{job} ({share[0]} on {nodes} nodes)")
        return attempt
    return replace(attempt, gpus=nodes, part=f"{each / 100:g}" if share[1] == "mps" else f"{each} shares")


def _tasks(attempt: Attempt, notes: Notes) -> Iterator[Attempt]:
    """The tasks of an array that wait in one line; any other line as it is."""
    match = WAITING_TASKS.fullmatch(attempt.job)
    if not match:
        if "[" in attempt.job:
            notes.add("is an array whose tasks are not told in full: counted as one job", attempt.job)
        yield attempt
        return
    array, ranges = match.groups()
    numbers: list[int] = []
    for part in ranges.split(","):
        ends = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if ends is None or len(numbers) > TASKS_MOST:
            notes.add("is an array whose tasks are not told in full: counted as one job", attempt.job)
            yield attempt
            return
        first, last, step = (int(text) if text else None for text in ends.groups())
        assert first is not None
        numbers.extend(range(first, min(last if last is not None else first, first + TASKS_MOST) + 1, step or 1))
    for number in numbers:
        yield replace(attempt, job=f"{array}_{number}")


def _components(attempts: dict[str, list[Attempt]], notes: Notes) -> Iterator[list[list[Attempt]]]:
    """Jobs, each as its components: one, or those of a heterogeneous job (`7+0`, `7+1`)."""
    gangs: dict[str, list[list[Attempt]]] = {}
    for job, each in attempts.items():
        gangs.setdefault(job.split("+")[0] + "+" if "+" in job else job, []).append(each)
    for together in gangs.values():
        if len(together) > 1:
            together.sort(key=lambda each: each[0].job)
            for other in together[1:]:
                notes.add("is a part of a heterogeneous job: counted with its first", other[0].job)
        yield together


def _job(components: Sequence[list[Attempt]], notes: Notes) -> dict[str, object] | None:
    """The row of a job of one or several components, each with its attempts; None where it is no job here."""
    runs = components[0]
    first, last = runs[0], runs[-1]
    state = last.state
    if state == "REVOKED":
        notes.add("was taken by another cluster of a federation (REVOKED): left out", first.job)
        return None
    if state == "PENDING" and last.cells["Reason"] == "DependencyNeverSatisfied":
        notes.add("will never run (DependencyNeverSatisfied): left out", first.job)
        return None
    if len({attempt.gpus for attempt in runs}) > 1:
        notes.add("changed its GPUs on the way: those of its last run count", first.job)
    restarts = len(runs) - 1
    logged_restarts = last.cells["Restarts"]
    if logged_restarts.isdecimal() and int(logged_restarts) > restarts:
        notes.add("was restarted, and runs before the last are not in the log (sacct -D shows them)", first.job)
    limit = _limit(last, notes)
    if state == "TIMEOUT":
        notes.add("hit its time limit: how long it would have run is not known", first.job)
    if state == "RUNNING" and limit and (last.held_s or 0.0) > OVER * limit:
        notes.add("runs far beyond its time limit: `sacctmgr show runawayjobs` may know it as lost", first.job)
    started = next((attempt.start_s for attempt in runs if attempt.start_s is not None), None)
    gpus = sum(component[-1].gpus for component in components)
    parts = {component[-1].part for component in components if component[-1].gpus}
    if len(parts) > 1:
        notes.add("asks for parts of several kinds, or beside whole GPUs: counted as whole GPUs", first.job)
    gpu_seconds = [
        attempt.held_s * attempt.gpus for component in components for attempt in component if attempt.held_s is not None
    ]
    asked = [component[-1].cells for component in components if component[-1].gpus] or [last.cells]
    types = {_type_asked(cells["ReqTRES"]) for cells in asked}
    ended = "unfinished" if state in GOING else "failed" if state in FAILED else ""
    return {
        "job": first.job,
        "submit_s": repr(first.submit_s),
        "start_s": None if started is None else repr(started),
        "duration_s": None if last.held_s is None else repr(last.held_s),
        "gpus": gpus,
        "part": next(iter(parts)) if len(parts) == 1 else "",
        "user": last.cells["User"],
        "ended": "cancelled" if state == "CANCELLED" else ended,
        "eligible_s": None if first.eligible_s is None else repr(first.eligible_s),
        "end_s": None if last.end_s is None else repr(last.end_s),
        "limit_s": None if limit is None else repr(limit),
        "queue": last.cells["Partition"],
        "qos": last.cells["QOS"],
        "priority": last.cells["Priority"],
        "account": last.cells["Account"],
        "billing": _tres(last, "billing"),
        "cpus": _tres(last, "cpu"),
        "nodes": _sum([cells["NNodes"] if cells["NNodes"].isdecimal() else None for cells in asked]),
        "nodes_asked": _sum(
            [next(iter(re.findall(r"(?:^|,)node=(\d{1,9})(?=,|$)", cells["ReqTRES"])), None) for cells in asked]
        ),
        "gpu_type": types.pop() if len(types) == 1 else "",
        "log_state": state,
        "log_restarts": restarts,
        "cluster": last.cells["Cluster"],
        "log_gpu_seconds": repr(sum(gpu_seconds)) if started is not None and parts <= {""} else None,
    }


def _sum(counts: Sequence[str | None]) -> int | None:
    """Of all components; None where one does not say."""
    known = [int(count) for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _type_asked(tres: str) -> str:
    """The one type of whole GPUs that is asked for; empty: any."""
    types = {kind for kind, _ in GPUS.findall(tres) if kind and not SLICE.search(kind)}
    return types.pop() if len(types) == 1 else ""


def _tres(attempt: Attempt, name: str) -> str | None:
    """The count of a resource that is neither GPU nor node."""
    match = re.search(rf"(?:^|,){name}=(\d+)", attempt.cells["AllocTRES"] or attempt.cells["ReqTRES"])
    return match.group(1) if match else None


def _limit(attempt: Attempt, notes: Notes) -> float | None:
    """Seconds of the time limit; None where there is none or it is not told here."""
    text, minutes = attempt.cells["Timelimit"], attempt.cells["TimelimitRaw"]
    if text == "Partition_Limit" or minutes == "Partition_Limit":
        notes.add("has its partition's time limit, which the log does not tell", attempt.job)
    limit = _elapsed(text) if text else float(minutes) * 60 if minutes.isdecimal() else None
    if limit is None and not (text in NO_LIMIT and minutes in NO_LIMIT):
        notes.add(f"has a time limit that is none ({(text or minutes)[:20]})", attempt.job)
    return limit


def _seconds(text: str, path: Path, line: int, column: str) -> float | None:
    if text in UNKNOWN:
        return None
    if text.isdecimal() and len(text) < 12:
        return float(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputFileError(path, f"line {line}: {column} = {text[:40]!r} is no time", TIMES) from None
    return (moment.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()


def _elapsed(text: str) -> float | None:
    if text.isdecimal() and len(text) < 12:
        return float(text)
    match = ELAPSED.fullmatch(text)
    if not match:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _gpus(tres: str) -> int:
    counts = GPUS.findall(tres)
    total = next((int(count) for kind, count in counts if not kind), None)
    return sum(int(count) for _, count in counts) if total is None else total
