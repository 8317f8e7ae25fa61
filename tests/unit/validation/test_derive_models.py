"""Rows frozen in the tests of model types are those that transformers builds and runs, where it is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FROZEN = json.loads((ROOT / "tests/unit/physics/model/derived_by_transformers.json").read_text())
MIXERS = ["llama4_text", "qwen3_next", "deepseek_v32", "gemma4_text#shared", "t5#gated"]


@pytest.mark.skipif(find_spec("transformers") is None or find_spec("torch") is None, reason="transformers builds them")
def test_a_few_rows_are_as_transformers_builds_and_runs_them(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "validation/derive_models.py"), str(tmp_path / "rows.json"), *MIXERS]
    run = subprocess.run([*command, "--passes"], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    for kind in MIXERS:
        assert rows[kind]["parameters"] == FROZEN[kind]["parameters"]
        assert rows[kind]["flops"]["weights"] == FROZEN[kind]["flops"]["weights"]
        assert rows[kind]["cache"]["1"] == FROZEN[kind]["cache"]["1"]
