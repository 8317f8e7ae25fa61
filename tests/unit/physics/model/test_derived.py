"""A type without a file: read from what a child process builds, kept by the hash of its config, and said to be so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from windtunnel.errors import SpecError
from windtunnel.faces.cli.model import facts_of
from windtunnel.physics.model import read_config
from windtunnel.physics.model.layers.layer import layer_operations
from windtunnel.physics.model.operations import Shard
from windtunnel.physics.model.reading import derived, huggingface

H, F, V, E = 64, 160, 1000, 4
DENSE = {"mixer": 4 * H * H + 128, "mixer_rest": 16, "block": 3 * H * F, "shared": 0, "rest": 2 * H, "experts": 0,
         "expert_weights": 0}  # fmt: skip
MIXTURE = {**DENSE, "block": E * H, "shared": 3 * H * 32, "experts": E, "expert_weights": E * 3 * H * 48}
LAYERS = [DENSE, MIXTURE, MIXTURE]
INSIDE = sum(sum(layer.values()) - layer["experts"] for layer in LAYERS)
CONFIG: dict[str, Any] = {"model_type": "perceiver_9", "hidden_size": H}


def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Another child, which counts how often it is run."""
    script = tmp_path / "child.py"
    script.write_text(f"import json, sys\nopen({str(tmp_path / 'runs')!r}, 'a').write('x')\n{body}\n")
    monkeypatch.setattr(derived, "CHILD", script)
    monkeypatch.setattr(huggingface, "derivable", lambda: True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[int, ...] = (0, 1, 2)) -> None:
    fields = {"hidden_size": H, "num_attention_heads": 8, "vocab_size": V, "num_experts_per_tok": 2,
              "max_position_embeddings": 512}  # fmt: skip
    facts = {
        "transformers": "5",
        "parameters": INSIDE + 2 * V * H + H,
        "layers": LAYERS,
        "order": order,
        "stack": "layers",
        "fields": fields,
    }
    child(tmp_path, monkeypatch, f"config = json.load(sys.stdin)\nprint(json.dumps({facts!r}))")


def test_layers_that_run_several_times_are_priced_so_and_their_weights_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds(tmp_path, monkeypatch, order=(0, 1, 1, 1, 2))
    model = read_config(CONFIG)
    assert model.parameters == INSIDE + 2 * V * H + H
    assert [layer.feed_forward.kind for layer in model.layers] == ["dense", *["moe"] * 4]
    assert "3 layers run 5 times" in model.notes[0]


def test_parameters_are_those_that_were_built_and_ops_multiply_its_matrices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds(tmp_path, monkeypatch)
    model = read_config(CONFIG)
    assert model.parameters == INSIDE + 2 * V * H + H
    assert [layer.feed_forward.kind for layer in model.layers] == ["dense", "moe", "moe"]
    assert (model.layers[1].feed_forward.experts_per_token, model.layers[1].feed_forward.shared_size) == (2, 32)
    ops = layer_operations(model.layers[0], model, Shard(batch=1, seq_len=16))
    products = sum(op.flops for op in ops if op.kind == "gemm")
    assert products == pytest.approx(2 * 16 * (DENSE["mixer"] + DENSE["block"]))
    facts = facts_of(model)
    assert facts["verified"] == "derived"
    assert "not verified" in facts["notes"][0]


def test_a_config_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds(tmp_path, monkeypatch)
    assert read_config(CONFIG) == read_config(CONFIG)
    assert (tmp_path / "runs").read_text() == "x"
    read_config({**CONFIG, "hidden_size": 2 * H})
    assert (tmp_path / "runs").read_text() == "xx"


def test_what_transformers_does_not_build_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child(tmp_path, monkeypatch, "sys.exit('KeyError: perceiver_9')")
    with pytest.raises(SpecError, match=r"perceiver_9.*cannot be read.*KeyError: perceiver_9"):
        read_config(CONFIG)
    assert not (tmp_path / "cache").exists()


def test_without_transformers_the_error_has_the_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface, "derivable", lambda: False)
    with pytest.raises(SpecError, match="pip install torch transformers"):
        read_config(CONFIG)
