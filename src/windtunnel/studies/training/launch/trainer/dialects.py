"""YAML of LLaMA-Factory v1, torchtune and llm-foundry, lines of ms-swift and configurations of xtuner, as settings.

What such a file says by other names, or means where it says nothing, is put into the Trainer's words; `OWN` is the way
back, for a patch. Read off LLaMA-Factory's `v1/config`, torchtune 0.6, llm-foundry 0.22, ms-swift 4 and xtuner 0.2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from windtunnel.studies.training.launch.job_file import NO_EFFECT

Document = Mapping[str, object]
FACTORY, TUNE, FOUNDRY, LINE, XTUNED = "llama-factory v1", "torchtune", "llm-foundry", "ms-swift", "xtuner"
# The Trainer's name -> the file's own; what is not here has none.
OWN: Mapping[str, Mapping[str, str]] = {
    FACTORY: {
        "micro_batch_size": "micro_batch_size",
        "global_batch_size": "global_batch_size",
        "max_seq_length": "cutoff_len",
        "gradient_checkpointing": "enable_activation_checkpointing",
    },
    TUNE: {
        "per_device_train_batch_size": "batch_size",
        "gradient_accumulation_steps": "gradient_accumulation_steps",
        "gradient_checkpointing": "enable_activation_checkpointing",
        "torch_compile": "compile",
        "max_seq_length": "tokenizer.max_seq_len",
    },
    LINE: {
        "per_device_train_batch_size": "per_device_train_batch_size",
        "gradient_accumulation_steps": "gradient_accumulation_steps",
        "gradient_checkpointing": "gradient_checkpointing",
        "max_length": "max_length",
    },
    XTUNED: {
        "per_device_train_batch_size": "batch_size",
        "gradient_accumulation_steps": "accumulative_counts",
        "max_seq_length": "max_length",
        "sequence_parallel_size": "sequence_parallel_size",
    },
    FOUNDRY: {
        "per_device_train_batch_size": "device_train_microbatch_size",
        "global_batch_size": "global_train_batch_size",
        "fsdp_config.activation_checkpointing": "fsdp_config.activation_checkpointing",
        "fsdp_config.sharding_strategy": "fsdp_config.sharding_strategy",
    },
}
XTUNER = frozenset({"batch_size", "accumulative_counts", "max_epochs"})  # that a configuration of xtuner assigns
MULTIPLIED = "accumulative_counts *= sequence_parallel_size"  # as most, but not all, configurations of xtuner say
XTUNER_MODELS = ("SupervisedFinetune", "DPO", "RewardModel", "ORPO", "LLaVAModel")
TUNE_TARGETS = {"output_proj": "o_proj"}
CHUNKED = re.compile(r"LinearCrossEntropy|ChunkedOutput")
SWIFT = re.compile(r"(?m)^[^#\n]*\bswift (sft|pt|rlhf)\b")
SWIFT_STAGE = re.compile(r"zero([0-3])")


def dialect_of(document: Document) -> str:
    """Which of the three a YAML mapping is; empty for another."""
    if "global_train_batch_size" in document and isinstance(document.get("model"), Mapping):
        return FOUNDRY
    if _component(_mapping(document.get("model"))).startswith("torchtune."):
        return TUNE if {"batch_size", "optimizer"} <= document.keys() else ""
    own = {"model_class", "dist_config", "peft_config", "train_dataset"} & document.keys()
    return FACTORY if isinstance(document.get("model"), str) and own else ""


def translated(document: Document) -> Document:
    """The settings of a file by the Trainer's names; the document itself where it is of no dialect."""
    dialect = dialect_of(document)
    if not dialect:
        return document
    rest = {key: value for key, value in document.items() if not key.startswith(NO_EFFECT[dialect])}
    return {FACTORY: _factory, TUNE: _tune, FOUNDRY: _foundry}[dialect](rest, document)


def of_swift(options: Document) -> Document:
    """Options of ms-swift's launch line by the Trainer's names, with what it means where they say nothing."""
    rest = dict(options)
    tuner, dtype = rest.pop("tuner_type", rest.pop("train_type", "lora")), str(rest.pop("torch_dtype", "bfloat16"))
    settings: dict[str, object] = {
        "model_name_or_path": rest.pop("model", None),
        "bf16": dtype == "bfloat16",
        "fp16": dtype == "float16",
        "gradient_checkpointing": rest.pop("gradient_checkpointing", True),
        "adapter": tuner,
        "quantization_bit": rest.pop("quant_bits", None),
    }
    if tuner == "lora":
        settings |= {"lora_r": rest.pop("lora_rank", 8), "lora_target_modules": rest.pop("target_modules", None)}
    shard = SWIFT_STAGE.match(str(rest.get("deepspeed", "")))
    if shard is not None:
        settings["zero_stage"] = int(shard[1])
        if "offload" in str(rest.pop("deepspeed")):
            settings["deepspeed_offload"] = True
    if rest.get("rlhf_type") == "dpo":
        settings["stage"] = rest.pop("rlhf_type")
    return {**rest, **settings}


def of_xtuner(values: Document, parts: Mapping[str, Document]) -> Document:
    """A configuration of xtuner by the Trainer's names: what its first part sets, and `dict(type=...)` by its type.

    DeepSpeed is named on its command line alone; without it every GPU holds a replica. Recomputation is on unless told.
    """
    tuned = next((parts[kind] for kind in XTUNER_MODELS if kind in parts), {})
    lora, quantised = parts.get("LoraConfig"), parts.get("BitsAndBytesConfig", {})
    degree, dtype = values.get("sequence_parallel_size", 1), str(parts.get("AmpOptimWrapper", {}).get("dtype"))
    steps = values["accumulative_counts"]
    multiplied = MULTIPLIED in values and isinstance(degree, int) and isinstance(steps, int)
    settings: dict[str, object] = {
        "model_name_or_path": values.get("pretrained_model_name_or_path", values.get("llm_name_or_path")),
        "per_device_train_batch_size": values["batch_size"],
        "gradient_accumulation_steps": steps * degree if multiplied else steps,  # type: ignore[operator]
        "max_seq_length": values.get("max_length"),
        "sequence_parallel_size": degree,
        "cp_kind": "ulysses",
        "gradient_checkpointing": tuned.get("use_activation_checkpointing") is not False,
        "bf16": dtype == "bfloat16",
        "fp16": dtype == "float16",
        "stage": "dpo" if "DPO" in parts else None,
        "trains": next(
            (kind for kind in ("LLaVAModel", "InternVL_V1_5", "RewardModel", "ORPO") if kind in parts), None
        ),
    }
    if lora is not None:
        settings |= {"adapter": "lora", "lora_r": lora.get("r"), "lora_target_modules": lora.get("target_modules")}
        settings |= {name: quantised.get(name) for name in ("load_in_4bit", "load_in_8bit")}
    return settings


def _factory(rest: dict[str, object], document: Document) -> Document:
    dist, adapter = _part(rest, "dist_config"), _part(rest, "peft_config")
    settings: dict[str, object] = {
        "model_name_or_path": rest.pop("model"),
        "micro_batch_size": rest.pop("micro_batch_size", 1),
        "max_seq_length": rest.pop("cutoff_len", 2048),
        "global_batch_size": rest.pop("global_batch_size", None),
        "bf16": rest.pop("bf16", True),
        "gradient_checkpointing": rest.pop("enable_activation_checkpointing", True),
        "context_parallel_size": rest.pop("cp_size", None),
        "attn_implementation": rest.pop("flash_attn", None),
        "optim": _part(rest, "optim_config").get("name"),
        "quantization_bit": _part(rest, "quant_config").get("quantization_bit"),
        "expert_parallel_size": dist.get("ep_size"),
        "cp_kind": rest.pop("cp_mode", "ulysses") if document.get("cp_size", 1) != 1 else None,
        "enable_liger_kernel": "liger" in str(_part(rest, "kernel_config").get("name")),
    }
    if dist.get("name") == "deepspeed":
        settings["deepspeed"] = dist.get("config_file", "")
    elif dist:
        settings["fsdp"] = "full_shard"
    if adapter.get("name") == "lora" and "r" in adapter:
        targets = adapter.get("target_modules")
        settings |= {"adapter": "lora", "lora_r": adapter["r"], "lora_target_modules": targets}
    elif adapter:
        settings["peft_config"] = adapter.get("name")
    batching = rest.pop("batching_strategy", "normal")
    return {**rest, **settings, **({} if batching == "normal" else {"batching_strategy": batching})}


def _tune(rest: dict[str, object], document: Document) -> Document:
    model, loss = _part(rest, "model"), _component(_part(rest, "loss"))
    place, kind = str(_mapping(document.get("checkpointer")).get("checkpoint_dir", "")), _component(model)
    tokenizer = _part(rest, "tokenizer")
    dtype = str(rest.pop("dtype", "bf16"))
    settings: dict[str, object] = {
        "model_name_or_path": place or kind,
        "per_device_train_batch_size": rest.pop("batch_size"),
        "max_seq_length": tokenizer.get("max_seq_len"),
        "bf16": dtype == "bf16",
        "fp16": dtype == "fp16",
        "pure_bf16": dtype == "bf16",
        "gradient_checkpointing": rest.pop("enable_activation_checkpointing", False),
        "torch_compile": rest.pop("compile", False),
        "optim": _optimizer(_component(_part(rest, "optimizer"))),
        "cut_cross_entropy": bool(CHUNKED.search(loss)),
        "tensor_parallel_size": rest.pop("tensor_parallel_dim", None),
        "fsdp": "full_shard",
    }
    rest.pop("tensor_parallel_plan", None)
    if "lora_rank" in model:
        own = model.get("lora_attn_modules")
        targets = [TUNE_TARGETS.get(str(name), str(name)) for name in own] if isinstance(own, list) else []
        targets += ["gate_proj", "up_proj", "down_proj"] * bool(model.get("apply_lora_to_mlp"))
        settings |= {"adapter": "lora", "lora_r": model["lora_rank"], "lora_target_modules": targets}
        settings["load_in_4bit"] = "qlora" in kind or bool(model.get("quantize_base"))
    return {**rest, **settings}


def _foundry(rest: dict[str, object], document: Document) -> Document:
    model, precision = _part(rest, "model"), str(rest.pop("precision", "amp_bf16"))
    micro = rest.pop("device_train_microbatch_size", None)
    attention = _mapping(model.get("attn_config")).get("attn_impl")
    optimizer = str(_part(rest, "optimizer").get("name", "adamw")).removeprefix("decoupled_")
    settings: dict[str, object] = {
        "model_name_or_path": model.get("pretrained_model_name_or_path", model.get("name")),
        "per_device_train_batch_size": micro if isinstance(micro, int) else 1,
        "global_batch_size": rest.pop("global_train_batch_size"),
        "max_seq_length": _value(document, rest.pop("max_seq_len", None)),
        "bf16": precision.endswith("bf16"),
        "fp16": precision.endswith("fp16"),
        "attn_implementation": {"torch": "eager", "triton": "triton"}.get(str(attention)),
        "optim": optimizer,
    }
    if micro == "auto":
        settings["device_train_microbatch_size"] = micro
    sizes = {"layers": model.get("n_layers"), "hidden": model.get("d_model"), "heads": model.get("n_heads")}
    hidden, ratio = sizes["hidden"], model.get("expansion_ratio", 4)
    is_plain = model.get("name") == "mpt_causal_lm" and "ffn_config" not in model
    if is_plain and isinstance(hidden, int) and isinstance(ratio, int) and None not in sizes.values():
        own = {"ffn": hidden * ratio, "vocab": model.get("vocab_size"), "gated": False, "family": "gpt"}
        settings["stated_model"] = {**sizes, **own, "tied_embeddings": True}
    return {**rest, **settings}


def _optimizer(component: str) -> str:
    name = component.rpartition(".")[2].lower().removeprefix("paged")
    return f"{name.removesuffix('8bit')}_8bit" if name.endswith("8bit") else name


def _part(rest: dict[str, object], name: str) -> Document:
    return _mapping(rest.pop(name, None))


def _mapping(value: object) -> Document:
    return value if isinstance(value, Mapping) else {}


def _component(part: Document) -> str:
    return str(part.get("_component_", ""))


def _value(document: Document, value: object) -> object:
    """A value, or what `${a.b}` names."""
    reference = re.fullmatch(r"\$\{([\w.]+)\}", str(value))
    if reference is None:
        return value
    part: object = document
    for word in reference[1].split("."):
        part = _mapping(part).get(word)
    return part
