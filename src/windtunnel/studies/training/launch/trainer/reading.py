"""Hugging Face's Trainer as a plan: flags of a launch line, YAML of LLaMA-Factory, TRL and axolotl, or a script.

They share one set of names (`TrainingArguments` of transformers 4.30 to 4.57); axolotl and LLaMA-Factory add their own
for the length, the batch and adapters. A Python script is read and not run: keywords of `...Arguments(...)`,
`...Config(...)`, `from_pretrained(...)` and of the tokenizer's call, where they are constants or names of constants.
A DeepSpeed, FSDP or Accelerate file that they name is read where it lies beside the file or above it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from math import prod
from pathlib import Path

from windtunnel.errors import InputFileError, SpecError
from windtunnel.files.bytes import read_text
from windtunnel.files.document import read_mapping, value_of
from windtunnel.physics.model.catalogue import catalogued
from windtunnel.studies.training.launch import accelerate, deepspeed
from windtunnel.studies.training.launch.job_file import NO_EFFECT, Native, file_beside
from windtunnel.studies.training.launch.megatron.reading import Arguments, shell_words
from windtunnel.studies.training.launch.recipes.python_values import parsed
from windtunnel.studies.training.launch.trainer import dialects

Settings = Mapping[str, object]
GIVE = "give the script, its launch line or its YAML"
SCRIPT_BYTES_MOST = 1 << 20
BATCH = ("per_device_train_batch_size", "per_gpu_train_batch_size", "micro_batch_size")
LENGTH = (
    "cutoff_len", "sequence_len", "max_seq_length", "max_seq_len", "model_max_length", "block_size", "max_length",
)  # fmt: skip
MODEL = ("model_name_or_path", "base_model", "pretrained_model_name_or_path", "model_name", "model_id")
DEGREES = {
    "tp": ("tensor_parallel_size", "tensor_model_parallel_size"), "pp": ("pipeline_model_parallel_size",),
    "cp": ("context_parallel_size", "sequence_parallel_degree", "sequence_parallel_size"),
    "ep": ("expert_parallel_size", "expert_model_parallel_size"),
}  # fmt: skip
ATTENTION = (  # words of the file -> kernel; what is not here is the GPU's best
    ("attn_implementation", "attn_impl", "flash_attn", "flash_attention", "flash_attn_implementation"),
    (
        (r"(kernels-community/)?flash[-_]?att(ention|n)?[-_]?2|fa2|flash_2|flash_attn", "flash2"),
        (r"eager|disabled", "unfused"), (r"triton|flex_attention|flex", "triton"),
    ),
)  # fmt: skip
EXPERTS = {"eager": "sequential", "grouped_mm": "grouped"}  # Transformers' `experts_implementation`
OF_MODEL = ("torch_dtype", "dtype", "load_in_4bit", "load_in_8bit", "experts_implementation")  # of `from_pretrained`
KINDS = ("TrainingArguments", "SFTConfig", "DPOConfig")  # the calls that make the arguments of a Trainer
HALVES = {"bf16", "fp16"}
PACKING = ("packing", "sample_packing")
FUSED_LOSS = ("liger_fused_linear_cross_entropy", "cut_cross_entropy", "enable_liger_kernel", "use_liger_kernel")
MARKS = re.compile(r"--(per_device_train_batch_size|per-device-train-batch-size)\b")
OPTIMIZERS = {"adamw": "adam", "sgd": "sgd", "muon": "muon", "paged_adamw": "adam"}
STAGE_IN_NAME = re.compile(r"(?<![a-z])(?:z|zero|(?:zero[-_]?)?stage)[-_]?([0-3])(?!\d)")  # of a DeepSpeed file
SHARDED = {"full_shard": 3, "shard_grad_op": 2, "hybrid_shard": 3, "no_shard": 0}
TARGETS = {
    "q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o", "gate_proj": "gate", "up_proj": "up",
    "down_proj": "down",
}  # fmt: skip
READ = (
    "gradient_accumulation_steps", "gradient_checkpointing", "disable_gradient_checkpointing", "bf16", "fp16", "optim",
    "optimizer", "lora_r", "lora_rank", "lora_target", "lora_target_modules", "lora_target_linear", "load_in_4bit",
    "load_in_8bit", "use_distributed_optimizer", "plugins", "dp_shard_size", "dp_replicate_size",
    "quantization_bit", "quantization_method", "torch_dtype", "dtype", "rl", "pure_bf16",
    "torch_compile", "r", "stated_model", "global_batch_size", "zero_stage", "cp_kind", "use_flash_attention_2",
    "experts_implementation", "use_fsdp", "accelerate_config",
)  # fmt: skip


def settings_of(path: str | Path) -> dict[str, object] | None:
    """What a file says by the Trainer's names; None for a file that is not of the Trainer. Raises InputFileError."""
    suffix = Path(path).suffix.lower()
    if suffix == ".py":
        settings = dict(of_script(read_text(path, GIVE, SCRIPT_BYTES_MOST), str(path)))
    elif suffix in (".yaml", ".yml"):
        settings = dict(dialects.translated(read_mapping(path, GIVE)))
    elif suffix in (".toml", ".json"):
        return None
    else:
        text = read_text(path, GIVE, SCRIPT_BYTES_MOST)
        if not (MARKS.search(text) or dialects.SWIFT.search(text)):
            return None
        options = Arguments(shell_words(text, str(path)), str(path)).options
        settings = {name.removeprefix("--").replace("-", "_"): _of_words(words) for name, words in options.items()}
        settings = dict(dialects.of_swift(settings)) if dialects.SWIFT.search(text) else settings
    of_trainer = settings.keys() & {*BATCH, "gradient_accumulation_steps", "adapter"}
    return settings if of_trainer and (suffix not in (".yaml", ".yml") or settings.keys() & set(MODEL)) else None


def dialect(path: str | Path) -> str:
    """Whose names a file has where they are not the Trainer's; empty where they are."""
    if Path(path).suffix.lower() in (".yaml", ".yml"):
        return dialects.dialect_of(read_mapping(path, GIVE))
    if Path(path).suffix.lower() == ".py":
        values = _constants(parsed(read_text(path, GIVE, SCRIPT_BYTES_MOST), str(path)))
        return dialects.XTUNED if values.keys() >= dialects.XTUNER else ""
    return dialects.LINE if dialects.SWIFT.search(read_text(path, GIVE)) else ""


def _of_words(words: list[str]) -> object:
    """What an option says; a variable behind its value, such as "$@", holds other options."""
    own = [word for at, word in enumerate(words) if at == 0 or not word.startswith("$")]
    return value_of(own[0]) if len(own) == 1 else own or True


def read(path: str | Path, n_gpus: int, place: Path | None = None) -> Native:
    """The job that a file of the Trainer states, on so many GPUs. Raises InputFileError or SpecError.

    `place`: where the file belongs, if this is a copy of it: files that it names are sought from there.
    """
    where = str(path)
    settings = settings_of(path)
    if settings is None:
        remedy = "`windtunnel capture --world-size N` runs any script without GPUs; or name the model and give flags"
        raise InputFileError(
            where, "is no recipe and states no TrainingArguments of Hugging Face that can be read", remedy
        )
    unknown: list[str] = []
    of_factory = "finetuning_type" in settings or "cutoff_len" in settings
    of_axolotl = "base_model" in settings
    micro = _first(settings, BATCH, where) or (1 if of_axolotl else 8)
    steps = _first(settings, ("gradient_accumulation_steps",), where) or 1
    degrees = {name: _first(settings, names, where) or 1 for name, names in DEGREES.items()}
    replicas = max(1, n_gpus // prod(degrees[name] for name in ("tp", "pp", "cp")))
    batch = _first(settings, ("global_batch_size",), where) or micro * steps * replicas
    fields: dict[str, object] = {**degrees, "micro_batch": micro, "global_batch": batch}
    length = _first(settings, LENGTH, where)
    if length is not None:
        fields["seq_len"] = length
    inner = settings.get("fsdp_config")
    recompute = settings.get(
        "gradient_checkpointing", of_factory and not settings.get("disable_gradient_checkpointing")
    )
    recompute = recompute or (isinstance(inner, Mapping) and inner.get("activation_checkpointing"))
    fields["recompute"] = "full" if recompute else "none"
    if fields["cp"] != 1 and settings.get("cp_kind"):
        fields["cp_kind"] = settings["cp_kind"]
    half, brain = _on(settings.get("fp16")), _on(settings.get("bf16"))
    fields["precision"] = "bf16" if brain else "fp16" if half else "fp32"
    if any(_on(settings.get(name)) for name in FUSED_LOSS):
        fields["loss"] = "fused"
    fields |= _sharding(settings, n_gpus, place or Path(path), unknown)
    if fields["pp"] != 1:  # of those who read these names, Megatron-Core alone has stages
        fields |= {"framework": "megatron", "zero_stage": int(_on(settings.get("use_distributed_optimizer")))}
    fields |= _adapters(settings, of_factory, unknown)
    fields |= _attention(settings, fields, unknown)
    fields |= _experts(settings, fields, unknown)
    fields |= _optimizer(settings, fields, unknown)
    stage = settings.get("stage", settings.get("rl"))
    if stage == "dpo":
        fields["task"] = "dpo"
    elif stage not in (None, "pt", "sft"):
        unknown.append(f"stage {stage}")
    name = next((str(settings[word]) for word in MODEL if isinstance(settings.get(word), str)), "")
    stated = settings.get("stated_model")
    model = stated if isinstance(stated, Mapping) else catalogued(name)
    if name and not model:
        unknown.append(f"the model {name}")
    for key, value in settings.items():
        if (
            key in {*BATCH, *LENGTH, *MODEL, *READ, *FUSED_LOSS, *PACKING, *chain(*DEGREES.values())}
            or key.startswith(NO_EFFECT["Trainer"])
            or value in (None, False, "", [], "none")
        ):
            continue
        unknown.append(f"{key} {value}" if isinstance(value, str | int | float) else key)
    if any(_on(settings.get(name)) for name in PACKING):
        unknown.append("lengths of packed documents (attention is that of whole sequences; --lengths states them)")
    fields = {name: value for name, value in fields.items() if value is not None}
    return Native(str(fields["framework"]), fields, model or None, tuple(unknown), where)


def _sharding(settings: Settings, n_gpus: int, path: Path, unknown: list[str]) -> dict[str, object]:
    """Framework and ZeRO stage: of a DeepSpeed file, of FSDP's words, else plain replicas."""
    config, fsdp = settings.get("deepspeed", settings.get("deepspeed_config_file")), settings.get("fsdp")
    if _on(settings.get("use_fsdp")):  # `accelerate launch --use_fsdp`
        fsdp = settings.get("fsdp_sharding_strategy", "full_shard")
    launched = settings.get("config_file", settings.get("accelerate_config"))
    launched = launched[0] if isinstance(launched, list) else launched  # with the script's name behind it
    if isinstance(launched, str) and not (config or fsdp):
        return _accelerated(launched, settings, n_gpus, path, unknown)
    if isinstance(config, str):
        if _on(settings.get("torch_compile")):
            unknown.append("torch_compile with DeepSpeed")
        place = file_beside(path, config)
        if place is None:
            name = Path(config).name.lower()
            named = STAGE_IN_NAME.search(name)  # `zero3_bf16.json`, `ds_z3_offload_config.json`
            of_name = int(named[1]) if named else 0
            offloads = {"offload_optimizer": 1.0} if "offload" in name else {}
            taken = f"taken for ZeRO {of_name}{' with its optimizer offloaded' if offloads else ''} by its name"
            unknown.append(f"deepspeed {config} (no such file beside it: {taken if named else 'ZeRO 0'})")
            return {"framework": "deepspeed", "zero_stage": of_name, **offloads}
        stated = deepspeed.read(read_mapping(place, GIVE), n_gpus, str(place))
        unknown += [word for word in stated.unknown if '"auto"' not in word]
        own = (
            "framework", "zero_stage", "overlap_grad_reduce", "bucket_parameters", "offload_optimizer", "shard_group",
        )  # fmt: skip
        return {name: stated.fields[name] for name in own if name in stated.fields}
    config = settings.get("fsdp_config")
    compiled: dict[str, object] = {"compile": True} if _on(settings.get("torch_compile")) else {}
    if fsdp or config:
        text = " ".join(_strings(fsdp)) if isinstance(fsdp, list) else str(fsdp)
        inner = config if isinstance(config, Mapping) else {}
        kind = str(inner.get("sharding_strategy", inner.get("fsdp_sharding_strategy", text))).lower()
        stages = [stage for word, stage in SHARDED.items() if word in kind]
        keeps = inner.get("reshard_after_forward", inner.get("fsdp_reshard_after_forward")) is False
        return {"framework": "fsdp", "zero_stage": stages[0] if stages else 2 if keeps else 3, **compiled}
    stage = settings.get("zero_stage")
    if isinstance(stage, int):  # of a script that makes its own DeepSpeed config, as DeepSpeed-Chat's do
        return {"framework": "deepspeed", "zero_stage": stage}
    return {"framework": "fsdp", "zero_stage": 0, **compiled}


def _accelerated(name: str, settings: Settings, n_gpus: int, path: Path, unknown: list[str]) -> dict[str, object]:
    """What the file of `accelerate launch --config_file` says of a job, or where it is not there its name."""
    place = file_beside(path, name, f"{name}.yaml")
    if place is not None:
        stated = accelerate.read(read_mapping(place, GIVE), n_gpus, str(place))
        unknown += [word for word in stated.unknown if "gradient_accumulation_steps" not in word]
        own = {name: setting for name, setting in stated.fields.items() if (name, setting) != ("recompute", "none")}
        return {name: setting for name, setting in own.items() if name != "precision" or not settings.keys() & HALVES}
    word = Path(name).name.lower()
    named = STAGE_IN_NAME.search(word)
    fields: dict[str, object] = {"framework": "fsdp", "zero_stage": 3 if "fsdp" in word else 0}
    if named:
        fields = {"framework": "deepspeed", "zero_stage": int(named[1])}
    taken = f"{fields['framework']}, ZeRO {fields['zero_stage']}" if named or "fsdp" in word else "plain replicas"
    unknown.append(f"config_file {name} (no such file beside it: taken for {taken})")
    return fields


def _adapters(settings: Settings, of_factory: bool, unknown: list[str]) -> dict[str, object]:
    kind = str(settings.get("finetuning_type") or settings.get("adapter") or "").lower()
    rank = settings.get("lora_rank") or settings.get("lora_r") or settings.get("r")
    if kind not in ("", "none", "full", "lora", "qlora"):
        unknown.append(f"{'finetuning_type' if of_factory else 'adapter'} {kind}")
    is_lora = kind in ("lora", "qlora") or _on(settings.get("use_peft")) or (kind == "" and "r" in settings)
    if not is_lora:
        return {}
    fields: dict[str, object] = {"lora_rank": rank if isinstance(rank, int) else 8 if of_factory else 16}
    targets = settings.get("lora_target") or settings.get("lora_target_modules") or settings.get("target_modules")
    words = targets.replace(",", " ").split() if isinstance(targets, str) else _strings(targets)
    if words and words not in (["all"], ["all-linear"]):
        modules = [TARGETS[word] for word in words if word in TARGETS]
        unknown += [f"adapters of {word}" for word in words if word not in TARGETS]
        fields["lora_targets"] = ",".join(modules) or "all"
    bits = settings.get("quantization_bit")
    if bits == 4 or _on(settings.get("load_in_4bit")):
        fields["frozen_dtype"] = "nf4"
    elif bits == 8 or _on(settings.get("load_in_8bit")):
        fields["frozen_dtype"] = "int8"
    return fields


def _attention(settings: Settings, fields: Mapping[str, object], unknown: list[str]) -> dict[str, object]:
    """The attention kernel that a file names."""
    names, kernels = ATTENTION
    implementation = str(next((settings[name] for name in names if settings.get(name) is not None), "")).lower()
    if settings.get("use_flash_attention_2") is True or implementation in ("true", "fa2"):
        implementation = "flash_attention_2"
    kernel = next((kernel for words, kernel in kernels if re.fullmatch(words, implementation)), "")
    if not kernel:
        return {}
    if kernel == "unfused" and fields["framework"] == "pytorch":
        unknown.append(f"attention {implementation}")
        return {}
    return {"attention_impl": kernel}


def _experts(settings: Settings, fields: Mapping[str, object], unknown: list[str]) -> dict[str, object]:
    """How experts are launched, where a file says it."""
    implementation = settings.get("experts_implementation")
    launched = EXPERTS.get(str(implementation))
    if implementation is not None and (
        launched is None or (launched == "grouped" and fields["framework"] == "pytorch")
    ):
        unknown.append(f"experts_implementation {implementation}")
        return {}
    return {"experts_impl": launched} if launched else {}


def _strings(value: object) -> list[str]:
    return [str(entry) for entry in value] if isinstance(value, list) else []


def _optimizer(settings: Settings, fields: Mapping[str, object], unknown: list[str]) -> dict[str, object]:
    name = str(settings.get("optim") or settings.get("optimizer") or "adamw").lower()
    optimizer = next((kind for word, kind in OPTIMIZERS.items() if name.startswith(word)), None)
    if optimizer is None:
        unknown.append(f"optim {name}")
    additions: dict[str, object] = {"optimizer": optimizer or "adam"}
    if "8bit" in name:
        additions["optimizer_dtype"] = "int8"
    loaded = str(settings.get("torch_dtype") or settings.get("dtype") or "")
    is_pure = _on(settings.get("pure_bf16")) or "bfloat16" in loaded
    replicas = fields["framework"] == "fsdp" and fields["zero_stage"] == 0
    if _on(settings.get("pure_bf16")) and not replicas and "lora_rank" not in fields:
        additions |= {"master_dtype": "bf16", "optimizer_dtype": additions.get("optimizer_dtype", "bf16")}
    if is_pure and replicas and "lora_rank" not in fields and "optimizer_dtype" not in additions:
        additions |= {"framework": "pytorch", "zero_stage": None, "precision": "bf16"}  # Adam on the weights as loaded
    return additions


def _on(value: object) -> bool:
    """Whether a setting is on: axolotl's `auto` is, on what can bf16."""
    return value is True or (isinstance(value, str) and value.lower() in ("true", "auto", "full", "yes"))


def _first(settings: Settings, names: tuple[str, ...], where: str) -> int | None:
    """The first of these that says a number; None where none does. Raises SpecError."""
    return next((_whole(settings, name, where) for name in names if settings.get(name) not in (None, "auto")), None)


def _whole(settings: Settings, name: str, where: str) -> int:
    value = settings[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SpecError(name, value, "give a whole number of at least 1", where)
    return value


# ------------------------------------------------------------------------------------------------------ Python


def _constants(tree: ast.Module) -> dict[str, object]:
    """Constants by the names that they are assigned to, and whether xtuner's line multiplies the steps."""
    values: dict[str, object] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]):
                value = _constant(node.value, values)
                if value is not None:
                    values[name] = value
            case ast.AugAssign(
                target=ast.Name(id="accumulative_counts"), op=ast.Mult(), value=ast.Name(id="sequence_parallel_size")
            ):
                values[dialects.MULTIPLIED] = True
    return values


def of_script(text: str, where: str, kinds: tuple[str, ...] = KINDS) -> Iterator[tuple[str, object]]:
    """Keywords of the calls that say how a Trainer trains; of names and constants alone."""
    tree = parsed(text, where)
    values = _constants(tree)
    if values.keys() >= dialects.XTUNER:
        yield from dialects.of_xtuner(values, dict(_parts(tree, values))).items()
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        of = node.func
        name = _called(node)
        owner = of.value.id if isinstance(of, ast.Attribute) and isinstance(of.value, ast.Name) else ""
        keywords = {keyword.arg: _constant(keyword.value, values) for keyword in node.keywords if keyword.arg}
        if name.endswith((*kinds, "LoraConfig", "BitsAndBytesConfig")):
            yield from keywords.items()
        elif name.endswith("Trainer") and isinstance(keywords.get("model"), str):
            yield "model_name_or_path", keywords["model"]
        elif name == "from_pretrained" and "Model" in owner:
            first = _constant(node.args[0], values) if node.args else keywords.get("pretrained_model_name_or_path")
            yield "model_name_or_path", first
            yield from ((key, keywords[key]) for key in OF_MODEL if key in keywords)
        elif keywords.get("truncation") and isinstance(keywords.get("max_length"), int):
            yield "max_length", keywords["max_length"]


def _called(call: ast.Call) -> str:
    of = call.func
    return of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""


def _parts(tree: ast.Module, values: Settings) -> Iterator[tuple[str, Settings]]:
    """What `dict(type=...)` says, by the name of the type, or of what names it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) == "dict":
            kind = next((keyword.value for keyword in node.keywords if keyword.arg == "type"), None)
            if isinstance(kind, ast.Name):
                keywords = {keyword.arg: _constant(keyword.value, values) for keyword in node.keywords if keyword.arg}
                yield kind.id, keywords


def says_how(call: ast.Call) -> bool:
    """Whether a call makes the arguments of a Trainer."""
    return _called(call).endswith(KINDS)


def _constant(node: ast.expr, values: Settings) -> object:
    """A constant, the name of one, `torch.bfloat16` as its word, or a list of these; None for all else."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return values.get(node.id)
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.List | ast.Tuple):
        return [_constant(elt, values) for elt in node.elts]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        constants = [(_constant(key, values), _constant(value, values)) for key, value in pairs if key is not None]
        return {key: value for key, value in constants if isinstance(key, str | int | float)}
    return None
