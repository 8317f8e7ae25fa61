"""Make the compact tables of this folder from the full ones: same rows, only the columns that `validate` reads.

    python validation/compact.py training.csv validation/measurements.csv
    python validation/compact.py training_ultrascale.csv validation/ultrascale.csv

A column that is empty in every row is left out; remarks that say nothing about how a run was made go as well. Every row
keeps its citation (`url_or_file`) and licence. The numbers are facts, as published.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from windtunnel.evidence.accuracy.table import COLUMNS, read_table

# Notes on how a source counts or prints, which no rule of `accuracy/wording.py` reads.
REMARKS = (
    "mfu column counts",
    "memory printed in gb",
    "crash and out-of-memory",
    "logged throughput",
    "block mean step",
    "config ",
    "tp mode taken as",
    "1f1b",
)
# Columns of the full table in their order, so that a person finds them again.
ORDER = (
    *("id", "source", "url_or_file", "date", "licence", "model", "model_family", "task", "params_b"),
    *("hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "gated_mlp", "vocab", "seq_len", "experts", "topk"),
    *("gpu", "n_gpus", "gpus_per_node", "inter_link", "tp", "pp", "vpp", "dp", "cp", "ep", "zero_stage", "sp"),
    *("micro_batch", "grad_accum", "global_batch", "precision", "recompute", "offload", "attention_impl", "framework"),
    *("step_time_s", "step_time_p5_s", "step_time_p95_s", "tokens_per_s_per_gpu", "peak_mem_gib", "d_step_time_s"),
    *("spec_level", "value_kind", "notes"),
)


def compact(source: Path, target: Path) -> int:
    """Write `target`; returns how many rows it has."""
    read_table(source)  # a table that cannot be read must not become one that can
    with source.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert set(ORDER) <= set(COLUMNS)
    kept = [name for name in ORDER if any(row.get(name) for row in rows)]
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, kept, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for row in rows:
            notes = [note.strip() for note in row["notes"].split(";")]
            row["notes"] = "; ".join(note for note in notes if note and not note.lower().startswith(REMARKS))
            row["url_or_file"] = row["url_or_file"].split(" (copy of")[0]
            writer.writerow(row)
    return len(rows)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(f"{sys.argv[2]}: {compact(Path(sys.argv[1]), Path(sys.argv[2]))} rows")
