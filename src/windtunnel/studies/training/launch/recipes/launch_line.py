"""A launch line of Megatron-Bridge's scripts, as a plan: the recipe that its words name, and what overrides it.

    python scripts/performance/setup_experiment.py -m llama -mr llama3_70b -ng 64 -g h100 -c fp8_cs -gb 256
    scripts/training/train.sh --recipe llama3_70b_pretrain_64gpu_h100_fp8cs_config --nodes 8

The recipe (here the same) is followed where a checkout lies beside the file; where it has none of so many GPUs, that
of the most (of a few models the fewest) stands for it, its batch by replicas. Without a checkout a line of the first
kind counts alone, and has to state its layout; what all of these recipes set is set. Words such as
`model.context_parallel_size=2` override too. Read off Megatron-Bridge 0.2 to 0.5 (`scripts/performance`:
`argument_parser.py`, `utils/overrides.py`, `utils/utils.py`; `scripts/training`).
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from windtunnel.errors import SpecError
from windtunnel.files.bytes import read_text
from windtunnel.physics.model.catalogue import catalogued
from windtunnel.studies.training.launch.job_file import Native, file_beside
from windtunnel.studies.training.launch.megatron.reading import Arguments, shell_words
from windtunnel.studies.training.launch.recipes import reading
from windtunnel.studies.training.launch.recipes.python_text import BYTES_MOST
from windtunnel.studies.training.launch.recipes.python_values import GIVE, LIBRARY, CallResult, settings_of

PROGRAM_NAME = r"(?:\b(?:\w+_)?(?:setup_experiment|run_script|run_recipe)\.py|scripts/training/train\.sh)\b"
PROGRAM = re.compile(rf"(?m)^[^#\n]*{PROGRAM_NAME}")
NAMED = (  # what names a recipe: all words of one of these
    (r"\s(?:--model_recipe_name|-mr)[\s=]",), (r"\s--model_name[\s=]", r"\s(?:--model_size|-s)[\s=]"),
    (r"\s--recipe[\s=]\w+_config\b",), (r"scripts/training/", r"\s--model[\s=]", r"\s--mode[\s=]"),
)  # fmt: skip
BRIDGE, RECIPES = Path("src/megatron/bridge"), "perf_recipes"
OF_FEWEST = ("llama3_8b_pretrain_", "qwen3_30b_a3b_pretrain_", "nemotronh_56b_pretrain_")  # `utils/utils.py`
SHORT = {
    "-m": "--model_family_name", "-mr": "--model_recipe_name", "-s": "--model_size", "-ng": "--num_gpus",
    "-g": "--gpu", "-c": "--compute_dtype", "-gb": "--global_batch_size", "-mb": "--micro_batch_size",
    "-sl": "--seq_length", "-tp": "--tensor_model_parallel_size", "-pp": "--pipeline_model_parallel_size",
    "-cp": "--context_parallel_size", "-vp": "--virtual_pipeline_model_parallel_size",
    "-ep": "--expert_model_parallel_size", "-et": "--expert_tensor_parallel_size", "-rl": "--recompute_num_layers",
    "-ol": "--activation_offload_layers", "-gn": "--gpus_per_node", "-cv": "--config_variant",
}  # fmt: skip
SIZES = {  # an option, and the part and the attribute that it sets
    **{
        f"--{name.replace('_', '-')}": ("model", name)
        for name in (
            "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
            "virtual_pipeline_model_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size",
            "num_layers", "hidden_size", "num_moe_experts",
        )
    },
    "--global-batch-size": ("train", "global_batch_size"), "--micro-batch-size": ("train", "micro_batch_size"),
    "--seq-length": ("model", "seq_length"),
}  # fmt: skip
OPTIONS = {  # as Megatron-LM calls them, and as these scripts do
    **{option: option for option in SIZES},
    "--num-virtual-stages-per-pipeline-rank": "--virtual-pipeline-model-parallel-size",
    "--recompute-num-layers": "--recompute-num-layers",
}
FOLLOW = ("--sequence-parallel", "--tp-comm-overlap", "--cp-comm-type", "--recompute-granularity", "--recompute-method")
NEEDED = ("--tensor-model-parallel-size", "--pipeline-model-parallel-size")  # beside batch and length, which flags give
PRECISIONS = {
    "bf16": "bf16_mixed", "fp8_cs": "bf16_with_fp8_current_scaling_mixed", "fp8_ds": "bf16_with_fp8_mixed",
    "fp8_mx": "bf16_with_mxfp8_mixed", "fp8_sc": "bf16_with_fp8_subchannel_scaling_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}  # fmt: skip
AS_BENCHMARKED = {"grad_reduce_in_fp32": False, "first_last_layers_bf16": False}  # `_perf_precision`
IDLE = re.compile(  # settings of the launcher, of profiles and of data: no step hangs on them
    r"--(domain|model-family|gpu$|gpus-per|num-gpus|nemo|detach|max-|dryrun|distributed|lr|min-lr|warmup|pretrained|save|"
    r"load|most-recent|data|c4|index|head-only|diffusion|tokenizer|vocab|hf|offline|account|partition|time|preempt|"
    r"container|custom|env|gres|additional|packager|enable|csp|kubeflow|export|pytorch-prof|profil|record|nsys|nccl|"
    r"deterministic|wandb|log|serviceaccount|nodes$|nnodes|nproc|node-rank|rdzv|master|no-python|cpunodebind|membind|"
    r"sample|capture|kill|force|session|cuda-event|golden|skip|timing|convergence|correlation|memory-thr|eval|use-recipes)"
)
IMAGE = re.compile(r"nvcr\.io/nvidia/nemo:(2[5-9]\.\d\d(?:\.\d\d)?)\b")  # its release
LAYOUT, BATCH = reading.LAYOUT, "global_batch_size"
NO = ("0", "f", "F", "n", "N", "no", "No", "NO", "FALSE")
STAGES = ("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size")
IDLE_PARTS = {  # no step hangs on what they set
    "checkpoint", "logger", "profiling", "scheduler", "rerun_state_machine", "tokenizer", "validation", "rng",
    "env_vars", "straggler", "ft", "nvrx_straggler", "dist",
}  # fmt: skip
OVERRIDE = re.compile(r"(?:\+{0,2})([a-z]\w*(?:\.\w+)+)=(.*)")


def is_launch_line(text: str) -> bool:
    """Whether a script starts one of Megatron-Bridge's scripts with a recipe."""
    return PROGRAM.search(text) is not None and any(all(re.search(word, text) for word in words) for words in NAMED)


def own_options(options: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Megatron-LM's options by the names of these scripts, without what follows from others in them."""
    return {OPTIONS.get(name, name): words for name, words in options.items() if name not in FOLLOW}


def read(text: str, n_gpus: int, where: str) -> Native:
    """The job of a launch line, on so many GPUs. Raises InputFileError or SpecError."""
    words = _words(text, where)
    line = Arguments(words, where)
    whole = line.word("--recipe")
    mode = line.word("--mode", "pretrain")
    if stem := line.word("--model"):
        whole = f"{stem}_{'peft' if mode in ('lora', 'dora') else mode}_config"
    name, ends, precision = _selected(line, where)
    if whole:
        place, ends = _exported(Path(where), whole), whole
    else:
        place = _tuned(Path(where), name, ends, n_gpus)
    assumed: list[str] = []
    if place is None:
        missing = [option for option in NEEDED if whole or option not in line.options]
        if missing or name.endswith("_peft_"):  # whose adapters no line says
            options = ", ".join(f"--{option.strip('-').replace('-', '_')}" for option in missing)
            remedy = f"put the file into a checkout of Megatron-Bridge that has {BRIDGE / RECIPES}"
            remedy += f", or give {options}" if options and not whole else ""
            raise SpecError("recipe", whole or f"{name}{n_gpus}{ends}", remedy, where)
        configuration = _plain(name, precision, line)
        assumed = ["the recipe itself, which no checkout beside it has: the line and what all recipes set count"]
    else:
        configuration, assumed = reading.configuration_of(*place)
    tuned = re.search(r"_(\d+)gpu_", place[1]) if place and RECIPES in place[0].parts else None
    gpus, before = int(tuned[1]) if tuned else n_gpus, _ranks(configuration)
    batch = settings_of(configuration.values.get("train")).get(BATCH)
    assumed += _override(configuration, line, words)
    train = configuration.values["train"]
    follows = tuned and (whole or gpus != n_gpus) and "--global-batch-size" not in line.options
    if follows and isinstance(batch, int) and isinstance(train, CallResult) and train.values[BATCH] == batch:
        scaled = batch * n_gpus * before // (gpus * _ranks(configuration))  # as many sequences a replica
        train.values[BATCH] = max(1, scaled)
    assumed += [option for option in line.unread() if not IDLE.match(option)]
    native = reading.native_of(configuration, reading.BRIDGE, n_gpus, where, place[1] if place else name, assumed)
    stated = BATCH in settings_of(train)
    fields = {word: own for word, own in native.fields.items() if stated or word != "global_batch"}
    image = IMAGE.search(text)
    return replace(native, fields=fields | ({"release": f"bridge-{image[1]}"} if image else {}))


def _words(text: str, where: str) -> list[str]:
    """The words behind the program, options by their long names."""
    words = shell_words(text, where)
    begins = next((at for at, word in enumerate(words) if re.search(PROGRAM_NAME, word)), 0)
    pairs = zip(words[begins:], [*words[begins + 1 :], ""], strict=True)
    return [SHORT.get(word, word) if word != "-c" or " " not in value else word for word, value in pairs]  # python -c


def _selected(line: Arguments, where: str) -> tuple[str, str, str]:
    """The name of a tuned recipe before and behind its number of GPUs, and the precision. Raises SpecError."""
    older = filter(None, (line.word("--model-name"), line.word("--model-size")))
    name = line.word("--model-recipe-name") or "_".join(older)
    task = (line.word("--task") or "pretrain").replace("lora", "peft")
    precision = line.word("--compute-dtype", "bf16") or "bf16"
    if precision == "fp8":  # 0.1
        precision = f"fp8_{line.word('--fp8-recipe', 'ds')}"
    if precision not in PRECISIONS:
        raise SpecError("--compute_dtype", precision, f"give one of {', '.join(PRECISIONS)}", where)
    variant = (line.word("--config-variant") or "").lower().removeprefix("v1").removeprefix("v2")
    gpu = (line.word("--gpu") or "").lower()
    ends = "_".join(filter(None, (gpu, precision.replace("_", ""), variant, "config")))
    return f"{name}_{task}_", f"gpu_{ends}", precision


def _files(where: Path, *packages: str) -> Iterator[tuple[Path, str]]:
    """The recipe files in the checkout beside a file, and their texts."""
    for package in packages:
        first = file_beside(where, BRIDGE / package / "__init__.py")
        for path in sorted(first.parent.rglob("*.py")) if first else ():
            yield path, read_text(path, GIVE, BYTES_MOST)


def _tuned(where: Path, begins: str, ends: str, n_gpus: int) -> tuple[Path, str] | None:
    """The file and name of a tuned recipe: of so many GPUs, else of the most, of some models of the fewest."""
    pattern = rf"(?m)^def ({re.escape(begins)}(\d{{1,6}}){re.escape(ends)})\("
    choices = [
        (int(gpus), name, path) for path, text in _files(where, RECIPES) for name, gpus in re.findall(pattern, text)
    ]
    if not choices:
        return None
    sign = -1 if begins in OF_FEWEST else 1
    _, name, path = max(choices, key=lambda choice: (choice[0] == n_gpus, sign * choice[0]))
    return path, name


def _exported(where: Path, name: str, names: tuple[str, ...] = ()) -> tuple[Path, str] | None:
    """The file and name of a recipe by the name that it is exported by, which may be another. `names`: tried before."""
    word, other = re.escape(name), None
    for path, text in _files(where, "recipes", RECIPES):
        if re.search(rf"(?m)^def {word}\(", text):
            return path, name
        other = other or re.search(rf"\b(\w+) as {word}\b", text)
    return _exported(where, other[1], (*names, name)) if other and other[1] not in (*names, name) else None


def _plain(name: str, precision: str, line: Arguments) -> CallResult:
    """A configuration as the performance recipes make theirs, without what is one recipe's own."""
    sharded = {"use_distributed_optimizer": True}
    tp = line.count("--tensor-model-parallel-size", 1)
    return CallResult(
        "ConfigContainer",
        values={
            "model": CallResult("Provider", [catalogued(name)], {"sequence_parallel": tp > 1}),
            "train": CallResult("TrainingConfig"),
            "ddp": CallResult("DistributedDataParallelConfig", values=dict(sharded)),
            "optimizer": CallResult("OptimizerConfig", values=dict(sharded)),
            "mixed_precision": CallResult(PRECISIONS[precision], values=dict(AS_BENCHMARKED)),
            "comm_overlap": CallResult("CommOverlapConfig", values={"tp_comm_overlap": tp > 1}),
        },
    )


def _ranks(configuration: CallResult) -> int:
    """GPUs of one replica."""
    model = settings_of(configuration.values.get("model"))
    sizes = (model.get(f"{word}_parallel_size") for word in ("tensor_model", "pipeline_model", "context"))
    return math.prod(size for size in sizes if isinstance(size, int) and size > 0)


def _override(configuration: CallResult, line: Arguments, words: list[str]) -> list[str]:
    """What the line says, as the attributes that it sets, and those that cannot be set. Raises SpecError.

    Words such as `model.context_parallel_size=2` come first: options win over them, as in `run_script.py`.
    """
    parts = {
        word: part if isinstance(part := configuration.values.get(word), CallResult) else CallResult(word.title())
        for word in ("model", "train", "ddp", "comm_overlap", "dataset")
    }
    configuration.values |= parts
    if isinstance(precision := configuration.values.get("mixed_precision"), str):
        configuration.values["mixed_precision"] = CallResult(precision)
    model = parts["model"].values
    unset, own = [], model.get(LAYOUT)
    for word in words:
        matched = OVERRIDE.fullmatch(word)
        if matched and not _set(configuration, matched[1].split("."), matched[2]):
            unset.append(word)
    for option, (part, name) in SIZES.items():
        if line.word(option) in (None, "-1"):
            continue
        parts[part].values[name] = None if line.word(option) == "None" else line.number(option)
        if name == "tensor_model_parallel_size":
            model["sequence_parallel"] = line.count(option, 1) > 1
        if name in STAGES and own is not None and model.get(LAYOUT) is own:
            model[LAYOUT] = None  # that of the recipe is for its own
            unset.append(f"{LAYOUT} of the recipe, which is for other stages (taken as even)")
    if layout := line.word("--pipeline-model-parallel-layout"):
        model[LAYOUT] = layout
    if layers := line.number("--activation-offload-layers"):
        model |= {"cpu_offloading": True, "cpu_offloading_num_layers": layers}
    if layers := line.number("--recompute-num-layers"):
        model |= {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": layers}
    if modules := _listed(line, "--recompute-modules"):
        model |= {"recompute_granularity": "selective", "recompute_modules": modules}
    if impl := line.word("--cuda-graph-impl"):
        model["cuda_graph_impl"] = impl
    if scope := _listed(line, "--cuda-graph-scope"):
        model |= {"cuda_graph_modules": None, "cuda_graph_scope": scope}
    backend = line.word("--moe-flex-dispatcher-backend")
    model |= LIBRARY["apply_flex_dispatcher_backend"](backend)
    if backend == "None":
        model |= {"moe_token_dispatcher_type": "alltoall", "moe_flex_dispatcher_backend": None}
    if _yes(line, "--moe-a2a-overlap"):
        parts["comm_overlap"].values["overlap_moe_expert_parallel_comm"] = True
    if _yes(line, "--use-megatron-fsdp"):
        parts["ddp"].values |= {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}
    if kind := line.word("--optimizer-type"):
        model["optimizer"] = "dist_muon" if kind == "muon" else kind
    return unset


def _yes(line: Arguments, option: str) -> bool:
    """Whether a switch is on, whose word may be any of these scripts' (`argument_parser.py`, bool_arg)."""
    return line.on(option) and line.words(option)[:1] not in ([word] for word in NO)


def _listed(line: Arguments, option: str) -> list[str]:
    """The parts of its one word, by commas; what follows it in a script is another command's."""
    words = [word.strip("[]'\" ") for text in line.words(option)[:1] for word in text.split(",")]
    return [word for word in words if word and word != "None"]


def _set(configuration: CallResult, names: list[str], text: str) -> bool:
    """`model.context_parallel_size=2`: whether it sets an attribute of a part of the configuration."""
    part: object = configuration
    for name in names[:-1]:
        part = part.values.get(name) if isinstance(part, CallResult) else None
    if not isinstance(part, CallResult):
        return names[0] in IDLE_PARTS
    text = {"null": "None", "true": "True", "false": "False"}.get(text, text)
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # Hydra's lists have words without quotes
        bare = re.fullmatch(r"\[([\w, -]*)\]", text)
        value = [word.strip() for word in bare[1].split(",") if word.strip()] if bare else text
    part.values[names[-1]] = list(value) if isinstance(value, tuple) else value
    return True
