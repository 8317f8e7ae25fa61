"""Parcae's recorded decisions against ours, minute by minute, and the samples that both earn under published costs.

    python validation/resilience/parcae.py FOLDER

FOLDER holds parcae_p3_trace.csv, parcae_throughput.csv, parcae_constants.csv and parcae_decisions_MODEL.csv.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from windtunnel.studies.resilience.spot.moves import Moves
from windtunnel.studies.resilience.spot.policies import IDLE, Search, fastest, parcae
from windtunnel.studies.resilience.spot.tables import models_in, read_model
from windtunnel.studies.resilience.spot.trace import SpotTrace, read_trace


def earned(moves: Moves, trace: SpotTrace, layouts: list[tuple[int, int]]) -> float:
    """Samples that a list of layouts earns when its moves cost what the tables say."""
    model, layout, left_ms, total = moves.model, (0, 0), 0.0, 0.0
    interval_ms = model.interval_s * 1000
    for minute, choice in zip(trace.minutes, layouts, strict=True):
        cost = moves.from_layout(layout, minute)[choice]
        if cost > 0:
            left_ms = cost + model.restart_ms(choice, adding=False) if left_ms > 0 else cost
        total += model.samples_per_s.get(choice, 0.0) * max(0.0, interval_ms - left_ms) / 1000
        left_ms, layout = max(0.0, left_ms - interval_ms), choice
    return total


def one_by_one(moves: Moves, trace: SpotTrace, look_ahead: int, recorded: list[tuple[int, int]]) -> float:
    """Share of decisions that are the recorded ones, each made from what is recorded of the minutes before it.

    One decision that differs changes all that follow; here it counts once.
    """
    model, layout, left_ms, same = moves.model, IDLE, 0.0, 0
    search = Search(moves, max(minute.nodes for minute in trace.minutes))
    for at, (minute, choice) in enumerate(zip(trace.minutes, recorded, strict=True)):
        same += search.first_move(layout, left_ms, trace.minutes[at : at + look_ahead]) == choice
        cost = moves.from_layout(layout, minute)[choice]
        if cost > 0:
            left_ms = cost + model.restart_ms(choice, adding=False) if left_ms > 0 else cost
        layout, left_ms = choice, max(0.0, left_ms - model.interval_s * 1000.0)
    return same / len(recorded)


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    if folder is None or not folder.is_dir():
        print("give the folder of Parcae's tables")
        return 2
    for name in models_in(folder):
        path = folder / f"parcae_decisions_{name}.csv"
        if not path.exists():
            continue
        model, trace = read_model(folder, name), read_trace(folder / "parcae_p3_trace.csv")
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        recorded = [(int(row["liveput_truth_D"]), int(row["liveput_truth_P"])) for row in rows]
        fast = [(int(row["throughput_D"]), int(row["throughput_P"])) for row in rows]
        moves = Moves(model)
        for word in ("known", "persistence"):
            found = parcae(moves, trace, model.look_ahead, word)
            same = sum(one.layout == other for one, other in zip(found, recorded, strict=True)) / len(recorded)
            ratio = sum(one.samples for one in found) / earned(moves, trace, recorded)
            print(f"{name}, forecast {word}: {same:.1%} of {len(rows)} decisions, {ratio:.4f} x the recorded samples")
        alone = ", ".join(f"{ahead} ahead {one_by_one(moves, trace, ahead, recorded):.1%}" for ahead in (5, 8, 10, 12))
        print(f"{name}, each decision from the recorded layout before it, minutes {alone}")
        same = sum(fastest(model, one.nodes) == other for one, other in zip(trace.minutes, fast, strict=True))
        print(f"{name}: {same / len(rows):.1%} of the throughput-optimal decisions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
