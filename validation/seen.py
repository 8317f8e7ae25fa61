"""How far off predictions are where their source informed no constant, by what was run: what bands are made of.

    python validation/seen.py TABLE.csv ...             the ledgers beside this file and further ones
    python validation/seen.py --from-rows TABLE.csv ... the same from `left_out_rows.csv` as it was last written
    python validation/seen.py --kept TABLE.csv ...      rows of the ledgers beside from there, of the named tables anew

Writes `cost/calibration/seen.yaml`: by framework, by framework and name of release, and by GPU generation the most
GPUs of a run, formats, whether there were mixtures over several ranks and adapters, how many projects, and `error`:
four of five rows and of one more, each source counting once, have |ln(predicted / measured)| below 1.282 times it with
their source left out of whatever it informed. Where all runs are one table's or one family's, whose own constants hold
for the next run of it, `error` is a quarter more than over its own rows. `mixture_error`: the same of mixtures of
experts, where those are further off than all. And `left_out_rows.csv`: each row's error left out, and as
it is. No figure of a run is in either.

Constants of `fit.py` are fitted again without the source, one round; those of `recent.py`, which the tables that are
named beside informed, as it does.
"""

from __future__ import annotations

import copy
import csv
import math
import sys
from collections import Counter, defaultdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from fit import HERE, TABLES, TOGETHER, Fit, runs_of
from fit import without as fit_without
from recent import CONSTANTS, Recent, groups_of, measured
from recent import left_out as without

from windtunnel.evidence.accuracy import Case, Row, Skip, case_of, read_table
from windtunnel.evidence.accuracy.outcome import outcome_of
from windtunnel.physics.cost.training import release_name, training_costs, training_document
from windtunnel.studies.training import predict
from windtunnel.studies.training.lowering import passes

LEFT_OUT = HERE / "left_out_rows.csv"
Known = dict[str, tuple[Row, Case, float, float]]
OTHERS = ("published", "unseen", "ultrascale")
EVERY = {"ultrascale": 20, "vtrain": 4}
ABOUT = (
    "# What published training runs were measured on, by framework and GPU generation. error: standard deviation of\n"
    "# ln(predicted / measured) by its 80 % quantile, each source left out of whatever it informed. Written by\n"
    "# `python validation/seen.py ...`.\n"
)


def left_out(recent: list[Path]) -> Known:
    """ln(predicted / measured) of every row that can be predicted, left out and as it is, by id."""
    found = of_ledgers() | of_recent(recent)
    kept = copy.deepcopy(training_document())
    fit = Fit(runs_of([HERE / f"{name}.csv" for name in TABLES]))
    sources = sorted({run.source for run in fit.runs})
    groups = [[source for source in sources if family in source] for family in TOGETHER]
    groups += [[source] for source in sources if not any(family in source for family in TOGETHER)]
    for left in groups:
        held = np.array([run.source in left for run in fit.runs])
        before = fit.errors.copy()
        fit_without(fit, held)
        fit.predict(np.flatnonzero(held).tolist())
        for index in np.flatnonzero(held):
            run = fit.runs[index]
            found[run.case.row.id] = (run.case.row, run.case, float(fit.errors[index]), float(before[index]))
        _restore(kept)
        fit.errors = before
    return found


def of_ledgers() -> Known:
    """Rows of the ledgers beside, as they are predicted."""
    found: Known = {}
    for path in [HERE / f"{name}.csv" for name in (*TABLES, *OTHERS)]:
        rows = [row for row in read_table(path) if row.level != "C" and row.measured_s is not None]
        for row in rows[:: EVERY.get(path.stem, 1)]:
            case, error = case_of(row), outcome_of(row, predict).error
            if not isinstance(case, Skip) and error is not None:
                found[row.id] = (row, case, math.log1p(error), math.log1p(error))
    return found


def of_recent(tables: list[Path]) -> Known:
    """Rows of further tables, without their sources in what `recent.py` fits."""
    newer = Recent(measured(tables), CONSTANTS)
    found: Known = {
        run.row.id: (run.row, run.case, float(error), float(error))
        for run, error in zip(newer.runs, newer.errors, strict=True)
    }
    for _, own, _ in without(newer, groups_of(run.source for run in newer.runs)[0]):
        for index in own.tolist():
            name = newer.runs[index].row.id
            found[name] = (*found[name][:2], float(newer.errors[index]), found[name][3])
    return found


def known_rows(tables: list[Path]) -> Known:
    """Rows of tables as `left_out_rows.csv` has them."""
    kept = {line["id"]: line for line in csv.DictReader(LEFT_OUT.open(encoding="utf-8"))}
    found: Known = {}
    for row in (row for path in tables for row in read_table(path) if row.id in kept):
        case = case_of(row)
        assert not isinstance(case, Skip)
        found[row.id] = (row, case, float(kept[row.id]["left_out"]), float(kept[row.id]["as_it_is"]))
    return found


def _restore(kept: dict[str, Any]) -> None:
    document = training_document()
    document.clear()
    document.update(copy.deepcopy(kept))
    _forget()


def _forget() -> None:
    training_costs.cache_clear()
    passes.forget_passes()


def projects_of(sources: set[str]) -> int:
    """How many projects sources are of: releases and tables of one count once."""
    return len({next((name for name in (*TOGETHER, "prime-rl") if name in source), source) for source in sources})


FEWEST = 6  # rows of mixtures that say what theirs are off by


def _deviation(rows: list[tuple[Row, Case, float, float]], alone: bool) -> float:
    """Standard deviation by the 80 % quantile, each source counting once; `alone`: as it is, and a quarter more."""
    count = Counter(row.source for row, *_ in rows)
    errors = sorted((abs(own if alone else out), 1.0 / count[row.source]) for row, _, out, own in rows)
    whole = np.cumsum([weight for _, weight in errors])
    # Of n rows and one that is to come the k-th largest holds k / (n + 1): of four or fewer, the farthest off.
    share = min(0.8 * (1.0 + 1.0 / len(rows)), 1.0 - 1e-9)
    quantile = errors[int(np.searchsorted(whole, share * whole[-1]))][0]
    return float(quantile / 1.282 * (1.25 if alone else 1.0))


def entry_of(rows: list[tuple[Row, Case, float, float]]) -> str:
    """What was measured, as a line of YAML."""
    count = Counter(row.source for row, *_ in rows)
    projects = projects_of(set(count))
    # Of one project, and nothing of it was predicted without its other runs or with them: as it is.
    alone = projects == 1 and (len(count) == 1 or any(family in source for family in TOGETHER for source in count))
    off = _deviation(rows, alone)
    cases = [case for _, case, *_ in rows]
    mixtures = [one for one in rows if one[0].moe]
    wider = _deviation(mixtures, alone) if len(mixtures) >= FEWEST else 0.0
    own = f", mixture_error: {wider:.3f}" if wider > off else ""
    return (
        f"{{gpus: {max(case.cluster.n_gpus for case in cases)}, "
        f"precisions: [{', '.join(sorted({case.plan.precision for case in cases}))}], "
        f"mixtures: {str(any(case.plan.ep > 1 for case in cases)).lower()}, "
        f"adapters: {str(any(case.plan.lora_rank for case in cases)).lower()}, "
        f"projects: {projects}, error: {off:.3f}{own}}}"
    )


def entries_of(rows: Known) -> str:
    """The file `seen.yaml` that these rows make."""
    pairs: dict[tuple[str, str], list[tuple[Row, Case, float, float]]] = defaultdict(list)
    for one in rows.values():
        framework, generation = one[1].plan.framework, one[1].cluster.gpu.generation
        pairs[framework, generation].append(one)
        if release := release_name(one[1].plan.release):
            pairs[f"{framework} {release}", generation].append(one)
    text = ABOUT
    for framework in sorted({framework for framework, _ in pairs}):
        text += f"{framework}:\n"
        for (name, generation), of in sorted(pairs.items()):
            if name == framework:
                text += f"  {generation}: {entry_of(of)}\n"
    return text


def main() -> None:
    """Predict and write both files."""
    recent = [Path(one) for one in sys.argv[1:] if not one.startswith("--")]
    ledgers = [HERE / f"{name}.csv" for name in (*TABLES, *OTHERS)]
    if "--from-rows" in sys.argv:
        rows = known_rows(ledgers + recent)
    elif "--kept" in sys.argv:
        rows = known_rows(ledgers) | of_recent(recent)
    else:
        rows = left_out(recent)
    with LEFT_OUT.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("id", "source", "framework", "generation", "left_out", "as_it_is"))
        for name, (row, case, out, own) in rows.items():
            writer.writerow(
                (name, row.source, case.plan.framework, case.cluster.gpu.generation, f"{out:.4f}", f"{own:.4f}")
            )
    text = entries_of(rows)
    Path(str(files("windtunnel.physics.cost.calibration").joinpath("seen.yaml"))).write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
