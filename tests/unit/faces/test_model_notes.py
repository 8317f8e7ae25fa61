"""What a model leaves out is said by every study that prices it, in text and in JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windtunnel.faces.cli import main

T5 = {"model_type": "t5", "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8,
      "vocab_size": 32128}  # fmt: skip
LLAVA = {
    "model_type": "llava",
    "num_extra_decoder_layers": 16,
    "text_config": {"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
                    "num_attention_heads": 8, "vocab_size": 32064, "max_position_embeddings": 4096},
}  # fmt: skip
PREDICT = ("predict", "--framework", "fsdp", "--seq", "256", "--global-batch", "8", "--no-advice", "--no-save")
PLAN = ("plan", "--seq", "256", "--global-batch", "8")
SERVE = ("serve", "--tp", "1", "--prompt", "128", "--output", "16", "--concurrency", "2")
POLICIES = ("serve policies", "--tp", "1", "--prompt", "128", "--output", "16", "--rate", "2", "--requests", "20")


@pytest.mark.parametrize("asked", [PREDICT, PLAN, SERVE, POLICIES], ids=lambda asked: asked[0])
@pytest.mark.parametrize(
    ("config", "note"),
    [
        (T5, "serving prices the encoder with every token"),
        (LLAVA, "fields beside the text model that are not known, and left out: num_extra_decoder_layers"),
    ],
    ids=["t5", "llava"],
)
def test_notes_of_a_model_are_in_text_and_json(
    asked: tuple[str, ...],
    config: dict[str, object],
    note: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(config))
    words = [*asked[0].split(), str(path), "--cluster", "h100-sxm:1", *asked[1:]]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert " ".join(note.split()) in " ".join((out + err).split())
    assert main([*words, "--json"]) == 0
    assert note in json.loads(capsys.readouterr().out)["warnings"]
