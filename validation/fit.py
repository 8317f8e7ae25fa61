"""Fit the constants of `windtunnel/cost/calibration/training.yaml` to published training runs.

    python validation/fit.py                                  fit on validation/measurements.csv, print what to change
    python validation/fit.py --rounds 1 --only hopper         only the constants whose name contains a text
    python validation/fit.py --write                          and put the result into the calibration file
    python validation/fit.py --leave-one-out FILE             fit again without each source, predict it, write the table
                                                              (--first 2 --rounds 1: ten minutes)

Coordinate descent: each constant in turn walks in steps of 8, 4, 2, 1 of its grain while the loss falls, so that every
constant stays a round number within its bounds.

    loss = sum_rows w min(|ln(predicted / measured)|, 0.35),  w = 1 / (5 + rows of the same source)

The cap lets a run that went wrong be wrong; the weight keeps one long table from outvoting nine short ones. Only rows
of specification level A are used, and of rows that differ in nothing but the number of GPUs only the smallest, MLPerf
apart.
"""

from __future__ import annotations

import argparse
import copy
import csv
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from windtunnel.accuracy import Case, Skip, case_of, read_table
from windtunnel.cost.training import training_costs, training_document
from windtunnel.training import predict
from windtunnel.training.lowering import passes
from windtunnel.training.plan import Framework

HERE = Path(__file__).parent
CAP = 0.35
STRIDES = (8, 4, 2, 1)  # of a grain, one per round; further rounds keep the last
LEAST_GAIN = 1e-5  # of the loss
LEFT_OUT_HEADER = (
    *("source left out", "rows", "mean", "bias", "worst", "in band", "mean with it", "bias with it"),
    *("constants fitted again", "taken from a prior"),
)
LEAST_SHARE = 0.1  # of the weight behind a constant: a source with less of it would not move it when left out
# Blackwell's bf16 would go to 0.4 if it might: the only such runs in the table have experts, and of those gpt-oss is
# slow for other reasons. Its GEMMs reach 0.6 to 0.7 in bursts.
SHARE_LOW = 0.45
TOGETHER = "Megatron-Bridge"  # publications of one project repeat each other's runs: also left out as one

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Constant:
    """One number that may move: where it stands, between what, in what steps, and what it would be without data."""

    path: str
    low: float
    high: float
    grain: float
    prior: float | str  # a number from the literature or neutral, or the path of the constant it would be taken from


def _generation(name: str, dtypes: dict[str, float | str], other: str) -> list[Constant]:
    at = f"generations.{name}"
    shares = [Constant(f"{at}.gemm.{dtype}", SHARE_LOW, 0.95, 0.005, prior) for dtype, prior in dtypes.items()]
    factors = {"attention": (0.8, 2.0, 0.05), "memory": (0.8, 2.0, 0.05), "dispatch": (0.5, 3.0, 0.05)}
    return shares + [
        Constant(f"{at}.{part}", *bounds, f"generations.{other}.{part}")
        for part, bounds in factors.items()
        if (name, part) != ("ampere", "dispatch")  # no run with experts
    ]


# Priors of the attention kernels: FlashAttention-2 is 1.3 to 1.5 times as fast as Triton's on A100 (Dao 2023), and
# FlashAttention-3 1.5 to 2 times as fast as FlashAttention-2 on H100 (Shah 2024).
CONSTANTS = [
    *_generation("ampere", {"bf16": "generations.ampere.gemm.fp16", "fp16": "generations.ampere.gemm.bf16"}, "hopper"),
    Constant("generations.ampere.attention_triton", 1.0, 3.0, 0.05, 1.4),
    *_generation(
        "hopper", {"bf16": "generations.blackwell.gemm.bf16", "fp8": "generations.hopper.gemm.bf16"}, "blackwell"
    ),
    Constant("generations.hopper.attention_triton", 1.0, 3.0, 0.05, 2.45),
    Constant("generations.hopper.attention_flash2", 1.0, 3.0, 0.05, 1.75),
    Constant("generations.hopper.p2p", 1.0, 3.0, 0.05, 1.0),
    *_generation(
        "blackwell",
        {
            "bf16": "generations.hopper.gemm.bf16",
            "fp8": "generations.hopper.gemm.fp8",
            "mxfp8": "generations.blackwell.gemm.fp8",
            "nvfp4": "generations.blackwell.gemm.fp8",
        },
        "hopper",
    ),
    Constant("generations.blackwell.p2p", 1.0, 3.0, 0.05, "generations.hopper.p2p"),
    *(Constant(f"releases.mlperf-{v}.kernels", 0.8, 1.3, 0.01, 1.0) for v in ("v3.0", "v3.1", "v4.0", "v4.1", "v5.0")),
    Constant("releases.nemo-25.02.dispatch", 1.0, 3.0, 0.1, 1.0),
    Constant("host.launch_s.megatron", 2e-6, 20e-6, 1e-6, "host.launch_s.torchtitan"),
    Constant("host.launch_s.fsdp", 2e-6, 20e-6, 1e-6, "host.launch_s.torchtitan"),
    Constant("host.collective_launch_s", 20e-6, 120e-6, 10e-6, 60e-6),
    Constant("host.step_per_doubling_s.megatron", 0.0, 0.02, 1e-3, "host.step_per_doubling_s.torchtitan"),
    Constant("host.step_per_doubling_s.torchtitan", 0.0, 0.02, 1e-3, "host.step_per_doubling_s.fsdp"),
    Constant("host.step_per_doubling_s.fsdp", 0.0, 0.02, 1e-3, "host.step_per_doubling_s.torchtitan"),
    Constant("slowdown.compute_by_scale_up", 0.0, 0.4, 0.01, 0.1),
    Constant("slowdown.compute_by_scale_out", 0.0, 0.4, 0.01, 0.1),
    Constant("slowdown.comm_by_compute", 0.0, 0.6, 0.05, 0.2),
    Constant("jitter", 0.0, 0.01, 0.0005, 0.003),
]


@dataclass(frozen=True)
class Run:
    """A measured step and what predicts it."""

    case: Case
    measured_s: float

    @property
    def source(self) -> str:
        return self.case.row.source


def runs_of(tables: Iterable[str | Path], every: bool = False) -> list[Run]:
    """The rows of level A that can be predicted; `every` keeps those that differ only in the number of GPUs."""
    found, seen = [], set()
    for row in sorted((row for table in tables for row in read_table(table)), key=lambda row: row.n_gpus or 0):
        if row.level != "A" or row.measured_s is None:
            continue
        case = case_of(row)
        if isinstance(case, Skip):
            continue
        plan = case.plan.model_dump(mode="json") | {"dp": None, "global_batch": None}
        key = (row.source, row.model, row.layers, row.gpu, row.grad_accum, repr(plan))
        if every or "MLPerf" in row.source or key not in seen:
            seen.add(key)
            found.append(Run(case, row.measured_s))
    return found


class Fit:
    """Errors of runs under the constants as they stand, predicted again only where a constant matters."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.errors = np.zeros(len(runs))
        self._matters: dict[str, NDArray[np.intp]] = {}
        rows = Counter(run.source for run in runs)
        self.weights = np.array([1.0 / (5 + rows[run.source]) for run in runs])
        self.predict(range(len(runs)))

    def predict(self, which: Iterable[int]) -> list[bool]:
        """Write anew the log errors of some runs; whether each lies in its band."""
        training_costs.cache_clear()
        passes.forget_passes()  # passes remember the prices they were built with
        inside = []
        for index in which:
            case, measured_s = self.runs[index].case, self.runs[index].measured_s
            result = predict(case.model, case.cluster, case.plan)
            self.errors[index] = math.log(result.step_time_s / measured_s)
            inside.append(result.step_time_p5_ns <= measured_s * 1e9 <= result.step_time_p95_ns)
        return inside

    def matters(self, constant: Constant) -> NDArray[np.intp]:
        """The runs that a constant changes."""
        known = self._matters.get(constant.path)
        if known is None:
            value, before = get(constant.path), self.errors.copy()
            put(constant.path, value + 8 * constant.grain)
            self.predict([index for index, run in enumerate(self.runs) if _may_matter(constant, run.case)])
            known = self._matters[constant.path] = np.flatnonzero(np.abs(self.errors - before) > 1e-6)
            put(constant.path, value)
            self.errors = before
        return known

    def share(self, constant: Constant, held: NDArray[np.bool_]) -> float:
        """How much of the weight of the runs that a constant changes is on the held ones."""
        rows = self.matters(constant)
        return float(self.weights[rows[held[rows]]].sum() / self.weights[rows].sum()) if len(rows) else 0.0

    def loss(self, used: NDArray[np.bool_]) -> float:
        weights = self.weights * used
        return float((weights * np.minimum(np.abs(self.errors), CAP)).sum() / weights.sum())

    def descend(self, constants: Sequence[Constant], used: NDArray[np.bool_], strides: Sequence[int]) -> float:
        """Walk each constant downhill, round by round."""
        best = self.loss(used)
        for stride in strides:
            for constant in constants:
                rows = [int(index) for index in self.matters(constant) if used[index]]
                for direction in (1, -1):
                    moved = False
                    while rows:
                        value, before = get(constant.path), self.errors.copy()
                        there = round(value / constant.grain + direction * stride) * constant.grain
                        if not constant.low - 1e-12 <= there <= constant.high + 1e-12:
                            break
                        put(constant.path, float(f"{there:.6g}"))
                        self.predict(rows)
                        loss = self.loss(used)
                        if loss > best - LEAST_GAIN:
                            put(constant.path, value)
                            self.errors = before
                            break
                        best, moved = loss, True
                    if moved:
                        break
            print(f"stride {stride}: loss {best:.4f}", file=sys.stderr, flush=True)
        return best


def _may_matter(constant: Constant, case: Case) -> bool:
    """Spares predictions: no constant of one generation, release or framework changes a run of another."""
    keys = _keys(constant.path)
    if keys[0] == "generations":
        return case.cluster.gpu.generation == keys[1]
    if keys[0] == "releases":
        return (case.plan.release or "").rpartition("-")[0] == keys[1].rpartition("-")[0]
    return keys[-1] not in get_args(Framework) or case.plan.framework == keys[-1]


def get(path: str) -> float:
    node: Any = training_document()
    for key in _keys(path):
        node = node[key]
    return float(node)


def put(path: str, value: float) -> None:
    node: Any = training_document()
    *parents, last = _keys(path)
    for key in parents:
        node = node[key]
    node[last] = value


def _keys(path: str) -> list[str]:
    return re.split(r"\.(?!\d)", path)  # the dot of a release is no separator


def by_source(runs: Sequence[Run], errors: Floats) -> dict[str, tuple[int, float, float, float]]:
    """Rows, mean absolute error, bias and worst error of each source."""
    table = {}
    for source in sorted({run.source for run in runs}):
        off = np.expm1(errors[[index for index, run in enumerate(runs) if run.source == source]])
        table[source] = (len(off), float(np.abs(off).mean()), float(off.mean()), float(off[np.argmax(np.abs(off))]))
    return table


def leave_one_out(fit: Fit, strides: Sequence[int], target: Path) -> None:
    """Fit without each source what that source informs, predict the source, and write the table."""
    kept, inside = copy.deepcopy(training_document()), fit.errors.copy()
    sources = sorted({run.source for run in fit.runs})
    groups = [(source, [source]) for source in sources]
    together = [source for source in sources if TOGETHER in source]
    if len(together) > 1:
        groups.append((f"all of {TOGETHER}", together))
    rows = []
    for name, left in groups:
        held = np.array([run.source in left for run in fit.runs])
        again, orphans = _without(fit, held, strides)
        covered = fit.predict(np.flatnonzero(held).tolist())
        off, was = np.expm1(fit.errors[held]), np.expm1(inside[held])
        errors = [_percent(np.abs(off).mean()), _signed(off.mean()), _signed(off[np.argmax(np.abs(off))])]
        before = [_percent(np.abs(was).mean()), _signed(was.mean())]
        rows.append([name, len(off), *errors, _percent(sum(covered) / len(covered)), *before, again, len(orphans)])
        print(rows[-1], orphans, file=sys.stderr, flush=True)
        training_document().update(copy.deepcopy(kept))
        fit.errors = inside.copy()
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(LEFT_OUT_HEADER)
        writer.writerows(rows)


def _without(fit: Fit, held: NDArray[np.bool_], strides: Sequence[int]) -> tuple[int, list[str]]:
    """Fit without the held runs; how many constants moved at will, and which had only these runs to stand on."""
    informed = [constant for constant in CONSTANTS if fit.share(constant, held) >= LEAST_SHARE]
    orphans = [constant for constant in informed if held[fit.matters(constant)].all()]
    others = [constant for constant in informed if constant not in orphans]
    _to_priors(orphans)
    fit.descend(others, ~held, strides)
    _to_priors(orphans)  # once more, from neighbours that have moved
    return len(others), [constant.path for constant in orphans]


def _to_priors(constants: Iterable[Constant]) -> None:
    for constant in constants:
        put(constant.path, constant.prior if isinstance(constant.prior, float) else get(constant.prior))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"


def rewritten(text: str, changes: dict[str, float]) -> str:
    """The calibration file with other numbers, every comment kept."""
    path: list[tuple[int, str]] = []
    lines = []
    for line in text.splitlines():
        if entry := re.match(r"^( *)([^\s#:][^#:]*):", line):
            indent = len(entry[1])
            while path and path[-1][0] >= indent:
                path.pop()
            path.append((indent, entry[2]))
            name = ".".join(part for _, part in path)
            for constant, value in changes.items():
                parent, _, last = constant.rpartition(".")
                if constant == name:
                    line = re.sub(r"(:\s*)[^\s#]+", rf"\g<1>{_number(value)}", line, count=1)
                elif parent == name:
                    line = re.sub(rf"(\b{re.escape(last)}: )[^,}}]+", rf"\g<1>{_number(value)}", line, count=1)
        lines.append(line)
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    text = f"{value:.6g}"
    return text.replace("e", ".0e") if "e" in text and "." not in text else text  # YAML reads 6e-06 as a word


def main() -> None:
    """Fit, print before and after, and what to change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", type=Path, default=[HERE / "measurements.csv"])
    parser.add_argument("--rounds", type=int, default=len(STRIDES), help="0 only measures")
    parser.add_argument("--first", type=int, default=STRIDES[0], help="stride of the first round, in grains")
    parser.add_argument("--only", default="", help="fit only constants whose name contains this")
    parser.add_argument("--write", action="store_true", help="put the result into the calibration file")
    parser.add_argument("--leave-one-out", type=Path, metavar="FILE", help="write the table of sources left out")
    options = parser.parse_args()

    start = STRIDES.index(options.first) if options.first in STRIDES else 0
    strides = [*STRIDES[start:], *[STRIDES[-1]] * options.rounds][: options.rounds]
    fit = Fit(runs_of(options.tables))
    if options.leave_one_out:
        leave_one_out(fit, strides, options.leave_one_out)
        return
    before = {constant.path: get(constant.path) for constant in CONSTANTS}
    was = by_source(fit.runs, fit.errors)
    chosen = [constant for constant in CONSTANTS if options.only in constant.path]
    everything = np.ones(len(fit.runs), dtype=bool)
    print(f"{len(fit.runs)} rows, loss {fit.loss(everything):.4f}")
    idle = [constant.path for constant in chosen if not len(fit.matters(constant))] if strides else []
    fit.descend(chosen, everything, strides)
    for source, (rows, mean, bias, worst) in by_source(fit.runs, fit.errors).items():
        old = was[source]
        print(
            f"{source[:60]:60s} {rows:4d}  mean {_percent(old[1]):>7s} -> {_percent(mean):>7s}"
            f"  bias {_signed(old[2]):>8s} -> {_signed(bias):>8s}  worst {_signed(worst):>8s}"
        )
    print(f"loss {fit.loss(everything):.4f}")
    if idle:
        print("no row depends on:", ", ".join(idle))
    changes = {path: get(path) for path, value in before.items() if get(path) != value}
    for path, value in changes.items():
        print(f"{path}: {before[path]:.6g} -> {value:.6g}")
    file = Path(str(files("windtunnel.cost.calibration").joinpath("training.yaml")))
    if options.write and changes:
        file.write_text(rewritten(file.read_text(encoding="utf-8"), changes), encoding="utf-8")
        print(f"written to {file}")


if __name__ == "__main__":
    main()
