"""How far one measured run carries to others, judged on published runs whose source the fit has not seen.

    python validation/anchoring.py TABLE.csv ...

A series: runs of one source, model, GPU, framework, precision and level. Its anchor is the run on the fewest GPUs; each
other run is predicted without an anchor, with its factor in full, and by the product's rule; so is each run whose plan
the source has on another GPU as well. Errors are those of a fit without the row's own source (`left_out_rows.csv`),
bands those that the product states. Besides, the weight that would have been best, found without the judged family of
sources. Last, runs of 2026 as they were predicted before anybody had looked at their source (`*_blind.csv`), without
bands: those tables have none.
"""

from __future__ import annotations

import csv
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from windtunnel.evidence.accuracy.anchor import _key, _size, regime_of
from windtunnel.evidence.accuracy.outcome import Outcome
from windtunnel.evidence.accuracy.run import run_validation
from windtunnel.studies.measured_run.anchoring import BATCH, GPU, LAYOUT, SAME, WEIGHTS, Regime, carried, nearness

HERE = Path(__file__).parent
CLASSES = (SAME, BATCH, LAYOUT, GPU)
FAMILIES = {"MLPerf": "MLPerf", "prime-rl": "prime-rl", "NeMo": "NVIDIA", "DGX Cloud": "NVIDIA", "Bridge": "NVIDIA"}


@dataclass(frozen=True)
class Judged:
    """Log errors of a run without an anchor and of its anchor, and whether the band held it by the rule, and before."""

    near: str
    family: str
    table: str
    error: float
    anchor: float
    left: float
    inside: bool = True
    before: bool = True


def unseen(tables: Sequence[Path]) -> list[Outcome]:
    """Outcomes with the step that a fit without their source predicts, and the band of the product about it."""
    with (HERE / "left_out_rows.csv").open(encoding="utf-8") as file:
        errors = {line["id"]: float(line["left_out"]) for line in csv.DictReader(file)}
    found = []
    for one in run_validation(tables, None, None, "none").outcomes:
        if one.error is not None and one.row.id in errors and one.row.measured_s is not None:
            factor = one.row.measured_s * (1.0 + errors[one.row.id]) / (one.step_time_s or 1.0)
            found.append(replace(one.scale(factor, is_anchor=False), anchor_factor=None))
    return found


def pairs(outcomes: Sequence[Outcome]) -> Iterator[tuple[Outcome, Outcome]]:
    """Anchor and run: of a series, and of the same plan on another GPU."""
    series, plans = defaultdict(list), defaultdict(list)
    for one in sorted(outcomes, key=_size):
        regime = regime_of(one)
        series[_key(one)].append(one)
        plans[regime.job, regime.layout, regime.batch].append(one)
    for first, *rest in series.values():
        yield from ((first, one) for one in rest)
    for alike in plans.values():
        for one in alike:
            firsts = {other.row.gpu: other for other in reversed(alike) if other.row.gpu != one.row.gpu}
            yield from ((first, one) for first in firsts.values())


def log_error(one: Outcome) -> float:
    """log of predicted / measured."""
    assert one.error is not None
    return math.log1p(one.error)


def family(source: str) -> str:
    """Sources of one hand."""
    return next((name for word, name in FAMILIES.items() if word in source), source)


def judged(outcomes: Sequence[Outcome]) -> Iterator[Judged]:
    """Every run with what an anchor does to it; one that may be no anchor does nothing."""
    for anchor, one in pairs(outcomes):
        regimes = regime_of(anchor), regime_of(one)
        usable = anchor.status == "ok" and not anchor.full
        found = carried(-log_error(anchor), *regimes) if usable else None
        moved = one if found is None else one.scale(found.factor, is_anchor=False, share=found.share)
        yield Judged(
            nearness(*regimes),
            family(one.row.source),
            "2026" if str(one.row.date).startswith("2026") else "before",
            log_error(one),
            log_error(anchor) if usable else 0.0,
            log_error(moved),
            bool(moved.inside_band),
            bool(one.inside_band),
        )


def strangers() -> Iterator[Judged]:
    """The same of runs as they were predicted before anybody had looked at their source."""
    series = defaultdict(list)
    for path in (*sorted(HERE.glob("unseen_2026*_blind.csv")), HERE / "lengths_blind.csv"):
        for row in csv.DictReader(path.open(encoding="utf-8")):
            rate = row.get("predicted_tokens_per_s_per_gpu")
            if not rate:
                continue
            more = dict(one.split("=", 1) for one in row.get("more", "").split())
            gpu, _, count = row["cluster"].partition(":")
            job = (row["source"], row["model"], row.get("framework"), row["precision"])
            layout = (*(row[name] for name in ("tp", "pp", "vpp", "ep", "zero_stage")), more.get("cp"), more.get("etp"))
            batch = (row["micro_batch"], row["recompute"], row["seq_len"], more.get("lora_rank"))
            regime = Regime(job, gpu, layout, batch, math.prod(map(int, count.split("x"))))
            error = math.log(float(row["tokens_per_s_per_gpu"]) / float(rate))
            series[job, gpu].append((regime.n_gpus, int(row["global_batch"]), regime, error))
    for runs in series.values():
        (_, _, first, of_first), *rest = sorted(runs, key=lambda run: run[:2])
        for _, _, regime, error in rest:
            left = error + math.log(carried(-of_first, first, regime).factor)
            yield Judged(nearness(first, regime), str(regime.job[0]), "blind", error, of_first, left)


def weight(runs: Iterable[Judged]) -> float:
    """Of the anchor's log error in that of the run, least squares, each family counting once."""
    runs = list(runs)
    count: dict[str, int] = defaultdict(int)
    for run in runs:
        count[run.family] += 1
    top = sum(run.anchor * run.error / count[run.family] for run in runs)
    return top / (sum(run.anchor**2 / count[run.family] for run in runs) or 1.0)


def line(runs: Sequence[Judged]) -> str:
    """Runs, families, mean errors without an anchor, in full and by the rule."""
    columns = ((run.error, run.error - run.anchor, run.left) for run in runs)
    means = [100 * np.mean(np.abs(np.expm1(column))) for column in zip(*columns, strict=True)]
    of = len({run.family for run in runs})
    return f"{len(runs):4d} of {of:2d}   " + "  ".join(f"{mean:5.1f} %" for mean in means)


def main() -> None:
    runs = list(judged(unseen([Path(text) for text in sys.argv[1:]])))
    print("nearness      table   runs         none  in full    rule   in the band, was    weight without each family")
    for near in CLASSES:
        of_class = [run for run in runs if run.near == near]
        families = sorted({run.family for run in of_class})
        weights = [weight(run for run in of_class if run.family != name) for name in families]
        for table in ("all", "before", "2026"):
            some = [run for run in of_class if table in ("all", run.table)]
            if some:
                inside, before = (100 * np.mean([getattr(run, name) for run in some]) for name in ("inside", "before"))
                shown = f"{min(weights):.2f} to {max(weights):.2f}, is {WEIGHTS[near]}" if table == "all" else ""
                print(f"{near:13s} {table:7s} {line(some)}   {inside:3.0f} %, {before:3.0f} %   {shown}")
        if near == GPU:
            for name in families:
                print(f"  {name[:30]:30s}{line([run for run in of_class if run.family == name])}")
    blind = list(strangers())
    for near in (SAME, BATCH, LAYOUT):
        print(f"{near:13s} blind   {line([run for run in blind if run.near == near])}")


if __name__ == "__main__":
    main()
