"""What each rule that a source's publications suggested is worth, and what rows get that it does not cover.

    python validation/serving/left_out.py TABLE... [--rule NAME] [--cell NAME] [--rows 5]

A rule is left out, and the rows that move are predicted with and without it: mean error of TPOT and of output tokens/s,
median of TTFT, share in the band, cell by cell. Without it a row gets what one of an unseen source or family
gets. `gpu` leaves out constants: each GPU on its sibling's, and on the engine's defaults alone.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from windtunnel.evidence.accuracy.serving import launches, mlperf, predict, recipes
from windtunnel.evidence.accuracy.serving.recipes import taken_by, when
from windtunnel.evidence.accuracy.serving.rows import ServingRow, read_rows
from windtunnel.evidence.accuracy.serving.run import drafting_told
from windtunnel.physics.hardware.gpu import Gpu
from windtunnel.studies.serving.engines.profile import Profile

MEASURES, MOVED = ("tpot_s", "ttft_s", "output_tokens_per_s"), 0.005
Answered = tuple[ServingRow, predict.Predicted]
ON = Profile.on


def _facts(*path: str, value: object) -> Callable[[], Callable[[], None]]:
    def put() -> Callable[[], None]:
        found: Any = launches._published()
        for name in path[:-1]:
            found = found[name]
        before, found[path[-1]] = found[path[-1]], value
        return lambda: found.__setitem__(path[-1], before)

    return put


def _instead(of: object, name: str, value: object) -> Callable[[], Callable[[], None]]:
    def put() -> Callable[[], None]:
        before = getattr(of, name)
        setattr(of, name, value)
        return lambda: setattr(of, name, before)

    return put


def _without_own(self: Profile, gpu: Gpu) -> Profile:
    """Constants of this GPU are not there: of siblings, where it has any."""
    own = [one for one in self.by_gpu if one.gpu == gpu.name and "decode_factor" in dict(one.fields)]
    return ON(replace(self, by_gpu=tuple(one for one in self.by_gpu if one not in own)), gpu)


RULES = {
    "drafts of pools (recipes)": _facts("recipes", value=[]),
    "attention ranks of pools": _instead(predict, "_in_ranks", lambda row, model, side, one: one),
    "CPUs of a host (hosts)": _facts("hosts", value=[]),
    "sessions": _facts("sessions", value=[{"turns": {12: 1}, "new": 0.1, "median": 0.57, "steady": False}]),
    "submissions (mlperf)": _instead(mlperf, "submitted", lambda row, deployment: None),
    "highest rate that holds": _instead(predict, "at_its_rate", lambda row, load, run: (run(load), 1.0)),
    "decode limits": _instead(launches, "_limits", dict),
    "deployments (recipes.csv)": _instead(recipes, "_listed", dict),
    "held back": _facts("deepseek", "held_back", value={}),
    "misread prompts": _facts("deepseek", "misread", "until", value="2000-01-01"),
    "drafted releases": _facts("deepseek", "drafted_releases", value=[]),
    "configurator": _instead(launches, "of_configurator", lambda row: False),
    "pauses": _facts("configurator", "turnaround_s", value=0.0),
    "gpu: siblings": _instead(Profile, "_of_sibling", lambda self, gpu: {}),
    "gpu: own constants": _instead(Profile, "on", _without_own),
}


@contextmanager
def _put(rule: Callable[[], Callable[[], None]]) -> Iterator[None]:
    predict._engine.cache_clear()
    undo = rule()
    try:
        yield
    finally:
        undo()
        predict._engine.cache_clear()


def _cell(row: ServingRow) -> str:
    names = [row.text(name) for name in ("model_family", "gpu", "engine")]
    return " ".join([*names, "apart" if row.disaggregated else "together", row.text("kind").partition("_")[0]])


def _few(rows: list[ServingRow], most: int) -> Iterator[ServingRow]:
    alike: dict[str, list[ServingRow]] = defaultdict(list)
    for row in rows:
        if not row.text("duplicate_of"):
            alike[_cell(row) + row.text("spec")].append(row)
    for group in alike.values():
        yield from group[:: -(-len(group) // most)]


def _errors(pairs: list[Answered]) -> tuple[list[float], list[float], list[float], list[bool]]:
    tpot, tokens, ttft, held = [], [], [], []
    for row, one in pairs:
        measured, rate, first = (row.number(name) for name in ("tpot_ms", "d_output_tokens_per_s", "ttft_ms"))
        if measured:
            tpot.append(abs(one.tpot_s * 1e3 / measured - 1.0))
            held.append(one.tpot_p5_s <= measured / 1e3 <= one.tpot_p95_s)
        if rate and rate >= (row.number("samples_per_s") or 0.0):
            tokens.append(abs(one.output_tokens_per_s / rate - 1.0))
        if first:
            ttft.append(abs(one.ttft_s * 1e3 / first - 1.0))
    return tpot, tokens, ttft, held


def _line(name: str, n: int, both: list[list[Answered]]) -> str:
    cells = []
    for kind, mean in enumerate((statistics.fmean, statistics.fmean, statistics.median, statistics.fmean)):
        found = [_errors(pairs)[kind] for pairs in both]
        cells.append(" -> ".join(f"{100 * mean(one):.1f}" for one in found) if all(found) else "")
    return f"| {name} | {n} | " + " | ".join(cells) + " |"


def main() -> None:
    """Print a table of each rule: with it -> without it."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("tables", type=Path, nargs="+")
    words.add_argument("--rule", default="", help=f"a part of: {', '.join(RULES)}")
    words.add_argument("--cell", default="", help="a part of a cell's name: model, GPU, engine, together or apart")
    words.add_argument("--rows", type=int, default=5, help="of each cell")
    asked = words.parse_args()
    predict.MOST_REQUESTS, predict.LEAST_WAVES = 600, 3
    every = read_rows(asked.tables)
    taken = taken_by(every)
    told = drafting_told(every, taken)
    rows = [row for row in _few(every, asked.rows) if asked.cell in _cell(row)]

    def answered() -> list[Answered]:
        return [(row, predict.predicted(row, None, taken.get(when(row), ()), told.get(row.id))) for row in rows]

    with_all = answered()
    for name, rule in RULES.items():
        if asked.rule not in name:
            continue
        with _put(rule):
            without = answered()
        cells: dict[str, list[tuple[Answered, Answered]]] = defaultdict(list)
        for one, other in zip(with_all, without, strict=True):
            if any(
                abs(math.log(getattr(other[1], key) / getattr(one[1], key))) > 0.005 for key in ("tpot_s", "ttft_s")
            ):
                cells[_cell(one[0])].append((one, other))
        print(f"\n{name}\n| cell | rows | TPOT | tokens/s | TTFT | held |\n|---|---:|---:|---:|---:|---:|")
        for cell, pairs in sorted(cells.items()):
            print(_line(cell, len(pairs), [[one for one, _ in pairs], [other for _, other in pairs]]), flush=True)


if __name__ == "__main__":
    main()
