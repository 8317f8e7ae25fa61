"""Tables that trackers export: W&B and TensorBoard as CSV or JSON lines, TensorBoard's own event files.

An event file is a row of records `length, checksum, Event, checksum`; of the protobuf Event only the step, the wall
time and scalars are read (tensorflow/core/framework/summary.proto).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeGuard

from windtunnel.errors import InputFileError
from windtunnel.files.bytes import MIB, read_bytes
from windtunnel.files.protobuf import DamagedError, Value, fields_of
from windtunnel.files.table import number_of, read_table
from windtunnel.studies.measured_run.lines import clock_of
from windtunnel.studies.measured_run.metrics import OF_EVALUATION, names_of
from windtunnel.studies.measured_run.run import MeasuredRun, Step

EVENT_BYTES_MOST = 512 * MIB
RECORDS_MOST = 2_000_000
# Names of metrics, as they end, and seconds of one unit of them.
STEP_NAMES = names_of("seconds") | {
    "iteration-time": 1.0, "iteration_time": 1.0, "time_metrics/end_to_end(s)": 1.0, "step_time_s": 1.0,
    "train/step_time_s": 1.0, "step_time_ms": 1e-3,
}  # fmt: skip
RATE_NAMES = (*names_of("tokens_per_s_per_gpu"), "throughput/device/tokens_per_second")
LOADER_NAMES = ("time_metrics/data_loading(s)", "data_time", "batch-generator-time", "timing_s/data")
NUMBER_NAMES = ("_step", "step", "Step", "global_step", "trainer/global_step")
CLOCK_NAMES = ("_runtime", "_timestamp", "Wall time", "wall_time", "Relative Time (Process)")


def run_of_table(path: Path) -> MeasuredRun:
    """A CSV, or JSON lines, of one run."""
    table = read_table(path, "give the history that W&B or TensorBoard exports")
    names = list(table.columns)
    rows = [{name: number_of(text) for name, text in row.items() if text} for _, row in table.rows()]
    for dated in [name for _, row in islice(table.rows(), 1) for name, text in row.items() if clock_of(text)]:
        for figures, (_, row) in zip(rows, table.rows(), strict=True):
            figures["wall_time"] = clock_of(row[dated]) or math.nan
        names.append("wall_time")
    return _run(rows, names, str(path), "table of metrics")


def _run(rows: Sequence[Mapping[str, float]], names: Sequence[str], source: str, form: str) -> MeasuredRun:
    def column(ends: Sequence[str]) -> str | None:
        for end in ends:  # W&B puts the run's name before a metric's
            for name in names:
                path = name.removesuffix(end).rpartition(" ")[2]
                if name == end or (name.endswith((f" {end}", f"/{end}")) and not OF_EVALUATION.search(path)):
                    return name
        return None

    seconds, rate, loader = column(tuple(STEP_NAMES)), column(RATE_NAMES), column(LOADER_NAMES)
    number, clock = column(NUMBER_NAMES), column(CLOCK_NAMES)
    unit = 0.0 if seconds is None else next(u for end, u in STEP_NAMES.items() if seconds.endswith(end))
    steps = []
    for row in rows:
        time = _value(row, seconds) * unit if seconds else math.nan
        step = Step(
            _whole(_value(row, number)),
            _positive(time),
            _positive(_value(row, rate)),
            clock_s=_positive(_value(row, clock)),
            phases={"data loader": row[loader]} if loader and _positive(_value(row, loader)) else {},
        )
        if step.seconds or (seconds is None and (step.tokens_per_s_per_gpu or step.clock_s is not None)):
            steps.append(step)
    used = {seconds, rate, loader, number, clock}
    odd = tuple(f"column {name}" for name in names if name not in used and (not steps or "time" in name.lower()))
    return MeasuredRun(source, form, tuple(steps), not_understood=odd)


def _value(row: Mapping[str, float], name: str | None) -> float:
    return row.get(name, math.nan) if name else math.nan


def _positive(value: float) -> float | None:
    return value if math.isfinite(value) and value > 0.0 else None


def _whole(value: float) -> int | None:
    return int(value) if math.isfinite(value) else None


def run_of_trainer_state(document: Mapping[str, object], source: str) -> MeasuredRun:
    """`trainer_state.json` of the Hugging Face Trainer: its last entry has the mean of the whole run."""
    history, count = document["log_history"], document.get("global_step")
    entries = [entry for entry in history if isinstance(entry, dict)] if isinstance(history, list) else []
    last: dict[str, object] = next((entry for entry in reversed(entries) if _finite(entry.get("train_runtime"))), {})
    rate, runtime = last.get("train_steps_per_second"), last.get("train_runtime")
    if not _finite(rate) and _finite(runtime) and _finite(count):
        rate = count / runtime
    steps = (Step(seconds=1.0 / rate),) if _finite(rate) else ()
    note = "the mean of the whole run: start, evaluation and saving are in it"
    return MeasuredRun(source, "Hugging Face Trainer", steps, is_mean=True, notes=(note,))


def _finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


# --------------------------------------------------------------------------------------------------- TensorBoard


def run_of_events(path: Path) -> MeasuredRun:
    """A TensorBoard event file. Raises InputFileError where it is none."""
    rows: dict[int, dict[str, float]] = {}
    names: dict[str, None] = {}
    for number, (step, wall, tag, value) in enumerate(_scalars(path)):
        if number > RECORDS_MOST:
            raise InputFileError(path, f"holds more than {RECORDS_MOST:,} scalars", "export fewer")
        row = rows.setdefault(step, {"step": float(step), "wall_time": wall})
        row[tag] = value
        names[tag] = None
    return _run([rows[step] for step in sorted(rows)], ["step", "wall_time", *names], str(path), "TensorBoard")


def is_event_file(path: Path) -> bool:
    """Whether its name is one of TensorBoard's."""
    return "tfevents" in path.name


def _scalars(path: Path) -> Iterator[tuple[int, float, str, float]]:
    content = read_bytes(path, "give a TensorBoard event file", EVENT_BYTES_MOST)
    at = 0
    while at + 12 <= len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        if at + 16 + length > len(content):
            if at == 0:
                raise InputFileError(path, "is no event file of TensorBoard", "give the file that its writer made")
            return  # cut off while it was written
        try:
            yield from _event(content[at + 12 : at + 12 + length])
        except (DamagedError, struct.error, UnicodeDecodeError):
            raise InputFileError(path, f"is damaged at byte {at:,}", "give the file that its writer made") from None
        at += 16 + length


def _event(data: bytes) -> Iterator[tuple[int, float, str, float]]:
    wall, step, summaries = 0.0, 0, []
    for key, _, value in fields_of(data):
        if key == 1 and isinstance(value, bytes):
            (wall,) = struct.unpack("<d", value)
        elif key == 2 and isinstance(value, int):
            step = value
        elif key == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for key, _, value in fields_of(summary):
            if key == 1 and isinstance(value, bytes):
                inner = _by_number(value)
                tag, number = inner.get(1), inner.get(2)
                tensor = inner.get(8)
                if number is None and isinstance(tensor, bytes):
                    number = _by_number(tensor).get(5)  # its float_val, packed
                if isinstance(tag, bytes) and isinstance(number, bytes) and len(number) == 4:
                    yield step, wall, tag.decode(), struct.unpack("<f", number)[0]


def _by_number(message: bytes) -> dict[int, Value]:
    return {key: value for key, _, value in fields_of(message)}
