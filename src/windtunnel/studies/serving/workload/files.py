"""Traces and request lists: Azure, Mooncake, BurstGPT, and one's own CSV or JSONL.

    input_tokens, output_tokens       ContextTokens, GeneratedTokens (Azure); input_length, output_length (Mooncake);
                                      Request tokens, Response tokens (BurstGPT)
    arrival_s, arrival_ms, arrival_ns TIMESTAMP (Azure); timestamp in ms (Mooncake); Timestamp in s (BurstGPT): each
                                      beside its own format's lengths, or as dates. Elsewhere nothing says its unit
    prefix_block_ids                  blocks of 16 tokens; block512_ids, hash_ids: of 512 (Mooncake)
    session_id                        rows of one session are its turns in their order: each is sent after the answer to
                                      the one before. Without prefix blocks its prompt begins with the one before
    delay_s, delay (ms, AIPerf)       what the user or a tool takes before a turn
    shared_tokens                     tokens that the prompts of all sessions begin with: instructions, tools

Without arrivals a rate has to be given; with sessions, arrivals, rates and concurrencies are those of sessions. Rows
are sent in the order of arrival. Times are from the start of the run; those of a calendar (dates, or seconds since
1970) are moved, so that the first request comes at 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from windtunnel.errors import InputFileError, SpecError
from windtunnel.files.table import read_table
from windtunnel.studies.serving.workload.lengths import arrivals, check_rate, check_span
from windtunnel.studies.serving.workload.requests import LONGEST_S, Turns, Workload
from windtunnel.units import format_time

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


INPUTS = ("input_tokens", "ContextTokens", "input_length", "Request tokens", "prompt_tokens")
OUTPUTS = ("output_tokens", "GeneratedTokens", "output_length", "Response tokens", "completion_tokens")
ARRIVALS = (  # ns of one, and the column beside which a name that says no unit has this one
    ("arrival_ns", 1.0, ""),
    ("arrival_s", 1e9, ""),
    ("arrival_ms", 1e6, ""),
    ("timestamp", 1e6, "input_length"),
    ("Timestamp", 1e9, "Request tokens"),
    ("TIMESTAMP", 1e9, "ContextTokens"),
)
MOST_TOKENS = 10**9
CALENDAR_S = 1e8  # three years: whoever counts more seconds than that reads a calendar
DELAYS = (("delay_s", 1e9), ("delay", 1e6))
SESSION_BLOCK = 16  # tokens of a block of a session's history
PREFIXES = (("prefix_block_ids", 16), ("block512_ids", 512), ("hash_ids", 512))


def read_workload(
    path: Path,
    *,
    rate_per_s: float | None = None,
    cv: float = 1.0,
    concurrency: int | None = None,
    requests: int | None = None,
    seed: int = 0,
) -> Workload:
    """Requests of a file. `rate_per_s` scales its arrivals to that mean rate, or makes them where it has none.

    `concurrency` ignores arrivals and sends in a closed loop. Raises InputFileError, SpecError.
    """
    rows = list(read_table(path, "give a readable CSV or JSONL of requests").rows())
    if requests is not None:
        rows = rows[:requests]
    if not rows:
        raise InputFileError(path, "holds no request", "give a table with one request a line")
    first = rows[0][1]
    prompt = next((name for name in INPUTS if name in first), None)
    output = next((name for name in OUTPUTS if name in first), None)
    if prompt is None or output is None:
        problem = f"has no column of prompt or output lengths among {', '.join(first)}"
        raise InputFileError(path, problem, "name them input_tokens and output_tokens")
    prompts = np.array([_whole(path, n, row, prompt) for n, row in rows], dtype=np.int64)
    outputs = np.array([_whole(path, n, row, output) for n, row in rows], dtype=np.int64)
    prefix = next(((name, size) for name, size in PREFIXES if name in first), None)
    names = None if prefix is None else [_names(path, n, row[prefix[0]]) for n, row in rows]
    block = 16 if prefix is None else prefix[1]
    turns = _turns(path, rows) if "session_id" in first else None
    if turns is not None and names is None:
        names, block = _histories(path, rows, prompts.tolist()), SESSION_BLOCK
    if concurrency is not None:
        return Workload(prompts, outputs, None, concurrency, names, block, path.stem, turns=turns)
    if turns is not None:
        return _sessions_begin(
            path, rows, turns, Workload(prompts, outputs, None, 1, names, block, path.stem), rate_per_s, cv, seed
        )
    column = _column_of_arrivals(first)
    notes: tuple[str, ...] = ()
    if column is None:
        if rate_per_s is None:
            raise InputFileError(path, "has no arrivals", "add a column arrival_s, or give --rate or --concurrency")
        times = arrivals(len(rows), rate_per_s, cv, seed)
    else:
        if cv != 1.0:
            raise SpecError("cv", cv, f"{path} has arrivals of its own: leave it out")
        times, notes = _times(path, rows, column, scaled=rate_per_s is not None)
        if rate_per_s is not None:
            check_rate(rate_per_s)
            span = float(times.max() - times.min()) * 1e-9
            check_span((len(rows) - 1) / rate_per_s, rate_per_s)
            scale = (len(rows) - 1) / span / rate_per_s if span > 0 else 0.0
            times = np.round((times - times.min()) * scale).astype(np.int64)
    order = np.argsort(times, kind="stable")
    ordered = None if names is None else [names[place] for place in order.tolist()]
    return Workload(prompts[order], outputs[order], times[order], None, ordered, block, path.stem, order, notes=notes)


def _column_of_arrivals(first: Mapping[str, str]) -> tuple[str, float, bool] | None:
    """(name, ns of one, whether name or format say so)."""
    column = next((arrival for arrival in ARRIVALS if arrival[0] in first), None)
    return None if column is None else (column[0], column[1], not column[2] or column[2] in first)


def _turns(path: Path, rows: list[tuple[int, dict[str, str]]]) -> Turns:
    """The turns of each session. Raises InputFileError."""
    delay = next(((name, scale) for name, scale in DELAYS if name in rows[0][1]), None)
    following = np.full(len(rows), -1, dtype=np.int64)
    delays = np.zeros(len(rows), dtype=np.int64)
    last: dict[str, int] = {}
    for place, (line, row) in enumerate(rows):
        session = row.get("session_id") or ""
        if not session:
            raise InputFileError(path, f"line {line}: session_id is empty", "name the session of every row")
        if session in last:
            following[last[session]] = place
        last[session] = place
        if delay is not None and (text := row.get(delay[0]) or ""):
            delays[place] = _delay_ns(path, line, delay[0], text, delay[1])
    return Turns(following, delays)


def _delay_ns(path: Path, line: int, name: str, text: str, scale: float) -> int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value * scale <= 1e9 * LONGEST_S:
        raise InputFileError(path, f"line {line}: {name} = {text!r} is no delay", "give a time of at least zero")
    return round(value * scale)


def _histories(path: Path, rows: list[tuple[int, dict[str, str]]], prompts: list[int]) -> list[tuple[int, ...]]:
    """Names of the prompts' blocks: a turn begins with the prompt before it, all with what sessions share."""
    numbers: dict[str, int] = {}
    names = []
    for (line, row), prompt in zip(rows, prompts, strict=True):
        session = numbers.setdefault(row["session_id"], len(numbers) + 1)
        shared = _whole(path, line, row, "shared_tokens") if row.get("shared_tokens") not in (None, "", "0") else 0
        blocks, common = prompt // SESSION_BLOCK, min(shared, prompt) // SESSION_BLOCK
        own = session * MOST_TOKENS
        names.append((*range(common), *range(own + common, own + blocks)))
    return names


def _sessions_begin(
    path: Path,
    rows: list[tuple[int, dict[str, str]]],
    turns: Turns,
    load: Workload,
    rate_per_s: float | None,
    cv: float,
    seed: int,
) -> Workload:
    """The same as an open loop of sessions: they begin at the arrivals of their first rows, or at a rate."""
    firsts = turns.firsts
    begin = np.zeros(len(rows), dtype=np.int64)
    column = _column_of_arrivals(rows[0][1])
    notes: tuple[str, ...] = ()
    if rate_per_s is not None:
        begin[firsts] = arrivals(len(firsts), rate_per_s, cv, seed)
    elif column is not None:
        begin[firsts], notes = _times(path, [rows[place] for place in firsts], column, scaled=False)
    else:
        raise InputFileError(path, "has no arrivals", "add a column arrival_s, or give --rate or --concurrency")
    return replace(load, arrival_ns=begin, concurrency=None, turns=turns, notes=notes)


def _whole(path: Path, line: int, row: Mapping[str, str], name: str) -> int:
    try:
        value = float(row[name])
    except (TypeError, ValueError, KeyError):
        value = math.nan
    if not value.is_integer():
        raise InputFileError(path, f"line {line}: {name} = {row.get(name)!r} is no whole number", "give whole tokens")
    if not 1 <= value <= MOST_TOKENS:
        problem = f"line {line}: {name} = {value:.15g}"
        raise InputFileError(path, problem, f"a request has 1 to {MOST_TOKENS} tokens each way")
    return int(value)


def _names(path: Path, line: int, value: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in value.replace(",", " ").split())
    except ValueError:
        raise InputFileError(
            path, f"line {line}: prefix blocks {value!r}", "give whole numbers apart by blanks"
        ) from None


def _times(
    path: Path, rows: list[tuple[int, dict[str, str]]], column: tuple[str, float, bool], *, scaled: bool
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """(nanoseconds, what has to be said of their unit). A number is in the column's unit, a date is one in any column.

    `scaled`: times are made to a rate, so that their unit says nothing. Raises InputFileError.
    """
    name, scale, has_unit = column
    values: list[float] = []
    dated = 0
    for line, row in rows:
        text = row.get(name)
        try:
            number = float("" if text is None else text)
        except (TypeError, ValueError):
            try:
                when = datetime.fromisoformat(str(text)[:26])  # Azure writes ten millionths of a second
            except ValueError:
                problem = f"line {line}: {name} = {text!r} is no time"
                raise InputFileError(path, problem, "give numbers, or dates such as 2023-11-16 18:01:51") from None
            values.append((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1e9)
            dated += 1
        else:
            values.append(number * scale)
            if not scaled and math.isfinite(number):
                _check_unit(path, line, name, number, has_unit)
        if not 0.0 <= values[-1] < math.inf:
            problem = f"line {line}: {name} = {text!r} is below zero or without end"
            raise InputFileError(path, problem, "give times from the first request")
        if 0 < dated < len(values):
            raise InputFileError(path, f"line {line}: {name} holds dates and numbers", "give one of them")
    exact = np.array(values)
    span = float(exact.max() - exact.min())
    if span > 1e9 * LONGEST_S:
        raise InputFileError(path, f"{name} spans more than ten years", "give seconds, ms or ns as the column says")
    if dated or exact.min() > 1e9 * CALENDAR_S:
        exact -= exact.min()
    note = (
        f"{name} is read in ms, as Mooncake's traces have it: {len(values):,} arrivals in {format_time(1e-9 * span)};"
    )
    assumed = name == "timestamp" and not dated and not scaled and len(values) > 1
    return np.round(exact).astype(np.int64), (f"{note} for seconds name the column arrival_s",) if assumed else ()


def _check_unit(path: Path, line: int, name: str, number: float, has_unit: bool) -> None:
    """Raise InputFileError for a number whose unit nobody says; Mooncake's are whole milliseconds."""
    if has_unit and (name != "timestamp" or number.is_integer()):
        return
    why = "no whole milliseconds, as Mooncake's are" if has_unit else "a time without a unit"
    remedy = f"name the column arrival_s, arrival_ms or arrival_ns in place of {name}"
    raise InputFileError(path, f"line {line}: {name} = {number:.15g} is {why}", remedy)
