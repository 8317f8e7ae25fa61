"""Configurations of xtuner's v1 in Python, as plans.

Read off xtuner 1.0 (`v1/train/trainer.py`, `v1/config/fsdp.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from windtunnel.errors import InputFileError, SpecError
from windtunnel.physics.model.catalogue import catalogued, load_model
from windtunnel.studies.training.launch.job_file import Native
from windtunnel.studies.training.launch.recipes.models import model_name
from windtunnel.studies.training.launch.recipes.python_text import Module
from windtunnel.studies.training.launch.recipes.python_values import (
    CallResult,
    Unread,
    kind_of,
    settings_of,
    word_of,
)

XTUNER_SETTINGS = {  # of each part that carries some: those that are named where they are not known
    "model_cfg": (),
    "fsdp_cfg": (
        "recompute_ratio", "hsdp_sharding_size", "cpu_offload", "reshard_after_forward",
        "torch_compile", "fp32_lm_head",
    ),
    "dataloader_cfg": (), "optim_cfg": (), "loss_cfg": ("mode",),
}  # fmt: skip


def trainer_config(module: Module) -> CallResult:
    """The last TrainerConfig of a file. Raises InputFileError."""
    configurations = [
        value for value in module.names.values() if isinstance(value, CallResult) and value.kind == "TrainerConfig"
    ]
    if not configurations:
        remedy = "a configuration of post-training is `windtunnel rl`'s: name the model and give its flags there"
        raise InputFileError(module.path, "makes no TrainerConfig of xtuner v1", remedy)
    return configurations[-1]


def native_of_xtuner(configuration: CallResult, n_gpus: int, where: str) -> Native:
    """The job that it configures, on so many GPUs. Raises SpecError."""
    own, shards = configuration.values, settings_of(configuration.values.get("fsdp_cfg"))
    config = own.get("model_cfg")
    model, unknown = settings_of(config), []
    name = model_name({"model": config}) or (
        catalogued(str(own["load_from"])) if isinstance(own.get("load_from"), str) else ""
    )
    if not name:
        unknown.append(f"the model {kind_of(config)}")

    def whole(of: Mapping[str, object], word: str, default: int) -> int:
        value = of.get(word, default)
        if isinstance(value, Unread | CallResult):
            unknown.append(f"{word} {word_of(value)} (taken as {default})")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SpecError(word, value, "give a whole number of at least 1", where)
        return value

    tp, cp = whole(shards, "tp_size", 1), whole(own, "sp_size", 1)
    ep = max(whole(shards, "ep_size", 1), whole(model, "ep_size", 1))
    micro = whole(own, "intra_layer_micro_batch", 1)
    if micro > 1:
        unknown.append(f"intra_layer_micro_batch {micro}: exchanges of one beside the other")
    replicas = max(1, n_gpus // (tp * cp))
    batch = replicas * micro if own.get("global_batch_size") is None else whole(own, "global_batch_size", replicas)
    fields: dict[str, object] = {
        "framework": "fsdp", "tp": tp, "cp": cp, "ep": ep, "micro_batch": micro, "global_batch": batch,
        "zero_stage": 2 if shards.get("reshard_after_forward") is False else 3, "precision": "bf16",
    }  # fmt: skip
    if cp > 1:
        fields["cp_kind"] = "ulysses"
    packed = settings_of(own.get("dataloader_cfg")).get("pack_max_length")
    if isinstance(packed, int):
        fields["seq_len"] = packed
    else:
        unknown.append(f"pack_max_length {word_of(packed)}")
    ratio = shards.get("recompute_ratio", 1.0)
    layers = len(load_model(name).layers) if name else 0
    if isinstance(ratio, int | float):
        partly = f"full:{round(ratio * layers)}" if layers else "full"
        fields["recompute"] = "full" if ratio >= 1.0 else "none" if ratio <= 0.0 else partly
    fields["compile"] = (model.get("compile_cfg") is not False) and shards.get("torch_compile") is not False
    optimizer = kind_of(own.get("optim_cfg"))
    fields["optimizer"] = "muon" if "Muon" in optimizer else "adam"
    if not optimizer.startswith(("AdamW", "Muon")):
        unknown.append(f"optim_cfg {optimizer}")
    mode = settings_of(own.get("loss_cfg")).get("mode")
    if mode == "chunk":
        fields["loss"] = "fused"
    group = shards.get("hsdp_sharding_size")
    if isinstance(group, int):
        fields["shard_group"] = group
    for part, words in XTUNER_SETTINGS.items():
        if isinstance(own.get(part), Unread):
            unknown.append(f"{part} {word_of(own[part])}")
        values = settings_of(own.get(part))
        unknown += [
            f"{part}.{word} {word_of(values[word])}"
            for word in words
            if isinstance(values.get(word), Unread | CallResult)
        ]
    unknown += [f"fsdp_cfg.{word}" for word in ("cpu_offload", "fp32_lm_head") if shards.get(word) is True]
    unknown += [f"model_cfg.{word}" for word in ("float8_cfg", "mtp_config") if model.get(word) is not None]
    return Native("fsdp", fields, name or None, tuple(unknown), where)
