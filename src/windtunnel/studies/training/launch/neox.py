"""GPT-NeoX's YAML (`megatron/neox_arguments`, May 2026): DeepSpeed's keys, with degrees and the model beside them.

Of several files that a job is launched with one is read. Sizes are those of `megatron/model/transformer.py`: what
`intermediate_size` says of a gated MLP is three times the width of one of its products. With `gpt_j_residual` attention
and MLP stand side by side (20B.yml with its vocabulary has as many parameters as the published GPT-NeoX-20B).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from windtunnel.studies.training.launch import deepspeed
from windtunnel.studies.training.launch.job_file import NO_EFFECT, Native, Options

OF_DEEPSPEED = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "zero_optimization", "fp16",
    "bf16", "optimizer", "data_types",
)  # fmt: skip
SIZES = {
    "num_layers": "layers", "hidden_size": "hidden", "num_attention_heads": "heads", "num_kv_heads": "kv_heads",
    "padded_vocab_size": "vocab",
}  # fmt: skip
GATED = ("geglu", "reglu", "swiglu", "bilinear", "glu")


def is_neox(document: Mapping[str, object]) -> bool:
    """Whether a YAML mapping is GPT-NeoX's: degrees by its own names."""
    return {"pipe_parallel_size", "model_parallel_size"} <= {name.replace("-", "_") for name in document}


def read(document: Mapping[str, object], n_gpus: int, where: str) -> Native:
    """The job that a file states, on so many GPUs; degrees and model alone where it has no batch. Raises SpecError."""
    whole = {name.replace("-", "_"): value for name, value in document.items()}
    options = Options.of({name: value for name, value in whole.items() if name not in OF_DEEPSPEED}, where)
    options.ignore(*NO_EFFECT["GPT-NeoX"])
    config: dict[str, object] = {name: whole[name] for name in OF_DEEPSPEED if name in whole}
    config["tensor_parallel"] = {"autotp_size": options.count("model_parallel_size", 1)}
    config["pipeline"] = {"stages": options.count("pipe_parallel_size", 1, least=0) or 1}
    kinds = {options.take("precision"), Options.of(config, where).take("fp16.type")}
    if "bfloat16" in kinds:
        config |= {"bf16": {"enabled": True}, "fp16": {"enabled": False}}
    elif "fp16" in kinds:
        config["fp16"] = {"enabled": True}
    native = deepspeed.read(_offload_by_device(config, where), n_gpus, where)
    fields = {**native.fields, "sequence_parallel": options.flag("sequence_parallel")}
    fields["recompute"] = "full" if options.flag("checkpoint_activations") else "none"
    if "global_batch" not in fields:  # the rest is in another file of the same launch
        fields = {name: fields[name] for name in ("framework", "tp", "pp", "cp")}
    if (length := options.whole("seq_length")) is not None:
        fields["seq_len"] = length
    options.left |= {name for name in ("checkpoint_num_layers", "moe_num_experts") if options.count(name, 1) > 1}
    if options.flag("partition_activations"):
        options.left.add("partition_activations")
    if set(re.findall(r"'(\w+)'", str(options.take("attention_config")))) - {"flash", "global"}:
        options.left.add("attention_config")
    model = _model(options)  # but for a mixture or a mixer that is not read
    model = None if options.left & {"moe_num_experts", "attention_config"} else model
    unknown = (*(name for name in native.unknown if not name.startswith(NO_EFFECT["GPT-NeoX"])), *options.unknown())
    return Native("deepspeed", fields, model, unknown, where)


def _offload_by_device(config: dict[str, object], where: str) -> dict[str, object]:
    """The switch `cpu_offload` as what took its place in DeepSpeed."""
    zero = config.get("zero_optimization")
    if not isinstance(zero, Mapping) or "cpu_offload" not in zero:
        return config
    own = {name: value for name, value in zero.items() if name != "cpu_offload"}
    if Options.of(config, where).flag("zero_optimization.cpu_offload"):
        own.setdefault("offload_optimizer", {"device": "cpu"})
    return {**config, "zero_optimization": own}


def _model(options: Options) -> dict[str, object] | None:
    sizes = {own: options.whole(name) for name, own in SIZES.items()}
    gated, multiple = str(options.take("activation", "gelu")) in GATED, options.count("mlp_multiple_of", 1)
    width, tied = options.whole("intermediate_size"), not options.flag("no_weight_tying")
    parallel = options.flag("gpt_j_residual")
    if sizes["layers"] is None or sizes["hidden"] is None or sizes["heads"] is None:
        return None
    width = width or 4 * sizes["hidden"]
    width = int(width * 2 / 3) // 2 if gated else width
    family = "llama" if options.leaves.get("norm") == "rmsnorm" else "gpt-neox" if parallel else "gpt"
    rounded = -(-width // multiple) * multiple
    return {**sizes, "ffn": rounded, "gated": gated, "family": family, "tied_embeddings": tied}
