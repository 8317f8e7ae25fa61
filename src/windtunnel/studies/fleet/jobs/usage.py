"""`fleet usage`: what jobs did with the GPUs that they held, from a range query of Prometheus (docs/fleet.md).

A series is a GPU of a job while it holds it; a job's utilisation is the mean over its series and their samples.
Sources: NVIDIA dcgm-exporter's and AMD device-metrics-exporter's lists of metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from windtunnel.errors import InputFileError
from windtunnel.files.document import read_mapping
from windtunnel.files.table import number_of
from windtunnel.questions.asked.fleet.further import FleetUsage
from windtunnel.questions.header import Answer
from windtunnel.studies.fleet.jobs.objects import Object, items_at, mapping_at, text_at
from windtunnel.studies.fleet.jobs.read import read_jobs

REMEDY = "give the answer of Prometheus to query_range, as JSON (docs/fleet.md)"
USES = {  # what stands for a share of 1
    "DCGM_FI_PROF_SM_ACTIVE": 1.0,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 1.0,
    "DCGM_FI_DEV_GPU_UTIL": 100.0,
    "GPU_GFX_ACTIVITY": 100.0,
}
POWERS = ("DCGM_FI_DEV_POWER_USAGE", "GPU_PACKAGE_POWER")
SAMPLE_MOST = 1e6  # watts or percent; exporters say +Inf and 2^63 of what they do not know
JOB_LABELS, POD_LABELS = ("hpc_job", "job_id"), (("exported_namespace", "exported_pod"), ("namespace", "pod"))


@dataclass(frozen=True)
class JobUse:
    """One job. Utilisation is a share, power watts of a GPU; None where nothing tells it."""

    job: str
    gpus: int
    gpu_hours: float
    utilisation: float | None
    watts: float | None

    @property
    def unused_gpu_hours(self) -> float:
        """GPU-hours that it held and did not use."""
        return self.gpu_hours * (1.0 - (1.0 if self.utilisation is None else self.utilisation))


@dataclass(frozen=True)
class FleetUse(Answer):
    """Jobs by what they held and did not use, most first. GPU-hours are of jobs that are measured."""

    trace: str
    measure: str
    utilisation: float
    gpu_hours: float
    unused_gpu_hours: float
    energy_kwh: float | None
    jobs: tuple[JobUse, ...]
    unmeasured: int
    warnings: tuple[str, ...] = ()

    JSON_LEAVES_OUT = ("warnings",)


@dataclass
class Series:
    """Means of the series of one job."""

    uses: dict[str, list[float]] = field(default_factory=dict)
    watts: list[float] = field(default_factory=list)


def series_of(data: Object, names: Mapping[str, str]) -> tuple[dict[str, Series], int]:
    """Series by job, and how many belong to none. `names`: jobs by each word that a label may have."""
    jobs: dict[str, Series] = {}
    strangers = 0
    for entry in items_at(data, "data", "result"):
        labels = mapping_at(entry, "metric")
        metric = text_at(labels, "__name__")
        if metric not in USES and metric not in POWERS:
            continue
        samples = entry.get("values") or [entry.get("value")]
        values = [
            value
            for sample in (samples if isinstance(samples, list) else ())
            if isinstance(sample, list) and len(sample) == 2 and 0 <= (value := number_of(str(sample[1]))) < SAMPLE_MOST
        ]
        job = _job_of(labels, names)
        if job is None or not values:
            strangers += job is None
            continue
        series = jobs.setdefault(job, Series())
        if metric in POWERS:
            series.watts.append(fmean(values))
        else:
            series.uses.setdefault(metric, []).append(min(fmean(values) / USES[metric], 1.0))
    return jobs, strangers


def _job_of(labels: Object, names: Mapping[str, str]) -> str | None:
    """The job of a series: by its number, or by the longest name that its pod's begins with."""
    for label in JOB_LABELS:
        if (word := text_at(labels, label)) in names:
            return names[word]
    for space, pod in POD_LABELS:
        parts = f"{text_at(labels, space)}/{text_at(labels, pod)}".split("-")
        for count in range(len(parts), 0, -1):
            if (word := "-".join(parts[:count])) in names:
                return names[word]
    return None


def answer_usage(question: FleetUsage) -> FleetUse:
    """Join jobs and series. Raises UserError."""
    jobs = read_jobs(question.trace, question.where)
    path = Path(question.usage)
    data = read_mapping(path, REMEDY)
    if not items_at(data, "data", "result"):
        raise InputFileError(path, f"holds no series: its status is {text_at(data, 'status') or 'not said'}", REMEDY)
    names = {name: name for name in jobs.name}
    series, strangers = series_of(data, names)
    rows, measures = [], set[str]()
    for at, name in enumerate(jobs.name):
        each = series.get(name, Series())
        hours = float(jobs.gpus[at]) * float(jobs.duration_s[at]) / 3600.0
        measure = next((metric for metric in USES if metric in each.uses), None)
        if measure is not None and hours > 0:
            watts = fmean(each.watts) if each.watts else None
            rows.append(JobUse(name, int(jobs.gpus[at]), hours, fmean(each.uses[measure]), watts))
            measures.add(measure)
    if not rows:
        what = f"has none of {', '.join(USES)} of a job of {question.trace} that says how long it ran"
        raise InputFileError(path, what, REMEDY)
    whole = sum(row.gpu_hours for row in rows)
    unused = sum(row.unused_gpu_hours for row in rows)
    power = [row.watts * row.gpu_hours / 1000.0 for row in rows if row.watts is not None]
    warnings = (f"series of no job of {question.trace}, left out: {strangers:,}",) if strangers else ()
    rows.sort(key=lambda row: -row.unused_gpu_hours)
    energy = sum(power) if len(power) == len(rows) else None
    unmeasured, measure = len(jobs) - len(rows), ", ".join(sorted(measures))
    figures = question.trace, measure, 1.0 - unused / whole, whole, unused
    return FleetUse(*figures, energy, tuple(rows), unmeasured, warnings)
