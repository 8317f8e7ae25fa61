"""A measured run to vary, as a table would state it, and a stand-in for the predictor."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from windtunnel.evidence.accuracy.outcome import Outcome
from windtunnel.evidence.accuracy.table import COLUMNS, Row, read_table
from windtunnel.physics.step.result import Infeasible, Result, StageMemory

LLAMA_8B: dict[str, Any] = {
    "id": "run-1",
    "source": "somebody's benchmark",
    "url_or_file": "github:somebody/benchmark",
    "date": "2025-02",
    "licence": "Apache-2.0",
    "model": "Llama-3-8B",
    "model_family": "llama",
    "task": "pretrain",
    "hidden": 4096,
    "layers": 32,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "ffn": 14336,
    "gated_mlp": 1,
    "vocab": 128256,
    "seq_len": 8192,
    "gpu": "H100-SXM",
    "n_gpus": 16,
    "gpus_per_node": 8,
    "inter_link": "IB NDR 400 Gb/s per GPU",
    "tp": 2,
    "pp": 1,
    "vpp": 1,
    "dp": 8,
    "cp": 1,
    "ep": 1,
    "zero_stage": 1,
    "sp": 1,
    "micro_batch": 1,
    "grad_accum": 4,
    "global_batch": 32,
    "precision": "bf16",
    "recompute": "none",
    "offload": "none",
    "attention_impl": "fused (cuDNN)",
    "framework": "NeMo/Megatron-Core",
    "step_time_s": 2.0,
    "spec_level": "A",
    "value_kind": "published seconds/step",
    "notes": "",
}


def text_of(rows: Sequence[dict[str, Any]], columns: Sequence[str] = COLUMNS) -> str:
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def write_table(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text(text_of(rows), encoding="utf-8")
    return path


def row(folder: Path, **changes: Any) -> Row:
    """The run with some cells changed, through the reader; None empties a cell."""
    cells = {**LLAMA_8B, **changes}
    (found,) = read_table(write_table(folder / "one.csv", [{k: "" if v is None else v for k, v in cells.items()}]))
    return found


def outcome(row: Row, predicted: float | None, status: str = "ok", band: float = 0.1, **more: Any) -> Outcome:
    low = None if predicted is None else predicted * (1 - band)
    high = None if predicted is None else predicted * (1 + band)
    return Outcome(row, status, step_time_s=predicted, p5_s=low, p95_s=high, **more)


def result(seconds: float, status: str = "ok", stages: int = 1, gib: float = 10.0) -> Result:
    """A Result as bare as the study allows."""
    memory = tuple(
        StageMemory(
            stage=stage,
            ranks=1,
            categories={},
            peak_allocated_bytes=round((gib + stage) * 2**30),
            peak_reserved_bytes=round((gib + stage + 1) * 2**30),
            device_bytes=round((gib + stage + 2) * 2**30),
            peak_time_ns=0,
            timeline=(),
        )
        for stage in range(stages)
    )
    trouble = Infeasible("out of memory", 0, 2, 1, ()) if status == "infeasible" else None
    values: dict[str, Any] = {field.name: 0 for field in dataclasses.fields(Result)}
    values |= {
        "status": status,
        "step_time_ns": round(seconds * 1e9),
        "step_time_p5_ns": round(seconds * 0.9e9),
        "step_time_p95_ns": round(seconds * 1.1e9),
        "memory": memory,
        "infeasible": trouble,
    }
    return Result(**values)


def always(seconds: float, **more: Any) -> Callable[..., Result]:
    return lambda model, cluster, plan: result(seconds, **more)
