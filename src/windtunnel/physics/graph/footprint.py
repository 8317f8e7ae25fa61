"""How much memory a graph and its replay take, how much there is, and the refusal of what does not fit.

Every array of `Graph`, of a replay's input and output, and of the kernel's own state has a fixed number of bytes per
op, dependency or stream, so the footprint is known before anything is built.
"""

from __future__ import annotations

import os
from pathlib import Path

from windtunnel.errors import UserError

GIB = 1 << 30

# Bytes per op: kind 1, stream 4, dep_ptr 8, rendezvous 4, label 4, category 2, flops 8, bytes 8.
GRAPH_BYTES_PER_OP = 39
GRAPH_BYTES_PER_DEPENDENCY = 4
GRAPH_BYTES_PER_STREAM = 12  # stream_rank 4, and at most one entry of multiplicity
# At most, that is with slowdown: duration, start and end 8 each, interference 1; in the kernel the next op of the
# stream, who waits for its end, and the member that arrived before it 4 each, and the state of one rendezvous 25.
REPLAY_BYTES_PER_OP = 62
REPLAY_BYTES_PER_STREAM = 160  # what runs, waits and is due on it, and on its program


def graph_bytes(n_ops: int, n_dependencies: int, n_streams: int) -> int:
    """Bytes of the arrays of a `Graph`."""
    return GRAPH_BYTES_PER_OP * n_ops + GRAPH_BYTES_PER_DEPENDENCY * n_dependencies + GRAPH_BYTES_PER_STREAM * n_streams


def replay_bytes(n_ops: int, n_streams: int) -> int:
    """Bytes that a replay takes at most besides the graph: durations, starts, ends and what the kernel holds."""
    return REPLAY_BYTES_PER_OP * n_ops + REPLAY_BYTES_PER_STREAM * n_streams


def available_bytes() -> int:
    """Memory that this process may take: what the machine has available, at most what its control group allows."""
    free = _available_pages()
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = _text(name).strip()
        if limit.isdigit():  # "max" where there is no limit
            free = min(free, int(limit))
    return free


def refuse_if_too_large(
    n_ops: int,
    n_dependencies: int,
    n_streams: int,
    *,
    folded: tuple[int, int] | None = None,
    available: int | None = None,
) -> None:
    """Raise UserError if a graph of this size and its replay do not fit into memory.

    `folded`: (programs, ops) of the fold that could be simulated instead: the remedy.
    `available`: bytes; default what there is now.
    """
    free = available_bytes() if available is None else available
    needed = graph_bytes(n_ops, n_dependencies, n_streams) + replay_bytes(n_ops, n_streams)
    # Ops, dependencies and streams are numbered in 32 bits.
    most = max(n_ops, n_dependencies, n_streams)
    if needed <= free and most < 2**31:
        return
    problem = f"this graph of {n_ops:,} ops needs {_gib(needed)} to be replayed, and {_gib(free)} are free"
    if needed <= free:
        problem = f"this graph has {most:,} ops or dependencies, and at most {2**31 - 1:,} can be replayed"
    remedy = "simulate fewer ranks or micro-batches, or use a machine with more memory"
    if folded is not None:
        programs, ops = folded
        # A folded graph has its dependencies and streams in the same proportion.
        share = ops / max(n_ops, 1)
        size = graph_bytes(ops, round(share * n_dependencies), round(share * n_streams))
        size += replay_bytes(ops, round(share * n_streams))
        plural = "" if programs == 1 else "s"
        if size <= free:
            remedy = f"folded to {programs:,} program{plural} it needs {_gib(size)}: leave it folded"
        else:
            remedy = f"even folded to {programs:,} program{plural} it needs {_gib(size)}: {remedy}"
    raise UserError(f"{problem}; {remedy}")


def _available_pages() -> int:
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    # Where the kernel does not say what it could free, all there is.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _text(name: str) -> str:
    path = Path(name)
    return path.read_text() if path.is_file() else ""


def _gib(size: int) -> str:
    return f"{size / GIB:,.1f} GiB" if size >= 0.05 * GIB else f"{max(size / GIB, 0.001):.3f} GiB"
