"""In which number formats a checkpoint is stored, as its `quantization_config` says it.

    quant_method        dense matrices              routed experts
    (none)              torch_dtype, 16 bits        the same
    mxfp4               16 bits                     mxfp4                        OpenAI's gpt-oss
    fp8                 fp8, fp8_block with blocks  the same, or `expert_dtype`  DeepSeek, Qwen, MiniMax
    compressed-tensors  the first group's weights   the same                     llm-compressor, NVIDIA's, Kimi-K2.5
    modelopt            quant_algo                  the same                     NVIDIA's, in a file of its own or not
    awq, gptq           int4 or int8 by `bits`      the same

A list of what was left alone that names attention leaves the dense part of a mixture in 16 bits. The cache is in 8 bits
where the checkpoint brings scales for it (`kv_cache_scheme`, `kv_cache_quant_algo`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from windtunnel.errors import SpecError
from windtunnel.files.document import read_json
from windtunnel.physics.model.limits import showable
from windtunnel.physics.model.reading.config_file import BYTES_MAX

NVIDIA_FILE = "hf_quant_config.json"
EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", "experts_per_token")
WHOLE = {"nvfp4": "nvfp4", "fp8": "fp8", "fp8_pb_wo": "fp8_block", "w4a16_awq": "int4", "w4a8_awq": "int4"}


@dataclass(frozen=True, slots=True)
class Stored:
    """Formats of a checkpoint: of dense matrices, of routed experts, and of the cache where it says so."""

    weights: str = "bf16"
    expert_weights: str | None = None
    kv: str | None = None


PLAIN = Stored()


def stored_formats(config: Mapping[str, object], folder: Path | None = None) -> Stored:
    """Formats by a `config.json` and, where a folder is given, NVIDIA's file beside it. Raises SpecError."""
    fields = {**config, **_mapping(config.get("text_config"))}
    quantization = fields.get("quantization_config")
    if quantization is None and folder is not None and (folder / NVIDIA_FILE).is_file():
        beside = read_json(folder / NVIDIA_FILE, "give NVIDIA's description of a quantised checkpoint", BYTES_MAX)
        quantization = {"quant_method": "modelopt", **_mapping(_mapping(beside).get("quantization"))}
    if quantization is None:
        half = str(fields.get("torch_dtype") or fields.get("dtype")) in ("float16", "torch.float16")
        return Stored("fp16" if half else "bf16")
    scheme = _mapping(quantization)
    mixture = any(fields.get(name) for name in EXPERTS)
    stored = _by_method(str(scheme.get("quant_method", "")).lower().replace("_", "-"), scheme)
    if "fp4" in (fields.get("expert_dtype"), scheme.get("expert_dtype")):  # DeepSeek-V4, 4.1: blocks of 32
        stored = replace(stored, expert_weights="mxfp4")
    alone = [str(name) for key in ("ignore", "exclude_modules") for name in scheme.get(key) or ()]
    latent = fields.get("kv_lora_rank") is not None and stored.weights == "nvfp4"  # see Deployment.projections
    if mixture and not latent and any("self_attn" in name for name in alone):
        stored = replace(stored, weights="bf16", expert_weights=stored.expert_weights or stored.weights)
    return stored


def _by_method(method: str, entry: Mapping[str, object]) -> Stored:
    if method == "mxfp4":
        return Stored("bf16", "mxfp4")
    if method in ("fp8", "fbgemm-fp8"):
        return Stored("fp8_block" if entry.get("weight_block_size") else "fp8")
    if method in ("awq", "gptq"):
        return Stored("int8" if entry.get("bits", entry.get("w_bit", 4)) == 8 else "int4")
    if method == "bitsandbytes":
        return Stored("int8" if entry.get("load_in_8bit") else "int4")
    groups = _mapping(entry.get("config_groups"))
    scheme = entry.get("kv_cache_scheme") or str(entry.get("kv_cache_quant_algo") or "").upper().startswith("FP8")
    kv = "fp8" if scheme else None
    algorithm = str(entry.get("quant_algo") or "").lower()
    if method == "modelopt" and algorithm in WHOLE:
        return Stored(WHOLE[algorithm], kv=kv)
    if groups:
        weights = _mapping(_mapping(next(iter(groups.values()))).get("weights"))
        bits, kind = weights.get("num_bits"), weights.get("type")
        floats = {8: "fp8_block" if weights.get("block_structure") else "fp8"}
        floats[4] = "mxfp4" if weights.get("group_size") == 32 else "nvfp4"
        name = floats.get(bits) if kind == "float" else {8: "int8", 4: "int4"}.get(bits)  # type: ignore[arg-type]
        if name is not None:
            return Stored(name, kv=kv)
    remedy = "its number format is not known: say which with --weights"
    raise SpecError("quantization_config", showable(entry.get("quant_method")), remedy)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
