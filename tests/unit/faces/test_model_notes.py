"""What a model leaves out is said by every study that prices it, in text and in JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windtunnel.faces.cli import main
from windtunnel.physics.model import read_config
from windtunnel.physics.model.architecture import notes_of

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


RL = ("rl", "--prompts", "4", "--lengths", "mean=90,cap=300", "--samples", "2")
# A job's or a pool's model is named in a file.
POOL = """groups: {all: {cluster: h100-sxm:1}}
models: {one: {model: MODEL, workload: {rate: 2, requests: 20, prompt: 128, output: 16}}}
"""
WEIGHTS = """weights: {cluster: h100-sxm:1}
models: {one: {model: MODEL}}
workload: {concurrency: 2, requests: 20, prompt: 128, output: 16}
"""
JOBS = """job,submit_s,gpus,duration_s,model,batch_size,seq_len,iterations
a,0,1,,MODEL,8,256,10
"""
IN_FILES = {"pool.yaml": ("serve pool", POOL), "weights.yaml": ("serve pool", WEIGHTS), "jobs.csv": ("fleet", JOBS)}


CONFIGS = pytest.mark.parametrize(
    ("config", "note"),
    [
        (T5, "serving prices the encoder with every token"),
        (LLAVA, "fields beside the text model that are not known, and left out: num_extra_decoder_layers"),
    ],
    ids=["t5", "llava"],
)


@pytest.mark.parametrize("asked", [PREDICT, PLAN, SERVE, POLICIES, RL], ids=lambda asked: asked[0])
@CONFIGS
def test_notes_of_a_model_are_in_text_and_json(
    asked: tuple[str, ...],
    config: dict[str, object],
    note: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(config))
    _said([*asked[0].split(), str(path), "--cluster", "h100-sxm:1", *asked[1:]], note, capsys)


@pytest.mark.parametrize("file", IN_FILES)
@CONFIGS
def test_notes_of_a_model_that_a_file_names(
    file: str, config: dict[str, object], note: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, path = tmp_path / "model.json", tmp_path / file
    model.write_text(json.dumps(config))
    verb, text = IN_FILES[file]
    path.write_text(text.replace("MODEL", str(model)))
    cluster = ["--cluster", "h100-sxm:1"] if verb == "fleet" else []
    _said([*verb.split(), str(path), *cluster], note, capsys)


def test_of_several_models_each_note_has_its_name() -> None:
    t5, llava = read_config(T5, "translator"), read_config(LLAVA, "watcher")
    assert notes_of(t5, t5) == t5.notes
    of_both = [*(f"translator: {note}" for note in t5.notes), *(f"watcher: {note}" for note in llava.notes)]
    assert list(notes_of(t5, llava, t5)) == of_both


def _said(words: list[str], note: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert " ".join(note.split()) in " ".join((out + err).split())
    assert main([*words, "--json"]) == 0
    assert note in json.loads(capsys.readouterr().out)["warnings"]
