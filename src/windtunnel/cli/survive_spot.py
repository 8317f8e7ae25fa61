"""`windtunnel survive --spot TRACE.csv`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from windtunnel.cli.output import note, print_answer, stdout, working


def answered_spot(
    model: str | None,
    trace: Path,
    policies: Sequence[str],
    *,
    tables: Path | None,
    forecast: Literal["known", "persistence"],
    look_ahead: int | None,
    decisions_out: Path | None,
    seed: int,
    gpu_hour: float | None,
    spot_gpu_hour: float | None,
    json: bool,
) -> None:
    """Ask, print and write. Raises UserError on the first mistake."""
    from windtunnel.report.files import write_atomically
    from windtunnel.report.survival.spot_console import print_spot
    from windtunnel.resilience.spot import survive_spot

    with working("surviving"):
        answer = survive_spot(
            trace, policies, model=model, tables=tables, forecast=forecast, look_ahead=look_ahead, seed=seed,
            usd_per_gpu_hour=gpu_hour, usd_per_spot_gpu_hour=spot_gpu_hour,
        )  # fmt: skip
    if model is None and len(answer.models) > 1:
        others = ", ".join(name for name in answer.models if name != answer.model)
        note(f"model {answer.model}; name another as the first word: {others}")
    if decisions_out is not None:
        write_atomically(decisions_out, answer.decisions_csv().encode())
        note(f"wrote {decisions_out}")
    if json:
        print_answer("survive --spot", answer.to_dict(), provenance={"machines": str(trace)})
    else:
        print_spot(answer, stdout())
