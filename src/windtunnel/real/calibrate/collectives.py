"""Collectives between real processes, by size: what gloo or NCCL takes on this machine.

`world_size` processes are spawned, each runs every collective on its own tensor, after a barrier, and times it by its
own clock until the collective has returned (NCCL: until its stream is done). What counts is the slowest rank of each
repetition, and of these, from several rounds through all sizes, the median. Sizes follow nccl-tests: of all_gather the
gathered tensor, of reduce_scatter and all_to_all the tensor that is given, of the others the message itself. NCCL is
not yet run.

On a CPU gloo copies, adds and sends on threads of its own, which compete with those that compute and may wait for the
scheduler's next tick. What that makes of a collective in a step is measured as well: matrix products of some
milliseconds, alone, each followed by the collective, each beside it, and each followed by a queue of them. One that is
waited for adds the time from when the last rank comes to it until the last rank leaves it, by the clock that all have.
So neither ranks that come at different times are part of it, nor what computing takes longer after a wait than alone:
who waits finds that out. Beside computing it adds what that takes longer than alone. Both are means over repetitions;
of several rounds the median, of those in which computing alone took what it usually does: others slow a shared machine
for seconds to minutes.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from windtunnel.errors import SpecError, UserError
from windtunnel.files.write import write_atomically
from windtunnel.process import die_with_parent
from windtunnel.questions.asked.calibrate import CalibrateCollectives
from windtunnel.real.calibrate.device import BUSY, describe, import_torch
from windtunnel.real.calibrate.document import Rows, load_document, to_yaml
from windtunnel.real.calibrate.interference_filter import is_usual
from windtunnel.real.calibrate.timing import quantile

if TYPE_CHECKING:
    from types import ModuleType

    import torch.distributed as dist

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv", "barrier")
SIZES = tuple(1 << exponent for exponent in range(12, 27))  # 4 KiB ... 64 MiB
# Through all kinds and sizes, if each has so long in each: a machine with others on it keeps to one state for seconds.
_ROUNDS, _ROUND_S = 8, 0.3
_LEAST, _MOST = 3, 100  # repetitions of one in a round
_START_S = 120.0  # for processes to import torch and to meet

_SIDE, _COMPUTE_S = 256, 5e-3  # of the matrices that are multiplied, and for how long
_QUEUE = 3  # collectives that are begun at once

Start = Callable[[], "dist.Work"]
Loop = tuple[Sequence[float], Sequence[float]]
Computed = tuple[float, Loop, float, Loop, int]  # a `_Computing`, as JSON


class _Loop(NamedTuple):
    """When a rank, computing between them, came to each communication and left it, by the clock that all have."""

    came: Sequence[float]
    left: Sequence[float]


class _Computing(NamedTuple):
    """Computing of one rank: alone, before a collective that is waited for, beside it, before a queue of them."""

    alone: float  # seconds
    waited: _Loop
    beside: float  # seconds
    queued: _Loop
    products: int  # of matrices, in each of them

    @property
    def product(self) -> float:
        """Seconds of one, alone."""
        return self.alone / self.products


def answer(question: CalibrateCollectives, *, out: Path) -> tuple[Rows, list[str]]:
    """Measure what the question asks, and add it to a calibrated file. Raises as `measure_collectives` does."""
    return measure_collectives(
        out,
        question.world_size,
        question.backend,
        question.budget_s,
        question.threads,
        only=question.only,
        pinned=question.pinned,
    )


def measure_collectives(
    out: Path,
    world_size: int,
    backend: str,
    budget_s: float,
    threads: int | None = None,
    *,
    only: Sequence[str] = (),
    pinned: bool = False,
) -> tuple[Rows, list[str]]:
    """Measure all collectives, and put them into the calibrated file `out`. Rows by kind, and what went wrong.

    `only` these, of `KINDS`; all by default. `pinned`: each process keeps to its own share of the cores, as jobs do
    that pin their ranks.

    Raises:
        UserError: no such backend, too many processes, or no calibrated file to add to.
    """
    if not 2 <= world_size <= 256:
        raise SpecError("--world-size", world_size, "give 2 to 256 processes")
    if not 1 <= budget_s <= 86400:
        raise SpecError("--budget", budget_s, "give 1 to 86400 seconds")
    for kind in only:
        if kind not in KINDS:
            raise SpecError("--only", kind, f"is no collective that is measured; known: {', '.join(KINDS)}")
    document = load_document(out)
    if document is None:
        raise SpecError("--out", str(out), "is not there yet; run `windtunnel calibrate` first, then add collectives")
    torch = import_torch()
    if not torch.distributed.is_available():
        raise UserError("this PyTorch was built without torch.distributed; install one with it")
    if backend == "nccl" and not (torch.distributed.is_nccl_available() and torch.cuda.device_count() >= world_size):
        have = torch.cuda.device_count()
        raise SpecError("--backend", backend, f"needs NCCL and {world_size} GPUs, there are {have}; or give gloo")
    here = describe(torch, "cpu" if backend == "gloo" else "cuda:0", threads)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else 0
    if pinned and cores < world_size:
        raise SpecError("--pinned", world_size, f"processes need a core each, this one may use {cores}")
    rows, notes = _spawn(torch, world_size, backend, budget_s, tuple(only) or KINDS, pinned)
    merged = document["calibration"].setdefault("collectives", {}) or {}
    for kind, measured in rows.items():
        merged.setdefault(kind, {})[f"{backend} {world_size}"] = measured
    document["calibration"]["collectives"] = merged
    own = f"collectives of {backend} {world_size}: each process kept to its own share of the cores"
    older_notes = [note for note in document["calibration"].get("notes") or [] if note != own]
    busy = [note for note in here.notes if note.startswith(BUSY)]
    notes = [*([own] if pinned else []), *busy, *notes]
    document["calibration"]["notes"] = list(dict.fromkeys([*older_notes, *notes]))
    _link(document, rows, here.name)
    write_atomically(out, to_yaml(document).encode())
    return rows, notes


def _link(document: dict[str, Any], rows: Rows, name: str) -> None:
    """The link between devices, from the largest and the smallest message from one to the other."""
    sends = rows.get("send_recv")
    if not sends:
        return
    size, seconds = sends[-1][0], sends[-1][1]
    link = document["scale_out"]
    link["bandwidth"], link["latency"] = f"{size / seconds / 1e9:.4g} GB/s", f"{sends[0][1] * 1e6:.4g} us"
    sources = document.setdefault("sources", {})
    sources["scale_out"] = f"send and receive between processes on {name}"


def _spawn(
    torch: ModuleType, world_size: int, backend: str, budget_s: float, kinds: Sequence[str], pinned: bool
) -> tuple[Rows, list[str]]:
    with tempfile.TemporaryDirectory(prefix="windtunnel-") as folder:
        threads = max(1, int(torch.get_num_threads()) // world_size)
        context = torch.multiprocessing.spawn(
            _worker,
            args=(world_size, backend, folder, budget_s, threads, kinds, pinned, os.getpid()),
            nprocs=world_size,
            join=False,
        )
        deadline = time.monotonic() + _START_S + 3 * budget_s
        try:
            while not context.join(timeout=1.0):
                if time.monotonic() > deadline:
                    raise UserError(
                        f"the {world_size} processes of {backend} did not finish; is the machine overloaded?"
                    )
        except torch.multiprocessing.ProcessRaisedException as error:
            last = str(error).strip().splitlines()[-1]
            raise UserError(f"{backend} with {world_size} processes failed: {last}") from None
        except torch.multiprocessing.ProcessExitedException as error:
            raise UserError(f"a process of {backend} died ({error}); is there enough memory?") from None
        finally:
            for process in context.processes:
                if process.is_alive():
                    process.terminate()
        by_rank = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(world_size)]
    return slowest_rank(by_rank)


def slowest_rank(by_rank: list[Mapping[str, Any]]) -> tuple[Rows, list[str]]:
    """Rows of what the ranks measured: for each repetition the slowest rank, then median, p10 and p90; on a CPU
    what one adds to a step: waited for, beside computing, in a queue.
    """
    rows: Rows = {}
    usual = [_usual_product(entry["steps"]) for entry in by_rank]
    for kind in KINDS:
        table = []
        for size in map(str, (1,) if kind == "barrier" else SIZES):
            of_rank = [entry["seconds"].get(kind, {}).get(size) for entry in by_rank]
            if any(not seconds for seconds in of_rank):
                continue
            slowest = [max(repetition) for repetition in zip(*of_rank, strict=False)]
            steps = [[_computing(step) for step in entry["steps"].get(kind, {}).get(size, ())] for entry in by_rank]
            added = [_added(ranks) for ranks in as_usual(steps, usual)]
            medians = [max(0.0, quantile(of, 0.5)) for of in zip(*added, strict=True)]
            table.append([int(size), *(quantile(slowest, share) for share in (0.5, 0.1, 0.9)), *medians])
        if table:
            rows[kind] = table
    return rows, list(dict.fromkeys(note for entry in by_rank for note in entry["notes"]))


def as_usual(steps: Sequence[Sequence[_Computing]], usual: Sequence[float]) -> list[tuple[_Computing, ...]]:
    """Of steps by rank and round those rounds, ranks together, in which a product alone took each rank what it
    `usual`ly takes; the one that comes nearest where there is none.
    """

    def off(ranks: Sequence[_Computing]) -> float:
        return max(abs(rank.product / usual_s - 1.0) for rank, usual_s in zip(ranks, usual, strict=True))

    rounds = sorted(zip(*steps, strict=True), key=off)
    return [ranks for ranks in rounds if all(map(is_usual, (rank.product for rank in ranks), usual))] or rounds[:1]


def _usual_product(steps: Mapping[str, Mapping[str, Any]]) -> float:
    """Of one rank, over all kinds, sizes and rounds."""
    every = [_computing(step).product for of in steps.values() for rounds in of.values() for step in rounds]
    return quantile(every, 0.5) if every else 0.0


def _computing(row: Computed) -> _Computing:
    """As a rank wrote it."""
    alone, waited, beside, queued, products = row
    return _Computing(alone, _Loop(*waited), beside, _Loop(*queued), products)


def _added(ranks: Sequence[_Computing]) -> tuple[float, float, float]:
    """Seconds that a collective adds to a step that waits for it, to one that computes beside it, and to a queue."""
    beside = sum(rank.beside - rank.alone for rank in ranks) / len(ranks)
    once, queue = (_from_the_last([getattr(rank, name) for rank in ranks]) for name in ("waited", "queued"))
    return once, beside, (queue - once) / (_QUEUE - 1)


def _from_the_last(loops: Sequence[_Loop]) -> float:
    """Seconds from when the last rank came until the last rank left, on average."""
    came, left = (np.max([getattr(loop, name) for loop in loops], axis=0) for name in ("came", "left"))
    return float(np.mean(left - came))


def own_cores(rank: int, world_size: int) -> set[int]:
    """This process's share of the cores that it may use."""
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // world_size
    return set(cores[rank * share : (rank + 1) * share])


def _worker(
    rank: int,
    world_size: int,
    backend: str,
    folder: str,
    budget_s: float,
    threads: int,
    kinds: Sequence[str],
    pinned: bool,
    parent: int,
) -> None:
    """One rank: runs in a process of its own."""
    die_with_parent(parent)
    if pinned:
        os.sched_setaffinity(0, own_cores(rank, world_size))
    import warnings

    import torch

    warnings.simplefilter("ignore", FutureWarning)  # names that newer releases change and older ones only have
    torch.set_num_threads(threads)
    distributed = torch.distributed
    device = f"cuda:{rank}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    distributed.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank, world_size=world_size)
    seconds: dict[str, dict[int, list[float]]] = {}
    steps: dict[str, dict[int, list[_Computing]]] = {}
    notes: list[str] = []
    sizes_of = {kind: (1,) if kind == "barrier" else SIZES for kind in kinds}
    cells = sum(map(len, sizes_of.values()))
    alone_s = budget_s if device != "cpu" else budget_s / 2
    rounds = max(1, min(_ROUNDS, int(budget_s / cells / _ROUND_S)))
    try:
        for _ in range(rounds):
            for kind, sizes in list(sizes_of.items()):
                try:
                    for size in sizes:
                        queue = [_start(torch, kind, size, rank, world_size, device) for _ in range(_QUEUE)]
                        times = _time(torch, queue[0], device, alone_s / cells / rounds)
                        seconds.setdefault(kind, {}).setdefault(size, []).extend(times)
                        if device == "cpu":
                            usual, share = quantile(seconds[kind][size], 0.5), (budget_s - alone_s) / cells / rounds / 3
                            computing = _in_a_step(torch, queue, usual, share)
                            steps.setdefault(kind, {}).setdefault(size, []).append(computing)
                except (RuntimeError, NotImplementedError) as error:
                    words = str(error).lower()
                    if not any(text in words for text in ("not support", "not implement", "does not", "unsupported")):
                        raise
                    notes.append(f"{backend} has no {kind} here")  # every rank finds the same
                    del sizes_of[kind]
    finally:
        distributed.destroy_process_group()
    Path(folder, f"{rank}.json").write_text(json.dumps({"seconds": seconds, "steps": steps, "notes": notes}))


def _time(torch: ModuleType, start: Start, device: str, share_s: float) -> list[float]:
    """Seconds of each repetition on this rank, alone. All ranks make the same number of them: rank 0 decides."""
    distributed = torch.distributed
    wait = torch.cuda.synchronize if device != "cpu" else lambda: None

    def once() -> float:
        distributed.barrier()
        begin_ns = time.perf_counter_ns()
        start().wait()
        wait()
        return (time.perf_counter_ns() - begin_ns) / 1e9

    once()
    begin_s = time.monotonic()
    once()
    return [once() for _ in range(_agreed(torch, time.monotonic() - begin_s, share_s, device))]


def _in_a_step(torch: ModuleType, queue: Sequence[Start], alone_s: float, share_s: float) -> _Computing:
    """Computing on a CPU: alone, with a collective after it, with one beside it, with a queue after it."""
    left, right = torch.randn(_SIDE, _SIDE), torch.randn(_SIDE, _SIDE)

    def seconds_of(step: Callable[[], object], times: int) -> float:
        torch.distributed.barrier()
        begin_s = time.perf_counter()
        for _ in range(times):
            step()
        return (time.perf_counter() - begin_s) / times

    products = max(1, round(max(_COMPUTE_S, 1.5 * alone_s) / seconds_of(lambda: left @ right, 20)))
    agreed = torch.tensor([products])
    torch.distributed.broadcast(agreed, 0)
    products = int(agreed.item())

    def compute() -> None:
        for _ in range(products):
            left @ right

    def seconds_beside(times: int) -> float:
        seconds = 0.0
        torch.distributed.barrier()
        for _ in range(times):
            begin_s = time.perf_counter()
            work = queue[0]()
            compute()
            seconds += time.perf_counter() - begin_s
            work.wait()  # for the rank that is behind
        return seconds / times

    def loop(begin: Sequence[Start], times: int) -> _Loop:
        came, left = [], []
        torch.distributed.barrier()
        for _ in range(times):
            compute()
            came.append(time.perf_counter())
            for work in [start() for start in begin]:
                work.wait()
            left.append(time.perf_counter())
        return _Loop(came, left)

    begin_s = time.perf_counter()
    loop(queue[:1], 1)
    times = _agreed(torch, time.perf_counter() - begin_s, share_s, "cpu", least=1)
    return _Computing(
        seconds_of(compute, times), loop(queue[:1], times), seconds_beside(times), loop(queue, times), products
    )


def _agreed(torch: ModuleType, one_s: float, share_s: float, device: str, least: int = _LEAST) -> int:
    """How many repetitions rank 0 finds time for."""
    count = torch.tensor([max(least, min(_MOST, int(share_s / max(one_s, 1e-6))))], device=device)
    torch.distributed.broadcast(count, 0)
    return int(count.item())


class _AbsentRank:
    """A rank that takes no part."""

    def wait(self) -> None:
        """The work is done: return at once."""


def _start(torch: ModuleType, kind: str, size: int, rank: int, world_size: int, device: str) -> Start:
    """What begins one, and gives the work that can be waited for."""
    distributed = torch.distributed
    if kind == "barrier":
        return lambda: distributed.barrier(async_op=True)
    whole = torch.randn(size // 4, device=device)
    part = torch.randn(size // 4 // world_size, device=device)
    even = whole[: part.numel() * world_size]
    if kind == "all_reduce":
        return lambda: distributed.all_reduce(whole, async_op=True)
    if kind == "broadcast":
        return lambda: distributed.broadcast(whole, 0, async_op=True)
    if kind == "all_gather":
        return lambda: distributed.all_gather_into_tensor(even, part, async_op=True)
    if kind == "reduce_scatter":
        return lambda: distributed.reduce_scatter_tensor(part, even, async_op=True)
    if kind == "all_to_all":
        target = torch.empty_like(even)
        return lambda: distributed.all_to_all_single(target, even, async_op=True)
    if rank == 0:
        return lambda: distributed.isend(whole, 1)
    return (lambda: distributed.irecv(whole, 0)) if rank == 1 else _AbsentRank
