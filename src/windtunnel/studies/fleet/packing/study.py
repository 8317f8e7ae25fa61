"""A trace of pods and a file of nodes, packed under one policy over several seeds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from windtunnel.errors import InputFileError, SpecError
from windtunnel.files.table import read_table
from windtunnel.files.write import write_csv
from windtunnel.questions.asked.fleet.further import FleetPack
from windtunnel.questions.header import Answer
from windtunnel.studies.fleet.asked import policies_of
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.outcome import by_policy
from windtunnel.studies.fleet.packing.pack import POLICIES, Nodes, Packing, Pods, pack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


FIRST_SEED = 42
NODE_COLUMNS = ("node", "cpu_milli", "memory_mib", "gpus", "gpu_model")
NO_MODEL = 63
WHOLE = 1000


def read_nodes(path: Path) -> tuple[Nodes, list[str], list[str]]:
    """(nodes in order of names, their names, GPU models by number). Raises InputFileError."""
    remedy = f"give --cluster a CSV of nodes, {','.join(NODE_COLUMNS)}: pods are packed on nodes one by one"
    table = read_table(path, remedy, needs=NODE_COLUMNS)
    names = table.texts("node")
    order = np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)
    table = table.only(order)
    kinds = table.texts("gpu_model")
    models = sorted({kind for kind in kinds if kind})
    if len(models) > NO_MODEL:
        raise InputFileError(path, f"has {len(models)} GPU models", f"at most {NO_MODEL} are told apart")
    model = np.array([models.index(kind) if kind else NO_MODEL for kind in kinds], np.int64)
    cpu, memory, gpus = (table.whole(name, needed=True) for name in ("cpu_milli", "memory_mib", "gpus"))
    if not len(gpus) or gpus.sum() == 0:
        raise InputFileError(path, "has no GPU", "give at least one node with GPUs")
    return Nodes(cpu, memory, gpus, model), table.texts("node"), models


def pods_of(jobs: Jobs, models: list[str]) -> tuple[Pods, list[int]]:
    """(pods, rows of the trace in order of names). Raises InputFileError where a column is missing."""
    missing = next((name for name in ("cpu_milli", "gpu_milli") if name not in jobs.columns), None)
    if missing is not None:
        raise InputFileError(
            jobs.source,
            f"has no column {missing}",
            "packing needs a trace of pods: pod,create_s,num_gpu,gpu_milli,cpu_milli,memory_mib,gpu_models",
        )
    order = sorted(range(len(jobs)), key=jobs.name.__getitem__)
    blank = [""] * len(jobs)

    def number(name: str, row: int) -> int:
        text = jobs.columns.get(name, blank)[row]
        try:
            return int(float(text)) if text else 0
        except ValueError:
            raise InputFileError(
                jobs.source, f"line {int(jobs.line[row])}: {name} = {text!r} is no number", "mend it"
            ) from None

    rows = []
    for row in order:
        gpus = int(jobs.gpus[row])
        wanted = _wanted(jobs, row)
        bits = sum(1 << models.index(name) for name in wanted if name in models)
        if wanted and not bits:
            bits = 1 << (NO_MODEL - 1)  # a model that no node has
        milli = (number("gpu_milli", row) or WHOLE) if gpus else 0
        rows.append((number("cpu_milli", row), number("memory_mib", row), gpus, milli, bits))
    kinds, kind_of = np.unique(np.array(rows, np.int64), axis=0, return_inverse=True)
    return Pods(kinds, kind_of.astype(np.int64).reshape(-1)), order


def _wanted(jobs: Jobs, row: int) -> list[str]:
    """The GPU models that a pod can run on; none: any."""
    column = jobs.columns.get("gpu_models")
    return re.split(r"[|;\s]+", column[row].strip("|; ")) if column and column[row] else []


def unknown_models(jobs: Jobs, models: list[str]) -> list[str]:
    """GPU models that pods ask for and no node has."""
    return sorted({name for row in range(len(jobs)) for name in _wanted(jobs, row)}.difference(models))


def packing_figures(
    jobs: Jobs, site: tuple[Nodes, list[str], list[str]], policy: str, seed: int, seeds: int
) -> dict[str, object]:
    """Mean curves over seeds, by per cent of the capacity arrived. `seed` 0 starts at 42, as published."""
    name = policy.replace("-", "").replace("_", "")
    if name not in POLICIES:
        raise SpecError("--policy", policy, f"packing knows {', '.join(POLICIES)}")
    if seeds < 1:
        raise SpecError("--seeds", seeds, "give at least 1")
    nodes, names, models = site
    pods, order = pods_of(jobs, models)
    runs = [pack(name, pods, nodes, (seed or FIRST_SEED) + at) for at in range(seeds)]
    curves = [run.curve() for run in runs]
    points = sorted(set.intersection(*(set(curve) for curve in curves)))
    columns = ("allocated_pct", "fragment_pct", "fragment_of_free_pct")
    curve = []
    for point in points:
        means = np.mean([each[point] for each in curves], axis=0)
        curve.append(
            {"arrived_pct": point, **{key: round(float(value), 4) for key, value in zip(columns, means, strict=True)}}
        )
    at_full = next((entry for entry in curve if entry["arrived_pct"] == 100), curve[-1])
    return {
        "policy": name,
        "seeds": seeds,
        "jobs": len(jobs),
        "failed_pods_mean": round(float(np.mean([(run.placed < 0).sum() for run in runs])), 3),
        **{key: at_full[key] for key in columns},
        "arrived_pct": at_full["arrived_pct"],
        "curve": curve,
        "runs": (runs[0], order, names),
    }


def write_placements(jobs: Jobs, figures: Sequence[Mapping[str, Any]], path: Path) -> None:
    """The first seed's placements: policy, arrival, job, node, state."""
    rows = []
    for figure in figures:
        run: Packing
        run, order, names = figure["runs"]
        for arrival, (pod, node) in enumerate(zip(run.pods.tolist(), run.placed.tolist(), strict=True)):
            place = names[node] if node >= 0 else ""
            rows.append((figure["policy"], arrival, jobs.name[order[pod]], place, "placed" if node >= 0 else "failed"))
    write_csv(path, ("policy", "arrival", "job", "node", "state"), rows)


@dataclass(frozen=True, eq=False)
class PackAnswer(Answer):
    """Packings of pods by policy."""

    jobs: Jobs
    cluster: str
    packings: tuple[dict[str, object], ...]
    warnings: tuple[str, ...]

    @property
    def figures(self) -> list[dict[str, Any]]:
        """What is said of each policy."""
        return [{key: value for key, value in packing.items() if key != "runs"} for packing in self.packings]

    @property
    def provenance(self) -> dict[str, object]:
        """Whose pods they are."""
        return {"jobs": self.jobs.source}

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        return by_policy(self.figures) | {"trace": self.jobs.source, "cluster": self.cluster}

    def write_rows(self, path: Path) -> None:
        """The first seed's placements."""
        write_placements(self.jobs, list(self.packings), path)


def answer_pack(question: FleetPack) -> PackAnswer:
    """Pack the pods of a trace on unlike nodes under each policy. Raises UserError."""
    names = policies_of(question.policy)
    jobs = read_jobs(question.trace, question.where)
    nodes = read_nodes(Path(question.cluster))
    unknown = unknown_models(jobs, nodes[2])
    warnings = (f"gpu_models: no node of {question.cluster} has {', '.join(unknown)}",) if unknown else ()
    packings = tuple(packing_figures(jobs, nodes, name, question.seed, question.seeds) for name in names)
    return PackAnswer(jobs, question.cluster, packings, warnings)
