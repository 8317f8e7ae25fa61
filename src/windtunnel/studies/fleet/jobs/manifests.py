"""Jobs in YAML or JSON: a list of ours, Kubernetes objects (`kubernetes.py`), or what Slurm's `--json` prints.

Ours: a list of mappings with the columns of our layout, or that list under `jobs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from windtunnel.errors import InputFileError
from windtunnel.files.document import read_documents
from windtunnel.files.table import Table, table_of
from windtunnel.studies.fleet.jobs.kubernetes import jobs_of_objects
from windtunnel.studies.fleet.jobs.kubernetes_quotas import cohorts_of_objects, quotas_of_objects
from windtunnel.studies.fleet.jobs.slurm_json import is_slurm, rows_of
from windtunnel.studies.fleet.jobs.trace import Cohort, Notes, Quota, Unread


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
    rows = [*ours, *jobs_of_objects(objects, notes)]
    if objects and not rows:
        unread = notes.rows()
        problem = f"{unread[0].examples[0] or 'an object'} {unread[0].reason}" if unread else "holds no job"
        raise InputFileError(path, problem, "write it with `kubectl get -o yaml`")
    quotas = quotas_of_objects(objects, notes)
    return table_of(path, rows), notes.rows(), quotas, cohorts_of_objects(objects)
