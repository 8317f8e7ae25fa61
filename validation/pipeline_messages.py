"""The Ultra-Scale sweep holds runs of two states of its pipeline: what each message took beyond its prediction.

    python validation/pipeline_messages.py [validation/ultrascale.csv]

Layouts with a pipeline and tensor-parallel groups inside a node. Excess over the prediction, divided by the messages on
the longest path: two a micro-batch with two stages, four with more, and one for each hop on the way in and out.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from windtunnel.evidence.accuracy import Row, read_table
from windtunnel.evidence.accuracy.outcome import Outcome, outcome_of
from windtunnel.studies.training import predict

SLOW, FINE = 0.17, 0.03  # s a message; what lies between belongs to neither


def seconds_a_message(outcome: Outcome) -> float:
    row, micro_batches = outcome.row, outcome.row.grad_accum or 1
    messages = (2 if row.pp == 2 else 4) * micro_batches + 2 * ((row.pp or 1) - 1)
    return ((row.measured_s or 0.0) - (outcome.step_time_s or 0.0)) / messages


def describe(name: str, outcomes: list[Outcome]) -> None:
    if not outcomes:
        return
    seconds = sorted(map(seconds_a_message, outcomes))
    tenths = statistics.quantiles(seconds, n=10) if len(seconds) > 1 else seconds
    memory = [row.peak_mem_gib for row in (outcome.row for outcome in outcomes) if row.peak_mem_gib]
    print(
        f"{name:28} {len(seconds):4} runs, {min(memory):4.1f} to {max(memory):4.1f} GiB reserved: median "
        f"{statistics.median(seconds):6.3f} s a message, 10 to 90 % {tenths[0]:6.3f} to {tenths[-1]:6.3f}"
    )


def chosen(row: Row) -> bool:
    return row.measured_s is not None and (row.pp or 1) > 1 and (row.tp or 1) <= 8


def main() -> None:
    table = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "ultrascale.csv"
    outcomes = [outcome_of(row, predict) for row in read_table(table) if chosen(row)]
    outcomes = [outcome for outcome in outcomes if outcome.step_time_s is not None]
    slow = [outcome for outcome in outcomes if seconds_a_message(outcome) > SLOW]
    fine = [outcome for outcome in outcomes if abs(seconds_a_message(outcome)) < FINE]
    describe("as predicted", fine)
    describe("slow", slow)
    describe("slow, above 70 GiB", [one for one in slow if (one.row.peak_mem_gib or 0) > 70])
    describe("slow, ZeRO-0", [one for one in slow if one.row.zero_stage == 0])
    for layers in sorted({one.row.layers or 0 for one in slow}):
        describe(f"slow, {layers} layers", [one for one in slow if one.row.layers == layers])
    print(f"between the two: {len(outcomes) - len(slow) - len(fine)} runs")
    for name, kept in (("slow", slow), ("not slow", [one for one in outcomes if one not in slow])):
        errors = [one.error for one in kept if one.row.level == "A" and one.error is not None]
        print(f"level A, {name}: {len(errors)} rows, mean error {statistics.fmean(map(abs, errors)):.1%}")


if __name__ == "__main__":
    main()
