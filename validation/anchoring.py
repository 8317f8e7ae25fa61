"""How far one measured run carries to others, judged on published runs whose source the fit has not seen.

    python validation/anchoring.py TABLE.csv ...

A series: runs of one source, model, GPU, framework, precision and level. Its anchor is the run on the fewest GPUs; each
other run is predicted without an anchor, with its factor in full, and by the product's rule. Errors are those of a fit
without the row's own source (`left_out_rows.csv`), bands those that the product states. Besides, the weight that would
have been best, and the share of the band's half width that holds 90 % of the other sources' runs, each found without
the judged source; and what a share that grows with a distance would hold (of the lengths, of attention's share of the
FLOPs, of any change of length): s (1 + (k distance)^2)^.5, with s and k by the others' 90 % quantile.
"""

from __future__ import annotations

import csv
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from windtunnel.evidence.accuracy.anchor import _key, _size, regime_of
from windtunnel.evidence.accuracy.cases import Case, case_of
from windtunnel.evidence.accuracy.outcome import Outcome
from windtunnel.evidence.accuracy.run import run_validation
from windtunnel.studies.measured_run.anchoring import BATCH, LAYOUT, SAME, carried, nearness

LEFT_OUT = Path(__file__).parent / "left_out_rows.csv"
CLASSES = (SAME, BATCH, LAYOUT)
Judged = tuple[str, float, Outcome, Outcome]  # source, part of the half width that is filled, anchor, run


def unseen(tables: Sequence[Path]) -> list[Outcome]:
    """Outcomes with the step that a fit without their source predicts, and the band of the product about it."""
    with LEFT_OUT.open(encoding="utf-8") as file:
        errors = {line["id"]: float(line["left_out"]) for line in csv.DictReader(file)}
    found = []
    for one in run_validation(tables, None, None, "none").outcomes:
        if one.error is not None and one.row.id in errors and one.row.measured_s is not None:
            factor = one.row.measured_s * (1.0 + errors[one.row.id]) / (one.step_time_s or 1.0)
            found.append(replace(one.scale(factor, is_anchor=False), anchor_factor=None))
    return found


def series(outcomes: Sequence[Outcome]) -> Iterator[tuple[Outcome, Outcome, bool]]:
    """Anchor, run, and whether it may be one."""
    groups = defaultdict(list)
    for one in outcomes:
        groups[_key(one)].append(one)
    for group in groups.values():
        first, *rest = sorted(group, key=_size)
        for one in rest:
            yield first, one, first.status == "ok" and not first.full


def log_error(one: Outcome) -> float:
    """log of predicted / measured."""
    assert one.error is not None
    return math.log1p(one.error)


def filled(outcome: Outcome, left: float) -> float:
    """What is left of a log error over the half width of the band that the product states on that side."""
    assert outcome.step_time_s is not None
    assert outcome.p5_s is not None
    assert outcome.p95_s is not None
    side = outcome.step_time_s / outcome.p5_s if left > 0.0 else outcome.p95_s / outcome.step_time_s
    return abs(left) / math.log(side)


def main() -> None:
    tables = [Path(text) for text in sys.argv[1:]]
    rows = defaultdict(list)
    pairs = defaultdict(list)
    shares: dict[str, list[Judged]] = defaultdict(list)
    for anchor, one, usable in series(unseen(tables)):
        regimes = regime_of(anchor), regime_of(one)
        near = nearness(*regimes)
        error, its_own = log_error(one), -log_error(anchor)
        found = carried(its_own, *regimes) if usable else None
        moved = one if found is None else one.scale(found.factor, is_anchor=False, share=found.share)
        left = log_error(moved)
        rows[near].append((error, error + its_own, left, bool(moved.inside_band), bool(one.inside_band)))
        shares[near].append((one.row.source, filled(one, left), anchor, one))
        if usable:
            pairs[near].append((one.row.source, -its_own, error))
    print("nearness      runs   none  in full  rule   in the band, was   weight and share without the judged source")
    for near in CLASSES:
        if not rows[near]:
            continue
        none, full, rule, inside, before = (np.array(column, float) for column in zip(*rows[near], strict=True))
        means = [100 * np.mean(np.abs(np.expm1(error))) for error in (none, full, rule)]
        weights = [weight([p for p in pairs[near] if p[0] != source]) for source in sorted({p[0] for p in pairs[near]})]
        learned = []  # of each source by the others, as a reader of a stranger's cluster has it
        inside_learned = []
        for source in sorted({name for name, *_ in shares[near]}):
            learned.append(float(np.quantile([value for name, value, *_ in shares[near] if name != source], 0.9)))
            inside_learned += [value <= learned[-1] for name, value, *_ in shares[near] if name == source]
        shown = "  ".join(f"{mean:5.1f} %" for mean in means)
        print(
            f"{near:13s} {len(none):4d} {shown}   {100 * inside.mean():3.0f} %, {100 * before.mean():3.0f} %"
            f"           {min(weights, default=0):.2f} to {max(weights, default=0):.2f}"
            f"           {min(learned):.2f} to {max(learned):.2f}, which hold {100 * np.mean(inside_learned):3.0f} %"
        )
    print("nearness      a share that grows with   holds of each table, learned without the judged source")
    for near in (BATCH, LAYOUT):
        for name, distance in DISTANCES.items():
            print(f"{near:13s} {name:24s}  {held(shares[near], distance)}")


def held(judged: Sequence[Judged], distance: Callable[[Outcome, Outcome], float]) -> str:
    """Per cent of each year's runs that are inside of a share that grows with a distance."""
    rows = [(source, value, distance(anchor, one), one) for source, value, anchor, one in judged]
    inside: dict[str, list[bool]] = defaultdict(list)
    for source in {row[0] for row in rows}:
        others = np.array([(value, far) for name, value, far, _ in rows if name != source])
        best = (math.inf, 0.0, 0.0)
        for growth in np.arange(0.0, 6.01, 0.1):
            grown = np.sqrt(1.0 + (growth * others[:, 1]) ** 2)
            share = float(np.quantile(others[:, 0] / grown, 0.9))
            rest = others[:, 0] - share * grown
            best = min(best, (float(np.mean(np.maximum(0.9 * rest, -0.1 * rest))), growth, share))
        for name, value, far, one in rows:
            if name == source:
                table = "2026" if str(one.row.date).startswith("2026") else "before"
                inside[table].append(value <= best[2] * math.hypot(1.0, best[1] * far))
    return ", ".join(f"{table} {100 * np.mean(values):.0f} % of {len(values)}" for table, values in inside.items())


def attention(one: Outcome) -> float:
    """Attention's share of the model's FLOPs at the length of a run."""
    case = case_of(one.row)
    assert isinstance(case, Case)  # it was predicted
    return 1.0 - case.model.forward_flops_per_token(1) / case.model.forward_flops_per_token(one.row.seq_len or 1)


DISTANCES: dict[str, Callable[[Outcome, Outcome], float]] = {
    "the lengths' ratio": lambda a, b: abs(math.log2((b.row.seq_len or 1) / (a.row.seq_len or 1))),
    "attention's share": lambda a, b: abs(attention(b) - attention(a)),
    "any change of length": lambda a, b: float(a.row.seq_len != b.row.seq_len),
}


def weight(pairs: Sequence[tuple[str, float, float]]) -> float:
    """Of the anchor's log error in that of the run, least squares, each source counting once."""
    count: dict[str, int] = defaultdict(int)
    for source, _, _ in pairs:
        count[source] += 1
    top = sum(a * b / count[source] for source, a, b in pairs)
    below = sum(a * a / count[source] for source, a, b in pairs)
    return top / below if below else 0.0


if __name__ == "__main__":
    main()
