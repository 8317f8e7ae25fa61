"""Train the runs of configs.yaml on this device and write down what happened: the truth that predictions are held to.

    python validation/one_device/train.py --write truth.json             all runs, each in its own process
    python validation/one_device/train.py --only 34m-fp32 --only moe     runs of that name, or with that text in it
    python validation/one_device/train.py --write truth.json --resume    only what the file lacks or was disturbed
    python validation/one_device/train.py --write truth.json --calibrate my-device.yaml     and calibrate in between
    python validation/one_device/train.py --write-configs DIR            their config.json, for `windtunnel predict`

A step is: forward and backward of each micro-batch, AdamW, zero_grad(set_to_none=True). The first three steps
run under instruments (profiler, dispatch mode) and give memory and ops, never times; of the `--steps` plain steps that
follow, the first three are dropped, and the median of the rest is the step time.

The machine is watched before, between and after the timed steps (`machine.py`): a step counts when it ran as usual. A
run waits for such a time, and is steady when five of its steps count and other processes took at most 5 % of the
machine. Else it is repeated, up to three times; if none is steady, the one in which most steps count is kept and
flagged.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from cases import Case, chosen_cases
from in_turns import Calibrating
from machine import Reference, counted, cpu_seconds, synchronize, wait_for_usual

HERE = Path(__file__).parent
WARM_STEPS = 3
OTHERS_MOST = 0.05  # of the machine, while steps are timed: who is busy all the time does not show in the reference
ATTEMPTS = 3
LEAST_TIMED, TIMED_SECONDS = 5, 7.0  # a slow run stops early: after five steps that count and seven seconds
MOST_SECONDS = 40.0  # of steps, however few of them count
LEARNING_RATE = 3e-4
# PyTorch's own default is the foreach form on CUDA and a loop over single tensors on a CPU.
ADAMW = {"default": {}, "single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
CASE_SECONDS_MOST = 600.0


def run_one(
    case: Case, steps: int, threads: int, device: str, adamw: str = "default", usual_s: float = math.nan
) -> dict[str, Any]:
    """Train one case in this process. `usual_s`: what the reference usually takes, if known."""
    import torch
    from model import build as build_model
    from model import parameters_in

    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    torch.set_num_threads(threads)
    torch.manual_seed(17)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[case.precision]
    reference = Reference(torch, device)
    spans: dict[str, list[float]] = {}

    def build() -> tuple[Any, Any, Any]:
        model = build_model(case.config, case.seq, dtype, device, case.recompute)
        if case.compile:
            model.compile_parts()
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, **ADAMW[adamw])
        shape = (2, case.accumulate, case.batch, case.seq)
        return model, optimizer, torch.randint(0, case.config["vocab_size"], shape, device=device)

    def step(mark: Callable[[str], Any]) -> float:
        total = 0.0
        for micro in range(case.accumulate):
            with mark("forward"):
                loss = model(data[0, micro], data[1, micro]) / case.accumulate
            with mark("backward"):
                loss.backward()
            total += loss.detach()  # stays on the device
            del loss
        with mark("optimizer"):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return total

    measured: dict[str, Any] = {}
    if device == "cuda":
        model, optimizer, data = build()
        first = float(step(_unmarked))
        measured |= _cuda_memory(torch, step)
        step(_unmarked)
    else:
        from memory import AllocatorMemory
        from torch.profiler import record_function

        with AllocatorMemory() as memory:
            model, optimizer, data = build()
            first = float(step(_unmarked))  # makes the moments
            with record_function("step"):
                step(record_function)
        measured |= _cpu_memory(memory)
    if not case.compile:  # a dispatch mode would see into neither the compiled graph nor its kernels
        measured |= _ops(step, model, optimizer, data)
    measured["resident_max_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    measured = {"name": case.name, "parameters": parameters_in(model), **measured}
    if not steps:
        return measured
    marks = _Spans(spans)
    last = None
    for _ in range(WARM_STEPS):
        step(_unmarked)
    synchronize(torch, device)
    spans.clear()
    between, times, faults = [reference.median()], [], []
    clock_begun, busy_begun = time.perf_counter(), cpu_seconds()
    own_begun = time.process_time()
    while not _enough(times, counted(between, usual_s), steps - WARM_STEPS):
        pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        begun = time.perf_counter()
        last = step(marks if device == "cpu" else _unmarked)
        synchronize(torch, device)
        times.append(time.perf_counter() - begun)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages)
        between.append(reference.seconds())
    wall = time.perf_counter() - clock_begun
    own = time.process_time() - own_begun
    busy, stolen = (one - other for one, other in zip(cpu_seconds(), busy_begun, strict=True))
    count = counted(between, usual_s)
    chosen = [at for at, counts in enumerate(count) if counts] or range(len(times))
    low, middle, high = _quantiles([times[at] for at in chosen])
    phases = {
        name: statistics.median(sum(values[at * per : (at + 1) * per]) for at in chosen)
        for name, values in spans.items()
        for per in (len(values) // len(times),)
    }
    return {
        **measured,
        "step_s": middle,
        "step_p10_s": low,
        "step_p90_s": high,
        "step_of_all_s": statistics.median(times),
        "steps_timed": len(times),
        "steps_counted": sum(count),
        "phases_s": phases,
        "loss_first": first,
        "loss_last": float(last) if last is not None else None,
        "reference_s": between,
        "others_share": max(0.0, busy - own) / (wall * (os.cpu_count() or 1)),  # of the machine, used by others
        "stolen_share": stolen / (wall * (os.cpu_count() or 1)),
        "page_faults_per_step": statistics.median(faults),
    }


def _enough(times: Sequence[float], count: Sequence[bool], wanted: int) -> bool:
    """Of steps that count, or of trying."""
    took = sum(times)
    good = sum(count)
    return good >= wanted or (good >= LEAST_TIMED and took > TIMED_SECONDS) or took > MOST_SECONDS


class _Spans:
    """Seconds of each marked phase, by the host's clock."""

    def __init__(self, spans: dict[str, list[float]]) -> None:
        self._spans, self._name, self._begun = spans, "", 0.0

    def __call__(self, name: str) -> _Spans:
        self._name = name
        return self

    def __enter__(self) -> None:
        self._begun = time.perf_counter()

    def __exit__(self, *error: Any) -> None:
        self._spans.setdefault(self._name, []).append(time.perf_counter() - self._begun)


class _Unmarked:
    def __enter__(self) -> None: ...

    def __exit__(self, *error: Any) -> None: ...


def _unmarked(name: str) -> _Unmarked:
    return _Unmarked()


def _cpu_memory(memory: Any) -> dict[str, Any]:
    from memory import PHASES

    whole = memory.during("step")
    moments = {"between_steps": whole["end"]}
    for phase in PHASES:
        found = memory.inside(phase, "step")
        moments[f"{phase}_peak"] = max(one["peak"] for one in found)
    moments["forward_end"] = max(one["end"] for one in memory.inside("forward", "step"))
    return {"peak_allocated_bytes": whole["peak"], "memory_moments": moments}


def _cuda_memory(torch: Any, step: Callable[[Any], Any]) -> dict[str, Any]:
    peaks: dict[str, int] = {}
    ends: dict[str, int] = {}

    class Mark:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()

        def __exit__(self, *error: Any) -> None:
            torch.cuda.synchronize()
            peaks[self.name] = max(peaks.get(self.name, 0), torch.cuda.max_memory_allocated())
            ends[self.name] = max(ends.get(self.name, 0), torch.cuda.memory_allocated())

    reserved = torch.cuda.max_memory_reserved()
    step(Mark)
    moments = {f"{name}_peak": value for name, value in peaks.items()}
    moments |= {"forward_end": ends["forward"], "between_steps": torch.cuda.memory_allocated()}
    return {
        "peak_allocated_bytes": max(peaks.values()),
        "peak_reserved_bytes": max(reserved, torch.cuda.max_memory_reserved()),
        "memory_moments": moments,
    }


def _ops(step: Callable[[Any], Any], model: Any, optimizer: Any, data: Any) -> dict[str, Any]:
    from memory import StorageLedger, living_tensors

    ledger = StorageLedger()
    ledger.begin([*living_tensors(model, optimizer), data])
    with ledger:
        step(_unmarked)
    order = hashlib.sha256("\n".join(ledger.ops).encode()).hexdigest()[:12]
    return {
        "ledger_peak_bytes": ledger.peak,
        "ops": len(ledger.ops),
        "ops_order": order,
        "ops_counts": ledger.counts(),
    }


def _quantiles(values: list[float]) -> tuple[float, float, float]:
    cuts = statistics.quantiles(values, n=10, method="inclusive") if len(values) > 1 else values
    return cuts[0], statistics.median(values), cuts[-1]


def device_of(device: str) -> dict[str, Any]:
    """What the numbers were measured on."""
    import torch

    if device == "cuda":
        name = torch.cuda.get_device_name()
    else:
        lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "CPU")
    system = {"torch": torch.__version__, "python": platform.python_version(), "os": platform.platform()}
    return {"device": name, "kind": device, "cores": os.cpu_count(), "date": str(date.today()), "software": system}


def measured_case(case: Case, options: argparse.Namespace, looks: list[float]) -> dict[str, Any]:
    """The case in fresh processes until one was steady; a failure is an `error`. `looks` at the reference so far are
    added to.
    """
    best: dict[str, Any] | None = None
    for attempt in range(1, options.attempts + 1):
        command = [sys.executable, str(HERE / "train.py"), "--one", case.name, "--steps", str(options.steps)]
        command += ["--threads", str(options.threads), "--device", options.device, "--configs", str(options.configs)]
        if options.steps:
            usual_s = statistics.median(looks) if looks else math.nan
            looks += wait_for_usual(options.device, options.threads, options.patience, usual_s)
            command += ["--usual", str(statistics.median(looks))]
        command += ["--adamw", options.adamw]
        environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "KINETO_LOG_LEVEL": "5"}
        if options.malloc == "keep":
            environment |= {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=CASE_SECONDS_MOST, check=False
            )
        except subprocess.TimeoutExpired:
            return best or {"name": case.name, "error": f"not done after {CASE_SECONDS_MOST:.0f} s"}
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:] or [f"ended with status {done.returncode}"]
            return best or {"name": case.name, "error": reason[0]}
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        found["attempt"] = attempt
        if not options.steps:
            best = {**found, "steady": False}
            break
        found["steady"] = found["steps_counted"] >= LEAST_TIMED and found["others_share"] <= OTHERS_MOST
        looks += found["reference_s"]
        if best is None or found["steady"] or found["steps_counted"] > best["steps_counted"]:
            best = found
        if best["steady"]:
            break
    assert best is not None
    return {**best, "case": {**asdict(case), "plan": case.plan, "config": case.config}}


def write(path: Path, head: dict[str, Any], rows: dict[str, dict[str, Any]]) -> None:
    """One line per run, so that a change shows as a line."""
    lines = [json.dumps(row, separators=(", ", ": ")) for row in rows.values()]
    text = json.dumps(head, indent=1)[:-2] + ',\n "runs": [\n' + ",\n".join(lines) + "\n]}\n"
    path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a run, or a text in its name")
    parser.add_argument("--write", type=Path, metavar="FILE", help="results as JSON, after each run")
    parser.add_argument("--resume", action="store_true", help="keep what FILE holds and is steady")
    parser.add_argument(
        "--steps", type=int, default=12, help="plain steps; the first three are dropped; 0: memory and ops only"
    )
    parser.add_argument("--attempts", type=int, default=ATTEMPTS, help="at most, per run, until one is steady")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: not yet run on a GPU")
    parser.add_argument("--adamw", choices=tuple(ADAMW), default="default", help="form of the optimizer")
    parser.add_argument("--malloc", choices=("default", "keep"), default="default", help="keep: never give pages back")
    parser.add_argument("--configs", type=Path, default=HERE / "configs.yaml")
    parser.add_argument("--write-configs", type=Path, metavar="DIR")
    parser.add_argument(
        "--patience", type=float, default=120.0, help="seconds to wait for a usual machine, per attempt"
    )
    parser.add_argument("--calibrate", type=Path, metavar="FILE", help="`windtunnel calibrate`, a turn before each run")
    parser.add_argument("--turn", type=float, default=20.0, metavar="S", help="of calibrating")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--usual", type=float, default=math.nan, help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = chosen_cases([options.one] if options.one else options.only, options.configs)
    if options.one:
        one = run_one(cases[0], options.steps, options.threads, options.device, options.adamw, options.usual)
        print(json.dumps(one))
        return
    if options.write_configs:
        for case in cases:
            folder = options.write_configs / case.name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text(json.dumps(case.config, indent=2) + "\n", encoding="utf-8")
        return
    head = {**device_of(options.device), "threads": options.threads, "malloc": options.malloc, "adamw": options.adamw}
    head["steps"] = options.steps
    rows: dict[str, dict[str, Any]] = {}
    if options.resume and options.write and options.write.exists():
        rows = {row["name"]: row for row in json.loads(options.write.read_text(encoding="utf-8"))["runs"]}
    looks = [look for row in rows.values() for look in row.get("reference_s", ())]
    begun = time.perf_counter()
    titles = ("step", "p10", "p90", "peak", "ops", "count", "others")
    print(f"{'run':28s} {' '.join(f'{t:>{w}s}' for t, w in zip(titles, (9, 8, 8, 9, 6, 6, 6), strict=True))}  loss")
    cases = [case for case in cases if not rows.get(case.name, {}).get("steady")]
    calibrating = None
    if options.calibrate and cases:
        device = "cuda:0" if options.device == "cuda" else "cpu"
        calibrating = Calibrating(options.calibrate, device, options.threads, len(cases), options.turn)
    for case in cases:
        if calibrating:
            calibrating.turn()
        rows[case.name] = row = measured_case(case, options, looks)
        if options.write:
            write(options.write, head, rows)
        if "error" in row:
            print(f"{case.name:28s} {row['error']}", flush=True)
            continue
        if "step_s" not in row:
            print(f"{case.name:28s} {row['peak_allocated_bytes'] / 2**20:5.0f} MiB {row.get('ops', 0):6d}", flush=True)
            continue
        print(
            f"{case.name:28s} {row['step_s']:7.4f} s {row['step_p10_s']:8.4f} {row['step_p90_s']:8.4f} "
            f"{row['peak_allocated_bytes'] / 2**20:5.0f} MiB {row.get('ops', 0):6d} "
            f"{row['steps_counted']:3d}/{row['steps_timed']:2d} {row['others_share']:6.1%}  "
            f"{row['loss_first']:.2f} -> {row['loss_last']:.2f}" + ("" if row["steady"] else "  NOT STEADY"),
            flush=True,
        )
    if calibrating:
        calibrating.finish()
    loose = [row["name"] for row in rows.values() if not row.get("steady") and (options.steps or "error" in row)]
    print(
        f"{len(rows)} runs in {time.perf_counter() - begun:.0f} s; not steady or failed: {', '.join(loose) or 'none'}"
    )


if __name__ == "__main__":
    main()
