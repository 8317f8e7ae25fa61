"""The program of a step, from what the recorder wrote down while it ran.

A row is (name, kind, inputs, outputs, flops, bytes read, bytes written, after, stream, place, communication,
scalars, reads, writes, lies), with ops in `after` and `reads` counted since the script began.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from windtunnel.capture.fake_tensors.control_flow import is_script
from windtunnel.capture.recorder.storages import Ledger, worded
from windtunnel.capture.torch_private.compile import micro_pipelined_groups
from windtunnel.graph.allocator_settings import settings_in
from windtunnel.programs.compiler.micro_pipeline import FACT
from windtunnel.programs.program import Op

Row = tuple[Any, ...]
AFTER, STREAM, PLACE = 7, 8, 9


def ops_of(rows: list[Row], base: int) -> tuple[Op, ...]:
    """Ops of the step that begins with op `base` of the script."""
    return _receives_placed(tuple(_op(row, base) for row in rows))


def measured(ledger: Ledger, base: int, last: int, symmetric: Iterable[str] = ()) -> dict[str, object]:
    """Facts of a step: PyTorch's version and set-up, and the peak with the Python stack that allocated last.

    `symmetric`: groups in which collectives are taken apart though no setting says so.
    """
    import torch

    frames, allocator = ledger.peak_frames, settings_in(os.environ)
    apart = sorted({*symmetric, *micro_pipelined_groups()})
    return {
        "torch": str(torch.__version__),
        **({"allocator": allocator} if allocator else {}),
        **({FACT: apart} if apart else {}),
        "peak": {
            "bytes": ledger.peak_bytes,
            "op": max(-1, min(ledger.peak_at - base, last)),
            "stack": list(worded(frames, is_script) or worded(frames, lambda _: True)[:8]),
        },
    }


def _op(row: tuple[Any, ...], base: int) -> Op:
    name, kind, inputs, outputs, flops, read, wrote, after, stream, place, call, scalars, reads, writes, lies = row
    return Op(
        *(name, kind, inputs, outputs, flops, read, wrote, tuple(sorted(i - base for i in after if i >= base)), stream),
        *(place.module, place.phase, place.micro_batch, place.recompute, call, scalars, place.compiled),
        *(tuple((n, max(-1, writer - base), size) for n, writer, size in reads), writes, lies),
    )


def _receives_placed(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """A message that is received outside all modules is of the pass that reads it first."""
    readers: dict[int, Op] = {}
    for op in ops:
        for earlier in op.after:
            if op.kind == "compute":
                readers.setdefault(earlier, op)
    changed = list(ops)
    for i, op in enumerate(ops):
        reader = readers.get(i)
        call = op.communication
        if reader is not None and call is not None and call.kind == "recv" and not op.module:
            changed[i] = replace(op, phase=reader.phase, micro_batch=reader.micro_batch)
    return tuple(changed)
