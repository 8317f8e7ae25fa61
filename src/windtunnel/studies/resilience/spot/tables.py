"""What is measured of a model on spot machines: throughput by layout, sizes of its layers, and times of each part of
a move.

`parcae_throughput.csv` (model, D, P, samples_per_s) and `parcae_constants.csv` (model, what, argument, value), as
tabulated from Parcae's artifact; D data-parallel replicas x P pipeline stages, one GPU a node. `model = all` holds
for every model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputFileError, SpecError, UnknownNameError
from windtunnel.files.table import read_table
from windtunnel.physics.engine.compiled.spot_kernels import transfer_ms
from windtunnel.studies.resilience.spot.formula import Formula, TwoCases, parse_cases, parse_formula

THROUGHPUT, CONSTANTS = "parcae_throughput.csv", "parcae_constants.csv"
STATE_BYTES = 3 * 4  # of a parameter: the weight and two Adam moments in fp32
Layout = tuple[int, int]  # D replicas, P stages


@dataclass(frozen=True, slots=True)
class Transfer:
    """Measured times of messages; `spot_kernels.transfer_ms` reads between and beyond them."""

    size_bytes: NDArray[np.float64]
    time_us: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SpotModel:
    """One model of the tables. Times in ms."""

    name: str
    samples_per_s: Mapping[Layout, float]
    layer_parameters: NDArray[np.float64]
    depths: tuple[int, ...]  # stages that fit and are allowed
    widths_excluded: frozenset[int]
    transfer: Transfer
    process_start: Formula
    model_build: Formula
    groups: TwoCases
    rendezvous_ms: float
    restart_extra_ms: float
    checkpoint_ms: float
    interval_s: float
    look_ahead: int
    stages_ms: dict[int, NDArray[np.float64]] = field(default_factory=dict, repr=False, compare=False)  # by depth

    def layouts(self, nodes: int) -> list[Layout]:
        """Layouts that fit on so many nodes, narrow and shallow first."""
        return [
            (d, p) for d in range(1, nodes + 1) if d not in self.widths_excluded for p in self.depths if d * p <= nodes
        ]

    def restart_ms(self, layout: Layout, *, adding: bool) -> float:
        """Processes start, build their part and meet: without any state.

        The artifact charges `restart_extra_ms` where nodes are added, and there only.
        """
        d, p = layout
        joining = self.groups.addition(d, p) + self.rendezvous_ms + self.restart_extra_ms
        return (joining if adding else self.groups.removal(d, p)) + self.process_start(d, p) + self.model_build(d, p)

    def regroup_ms(self, layout: Layout) -> float:
        """The same stages in fewer replicas: groups anew and a process start."""
        return self.groups.removal(*layout) + self.process_start(*layout)

    def cuts(self, stages: int) -> NDArray[np.int64]:
        """Edges of the stages in layers, (stages + 1); the first takes one layer more, and the remainder the last
        ones.
        """
        return _cuts(len(self.layer_parameters) - 1, stages)

    def stage_ms(self, stages: int) -> NDArray[np.float64]:
        """Time to send each stage's state, (stages,)."""
        if stages not in self.stages_ms:
            prefix = np.concatenate([[0.0], np.cumsum(self.layer_parameters)])
            volumes, times = np.diff(prefix[self.cuts(stages)]) * STATE_BYTES, self.transfer
            self.stages_ms[stages] = np.array(
                [transfer_ms(volume, times.size_bytes, times.time_us) for volume in volumes]
            )
        return self.stages_ms[stages]


@lru_cache(maxsize=1024)
def _cuts(layers: int, stages: int) -> NDArray[np.int64]:
    sizes = [layers // stages + 1] + [layers // stages] * (stages - 1)
    for i in range(layers % stages):
        sizes[-i - 2] += 1
    return np.concatenate([[0], np.cumsum(sizes)]).clip(max=layers + 1).astype(np.int64)


def models_in(folder: Path) -> list[str]:
    """Names of the models that have both throughput and constants, in the order of the throughput table."""
    with_constants = {row["model"] for row in _rows(folder / CONSTANTS, "model,what,argument,value")}
    names = dict.fromkeys(row["model"] for row in _rows(folder / THROUGHPUT, "model,D,P,samples_per_s"))
    return [name for name in names if name in with_constants]


def read_model(folder: Path, name: str) -> SpotModel:
    """The model `name` of the two tables in `folder`. Raises UnknownNameError, or InputFileError for a malformed
    table.
    """
    names = models_in(folder)
    if name not in names:
        raise UnknownNameError("model of the spot tables", name, names)
    path = folder / CONSTANTS
    rows = [row for row in _rows(path, "model,what,argument,value") if row["model"] in (name, "all")]
    try:
        return _model(name, rows, [row for row in _rows(folder / THROUGHPUT, "") if row["model"] == name])
    except KeyError as error:
        raise InputFileError(path, f"has no {error.args[0]} for {name}", "add the row") from None
    except (ValueError, ZeroDivisionError) as error:
        raise InputFileError(path, f"has a value of {name} that cannot be read ({error})", "correct it") from None
    except SpecError as error:
        raise InputFileError(path, f"{error.field} of {name} cannot be read: {error.value!r}", error.remedy) from None


def _model(name: str, rows: list[dict[str, str]], throughput: list[dict[str, str]]) -> SpotModel:
    values = {row["what"]: row["value"].strip() for row in rows}
    own = {row["what"]: row["value"].strip() for row in rows if row["model"] == name}
    values |= own
    table = sorted((float(row["argument"]), float(row["value"])) for row in rows if row["what"] == "p2p_us")
    if not table:
        raise KeyError("p2p_us")
    excluded = set(_numbers(values.get("pipeline_depth_excluded", "")))
    depths = range(int(values["pipeline_depth_min"]), int(values["pipeline_depth_max"]) + 1)
    if depths.start < 1 or not float(values["interval_s"]) > 0:
        raise ValueError("pipeline_depth_min is below 1, or interval_s not above 0")
    model = SpotModel(
        name=name,
        samples_per_s={(int(row["D"]), int(row["P"])): float(row["samples_per_s"]) for row in throughput},
        layer_parameters=np.array([float(part) for part in values["layers_params"].split()]),
        depths=tuple(p for p in depths if p not in excluded),
        widths_excluded=frozenset(_numbers(values.get("D_excluded", ""))),
        transfer=Transfer(np.array([a for a, _ in table]), np.array([b for _, b in table])),
        process_start=parse_formula(values["process_start_ms"], "process_start_ms"),
        model_build=_build([row for row in rows if row["what"] == "model_build_ms"]),
        groups=parse_cases(values["group_rebuild_ms"], "group_rebuild_ms"),
        rendezvous_ms=float(values["rendezvous_ms"]),
        restart_extra_ms=float(values.get("restart_extra_ms", "0")),
        checkpoint_ms=float(values["checkpoint_save_and_load_ms"]),
        interval_s=float(values["interval_s"]),
        look_ahead=int(values["look_ahead"]),
    )
    for layout in model.samples_per_s:
        model.restart_ms(layout, adding=True)
        model.regroup_ms(layout)
    return model


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.replace(",", " ").split()]


def _build(rows: list[dict[str, str]]) -> Formula:
    """Build time by depth: a table, or a formula of P."""
    if not rows:
        raise KeyError("model_build_ms")
    table = {int(row["argument"]): float(row["value"]) for row in rows if row["argument"].strip().isdigit()}
    formula = next((row["value"] for row in rows if not row["argument"].strip().isdigit()), None)
    if formula is None:
        return lambda d, p: table[p] if p in table else _nearest(table, p)
    computed = parse_formula(formula, "model_build_ms")
    return lambda d, p: table[p] if p in table else computed(d, p)


def _nearest(table: Mapping[int, float], p: int) -> float:
    """Straight lines between the depths that were measured, level beyond them."""
    depths = sorted(table)
    return float(np.interp(p, depths, [table[number] for number in depths]))


@lru_cache(maxsize=8)
def _read(path: Path) -> tuple[dict[str, str], ...]:
    return tuple(row for _, row in read_table(path, "give --tables the folder that holds it").rows())


def _rows(path: Path, columns: str) -> list[dict[str, str]]:
    rows = list(_read(path))
    lacking = [name for name in columns.split(",") if name and (not rows or name not in rows[0])]
    if lacking:
        raise InputFileError(path, f"has no column {', '.join(lacking)}", f"it needs {columns}")
    return rows
