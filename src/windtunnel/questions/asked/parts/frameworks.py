"""Which framework's habits a trainer has that goes by another name."""

from __future__ import annotations

import re

# The first word that a name contains decides, however either is cut by -, _ and spaces.
FRAMEWORKS: tuple[tuple[str, str], ...] = (
    *((word, "maxtext") for word in ("jax", "maxtext", "paxml", "levanter", "marin", "easydel", "tunix")),
    # FSDP2, with parallel layers as torchtitan has them
    *((word, "torchtitan") for word in ("prime-rl", "torchtitan", "olmo-core", "veomni", "vescale")),
    *((word, "megatron-deepspeed") for word in ("megatron-deepspeed", "gpt-neox")),
    ("deepspeed", "deepspeed"),
    ("internevo", "internevo"),
    ("colossal", "colossalai"),
    ("nanotron", "nanotron"),
    ("automodel", "fsdp"),
    ("dtensor", "fsdp"),  # NeMo RL's and AutoModel's other half
    *((word, "megatron") for word in ("megatron", "mindspeed", "flagscale", "primus", "nemo", "slime")),
    ("openrlhf", "deepspeed"),
    *((word, "fsdp") for word in ("transformers", "accelerate", "composer", "fsdp", "skyrl", "verl", "torchtune")),
    *((word, "fsdp") for word in ("llm-foundry", "axolotl", "unsloth", "llama-factory", "llamafactory", "trl", "peft")),
    *((word, "fsdp") for word in ("swift", "xtuner", "litgpt", "lightning", "hf trainer", "hugging face")),
    *((word, "fsdp") for word in ("nanochat", "nanogpt", "ddp", "torch", "open-instruct")),  # masters in fp32, autocast
)


def habits_of(name: str) -> str:
    """The framework whose habits a trainer of that name has, as advice; empty where the name says nothing."""
    whole = _uncut(name)
    framework = next((framework for word, framework in FRAMEWORKS if _uncut(word) in whole), "")
    return f"give {framework}, whose habits {name} has, or its launch file" if framework else ""


def _uncut(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())
