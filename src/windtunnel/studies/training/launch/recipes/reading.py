"""Recipes of NeMo 2 and of Megatron-Bridge and configurations of xtuner's v1, in Python, as plans.

A recipe is a function, of which a file may have several: `llama3.py:llama3_8b_pretrain_config`. It is followed on its
text (`python_text.py`) and never run. Names of settings are Megatron-Core's, so what a recipe sets is read as its
options are. Read off NeMo 2.5 (`nemo/collections/llm/recipes`, `lightning/pytorch/strategies`), Megatron-Bridge 0.5
(`recipes`, `perf_recipes`, `training/comm_overlap.py`, `mixed_precision.py`, `config.py`); xtuner's in `xtuner.py`.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from windtunnel.errors import InputFileError, SpecError
from windtunnel.files.bytes import read_text
from windtunnel.physics.model.architecture import Model
from windtunnel.physics.model.catalogue import catalogued, load_model
from windtunnel.studies.training.launch.job_file import NO_EFFECT, Native
from windtunnel.studies.training.launch.megatron import log as megatron_log
from windtunnel.studies.training.launch.megatron import reading as megatron_reading
from windtunnel.studies.training.launch.recipes.models import model_name
from windtunnel.studies.training.launch.recipes.python_text import (
    BYTES_MOST,
    Module,
    module_of,
)
from windtunnel.studies.training.launch.recipes.python_values import (
    GIVE,
    CallResult,
    Unread,
    is_unread,
    kind_of,
    parsed,
    settings_of,
    word_of,
)
from windtunnel.studies.training.launch.recipes.xtuner import XTUNER_SETTINGS, native_of_xtuner, trainer_config

BRIDGE, NEMO, XTUNER = "Megatron-Bridge", "NeMo 2", "xtuner v1"
IMPORTS = {"megatron.bridge": BRIDGE, "nemo.collections.llm": NEMO, "nemo_run": NEMO, "xtuner.v1": XTUNER}
ENDS = {BRIDGE: "_config", NEMO: "_recipe"}
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "uint8": "fp8"}
RENAMED = {
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "expert_tensor_model_parallel_size": "expert_tensor_parallel_size", "cuda_graph_scope": "cuda_graph_modules",
    "bucket_size": "ddp_bucket_size", "num_moe_experts": "num_experts",
}  # fmt: skip
FP8 = {  # word of a precision's name -> (recipe of fp8, whether parameters stay in it)
    "fp8_delayed": ("delayed", True), "bf16_with_fp8_mixed": ("delayed", True), "mxfp8": ("mxfp8", True),
    "current_scaling": ("tensorwise", True), "subchannel": ("blockwise", False),
}  # fmt: skip
PRECISION = re.compile(r"bf16|fp16|fp8|fp4|fp32")  # in a function's name, such as `bf16_with_mxfp8_mixed`
ATTENTION_FORMATS = ("fp8_dot_product_attention", "fp8_multi_head_attention")
ENDS_IN_BF16 = ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")
KEPT_IN_BF16 = {  # name of a precision -> layers at start and end that it keeps in bf16 (`mixed_precision.py`)
    "bf16_with_fp8_current_scaling_mixed": (1, 1), "fp16_with_fp8_current_scaling_mixed": (1, 1),
    "nemotron_h_bf16_with_fp8_current_scaling_mixed": (2, 2), "nanov2_bf16_with_fp8_current_scaling_mixed": (2, 2),
    "nemotron_3_super_bf16_with_nvfp4_mixed": (0, 14),
}  # fmt: skip
LORA_DIM = 32  # `LoRA.dim` of both
LORA_TARGETS = {"linear_qkv": "q,k,v", "linear_proj": "o", "linear_fc1": "gate,up", "linear_fc2": "down"}
LAYOUT, LETTERS = "pipeline_model_parallel_layout", {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
TASK = re.compile(r"_(?:pretrain|sft|peft|finetune)_")  # in a recipe's name, behind the model's
SHAPE = re.compile(
    r"num_layers$|mamba_|hybrid_|is_hybrid|mtp_|keep_mtp|activation_func|kv_channels|use_fused_weighted|spec$"
)
MOCK_IMAGES, MOCK_SIZE = "MockVLMSFTDatasetConfig", (256, 256)
IN_A_PIXEL = 6  # numbers that Qwen's towers read of one: three colours, in a clip of two frames
FREEZES = ("freeze_language_model", "freeze_vision_model")
BATCHES = ("global_batch_size", "micro_batch_size")
PARTS = ("model", "train", "dataset", "ddp", "optimizer", "mixed_precision", "comm_overlap", "peft")
IDLE = re.compile("|".join(NO_EFFECT["recipes"]))


def split(word: str) -> tuple[str, str]:
    """The path and the recipe of `file.py:recipe`; no recipe where the word names none."""
    path, _, name = word.rpartition(":")
    return (path, name) if path.lower().endswith(".py") and name.isidentifier() and os.path.isfile(path) else (word, "")


def framework_of(path: str | Path) -> str:
    """Which of the three a Python file is of; empty for another. Raises InputFileError."""
    return _framework(parsed(read_text(path, GIVE, BYTES_MOST), str(path)))


def _framework(tree: ast.Module) -> str:
    for node in tree.body:
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            for begins, framework in IMPORTS.items():
                if name == begins or name.startswith(f"{begins}."):
                    return framework
    return ""


def read(path: str | Path, recipe: str, n_gpus: int) -> Native:
    """The job of a recipe, on so many GPUs. Raises InputFileError or SpecError."""
    configuration, assumed = configuration_of(path, recipe)
    where = str(path) if not recipe else f"{path}:{recipe}"
    return native_of(configuration, framework_of(path), n_gpus, where, recipe, assumed)


def configuration_of(path: str | Path, recipe: str) -> tuple[CallResult, list[str]]:
    """What a recipe makes, and what was taken for granted on the way. Raises InputFileError or SpecError."""
    module = module_of(Path(path), Path(path))
    framework = _framework(module.tree)
    configuration = trainer_config(module) if framework == XTUNER else _make(module, framework, recipe)
    return configuration, module.budget.assumed


def native_of(
    configuration: CallResult, framework: str, n_gpus: int, where: str, recipe: str = "", assumed: Sequence[str] = ()
) -> Native:
    """The job that a configuration is, on so many GPUs. Raises InputFileError or SpecError.

    `recipe`: the name of what makes it; `assumed`: what was taken for granted on the way.
    """
    lacking = _rests_on(configuration, framework)
    if lacking:
        remedy = f"give it where it lies in a checkout of {framework}, from a folder above both"
        raise InputFileError(where, f"rests on {lacking}, which does not lie beside it", remedy)
    if framework == XTUNER:
        native = native_of_xtuner(configuration, n_gpus, where)
    else:
        native = _megatron(configuration, n_gpus, where, recipe)
    whole = [name for name in configuration.values if name.startswith("**")]
    return replace(native, unknown=(*native.unknown, *dict.fromkeys([*whole, *assumed])))


def _make(module: Module, framework: str, recipe: str) -> CallResult:
    """What a recipe of the file makes. Raises SpecError that names those that there are."""
    end = ENDS[framework]
    names = [name for name in module.functions if name.endswith(end) and not name.startswith("_")]
    top = [name for name, value in module.names.items() if isinstance(value, CallResult) and _is_job(value)]
    if not recipe and len(names) + len(top) == 1:
        recipe = (names or top)[0]
    if recipe not in names and recipe not in top:
        listed = ", ".join([*names, *top][:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        if not listed:
            raise InputFileError(module.path, f"has no recipe of {framework} (a function `...{end}`)", GIVE)
        raise SpecError("recipe", recipe or None, f"give {module.path}:NAME, of {listed}", str(module.path))
    try:
        configuration = module.names[recipe] if recipe in top else module.called(module.functions[recipe], [], {})
    except RecursionError:
        raise InputFileError(module.path, f"{recipe} is nested too deep to be followed", GIVE) from None
    if not isinstance(configuration, CallResult):
        text = configuration.text if isinstance(configuration, Unread) else type(configuration).__name__
        raise InputFileError(module.path, f"{recipe} gives {text}, no configuration that can be read", GIVE)
    return configuration


def _rests_on(configuration: CallResult, framework: str) -> str:
    """The first function that makes the configuration or a part that carries settings and that is not followed."""
    if configuration.rests_on:
        return configuration.rests_on
    if framework == XTUNER:
        parts = {word: configuration.values.get(word) for word in XTUNER_SETTINGS}
    else:
        above = (
            (configuration.values.get("trainer"), configuration.values.get("model"))
            if "trainer" in configuration.values
            else ()
        )
        parts = {str(at): part for at, part in enumerate(above)} | _parts(configuration)
    for word, part in parts.items():
        if isinstance(part, CallResult) and part.rests_on and not _is_library(word, part):
            return part.rests_on
    return ""


def _is_library(word: str, part: CallResult) -> bool:
    """Whether a function that is not followed is of the framework and says by its name what it makes."""
    if word == "optimizer":
        return part.kind.startswith("distributed_")
    return word == "mixed_precision" and bool(PRECISION.search(_precision_name(part)))


def _is_job(configuration: CallResult) -> bool:
    return {"trainer", "model"} <= configuration.values.keys() or {"model", "train"} <= configuration.values.keys()


# ---------------------------------------------------------------------------------------------- Megatron-Core's names


def _megatron(configuration: CallResult, n_gpus: int, where: str, recipe: str) -> Native:
    settings: dict[str, object] = {}
    parts = _parts(configuration)
    name = model_name(parts)
    by_recipe = "" if name else catalogued(TASK.split(recipe)[0])
    name = name or by_recipe
    formats = _precision(parts.get("mixed_precision"))
    optimizer, ddp, overlap = (parts.get(word) for word in ("optimizer", "ddp", "comm_overlap"))
    for word in ("model", "strategy", "train", "ddp", "optimizer"):
        settings |= settings_of(parts.get(word))
    settings |= {name: own for name, own in settings_of(parts.get("dataset")).items() if name in BATCHES}
    settings.pop("grad_reduce_in_fp32", None)  # the precision says it
    settings |= formats
    if isinstance(optimizer, CallResult) and optimizer.kind.startswith("distributed_"):
        settings.setdefault("use_distributed_optimizer", True)
        settings["optimizer"] = "dist_muon" if "muon" in optimizer.kind else "adam"
    for owner in (ddp, optimizer):
        if isinstance(owner, CallResult) and owner.values.get("use_distributed_optimizer") is True:
            settings["use_distributed_optimizer"] = True
    settings |= _overlaps(overlap, settings)
    if settings.get("cpu_offloading") in (None, False):  # a number of layers alone moves nothing there
        settings.pop("cpu_offloading_num_layers", None)
    if settings.get("recompute_granularity") == "selective" and settings.get("recompute_modules") == []:
        settings["recompute_granularity"] = None  # of no modules: only where none are stated it is core attention
    if by_recipe:  # the recipe states the sizes of the model that it is named by
        settings = {word: value for word, value in settings.items() if not SHAPE.match(word)}
    model = load_model(name) if name else None
    unknown = [] if model is not None else [f"the model {name or kind_of(parts.get('model'))}"]
    unknown += _unlike_formats(parts.get("mixed_precision"), settings)
    if model is not None:
        unknown += _other_sizes(model, settings)
        layers = settings.get("cpu_offloading_num_layers")
        if isinstance(layers, int):  # 95 of 94 are all of them
            settings["cpu_offloading_num_layers"] = min(layers, len(model.layers))
        settings["num_layers"] = len(model.layers)
        settings |= {"num_experts": _experts(model)} if _experts(model) else {}
    frozen = [settings.pop(word, None) is True for word in FREEZES]
    lengths = (settings_of(parts.get(word)).get("seq_length") for word in ("model", "dataset"))
    stated = [length for length in lengths if length is not None]
    settings["seq_length"] = next((length for length in stated if isinstance(length, int)), next(iter(stated), None))
    arguments, odd = _arguments(settings)
    odd += [f"{word} {part.text}" for word, part in parts.items() if isinstance(part, Unread)]
    native = megatron_reading.read(megatron_log.options_of(arguments), n_gpus, where)
    unknown += [word for word in (*native.unknown, *odd) if not IDLE.match(word.lstrip("-").replace("-", "_"))]
    fields = dict(native.fields) | _lora(parts.get("peft"), unknown)
    if model is not None:
        fields |= _images(parts.get("dataset"), model, frozen, unknown)
    if "trainer" not in configuration.values and settings.get("moe_grouped_gemm") is None:
        # Megatron-Bridge's providers of mixtures ask for it themselves
        fields.pop("experts_impl", None)
        if settings.get("use_transformer_engine_op_fuser") is True and "num_experts" in settings:
            fields["experts_impl"] = "grouped"
    return Native("megatron", fields, name or None, tuple(dict.fromkeys(unknown)), where)


def _other_sizes(model: Model, settings: dict[str, object]) -> list[str]:
    """What the settings say of the model's sizes, which are taken out of them, where the model has others."""
    own = {
        "num_layers": {len(model.layers)}, "hidden_size": {model.hidden_size}, "mtp_num_layers": {model.mtp_layers},
        "num_moe_experts": {_experts(model)}, "ffn_hidden_size": {layer.feed_forward.size for layer in model.layers},
        "num_attention_heads": {layer.attention.heads for layer in model.layers},
        "num_query_groups": {layer.attention.kv_heads for layer in model.layers},
    }  # fmt: skip
    stated = {word: settings.pop(word, None) for word in own}
    return [f"{word} {value}" for word, value in stated.items() if value is not None and value not in own[word]]


def _parts(configuration: CallResult) -> dict[str, object]:
    """Parts of a configuration by Megatron-Bridge's names."""
    if "trainer" not in configuration.values:
        return {word: configuration.values.get(word) for word in PARTS}
    trainer, model = settings_of(configuration.values.get("trainer")), settings_of(configuration.values.get("model"))
    strategy = trainer.get("strategy")
    optim = configuration.values.get("optim")
    calls = trainer.get("callbacks")
    listed = [call for call in calls if isinstance(call, CallResult)] if isinstance(calls, list) else []
    plugins = trainer.get("plugins")
    return {
        "model": model.get("config"),
        "strategy": strategy,
        "dataset": configuration.values.get("data"),
        "ddp": settings_of(strategy).get("ddp"),
        "optimizer": settings_of(optim).get("config", optim),
        "mixed_precision": plugins[0] if isinstance(plugins, list) and plugins else plugins,
        "comm_overlap": next((call for call in listed if call.kind == "MegatronCommOverlapCallback"), None),
        "peft": configuration.values.get("peft"),
    }


def _precision(part: object) -> dict[str, object]:
    """Number formats as Megatron-Core's arguments say them."""
    kind = _precision_name(part)
    own = settings_of(part)
    word = str(own.get("precision", kind)).replace("-", "_")
    half = own.get("fp16") is True or word.startswith(("fp16", "16"))
    formats: dict[str, object] = {"fp16": half, "bf16": not half and (own.get("bf16") is not False)}
    recipe = next((value for name, value in FP8.items() if name in kind.replace("-", "_")), None)
    if recipe is not None:
        formats |= {"fp8": "hybrid", "fp8_recipe": recipe[0], "fp8_param_gather": recipe[1]}
    if "nvfp4" in kind:
        formats["fp4"] = "e2m1"
    formats |= {name: own[name] for name in ("fp8", "fp8_recipe", "fp8_param_gather", "fp4") if name in own}
    words = ("precision", "fp16", "bf16", "grad_reduce_in_fp32")
    formats |= {name: own[name] for name in words if is_unread(own.get(name))}
    if own.get("grad_reduce_in_fp32", not half) is False:
        formats["grad_reduce_in_bf16"] = True
    return formats


def _unlike_formats(part: object, settings: Mapping[str, object]) -> list[str]:
    """Parts of the model, and of its master weights, that have other formats than the rest."""
    kept = KEPT_IN_BF16.get(_precision_name(part).replace("-", "_"), ())
    named: dict[str, object] = {"first_last_layers_bf16": True} if kept else {}
    named.update(zip(ENDS_IN_BF16, kept, strict=False))
    own: Mapping[str, object] = {**named, **settings_of(part)}
    masters = word_of(settings.get("main_params_dtype", "float32")).rpartition(".")[2]
    words = [word for word in ATTENTION_FORMATS if own.get(word) is True]
    if own.get("first_last_layers_bf16") is True:
        ends = [f"{word} {own[word]}" for word in ENDS_IN_BF16 if own.get(word) not in (None, 0)]
        words += ends or ["first_last_layers_bf16"]
    if settings.get("use_precision_aware_optimizer") is True and masters != "float32":
        words.append(f"main_params_dtype {masters} (master weights are counted in fp32)")
    return words


def _precision_name(part: object) -> str:
    if isinstance(part, CallResult):  # Megatron-Bridge's `get_mixed_precision_config("bf16_mixed")`
        return (
            _precision_name(part.args[0])
            if part.kind.endswith("get_mixed_precision_config") and part.args
            else part.kind
        )
    return part if isinstance(part, str) else ""


def _overlaps(part: object, settings: Mapping[str, object]) -> dict[str, object]:
    """What is exchanged beside computation: as given, else as a communication overlap sets it (`comm_overlap.py`)."""
    if not isinstance(part, CallResult):
        return {}
    own = {name: value for name, value in part.values.items() if value is not None}
    sharded = settings.get("use_distributed_optimizer") is True
    overlaps: dict[str, object] = {"overlap_grad_reduce": True, "overlap_param_gather": True} if sharded else {}
    names = ("overlap_grad_reduce", "overlap_param_gather", "overlap_moe_expert_parallel_comm", "overlap_p2p_comm")
    overlaps |= {name: own[name] for name in names if name in own}
    if settings.get("sequence_parallel") is True:
        overlaps["tp_comm_overlap"] = own.get("tp_comm_overlap", False)
    return overlaps


def _arguments(settings: Mapping[str, object]) -> tuple[dict[str, str], list[str]]:
    """Settings as Megatron-LM prints its arguments, and what is no such value."""
    arguments: dict[str, str] = {}
    odd: list[str] = []
    for name, value in settings.items():
        word = RENAMED.get(name, name)
        if isinstance(value, Unread):
            dtype = DTYPES.get(value.text.rpartition(".")[2])
            if dtype is None:
                odd.append(name if name.startswith("**") else f"{name} {value.text}")
            else:
                arguments[word] = dtype
        elif isinstance(value, bool | int | float | str):
            arguments[word] = str(value)
        elif isinstance(value, list) and all(isinstance(entry, str) for entry in value):
            arguments[word] = str(value) if value else "None"
        elif word == LAYOUT and isinstance(value, list) and all(isinstance(stage, list) for stage in value):
            arguments[word] = "|".join("".join(LETTERS.get(word_of(layer), "?") for layer in stage) for stage in value)
        elif isinstance(value, CallResult):
            odd += [] if IDLE.match(name) or name in PARTS else [f"{name} {value.kind}(...)"]
        elif value is not None:
            odd.append(name)
    return arguments, odd


def _lora(part: object, unknown: list[str]) -> dict[str, object]:
    if not isinstance(part, CallResult):
        return {}
    kind = str(part.args[0]) if part.args and isinstance(part.args[0], str) else part.kind
    if kind.lower() != "lora":
        unknown.append(f"peft {kind}")
        return {}
    dim, targets = part.values.get("dim", LORA_DIM), part.values.get("target_modules")
    if not isinstance(dim, int):
        unknown.append(f"peft.dim {word_of(dim)} (taken as {LORA_DIM})")
    fields: dict[str, object] = {"lora_rank": dim if isinstance(dim, int) else LORA_DIM}
    if isinstance(targets, list):
        words = [word_of(word) for word in targets]
        unknown += [f"adapters of {word}" for word in words if word not in LORA_TARGETS]
        fields["lora_targets"] = ",".join(LORA_TARGETS[word] for word in words if word in LORA_TARGETS) or "all"
    elif targets is not None:
        unknown.append(f"adapters of {word_of(targets)}")
    return fields


def _images(part: object, model: Model, frozen: Sequence[bool], unknown: list[str]) -> dict[str, object]:
    """Images of a sequence of Megatron-Bridge's made-up samples (`mock_vlm_sft.py`), and what learns nothing."""
    kind, settings = kind_of(part), settings_of(part)
    if model.vision is None or kind != MOCK_IMAGES:
        return {}
    images, size = settings.get("num_images", 1), settings.get("image_size", MOCK_SIZE)
    sides = size if isinstance(size, list | tuple) and len(size) == 2 else []
    if not isinstance(images, int) or not all(isinstance(side, int) for side in sides) or not sides:
        unknown.append(f"images of {kind}")
        return {}
    encoder = model.vision.encoder
    patch = encoder.more_weights // encoder.hidden_size // IN_A_PIXEL
    fields: dict[str, object] = {"images": images, "image_patches": sides[0] * sides[1] // patch}
    text, tower = frozen
    if images and (text or tower):
        fields["frozen"] = "both" if text and tower else "text" if text else "tower"
    return fields if images else {}


def _experts(model: Model) -> int:
    for layer in model.layers:
        if layer.feed_forward.experts:
            return layer.feed_forward.experts
    return 0
