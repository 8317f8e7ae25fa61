"""Which importer reads a file: by what it holds, where its name leaves that open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from windtunnel.errors import InputFileError, SpecError
from windtunnel.files.bytes import path_of
from windtunnel.studies.traces.by_class import StepTime
from windtunnel.studies.traces.rank_ops import RankOps, rank_of_file
from windtunnel.studies.traces.trace import Trace

_GIVE = "give an operation table (.parquet), or one Kineto (.json, .json.gz) or Chakra (.et, .json) trace per rank"


def read_trace(paths: Sequence[Path]) -> Trace:
    """Read the traces of one job.

    Raises:
        SpecError: no path, one path twice, or files of several formats.
        InputFileError: a file cannot be read, or not replayed.
    """
    try:
        return _read(paths)
    except MemoryError as error:
        raise InputFileError(
            paths[0], "does not fit in memory", "record fewer steps, or explain fewer ranks"
        ) from error


def _read(paths: Sequence[Path]) -> Trace:
    if not paths:
        raise SpecError("traces", "", _GIVE)
    for path in paths:
        path_of(path, _GIVE)
        if path.is_dir():
            raise InputFileError(path, "is a folder", "name the files in it, e.g. " + str(path / "*"))
        if not path.is_file():
            raise InputFileError(path, "is missing", _GIVE)
    kinds = {path: _format(path) for path in paths}
    if len(kinds) < len(paths):
        twice = next(path for at, path in enumerate(paths) if path in paths[:at])
        raise SpecError("traces", str(twice), "name every file once")
    formats = set(kinds.values())
    if len(formats) > 1:
        raise SpecError("traces", ", ".join(sorted(formats)), "give traces of one format at a time")
    if formats == {"parquet"}:
        if len(paths) > 1:
            raise SpecError("traces", ", ".join(map(str, paths)), "give one operation table at a time")
        from windtunnel.studies.traces.operation_table.table_trace import read_table_trace

        return read_table_trace(paths[0])
    if formats == {"protobuf"}:
        from windtunnel.studies.traces.chakra.importer import chakra_trace
        from windtunnel.studies.traces.chakra.wire_form import read_wire

        return chakra_trace([read_wire(path) for path in paths])
    from windtunnel.process import no_garbage_collection

    with no_garbage_collection():  # none of a trace is garbage
        return _json(paths)


def _json(paths: Sequence[Path]) -> Trace:
    from windtunnel.studies.traces.by_class import step_times
    from windtunnel.studies.traces.joined import join_ranks
    from windtunnel.studies.traces.kineto.file import read_json_trace
    from windtunnel.studies.traces.kineto.rank import kineto_ops, loading_of, rank_of

    trace = read_json_trace(paths[0])
    if not trace.is_kineto:
        from windtunnel.studies.traces.chakra.importer import chakra_trace
        from windtunnel.studies.traces.chakra.json_form import nodes_of

        return chakra_trace([nodes_of(read_json_trace(path)) for path in paths])
    ranks: dict[int, RankOps] = {}
    steps: list[StepTime] = []
    worlds: dict[int, int] = {}
    for number, path in enumerate(paths):
        if number > 0:
            trace = read_json_trace(path)  # one after the other: each may take gigabytes
        if not trace.is_kineto:
            raise InputFileError(path, "is a Chakra trace among Kineto traces", "give traces of one format at a time")
        stated = rank_of(trace)
        rank = rank_of_file(path, stated, number, ranks)
        info = trace.top.get("distributedInfo")
        world = info.get("world_size") if isinstance(info, dict) else None
        if isinstance(world, int) and not isinstance(world, bool):
            worlds.setdefault(world, rank)
        ranks[rank] = kineto_ops(trace, rank)
        steps += step_times(ranks[rank], loading_of(trace))
        if stated is None and len(paths) > 1:
            ranks[rank].notes.append("the file does not say its rank: numbered in the order given")
    if len(worlds) > 1:
        differing = ", ".join(f"rank {rank} is of {world}" for world, rank in sorted(worlds.items())[:3])
        next(iter(ranks.values())).notes.append(
            f"the files say different numbers of ranks ({differing}): are they of one job?"
        )
    return replace(join_ranks("Kineto", list(ranks.values())), rank_steps=tuple(steps))


def _format(path: Path) -> str:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise InputFileError(path, f"cannot be read ({error.strerror})", "check its permissions") from error
    if not magic:
        raise InputFileError(path, "is empty", _GIVE)
    if magic == b"PAR1" or path.suffix == ".parquet":
        return "parquet"
    if magic.lstrip()[:1] == b"\0":  # a hole as large as you like, and no format of these begins so
        raise InputFileError(path, "begins with zero bytes", _GIVE)
    return "protobuf" if ".et" in path.suffixes and magic.lstrip()[:1] != b"{" else "json"
