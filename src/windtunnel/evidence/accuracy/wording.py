"""What a row's source, date and words mean for a plan: frameworks, precisions, recomputation, notes, release.

Spellings are `words.py`'s; here is what follows from who ran it, and when. Every rule is explicit.
"""

from __future__ import annotations

import re

from windtunnel.evidence.accuracy import words
from windtunnel.evidence.accuracy.table import Row
from windtunnel.questions.asked.parts.frameworks import FRAMEWORKS


class UnreadableError(Exception):
    """The row cannot be represented; the text says why."""


NO_OVERLAP = (
    *("overlap_tp", "overlap_tp_backward", "overlap_p2p", "overlap_ep"),
    *("overlap_grad_reduce", "overlap_param_gather"),
)

# What a note says by itself.
NOTES: dict[str, dict[str, object]] = {
    "tp comm overlap": {"overlap_tp": True},
    "asynctp yes": {"overlap_tp": True},
    "asynctp no": {"overlap_tp": False},
    "torch.compile": {"compile": True},
    "torch.compile: yes": {"compile": True},
    "torch.compile: no": {"compile": False},
    "moe all-to-all overlap": {"overlap_ep": True},
    "fp32 gradient accumulation": {"gradient_dtype": "fp32"},
    "bf16 optimizer moments": {"optimizer_dtype": "bf16"},
    "activation inputs in fp8": {"fp8_activation_input": True},
}

# Since when PyTorch's SDPA is cuDNN's by default, and on which GPUs.
CUDNN_SDPA, CUDNN_SDPA_GPUS = "2026-03", ("H100", "H200", "H800", "B200", "GB200")

FAMILIES = {"llama-like": "llama", "llama2": "llama", "llama3": "llama", "gpt-3": "gpt", "grok-1": "grok"}


def task_of(row: Row) -> str:
    """`pretrain`, `sft` or `lora`: what learns, and on which data."""
    name = words.task(row.task)[0]
    return name if name in ("pretrain", "lora") else "sft"


def tasks_of(row: Row) -> tuple[str, ...]:
    """What a step is made of. Of reinforcement learning it is not told whether log-probs are in it: both."""
    name = words.task(row.task)[0]
    return {"dpo": ("dpo",), "rl": ("train", "grpo"), "forward": ("forward",)}.get(name, ("train",))


def shards_unknown(row: Row) -> bool:
    """Whether parameters are sharded over some of the replicas, and nobody says over how many."""
    return "sharding degree not stated" in row.notes.lower()


def is_packed(row: Row) -> bool:
    """Whether sequences are packed from documents of lengths that nobody states.

    NeMo's and Megatron-Bridge's fine-tuning packs question-answer pairs and keeps attention inside them (SQuAD); MLPerf
    cuts long reports into whole sequences, and AutoModel's are made up (its tables: mock data).
    """
    nvidia = any(word in row.source.lower() for word in ("nemo", "megatron-bridge", "dgx cloud"))
    return task_of(row) != "pretrain" and nvidia and "mock data" not in row.notes.lower()


def adapters_of(row: Row) -> tuple[dict[str, object], list[str]]:
    """Plan fields of a LoRA row, and what had to be assumed.

    Targets: MLPerf's rules name queries, keys, values and output; NeMo's and Megatron-Bridge's performance recipes set
    `peft.target_modules = ['linear_qkv']`; AutoModel matches all linear layers. MLPerf's 70 B parameters fit on one GPU
    as they do in its logs only where frozen weights and the activation's input are kept in fp8 (`FP8_ACTIVATION`).
    """
    if task_of(row) != "lora":
        return {}, []
    source, name = row.source.lower(), words.precision(row.precision)[0]
    fields: dict[str, object] = {"lora_rank": 16, "lora_targets": "all"}
    if "qlora" in row.task.lower() or name in ("nf4", "int8"):
        fields |= {"frozen_dtype": "int8" if name == "int8" else "nf4"}
    if "mlperf" in source:
        fields |= {"lora_targets": "attention"}
        if row.precision.lower().startswith("fp8"):  # 96 GB hold both copies, and do
            fields |= {"fp8_parameters": (row.tp or 1) < 4 or row.gpu != "GH200", "fp8_activation_input": True}
    elif "automodel" not in source and any(word in source for word in ("nemo", "megatron-bridge", "dgx cloud")):
        fields |= {"lora_targets": "qkv"}
    if "prime-rl" in source:
        fields |= {"lora_targets": "experts"}  # its default names them too
    if modules := list(dict.fromkeys(re.findall(r"\b(q|k|v|o|gate|up|down)_proj\b", row.notes.lower()))):
        fields |= {"lora_targets": ",".join(modules)}
    if several := re.search(r"(\d+) (?:lora )?adapters\b", row.notes.lower()):
        fields |= {"lora_adapters": max(1, int(several[1]))}
    if stated := re.search(r"(?:lora )?rank[ :=]*(\d+)", row.notes.lower()):
        return fields | {"lora_rank": int(stated[1])}, []
    return fields, ["rank of the adapters not stated, taken as 16"]


def framework_of(row: Row) -> str:
    """Name of the plan's framework; where none is stated, a plan's default."""
    return next((framework for word, framework in FRAMEWORKS if word in row.framework.lower()), "megatron")


def is_known_framework(row: Row) -> bool:
    """Whether a rule names the row's framework; otherwise it is taken as a plan's default."""
    return any(word in row.framework.lower() for word, _ in FRAMEWORKS)


def family_of(row: Row) -> str:
    """Model family, for what the numbers of a row leave out (norms, biases, positions)."""
    family = row.model_family.lower()
    if not family:
        name = row.model.lower().replace("-", "")
        return next((prefix for prefix in ("qwen3", "qwen2", "olmo3") if name.startswith(prefix)), "llama")
    return FAMILIES.get(family, family)


def precision_of(row: Row) -> str:
    """Format of the GEMMs. FP8 is delayed scaling unless row or framework says otherwise."""
    name = words.precision(row.precision)[0]
    if name == "fp8-fine":  # the finer granularity that Blackwell has in hardware; elsewhere blocks, scaled at hand
        return "mxfp8" if row.gpu.upper().startswith(("B", "GB")) else "fp8-current"
    if name == "fp4":
        return "mxfp4" if row.gpu.upper().startswith("MI") else "nvfp4"
    # torchtitan's float8 scales by the tensor at hand, and so do Megatron-Bridge's FP8 recipes from 25.09 on.
    current = any(word in row.notes.lower() for word in ("fp8_cs", "current scaling"))
    current = current or any(word in row.framework.lower() for word in ("torchtitan", "megatron-bridge"))
    return {
        "plain fp8": "fp8-current" if current else "fp8",
        "nf4": "bf16",  # of frozen weights: products are in 16 bits
        "int8": "bf16",
        "tf32": "fp32",
    }.get(name, name)


def gathers_fp8(row: Row, framework: str) -> bool | None:
    """torchtitan's guide to float8 gathers parameters in it (2024-11); others have their habit."""
    return True if framework == "torchtitan" and precision_of(row) == "fp8-current" else None


def attention_of(row: Row) -> str:
    """Fused unless the row says unfused; which fused kernel follows from who ran it, and when.

    Composer's own models ran the first Triton kernel (`attn_impl: triton`, their default to 2024);
    PyTorch's SDPA was FlashAttention-2 on every GPU; from PyTorch 2.11 on (2026-03), whose wheels bring cuDNN above
    9.15.0, it is cuDNN's on Hopper and on B200 and GB200 (`check_prefer_cudnn_attention` in `sdp_utils.cpp`: compute
    capability 9.0 and 10.0; huggingface/transformers pull request 48163). Megatron ran cuDNN's. Before FlashAttention-2
    came out (2023-07), TransformerEngine had the first FlashAttention, which is not faster than the Triton kernel (Dao
    2023, figure 5).
    """
    if row.attention_impl.lower().startswith("unfused"):
        return "unfused"
    if stated := re.search(r"flash_attention_(\d)", f"{row.framework} {row.attention_impl}"):
        return "flash2" if stated[1] == "2" else "flash"
    if "composer" in row.framework.lower():
        return "triton"
    if "megatron" in row.framework.lower() and "2020" < row.date < "2023-07":
        return "triton"
    if "sdpa" not in row.attention_impl.lower():
        return "flash"
    cudnn = row.date >= CUDNN_SDPA and row.gpu.upper().startswith(CUDNN_SDPA_GPUS)
    return "flash" if cudnn else "flash2"


def router_load_of(row: Row) -> str | None:
    """How unevenly experts are chosen: MLPerf trains on real text, others' benchmarks force routers to be even.

    An assumption, no fit: with an auxiliary loss the busiest of 32 ranks gets 1.2 times the mean.
    """
    real = "mlperf" in row.source.lower() or "real routing" in row.notes.lower()
    return "zipf:0.2" if row.moe and (row.ep or 1) > 1 and real else None


def loss_of(row: Row) -> str | None:
    """How the loss is computed, where it is known; None: as the framework does.

    prime-rl's reinforcement-learning trainer works through the vocabulary in chunks, forward and again backward
    (`models/layers/lm_head.py`), its fine-tuning takes PyTorch's cross-entropy of logits in fp32. Liger's fuses the
    head with the loss.
    """
    if "prime-rl" in row.framework.lower():
        return "eager" if task_of(row) == "sft" else "chunked"
    return "fused" if "liger" in row.notes.lower() else None


def expert_tensor_of(row: Row) -> int | None:
    """Expert-tensor degree where the source's recipes set it: Megatron-Bridge keeps experts whole."""
    return 1 if row.moe and "megatron-bridge" in row.source.lower() else None


def recomputes_of(row: Row) -> tuple[tuple[str, ...], str]:
    """What is recomputed: one value where the row says, those in use where it does not; and what it was taken for."""
    text = row.recompute.strip().lower()
    framework = framework_of(row)
    stated, note = words.recompute(text, row.layers, framework in ("torchtitan", "fsdp"))
    if not text or stated is None:  # MaxText's `remat_policy` is 'full' unless told otherwise (base.yml, 2025)
        if row.gpu == "MI300X" and task_of(row) == "lora" and "mlperf" in row.source.lower() and (row.cp or 1) == 1:
            # `config_MI300X_1x8x1.sh` of a third party, after AMD's v5.0 reference: full, by block, 21 layers
            return ("full:21",), note
        return ("full",) if framework == "maxtext" else ("none", "full"), note
    if stated == "none" and re.match(r"meta\b", row.framework.lower()):
        # No layer is computed again, but Meta's SwiGLU keeps its two inputs and makes their product anew in the
        # backward kernel (xformers/ops/swiglu_op.py; arXiv 2302.13971, section 2.4: outputs of linear layers are kept).
        return ("selective:activation",), note
    return (stated,), note


def columns_of(row: Row) -> tuple[dict[str, object], list[str]]:
    """Plan fields of columns that hold words, and what words were taken for that are not understood.

    Megatron-Core with `reuse_grad_buf_for_mxfp8_param_ag` gathers mxfp8 parameters as bf16, two bytes each.
    """
    adapters = task_of(row) == "lora"
    fields: dict[str, object] = {}
    notes = [words.task(row.task)[1], words.precision(row.precision)[1], recomputes_of(row)[1]]
    for more, note in (
        words.offload(row.offload, row.layers, adapters),
        words.optimizer(row.optimizer),
        words.graphs(row.cuda_graph, row.moe),
        words.stages(row.pipeline_layout, row.layers, row.pp or 1, row.vpp),
    ):
        fields |= more
        notes.append(note)
    for name, text in (("gradient_dtype", row.grad_reduce_dtype), ("gradient_dtype", row.gradient_dtype)):
        if text:
            value, note = words.width("grad_reduce_dtype" if text == row.grad_reduce_dtype else name, text)
            fields |= {name: value} if value else {}
            notes.append(note)
    if row.cp_kind:
        fields["cp_kind"], note = words.context_kind(row.cp_kind)
        notes.append(note)
    if row.schedule:
        chosen, note = words.schedule(row.schedule, row.pp or 1, row.vpp or 1)
        fields |= {"schedule": chosen} if chosen else {}
        notes.append(note)
    if row.framework and not is_known_framework(row):
        notes.append(f"framework {row.framework!r} not known, taken as {framework_of(row)}")
    if row.param_gather_dtype.lower().startswith(("bf16", "bfloat16")):
        fields["fp8_parameters"] = False
    if (row.pp or 1) == 1 and (row.vpp or 1) > 1:
        notes.append(words.not_understood("vpp", str(row.vpp), "1: there is no pipeline"))
    return fields, [note for note in notes if note]


def fields_of_notes(row: Row) -> dict[str, object]:
    """Plan fields that the notes settle; what they do not mention stays with the framework's habit."""
    fields: dict[str, object] = {}
    for note in (part.strip().lower() for part in row.notes.split(";")):
        if note.startswith("cuda graphs"):
            # TransformerEngine's graphs hold attention and router; the experts, which are most launches, stay outside.
            fields["cuda_graphs"] = not (row.moe and "transformer_engine" in note)
        elif note in NOTES:
            fields |= NOTES[note]
        elif match := re.fullmatch(r"expert tp (\d+)", note):
            fields["etp"] = int(match[1])
        elif match := re.match(r"(?:fsdp group|fully sharded over) (\d+)\b", note):
            fields["shard_group"] = int(match[1])
        elif "nothing overlaps" in note or "no overlap at all" in note:
            fields |= dict.fromkeys(NO_OVERLAP, False)
    if "full-step cuda graph" in row.notes.lower():
        fields |= {"cuda_graphs": True, "full_graph": True}
    if "torch.compile" in row.framework.lower() or "liger" in row.notes.lower():  # Liger's kernels fuse the same
        fields["compile"] = True
    if "adamwbf16" in row.notes.lower():
        fields |= {"optimizer_dtype": "bf16", "master_dtype": "bf16"}
    if row.attention_impl.lower().startswith("te +"):  # AutoModel with TransformerEngine's fused layers
        fields["compile"] = True
    if "ulysses cp" in row.notes.lower():
        fields["cp_kind"] = "ulysses"
    # NVIDIA's LoRA since NeMo 2 (MLPerf v5.0, `megatron_gpt_peft_tuning_config.yaml`): `cp_comm_type` is a2a unless
    # told otherwise. Containers of 24.09 are the round's before, and AMD's is NeMo 1: both without it.
    theirs = re.match(r"mlperf-v[5-9]", release_of(row) or "") and not row.gpu.startswith("MI")
    if theirs and task_of(row) == "lora" and "24.09" not in row.url_or_file:
        fields["cp_kind"] = "ulysses"
    # `nemotron/nemotron4-340b-synth.yaml` of that release: `optim.dtype: bf16`.
    if "dgxc-benchmarking@v24.11" in row.url_or_file and "nemotron/README_340b" in row.url_or_file:
        fields.setdefault("optimizer_dtype", "bf16")
    # `train_llama3_8b_h100_fp8.sh` says `--grad-reduce-in-bf16`, which is not Megatron-LM's default.
    if "megatron-lm" in row.url_or_file.lower() and "examples/llama" in row.url_or_file:
        fields["gradient_dtype"] = "bf16"
    # Megatron-LM before 2023 ran collectives and sends in line with the computation.
    if row.framework.lower() == "megatron-lm" and row.date[:4].isdigit() and int(row.date[:4]) < 2023:
        for name in ("overlap_tp", "overlap_p2p", "overlap_grad_reduce", "overlap_param_gather"):
            fields.setdefault(name, False)
    return fields


# Models whose recipes of Megatron-Bridge 25.09 set `cuda_graphs`, and the GPUs they set it on
# (`perf_matrix` of `scripts/performance/configs/*/*_llm_pretrain.yaml`, 2025-09).
GRAPHED_RECIPES = {
    "Qwen3-30B-A3B": ("GB200", "B200-SXM"),
    "Qwen3-235B-A22B": ("GB200",),
    "DeepSeek-V3": ("GB200", "B200-SXM"),
}


def recipe_choices(row: Row) -> dict[str, tuple[bool, ...]]:
    """Whether a Megatron-Bridge row's experts may have run in CUDA graphs, and whether their exchange was overlapped.

    A graph needs shapes that the host does not wait for: experts of a fixed capacity (`tokendrop`), or the dispatcher
    of the recipes from 26.06 on. Rows that cite their recipe say it in their notes. The recipes with `tokendrop` say
    who ran in graphs, and leave `moe_a2a` off.
    """
    if not row.moe or "megatron-bridge" not in row.source.lower() or row.recompute.strip():
        return {}
    if "tokendrop" in row.notes.lower():
        name = next((name for name in GRAPHED_RECIPES if row.model.startswith(name)), None)
        graphs = (False, True) if name is None else (row.gpu in GRAPHED_RECIPES[name],)
        return {"cuda_graphs": graphs, "overlap_ep": (False,)}
    return dict.fromkeys(("cuda_graphs", "overlap_ep"), (False, True)) if row.date >= "2026-06" else {}


def release_of(row: Row) -> str | None:
    """Software release, the calibration key: 'mlperf-v3.0', 'nemo-24.11', 'bridge-26.02', ... or None."""
    source = row.source.lower()
    if match := re.search(r"mlperf training (v\d+\.\d+)", source):
        return f"mlperf-{match[1]}"
    if "megatron-bridge" in source and (match := re.search(r"(\d\d\.\d\d)", source)):
        return f"bridge-{match[1]}"
    if "dgx cloud" in source:
        match = re.search(r"@v(\d\d\.\d\d)", row.url_or_file)
        return f"nemo-{match[1]}" if match else _dated("nemo", row)
    if "nemo" in source:
        match = re.search(r"(\d\d\.\d\d)$", source.strip())
        return f"nemo-{match[1]}" if match else _dated("nemo", row)
    if "mosaicml llm-foundry benchmark" in source:
        return "llm-foundry-23.10"  # when its tables came (pull request 543); none came later (issue 1584)
    for word, name in (
        ("distmoe", "distmoe"),
        ("prime-rl", "prime-rl"),
        ("torchtitan", "torchtitan"),
        ("llm-foundry", "llm-foundry"),
        ("nanotron", "nanotron"),
    ):
        if word in source:
            return _dated(name, row)
    if "primus" in source:
        return _dated("primus", row)  # AMD's Megatron-LM, with dispatchers and kernels of its own
    return _dated("megatron", row) if row.framework.lower().startswith("megatron") else None


def _dated(name: str, row: Row) -> str:
    # A day is that of a report, and says no release of those whose releases differ here.
    day = "" if name in ("torchtitan", "megatron") else r"(?:-\d\d)?"
    if match := re.match(rf"(?:20)?(\d\d)-(\d\d){day}$", row.date):
        return f"{name}-{match[1]}.{match[2]}"
    year = re.search(r"(\d{4})$", row.date)
    return f"{name}-{year[1]}" if year else name
