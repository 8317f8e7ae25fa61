"""Constants that training runs of 2026 informed, how each row moves with them, and what they are without a source.

    python validation/recent.py TABLE.csv ...          errors by source: as it is, without it, without its project
    python validation/recent.py TABLE.csv ... --write  and keep the means in `history/recent.csv`
    python validation/recent.py TABLE.csv ... --fit    fit these constants to all rows, print what to change

Which source informed what is read off the rows: each constant is moved a little and the rows that can depend on it are
predicted again. A source that holds more than nine tenths of what informs a constant leaves it at its prior; of less,
the other sources' rows fit it again. What a release does or does not do (`releases` in the calibration, its fitted
numbers apart) is what its configuration or code says, and stays.
"""

from __future__ import annotations

import copy
import csv
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fit import ALL_OF_IT, LEAST_SHARE, Constant, Fit, get, put, to_priors
from numpy.typing import NDArray

from windtunnel.evidence.accuracy import Case, Row, Skip, case_of, read_table
from windtunnel.evidence.accuracy.outcome import outcome_of
from windtunnel.physics.cost.training import release_name, training_costs, training_document
from windtunnel.studies.training import predict
from windtunnel.studies.training.lowering import passes

# Priors, none a fit to these rows. read_s: a hundred launches, what a layer's modules, hooks and autograd take from the
# read on. expert_reads: one, of how many tokens go where; sixty launches, half of one; 22 copies of rows a layer, 1.5
# ms of an H100, one. flash4_reads: five kernels' arguments made in Python. adapter_token_s: a step of a product's loop
# takes 64 tokens and a microsecond, two such products a pass in three. attention_flash2: Hopper's. shared:
# collectives alone. graphed_step_share: between nothing and all of it.
CONSTANTS = (
    Constant("host.read_s.torchtitan", 2e-4, 4e-3, 1e-4, 1e-3),
    Constant("releases.prime-rl-99.expert_reads", 0.0, 8.0, 0.25, 2.5),
    Constant("releases.prime-rl-99.flash4_reads", 0.0, 4.0, 0.25, 0.5),
    Constant("adapter_token_s.hopper", 0.0, 6e-8, 1e-9, 1e-8),
    Constant("adapter_token_s.default", 0.0, 6e-8, 1e-9, "adapter_token_s.hopper"),
    Constant("generations.blackwell.attention_flash2", 1.0, 4.0, 0.05, "generations.hopper.attention_flash2"),
    Constant("generations.cdna4.shared", 1.0, 5.0, 0.1, 1.0),
    Constant("host.graphed_step_share", 0.0, 1.0, 0.05, 0.5),
)
KEPT = Path(__file__).parent / "history" / "recent.csv"
STEP = 0.1  # of a constant's value, by which it is moved to see what depends on it
ROUNDS = 3
SMALL = 1e-6
PROJECTS = ("prime-rl", "Primus")  # of several sources each


@dataclass(frozen=True)
class Measured:
    """A row and its case, as `Fit` names them."""

    row: Row
    case: Case

    @property
    def source(self) -> str:
        return self.row.source


class Recent(Fit):
    """Rows of both levels, predicted as `validate` does, and their slopes by moving each constant."""

    runs: Sequence[Measured]  # type: ignore[assignment]

    def predict(self, which: Iterable[int]) -> list[bool]:
        which = list(which)
        # A source has few rows of one generation and many of another: each generation is a table of its own.
        tables = Counter((run.source, run.case.cluster.gpu.generation) for run in self.runs)
        self.weights = np.array([1.0 / (5 + tables[run.source, run.case.cluster.gpu.generation]) for run in self.runs])
        inside = self._errors(which)
        if not self.slopes.any():
            for number, constant in enumerate(self.constants):
                self._slope(number, constant)
        return inside

    def _errors(self, which: Sequence[int]) -> list[bool]:
        training_costs.cache_clear()
        passes.forget_passes()
        inside = []
        for index in which:
            outcome = outcome_of(self.runs[index].row, predict)
            assert outcome.error is not None
            self.errors[index] = math.log1p(outcome.error)
            inside.append(bool(outcome.inside_band))
        return inside

    def _slope(self, number: int, constant: Constant) -> None:
        rows = [index for index, run in enumerate(self.runs) if may_depend(constant, run.case)]
        kept, was = get(constant.path), self.errors.copy()
        by = max(constant.grain, STEP * kept)
        put(constant.path, kept + by)
        self._errors(rows)
        self.slopes[:, number] = (self.errors - was) * constant.grain / by
        put(constant.path, kept)
        self.errors = was

    def depending(self) -> list[int]:
        """Rows that any of the constants moves."""
        return [int(index) for index in np.flatnonzero(np.abs(self.slopes).sum(axis=1) > SMALL)]


def may_depend(constant: Constant, case: Case) -> bool:
    """Whether a constant could move a row: not one of another generation, release or framework."""
    group, name, *_ = [*constant.path.split("."), ""]
    plan, generation = case.plan, case.cluster.gpu.generation.removesuffix("-ultra")
    if group == "generations":
        return generation == name
    if group == "releases":
        return bool(plan.release) and release_name(plan.release) == name.rpartition("-")[0]
    if group == "adapter_token_s":
        return bool(plan.lora_rank) and (generation == "hopper") == (name == "hopper")
    if constant.path.startswith("host.read_s"):
        return plan.framework == constant.path.rpartition(".")[2]
    return True


def measured(tables: Iterable[Path]) -> list[Measured]:
    """Rows of levels A and B that have a step time and can be predicted."""
    found = []
    for row in (row for path in tables for row in read_table(path)):
        if row.level != "C" and row.measured_s is not None and not isinstance(case := case_of(row), Skip):
            found.append(Measured(row, case))
    return found


def fit_all(fit: Recent, used: NDArray[np.bool_]) -> None:
    """Move all constants to where the used rows wish them."""
    for _ in range(ROUNDS):
        fit.move(range(len(fit.constants)), fit.moves(range(len(fit.constants)), used))
        fit.predict(fit.depending())


def left_out(
    fit: Recent, groups: Iterable[Sequence[str]]
) -> Iterator[tuple[Sequence[str], NDArray[np.intp], list[str]]]:
    """Each group of sources, its rows, predicted without them, and what the other rows say nothing of.

    What the group informed starts from its prior, so that nothing of it is left in where the fit begins.
    """
    kept, errors = copy.deepcopy(training_document()), fit.errors.copy()
    for group in groups:
        held = np.array([run.source in group for run in fit.runs])
        informed = [number for number in range(len(fit.constants)) if fit.share(number, held) >= LEAST_SHARE]
        orphans = [number for number in informed if fit.share(number, held) > ALL_OF_IT]
        others = [number for number in informed if number not in orphans]
        to_priors([fit.constants[number] for number in informed])
        used = [int(row) for row in np.flatnonzero(~held & (np.abs(fit.slopes[:, informed]).sum(axis=1) > SMALL))]
        for _ in range(ROUNDS if others else 0):
            fit.predict(used)
            fit.move(others, fit.moves(others, ~held))
        to_priors([fit.constants[number] for number in orphans])  # some of them from neighbours that have moved
        rows = np.flatnonzero(held)
        if informed:
            fit.predict(rows.tolist())
        yield group, rows, [fit.constants[number].path for number in orphans]
        training_document().update(copy.deepcopy(kept))
        fit.errors = errors.copy()


def groups_of(sources: Iterable[str]) -> tuple[list[list[str]], list[list[str]]]:
    """Each source alone, and the sources of each project that has several."""
    names = sorted(set(sources))
    together = [[name for name in names if project in name] for project in PROJECTS]
    return [[name] for name in names], [group for group in together if len(group) > 1]


def main() -> None:
    """Print errors, or what to change."""
    fit = Recent(measured(Path(one) for one in sys.argv[1:] if not one.startswith("--")), CONSTANTS)
    before = {constant.path: get(constant.path) for constant in CONSTANTS}
    if "--fit" in sys.argv:
        fit_all(fit, np.ones(len(fit.runs), bool))
        for path, value in before.items():
            print(f"{path}: {value:.6g} -> {get(path):.6g}")
        print_errors({"fitted": dict(enumerate(fit.errors))}, fit)
        return
    tables: dict[str, dict[int, float]] = {"as it is": dict(enumerate(fit.errors))}
    alone, together = groups_of(run.source for run in fit.runs)
    for title, groups in (("source out", alone), ("project out", together)):
        tables[title] = {}
        for group, rows, orphans in left_out(fit, groups):
            tables[title] |= {int(row): float(fit.errors[row]) for row in rows}
            print(f"{' and '.join(group)}: to priors {', '.join(orphans) or 'nothing'}", file=sys.stderr)
    print_errors(tables, fit)
    print_series(tables, fit)
    if "--write" in sys.argv:
        write(tables, fit)


def write(tables: dict[str, dict[int, float]], fit: Recent) -> None:
    """Mean errors of each source, in percent; a source that is its project alone is left out once."""
    tables = {**tables, "project out": tables["source out"] | tables["project out"]}
    lines = []
    for source in sorted({run.source for run in fit.runs}):
        own = [index for index, run in enumerate(fit.runs) if run.source == source]
        means = [100 * np.abs(np.expm1([errors[index] for index in own])).mean() for errors in tables.values()]
        lines.append([source, len(own), *(f"{mean:.1f}" for mean in means)])
    with KEPT.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([["source", "rows", *tables], *lines])


def print_series(tables: dict[str, dict[int, float]], fit: Recent) -> None:
    """Step = slope x micro-batches + intercept, in s, of one job on more and more GPUs: measured, and by each table.

    Weighted by 1 / step. Rows of level A; jobs of three numbers of micro-batches and more.
    """
    series: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, run in enumerate(fit.runs):
        plan, cluster = run.case.plan, run.case.cluster
        if run.row.level == "A":
            series[run.source, run.row.model, cluster.gpu.name, plan.tp, plan.pp, plan.ep].append(index)
    print()
    for job, own in series.items():
        plans = [fit.runs[index].case for index in own]
        counts = np.array([one.plan.global_batch * one.plan.tp * one.plan.pp * one.plan.cp for one in plans], float)
        counts /= [one.plan.micro_batch * one.cluster.n_gpus for one in plans]
        measured_s = np.array([float(fit.runs[index].row.measured_s or 0.0) for index in own])
        if len(set(counts)) < 3:
            continue
        lines = {"measured": measured_s}
        lines |= {
            title: measured_s * np.exp([errors[i] for i in own]) for title, errors in tables.items() if own[0] in errors
        }
        for title, seconds in lines.items():
            slope, intercept = np.polyfit(counts, seconds, 1, w=1.0 / measured_s)
            print(f"{' '.join(map(str, job))}: {title}: {slope:.4f} x micro-batches + {intercept:.3f}")


def print_errors(tables: dict[str, dict[int, float]], fit: Recent) -> None:
    """Mean error and bias of each source, and their means, each source counting once."""
    rows: dict[str, list[int]] = defaultdict(list)
    for index, run in enumerate(fit.runs):
        rows[run.source].append(index)
    for title, errors in tables.items():
        means, biases = [], []
        print(f"\n{title}")
        for source, own in sorted(rows.items()):
            if own[0] in errors:
                off = np.expm1([errors[index] for index in own])
                means.append(np.abs(off).mean())
                biases.append(off.mean())
                print(f"{source:52s} {len(own):4d}  {means[-1]:6.1%}  {biases[-1]:+6.1%}")
        print(f"{'mean of sources':52s} {'':4s}  {np.mean(means):6.1%}  {np.mean(biases):+6.1%}")


if __name__ == "__main__":
    main()
