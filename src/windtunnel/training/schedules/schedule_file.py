"""A schedule as a CSV file, in the format of PyTorch's `torch.distributed.pipelining` (`_load_csv`, `_save_csv`).

One row per rank, one cell per action in program order: stage, kind, micro-batch, as in `0F1` (forward), `2B3` (whole
backward), `1I0` (input gradient), `1W0` (weight gradient), `(0F5;3B2)OVERLAP_F_B` (two at the same time). An empty
cell is a wait and carries nothing: waits follow from the dependencies. Cells about communication and parameters
(`0SEND_F1`, `1UNSHARD`, `0REDUCE_GRAD`) follow from the plan and are skipped.

A stage is on one rank only, so DualPipe, with each stage on two, has no such file.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from windtunnel.errors import InputFileError, LayoutError, ScheduleError
from windtunnel.input_file import read_bytes
from windtunnel.training.schedules.table import Kind, Schedule, table
from windtunnel.training.schedules.verify import check

_KINDS = {"F": Kind.FORWARD, "B": Kind.BACKWARD, "I": Kind.BACKWARD_INPUT, "W": Kind.BACKWARD_WEIGHT}
_LETTERS = {kind: letter for letter, kind in _KINDS.items()}
_COMPUTE = re.compile(r"(\d{1,6})([FBIW])(\d{1,6})", re.ASCII)
_SKIPPED = re.compile(r"\d+(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)\d*", re.ASCII)
_PAIR = re.compile(r"\(([^();]*);([^();]*)\)OVERLAP_F_B")
_CELLS = "a cell is stage, kind and micro-batch, as 0F1, 2B3, 1I0, 1W0 or (0F5;3B2)OVERLAP_F_B"


class _Cell(NamedTuple):
    rank: int
    stage: int
    kind: Kind
    micro_batch: int
    with_next: bool


def load_csv(path: str | Path) -> Schedule:
    """Read and `check` a schedule, named after its file, chunks in order of stage. Raises `InputFileError`."""
    path = Path(path)
    try:
        rows = [row for row in csv.reader(io.StringIO(read_bytes(path).decode(), newline="")) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputFileError(
            path, f"cannot be read: {error}", "give a CSV file with one row per pipeline rank"
        ) from error
    cells = [cell for rank, row in enumerate(rows) for text in row for cell in _read(path, rank, text.strip())]
    if not cells:
        raise InputFileError(path, "holds no action", "write one row per pipeline rank; " + _CELLS)
    pieces = _pieces(path, len(rows), cells)
    micro_batches = {cell.micro_batch for cell in cells}
    _numbered(path, "micro-batches", micro_batches)
    if pieces.size * len(micro_batches) > len(cells):  # also keeps the tables below as small as the file
        raise InputFileError(
            path,
            f"holds {len(cells)} actions, too few for {pieces.size} stages and {len(micro_batches)} micro-batches",
            "give every stage a forward and a backward of every micro-batch",
        )
    rank, stage, kind, micro_batch, with_next = np.array(cells, np.int64).T
    result = table(
        path.stem,
        len(micro_batches),
        pieces,
        rank=rank,
        key=np.arange(len(cells)),
        kind=kind,
        chunk=(pieces[rank] < stage[:, None]).sum(axis=1),
        micro_batch=micro_batch,
        with_next=with_next,
    )
    try:
        check(result)
    except ScheduleError as error:
        raise InputFileError(path, str(error), "correct the order or the missing cell in that rank's row") from error
    return result


def save_csv(schedule: Schedule, path: str | Path) -> None:
    """Write a schedule so that `load_csv` and PyTorch can read it.

    Raises `LayoutError` for DualPipe and `InputFileError` where nothing can be written.
    """
    if schedule.direction.any():
        raise LayoutError(
            f"schedule {schedule.name} keeps each stage on two ranks, which a schedule file cannot say",
            "save dualpipe-v instead",
        )
    rows: list[list[str]] = [[] for _ in range(schedule.stages)]
    columns = (schedule.rank, schedule.stage_of, schedule.kind, schedule.micro_batch, schedule.overlap)
    pending = ""
    for at, (rank, stage, kind, micro_batch, partner) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        text = f"{stage}{_LETTERS[kind]}{micro_batch}"
        if partner > at:
            pending = text
        elif partner >= 0:
            rows[rank].append(f"({pending};{text})OVERLAP_F_B")
        else:
            rows[rank].append(text)
    try:
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
    except OSError as error:
        raise InputFileError(path, f"cannot be written: {error}", "give a file in a folder that exists") from error


def _read(path: Path, rank: int, text: str) -> list[_Cell]:
    if not text or _SKIPPED.fullmatch(text):
        return []
    pair = _PAIR.fullmatch(text)
    found = [_COMPUTE.fullmatch(part.strip()) for part in (pair.groups() if pair else (text,))]
    cells = []
    for i, match in enumerate(found):
        if match is None:
            raise InputFileError(path, f"row {rank + 1} has the cell {text[:40]!r}", _CELLS)
        stage, kind, micro_batch = match.groups()
        cells.append(_Cell(rank, int(stage), _KINDS[kind], int(micro_batch), i + 1 < len(found)))
    return cells


def _pieces(path: Path, ranks: int, cells: list[_Cell]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Stages of each rank, ascending, [ranks, chunks]."""
    held: list[set[int]] = [set() for _ in range(ranks)]
    home: dict[int, int] = {}
    for cell in cells:
        other = home.setdefault(cell.stage, cell.rank)
        if other != cell.rank:
            raise InputFileError(
                path, f"stage {cell.stage} is in rows {other + 1} and {cell.rank + 1}", "keep each stage on one rank"
            )
        held[cell.rank].add(cell.stage)
    _numbered(path, "stages", set(home))
    chunks = {len(stages) for stages in held}
    if len(chunks) > 1:
        raise InputFileError(
            path,
            f"rows hold different numbers of stages: {', '.join(str(len(stages)) for stages in held)}",
            "give every rank the same number of stages",
        )
    return np.array([sorted(stages) for stages in held], np.int64)


def _numbered(path: Path, what: str, found: set[int]) -> None:
    missing = next((i for i in range(len(found)) if i not in found), None)
    if missing is not None:
        raise InputFileError(
            path,
            f"uses {len(found)} {what} up to number {max(found)} but none is number {missing}",
            f"number {what} from 0",
        )
