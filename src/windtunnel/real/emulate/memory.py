"""Memory of the real rank: what its real allocator held at most in a step, by category, and at which op.

On a CPU, PyTorch's profiler writes every allocation and release of its allocator, with the op and the Python frames
around it, but no release of a block that is older than the profile. So two steps are profiled, and what Python can
reach is looked at twice, before the first and between the two:

    peak = what is left of what was live before the first + the highest running sum of events at and in the second

Gradients that `zero_grad` lets go are such older blocks: gone at the second look, though nothing was logged. On a GPU
the caching allocator keeps these figures itself (`torch.cuda.memory_stats`).

Categories: parameters, gradients and optimizer state by the addresses of the optimizer's tensors; communication where
the allocation lies inside an op of c10d; the rest of what is live at the peak is activations and temporaries.
"""

from __future__ import annotations

import functools
import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

    from windtunnel.real.capture.replacements import Replacements

MARK, OPTIMIZER_MARK = "windtunnel: step ends", "windtunnel: optimizer begins"
CATEGORIES = ("parameters", "gradients", "optimizer", "communication", "activations and temporaries", "other")


@dataclass(frozen=True)
class Peak:
    """The fullest instant of a step."""

    allocated_bytes: int
    reserved_bytes: int  # 0: the allocator keeps nothing back (CPU)
    categories: Mapping[str, int]  # they sum to `allocated_bytes`; empty where not told apart
    op: str = ""
    place: str = ""  # file:line of the script
    stack: tuple[str, ...] = ()  # innermost first
    events: int = 0  # allocations and releases in the step
    timeline: tuple[tuple[float, int], ...] = ()  # seconds from the step's begin, bytes; thinned

    def to_dict(self) -> dict[str, object]:
        """The peak as JSON-able data."""
        return asdict(self)


class Event(NamedTuple):
    """One line of the allocator's log."""

    at: float  # microseconds
    bytes: int  # < 0: released
    address: int
    thread: object


class Around(NamedTuple):
    """An op or a Python frame."""

    begin: float
    ended: float
    name: str
    python: bool


@dataclass
class Log:
    """What a profiler's trace says about memory, in order of time."""

    events: list[Event] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)  # when steps ended
    optimizers: list[float] = field(default_factory=list)  # when the optimizer began
    spans: dict[object, list[Around]] = field(default_factory=dict)  # by thread


def read_log(document: Mapping[str, Any]) -> Log:
    """The log in the profiler's Chrome trace."""
    log = Log()
    for event in document.get("traceEvents", ()):
        name, phase = str(event.get("name", "")), event.get("ph")
        if name == "[memory]":
            arguments = event["args"]
            if arguments.get("Device Type") == 0:
                log.events.append(
                    Event(float(event["ts"]), int(arguments["Bytes"]), int(arguments["Addr"]), event.get("tid"))
                )
        elif phase == "X" and name == MARK:
            log.steps.append(float(event["ts"]))
        elif phase == "X" and name == OPTIMIZER_MARK:
            log.optimizers.append(float(event["ts"]))
        elif phase == "X" and event.get("cat") in ("cpu_op", "python_function", "user_annotation"):
            begin = float(event["ts"])
            span = Around(begin, begin + float(event["dur"]), name, event.get("cat") == "python_function")
            log.spans.setdefault(event.get("tid"), []).append(span)
    log.events.sort(key=lambda event: event.at)
    log.steps.sort()
    for spans in log.spans.values():
        spans.sort(key=lambda span: (span[0], -span[1]))
    return log


def peak_of(
    log: Log,
    before_bytes: int,
    owned: Mapping[str, Mapping[int, int]],
    gradients: Iterable[int] = (),
    folders: Sequence[str] = (),
    *,
    left: Iterable[int] | None = None,
) -> Peak | None:
    """The peak of the last whole step of a log; None where it holds none.

    Args:
        log: Of two steps or more.
        before_bytes: Live when the log begins.
        owned: By category, address -> bytes of what was live then.
        gradients: Addresses of gradients before the optimizer.
        folders: A file that lies in one of them is the script's.
        left: Addresses of all that was live when the last step began; None: all of `owned` is left.
    """
    if len(log.steps) < 2:
        return None
    begin, ended = log.steps[-2:]
    optimizer = next((at for at in log.optimizers if begin < at < ended), ended)
    wanted, kept_gradients = set(gradients), set[Event]()
    live: dict[int, Event] = {}
    level = before_bytes
    owned_live = {address: (category, size) for category, of in owned.items() for address, size in of.items()}
    still = None if left is None else set(left)
    best, at, snapshot, owned_snapshot = -1, begin, {}, {}
    in_step = 0
    timeline: list[tuple[float, int]] = []
    for event in log.events:
        if event.at > ended:
            break
        if event.at >= begin and best < 0:
            for address in [number for number in owned_live if still is not None and number not in still]:
                level -= owned_live.pop(address)[1]  # let go without a line in the log
            best, at, snapshot, owned_snapshot = level, begin, dict(live), dict(owned_live)
        if event.at >= optimizer and not kept_gradients:
            kept_gradients = {live[address] for address in wanted if address in live}
        if event.bytes > 0:
            if event.address in owned_live:  # so what lay there is gone
                level -= owned_live.pop(event.address)[1]
            live[event.address] = event
            level += event.bytes
        else:
            event_before = live.pop(event.address, None)
            owner = owned_live.pop(event.address, None)
            # The release of what was there before the log carries no size.
            level += event.bytes if event_before is not None or owner is None else -owner[1]
        if event.at >= begin:
            in_step += 1
            timeline.append(((event.at - begin) / 1e6, level))
            if level > best:
                best, at = level, event.at
                snapshot, owned_snapshot = dict(live), dict(owned_live)
    if best < 0:
        return None
    categories = dict.fromkeys(CATEGORIES, 0)
    for category, size in owned_snapshot.values():
        categories[category] += size
    inside: dict[object, list[tuple[float, float]]] = {}
    for event in snapshot.values():
        if event in kept_gradients:
            categories["gradients"] += event.bytes
        elif _in_communication(log, event, inside):
            categories["communication"] += event.bytes
        else:
            categories["activations and temporaries"] += event.bytes
    categories["other"] += best - sum(categories.values())
    top = next((event for event in log.events if event.at == at and event.bytes > 0), None)
    op, place, stack = _where(log, top, folders) if top is not None else ("", "", ())
    return Peak(best, 0, {k: v for k, v in categories.items() if v}, op, place, stack, in_step, _thin(timeline))


def _in_communication(log: Log, event: Event, spans_by_thread: dict[object, list[tuple[float, float]]]) -> bool:
    if event.thread not in spans_by_thread:
        spans = log.spans.get(event.thread, ())
        spans_by_thread[event.thread] = [
            (begin, end) for begin, end, name, _ in spans if name.startswith(("c10d::", "_c10d_"))
        ]
    spans_of = spans_by_thread[event.thread]
    place = bisect_right(spans_of, (event.at, float("inf"))) - 1
    return place >= 0 and spans_of[place][1] >= event.at


def _where(log: Log, event: Event, folders: Sequence[str]) -> tuple[str, str, tuple[str, ...]]:
    """The op, the script's line, and all frames, innermost first, around an event."""
    around = [span for span in log.spans.get(event.thread, ()) if span[0] <= event.at <= span[1]]
    ops = [name for _, _, name, python in around if not python and not name.startswith("windtunnel")]
    frames = [name for _, _, name, python in reversed(around) if python]
    places = [place for place in map(_place_of, frames) if place]
    own = next((place for place in places if _is_own(place, folders)), "")
    op = next((name for name in reversed(ops) if not name.endswith(("::empty", "::empty_strided", "::resize_"))), "")
    return op or (ops[-1] if ops else ""), own, tuple(places[:24])


def _is_own(place: str, folders: Sequence[str]) -> bool:
    """The profiler names files from the folder of `sys.path` that they lie in."""
    file = Path(place.rpartition(":")[0])
    return any((Path(folder) / file).is_file() for folder in folders) and "site-packages" not in place


def _place_of(frame: str) -> str:
    """`train.py(33): main` as `train.py:33`; "" for built-in functions."""
    head, separator, _ = frame.partition("): ")
    path, bracket, line = head.rpartition("(")
    return f"{path}:{line}" if separator and bracket and line.isdigit() else ""


def _thin(timeline: Sequence[tuple[float, int]], most: int = 400) -> tuple[tuple[float, int], ...]:
    """At most so many points, the highest of each stretch."""
    if len(timeline) <= most:
        return tuple(timeline)
    width = -(-len(timeline) // most)
    return tuple(max(timeline[at : at + width], key=lambda point: point[1]) for at in range(0, len(timeline), width))


# ----------------------------------------------------------------------------------------------------- with PyTorch


def live_tensors(optimizers: Iterable[torch.optim.Optimizer]) -> tuple[int, dict[str, dict[int, int]]]:
    """Bytes of all storages on the CPU that Python can reach, and by category their addresses and sizes."""
    import gc
    import warnings

    import torch

    owned: dict[str, dict[int, int]] = {category: {} for category in CATEGORIES}
    seen: dict[int, int] = {}

    def take(category: str, tensor: torch.Tensor) -> None:
        if not isinstance(tensor, torch.Tensor):
            return
        local = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
        if local.device.type != "cpu" or local.layout is not torch.strided:
            return
        storage = local.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if address and size and address not in seen:
            seen[address] = size
            owned[category][address] = size

    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                take("parameters", parameter)
                take("gradients", parameter.grad)
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                take("optimizer", value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for thing in gc.get_objects():
            if type(thing) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
                take("other", thing)
    return sum(seen.values()), {category: entry for category, entry in owned.items() if entry}


def gradient_addresses(optimizers: Iterable[torch.optim.Optimizer]) -> set[int]:
    """Where gradients lie now."""
    addresses = set()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    local = getattr(parameter.grad, "_local_tensor", parameter.grad)
                    addresses.add(local.untyped_storage().data_ptr())
    return addresses


@contextmanager
def _silence() -> Iterator[None]:
    """The profiler's library writes a line of its own on standard error, from C++."""
    import os
    import sys

    sys.stderr.flush()
    error_stream, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(error_stream, 2)
        os.close(error_stream)
        os.close(nothing)


_ours: list[bool] = []  # not empty while we make a profiler


def watch_profilers(replacements: Replacements, seen: Callable[[], None]) -> None:
    """Have `seen` called before the script makes a profiler of its own: two at once end the process."""
    import torch

    for kind in (torch.profiler.profile, torch.autograd.profiler.profile):
        init = kind.__init__

        @functools.wraps(init)
        def of_the_script(self: object, *args: object, _made: Callable[..., None] = init, **kwargs: object) -> None:
            if not _ours:
                seen()
            _made(self, *args, **kwargs)

        replacements.set(kind, "__init__", of_the_script)


class MemoryWatch:
    """Profiles two steps of a script on the CPU. Start it at the end of one step, stop it two steps later."""

    def __init__(self) -> None:
        self._profiler: torch.profiler.profile | None = None
        self.before_bytes = 0
        self.owned: dict[str, dict[int, int]] = {}
        self.gradients: set[int] = set()
        self._looks: list[set[int]] = []  # addresses of what was live at each mark

    def start(self, optimizers: Iterable[object], *, stack: bool = True) -> bool:
        """Whether it could: a script that profiles itself cannot be profiled. `stack`: Python frames too."""
        import torch

        self.before_bytes, self.owned = live_tensors(optimizers)
        cpu = [torch.profiler.ProfilerActivity.CPU]
        _ours.append(True)
        try:
            with _silence():
                profiler = torch.profiler.profile(
                    activities=cpu, profile_memory=True, with_stack=stack, record_shapes=False
                )
                profiler.start()
        except RuntimeError:
            return False
        finally:
            _ours.pop()
        self._profiler = profiler
        return True

    def mark(self, optimizers: Iterable[object]) -> None:
        """A step ends."""
        _, owned = live_tensors(optimizers)
        self._looks.append({address for addresses in owned.values() for address in addresses})
        self._say(MARK)

    def _say(self, text: str) -> None:
        import torch

        if self._profiler is not None:
            with torch.profiler.record_function(text):
                pass

    def note_gradients(self, optimizers: Iterable[object]) -> None:
        """The optimizer begins."""
        if self._profiler is not None:
            self.gradients = gradient_addresses(optimizers)
            self._say(OPTIMIZER_MARK)

    def stop(self, folder: Path, folders: Sequence[str], name: str = "") -> Peak | None:
        """The peak of the last step; `folder` holds the trace for a moment, under a `name` of its own."""
        if self._profiler is None:
            return None
        log, left = read_log(self.trace(folder, name)), self._looks[-2] if len(self._looks) > 1 else None
        return peak_of(log, self.before_bytes, self.owned, self.gradients, folders, left=left)

    def abandon(self) -> None:
        """End the profile; nothing is known."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            with _silence():
                profiler.stop()

    def trace(self, folder: Path, name: str = "") -> dict[str, object]:
        """End the profile; its Chrome trace."""
        profiler, self._profiler = self._profiler, None
        assert profiler is not None, "it was started"
        with _silence():
            profiler.stop()
        path = folder / f"memory_trace{name}.json"
        profiler.export_chrome_trace(str(path))
        try:
            document: dict[str, object] = json.loads(path.read_text())
        finally:
            path.unlink(missing_ok=True)
        return document


class DevicePeak:
    """What PyTorch's caching allocator says of the current device, less what is only there to play peers."""

    def __init__(self) -> None:
        self._allocated = self._reserved = 0  # peaks before the allocator's figures were last reset
        self._begun = False

    def begin(self) -> None:
        """Look at what comes from here on."""
        import torch

        self._allocated = self._reserved = 0
        self._begun = True
        torch.cuda.reset_peak_memory_stats()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What is allocated in here and gone at the end is ours, and no part of the peak."""
        if not self._begun:  # asking the allocator takes the host time
            yield
            return
        import torch

        before = torch.cuda.memory_stats()
        yield
        peak = "allocated_bytes.all.peak"
        if torch.cuda.memory_stats().get(peak, 0) > before.get(peak, 0):
            self._allocated = max(self._allocated, int(before.get(peak, 0)))
            self._reserved = max(self._reserved, int(before.get("reserved_bytes.all.peak", 0)))
            torch.cuda.reset_peak_memory_stats()  # to what is allocated now

    def read(self) -> Peak | None:
        """None where the script used no GPU."""
        import torch

        if not torch.cuda.is_available() or not torch.cuda.is_initialized():
            return None
        statistics = torch.cuda.memory_stats()
        return Peak(
            max(self._allocated, int(statistics.get("allocated_bytes.all.peak", 0))),
            max(self._reserved, int(statistics.get("reserved_bytes.all.peak", 0))),
            {},
            events=int(statistics.get("allocation.all.allocated", 0)),
        )
