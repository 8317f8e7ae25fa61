"""Parcae's recorded decisions against ours, minute by minute, and the samples that both earn under published costs.

    python validation/resilience/parcae.py FOLDER

FOLDER holds parcae_p3_trace.csv, parcae_throughput.csv, parcae_constants.csv and parcae_decisions_MODEL.csv. A second
reading of the log has no constant of its own: what is moved to added nodes goes one stage after another, and the job
begins afresh at minute 330, where a segment of the artifact does.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

from windtunnel.studies.resilience.spot.moves import Moves
from windtunnel.studies.resilience.spot.policies import IDLE, Search, fastest, parcae
from windtunnel.studies.resilience.spot.tables import Layout, models_in, read_model
from windtunnel.studies.resilience.spot.trace import Minute, SpotTrace, read_trace

AFRESH, SERIAL_AHEAD = 330, (8, 9, 10, 12)


class OneAfterAnother(Moves):
    """Costs of moves where stages are sent in turn: all that are short, or all of another depth and the broadcast."""

    def from_layout(self, layout: Layout, minute: Minute) -> dict[Layout, float]:
        """Milliseconds to every layout that fits after the events of `minute`."""
        if (minute, layout) in self.costs:
            return self.costs[minute, layout]
        costs, model = dict(super().from_layout(layout, minute)), self.model
        d, p = layout
        drawn = self._chosen(minute.before, minute.removed)
        lost = [(drawn < d * p) & (drawn % max(p, 1) == stage) for stage in range(p)]
        replicas = d - np.array([stage.sum(axis=1) for stage in lost])  # (stages, draws)
        for to in costs:
            adding = to[0] * to[1] > d * p - minute.removed
            restart = model.restart_ms(to, adding=adding)
            if to[1] != p and adding:
                sent = model.stage_ms(to[1])
                costs[to] = sent.sum() + (sent.max() if to[0] > 1 else 0.0) + restart
            elif to[1] == p and (minute.removed or to != layout):
                short = replicas < to[0]
                moved = model.stage_ms(p) @ short + restart
                costs[to] = float(np.where(short.any(axis=0), moved, model.regroup_ms(to)).mean())
        self.costs[minute, layout] = costs
        return costs


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


def one_by_one(
    moves: Moves, trace: SpotTrace, look_ahead: int, recorded: list[tuple[int, int]], afresh: int = 0
) -> float:
    """Share of decisions that are the recorded ones, each made from what is recorded of the minutes before it.

    One decision that differs changes all that follow; here it counts once. `afresh`: a minute before which nothing ran.
    """
    model, layout, left_ms, same = moves.model, IDLE, 0.0, 0
    search = Search(moves, max(minute.nodes for minute in trace.minutes))
    for at, (minute, choice) in enumerate(zip(trace.minutes, recorded, strict=True)):
        layout, left_ms = (IDLE, 0.0) if at == afresh else (layout, left_ms)
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
        serial, later = OneAfterAnother(model), SpotTrace(trace.minutes[AFRESH:], AFRESH, trace.interval_s)
        for ahead in SERIAL_AHEAD:
            alone_share = one_by_one(serial, trace, ahead, recorded, AFRESH)
            found = parcae(serial, trace, ahead)[:AFRESH] + parcae(serial, later, ahead)
            same = sum(one.layout == other for one, other in zip(found, recorded, strict=True)) / len(recorded)
            print(
                f"{name}, one after another, afresh at {AFRESH}, {ahead} ahead: {alone_share:.1%}, as runs {same:.1%}"
            )
        same = sum(fastest(model, one.nodes) == other for one, other in zip(trace.minutes, fast, strict=True))
        print(f"{name}: {same / len(rows):.1%} of the throughput-optimal decisions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
