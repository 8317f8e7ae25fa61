"""What was measured on one device: the times of its operations, and what its host and memory cost.

    calibration:
      device: NVIDIA H100 80GB HBM3
      kind: cuda                                  # or cpu
      date: 2026-11-21
      software: {torch: 2.13.0}
      threads: 16
      host: {launch_eager_s: 3.1e-6}
      memory: {context_bytes: 5.0e+8}
      overlap: {compute_by_copy: 0.05}
      points:                                     # op and phase -> dtype -> [sizes, median s, 10th, 90th percentile]
        gemm forward: {bf16: [[4096, 4096, 4096, 2.1e-4, 2.0e-4, 2.3e-4]]}
      collectives:                                # kind -> backend and ranks -> [bytes, median, 10th, 90th]
        all_reduce: {gloo 2: [[4096, 1.0e-4, 9.0e-5, 1.3e-4]]}  # and, on all rows or none, waited, beside, queued

The key `calibration` of a cluster document. Reading is strict: an operation nobody prices, a row of another width, a
time that is no time are errors that name the row. `cost.calibrated` makes prices of it.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import SpecError
from windtunnel.physics.hardware.gpu import DTYPES

KINDS = ("cpu", "cuda")
_ROWS_WIDTH, _BOTH = ("rows", "width"), ("forward", "backward")
_LINEAR, _ONCE = ("forward", "dgrad", "wgrad"), ("",)

# Operation -> names of its sizes, and its phases; "" where there is only one.
OPERATIONS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gemm": (("m", "n", "k"), _LINEAR),  # a linear layer: x[m, k], w[n, k] -> y[m, n], in every phase
    "grouped_gemm": (("groups", "m", "n", "k"), _LINEAR),  # m rows per group
    "attention": (("batch", "seq", "heads", "kv_heads", "head_dim"), _BOTH),  # causal
    **dict.fromkeys(("rms_norm", "layer_norm", "swiglu", "gelu", "add", "dropout", "softmax"), (_ROWS_WIDTH, _BOTH)),
    "rope": (_ROWS_WIDTH, _BOTH),  # rows: batch x seq x heads; width: head_dim
    "embedding": (("tokens", "hidden"), _BOTH),
    "cross_entropy": (("tokens", "vocab"), _BOTH),
    "cast": (_ROWS_WIDTH, ("forward",)),
    "gather_rows": (("tokens", "hidden"), _BOTH),
    "scatter_add_rows": (("tokens", "hidden"), _BOTH),
    "adamw": (("parameters",), ("foreach", "fused", "single")),
    "zero_grad": (("parameters",), _ONCE),
    "clip_norm": (("parameters",), _ONCE),
    "copy": (("bytes",), ("forward",)),
    "h2d": (("bytes",), ("forward",)),
    "d2h": (("bytes",), ("forward",)),
}
# What a new page costs in processes that hold so many GiB.
LARGER_PROCESSES = {size: f"new_page_{size}gib_s_per_byte" for size in (2, 4, 8)}
COPIES = ("copy", "h2d", "d2h")  # their "dtype" is any word: bytes, pinned, ...
COLLECTIVES = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv", "barrier"),
)
_TEXT_KEYS, _NUMBER_MAPS = ("device", "date"), ("host", "memory", "overlap")
_KEYS = (*_TEXT_KEYS, "kind", "software", "threads", *_NUMBER_MAPS, "points", "collectives")
_FOR_READERS = ("curves", "notes")  # written for people and plots; nothing is priced by them
OLD_DAYS = 30  # a device may have other drivers and neighbours by then
_DISTURBED = ("busy", "quiet machine", "too long")  # what notes of a disturbed measurement say

Array = NDArray[np.float64]


class Points(NamedTuple):
    """Measured times of one operation, phase and dtype: one row per size."""

    shapes: NDArray[np.int64]  # rows x sizes, in the order of `OPERATIONS`
    seconds: Array  # median
    low: Array  # 10th percentile of single runs
    high: Array  # 90th
    waited: Array | None = None  # of collectives on a CPU: what one adds to a step that waits for it
    beside: Array | None = None  # ... and to a step that computes meanwhile
    queued: Array | None = None  # ... and to others of its group that are waited for


@dataclass(frozen=True, eq=False)
class Calibration:
    """One device as measured. Equal and hashed by content."""

    device: str
    kind: str
    date: str = ""
    software: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    host: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)
    overlap: Mapping[str, float] = field(default_factory=dict)
    points: Mapping[tuple[str, str], Points] = field(default_factory=dict)  # by ("gemm forward", "bf16")
    collectives: Mapping[tuple[str, str, int], Points] = field(default_factory=dict)  # by (kind, backend, ranks)
    notes: tuple[str, ...] = ()  # what was seen while measuring; no part of what it is equal by

    @cached_property
    def digest(self) -> str:
        """Digest of the whole content."""
        text = json.dumps(calibration_to_document(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Calibration) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def summary_dict(self) -> dict[str, object]:
        """What it is, in a few words and a digest of the rest."""
        summary: dict[str, object] = {"device": self.device, "date": self.date, "software": dict(self.software)}
        points = sum(len(rows.seconds) for rows in (*self.points.values(), *self.collectives.values()))
        return {**summary, "threads": self.threads, "points": points, "digest": self.digest}

    def doubts(self, today: datetime.date) -> list[str]:
        """Why not to trust it, if so: how old it is, and what disturbed it."""
        doubts = []
        with suppress(ValueError):  # a date is a text of the user's
            days = (today - datetime.date.fromisoformat(self.date)).days
            if days > OLD_DAYS:
                doubts.append(f"measured {days} days ago, on {self.date}")
        return doubts + self.disturbances()

    def disturbances(self) -> list[str]:
        """Notes that say that the machine was not the measurement's own."""
        return [note for note in self.notes if any(word in note for word in _DISTURBED)]

    def source(self) -> str:
        """Where its numbers come from, in words."""
        return f"measured on {self.device}" + (f", {self.date}" if self.date else "")


def operation(text: str) -> str | None:
    """The canonical "op phase" of what a document says, None where there is no such operation or phase.

    A phase may be left out where it is forward, or the only one.
    """
    words = text.split()
    if not 1 <= len(words) <= 2 or words[0] not in OPERATIONS:
        return None
    phases = OPERATIONS[words[0]][1]
    phase = words[1] if len(words) == 2 else phases[0] if phases == _ONCE or phases[0] == "forward" else None
    if phases == _ONCE and phase == "forward":
        phase = ""
    return f"{words[0]} {phase}".strip() if phase in phases else None


def size_names(op: str) -> tuple[str, ...]:
    """Names of the sizes of a canonical "op phase"."""
    return OPERATIONS[op.split()[0]][0]


def calibration_from_document(entry: object, where: str | None = None) -> Calibration:
    """The calibration that a document holds under its key `calibration`, numbers as numbers or as text.

    Raises:
        SpecError: names the file (`where`), the operation and the row.
    """
    reader = _Reader(where)
    document = reader.mapping(entry, "calibration")
    for key in document:
        if key not in (*_KEYS, *_FOR_READERS):
            reader.fail(f"calibration.{key}", document[key], f"unknown key; known: {', '.join(_KEYS)}")
    kind, device, threads = document.get("kind"), document.get("device"), document.get("threads")
    if kind not in KINDS:
        reader.fail("calibration.kind", kind, f"must be one of {', '.join(KINDS)}")
    if not device:
        reader.fail("calibration.device", device, "give the device's name")
    if threads is not None:
        threads = int(reader.number(threads, "calibration.threads", least=1))
    software = reader.mapping(document.get("software") or {}, "calibration.software")
    numbers = {}
    for name in _NUMBER_MAPS:
        values = reader.mapping(document.get(name) or {}, f"calibration.{name}")
        entries = {str(key): value for key, value in values.items() if value is not None}
        numbers[name] = {key: reader.number(value, f"calibration.{name}.{key}") for key, value in entries.items()}
    return Calibration(
        str(device),
        str(kind),
        str(document.get("date") or ""),
        {str(key): str(value) for key, value in software.items()},
        threads,
        points=_points(reader, document.get("points") or {}),
        collectives=_collectives(reader, document.get("collectives") or {}),
        notes=_notes(document.get("notes")),
        **numbers,
    )


def _notes(entry: object) -> tuple[str, ...]:
    """A list, or one note alone: they are written for people, and perhaps by them."""
    notes = entry if isinstance(entry, list | tuple) else [] if entry is None else [entry]
    return tuple(map(str, notes))


def calibration_to_document(calibration: Calibration) -> dict[str, object]:
    """Plain mappings, lists and numbers, ready for YAML or JSON; `calibration_from_document` reads them back."""
    points: dict[str, dict[str, list[list[float]]]] = {}
    for (op, dtype), measured in sorted(calibration.points.items()):
        points.setdefault(op, {})[dtype] = _rows(measured)
    collectives: dict[str, dict[str, list[list[float]]]] = {}
    for (kind, backend, ranks), measured in sorted(calibration.collectives.items()):
        collectives.setdefault(kind, {})[f"{backend} {ranks}"] = _rows(measured)
    return {
        "device": calibration.device,
        "kind": calibration.kind,
        "date": calibration.date,
        "software": dict(calibration.software),
        "threads": calibration.threads,
        "host": dict(calibration.host),
        "memory": dict(calibration.memory),
        "overlap": dict(calibration.overlap),
        "points": points,
        "collectives": collectives,
    }


def _rows(points: Points) -> list[list[float]]:
    columns = [column for column in points[1:] if column is not None]
    times = np.stack(columns, axis=1).tolist()
    return [[*shape, *time] for shape, time in zip(points.shapes.tolist(), times, strict=True)]


def _points(reader: _Reader, entry: object) -> dict[tuple[str, str], Points]:
    by_operation: dict[tuple[str, str], Points] = {}
    for text, by_dtype in reader.mapping(entry, "calibration.points").items():
        at = f"calibration.points.{text}"
        op = operation(str(text))
        if op is None:
            operations = ", ".join(
                " ".join((name, "|".join(phases))).strip() for name, (_, phases) in OPERATIONS.items()
            )
            reader.fail(at, text, f"no such operation and phase; known: {operations}")
        for dtype, rows in reader.mapping(by_dtype, at).items():
            if dtype not in DTYPES and op.split()[0] not in COPIES:
                reader.fail(at, dtype, f"no such dtype; known: {', '.join(DTYPES)}")
            if (op, str(dtype)) in by_operation:
                reader.fail(at, dtype, "is given twice, with and without its phase")
            points = reader.rows(rows, f"{at}.{dtype}", size_names(op))
            if len(points.seconds):
                by_operation[op, str(dtype)] = points
    return by_operation


def _collectives(reader: _Reader, entry: object) -> dict[tuple[str, str, int], Points]:
    collectives: dict[tuple[str, str, int], Points] = {}
    for kind, by_group in reader.mapping(entry, "calibration.collectives").items():
        at = f"calibration.collectives.{kind}"
        if kind not in COLLECTIVES:
            reader.fail(at, kind, f"no such collective; known: {', '.join(COLLECTIVES)}")
        for text, rows in reader.mapping(by_group, at).items():
            words = str(text).split()
            if len(words) != 2 or not words[1].isdigit() or int(words[1]) < 2:
                reader.fail(at, text, "give the backend and the number of ranks, such as `gloo 2`")
            points = reader.rows(rows, f"{at}.{text}", ("bytes",), more=("waited", "beside", "queued"))
            if len(points.seconds):
                collectives[str(kind), words[0], int(words[1])] = points
    return collectives


@dataclass(frozen=True, slots=True)
class _Reader:
    """Checks values and names their place; `where` is the file, if there is one."""

    where: str | None

    def fail(self, name: str, value: object, remedy: str) -> NoReturn:
        raise SpecError(name, value, remedy, self.where)

    def mapping(self, value: object, name: str) -> Mapping[object, object]:
        if not isinstance(value, Mapping):
            self.fail(name, value, "must be `key: value` lines")
        return value

    def number(self, value: object, name: str, least: float = 0.0) -> float:
        try:
            number = math.nan if isinstance(value, bool) else float(str(value))
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and number >= least):
            self.fail(name, value, f"must be a number of at least {least:g}")
        return number

    def rows(self, entry: object, name: str, sizes: Sequence[str], more: Sequence[str] = ()) -> Points:
        """Rows of `sizes`, then median, 10th and 90th percentile of the seconds; `more` columns in all rows or none."""
        columns = f"{', '.join(sizes)}, seconds, 10th percentile, 90th percentile"
        if not isinstance(entry, Sequence) or isinstance(entry, str):
            self.fail(name, entry, f"must be a list of rows of {columns}")
        first = entry[0] if entry else None
        width = len(sizes) + 3
        if more and isinstance(first, Sequence) and len(first) == width + len(more):
            width, columns = width + len(more), f"{columns}, {', '.join(more)}"
        elif more:
            columns = f"{columns}, and in all rows or none {', '.join(more)}"
        table = np.empty((len(entry), width))
        for number, row in enumerate(entry, start=1):
            at = f"{name} row {number}"
            if not isinstance(row, Sequence) or isinstance(row, str) or len(row) != width:
                self.fail(at, row, f"must be {width} numbers: {columns}")
            try:
                table[number - 1] = [float(value) for value in row]
            except (TypeError, ValueError):
                self.fail(at, row, f"must be {width} numbers: {columns}")
            problem = _problem(table[number - 1][: len(sizes) + 3], len(sizes))
            if problem is None and not (np.isfinite(table[number - 1]).all() and (table[number - 1] >= 0.0).all()):
                problem = "must hold finite numbers of at least zero"
            if problem is not None:
                self.fail(at, row, problem)
        shapes, times = table[:, : len(sizes)], table[:, len(sizes) :]
        return Points(shapes.astype(np.int64), *(column.copy() for column in times.T))


def _problem(row: Array, n_sizes: int) -> str | None:
    sizes, (seconds, low, high) = row[:n_sizes], row[n_sizes:]
    if not np.isfinite(row).all():
        return "must hold finite numbers only"
    if (sizes < 1).any() or (sizes != np.floor(sizes)).any() or (sizes > 2**53).any():
        return "sizes must be whole numbers of at least 1"
    if min(seconds, low, high) <= 0.0:
        return "times must be above zero"
    return None if low <= seconds <= high else "the median must lie between the 10th and the 90th percentile"
