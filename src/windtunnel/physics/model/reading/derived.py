"""A model type without a file, derived from what transformers builds of its config, where that is installed.

It is built in a child process, without remote code and without weights, and what it found is kept under the user's
cache folder by the hash of the config. Parameters are exact. What its mixers compute is not known: each is taken as
grouped-query attention of the config's heads, with whatever other matrices it has beside it. So a derived model says
that nobody verified it, and bands are wider.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from windtunnel.errors import InputFileError, SpecError
from windtunnel.files.write import write_atomically
from windtunnel.physics.model.architecture import Layer, Model
from windtunnel.physics.model.limits import HEADS_MAX, LAYERS_MAX, SIZE_MAX, counted
from windtunnel.physics.model.mixers import Extended, ExtendedBlock

CHILD = Path(__file__).parent / "derive_in_child.py"
SECONDS = 180
MOSTLY = 0.6  # of the parameters, that layers hold in a model worth no word
INSTALL = "pip install torch transformers"
ADD_A_MODEL = "docs/models.md, Add a model"
NAMES = {  # what configs call a number
    "hidden": ("hidden_size", "d_model", "n_embd", "embed_dim", "dim"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads", "decoder_attention_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "head_dim": ("head_dim", "kv_channels", "d_head"),
    "chosen": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts"),
    "context": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "window": ("sliding_window", "attention_window_size"),
}


def derivable() -> bool:
    """Whether what builds models is installed; nothing is imported."""
    return find_spec("torch") is not None and find_spec("transformers") is not None


def derived(config: Mapping[str, object], where: str | None = None) -> Model:
    """The model of a config whose type has no file. Raises SpecError where transformers cannot build it either."""
    facts = _facts(config, where)
    fields = facts["fields"]

    def number(name: str, default: int | None = None, most: int = SIZE_MAX) -> int:
        value = next((fields[key] for key in NAMES[name] if isinstance(fields.get(key), int)), default)
        return counted(NAMES[name][0], value, most, where=where)

    hidden, heads = number("hidden"), number("heads", 1, HEADS_MAX)
    kv_heads = number("kv_heads", heads, HEADS_MAX)
    size = number("head_dim", max(1, hidden // heads), HEADS_MAX)
    kinds = fields.get("layer_types")
    layers: list[Layer] = []
    for i in facts["order"]:
        parts = facts["layers"][i]
        windowed = isinstance(kinds, list) and i < len(kinds) and kinds[i] == "sliding_attention"
        window = number("window", None) if windowed else None
        base = hidden * size * (2 * heads + 2 * kv_heads)
        mixer = Extended(
            heads=heads,
            kv_heads=kv_heads if heads % kv_heads == 0 else heads,
            head_dim=size,
            value_head_dim=size,
            window=window,
            more_weights=parts["mixer"] - base,
            more_parameters=parts["mixer_rest"] + parts["rest"] - 2 * hidden,
        )
        layers.append(Layer(attention=mixer, feed_forward=_block(parts, hidden, number)))
    vocab = counted("vocab_size", fields.get("vocab_size"), SIZE_MAX, where=where)
    note = f"derived from what transformers {facts['transformers']} builds, not verified: mixers are taken as attention"
    if len(facts["order"]) > len(facts["layers"]):
        runs = f"{len(facts['layers'])} layers run {len(facts['order'])} times in a pass"
        note += f"; {runs}, and their weights are there once"
    inside = sum(sum(parts.values()) - parts["experts"] for parts in facts["layers"])
    if inside < MOSTLY * facts["parameters"]:
        share = 1.0 - inside / facts["parameters"]
        note += f"; {share:.0%} of its parameters lie outside of {facts['stack']}, whose layers alone are priced"
    model = Model(
        name="",
        family=str(config["model_type"]),
        hidden_size=hidden,
        vocab_size=vocab,
        layers=tuple(layers),
        tied_embeddings=bool(fields.get("tie_word_embeddings", False)),
        max_sequence_length=number("context", 4096, 2**31),
        notes=(note,),
        derived=True,
    )
    rest = facts["parameters"] - model.parameters
    return replace(model, more_parameters=rest)


def _block(parts: Mapping[str, int], hidden: int, number: Callable[[str, int, int], int]) -> ExtendedBlock:
    if not parts["experts"]:
        gated = parts["block"] % (3 * hidden) == 0
        width = parts["block"] // ((3 if gated else 2) * hidden)
        rest = parts["block"] + parts["shared"] - (3 if gated else 2) * hidden * width
        return ExtendedBlock(size=width, gated=gated, activation="silu", more_parameters=rest)
    width = parts["expert_weights"] // (3 * hidden * parts["experts"])
    shared = parts["shared"] // (3 * hidden)
    rest = parts["expert_weights"] - parts["experts"] * 3 * hidden * width
    rest += parts["shared"] - 3 * hidden * shared + parts["block"] - parts["experts"] * hidden
    return ExtendedBlock(
        kind="moe",
        size=width,
        gated=True,
        activation="silu",
        experts=parts["experts"],
        experts_per_token=number("chosen", 1, HEADS_MAX),
        shared_size=shared,
        more_parameters=rest,
    )


def _facts(config: Mapping[str, object], where: str | None) -> dict[str, Any]:
    text = json.dumps(config, sort_keys=True, default=str)
    root = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(root) if root else Path.home() / ".cache") / "windtunnel"
    path = folder / f"derived-{hashlib.sha256((CHILD.read_text() + text).encode()).hexdigest()[:32]}.json"
    try:
        if path.stat().st_uid == os.getuid():
            facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return facts
    except (OSError, ValueError):
        pass  # none there, or not whole: it is made again
    try:
        run = subprocess.run(
            [sys.executable, str(CHILD)], input=text, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        remedy = f"transformers did not build it in {SECONDS} s: write a file for it in physics/model/types"
        raise SpecError("model_type", config["model_type"], remedy, where) from None
    try:
        facts = json.loads(run.stdout.splitlines()[-1])
        counted("num_hidden_layers", len(facts["order"]), LAYERS_MAX)
    except (ValueError, IndexError, KeyError):
        message = (run.stderr.strip().splitlines() or ["no message"])[-1][:200]
        remedy = f"this architecture cannot be read: no file does, and transformers does not build it: {message}"
        raise SpecError("model_type", config["model_type"], remedy, where) from None
    with suppress(InputFileError):  # a folder that cannot be written is passed over: it is built again next time
        write_atomically(path, json.dumps(facts).encode())
    return facts
