"""The captured folder: `captured.yaml` and one `rank_<r>.jsonl.gz` for each rank whose program is kept.

`captured.yaml` holds what a person wants to know (script, classes, verification, answers) and the table that says which
kept rank every rank of the world equals: the grid of ranks, and for each stage where its axes are cut.

    grid: {sizes: [4, 2, 2], names: [pp, dp, tp]}
    exact: [0]                       # dimensions of which every coordinate was run; the others are axes
    stages:                          # for each combination of exact coordinates
    - {at: [0], cuts: [[0], [0]], ranks: [0]}
    runs: [[0, 4], [4, 4], ...]      # or, where all ranks were run: [kept rank, how many ranks in a row run it]

The folder appears whole by a rename, or not at all.
"""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.errors import InputFileError, UserError
from windtunnel.files.bytes import path_of
from windtunnel.files.document import read_document, to_yaml
from windtunnel.studies.programs.program import RankProgram
from windtunnel.studies.programs.program_file import read_program
from windtunnel.studies.programs.rank_classes.grid import Grid, Members, RankAxes
from windtunnel.studies.programs.rank_classes.representatives import Stage, Table

if TYPE_CHECKING:
    from windtunnel.studies.programs.job import CapturedJob

NAME, FORMAT, VERSION = "captured.yaml", "windtunnel captured job", 1
_REMEDY = "capture again: windtunnel capture ..."


def is_captured(path: Path) -> bool:
    """Whether there is a captured folder at `path`."""
    return (Path(path) / NAME).is_file()


def program_path(folder: Path, rank: int) -> Path:
    """Where the program of a captured rank is kept."""
    return Path(folder) / f"rank_{rank}.jsonl.gz"


# Writing


def check_place(out: Path) -> None:
    """Refuse a place that holds something else. Raises UserError."""
    if out.exists() and not out.is_dir():
        raise InputFileError(out, "is a file", "give --out a folder")
    if out.is_dir() and not is_captured(out) and any(out.iterdir()):
        raise InputFileError(out, "is a folder with other things in it", "give --out a new folder")


def publish(
    out: Path,
    document: Mapping[str, object],
    programs: Mapping[int, Path],
    others: Mapping[str, tuple[Mapping[str, object], Mapping[int, Path]]] | None = None,
) -> None:
    """Put the folder in place of an earlier one. `programs`: files to copy, by rank.

    `others`: folders inside of it, by name, for steps of the period that differ.
    """
    out = Path(os.path.abspath(out))
    check_place(out)
    staging: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f"{_staging(out)}{os.getpid()}-", dir=out.parent))
        fresh, old = staging / "new", staging / "old"
        for name, (its, files) in (others or {}).items():
            _write(fresh / name, its, files)
        _write(fresh, document, programs)
        if out.exists():
            os.replace(out, old)
        os.replace(fresh, out)
    except OSError as error:
        raise InputFileError(out, f"cannot be written ({error.strerror})", "give --out another place") from None
    finally:
        if staging is not None:
            _clear(staging, out)


def _write(folder: Path, document: Mapping[str, object], programs: Mapping[int, Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for rank, path in programs.items():
        shutil.copyfile(path, program_path(folder, rank))
    head = {"format": FORMAT, "version": VERSION, "content": content_hash(folder, document)}
    (folder / NAME).write_text(to_yaml({**head, **document}, width=120), encoding="utf-8")


def sweep_place(out: Path) -> None:
    """Remove what a `publish` that was killed left beside `out`."""
    out = Path(os.path.abspath(out))
    for staging in out.parent.glob(f"{glob.escape(_staging(out))}*"):
        owner = staging.name.removeprefix(_staging(out)).partition("-")[0]
        if owner.isdigit() and Path("/proc/self").exists() and not Path(f"/proc/{owner}").exists():
            _clear(staging, out)


def _clear(staging: Path, out: Path) -> None:
    """Remove what stood beside `out`; an earlier folder that was moved there comes back if none has taken its place."""
    with suppress(OSError):
        if (staging / "old").exists() and not out.exists():
            os.replace(staging / "old", out)
    shutil.rmtree(staging, ignore_errors=True)


def _staging(out: Path) -> str:
    return f".{out.name}.windtunnel-"


def content_hash(folder: Path, document: Mapping[str, object]) -> str:
    """Of the programs and of who runs them."""
    text = hashlib.blake2b(digest_size=16)
    for path in sorted(Path(folder).rglob("rank_*.jsonl.gz")):
        text.update(path.relative_to(folder).as_posix().encode())
        text.update(path.read_bytes())
    for name in ("world_size", "grid", "exact", "stages", "runs"):
        text.update(repr(document.get(name)).encode())
    return text.hexdigest()


def table_document(table: Table) -> dict[str, object]:
    """The table as plain data."""
    layout = table.layout
    return {
        "grid": {"sizes": list(layout.grid.sizes), "names": list(layout.grid.names)},
        "exact": list(layout.exact),
        "stages": [
            {"at": list(stage.exact), "cuts": [list(cuts) for cuts in stage.cuts], "ranks": list(stage.cells)}
            for stage in table.stages
        ],
    }


def runs_document(grid: Grid, representatives: Sequence[int]) -> dict[str, object]:
    """Every rank's representative, where all ranks were run."""
    runs: list[list[int]] = []
    for representative in representatives:
        if runs and runs[-1][0] == representative:
            runs[-1][1] += 1
        else:
            runs.append([representative, 1])
    return {"grid": {"sizes": list(grid.sizes), "names": list(grid.names)}, "runs": runs}


# Reading


class CapturedFolder:
    """A captured folder that was read: the document, and who runs what. Programs are read when asked for."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.document = _document(self.path)
        try:
            self.world_size = int(self.document["world_size"])
            grid = self.document["grid"]
            self.grid = Grid(tuple(grid["sizes"]), tuple(grid["names"]))
            self.captured = tuple(int(entry["rank"]) for entry in self.document["classes"])
            self._table = _table(self.document, self.grid)
            self._runs = [rank for rank, count in self.document.get("runs") or () for _ in range(count)]
        except KeyError as error:
            problem = f"has no `{error.args[0]}`: it was cut short or changed"
            raise InputFileError(self.path / NAME, problem, _REMEDY) from None
        except (TypeError, ValueError) as error:
            raise InputFileError(self.path / NAME, f"is malformed ({error})", _REMEDY) from None

    @property
    def is_whole(self) -> bool:
        """Whether it says of every rank of the world what it runs."""
        return self._table is not None or len(self._runs) == self.world_size

    def class_of(self, rank: int) -> int:
        """The kept rank whose program this rank runs."""
        if not 0 <= rank < self.world_size:
            raise UserError(f"rank {rank} is none of 0 to {self.world_size - 1}")
        if self._table is not None:
            return self._table.representative_of(rank)
        if not self.is_whole:
            raise _partial(self.path, self.captured)
        return int(self._runs[rank])

    def program(self, kept_rank: int) -> RankProgram:
        """The program of a kept rank. Raises InputFileError."""
        return read_program(program_path(self.path, kept_rank))


def load_job(path: Path) -> CapturedJob:
    """The whole job, ready to be priced and replayed. Raises InputFileError."""
    import numpy as np

    from windtunnel.studies.programs.job import CapturedJob, moved_families

    folder = CapturedFolder(path)
    if not folder.is_whole:
        raise _partial(path, folder.captured)
    runs = np.array([folder.class_of(rank) for rank in range(folder.world_size)], np.int32)
    programs = {rank: folder.program(rank) for rank in folder.captured}
    families = moved_families(programs, runs, folder.grid.members_for, lambda members: group_name(folder.grid, members))
    document = folder.document
    return CapturedJob(
        folder.world_size,
        programs,
        runs,
        families,
        source=str(path),
        content_hash=str(document.get("content", "")),
        facts={**next(iter(programs.values())).facts, **dict(document.get("facts") or {}), **_period(document)},
        notes=tuple(document.get("notes") or ()),
    )


def _period(document: Mapping[str, object]) -> dict[str, object]:
    """Kinds of steps, where they differ."""
    return {"period": document["period"]} if "period" in document else {}


def group_name(grid: Grid, members: Members) -> str:
    """What a group is called: the dimensions that it spans."""
    if len(members) == grid.world_size:
        return "world"
    span = grid.span(members)
    whole = prod(grid.sizes[dimension] for dimension in span)
    return " x ".join(grid.names[dimension] for dimension in span) if whole == len(members) and span else ""


def _document(path: Path) -> dict[str, Any]:
    if not (path_of(path, _REMEDY) / NAME).exists():
        raise InputFileError(path, "is no captured folder (it has no captured.yaml)", _REMEDY)
    document = read_document(path / NAME, _REMEDY)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputFileError(path / NAME, "is no captured job", _REMEDY)
    if document.get("version") != VERSION:
        raise InputFileError(path / NAME, f"has version {document.get('version')}, not {VERSION}", _REMEDY)
    return document


def _table(document: Mapping[str, Any], grid: Grid) -> Table | None:
    if "stages" not in document:
        return None
    layout = RankAxes(grid, tuple(document["exact"]))
    stages = tuple(
        Stage(tuple(entry["at"]), tuple(tuple(cuts) for cuts in entry["cuts"]), tuple(entry["ranks"]))
        for entry in document["stages"]
    )
    return Table(layout, stages)


def _partial(path: Path, captured: Sequence[int]) -> InputFileError:
    ranks = ", ".join(map(str, captured[:8]))
    return InputFileError(
        path, f"holds ranks {ranks} only, not the whole job", "capture again without --ranks to see every rank's class"
    )
