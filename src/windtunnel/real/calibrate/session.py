"""A calibration from beginning to end: probe, measure the most useful point next until the budget is spent, write.

Resumable: every point goes to the journal at once, with the budget spent so far; a later run with the same --out reads
it and goes on with what is left of the budget. A reference kernel is timed between points: what was measured while that
was not as usual is measured again (`interference_filter.py`). The file says how steady it was; nothing is corrected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.physics.hardware.calibration import LARGER_PROCESSES
from windtunnel.real.calibrate import cuda_extras, host_costs
from windtunnel.real.calibrate.choose import Limits, Progress, Rates, next_point
from windtunnel.real.calibrate.device import Device
from windtunnel.real.calibrate.document import cluster_document, load_document
from windtunnel.real.calibrate.interference_filter import UNUSUAL, UnusualSpells
from windtunnel.real.calibrate.journal import Journal, JournalContents
from windtunnel.real.calibrate.kinds import KINDS, STORED_AS, Curve, Shape, curves
from windtunnel.real.calibrate.timing import (
    CudaTimer,
    Effort,
    HostTimer,
    Timer,
    Timing,
    give_back_pages,
    keep_pages,
    measure,
)
from windtunnel.real.calibrate.torch_ops import Pool, build

if TYPE_CHECKING:
    from types import ModuleType

_MOST_IN_RING = 128
_MEMORY_SHARE = 0.4  # of what is available, for one point
_HELD_SHARE = 0.3  # of what is available, from which on a CPU's heap gives free pages back
_REFERENCE_EVERY_S, _DRIFT = 2.0, 0.10
_AGAIN_SHARE = 0.5  # of the time so far that measuring again may take
_NEEDED = (("gemm", "forward"), ("copy", "forward"))  # the peak rates come from these
_DEARER_PAGES = 2.0  # times the usual cost: worth a note
_LEAST_PAGE_S_PER_BYTE = 5e-11  # less is none: a heap that keeps its pages
_COMPILE_SHARE, _LEAST_FOR_COMPILE_S = 0.2, 60.0
_PAGES_SHARE, _LEAST_FOR_PAGES_S = 0.15, 60.0  # for those of large processes

Report = Callable[[float, float, str], None]  # spent seconds, budget seconds, what is being measured


@dataclass(slots=True)
class Measurements:
    """Everything measured so far."""

    points: dict[Curve, dict[Shape, Timing]] = field(default_factory=dict)
    refused: dict[Curve, list[Shape]] = field(default_factory=dict)
    values: dict[str, dict[str, float]] = field(default_factory=dict)  # host, memory, overlap
    reference_s: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def n_points(self) -> int:
        """Points over all curves."""
        return sum(map(len, self.points.values()))


def recalled(earlier: JournalContents) -> Measurements:
    """What the records of a journal say. Records that make no sense are left out."""
    measured = Measurements()
    for record in earlier.records:
        try:
            _recall(measured, record)
        except (KeyError, TypeError, ValueError):
            continue
    return measured


def _recall(measured: Measurements, record: dict[str, Any]) -> None:
    if "kind" in record:
        curve = Curve(str(record["kind"]), str(record["phase"]), str(record["dtype"]))
        if curve.phase not in KINDS[curve.kind].weights:
            raise ValueError(curve.phase)
        shape = tuple(int(extent) for extent in record["shape"])
        if record.get("refused"):
            measured.refused.setdefault(curve, []).append(shape)
        else:
            low, middle, high = (float(record[name]) for name in ("p10_s", "median_s", "p90_s"))
            if not 0 < low <= middle <= high:
                raise ValueError("times")
            timing = Timing(middle, low, high, *(int(record[name]) for name in ("n", "outliers", "disturbed")))
            measured.points.setdefault(curve, {})[shape] = timing
    elif "group" in record:
        measured.values.setdefault(str(record["group"]), {})[str(record["name"])] = float(record["value"])
    elif "reference_s" in record:
        measured.reference_s.append(float(record["reference_s"]))
    elif "note" in record:
        measured.notes.append(str(record["note"]))


@dataclass(slots=True)
class Session:
    """One run: the device, where points go, and how long it may take."""

    torch: ModuleType
    device: Device
    journal: Journal
    results: Measurements
    budget_s: float
    spent_before_s: float
    start_s: float  # time.monotonic() when the command started
    report: Report
    only: tuple[str, ...] = ()
    pools: dict[str, Pool] = field(default_factory=dict)
    grad_call_s: float = 0.0

    @property
    def spent_s(self) -> float:
        """Seconds of the budget that are spent, by earlier runs too."""
        return self.spent_before_s + time.monotonic() - self.start_s

    def note(self, text: str) -> None:
        """Remember something that the reader of the file should know."""
        if text not in self.results.notes:
            self.results.notes.append(text)
            self.journal.append({"note": text})

    def value(self, group: str, name: str, value: float) -> None:
        """Keep one number of host, memory or overlap."""
        self.results.values.setdefault(group, {})[name] = value
        self.journal.append({"group": group, "name": name, "value": value, "spent_s": round(self.spent_s, 3)})

    def run(self) -> None:
        """Measure until the budget is spent or nothing is left."""
        torch, device = self.torch, self.device
        timer: Timer = CudaTimer(torch, device.spec) if device.kind == "cuda" else HostTimer()
        self.report(self.spent_s, self.budget_s, "probing")
        self.grad_call_s = host_costs.grad_call_s(torch, device.spec) if device.kind == "cpu" else 0.0
        self._host_costs()
        keeps_pages = device.kind == "cpu" and keep_pages()
        if device.kind == "cpu" and not keeps_pages:
            self.note("the heap could not be told to keep its pages: times of large tensors hold page faults")
        rates = self._probe(timer)
        limits = Limits(min(max(self.budget_s / 1000, 0.03), 1.0), _MEMORY_SHARE * device.available_bytes)
        effort = Effort(min(max(self.budget_s / 2400, 0.015), 0.3))
        progress = [Progress.start(curve, rates) for curve in curves(device.kind, device.dtypes, self.only)]
        for curve_progress in progress:
            for shape, timing in self.results.points.get(curve_progress.curve, {}).items():
                curve_progress.add(shape, timing.median_s)
            for shape in self.results.refused.get(curve_progress.curve, []):
                curve_progress.add(shape, None)
        next_reference, again_s = 0.0, 0.0
        spells: UnusualSpells[tuple[Progress, Shape]] = UnusualSpells.from_references(self.results.reference_s)
        needed = [
            curve_progress
            for curve_progress in progress
            if (curve_progress.curve.kind, curve_progress.curve.phase) in _NEEDED
        ]
        while True:
            # Without these there is no file: whatever the budget.
            short = [curve_progress for curve_progress in needed if not curve_progress.seconds]
            if not short and self.spent_s >= self.budget_s:
                break
            if time.monotonic() >= next_reference:
                spells.look(self._time_reference(timer))
                next_reference = time.monotonic() + _REFERENCE_EVERY_S
            before_s = self.spent_s
            again = spells.next_to_repeat() if again_s <= _AGAIN_SHARE * before_s else None
            chosen = again or next_point(short or progress, limits)
            if chosen is None:
                break
            curve_progress, shape = chosen
            self.report(
                self.spent_s,
                self.budget_s,
                f"{curve_progress.curve.key} {curve_progress.curve.dtype} {'x'.join(map(str, shape))}",
            )
            expected = float(curve_progress.expected_s()[curve_progress.shapes.index(shape)])
            curve_progress.add(shape, self._point(curve_progress.curve, shape, expected, timer, effort))
            spells.measured(chosen)
            again_s += self.spent_s - before_s if again else 0.0
            if keeps_pages and _resident_bytes() > _HELD_SHARE * device.available_bytes:
                give_back_pages()
        spells.look(self._time_reference(timer))
        self._left_out(progress)
        self._drift(len(spells.waiting()))
        self.report(self.budget_s, self.budget_s, "done")

    def _left_out(self, progress: Sequence[Progress]) -> None:
        """Say of which ops nothing is known: a prediction takes the data sheet's rates for these."""
        kinds = dict.fromkeys(curve_progress.curve.kind for curve_progress in progress)
        reached = {
            curve_progress.curve.kind for curve_progress in progress if curve_progress.seconds or curve_progress.refused
        }
        lacking = [kind for kind in kinds if kind not in reached]
        if lacking:
            self.note(f"no time was left to measure {', '.join(lacking)}: give more --budget")

    def _pool(self, dtype: str) -> Pool:
        stored = STORED_AS.get(dtype, dtype)
        if stored not in self.pools:
            self.pools[stored] = Pool(self.torch, self.device.spec, stored, self.device.ring_bytes)
        return self.pools[stored]

    def _point(self, curve: Curve, shape: Shape, expected_s: float, timer: Timer, effort: Effort) -> float | None:
        """Measure one point and keep it; None when memory is short."""
        buffer_bytes = KINDS[curve.kind].cost(curve.phase, shape, curve.dtype)[2]
        wanted = -(-self.device.ring_bytes // max(int(buffer_bytes), 1))
        in_memory = _MEMORY_SHARE * self.device.available_bytes // max(buffer_bytes, 1)
        in_time = max(2.0, effort.seconds / max(expected_s, 1e-6))
        ring = int(max(1, min(wanted, in_memory, in_time, _MOST_IN_RING)))
        record = {"kind": curve.kind, "phase": curve.phase, "dtype": curve.dtype, "shape": list(shape)}
        off = self.grad_call_s if curve.phase == "backward" and curve.kind not in ("add", "scatter_add_rows") else 0.0
        try:
            calls = build(self.torch, curve, shape, self._pool(curve.dtype), ring)
            timing = measure(calls, timer, effort, off)
            del calls
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(self.torch, error):
                raise
            if self.device.kind == "cuda":
                self.torch.cuda.empty_cache()
            self.results.refused.setdefault(curve, []).append(shape)
            self.journal.append({**record, "refused": True, "spent_s": round(self.spent_s, 3)})
            self.note(f"{curve.key} {curve.dtype} {list(shape)} did not fit in memory and was left out")
            return None
        self.results.points.setdefault(curve, {})[shape] = timing
        times = {"median_s": timing.median_s, "p10_s": timing.p10_s, "p90_s": timing.p90_s}
        counts = {"n": timing.repetitions, "outliers": timing.outliers, "disturbed": timing.disturbed}
        self.journal.append({**record, **times, **counts, "spent_s": round(self.spent_s, 3)})
        return timing.median_s

    def _host_costs(self) -> None:
        """What is not there yet: a run that was killed in between goes on where it was."""
        torch, device = self.torch, self.device
        on_cpu = device.kind == "cpu"
        if not on_cpu and self._lacks("memory", "context_bytes"):
            cuda_extras.memory_before_anything(torch, device, self.value)
        if self._lacks("host", "launch_eager_s"):
            self.value("host", "launch_eager_s", host_costs.eager_launch_s(torch, device.spec))
        if on_cpu and self._lacks("memory", "context_bytes"):
            self.value("host", "grad_call_s", self.grad_call_s)
            beside = host_costs.calls_beside_ops(torch)
            limit = _PAGES_SHARE * self.budget_s if self.budget_s >= _LEAST_FOR_PAGES_S else 0.0
            new_pages = host_costs.new_pages(torch, device.dtypes, device.available_bytes, limit)
            new_shapes = host_costs.new_shapes(torch, device.dtypes)
            for name, cost in (beside | new_pages | new_shapes).items():
                self.value("host", name, cost)
            self._uneven_pages(new_pages)
            self.value("memory", "context_bytes", float(_resident_bytes()))
        if self.budget_s >= _LEAST_FOR_COMPILE_S and self._lacks("host", "launch_compiled_s"):
            self.report(self.spent_s, self.budget_s, "compiling")
            limit = _COMPILE_SHARE * self.budget_s
            seconds, why = host_costs.compiled_launch_s(device.spec, device.threads, limit)
            if seconds is None:
                self.note(why)
            else:
                self.value("host", "launch_compiled_s", seconds)
        if not on_cpu and self._lacks("host", "launch_graph_s"):
            self.value("host", "launch_graph_s", host_costs.graph_launch_s(torch, device.spec))
        if not on_cpu and not self.results.values.get("overlap"):
            cuda_extras.measure_extras(torch, device, self.value, self.note)

    def _uneven_pages(self, costs: Mapping[str, float]) -> None:
        usual = costs.get("new_page_s_per_byte", 0.0)
        for size, name in LARGER_PROCESSES.items():
            if usual > _LEAST_PAGE_S_PER_BYTE and costs.get(name, 0.0) > _DEARER_PAGES * usual:
                more = costs[name] / usual
                self.note(
                    f"a new page costs {more:.1f} times as much in a process of {size} GiB as in a small one: a "
                    "virtual machine is given memory as it touches it; large steps vary by that"
                )
                return

    def _lacks(self, group: str, name: str) -> bool:
        return name not in self.results.values.get(group, {})

    def _probe(self, timer: Timer) -> Rates:
        """Rates to plan with: a square GEMM in each dtype and a copy."""
        torch, device, effort = self.torch, self.device, Effort(0.05)
        flops = {}
        for dtype in device.dtypes:
            side = 1024 if device.kind == "cpu" else 8192
            calls = build(torch, Curve("gemm", "forward", dtype), (side, side, side), self._pool(dtype), 2)
            flops[dtype] = 2.0 * side**3 / measure(calls, timer, effort).median_s
        size = 32 << 20
        calls = build(torch, Curve("copy", "forward", "bytes"), (size,), self._pool("bytes"), 4)
        rate = 2.0 * size / measure(calls, timer, effort).median_s
        return Rates(flops, rate, self.results.values.get("host", {}).get("launch_eager_s", 1e-6))

    def _time_reference(self, timer: Timer) -> float:
        """Seconds of a small GEMM that is always the same: if it gets slower, the device did."""
        side = 512 if self.device.kind == "cpu" else 4096
        pool = self._pool(self.device.dtypes[0])
        calls = build(self.torch, Curve("gemm", "forward", self.device.dtypes[0]), (side, side, side), pool, 4)
        seconds = measure(calls, timer, Effort(0.02)).median_s
        self.results.reference_s.append(seconds)
        self.journal.append({"reference_s": seconds, "spent_s": round(self.spent_s, 3)})
        return seconds

    def _drift(self, unusual_points: int) -> None:
        """Say how steady the device was, and how many points and repetitions something else disturbed."""
        reference = sorted(self.results.reference_s)
        if len(reference) >= 3:
            middle = reference[len(reference) // 2]
            slow, fast = reference[-1] / middle - 1, 1 - reference[0] / middle
            text = f"a reference kernel, timed {len(reference)} times, stayed within -{fast:.0%} to +{slow:.0%}"
            throttled = "; the device was throttled or busy"
            self.note(text + (throttled if max(slow, fast) > _DRIFT else ""))
        timings = [timing for points in self.results.points.values() for timing in points.values()]
        if unusual_points:
            text = f"{unusual_points} of {len(timings)} points were measured while it was over"
            self.note(f"{text} {UNUSUAL:.0%} off its median: measure again on a quiet machine")
        outliers, total = sum(timing.outliers for timing in timings), sum(timing.repetitions for timing in timings)
        if outliers:
            self.note(f"{outliers} of {total} repetitions took over three times their median")
        never = sum(timing.disturbed == timing.repetitions for timing in timings)
        if never:
            text = f"{never} of {len(timings)} points never had the CPUs to themselves and stand on their quickest runs"
            self.note(f"{text}: measure again on a quiet machine")


def finished_document(device: Device, measured: Measurements, out: Path) -> dict[str, object]:
    """The document of everything found, with the collectives of the file that was there before."""
    values = measured.values
    document = cluster_document(
        device,
        measured.points,
        values.get("host", {}),
        values.get("memory", {}),
        values.get("overlap", {}),
        [*device.notes, *measured.notes],
    )
    document["name"] = out.stem  # so that what a result says to run is the file
    before = load_document(out)
    if before is not None and before["calibration"].get("device") == device.name:
        document["calibration"]["collectives"] = before["calibration"].get("collectives") or {}
        document["scale_out"] = before.get("scale_out") or document["scale_out"]
        document["sources"] |= {key: text for key, text in (before.get("sources") or {}).items() if key == "scale_out"}
    return document


def usable(measured: Measurements, dtypes: Sequence[str]) -> bool:
    """Whether there is enough for a cluster document: a GEMM rate of each dtype and a copy."""
    have = {(curve.kind, curve.dtype) for curve, points in measured.points.items() if points}
    return ("copy", "bytes") in have and all(("gemm", dtype) in have for dtype in dtypes)


def out_of_memory(torch: ModuleType, error: BaseException) -> bool:
    """Whether an error means that memory ran out, on the device or the host."""
    kinds = tuple(kind for kind in (getattr(torch, "OutOfMemoryError", None), MemoryError) if isinstance(kind, type))
    words = str(error).lower()
    return isinstance(error, kinds) or "out of memory" in words or "can't allocate memory" in words


def _resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    import os

    return pages * os.sysconf("SC_PAGE_SIZE")
