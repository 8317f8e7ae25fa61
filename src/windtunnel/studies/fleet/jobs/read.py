"""Job traces of every layout that is known, read into `Jobs`: docs/fleet.md has the columns.

One reader for all tables: `sacct` text, YAML of ours, Kubernetes manifests (`kubernetes.py`) and what Slurm's `--json`
prints become such tables first; columns are known by several names.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from windtunnel.errors import InputFileError, UserError
from windtunnel.files.bytes import GZIP, path_of
from windtunnel.files.document import read_documents
from windtunnel.files.table import Table, read_table, table_of
from windtunnel.studies.fleet.jobs.fair_queues import fair_queues_of_objects
from windtunnel.studies.fleet.jobs.kubernetes import jobs_of_objects
from windtunnel.studies.fleet.jobs.kueue import cohorts_of_objects, quotas_of_objects
from windtunnel.studies.fleet.jobs.slurm_json import is_slurm, rows_of
from windtunnel.studies.fleet.jobs.slurm_records import is_records, records
from windtunnel.studies.fleet.jobs.slurm_table import delimiter_of
from windtunnel.studies.fleet.jobs.table import check_one_selection, matching
from windtunnel.studies.fleet.jobs.trace import Cohort, Jobs, Notes, Quota, Unread

ALIASES = {
    "job": ("job", "pod", "job_id", "id", "name"),
    "submit_s": ("submit_s", "create_s", "submit_time", "arrival_s", "submission_time"),
    "gpus": ("gpus", "num_gpus", "num_gpu", "gpu_count"),
    "duration_s": ("duration_s", "duration", "runtime_s", "run_time_s"),
    "deadline_s": ("deadline_s", "deadline"),
    "iterations": ("iterations", "num_iterations"),
    "batch_size": ("batch_size", "global_batch"),
    "start_s": ("start_s", "schedule_s"),
    "model": ("model", "application", "model_name"),
    "user": ("user", "vc", "account"),
}
TRACE = "give the path of a trace"
SELECTORS = ("workload", "load", "setting", "cluster", "list")  # columns by which one file holds several traces
TRAFFIC = ("period_s", "busy_s", "rate_gbps")
FURTHER = (
    *("ended", "command", "max_gpus", "privacy", "data_gb", "data_at", "seq_len", "tp", "pp", "cp", "ep"),
    # as the log of a scheduler has them
    *("queue", "cluster_queue", "qos", "priority", "account", "limit_s", "eligible_s", "end_s"),
    *("log_state", "log_restarts", "log_gpu_seconds", "billing", "cpus", "nodes", "nodes_asked", "gpu_type"),
    *("topology", "pod_gpus", "part", "flavors", "checks_s"),
    *TRAFFIC,
)  # of single policies
PODS = ("cpu_milli", "memory_mib", "gpu_milli", "gpu_models")  # that make a trace one of pods


def read_jobs(path: str | Path, where: str = "") -> Jobs:
    """The jobs of a trace, those for which `where` (column=value,...) holds.

    Raises InputFileError (file, line, value, remedy) or SpecError (`where`).
    """
    path = path_of(path, TRACE)
    table, unread, quotas, cohorts = _table(path)
    table = matching(table, where)
    check_one_selection(table, SELECTORS)
    return replace(jobs_of(table), not_understood=unread, quotas=quotas, cohorts=cohorts)


def _table(path: Path) -> tuple[Table, tuple[Unread, ...], tuple[Quota, ...], tuple[Cohort, ...]]:
    if path.suffix.lower() in (".yaml", ".yml", ".json"):
        return read_manifests(path)
    if path.is_file() and path.suffix.lower() not in (".parquet", ".pq", ".jsonl"):
        first = _first_line(path)
        mark = delimiter_of(first)
        if mark is not None:
            from windtunnel.studies.fleet.jobs.slurm import read_sacct

            return *read_sacct(path, mark), (), ()
        if is_records(first.encode()):
            from windtunnel.studies.fleet.jobs.slurm import read_rows

            return *read_rows(path, records(path)), (), ()
        words = first.lower().split()
        if words[:1] == ["jobid"]:
            from windtunnel.studies.fleet.jobs.slurm import ASK
            from windtunnel.studies.fleet.jobs.slurm_records import ASK as ASK_SQUEUE

            who, ask = ("squeue", ASK_SQUEUE) if first.split()[0].isupper() else ("sacct", ASK)
            raise InputFileError(path, f"is {who}'s table for people", ask)
        if "," not in first and {"name", "age"} <= set(words):
            raise InputFileError(path, "is kubectl's table for people", "write it with `kubectl get ... -A -o json`")
    return read_table(path, TRACE), (), (), ()


def _first_line(path: Path) -> str:
    """The first line, unpacked where gzip packed it. Raises InputFileError."""
    try:
        with path.open("rb") as file:
            first = file.readline(4096)
        if first.startswith(GZIP):
            with gzip.open(path) as packed:
                first = packed.readline(4096)
    except (OSError, EOFError, zlib.error) as error:
        raise InputFileError(path, f"cannot be read ({getattr(error, 'strerror', None) or error})", TRACE) from None
    return first.decode("utf-8-sig", "replace")


def jobs_of(table: Table) -> Jobs:
    """Jobs of a table of one trace."""
    column_of = {key: next((alias for alias in names if table.has(alias)), None) for key, names in ALIASES.items()}
    for key in ("submit_s", "gpus"):
        if column_of[key] is None:
            text = ", ".join(table.columns) or "no column"
            raise InputFileError(
                table.source, f"has no column {key} (it has {text})", f"name one {' or '.join(ALIASES[key])}"
            )
    if not len(table):
        raise InputFileError(table.source, "has no job", "give at least one line below the names")

    def numbers(key: str, least: float | None = 0.0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        column = column_of[key]
        seconds = key in ("duration_s", "start_s")
        return table.numbers(column, least=least, seconds=seconds) if column else np.full(len(table), np.nan)

    def texts(key: str) -> list[str]:
        column = column_of[key]
        return table.texts(column) if column else [""] * len(table)

    submit, gpus = column_of["submit_s"], column_of["gpus"]
    assert submit is not None
    assert gpus is not None
    pods = all(table.has(column) for column in PODS[:1] + PODS[2:3])
    name = texts("job") if column_of["job"] else [str(at) for at in range(len(table))]
    _check_names(name, table)
    _check_traffic(table)
    return Jobs(
        source=table.source,
        name=name,
        line=table.line,
        submit_s=np.nan_to_num(
            table.numbers(submit, needed=not pods, seconds=True)
        ),  # pods may come without times, in order of names
        gpus=table.whole(gpus, needed=True),
        duration_s=numbers("duration_s"),
        deadline_s=numbers("deadline_s"),
        iterations=numbers("iterations"),
        batch_size=numbers("batch_size"),
        start_s=numbers("start_s"),
        model=texts("model"),
        user=texts("user"),
        columns={key: table.texts(key) for key in (*PODS, *FURTHER) if table.has(key)},
    )


def _check_traffic(table: Table) -> None:
    """Raise InputFileError for a job whose traffic is half told: it would run as one that sends nothing."""
    said = {
        name: ~np.isnan(table.numbers(name, seconds=name != "rate_gbps"))
        if table.has(name)
        else np.zeros(len(table), bool)
        for name in TRAFFIC
    }
    for name, other in (("period_s", "busy_s"), ("busy_s", "period_s"), ("rate_gbps", "period_s")):
        rows = np.flatnonzero(said[name] & ~said[other])
        if len(rows):
            remedy = "give period_s and busy_s of a job that sends, and none of a job that does not"
            table.refuse(int(rows[0]), name, f"comes without {other}", remedy)


def _check_names(name: list[str], table: Table) -> None:
    if len(set(name)) == len(name):
        return
    first: dict[str, int] = {}
    for at, text in enumerate(name):
        if text in first:
            lines = f"lines {int(table.line[first[text]])} and {int(table.line[at])}"
            raise UserError(
                f"{table.source}: {lines} both name job {text!r}; names tell jobs apart, so make them differ"
            )
        first[text] = at


def read_manifests(path: Path) -> tuple[Table, tuple[Unread, ...], tuple[Quota, ...], tuple[Cohort, ...]]:
    """The table of jobs, what was not understood, the quotas of queues and their cohorts. Raises InputFileError."""
    items: list[object] = []
    looked: object = None
    for document in read_documents(path, "give a trace that can be read"):
        inner = (
            next((document[key] for key in ("jobs", "items") if isinstance(document.get(key), list)), None)
            if (isinstance(document, Mapping))
            else document
        )
        looked = document.get("last_update") if isinstance(document, Mapping) else None
        items.extend(inner if isinstance(inner, list) else [document])
    if is_slurm(items):
        from windtunnel.studies.fleet.jobs.slurm import read_rows

        return *read_rows(path, rows_of(items, looked)), (), ()
    notes, ours, objects = Notes(), [], []
    for number, item in enumerate(items, 1):
        if not isinstance(item, Mapping):
            raise InputFileError(path, f"job {number} is no mapping", "give job, submit_s, gpus, ... for each")
        if "kind" in item:
            objects.append(item)
        else:
            ours.append({str(key): item[key] for key in item})
    quotas, cohorts = quotas_of_objects(objects, notes), cohorts_of_objects(objects)
    rows = [*ours, *jobs_of_objects(objects, notes, quotas)]
    if objects and not rows:
        unread = notes.rows()
        problem = f"{unread[0].examples[0] or 'an object'} {unread[0].reason}" if unread else "holds no job"
        raise InputFileError(path, problem, "write it with `kubectl get -o yaml`")
    fair = fair_queues_of_objects(objects, notes)
    return table_of(path, rows), notes.rows(), quotas + fair[0], cohorts + fair[1]
