"""Jobs of a trace that name a model and a batch: how fast they are on how many GPUs, by the training predictor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from windtunnel.errors import SpecError, UserError

if TYPE_CHECKING:
    from windtunnel.physics.model.architecture import Model
    from windtunnel.studies.fleet.jobs.trace import Jobs
    from windtunnel.studies.fleet.site import Site
    from windtunnel.studies.fleet.speeds.tables import Speeds

DEGREES = ("tp", "pp", "cp", "ep")  # columns of the trace that say how a job is laid out; else data-parallel
Layout = tuple[tuple[str, int], ...]  # fields of a plan


def with_predictions(jobs: Jobs, site: Site) -> tuple[Jobs, list[str]]:
    """Jobs with `iterations` x predicted step where no duration is said, and a line on each that does not fit.

    Needs the columns model, batch_size (sequences), seq_len and iterations; jobs without them stay as they are, and all
    do on GPUs of several kinds, where it depends on the kind. Equal jobs are predicted once. Raises UserError for a
    model or a layout that cannot be.
    """
    if site.kinds:
        return jobs, []
    unsaid = [at for at in range(len(jobs)) if math.isnan(jobs.duration_s[at]) and _says_enough(jobs, at)]
    duration_s = jobs.duration_s.copy()
    lines, notes = [], Notes()
    for at in unsaid:
        gpus, layout = int(jobs.gpus[at]), _layout(jobs, at)
        try:
            step_s = _step_s(jobs.model[at], site.gpu, gpus, site.per_node, layout)
        except UserError as error:
            raise UserError(f"{jobs.where(at)}: {error}") from None
        if step_s is None:
            lines.append(f"{jobs.where(at)}: {jobs.model[at]} does not fit in memory on {gpus} GPUs as it is laid out")
        else:
            notes.add(jobs.model[at])
            duration_s[at] = jobs.iterations[at] * step_s
    return (replace(jobs, duration_s=duration_s) if unsaid else jobs), [*notes.lines, *lines]


class Notes:
    """What the models leave out that jobs were predicted by, each said once."""

    def __init__(self) -> None:
        self._models: dict[str, Model] = {}

    def add(self, name: str) -> None:
        """Of one more job."""
        from windtunnel.physics.model.catalogue import load_model

        if name not in self._models:
            self._models[name] = load_model(name)

    @property
    def lines(self) -> tuple[str, ...]:
        """For the answer's warnings."""
        from windtunnel.physics.model.architecture import notes_of

        return notes_of(*self._models.values())


def predicted_speeds(notes: Notes | None = None) -> Speeds:
    """Iterations per second of a job on each number of GPUs, by the training predictor; its layout stays the trace's.

    What it returns raises UserError for a job that does not say enough. `notes`: of the models that it is asked about.
    """
    from windtunnel.studies.fleet.speeds.tables import sizes

    def speeds(jobs: Jobs, index: int, kind: str, per_node: int, most: int) -> Mapping[int, float]:
        if not _says_enough(jobs, index):
            raise UserError(
                f"{jobs.where(index)}: how fast this job is on other numbers of GPUs is not known: give --tables "
                "DIR, or the columns model, batch_size, seq_len and iterations of a model that windtunnel knows"
            )
        layout = _layout(jobs, index)
        least = math.prod(size for name, size in layout if name in ("tp", "pp", "cp"))
        looked = sizes(int(jobs.gpus[index]), float(jobs.batch_size[index]), most, least)
        steps = {gpus: _step_s(jobs.model[index], kind, gpus, per_node, layout) for gpus in looked}
        if notes is not None:
            notes.add(jobs.model[index])
        return {gpus: 1 / step_s for gpus, step_s in steps.items() if step_s is not None}

    return speeds


def _layout(jobs: Jobs, at: int) -> Layout:
    plan = {"global_batch": int(jobs.batch_size[at]), "seq_len": int(jobs.columns["seq_len"][at])}
    for name in DEGREES:
        text = jobs.columns[name][at] if name in jobs.columns else ""
        if text and not text.isdecimal():
            raise SpecError(name, text, "give a whole number from 1 on", jobs.where(at))
        if text:
            plan[name] = int(text)
    return tuple(plan.items())


@cache
def _step_s(model: str, gpu: str, gpus: int, per_node: int, layout: Layout) -> float | None:
    """A step on packed nodes; None where it does not fit in memory."""
    from windtunnel.physics.hardware import parse_cluster
    from windtunnel.physics.hardware.catalogue import with_settings
    from windtunnel.studies.training import predict

    per_node = math.gcd(gpus, per_node) if gpus > per_node else gpus
    cluster = parse_cluster(f"{gpu}:{per_node}")
    if per_node < gpus:
        cluster = with_settings(cluster, {"gpus_per_node": per_node, "gpus": gpus})
    result = predict(model, cluster, dict(layout))
    return None if result.status == "infeasible" else result.step_time_s


def _says_enough(jobs: Jobs, at: int) -> bool:
    numbers = (jobs.iterations[at], jobs.batch_size[at])
    lengths = jobs.columns.get("seq_len")
    return (
        bool(jobs.model[at]) and not any(map(math.isnan, numbers)) and lengths is not None and lengths[at].isdecimal()
    )
