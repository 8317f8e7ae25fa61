"""`calibrate`: what the verb does, for Python."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from windtunnel.errors import SpecError, UnknownNameError, UserError
from windtunnel.files.write import write_atomically
from windtunnel.questions.asked.calibrate import QUICK_S, CalibrateDevice
from windtunnel.questions.typed import check, texts
from windtunnel.real.calibrate.device import Device, describe, gpu_errors, import_torch
from windtunnel.real.calibrate.document import load_document, to_yaml
from windtunnel.real.calibrate.journal import journal_path, open_journal
from windtunnel.real.calibrate.kinds import KINDS
from windtunnel.real.calibrate.session import (
    Measurements,
    Session,
    finished_document,
    out_of_memory,
    recalled,
    usable,
)

Report = Callable[[float, float, str], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a calibration left behind."""

    out: Path
    device: Device
    found: Measurements
    resumed_points: int
    damaged_lines: int
    seconds: float


def calibrate(
    out: Path | str = "my-device.yaml",
    *,
    device: str | None = None,
    budget_s: float = QUICK_S,
    threads: int | None = None,
    only: tuple[str, ...] = (),
    report: Report = lambda spent, budget, what: None,
    begun: float | None = None,
) -> Outcome:
    """Measure `device` for `budget_s` seconds and write the cluster document at `out`, going on with its journal.

    `device`: "cpu" or "cuda:0"; None: a GPU if there is one. `threads` of the CPU, all by default; `only`: these ops.
    `begun`: `time.monotonic()` from which the budget counts.

    Raises:
        UserError: no torch, no such device, a journal of another device, a place that cannot be written.
        KeyboardInterrupt: as the user wishes; the journal keeps what was measured.
    """
    check(locals(), out=str | PathLike, device=str | None, budget_s=float, threads=int | None, begun=float | None)
    only = texts("only", only)
    begun, out = time.monotonic() if begun is None else begun, Path(out)
    if not 1 <= budget_s <= 86400:
        raise SpecError("--budget", budget_s, "give 1 to 86400 seconds")
    for name in only:
        if name not in KINDS:
            raise UnknownNameError("op", name, KINDS)
    load_document(out)  # a file that is something else must not be written over
    torch = import_torch()
    where = describe(torch, device, threads)
    journal, earlier = open_journal(journal_path(out), where.identity())
    measured = recalled(earlier)
    resumed = measured.n_points
    done = False
    try:
        session = Session(
            torch, where, journal, measured, budget_s, min(earlier.spent_s, budget_s), begun, report, only
        )
        if only and not {"gemm", "copy"} <= set(only):
            session.only = (*only, "gemm", "copy")  # the peak rates come from these
        try:
            with gpu_errors():
                session.run()
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(torch, error):
                raise
            raise UserError(
                f"{where.name} has no memory left even for small tensors; what was measured is kept:"
                " free some of it and run the same again"
            ) from error
        if not usable(measured, where.dtypes):
            raise SpecError("--budget", budget_s, "too short to measure a GEMM and a copy; run again to go on")
        measured.notes = list(dict.fromkeys(measured.notes))
        write_atomically(out, to_yaml(finished_document(where, measured, out)).encode())
        done = True
    finally:
        journal.close(remove=done)
    return Outcome(out, replace(where), measured, resumed, earlier.damaged, time.monotonic() - begun)


def answer(
    question: CalibrateDevice,
    *,
    out: Path,
    report: Report = lambda spent, budget, what: None,
    begun: float | None = None,
) -> Outcome:
    """Measure what the question asks. Raises as `calibrate` does."""
    return calibrate(
        out,
        device=question.device,
        budget_s=question.budget_s,
        threads=question.threads,
        only=question.only,
        report=report,
        begun=begun,
    )
