"""Plan: how a model is laid out on a cluster and trained, as the user says it.

Every field left at None follows the habit of the named framework (`training/framework.py`); `resolve` in
`training/layout.py` fills them in, says so, and refuses what cannot be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from windtunnel.questions.about import STRICT, About, part
from windtunnel.questions.asked.parts.frameworks import habits_of
from windtunnel.questions.fields import Field, fields_of
from windtunnel.questions.reading import plain_part

Framework = Literal[
    "megatron", "torchtitan", "fsdp", "nanotron", "pytorch",
    "megatron-deepspeed", "deepspeed", "internevo", "colossalai", "maxtext",
]  # fmt: skip
ExpertsImpl = Literal["grouped", "streams", "sequential"]
Precision = Literal["fp32", "bf16", "fp16", "fp8", "fp8-current", "mxfp8", "nvfp4", "mxfp4"]
MOST = 1_000_000  # of a degree
TOKENS_MOST = 10**18  # of a training
# What is made again with a part: latent attention's projections with attention; a block from its input on.
WITH_PART = {
    "attention": ("mla_up_proj",),
    "mlp": ("activation",),
    "moe": ("router", "moe_permute", "moe_transfer", "moe_activation", "shared_experts", "activation"),
    "shared_experts": ("activation",),
}
LAYOUT, BATCH, NUMBERS = "Layout", "Batch", "Precision and optimizer"
SIZES = ("tp", "pp", "cp", "ep", "virtual_stages", "micro_batch", "recompute")  # of which `plan` tries all
SAVINGS, OVERLAP = "Memory savings", "Overlap and launch"


@dataclass(frozen=True, kw_only=True)  # no slots: `with_fields` copies the dictionary, which a search does often
class Plan:
    """What the user says of a run. Field names are the command line's flags with `_` for `-`."""

    __pydantic_config__: ClassVar = STRICT
    kind: ClassVar[str] = "plan"
    phrase: ClassVar[str] = "the plan of a model that is named"
    framework: Annotated[
        Framework,
        About("Whose habits fill what the plan leaves open (megatron).", LAYOUT, rare=True, meant=habits_of),
    ] = "megatron"
    release: Annotated[
        str | None, About("Software release, a calibration key, e.g. mlperf-v4.1.", LAYOUT, rare=True)
    ] = None
    tp: Annotated[int, About("Tensor-parallel degree (1).", LAYOUT, least=1, most=MOST)] = 1
    pp: Annotated[int, About("Pipeline stages (1).", LAYOUT, least=1, most=MOST)] = 1
    cp: Annotated[int, About("Context-parallel degree (1).", LAYOUT, least=1, most=MOST)] = 1
    ep: Annotated[int, About("Expert-parallel degree (1).", LAYOUT, least=1, most=MOST)] = 1
    etp: Annotated[
        int | None, About("Tensor-parallel degree inside experts.", LAYOUT, least=1, most=MOST, rare=True)
    ] = None
    dp: Annotated[
        int | None, About("Data-parallel degree (GPUs / (tp pp cp)).", LAYOUT, least=1, most=MOST, rare=True)
    ] = None
    virtual_stages: Annotated[
        int,
        About(
            "Model chunks per pipeline rank, interleaved (1).", LAYOUT, least=1, most=MOST, names=("vpp",), rare=True
        ),
    ] = 1
    micro_batch_group: Annotated[
        int | None,
        About(
            "Micro-batches through one model chunk before the next, interleaved (pp).",
            LAYOUT,
            least=1,
            most=MOST,
            rare=True,
        ),
    ] = None
    layers_per_stage: Annotated[
        tuple[int, ...] | None, About("Layers of each virtual stage in model order, e.g. 7,8,8,7.", LAYOUT, rare=True)
    ] = None
    account_for_embedding: Annotated[
        bool | None, About("First and last stage hold one layer less each.", LAYOUT, rare=True)
    ] = None
    schedule: Annotated[
        str | None, About("gpipe, 1f1b, interleaved, zb-h1, zb-v, dualpipe or dualpipe-v.", LAYOUT, rare=True)
    ] = None
    sequence_parallel: Annotated[bool | None, About("Shard norms and residuals over tp.", LAYOUT, rare=True)] = None
    cp_kind: Annotated[
        Literal["ring", "ulysses"], About("How context parallelism works (ring).", LAYOUT, rare=True)
    ] = "ring"
    zero_stage: Annotated[
        int | None,
        About(
            "Sharded over data-parallel ranks: 0 nothing, 1 optimizer, 2 + gradients, 3 + parameters.",
            LAYOUT,
            least=0,
            most=3,
        ),
    ] = None
    shard_group: Annotated[
        int | None, About("Ranks that share one full copy (HSDP).", LAYOUT, least=1, most=MOST, rare=True)
    ] = None

    global_batch: Annotated[
        int,
        About(
            "Sequences per optimizer step; required where no launch file says it (decide: some 4M tokens).",
            BATCH,
            least=1,
            most=MOST,
        ),
    ]
    micro_batch: Annotated[int, About("Sequences per forward pass and replica (1).", BATCH, least=1, most=MOST)] = 1
    seq_len: Annotated[
        int,
        About(
            "Tokens per sequence; required where no launch file says it (decide: 8,192).",
            BATCH,
            least=1,
            most=2**27,
            names=("seq",),
        ),
    ]
    images: Annotated[
        int,
        About(
            "Images (frames of a video) in a sequence, whose tokens are among its own; 0 prices text alone (0).",
            BATCH,
            least=0,
            most=MOST,
            rare=True,
        ),
    ] = 0
    image_patches: Annotated[
        int | None,
        About("Patches of an image (as the vision tower's config has them).", BATCH, least=1, most=MOST, rare=True),
    ] = None
    clips: Annotated[
        int,
        About(
            "Clips of sound in a sequence, whose tokens are among its own; 0 prices it without (0).",
            BATCH,
            least=0,
            most=MOST,
            rare=True,
        ),
    ] = 0
    clip_rows: Annotated[
        int | None,
        About(
            "Rows of a clip in the sound tower's layers (as its config has them: Whisper's 30 s are 1,500).",
            BATCH,
            least=1,
            most=MOST,
            rare=True,
        ),
    ] = None
    precision: Annotated[Precision, About("Format of the linear layers' GEMMs (bf16).", NUMBERS)] = "bf16"
    fp8_activation_input: Annotated[
        bool, About("Keep the input of the activation function in fp8.", SAVINGS, rare=True)
    ] = False
    fp8_parameters: Annotated[
        bool | None, About("Keep and gather parameters in the GEMM format.", NUMBERS, rare=True)
    ] = None
    gradient_dtype: Annotated[
        Literal["fp32", "bf16"] | None, About("Gradient accumulation and reduction format.", NUMBERS, rare=True)
    ] = None
    optimizer: Annotated[Literal["adam", "sgd", "muon"], About("Optimizer (adam).", NUMBERS, rare=True)] = "adam"
    optimizer_dtype: Annotated[
        Literal["fp32", "bf16", "int8"] | None, About("Format of the optimizer's moments (fp32).", NUMBERS, rare=True)
    ] = None
    master_dtype: Annotated[
        Literal["fp32", "bf16"],
        About("Format of the parameters that the optimizer updates (fp32).", NUMBERS, rare=True),
    ] = "fp32"
    loss: Annotated[
        Literal["eager", "compiled", "fused", "chunked"] | None,
        About(
            "Cross-entropy: eager (logits in fp32), compiled (one kernel over whole logits), fused (head and loss a"
            " chunk of tokens at a time), chunked (parts of the vocabulary, their product made again backward).",
            NUMBERS,
            rare=True,
        ),
    ] = None
    task: Annotated[
        Literal["train", "dpo", "grpo", "forward"],
        About(
            "What a step is made of: train (forward and backward), dpo (a reference's forward pass before), grpo (old"
            " and reference log-probs before), forward (one forward pass and nothing learns) (train).",
            BATCH,
            rare=True,
        ),
    ] = "train"
    lora_rank: Annotated[
        int,
        About(
            "Rank of low-rank adapters beside frozen weights; 0 trains all weights (0).",
            NUMBERS,
            least=0,
            most=65536,
            rare=True,
        ),
    ] = 0
    frozen: Annotated[
        Literal["none", "tower", "text", "both"] | None,
        About(
            "Which part of a model with towers learns nothing; of both, what joins them still does (none; with"
            " adapters the tower).",
            NUMBERS,
            rare=True,
        ),
    ] = None
    frozen_dtype: Annotated[
        Literal["bf16", "int8", "nf4"], About("Format of frozen weights; nf4 is QLoRA (bf16).", NUMBERS, rare=True)
    ] = "bf16"
    lora_targets: Annotated[
        str,
        About(
            "Layers with an adapter: qkv, attention, all (linear ones), experts (routed ones as well), or some of q, k,"
            " v, o, gate, up, down with commas, an adapter each (all).",
            NUMBERS,
            rare=True,
        ),
    ] = "all"
    lora_adapters: Annotated[
        int,
        About(
            "Adapters that learn side by side, each from its share of the tokens (1).",
            NUMBERS,
            least=1,
            most=4096,
            rare=True,
        ),
    ] = 1
    recompute: Annotated[str, About("none, full, full:N layers or selective:PART[,PART] (none).", SAVINGS)] = "none"
    offload_activations: Annotated[
        int, About("Layers whose activations, or checkpoints, go to the host (0).", SAVINGS, least=0, rare=True)
    ] = 0
    offload_optimizer: Annotated[
        float, About("Share of optimizer state and update on the host (0).", SAVINGS, least=0.0, most=1.0, rare=True)
    ] = 0.0
    attention_impl: Annotated[
        Literal["flash", "flash2", "triton", "unfused"],
        About("Attention kernel (flash, the GPU's best).", SAVINGS, rare=True),
    ] = "flash"
    expandable_segments: Annotated[
        bool | None,
        About("Segments of PyTorch's allocator grow, PYTORCH_ALLOC_CONF (as the recipes set it).", SAVINGS, rare=True),
    ] = None
    bucket_parameters: Annotated[
        int | None, About("Parameters in one gradient or parameter message.", OVERLAP, least=1, most=10**12, rare=True)
    ] = None
    overlap_grad_reduce: Annotated[
        bool | None, About("Gradient reduction under the backward pass.", OVERLAP, rare=True)
    ] = None
    overlap_param_gather: Annotated[
        bool | None, About("Parameter gather under the forward pass.", OVERLAP, rare=True)
    ] = None
    overlap_tp: Annotated[
        bool | None, About("TP collectives split and overlapped with their GEMMs.", OVERLAP, rare=True)
    ] = None
    overlap_tp_backward: Annotated[
        bool | None, About("Backward TP collectives beside the GEMM that does not need them.", OVERLAP, rare=True)
    ] = None
    overlap_p2p: Annotated[bool | None, About("Pipeline sends under computation.", OVERLAP, rare=True)] = None
    overlap_ep: Annotated[bool | None, About("Expert all-to-all under another micro-batch.", OVERLAP, rare=True)] = None
    dispatcher: Annotated[
        Literal["alltoall", "deepep", "hybridep", "ncclep"] | None,
        About(
            "What takes tokens to their experts; alltoall is NCCL's, ncclep its kernels for experts, priced as DeepEP's"
            " (as the release's recipes).",
            OVERLAP,
            rare=True,
        ),
    ] = None
    experts_impl: Annotated[
        ExpertsImpl | None,
        About(
            "Products of a GPU's experts: grouped (one kernel for all), streams (one launch an expert, on several"
            " streams, as TransformerEngine's GroupedLinear), sequential (one expert behind the other) (as the"
            " framework does).",
            OVERLAP,
            rare=True,
        ),
    ] = None
    cuda_graphs: Annotated[bool | None, About("Kernels launched as graphs.", OVERLAP, rare=True)] = None
    full_graph: Annotated[
        bool, About("The whole step is one CUDA graph, not one for each layer.", OVERLAP, rare=True)
    ] = False
    compile: Annotated[bool | None, About("torch.compile or equivalent fusion.", OVERLAP, rare=True)] = None

    @property
    def moments_dtype(self) -> Literal["fp32", "bf16", "int8"]:
        """Format of the optimizer's moments; fp32 where the plan leaves it open."""
        return self.optimizer_dtype or "fp32"

    @property
    def recompute_parts(self) -> frozenset[str]:
        """Named parts of selective recomputation; empty for none and full."""
        kind, _, parts = self.recompute.partition(":")
        names = frozenset(parts.split(",")) if kind == "selective" else frozenset()
        return names.union(*(WITH_PART.get(part, ()) for part in names))

    @property
    def recompute_layers(self) -> int | None:
        """Layers per virtual stage that are recomputed in full; None means all, 0 none."""
        kind, _, count = self.recompute.partition(":")
        if kind != "full":
            return 0
        return int(count) if count else None

    @property
    def freezes_tower(self) -> bool:
        """Whether encoders of images and sound run forward only."""
        return self.frozen in ("tower", "both") or (self.frozen is None and self.lora_rank > 0)

    @property
    def freezes_text(self) -> bool:
        """Whether the text model's own weights learn nothing, with adapters beside them or without."""
        return self.lora_rank > 0 or self.frozen in ("text", "both")

    def with_fields(self, changes: Mapping[str, object]) -> Plan:
        """The plan with some fields replaced, which are not checked. Four times as fast as `dataclasses.replace`."""
        changed = object.__new__(Plan)
        changed.__dict__.update(self.__dict__)
        changed.__dict__.update(changes)
        return changed

    def to_dict(self) -> dict[str, object]:
        """All fields as JSON has them."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self.__dict__.items()}

    def stated(self) -> dict[str, Any]:
        """The fields that do not hold their defaults, as JSON has them."""
        return plain_part(self)


@part
class Script:
    """What a captured script leaves open: its layout, batch and lengths are in it."""

    kind: ClassVar[str] = "script"
    phrase: ClassVar[str] = "a captured script"
    framework: Annotated[
        Framework | None,
        About("Whose habits fill what the script leaves open.", LAYOUT, rare=True, meant=habits_of),
    ] = None
    cuda_graphs: Annotated[bool | None, About("Kernels launched as graphs.", OVERLAP, rare=True)] = None
    allocator: Annotated[
        str | None,
        About(
            "PyTorch's allocator settings for a captured script, as PYTORCH_ALLOC_CONF takes them, e.g."
            " expandable_segments:True (as captured).",
            rare=True,
        ),
    ] = None


def _open_about(entry: Field) -> About:
    """What stands beside a field; of one that `plan` searches without the default that its text ends with."""
    text = entry.about.text
    return replace(entry.about, text=re.sub(r" \(\w+\)\.$", ".", text) if entry.path in SIZES else text)


def _open() -> type:
    """A part with the fields of Plan, each None where it is left open."""
    declared = [
        (entry.path, Annotated[entry.type | None, _open_about(entry)], field(default=None)) for entry in fields_of(Plan)
    ]
    part_type = make_dataclass(
        "OpenPlan", declared, frozen=True, kw_only=True, namespace={"__pydantic_config__": STRICT}
    )
    part_type.__doc__, part_type.__module__ = (
        "The fields of a plan that are fixed; None: open, to be searched or assumed.",
        __name__,
    )
    return part_type


if TYPE_CHECKING:
    OpenPlan = Plan
else:
    OpenPlan = _open()


def open_plan(**fields: Any) -> OpenPlan:
    """A plan with some fields fixed and the others left open."""
    return OpenPlan(**fields)
