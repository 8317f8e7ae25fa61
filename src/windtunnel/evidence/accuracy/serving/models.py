"""The model that a table names: of the catalogue, or from a `config.json` that comes with the measured kernels.

Names carry what is no architecture: `-Instruct`, `-FP8`, `-NVFP4`. Where the catalogue has no such model, the config in
`aiconfigurator_core/model_configs` is read for its shapes alone: layers, hidden size, heads, experts. What it leaves
out is said in the model's notes: linear-attention layers count as a window of 128 tokens, since their state does not
grow; sparse attention (`index_topk`) as a window of as many keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from windtunnel.errors import UnknownNameError, UserError
from windtunnel.physics.model.architecture import Attention, FeedForward, Layer, Model
from windtunnel.physics.model.catalogue import catalogue_names, load_model
from windtunnel.physics.model.reading.huggingface import read_config

SUFFIX = re.compile(
    r"-(instruct|chat|it|hf|base|thinking|exp|fp8|nvfp4|fp4|mxfp4|bf16|awq|gptq|int4|w4a16|static|pertensor|dynamic|quantized"
    r"|\d{4}|v\d+(\.\d+)?|[a-z0-9]+-0\d{3})$"
)
LIKE = {
    "llama3.1-8b": "llama-3.1-8b",
    "llama3.1-405b": "llama-3.1-405b",
    "deepseek-r1": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3",
    "llama-3.3-70b": "llama-3.1-70b",
    "minimax-m2": "minimax-m2.5",
    # Like in all but some rows of the vocabulary, or with a tower that no row of text meets.
    "codellama-7b": "llama-2-7b",
    "codellama-13b": "llama-2-13b",
    "zephyr-7b-beta": "mistral-7b",
    "openchat-3.5": "mistral-7b",
    "granite-3.1-8b": "granite-3.3-8b",
    "granite-3.2-8b": "granite-3.3-8b",
    "qwen2.5-vl-7b": "qwen2.5-7b",
    "mistral-small-3.1-24b": "mistral-small-24b",
    "llama-3.2-11b-vision": "llama-3.1-8b",
    "qwen3.8-27b": "qwen3.5-27b",
}
SIZE = re.compile(r"(\d+x)?\d+(\.\d+)?[bm]\d?$")  # a word of a name that no other word stands for
SMALLER = ("flash", "mini", "nano", "lite", "air", "tiny", "small")  # GLM-5.3-Flash is no GLM-5.3
FAMILY = re.compile(r"(?<![a-z])(llama|mixtral|mistral|gemma|phi|falcon|yi)(?=\d)")  # llama3-8b
LINEAR_WINDOW = 128


@lru_cache(maxsize=256)
def model_named(name: str, family: str = "") -> Model:
    """The model, by its own name, without suffixes, by family, or from its config. Raises UserError."""
    plain = FAMILY.sub(r"\1-", re.sub(r"[\s_]+", "-", name.rpartition("/")[2].strip().lower()))
    names = _shortened(plain)
    names += [end for short in names if (end := _ends_as(short))]
    for word in (name, *names, *(LIKE[t] for t in names if t in LIKE)):
        try:
            return load_model(word)
        except UserError:
            continue
    config = _config_of(names)
    if config is not None:
        try:
            return read_config(config, plain)
        except UserError:  # an architecture that is not read yet: its shapes alone
            return model_of(config, plain)
    if family:
        try:
            return load_model(LIKE.get(family, family))
        except UserError:
            pass
    last = names[-1].rpartition("-")[2]
    if "-" in names[-1] and not (SIZE.match(last) or last in SMALLER):
        try:  # amd/DeepSeek-R1-0528-MXFP4-Preview: what is known of its words
            return model_named(names[-1].rpartition("-")[0])
        except UserError:
            pass
    raise UnknownNameError("model", name, catalogue_names(), "Its shapes are not known.")


def _config_of(names: list[str]) -> Mapping[str, object] | None:
    from importlib.util import find_spec

    spec = find_spec("aiconfigurator_core")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations))) / "model_configs"
    files = {path.name.rpartition("--")[2].removesuffix("_config.json").lower(): path for path in folder.glob("*.json")}
    files = {key: path for key, path in files.items() if not key.endswith("hf_quant")}
    plain = {_shortened(key)[-1]: path for key, path in sorted(files.items(), reverse=True)}
    for name in names:
        path = files.get(name) or plain.get(_shortened(name)[-1])
        if path is not None:
            document = json.loads(path.read_text(encoding="utf-8"))
            return document if isinstance(document, dict) else None
    return None


def _ends_as(name: str) -> str:
    """The model of the catalogue that a name ends with: Hermes-3-Llama-3.1-8B is one; "" where it ends with none."""
    words = name.split("-")
    ends = ("-".join(words[place:]) for place in range(1, len(words)))
    return next(
        (end for end in ends if end in catalogue_names() and any(SIZE.match(word) for word in end.split("-"))), ""
    )


def _shortened(name: str) -> list[str]:
    """A name, and what is left of it as one ending after the other is taken off."""
    names = [name]
    while (shorter := SUFFIX.sub("", names[-1])) != names[-1]:
        names.append(shorter)
    return names


def model_of(config: Mapping[str, Any], name: str) -> Model:
    """Shapes of a config of any decoder."""
    fields = {**config, **(config.get("text_config") or config.get("llm_config") or {})}

    def get(*keys: str, default: object = None) -> Any:
        return next((fields[key] for key in keys if fields.get(key) is not None), default)

    hidden, layers = int(get("hidden_size", "n_embd")), int(get("num_hidden_layers", "n_layer"))
    heads = int(get("num_attention_heads", "n_head"))
    notes: list[str] = []
    if get("kv_lora_rank") and get("qk_nope_head_dim"):
        nope, rope = int(get("qk_nope_head_dim")), int(get("qk_rope_head_dim"))
        attention = Attention(
            kind="mla",
            heads=heads,
            kv_heads=heads,
            head_dim=nope + rope,
            value_head_dim=int(get("v_head_dim")),
            q_lora_rank=get("q_lora_rank"),
            kv_lora_rank=int(get("kv_lora_rank")),
            rope_head_dim=rope,
            nope_head_dim=nope,
            window=get("index_topk"),
        )
    else:
        dim = int(get("head_dim", default=hidden // heads))
        kv = int(get("num_key_value_heads", "multi_query_group_num", default=heads))
        attention = Attention(heads=heads, kv_heads=kv, head_dim=dim, value_head_dim=dim)
    experts = int(get("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", default=0) or 0)
    size = int(get("intermediate_size", "ffn_hidden_size", default=4 * hidden) or 4 * hidden)
    dense = FeedForward(size=size, gated=True, activation="silu")
    routed = dense
    if experts > 1:
        inter = int(get("moe_intermediate_size", "expert_ffn_hidden_size", default=size))
        shared = int(get("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", default=0) or 0)
        shared = shared or inter * int(get("n_shared_experts", "num_shared_experts", default=0) or 0)
        topk = int(get("num_experts_per_tok", "moe_topk", "top_k_experts", "moe_k", default=8))
        routed = FeedForward(
            kind="moe",
            size=inter,
            gated=True,
            activation="silu",
            experts=experts,
            experts_per_token=topk,
            shared_size=shared,
        )
    first_dense = int(get("first_k_dense_replace", default=0) or 0)
    kinds = get("layer_types", default=None) or []
    every = int(get("full_attention_interval", default=0) or 0)
    stack = []
    for index in range(layers):
        kind = str(kinds[index]) if index < len(kinds) else "full_attention"
        if every and not kinds:
            kind = "full_attention" if (index + 1) % every == 0 else "linear_attention"
        own = attention
        if "linear" in kind or "mamba" in kind:
            own = replace(attention, window=LINEAR_WINDOW)
            notes = ["linear-attention layers count as a window of 128 tokens"]
        elif "sliding" in kind and get("sliding_window"):
            own = replace(attention, window=int(get("sliding_window")))
        stack.append(Layer(attention=own, feed_forward=dense if index < first_dense else routed))
    return Model(
        name=name,
        family=str(config.get("model_type", "unknown")),
        hidden_size=hidden,
        vocab_size=int(get("vocab_size")),
        layers=tuple(stack),
        notes=tuple(notes),
    )
