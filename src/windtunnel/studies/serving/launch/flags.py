"""Flags of vLLM and SGLang as fields of a deployment, and back.

Flags that say nothing of speed are passed over, others that are not modelled are named.
"""

from __future__ import annotations

import re
from typing import Any

from windtunnel.errors import SpecError
from windtunnel.studies.serving.deployment import Deployment

INTEGERS = {  # flag -> field of a deployment
    "tensor-parallel-size": "tp", "tp": "tp", "tp-size": "tp", "pipeline-parallel-size": "pp", "pp": "pp",
    "pp-size": "pp", "data-parallel-size": "attn_dp", "dp": "attn_dp", "dp-size": "attn_dp",
    "max-model-len": "max_model_len", "context-length": "max_model_len", "max-num-seqs": "max_num_seqs",
    "max-running-requests": "max_num_seqs", "max-num-batched-tokens": "max_num_batched_tokens",
    "chunked-prefill-size": "max_num_batched_tokens", "block-size": "block_size", "page-size": "block_size",
    "num-gpu-blocks-override": "num_gpu_blocks", "ep": "moe_ep", "ep-size": "moe_ep", "expert-parallel-size": "moe_ep",
}  # fmt: skip
LEFT_OPEN: dict[tuple[str, str], dict[str, bool]] = {  # values that are no sizes; lengths are then the model's
    ("max-model-len", "-1"): {}, ("max-model-len", "auto"): {},
    ("chunked-prefill-size", "-1"): {"chunked_prefill": False},
}  # fmt: skip
SHORTENED = ("max-model-len", "max-num-batched-tokens")
NEGATIVE = re.compile(r"-\d[\d.]*")
SHARES = {"gpu-memory-utilization": "gpu_memory_utilization", "mem-fraction-static": "gpu_memory_utilization"}
SWITCHES: dict[str, tuple[str, bool]] = {
    "enable-prefix-caching": ("prefix_caching", True), "no-enable-prefix-caching": ("prefix_caching", False),
    "disable-radix-cache": ("prefix_caching", False), "enable-chunked-prefill": ("chunked_prefill", True),
    "no-enable-chunked-prefill": ("chunked_prefill", False), "language-model-only": ("images", False),
    "language-only": ("images", False),
}  # fmt: skip
FORMATS = {"fp8": "fp8", "modelopt": "fp8", "modelopt_fp4": "nvfp4", "mxfp4": "mxfp4", "awq": "int4", "gptq": "int4"}
CACHES = {"auto": None, "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "bfloat16": "bf16", "bf16": "bf16"}
# Say nothing of speed; what a word begins with, or all of it.
QUIET = (
    "host", "port", "api-key", "served-model-name", "trust-remote-code", "tokenizer", "seed", "download-dir",
    "chat-template", "tool-", "enable-auto-tool-choice", "reasoning-parser", "enable-reasoning", "disable-log-",
    "disable-uvicorn-", "enable-log-", "no-enable-log-", "max-log-len", "uvicorn-", "ssl-", "hf-token", "allowed-",
    "revision", "code-revision", "log-", "cpu-offload-gb", "root-path", "generation-config", "load-format",
    "distributed-executor-backend", "kv-transfer-config", "disaggregation-", "response-role", "skip-server-warmup",
    "enable-metrics", "headless", "device", "speculative-algorithm", "speculative-draft-model-path",
    "speculative-eagle-topk", "task", "runner",
)  # fmt: skip
ALONE = re.compile(  # switches: the word after them is no value of theirs
    r"(no-|enable-|disable-|skip-|use-).*|trust-remote-code|enforce-eager|async-scheduling|headless|O\d"
)
UNGRAPHED = re.compile(r"enforce-eager|disable-cuda-graph|-O0|cudagraph.?mode\W+(NONE|0)")
FLOATS = ("auto", "half", "float16", "fp16", "bfloat16", "bf16")


def fields_of_flags(words: list[str]) -> tuple[str, dict[str, Any], list[str]]:
    """(model, fields, flags that are not modelled). Raises SpecError for values that are none."""
    model, fields, ignored = "", {}, []  # type: str, dict[str, object], list[str]
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            model = model or word
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if name in SWITCHES:
            key, on = SWITCHES[name]
            fields[key] = on
            continue
        alone = ALONE.fullmatch(name) is not None or word == "-ep"  # vLLM's -ep is a switch
        is_value = bool(rest) and (NEGATIVE.fullmatch(rest[0]) is not None or not rest[0].startswith("-"))
        if not equals and is_value and not (alone and not _plain(rest[0])):
            value = rest.pop(0)
        spread = name == "moe-a2a-backend" and value != "none"  # SGLang: its experts' ranks are all (_handle_a2a_moe)
        if spread or name in ("enable-expert-parallel", "enable-ep-moe") or (name == "ep" and not value):
            fields["moe_ep"] = 0
        elif name == "enable-dp-attention":
            fields["dp_attention"] = True
        elif name in ("model", "model-path"):
            model = value
        elif name.startswith("limit-mm-per-prompt") and re.search(r'image["\s]*:\s*0\b', f"{name}:{value}"):
            fields["images"] = False
        elif (name, value) in LEFT_OPEN:
            fields |= LEFT_OPEN[name, value]
        elif name in INTEGERS:
            fields[INTEGERS[name]] = _integer(name, value)
        elif name in SHARES:
            fields[SHARES[name]] = _share(name, value)
        elif name == "kv-cache-dtype":
            if value not in CACHES:
                raise SpecError("--kv-cache-dtype", value, f"use one of {', '.join(CACHES)}")
            fields["kv"] = CACHES[value]
        elif name in ("quantization", "q"):
            if value not in FORMATS:
                raise SpecError("--quantization", value, f"is not known; known: {', '.join(FORMATS)}")
            fields["weights"] = FORMATS[value]
        elif name == "speculative-num-steps":
            fields["speculative_tokens"] = _integer(name, value)
        elif name == "speculative-num-draft-tokens":  # with the steps beside it, they count
            fields.setdefault("speculative_tokens", _integer(name, value))
        elif name in ("speculative-config", "sc"):
            match = re.search(r'num_speculative_tokens"?\s*:\s*(-?\d+)', value)
            fields["speculative_tokens"] = _integer(f"{name} num_speculative_tokens", match[1]) if match else 1
        elif name == "cpu-offload-gb" and NEGATIVE.fullmatch(value):
            raise SpecError(f"--{name}", value, "give GiB of host memory: 0, or leave it out")
        elif name == "cpu-offload-gb" and value not in ("0", "0.0"):
            raise SpecError(f"--{name}", value, "weights in host memory are not modelled: leave it out")
        elif name.startswith("O") and name + value not in ("O2", "O3"):
            ignored.append(f"-{name}{value}")
        elif not name.startswith((*QUIET, "O")) and not (name == "dtype" and value in FLOATS):
            ignored.append(f"--{name} {value}".strip())
    if not model or model.startswith("$"):
        problem = f"{model} has no value: give it one, or write the model out" if model else "the line names no model"
        raise SpecError("MODEL", " ".join(words), problem)
    return model, {key: value for key, value in fields.items() if value is not None}, ignored


def _plain(word: str) -> bool:
    """Whether a word is a switch's value rather than a model."""
    return word.lower() in ("true", "false", "on", "off") or word.replace(".", "").isdigit()


def _integer(name: str, value: str) -> int:
    short = re.fullmatch(r"(\d{1,9})([kKmM])", value)  # vLLM's `human_readable_int`: 32k is 32,000, 32K 32,768
    if short and name in SHORTENED:
        return int(short[1]) * {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20}[short[2]]
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise SpecError(f"--{name}", value or None, "give a whole number of at least 1 after it")
    return int(value)


def _share(name: str, value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0.0 < share <= 1.0:
        raise SpecError(f"--{name}", value or None, "give a share of the memory after it, such as 0.9")
    return share


def flags_of(deployment: Deployment) -> list[str]:
    """vLLM's flags of a replica: what its defaults would not do."""
    flags = []
    sizes = (("tensor-parallel-size", "tp"), ("pipeline-parallel-size", "pp"), ("data-parallel-size", "attn_dp"))
    flags += [f"--{flag}={getattr(deployment, name)}" for flag, name in sizes if getattr(deployment, name) > 1]
    if deployment.moe_ep is not None and deployment.moe_ep > 1:
        flags.append("--enable-expert-parallel")
    for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "gpu_memory_utilization"):
        value = getattr(deployment, name)
        if value is not None:
            flags.append(f"--{name.replace('_', '-')}={value}")
    flags += ["--kv-cache-dtype=fp8"] * (deployment.kv == "fp8")
    flags += ["--language-model-only"] * (deployment.images is False)
    for name, flag in (("prefix_caching", "enable-prefix-caching"), ("chunked_prefill", "enable-chunked-prefill")):
        value = getattr(deployment, name)
        if value is not None:
            flags.append(f"--{flag}" if value else f"--no-{flag}")
    return flags
