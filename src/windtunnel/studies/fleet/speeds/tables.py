"""Measured throughputs that a user brings: `--tables DIR`, in the layouts of AdaptDL's and ElasticFlow's simulators.

pollux_placements.csv, pollux_scalability.csv, pollux_validation.csv: steps of an application by placement and batch
gavel_throughput.csv: steps per second of a model at a batch, by kind and number of GPUs; 0 = does not run
ef_throughput.csv: iterations per second of a model at a batch, by GPU type and number of GPUs; empty = does not run

Where no table was measured, how fast a job is on each number of GPUs is asked of whoever can predict it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.errors import InputFileError, UserError
from windtunnel.studies.fleet.jobs.table import small_columns
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.measured.application import Application, applications_of

if TYPE_CHECKING:
    from windtunnel.physics.engine.compiled.fleet.adaptdl_kernels import Measured


PLACEMENTS = ("application", "placement", "local_batch", "step_s", "sync_s")
SCALABILITY = ("application", "nodes", "replicas", "local_batch", "step_s", "sync_s")
VALIDATION = ("application", "batch_size", "epoch", "progress", "iteration", "grad_sqr", "grad_var")
THROUGHPUT = ("gpu_type", "model", "batch_size", "gpus", "iterations_per_s")
TYPED = ("gpu_type", "model", "batch_size", "gpus", "steps_per_s")


class Tables:
    """A folder of measurements, each file read when first needed."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InputFileError(folder, "is no folder", "give the folder that holds the tables")
        self.folder = folder

    @cached_property
    def applications(self) -> dict[str, Application]:
        """Applications by name. Raises InputFileError."""
        files = {"placements": PLACEMENTS, "scalability": SCALABILITY, "validation": VALIDATION}
        read = {key: self._columns(f"pollux_{key}.csv", names) for key, names in files.items()}
        try:
            return applications_of(read["placements"], read["scalability"], read["validation"], str(self.folder))
        except ValueError as error:
            raise InputFileError(self.folder, f"holds what is no number ({error})", "mend the pollux_*.csv") from None

    def hold_all(self, models: Iterable[str]) -> bool:
        """Whether each of these is an application that was measured."""
        return (self.folder / "pollux_placements.csv").is_file() and set(models) <= set(self.applications)

    @cached_property
    def measured(self) -> Measured:
        """The applications, in their order, laid out flat for compiled code."""
        from windtunnel.studies.fleet.measured.chosen import measured_of

        return measured_of(self.applications.values())

    @cached_property
    def rates(self) -> dict[tuple[str, str, int], dict[int, float]]:
        """Iterations per second by number of GPUs, for each (GPU type in lower case, model, batch)."""
        columns = self._columns("ef_throughput.csv", THROUGHPUT)
        rates: dict[tuple[str, str, int], dict[int, float]] = {}
        for line, (gpu, model, batch, gpus, rate) in enumerate(zip(*columns.values(), strict=True), 2):
            try:
                levels = rates.setdefault((gpu.lower(), model, int(batch)), {})
                if rate:
                    levels[int(gpus)] = float(rate)
                    if not (0 < levels[int(gpus)] < math.inf and int(gpus) > 0):
                        raise ValueError
            except ValueError:
                path = self.folder / "ef_throughput.csv"
                problem = f"line {line}: holds what is no number above 0"
                raise InputFileError(path, problem, "mend that line; leave a rate empty where there is none") from None
        return {key: dict(sorted(levels.items())) for key, levels in rates.items()}

    @cached_property
    def by_kind(self) -> dict[tuple[str, int], dict[str, dict[int, float]]]:
        """Steps per second by kind (lower case) and number of GPUs, for each (model, batch)."""
        rates: dict[tuple[str, int], dict[str, dict[int, float]]] = {}
        columns = self._columns("gavel_throughput.csv", TYPED)
        for line, (kind, model, batch, gpus, rate) in enumerate(zip(*columns.values(), strict=True), 2):
            try:
                key, size, speed = (model, int(batch or 0)), int(gpus), float(rate or 0)
            except ValueError:
                path = self.folder / "gavel_throughput.csv"
                raise InputFileError(path, f"line {line}: holds what is no number", "mend that line") from None
            if speed > 0:
                rates.setdefault(key, {}).setdefault(kind.lower(), {})[size] = speed
        return rates

    def _columns(self, name: str, needed: tuple[str, ...]) -> dict[str, list[str]]:
        path = self.folder / name
        if not path.is_file():
            raise InputFileError(path, "is not there", f"--tables needs a folder with {name}")
        return small_columns(path, needed)


Speeds = Callable[[Jobs, int, str, int, int], Mapping[int, float]]
"""(jobs, row, kind of GPU, GPUs of a node, GPUs in all) -> iterations per second by number of GPUs that it fits on."""
Runtime = Callable[[str, float, int], float]  # (model, batch, GPUs) -> seconds of an iteration
MOST = 512  # GPUs of one job


def sizes(gpus: int, batch: float, most: int, least: int = 1) -> list[int]:
    """Numbers of GPUs worth a look: `least` doubled, and what the job asks for, as far as they divide the batch."""
    most = min(MOST, most)
    doubled = [least << power for power in range(most.bit_length())]
    return sorted({n for n in (*doubled, gpus) if 0 < n <= most and n % least == 0 and batch % (n // least) == 0})


def speeds_by(runtime: Runtime) -> Speeds:
    """Speeds from seconds of an iteration. What it returns raises UserError for a job without batch_size."""

    def speeds(jobs: Jobs, index: int, kind: str, per_node: int, most: int) -> Mapping[int, float]:
        batch = float(jobs.batch_size[index])
        if math.isnan(batch):
            raise UserError(f"{jobs.where(index)}: batch_size is missing: how fast this job is hangs on it")
        looked = sizes(int(jobs.gpus[index]), batch, most)
        took = {gpus: runtime(jobs.model[index], batch, gpus) for gpus in looked}
        return {gpus: 1 / seconds for gpus, seconds in took.items() if 0 < seconds < math.inf}

    return speeds
