"""Jobs in YAML or JSON: a list of ours, or Kubernetes manifests of Kueue Workloads, Volcano Jobs and batch Jobs.

Ours: a list of mappings with the columns of our layout, or that list under `jobs`. Of a manifest are read: its name,
its creation time (in seconds since the first), GPUs (`nvidia.com/gpu` of a pod x pods), its run time from the
annotation `windtunnel/duration-s`, else `activeDeadlineSeconds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from windtunnel.errors import InputFileError
from windtunnel.files.document import read_documents
from windtunnel.files.table import Table, table_of

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")


def read_manifests(path: Path) -> Table:
    """The table of jobs. Raises InputFileError."""
    documents = read_documents(path, "give a trace that can be read")
    items: list[Any] = []
    for document in documents:
        if isinstance(document, Mapping) and isinstance(document.get("jobs"), list):
            items.extend(document["jobs"])
        elif isinstance(document, Mapping) and isinstance(document.get("items"), list):
            items.extend(document["items"])
        elif isinstance(document, list):
            items.extend(document)
        else:
            items.append(document)
    rows = []
    for number, item in enumerate(items, 1):
        if not isinstance(item, Mapping):
            raise InputFileError(path, f"job {number} is no mapping", "give job, submit_s, gpus, ... for each")
        rows.append(_manifest_of(item, number, path) if "kind" in item else {str(key): item[key] for key in item})
    _from_first(rows)
    return table_of(path, rows)


def _from_first(rows: list[dict[str, Any]]) -> None:
    moments = [row["created"] for row in rows if "created" in row]
    for row in rows:
        if "created" in row:
            row["submit_s"] = (row.pop("created") - min(moments)).total_seconds()


def _manifest_of(item: Mapping[str, Any], number: int, path: Path) -> dict[str, Any]:
    try:
        return _manifest(item, number, path)
    except (
        AttributeError,
        TypeError,
        ValueError,
        OverflowError,
    ):  # a text where a mapping belongs, or a count of words
        problem = f"manifest {number} is not laid out as a {str(item['kind'])[:40]!r}"
        raise InputFileError(path, problem, "write it with `kubectl get -o yaml`") from None


def _manifest(item: Mapping[str, Any], number: int, path: Path) -> dict[str, Any]:
    metadata, spec = item.get("metadata") or {}, item.get("spec") or {}
    created = metadata.get("creationTimestamp")
    if isinstance(created, str):
        try:
            created = datetime.fromisoformat(created.replace("Z", "+00:00"))
        except ValueError:
            created = None
    if not isinstance(created, datetime):
        raise InputFileError(
            path, f"manifest {number} has no creationTimestamp", "write them with `kubectl get -o yaml`"
        )
    kind = item["kind"]
    if kind == "Workload":
        groups = [(each.get("count", 1), each.get("template")) for each in spec.get("podSets") or ()]
    elif spec.get("tasks"):
        groups = [(each.get("replicas", 1), each.get("template")) for each in spec["tasks"]]
    else:
        groups = [(spec.get("parallelism", 1), spec.get("template"))]
    annotations = metadata.get("annotations") or {}
    return {
        "job": metadata.get("name", f"manifest-{number}"),
        "created": created.replace(tzinfo=None),
        "gpus": sum(int(count) * _gpus_of(template or {}) for count, template in groups),
        "duration_s": annotations.get("windtunnel/duration-s", spec.get("activeDeadlineSeconds")),
        "user": metadata.get("namespace", ""),
    }


def _gpus_of(template: Mapping[str, Any]) -> int:
    total = 0
    for container in (template.get("spec") or {}).get("containers") or ():
        resources = container.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        total += sum(int(asked.get(name, 0)) for name in GPU_RESOURCES)
    return total
