"""Set predictions beside the one-device truth: step time, order of runs, memory.

    python validation/one_device/compare.py --truth truth.json --device my-device.yaml
    python validation/one_device/compare.py --only moe --device my-device.yaml        without --truth: trains them first
    python validation/one_device/compare.py ... --write predictions.csv

`my-device.yaml` is what `windtunnel calibrate` wrote on the same device. Errors are predicted / measured - 1. Two runs
are a pair that counts if their measured times differ by more than 15 %.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from cases import Case, read_cases

HERE = Path(__file__).parent
APART = 1.15
PHASES = ("forward", "backward", "optimizer")


def truth_of(path: Path | None, only: list[str]) -> dict[str, Any]:
    """The file, or a fresh run of the chosen ones."""
    if path is not None:
        return json.loads(path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "truth.json"
        command = [sys.executable, str(HERE / "train.py"), "--write", str(made)]
        subprocess.run([*command, *(f"--only={text}" for text in only)], check=True)
        return json.loads(made.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def case_of(row: dict[str, Any]) -> Case:
    """The run as it was when it was measured; configs.yaml may have moved on."""
    if "case" not in row:
        return read_cases()[row["name"]]
    return Case(**{key: value for key, value in row["case"].items() if key not in ("plan", "config")})


def predicted_phases(result: Any) -> dict[str, float]:
    """Seconds of forward, backward and optimizer on the predicted timeline."""
    found = dict.fromkeys(PHASES, 0.0)
    for op in result.excerpt:
        for phase in PHASES:
            if op.label.startswith(phase):
                found[phase] += (op.end_ns - op.start_ns) / 1e9
    return found


def compared(row: dict[str, Any], device: str) -> dict[str, Any]:
    """One line of the table. A refusal is an `error`: the rest of the table is still worth having."""
    import windtunnel

    case = case_of(row)
    line: dict[str, Any] = {
        "name": row["name"],
        "precision": case.precision,
        "kind": kind_of(case),
        "measured_s": row.get("step_s", math.nan),  # nan: memory and ops only
        "measured_p10_s": row.get("step_p10_s", math.nan),
        "measured_p90_s": row.get("step_p90_s", math.nan),
        "steady": row["steady"],
        "measured_bytes": row["peak_allocated_bytes"],
    }
    try:
        result = windtunnel.predict(case.config, device, case.plan)
    except windtunnel.UserError as error:
        return {**line, "error": " ".join(str(error).split())}
    memory = result.peak_memory.peak_allocated_bytes
    line |= {
        "predicted_s": result.step_time_s,
        "error_time": result.step_time_s / line["measured_s"] - 1.0,
        "in_band": result.step_time_p5_ns <= line["measured_s"] * 1e9 <= result.step_time_p95_ns,
        "predicted_bytes": memory,
        "error_memory": memory / row["peak_allocated_bytes"] - 1.0,
        "measured_share": result.provenance.get("measured", 0.0) + result.provenance.get("interpolated", 0.0),
    }
    phases = predicted_phases(result)
    for phase in PHASES:
        if row.get("phases_s", {}).get(phase) and phases[phase]:
            line[f"error_{phase}"] = phases[phase] / row["phases_s"][phase] - 1.0
    return line


def kind_of(case: Case) -> str:
    """What the summary groups by."""
    parts = [case.model["model_type"], case.precision]
    parts += ["recompute"] * case.recompute + ["compiled"] * case.compile + ["accumulate"] * (case.accumulate > 1)
    return " ".join(parts)


def wrong_pairs(lines: Sequence[dict[str, Any]]) -> tuple[list[tuple[str, str]], int]:
    """Pairs whose measured times differ by more than 15 % and whose predicted order is the other way, of how many."""
    pairs = [(a, b) if a["measured_s"] < b["measured_s"] else (b, a) for a, b in combinations(lines, 2)]
    apart = [(a, b) for a, b in pairs if b["measured_s"] > APART * a["measured_s"]]
    return [(a["name"], b["name"]) for a, b in apart if a["predicted_s"] >= b["predicted_s"]], len(apart)


def figures(errors: Iterable[float]) -> str:
    values = [error for error in errors if not math.isnan(error)]
    if not values:
        return "none"
    size = [abs(value) for value in values]
    return f"mean {statistics.mean(size):5.1%}  worst {max(size):5.1%}  bias {statistics.mean(values):+5.1%}"


def show(lines: Sequence[dict[str, Any]]) -> None:
    """The table and its summary."""
    print(
        f"{'run':26s} {'measured':>9s} {'predicted':>9s} {'error':>7s} {'fwd':>6s} {'bwd':>6s} {'opt':>6s} "
        f"{'measured':>9s} {'predicted':>9s} {'error':>7s}"
    )
    for line in lines:
        if "error" in line:
            print(f"{line['name']:26s} {line['measured_s']:8.4f}s  {line['error']}")
            continue
        phases = " ".join(f"{line[key]:+6.0%}" if (key := f"error_{p}") in line else "     -" for p in PHASES)
        timed = not math.isnan(line["measured_s"])
        measured = f"{line['measured_s']:8.4f}s" if timed else f"{'-':>9s}"
        error = f"{line['error_time']:+7.1%}" if timed else f"{'-':>7s}"
        print(
            f"{line['name']:26s} {measured} {line['predicted_s']:8.4f}s {error} "
            f"{phases} {line['measured_bytes'] / 2**20:6.0f}MiB {line['predicted_bytes'] / 2**20:6.0f}MiB "
            f"{line['error_memory']:+7.1%}{'' if line['steady'] or not timed else '  (not steady)'}"
        )
    good = [line for line in lines if "error" not in line]
    if not good:
        return
    print(f"\n{len(good)} of {len(lines)} runs predicted")
    print(f"step time   {figures(line['error_time'] for line in good)}")
    steady = [line for line in good if line["steady"]]
    if len(steady) < len(good):
        print(f"  steady only ({len(steady)})  {figures(line['error_time'] for line in steady)}")
    print(f"memory      {figures(line['error_memory'] for line in good)}")
    print(f"in the stated band: {sum(line['in_band'] for line in good)} of {len(good)}")
    wrong, of = wrong_pairs(good)
    print(f"order: {len(wrong)} of {of} pairs that differ by more than 15 % are wrong")
    for quicker, slower in wrong[:12]:
        print(f"  {quicker} is quicker than {slower}")
    for kind in sorted({line["kind"] for line in good}):
        own = [line for line in good if line["kind"] == kind]
        print(
            f"  {kind:26s} {len(own):2d}  time {figures(line['error_time'] for line in own)}"
            f"   memory {figures(line['error_memory'] for line in own)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truth", type=Path, metavar="FILE", help="what train.py wrote; without it, train now")
    parser.add_argument("--device", required=True, metavar="FILE", help="what `windtunnel calibrate` wrote, or GPU:1")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a run, or a text in its name")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the table as CSV")
    options = parser.parse_args()
    truth = truth_of(options.truth, options.only)
    device = options.device if ":" in options.device else f"{options.device}:1"
    rows = [row for row in truth["runs"] if "error" not in row]
    if options.only:
        rows = [row for row in rows if any(text in row["name"] for text in options.only)]
    print(f"{truth['device']}, {truth['threads']} threads, torch {truth['software']['torch']}, {truth['date']}\n")
    lines = [compared(row, device) for row in rows]
    show(lines)
    if options.write and lines:
        fields = list(dict.fromkeys(key for line in lines for key in line))
        with options.write.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fields, lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)


if __name__ == "__main__":
    main()
