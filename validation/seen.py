"""How far off predictions are where their source informed no constant, by what was run: what bands are made of.

    python validation/seen.py TABLE.csv ...             the ledgers beside this file and further ones
    python validation/seen.py --from-rows TABLE.csv ... the same from `left_out_rows.csv` as it was last written

Writes `cost/calibration/seen.yaml`: by framework, by framework and name of release, and by GPU generation the most
GPUs of a run, formats, whether there were mixtures over several ranks and adapters, how many projects, and `error`:
four of five rows, each source counting once, have |ln(predicted / measured)| below 1.282 times it with their source
left out of whatever it informed. Where all runs are one project's, and its own constants hold for the next run of it,
`error` is a quarter more than over its own rows. And `left_out_rows.csv`: each row's error left out, and as it is. No
figure of a run is in either.

Constants of `fit.py` are fitted again without the source, one round. What single sources of 2026 informed by hand is
put back (`WITHOUT`), for all sources of a project together.
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
from fit import HERE, TABLES, TOGETHER, Fit, _without, runs_of

from windtunnel.evidence.accuracy import Case, Row, Skip, case_of, read_table
from windtunnel.evidence.accuracy.outcome import outcome_of
from windtunnel.physics.cost.training import release_name, training_costs, training_document
from windtunnel.studies.training import predict
from windtunnel.studies.training.lowering import passes

OTHERS = ("published", "unseen", "ultrascale")
EVERY = {"ultrascale": 20, "vtrain": 4}
ABOUT = (
    "# What published training runs were measured on, by framework and GPU generation. error: standard deviation of\n"
    "# ln(predicted / measured) by its 80 % quantile, each source left out of whatever it informed. Written by\n"
    "# `python validation/seen.py ...`.\n"
)


def _put_back(name: str) -> None:
    """The constants as they would be without the sources of 2026 of that name."""
    document = training_document()
    if name == "prime-rl":
        document["releases"].pop("prime-rl-99")
        document["generations"]["blackwell"]["attention_flash2"] = 1.7
    elif name == "MLPerf Training v6.0":
        document["releases"].pop("mlperf-v6.0")
        document["host"]["graphed_step_share"], document["replicas_of_nic"] = 1.0, 1e9
        document["generations"]["cdna4"]["gemm"].pop("mxfp4")
    elif name == "Primus":
        shared = document["generations"]["cdna4"]["shared"]
        document["generations"]["cdna4"] = copy.deepcopy(document["generations"]["default"]) | {"shared": shared}
    elif name == "torchtitan on 8 MI355X":
        document["generations"]["cdna4"]["shared"] = 1.0
    elif name == "Halo":
        document["host"]["experts_s"] = {}


WITHOUT = ("prime-rl", "MLPerf Training v6.0", "Primus", "torchtitan on 8 MI355X", "Halo")


def left_out(tables: list[Path]) -> dict[str, tuple[Row, Case, float, float]]:
    """ln(predicted / measured) of every row that can be predicted, left out and as it is, by id."""
    found: dict[str, tuple[Row, Case, float, float]] = {}
    kept = copy.deepcopy(training_document())
    for path in tables:
        rows = [row for row in read_table(path) if row.level != "C" and row.measured_s is not None]
        rows = rows[:: EVERY.get(path.stem, 1)]
        for name in (*WITHOUT, ""):
            own = [row for row in rows if (next((one for one in WITHOUT if one in row.source), "") == name)]
            _forget()
            as_it_is = {row.id: outcome_of(row, predict).error for row in own}
            if name:
                _put_back(name)
                _forget()
            for row in own:
                case = case_of(row)
                error = outcome_of(row, predict).error if name else as_it_is[row.id]
                with_it = as_it_is[row.id]
                if not isinstance(case, Skip) and error is not None and with_it is not None:
                    found[row.id] = (row, case, math.log1p(error), math.log1p(with_it))
            _restore(kept)
    fit = Fit(runs_of([HERE / f"{name}.csv" for name in TABLES]))
    sources = sorted({run.source for run in fit.runs})
    groups = [[source for source in sources if family in source] for family in TOGETHER]
    groups += [[source] for source in sources if not any(family in source for family in TOGETHER)]
    for left in groups:
        held = np.array([run.source in left for run in fit.runs])
        before = fit.errors.copy()
        _without(fit, held)
        fit.predict(np.flatnonzero(held).tolist())
        for index in np.flatnonzero(held):
            run = fit.runs[index]
            found[run.case.row.id] = (run.case.row, run.case, float(fit.errors[index]), float(before[index]))
        _restore(kept)
        fit.errors = before
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


def entry_of(rows: list[tuple[Row, Case, float, float]]) -> str:
    """What was measured, as a line of YAML."""
    projects, count = projects_of({row.source for row, *_ in rows}), Counter(row.source for row, *_ in rows)
    errors = sorted((abs(own if projects == 1 else out), 1.0 / count[row.source]) for row, _, out, own in rows)
    whole = np.cumsum([weight for _, weight in errors])
    quantile = errors[int(np.searchsorted(whole, 0.8 * whole[-1]))][0]
    off = quantile / 1.282 * (1.25 if projects == 1 else 1.0)
    cases = [case for _, case, *_ in rows]
    return (
        f"{{gpus: {max(case.cluster.n_gpus for case in cases)}, "
        f"precisions: [{', '.join(sorted({case.plan.precision for case in cases}))}], "
        f"mixtures: {str(any(case.plan.ep > 1 for case in cases)).lower()}, "
        f"adapters: {str(any(case.plan.lora_rank for case in cases)).lower()}, projects: {projects}, error: {off:.3f}}}"
    )


def main() -> None:
    """Predict and write both files."""
    tables = [HERE / f"{name}.csv" for name in (*TABLES, *OTHERS)] + [Path(one) for one in sys.argv[1:]]
    if "--from-rows" in sys.argv:
        kept = {line["id"]: line for line in csv.DictReader((HERE / "left_out_rows.csv").open(encoding="utf-8"))}
        tables = [path for path in tables if path.name != "--from-rows"]
        rows = {}
        for row in (row for path in tables for row in read_table(path) if row.id in kept):
            case = case_of(row)
            assert not isinstance(case, Skip)
            rows[row.id] = (row, case, float(kept[row.id]["left_out"]), float(kept[row.id]["as_it_is"]))
    else:
        rows = left_out(tables)
    with (HERE / "left_out_rows.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("id", "source", "framework", "generation", "left_out", "as_it_is"))
        for name, (row, case, out, own) in rows.items():
            writer.writerow(
                (name, row.source, case.plan.framework, case.cluster.gpu.generation, f"{out:.4f}", f"{own:.4f}")
            )
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
    Path(str(files("windtunnel.physics.cost.calibration").joinpath("seen.yaml"))).write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
