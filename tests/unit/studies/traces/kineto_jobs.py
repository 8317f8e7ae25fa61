"""Kineto traces of a made-up data-parallel job: every wait in them is known, because it was simulated here.

Each rank has one host thread, a compute stream (7) and a communication stream (20). A layer is two GEMMs; then the
communication stream waits for them by an event, all ranks all-reduce, and the compute stream waits for that by another.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]
CALL_US, GEMM_US, TRANSFER_US = 4.0, 50.0, 30.0


class Rank:
    def __init__(
        self, rank: int, world: int, slow: float, clock_us: float, has_events: bool, has_numbers: bool
    ) -> None:
        self.rank, self.world, self.slow = rank, world, slow
        self.clock_us, self.has_events, self.has_numbers = clock_us, has_events, has_numbers
        self.events: list[Event] = []
        self.host = 10.0 * rank  # the recordings do not begin together
        self.free = {7: 0.0, 20: 0.0}
        self.correlation = 0

    def add(self, cat: str, name: str, start: float, taken: float, **args: Any) -> None:
        thread = 1000 + self.rank if cat != "kernel" else args["stream"]
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": self.rank,
                "tid": thread,
                "ts": round(start + self.clock_us, 3),
                "dur": round(taken, 3),
                "args": args,
            }
        )

    def call(self, name: str, gap_us: float = 1.0) -> int:
        self.correlation += 1
        start = self.host + gap_us
        self.host = start + CALL_US
        self.add("cuda_runtime", name, start, CALL_US, correlation=self.correlation)
        return self.correlation

    def gemm(self, us: float) -> None:
        correlation = self.call("cudaLaunchKernel")
        start = max(self.host, self.free[7])
        taken = us * self.slow
        self.free[7] = start + taken
        self.add(
            "kernel", "ampere_gemm_128x64", start, taken, stream=7, device=0, correlation=correlation, grid=[8, 8, 1]
        )

    def waits(self, waiting: int, other: int) -> None:
        recorded = self.call("cudaEventRecord")
        wait = self.call("cudaStreamWaitEvent")
        self.free[waiting] = max(self.free[waiting], self.free[other])
        if self.has_events:
            self.add(
                "cuda_sync",
                "Stream Wait Event",
                self.host,
                0,
                stream=waiting,
                correlation=wait,
                wait_on_stream=other,
                wait_on_cuda_event_record_corr_id=recorded,
            )

    def arrives(self) -> tuple[float, int]:
        correlation = self.call("cudaLaunchKernelExC")
        return max(self.host, self.free[20]), correlation

    def reduces(self, start: float, end: float, correlation: int, number: int) -> None:
        self.free[20] = end
        args: dict[str, Any] = {"Seq": number} if self.has_numbers else {}
        self.add(
            "kernel",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
            start,
            end - start,
            stream=20,
            device=0,
            correlation=correlation,
            **{
                "Collective name": "allreduce",
                "In msg nelems": 1024,
                "dtype": "BFloat16",
                "Group size": self.world,
                "Process Group Name": "0",
                "Process Group Ranks": str(list(range(self.world))),
                **args,
            },
        )

    def synchronises(self) -> None:
        self.correlation += 1
        start = self.host + 1.0
        self.host = max(start, *self.free.values()) + CALL_US
        self.add("cuda_runtime", "cudaDeviceSynchronize", start, self.host - start, correlation=self.correlation)

    def document(self) -> dict[str, Any]:
        return {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": self.world},
            "traceEvents": self.events,
        }


def job(
    world: int = 4,
    layers: int = 6,
    slow: dict[int, float] | None = None,
    clock_us: dict[int, float] | None = None,
    has_events: bool = True,
    has_numbers: bool = True,
    steps: int = 2,
) -> list[Rank]:
    ranks = [
        Rank(r, world, (slow or {}).get(r, 1.0), 1e9 + (clock_us or {}).get(r, 0.0), has_events, has_numbers)
        for r in range(world)
    ]
    number = 0
    for step in range(steps):
        for rank in ranks:
            rank.add("user_annotation", f"ProfilerStep#{step + 5}", rank.host, 1.0)
        for layer in range(layers):
            for rank in ranks:
                rank.gemm(GEMM_US)
                rank.gemm(GEMM_US * (1 + layer % 3))
                rank.waits(20, 7)
            arrived = [rank.arrives() for rank in ranks]
            end = max(at for at, _ in arrived) + TRANSFER_US
            for rank, (at, correlation) in zip(ranks, arrived, strict=True):
                rank.reduces(at, end, correlation, number)
                rank.waits(7, 20)
            number += 1
        for rank in ranks:
            rank.synchronises()
    return ranks


def end_us(ranks: list[Rank]) -> float:
    """Last end less first start, on true clocks."""
    spans = [(e["ts"] - rank.clock_us, e["ts"] - rank.clock_us + e["dur"]) for rank in ranks for e in rank.events]
    return max(b for _, b in spans) - min(a for a, _ in spans)


def write(ranks: list[Rank], folder: Path, packed: bool = False) -> list[Path]:
    paths = []
    for rank in ranks:
        text = json.dumps(rank.document()).encode()
        path = folder / f"rank{rank.rank}.json{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(text) if packed else text)
        paths.append(path)
    return paths
