"""Traces of a run, Kineto's or Nsight's, as the steps of each rank by class of op."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from windtunnel.errors import InputFileError, SpecError
from windtunnel.files.bytes import path_of
from windtunnel.files.sqlite import is_sqlite
from windtunnel.process import no_garbage_collection
from windtunnel.studies.measured_run.nsys import rank_of_nsys
from windtunnel.studies.traces.by_class import StepTime, step_times
from windtunnel.studies.traces.kineto.file import read_json_trace
from windtunnel.studies.traces.kineto.rank import kineto_ops, loading_of, rank_of
from windtunnel.studies.traces.rank_ops import RankOps, rank_of_file

GIVE = "give Kineto traces (.json, .json.gz), one a rank, or what `nsys export --type sqlite` writes"


def read_traced(paths: Sequence[str | Path]) -> dict[int, list[StepTime]]:
    """The steps of each rank. Raises UserError."""
    if not paths:
        raise SpecError("trace", None, GIVE)
    found: dict[int, list[StepTime]] = {}
    seen: dict[int, RankOps] = {}
    with no_garbage_collection():
        for number, given in enumerate(paths):
            path = path_of(given, GIVE)
            if not path.is_file():
                raise InputFileError(path, "is missing or no file", GIVE)
            if is_sqlite(path):
                ops, loading = rank_of_nsys(path, rank_of_file(path, None, number, seen))
            else:
                trace = read_json_trace(path)
                if not trace.is_kineto:
                    raise InputFileError(path, "is a Chakra trace: it has no times of idle streams", GIVE)
                ops = kineto_ops(trace, rank_of_file(path, rank_of(trace), number, seen))
                loading = loading_of(trace)
            steps = step_times(ops, loading)
            if not steps:
                raise InputFileError(path, "holds no work of a training step", GIVE)
            seen[ops.rank], found[ops.rank] = ops, steps
    return found
