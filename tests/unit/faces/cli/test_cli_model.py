"""`windtunnel model`: what a config is made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windtunnel.faces.cli import main

DERIVED = Path(__file__).parents[2] / "physics" / "model" / "derived_by_transformers.json"


def test_a_hybrid_has_a_cache_per_token_and_a_state_per_sequence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = json.loads(DERIVED.read_text())["qwen3_next"]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(row["config"]))
    assert main(["model", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["parameters"] == row["parameters"]
    assert facts["layers"] == {"gdn + moe": 36, "gqa + moe": 12}
    assert (facts["kv_bytes_per_token"], facts["state_bytes_per_sequence"]) == (24_576, 77_856_768)
