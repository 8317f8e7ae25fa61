"""A `RankProgram` as a file: gzipped JSON lines, exact both ways.

    {"format": "windtunnel rank program", "version": 1, "rank": 0, "world_size": 16, ...}
    {"group": 0, "name": "mesh_tp", "members": [[0, 1, 8]]}          before its first use: runs of [start, step, count]
    {"op": 0, "name": "aten.mm.default", "kind": "compute", ...}     fields at their defaults are left out
    {"memory": [[0, 17, 4096, "activation"], ...]}                   in order, those of one op on one line
    {"end": 1234}                                                    number of ops: a file that was cut off is noticed

One op a line, so that `diff` of two unzipped files shows where two ranks part. Non-finite numbers are written
{"float": "inf"}; sequences inside `scalars` come back as tuples.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from windtunnel.errors import InputFileError
from windtunnel.files.bytes import MIB, gunzip, read_bytes
from windtunnel.studies.programs.communication import Communication
from windtunnel.studies.programs.program import Answer, MemoryEvent, Op, RankProgram, TensorSpec

FORMAT, VERSION = "windtunnel rank program", 1
PROGRAM_BYTES_MOST = 1024 * MIB
_REMEDY = "capture again with this version of windtunnel"
_OP = {field.name: field.default for field in fields(Op) if field.name not in ("name", "kind")}
_CALL = {field.name: field.default for field in fields(Communication)}
_CALL_TUPLES = ("sent_bytes", "received_bytes")
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def write_program(program: RankProgram) -> bytes:
    """The file's bytes; the same program gives the same bytes."""
    text = "\n".join(map(_ENCODER.encode, _lines(program)))
    return gzip.compress((text + "\n").encode(), compresslevel=5, mtime=0)


def read_program(path: Path) -> RankProgram:
    """Read what `write_program` wrote. Raises InputFileError, with the line, for anything else."""
    packed = read_bytes(path, _REMEDY, PROGRAM_BYTES_MOST)
    try:
        text = gunzip(packed, path, _REMEDY).decode()
    except UnicodeDecodeError as error:
        raise InputFileError(path, f"is no gzipped text ({error})", _REMEDY) from None
    if not text:
        raise InputFileError(path, "is empty", _REMEDY)
    number = 0
    try:
        reader = _Reader()
        for line in text.splitlines():
            number += 1
            reader.take(json.loads(line))
        return reader.program()
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InputFileError(f"{path}, line {number}", f"is malformed ({error})", _REMEDY) from None


# Writing


def _lines(program: RankProgram) -> Iterator[dict[str, object]]:
    yield {
        "format": FORMAT,
        "version": VERSION,
        "rank": program.rank,
        "world_size": program.world_size,
        "resident": [list(event) for event in program.resident],
        "answers": [list(answer) for answer in program.answers],
        "meshes": [[list(names), list(sizes)] for names, sizes in program.meshes],
        "coordinates": [list(places) for places in program.coordinates],
        "notes": list(program.notes),
        "facts": _plain(program.facts),
    }
    groups: dict[tuple[str, int], int] = {}
    specs: dict[int, list[object]] = {}  # by identity: recorded programs share a few tuples
    keep: list[tuple[int, ...]] = []  # ids stay taken while their tuples live
    numbers: dict[tuple[str, tuple[int, ...]], int] = {}
    for index, op in enumerate(program.ops):
        call = op.communication
        if call is not None and (call.group, id(call.members)) not in groups:
            number = numbers.get((call.group, call.members))
            if number is None:
                number = numbers[call.group, call.members] = len(numbers)
                yield {"group": number, "name": call.group, "members": runs_of(call.members)}
            groups[call.group, id(call.members)] = number
            keep.append(call.members)
        yield _op_line(index, op, groups, specs)
    batch: list[list[object]] = []
    for event in program.memory:
        if batch and batch[0][0] != event.op:
            yield {"memory": batch}
            batch = []
        batch.append(list(event))
    if batch:
        yield {"memory": batch}
    yield {"end": len(program.ops)}


def _op_line(
    index: int, op: Op, groups: Mapping[tuple[str, int], int], specs: dict[int, list[object]]
) -> dict[str, object]:
    line: dict[str, object] = {"op": index, "name": op.name, "kind": op.kind}
    for name, default in _OP.items():
        value = getattr(op, name)
        if value == default and type(value) is type(default):
            continue
        if name in ("inputs", "outputs"):
            shown = specs.get(id(value))
            if shown is None:
                shown = specs[id(value)] = [[list(spec.shape), spec.dtype, spec.device] for spec in value]
            line[name] = shown
            continue
        if name == "after" or type(value) in (str, int, bool):  # nothing in them to be written otherwise
            line[name] = value
            continue
        if name == "communication":
            call = {field: item for field, was in _CALL.items() if (item := getattr(value, field)) != was}
            call.pop("members", None)
            call["group"] = groups[value.group, id(value.members)]
            value = call
        line[name] = _plain(value)
    return line


def _plain(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)


def runs_of(members: tuple[int, ...]) -> list[list[int]]:
    """Numbers as arithmetic runs [start, step, count], in their order."""
    runs: list[list[int]] = []
    for rank in members:
        last = runs[-1] if runs else None
        if last is not None and last[2] == 1:
            last[1], last[2] = rank - last[0], 2
        elif last is not None and rank == last[0] + last[1] * last[2]:
            last[2] += 1
        else:
            runs.append([rank, 0, 1])
    return runs


def numbers_of(runs: list[list[int]]) -> tuple[int, ...]:
    """What `runs_of` shortened."""
    return tuple(start + step * turn for start, step, count in runs for turn in range(count))


# Reading


class _Reader:
    """Takes line after line; the same spec, group or call is one object."""

    def __init__(self) -> None:
        self.head: dict[str, Any] | None = None
        self.groups: list[tuple[str, tuple[int, ...]]] = []
        self.ops: list[Op] = []
        self.memory: list[MemoryEvent] = []
        self.ended = False
        self.specs: dict[tuple[object, ...], TensorSpec] = {}

    def take(self, line: dict[str, Any]) -> None:
        if self.head is None:
            if line.get("format") != FORMAT:
                raise ValueError("the first line names no format")
            if line.get("version") != VERSION:
                raise ValueError(f"version {line.get('version')}, not {VERSION}")
            self.head = line
        elif self.ended:
            raise ValueError("there are lines after the end")
        elif "op" in line:
            self.ops.append(self._op(line))
        elif "group" in line:
            if line["group"] != len(self.groups):
                raise ValueError("groups are out of order")
            self.groups.append((line["name"], numbers_of(line["members"])))
        elif "memory" in line:
            self.memory.extend(MemoryEvent(*event) for event in line["memory"])
        elif "end" in line:
            self.ended = True
            if line["end"] != len(self.ops):
                raise ValueError(f"{len(self.ops)} ops, not {line['end']}")
        else:
            raise ValueError(f"unknown line with {sorted(line)}")

    def _op(self, line: dict[str, Any]) -> Op:
        if line.pop("op") != len(self.ops):
            raise ValueError("ops are out of order")
        unknown = line.keys() - _OP.keys() - {"name", "kind"}
        if unknown:
            raise ValueError(f"unknown field {min(unknown)}")
        for name in ("inputs", "outputs"):
            if name in line:
                line[name] = tuple(self._spec(*item) for item in line[name])
        if "communication" in line:
            call = dict(line["communication"])
            group, members = self.groups[call.pop("group")]
            if call.keys() - _CALL.keys():
                raise ValueError(f"unknown field {min(call.keys() - _CALL.keys())}")
            for name in _CALL_TUPLES:
                if name in call:
                    call[name] = tuple(call[name])
            line["communication"] = Communication(group=group, members=members, **call)
        if "after" in line:
            line["after"] = tuple(line["after"])
        for name in ("reads", "writes"):
            if name in line:
                line[name] = tuple(tuple(item) for item in line[name])
        for name in ("flops", "bytes_read", "bytes_written", "scalars"):
            if name in line:
                line[name] = _rich(line[name])
        return Op(**line)

    def _spec(self, shape: list[int], dtype: str, device: str) -> TensorSpec:
        key = (tuple(shape), dtype, device)
        return self.specs.setdefault(key, TensorSpec(*key))

    def program(self) -> RankProgram:
        head = self.head
        if head is None or not self.ended:
            raise ValueError("the file was cut off")
        return RankProgram(
            head["rank"],
            head["world_size"],
            tuple(self.ops),
            tuple(self.memory),
            tuple(MemoryEvent(*event) for event in head["resident"]),
            tuple(Answer(*answer) for answer in head["answers"]),
            tuple((tuple(names), tuple(sizes)) for names, sizes in head["meshes"]),
            tuple(tuple(places) for places in head["coordinates"]),
            tuple(head["notes"]),
            _rich(head["facts"], list),
        )


def _rich(value: object, sequence: Callable[[Iterable[object]], object] = tuple) -> Any:
    """As it was before `_plain`; `sequence`: what lists were."""
    if isinstance(value, list):
        return sequence(_rich(item, sequence) for item in value)
    if isinstance(value, dict):
        return float(value["float"]) if value.keys() == {"float"} else {k: _rich(v, sequence) for k, v in value.items()}
    return value
