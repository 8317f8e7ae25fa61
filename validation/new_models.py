"""Published serving of the models of 2025 and 2026, beside what windtunnel predicts.

    python validation/new_models.py validation/new_models.csv [--out table.csv]   (new_models_blind.csv: before work)

Each row: a deployment, its load, and measured output tokens per second and time per output token; an empty cell was not
published. Models are configs that `aiconfigurator-core` ships, or `TYPE` for the defaults of transformers' class (the
shape of Qwen3-Next and Qwen3-Coder-Next). Errors are predicted over measured less one.
"""

from __future__ import annotations

import argparse
import csv
import json
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import windtunnel
from windtunnel.errors import UserError

DERIVED = Path(__file__).parent.parent / "tests" / "unit" / "physics" / "model" / "derived_by_transformers.json"


def config_of(name: str, folder: Path) -> Path:
    """The file of a row's model."""
    spec = find_spec("aiconfigurator_core")
    assert spec is not None
    assert spec.origin is not None
    shipped = Path(spec.origin).parent / "model_configs" / f"{name}_config.json"
    if shipped.exists():
        return shipped
    path = folder / f"{name}.json"
    path.write_text(json.dumps(json.loads(DERIVED.read_text())[name]["config"]))
    return path


def predicted(row: dict[str, str], folder: Path) -> dict[str, Any]:
    """The answer of `serve`."""
    concurrency = int(row["concurrency"])
    answer: dict[str, Any] = windtunnel.ask(
        {
            "question": "serve",
            "model": str(config_of(row["model"], folder)),
            "cluster": row["cluster"],
            "engine": {"engine": row["engine"], "weights": row["weights"], "max_model_len": 32768},
            "replicas": {"kind": "together", "tp": int(row["tp"])},
            "load": {"kind": "closed", "concurrency": concurrency},
            "requests": {
                "kind": "lengths",
                "prompt": int(row["prompt"]),
                "output": int(row["output"]),
                "requests": max(8, 2 * concurrency),
            },
        }
    ).to_dict()
    return answer


def main() -> None:
    """Predict every row and print its errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    folder = Path(__import__("tempfile").mkdtemp())
    table, errors, inside = [], [], []
    for row in csv.DictReader(asked.rows.open()):
        try:
            answer = predicted(row, folder)
        except UserError as error:
            table.append({**row, "note": str(error)[:160]})
            print(f"{row['id']:48} {str(error)[:100]}")
            continue
        if not answer["feasible"]:
            table.append({**row, "note": answer["reason"][:160]})
            print(f"{row['id']:48} {answer['reason'][:100]}")
            continue
        tokens, tpot = answer["output_tokens_per_s"], 1e3 * answer["tpot_s"]["mean"]
        found = {"predicted_tokens_per_s": f"{tokens:.1f}", "predicted_tpot_ms": f"{tpot:.3f}"}
        own = [
            value / float(row[key]) - 1.0 for key, value in (("tokens_per_s", tokens), ("tpot_ms", tpot)) if row[key]
        ]
        low, high = (1e3 * float(edge) for edge in answer["tpot_band_s"].values())
        if row["tpot_ms"]:
            inside.append(low <= float(row["tpot_ms"]) <= high)
        errors += own
        table.append({**row, **found, "note": ""})
        print(f"{row['id']:48} {' '.join(f'{100 * e:+6.1f}%' for e in own)}")
    print(f"{len(errors)} figures of {len(table)} rows, mean error {100 * fmean(map(abs, errors)):.1f} %", end="; ")
    print(f"the band of the time per token holds {sum(inside)} of {len(inside)}")
    if asked.out:
        names = list(dict.fromkeys(name for row in table for name in row))
        with asked.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(table)


if __name__ == "__main__":
    main()
