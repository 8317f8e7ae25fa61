"""Published serving and training of the models of 2025 and 2026, beside what windtunnel predicts.

    python validation/new_models.py ROWS [--out table.csv]

ROWS: new_models.csv, new_models_training.csv, unseen_2026.csv, unseen_2026_b.csv, unseen_2026_c.csv,
unseen_2026_d.csv, unseen_2026_e.csv, unseen_2026_f.csv, unseen_2026_g.csv, unseen_2026_h.csv, unseen_2026_i.csv,
unseen_2026_j.csv, unseen_2026_l.csv, lengths.csv, accelerators.csv (TPU, Trainium, Ascend) or accelerators_serving.csv.

`*_blind.csv` are the tables before any work on these models. Each row is a run as published; an empty cell was not.
Models are configs that `aiconfigurator-core` ships, or `TYPE` for the defaults of transformers' class (the shape of
Qwen3-Next and Qwen3-Coder-Next). Errors are predicted over measured less one.
"""

from __future__ import annotations

import argparse
import csv
import json
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

import windtunnel
from windtunnel.errors import SpecError, UserError
from windtunnel.evidence.accuracy.serving.predict import predicted
from windtunnel.evidence.accuracy.serving.rows import ServingRow
from windtunnel.physics.model import catalogue_names, load_model

DERIVED = Path(__file__).parent.parent / "tests" / "unit" / "physics" / "model" / "derived_by_transformers.json"


def config_of(name: str, folder: Path) -> str:
    """A row's model: a name of the catalogue, or the path of its file, such as one beside this script."""
    if name in catalogue_names():
        return name
    if (beside := Path(__file__).with_name(f"{name}.json")).exists():
        return str(beside)
    spec = find_spec("aiconfigurator_core")
    assert spec is not None
    assert spec.origin is not None
    shipped = Path(spec.origin).parent / "model_configs" / f"{name}_config.json"
    if shipped.exists():
        return str(shipped)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(json.loads(DERIVED.read_text())[name]["config"]))
    return str(path)


def trained(row: dict[str, str], folder: Path) -> tuple[list[tuple[float, float]], tuple[float, float], dict[str, str]]:
    """(predicted, measured) of each figure, the band of the first, and cells of the table."""
    plan: dict[str, Any] = {key: int(row[key]) for key in ("global_batch", "micro_batch", "seq_len", "tp", "pp", "ep")}
    if row["vpp"] != "1":
        plan["vpp"] = int(row["vpp"])
    plan |= {key: int(row[key]) for key in ("zero_stage", "shard_group") if row.get(key)}
    plan |= {key: row[key] for key in ("recompute", "optimizer", "loss") if row.get(key)}
    # A compiled graph (column graph) has no host in between.
    for column, names in {"overlap_tp": ("overlap_tp",), "graph": ("cuda_graphs", "full_graph")}.items():
        plan |= dict.fromkeys(names, True) if row.get(column) else {}
    # Whatever else a plan says (column more), such as `cp=2 overlap_ep=true`, or a model's shape, `model.layers=2`.
    more = {key: yaml.safe_load(value) for key, _, value in (one.partition("=") for one in row.get("more", "").split())}
    shape = {key.removeprefix("model."): more.pop(key) for key in list(more) if key.startswith("model.")}
    plan |= more
    model = config_of(row["model"], folder)
    # MaxText keeps on the host what it recomputes from; 24 of those 27 rows fit so. Of all the time stands.
    if row.get("offloads") == "host" and row["recompute"] == "full":
        plan["offload_activations"] = load_model(model).n_layers
    of_framework = {"framework": row.get("framework") or "megatron"}
    if "Megatron-Bridge" in row["source"]:
        of_framework["release"] = f"bridge-{row['source'].split()[-1][:5]}"
    answer = windtunnel.ask(
        {
            "question": "predict",
            "model": {"base": model, "mtp_layers": int(row["mtp"]), **shape},
            "cluster": row["cluster"],
            "plan": {
                "precision": row["precision"],
                "sequence_parallel": plan["tp"] > 1,
                "etp": 1,
                **of_framework,
                **plan,
            },
        }
    ).to_dict()
    if answer["infeasible"] is not None and not row.get("offloads"):
        raise SpecError("plan", row["id"], f"does not fit: {str(answer['infeasible'])[:100]}")
    rate, step = answer["tokens_per_s_per_gpu"], answer["step_time_ns"]
    band = (rate * step / answer["step_time_p95_ns"], rate * step / answer["step_time_p5_ns"])
    cells = {"predicted_tokens_per_s_per_gpu": f"{rate:.0f}"}
    if row.get("peak_allocated_gib"):  # Megatron-LM writes that of a rank of the last stage
        cells["predicted_peak_allocated_gib"] = f"{answer['memory'][-1]['peak_allocated_bytes'] / 2**30:.3f}"
    measured = row["tokens_per_s_per_gpu"]
    return [(rate, float(measured))] if measured else [], band, cells


def served(row: dict[str, str], folder: Path) -> tuple[list[tuple[float, float]], tuple[float, float], dict[str, str]]:
    """As `trained`, as `windtunnel validate` predicts such rows; the first figure is the time per token, if published.

    Tokens per second of replayed sessions are left out: the table does not say whether they are of the whole run.
    """
    named = {} if "/" in row["model"] else {"model": config_of(row["model"], folder)}
    answer = predicted(ServingRow({**row, **named}))
    if answer.status == "refused":
        raise SpecError("deployment", row["id"], answer.reason[:100])
    tokens, tpot = answer.output_tokens_per_s, 1e3 * answer.tpot_s
    low, high = answer.tpot_p5_s / answer.tpot_s, answer.tpot_p95_s / answer.tpot_s
    pairs = [(tpot, float(row["tpot_ms"]))] if row["tpot_ms"] else []
    if row["d_output_tokens_per_s"] and row["client"] != "sessions_replayed":
        pairs.append((tokens, float(row["d_output_tokens_per_s"])))
    first = pairs[0][0]
    cells = {"predicted_tokens_per_s": f"{tokens:.1f}", "predicted_tpot_ms": f"{tpot:.3f}"}
    return pairs, (first * low, first * high), cells


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
            pairs, (low, high), cells = (trained if "global_batch" in row else served)(row, folder)
        except UserError as error:
            table.append({**row, "note": str(error)[:160]})
            print(f"{row['id']:48} {str(error)[:110]}")
            continue
        own = [found / measured - 1.0 for found, measured in pairs]
        inside += [low <= pair[1] <= high for pair in pairs[:1]]
        errors += own
        table.append({**row, **cells, "note": ""})
        print(f"{row['id']:48} {' '.join(f'{100 * e:+6.1f}%' for e in own)}")
    print(f"{len(errors)} figures of {len(table)} rows, mean error {100 * fmean(map(abs, errors)):.1f} %", end="; ")
    print(f"the band of the first of each row holds {sum(inside)} of {len(inside)}")
    if asked.out:
        names = list(dict.fromkeys(name for row in table for name in row))
        with asked.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(table)


if __name__ == "__main__":
    main()
