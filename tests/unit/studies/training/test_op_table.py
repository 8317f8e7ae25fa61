"""The table of ops: its rows sum to what the prediction says of the same step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import windtunnel
from windtunnel.faces.cli.app import main
from windtunnel.studies.training.op_table import COLUMNS, op_rows

DENSE = ("llama-3-8b", {"tp": 2, "pp": 2, "global_batch": 16, "seq_len": 2048})
CASES = [
    DENSE,
    ("llama-3-8b", {"pp": 2, "virtual_stages": 2, "recompute": "full", "global_batch": 32, "seq_len": 2048}),
    ("llama-3-8b", {"framework": "torchtitan", "zero_stage": 3, "global_batch": 16, "seq_len": 2048}),
    ("mixtral-8x7b", {"tp": 2, "ep": 4, "pp": 2, "global_batch": 16, "seq_len": 2048}),
]


@pytest.mark.parametrize(("model", "plan"), CASES)
def test_rows_sum_to_provenance_and_work(model: str, plan: dict[str, Any]) -> None:
    result, rows = windtunnel.predict(model, "h100-sxm:16", plan), op_rows(model, "h100-sxm:16", plan)
    assert all(set(row) == set(COLUMNS) for row in rows)
    busy: dict[str, float] = {}
    for row in rows:
        if row["source"] is not None:
            busy[row["source"]] = busy.get(row["source"], 0.0) + row["count"] * row["seconds"]
            assert row["p5_s"] <= row["seconds"] <= row["p95_s"]
    whole = sum(busy.values())
    told = {name: share for name, share in result.provenance.items() if share}
    assert {name: part / whole for name, part in busy.items() if part} == pytest.approx(told, rel=1e-6)
    layers = {row["layer"] for row in rows if row["block"] == "layer" and row["pass"] == "forward"}
    assert layers == set(range(sum(stage.layers for stage in result.stages)))
    assert {row["block"] for row in rows} == {"layer", "embedding", "head", ""}


def test_flops_are_those_of_the_step() -> None:
    model, plan = DENSE
    result = windtunnel.predict(model, "h100-sxm:16", plan)
    flops = sum(row["ranks"] * row["count"] * row["flops"] for row in op_rows(model, "h100-sxm:16", plan))
    # Attention is counted in full by the convention, and half of it is masked.
    assert 0.85 < flops / (result.model_tflops_per_gpu * 1e12 * result.n_gpus * result.step_time_s) <= 1.001


def test_gemms_state_their_operands() -> None:
    rows = [row for row in op_rows(*DENSE[:1], "h100-sxm:16", DENSE[1]) if row["kind"] == "gemm"]
    assert rows
    for row in rows:
        assert row["bytes"] > 0
        assert row["flops"] / row["bytes"] < 2048  # no GEMM here does more with a byte than its shortest side allows


def test_the_command_line_writes_both_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pyarrow.parquet as pq

    words = ["predict", "llama-3-8b", "--cluster", "h100-sxm:16", "--tp", "2", "--global-batch", "16", "--seq", "2048"]
    words += ["--no-save", "--no-advice", "--json"]
    assert main([*words, "--ops", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["ops"]
    assert main([*words, "--ops", str(tmp_path / "ops.parquet")]) == 0
    assert "ops" not in json.loads(capsys.readouterr().out)
    table = pq.read_table(tmp_path / "ops.parquet")
    assert table.column_names == list(COLUMNS)
    assert table.to_pylist() == rows
    assert table.equals(
        windtunnel.op_table("llama-3-8b", "h100-sxm:16", {"tp": 2, "global_batch": 16, "seq_len": 2048})
    )
    for wrong in (["--ops", "ops.txt"], ["--ops", "json", "--technique", "lina"]):
        assert main([*words, *wrong]) == 2
    words.remove("--json")
    assert main([*words, "--ops", "json"]) == 2
    capsys.readouterr()
    (tmp_path / "captured.yaml").write_text("")
    assert main(["predict", str(tmp_path), "--cluster", "h100-sxm:16", "--ops", "ops.parquet"]) == 2
    assert "not of a captured script" in capsys.readouterr().err
