"""Published training of models with vision towers, beside what windtunnel predicts.

    python validation/towers.py [--out table.csv]

`towers.csv`: one image in each sample, forward and backward passes on one GPU without an optimizer step, whose time is
taken off the prediction. `both` frozen trains the projector alone. `towers_blind.csv` is the table of the first run.
Errors are predicted over measured seconds less one.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import windtunnel
from windtunnel.errors import UserError
from windtunnel.physics.model import read_config

HERE = Path(__file__).parent
CATALOGUE = Path(windtunnel.__file__).parent / "physics" / "model" / "catalogue"
# Width, feed-forward, layers, heads, image, patch: https://huggingface.co/google/NAME config.json.
SIGLIP = {
    "siglip2-so400m-patch14-384": (1152, 4304, 27, 16, 384, 14),
    "siglip2-base-patch16-224": (768, 3072, 12, 12, 224, 16),
}
NAMES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "image_size", "patch_size")


def predicted(row: dict[str, str]) -> windtunnel.Result:
    """What windtunnel predicts of a row's plan."""
    text = json.loads((CATALOGUE / f"{row['text']}.json").read_text())
    text.pop("_source", None)
    vision = {"model_type": "idefics3_vision", **dict(zip(NAMES, SIGLIP[row["tower"]], strict=True))}
    model = read_config(
        {"model_type": "idefics3", "text_config": text, "vision_config": vision, "scale_factor": int(row["shuffle"])}
    )
    plan: dict[str, Any] = {
        "framework": "fsdp",
        "global_batch": int(row["batch"]),
        "micro_batch": int(row["batch"]),
        "seq_len": int(row["tokens"]),
        "images": 1,
        "frozen": row["frozen"],
        "master_dtype": "bf16",
        "optimizer_dtype": "bf16",
        "gradient_dtype": "bf16",
        "attention_impl": "flash2",
        "compile": bool(row["compile"]),
        **({"loss": row["loss"]} if row["loss"] else {}),
    }
    return windtunnel.predict(model, row["cluster"], plan)


def main() -> None:
    """Predict every row and print its errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    table, errors, inside = [], [], 0
    for row in csv.DictReader((HERE / "towers.csv").open()):
        try:
            answer = predicted(row)
        except UserError as error:
            print(f"{row['id']:32} {error}")
            continue
        own = answer.breakdown_ns.get("optimizer", 0)
        found, low, high = (
            (ns - own) / 1e6 for ns in (answer.step_time_ns, answer.step_time_p5_ns, answer.step_time_p95_ns)
        )
        measured = float(row["step_ms"])
        errors.append(found / measured - 1.0)
        inside += low <= measured <= high
        table.append({**row, "predicted_ms": f"{found:.1f}", "p5_ms": f"{low:.1f}", "p95_ms": f"{high:.1f}"})
        print(f"{row['id']:32} {found:8.1f} {measured:8.1f} {100 * errors[-1]:+7.1f} %")
    print(f"{len(errors)} rows, mean error {100 * fmean(map(abs, errors)):.1f} %", end=", ")
    print(f"bias {100 * fmean(errors):+.1f} %; the band holds {inside}")
    if asked.out:
        with asked.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(table)


if __name__ == "__main__":
    main()
