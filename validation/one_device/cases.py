"""The runs of `configs.yaml`: what is trained, as a config.json, and the same as a plan of windtunnel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
# Fields that every config.json here has, so that no reader fills in another model's default.
COMMON = {
    "llama": {"hidden_act": "silu", "rms_norm_eps": 1e-5, "attention_bias": False, "mlp_bias": False},
    "mixtral": {"hidden_act": "silu", "rms_norm_eps": 1e-5, "sliding_window": None},
    "nemotron": {"norm_eps": 1e-5, "attention_bias": False, "mlp_bias": False},
}
ARCHITECTURE = {"llama": "LlamaForCausalLM", "mixtral": "MixtralForCausalLM", "nemotron": "NemotronForCausalLM"}


@dataclass(frozen=True)
class Case:
    """One run. `batch` sequences in a forward pass, `accumulate` of them in a step."""

    name: str
    model: dict[str, Any]
    precision: str
    seq: int
    batch: int
    accumulate: int = 1
    recompute: bool = False
    compile: bool = False

    @property
    def config(self) -> dict[str, Any]:
        """The config.json."""
        kind = self.model["model_type"]
        fixed = {"architectures": [ARCHITECTURE[kind]], "tie_word_embeddings": False, "rope_theta": 10000.0}
        return {**self.model, **COMMON[kind], **fixed, "max_position_embeddings": self.seq}

    @property
    def plan(self) -> dict[str, Any]:
        """How the run is said to `windtunnel.predict`."""
        return {
            "framework": "pytorch",
            "global_batch": self.batch * self.accumulate,
            "micro_batch": self.batch,
            "seq_len": self.seq,
            "precision": self.precision,
            "recompute": "full" if self.recompute else "none",
            "compile": self.compile,
        }


def read_cases(path: Path = HERE / "configs.yaml") -> dict[str, Case]:
    """All runs of a file, by name."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = {}
    for name, run in data["runs"].items():
        fields = dict(run)
        found[name] = Case(name=name, model=data["models"][fields.pop("model")], **fields)
    return found


def chosen_cases(only: list[str], path: Path = HERE / "configs.yaml") -> list[Case]:
    """Those whose name is given or contains a given text; all where none is given."""
    cases = read_cases(path)
    exact = [cases[name] for name in only if name in cases]
    parts = [text for text in only if text not in cases]
    return exact + [case for case in cases.values() if not only or any(text in case.name for text in parts)]
