"""Fit the constants of `windtunnel/cost/calibration/training.yaml` to published training runs.

    python validation/fit.py                                  fit on the tables beside this file, print what to change
    python validation/fit.py --rounds 1 --only hopper         only the constants whose name contains a text
    python validation/fit.py --write                          and put the result into the calibration file
    python validation/fit.py --leave-one-out FILE             fit again without each source, predict it, write the table

How a step moves with a constant is read off what the step is made of: attention that takes a tenth longer makes a step
longer by a tenth of attention's share. So all constants are moved together to where the sum of absolute errors would be
least, then all runs are predicted again, and so on. Leaving a source out does one such round without its rows: every
constant that it informed moves, one that it alone informed takes its prior, and the source is predicted with that.
Slowdowns, jitter and the usual launch of a collective, which no single part of a step tells, stay as they are.

    loss = sum_rows w min(|ln(predicted / measured)|, 0.35),  w = 1 / (5 + rows of the same source)

The cap lets a run that went wrong be wrong; the weight keeps one long table from outvoting nine short ones. Only rows
of specification level A are used, of rows that differ in nothing but the number of GPUs only the smallest, MLPerf
apart, and of long tables every n-th.
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

from windtunnel.evidence.accuracy import Case, Skip, case_of, read_table
from windtunnel.physics.cost.training import training_costs, training_document
from windtunnel.studies.training import predict
from windtunnel.studies.training.lowering import passes
from windtunnel.studies.training.plan import PEAK_DTYPE, Framework

HERE = Path(__file__).parent
TABLES = ("measurements", "simumax", "vtrain")
CAP = 0.35
ROWS_MOST = 60  # of one source
LEVELLED = 0.85  # of a GEMM's time that follows its sustained share: short ones run as timed
CHAINED_SHARE = 0.4  # of gpt-oss' element-wise time
COLLECTIVES_SHARE = 0.1  # of the host's time with tensor parallelism: vTrain, 0.36 of 3.40 ms a layer
REACH = 0.35  # of its range that a constant moves at most while slopes are taken for granted
INERTIA, ROUNDS = 0.002, 60
LEFT_OUT_HEADER = (
    *("source left out", "kind", "rows", "mean", "bias", "worst", "in band", "mean with it", "bias with it"),
    *("constants fitted again", "taken from a prior"),
)
LEAST_SHARE = 0.02  # of what informs a constant: a source with less of it would not move it when left out
SHARE_LOW = 0.4
ALL_OF_IT = 0.9
TOGETHER = (
    "Megatron-Bridge",
    "MLPerf",
    "SimuMax",
    "vTrain",
)  # publications of one project repeat each other's runs: also left out as one

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
    # No faster than HBM itself: the tables' own streaming reaches 0.8 to 0.9 of its data sheet.
    factors = {"attention": (0.8, 2.0, 0.05), "memory": (0.9, 2.0, 0.05)}
    if name == "hopper":  # A100 has no run with experts, and Blackwell's dispatch was timed alone
        factors |= {"dispatch": (1.0, 3.0, 0.05)}  # no faster than the wire
    priors = {"dispatch": 1.0}
    found = [
        Constant(f"{at}.{part}", *bounds, priors.get(part, f"generations.{other}.{part}"))
        for part, bounds in factors.items()
    ]
    if name != "ampere":  # without any run across nodes, what it takes inside one
        found.append(Constant(f"{at}.dispatch_across", 1.0, 3.0, 0.05, f"{at}.dispatch"))
    return shares + found


# Priors: none is a fit to the runs that are fitted here, though who counted them knew the fitted values. A100's bf16:
# torchtitan's eight runs on A100 (published.csv). nvfp4: fp8's share by how much lower its longest products come out
# in the kernel tables, 0.56 over 0.73. Dispatch inside a node: what NCCL takes; DeepEP reaches 153 of 160 GB/s on
# H800. Launches of an expert in a narrow format: three casts more than in 16 bits. Chained passes: bytes of the eager
# kernels of gpt-oss' activation (bias, two clamps, sigmoid, gate, weight), 24 per element forward and 45 backward,
# over plain SwiGLU's 3 and 5. Attention: FlashAttention-2 is 1.3 to 1.5 times as fast as Triton's on A100 (Dao 2023),
# FlashAttention-3 1.5 to 2 times as fast as FlashAttention-2 on H100 (Shah 2024).
CONSTANTS = [
    *_generation("ampere", {"bf16": 0.75, "fp16": "generations.ampere.gemm.bf16"}, "hopper"),
    Constant("generations.ampere.attention_triton", 1.0, 3.0, 0.05, 1.4),
    *_generation("hopper", {"bf16": "generations.hopper.gemm.fp8", "fp8": "generations.hopper.gemm.bf16"}, "blackwell"),
    Constant("generations.hopper.attention_triton", 1.0, 3.0, 0.05, 2.45),
    Constant("generations.hopper.attention_flash2", 1.0, 3.0, 0.05, 1.75),
    Constant("generations.hopper.p2p", 1.0, 3.0, 0.05, 1.0),
    *_generation(
        "blackwell",
        {
            "fp8": "generations.hopper.gemm.fp8",
            "mxfp8": "generations.blackwell.gemm.fp8",
            "nvfp4": 0.43,
        },
        "hopper",
    ),
    Constant("generations.blackwell.p2p", 1.0, 3.0, 0.05, "generations.hopper.p2p"),
    Constant("host.launch_s.megatron", 2e-6, 20e-6, 1e-6, "host.launch_s.torchtitan"),
    Constant("host.launch_s.fsdp", 2e-6, 20e-6, 1e-6, "host.launch_s.torchtitan"),
    Constant("host.launch_s.megatron-deepspeed", 10e-6, 90e-6, 2e-6, "host.launch_s.nanotron"),
    Constant("host.collective_launch_s.megatron-deepspeed", 20e-6, 120e-6, 1e-6, "host.collective_launch_s.default"),
    Constant("experts.expert_launches", 2.0, 12.0, 1.0, 6.0),
    Constant("experts.expert_launches_low", 4.0, 24.0, 1.0, 9.0),
    Constant("experts.chained_passes", 1.0, 20.0, 1.0, 9.0),
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
    found: list[Run] = []
    seen: set[object] = set()
    for row in sorted((row for table in tables for row in read_table(table)), key=lambda row: row.n_gpus or 0):
        if row.level != "A" or row.measured_s is None:
            continue
        case = case_of(row)
        if isinstance(case, Skip):
            continue
        plan = case.plan.to_dict() | {"dp": None, "global_batch": None}
        key = (row.source, row.model, row.layers, row.gpu, row.grad_accum, repr(plan))
        if every or "MLPerf" in row.source or key not in seen:
            seen.add(key)
            found.append(Run(case, row.measured_s))
    return found if every else _thinned(found)


def _thinned(runs: list[Run]) -> list[Run]:
    """Of a source with many rows every n-th: they count for little more than a few, and take as long."""
    rows = Counter(run.source for run in runs)
    seen: Counter[str] = Counter()
    kept = []
    for run in runs:
        if seen[run.source] % -(-rows[run.source] // ROWS_MOST) == 0:
            kept.append(run)
        seen[run.source] += 1
    return kept


class Fit:
    """Errors of runs under the constants as they stand, and how each constant moves them."""

    def __init__(self, runs: Sequence[Run], constants: Sequence[Constant] = CONSTANTS) -> None:
        self.runs, self.constants = runs, constants
        self.errors = np.zeros(len(runs))
        rows = Counter(run.source for run in runs)
        self.weights = np.array([1.0 / (5 + rows[run.source]) for run in runs])
        self.slopes = np.zeros((len(runs), len(constants)))
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
            self.slopes_of(index, {name: part / result.step_time_ns for name, part in result.breakdown_ns.items()})
            inside.append(result.step_time_p5_ns <= measured_s * 1e9 <= result.step_time_p95_ns)
        return inside

    def slopes_of(self, index: int, parts: dict[str, float]) -> None:
        """How a run's log error moves per grain of each constant, from what its step is made of.

        What a constant makes longer in proportion makes the step longer by its share; bubbles grow with the rest.
        """
        case, bubble = self.runs[index].case, parts.get("pipeline bubble", 0.0)
        for number, constant in enumerate(self.constants):
            share = _share_of(constant, case, parts)
            value = get(constant.path)
            sign = -LEVELLED if ".gemm." in constant.path else 1.0
            self.slopes[index, number] = sign * share / (1.0 - bubble) * constant.grain / value if value else 0.0

    def share(self, number: int, held: NDArray[np.bool_]) -> float:
        """How much of what informs a constant is on the held runs."""
        pull = self.weights * np.abs(self.slopes[:, number])
        return float(pull[held].sum() / pull.sum()) if pull.sum() else 0.0

    def loss(self, used: NDArray[np.bool_]) -> float:
        weights = self.weights * used
        return float((weights * np.minimum(np.abs(self.errors), CAP)).sum() / weights.sum())

    def moves(self, chosen: Sequence[int], used: NDArray[np.bool_]) -> Floats:
        """Grains by which each chosen constant moves to make the loss least, as far as slopes hold.

        Weighted least squares over and over with weights w / |error|, which is the sum of absolute errors; runs beyond
        CAP pull no more. A little of each constant's wish to stay decides where the runs do not.
        """
        slopes = self.slopes[np.ix_(used, chosen)]
        weights, errors = self.weights[used] / self.weights[used].sum(), self.errors[used]
        values = np.array([get(self.constants[number].path) / self.constants[number].grain for number in chosen])
        low = np.array([self.constants[number].low / self.constants[number].grain for number in chosen]) - values
        high = np.array([self.constants[number].high / self.constants[number].grain for number in chosen]) - values
        low, high = np.maximum(low, -REACH * (high - low)), np.minimum(high, REACH * (high - low))
        stay = INERTIA / np.maximum(high - low, 1.0) ** 2
        found = np.zeros(len(chosen))
        for _ in range(ROUNDS):
            left = errors + slopes @ found
            pull = np.where(np.abs(left) > CAP, 0.0, weights / np.maximum(np.abs(left), 0.005))
            square = slopes.T @ (pull[:, None] * slopes) + np.diag(stay)
            for number in range(len(chosen)):
                rest = errors + slopes @ found - slopes[:, number] * found[number]
                wanted = -float((pull * slopes[:, number]) @ rest) / square[number, number]
                found[number] = min(max(wanted, low[number]), high[number])
        return found

    def move(self, chosen: Sequence[int], grains: Floats) -> None:
        """Put constants where they wish to be, on their grains."""
        for number, by in zip(chosen, grains, strict=True):
            constant = self.constants[number]
            there = round(get(constant.path) / constant.grain + by) * constant.grain
            put(constant.path, float(f"{min(max(there, constant.low), constant.high):.6g}"))


def _share_of(constant: Constant, case: Case, parts: dict[str, float]) -> float:
    """Share of a run's step that grows in proportion to a constant."""
    keys, plan, row = _keys(constant.path), case.plan, case.row
    generation = {"blackwell-ultra": "blackwell"}.get(case.cluster.gpu.generation, case.cluster.gpu.generation)
    if keys[0] == "generations":
        if generation != keys[1]:
            return 0.0
        if keys[2] == "gemm":
            return parts.get("gemm", 0.0) if PEAK_DTYPE.get(plan.precision, plan.precision) == keys[3] else 0.0
        kernel = f"attention_{plan.attention_impl}"
        names = {
            "attention": "attention",
            "memory": "memory-bound",
            "dispatch": "exposed ep (scale-up)",
            "dispatch_across": "exposed ep (scale-out)",
            "p2p": "exposed pp (scale-out)",
            kernel: "attention",
        }
        return parts.get(names.get(keys[2], ""), 0.0)
    if keys[-1] in get_args(Framework):
        host = parts.get("host", 0.0) if plan.framework == keys[-1] else 0.0
        return host * (COLLECTIVES_SHARE * (plan.tp > 1) if "collective" in keys[1] else 1.0)
    if keys[0] == "experts":
        low = plan.precision not in ("bf16", "fp16")
        if keys[1] == "chained_passes":
            return CHAINED_SHARE * parts.get("memory-bound", 0.0) if "oss" in row.model.lower() else 0.0
        return parts.get("host", 0.0) if row.moe and low == keys[1].endswith("low") and not plan.cuda_graphs else 0.0
    return 0.0


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


def leave_one_out(fit: Fit, target: Path) -> None:
    """Fit without each source what that source informs, predict the source, and write the table."""
    kept, inside = copy.deepcopy(training_document()), fit.errors.copy()
    sources = sorted({run.source for run in fit.runs})
    groups = [(source, [source]) for source in sources]
    for family in TOGETHER:
        together = [source for source in sources if family in source]
        if len(together) > 1:
            groups.append((f"all of {family}", together))
    rows = []
    for name, left in groups:
        held = np.array([run.source in left for run in fit.runs])
        again, orphans = without(fit, held)
        covered = fit.predict(np.flatnonzero(held).tolist())
        for kind, label in ((False, "dense"), (True, "MoE")):
            these = held & np.array([run.case.row.moe == kind for run in fit.runs])
            if not these.any():
                continue
            off, was = np.expm1(fit.errors[these]), np.expm1(inside[these])
            inner = [yes for index, yes in zip(np.flatnonzero(held), covered, strict=True) if these[index]]
            errors = [_percent(np.abs(off).mean()), _signed(off.mean()), _signed(off[np.argmax(np.abs(off))])]
            before = [_percent(np.abs(was).mean()), _signed(was.mean())]
            share = _percent(sum(inner) / len(inner))
            rows.append([name, label, len(off), *errors, share, *before, again, len(orphans)])
            print(rows[-1], orphans, file=sys.stderr, flush=True)
        training_document().update(copy.deepcopy(kept))
        fit.errors = inside.copy()
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(LEFT_OUT_HEADER)
        writer.writerows(rows)


def without(fit: Fit, held: NDArray[np.bool_]) -> tuple[int, list[str]]:
    """Fit without the held runs; how many constants moved at will, and which had only these runs to stand on."""
    informed = [number for number in range(len(fit.constants)) if fit.share(number, held) >= LEAST_SHARE]
    orphans = [number for number in informed if fit.share(number, held) > ALL_OF_IT]
    others = [number for number in informed if number not in orphans]
    alone = [fit.constants[number] for number in orphans]
    fit.move(others, fit.moves(others, ~held))
    to_priors(alone)  # some of them from neighbours that have moved
    return len(others), [constant.path for constant in alone]


def to_priors(constants: Iterable[Constant]) -> None:
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
    parser.add_argument("tables", nargs="*", type=Path, default=[HERE / f"{name}.csv" for name in TABLES])
    parser.add_argument("--rounds", type=int, default=2, help="slopes taken anew so often; 0 only measures")
    parser.add_argument("--only", default="", help="fit only constants whose name contains this")
    parser.add_argument("--write", action="store_true", help="put the result into the calibration file")
    parser.add_argument("--leave-one-out", type=Path, metavar="FILE", help="write the table of sources left out")
    options = parser.parse_args()
    target = options.leave_one_out
    table_of_ours = [",".join(LEFT_OUT_HEADER)]
    if target is not None and target.exists() and target.read_text("utf-8").splitlines()[:1] != table_of_ours:
        parser.error(f"--leave-one-out {target}: is another file, which would be lost: name a new one")

    fit = Fit(runs_of(options.tables))
    if options.leave_one_out:
        leave_one_out(fit, options.leave_one_out)
        return
    before = {constant.path: get(constant.path) for constant in CONSTANTS}
    was = by_source(fit.runs, fit.errors)
    chosen = [number for number, constant in enumerate(CONSTANTS) if options.only in constant.path]
    everything = np.ones(len(fit.runs), dtype=bool)
    print(f"{len(fit.runs)} rows, loss {fit.loss(everything):.4f}")
    best, kept = fit.loss(everything), copy.deepcopy(training_document())
    for number in range(options.rounds):
        fit.move(chosen, fit.moves(chosen, everything))
        fit.predict(range(len(fit.runs)))
        print(f"round {number + 1}: loss {fit.loss(everything):.4f}", file=sys.stderr, flush=True)
        if fit.loss(everything) < best:
            best, kept = fit.loss(everything), copy.deepcopy(training_document())
    training_document().update(kept)
    if options.rounds:
        fit.predict(range(len(fit.runs)))
    idle = [CONSTANTS[number].path for number in chosen if options.rounds and not fit.slopes[:, number].any()]
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
    file = Path(str(files("windtunnel.physics.cost.calibration").joinpath("training.yaml")))
    if options.write and changes:
        file.write_text(rewritten(file.read_text(encoding="utf-8"), changes), encoding="utf-8")
        print(f"written to {file}")


if __name__ == "__main__":
    main()
