"""The nouns of a layer's work on one rank: ops with local shapes, FLOPs and bytes, the transfers that they need, and
how much of a layer the rank holds.

Which ops a layer has is in `model/layers/layer.py`, and in `model/layers/plain.py` for plain PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

ACTIVATION_BYTES = 2  # bf16 and fp16 alike; fp32 training doubles it through `Shard.activation_bytes`

# Bytes moved per element to quantise one GEMM input, and bytes kept per element of it for the weight gradient.
# Row- and column-wise copies are written together; current scaling reads the tensor once more for its maximum.
CAST_BYTES = {"fp8": 4.0, "fp8-current": 6.0, "mxfp8": 4.06, "nvfp4": 5.1, "mxfp4": 5.1}
KEPT_BYTES = {"fp8": 1.0, "fp8-current": 1.0, "mxfp8": 1.03, "nvfp4": 0.56, "mxfp4": 0.53}


class Transfer(NamedTuple):
    """One collective that an op needs: its kind, the group's name in the layout, and bytes as nccl-tests count them."""

    kind: str
    group: str
    bytes_total: float


class Timed(NamedTuple):
    """What a memory op is on a device that was measured itself (`hardware.calibration`), and how often it runs."""

    op: str  # "rms_norm"
    rows: float
    width: float
    forward: float = 1.0
    backward: float = 1.0


@dataclass(frozen=True, slots=True)
class Operation:
    """One op of a layer, forward; its backward is derived by `training.segments`.

    `shape`: gemm (m, n, k); grouped_gemm (groups, m per group, n, k); attention (batch, seq_q, seq_kv, heads, kv_heads,
    head_dim, value_head_dim, window, causal divisor); scan (batch, seq, heads, head_dim,
    value_head_dim, divisor). Bytes are those of this rank and micro-batch.
    """

    name: str
    part: str  # for selective recomputation
    kind: str  # gemm | grouped_gemm | attention | scan | memory | transfer
    shape: tuple[float, ...] = ()
    flops: float = 0.0  # forward
    forward_bytes: float = 0.0  # moved, for memory ops and casts
    backward_bytes: float = 0.0
    saved_bytes: float = 0.0  # kept for backward because of this op
    output_bytes: float = 0.0
    weight_elements: float = 0.0
    low_precision: bool = False  # runs in the plan's GEMM format
    variant: str = ""  # which kernel, where there are several: attention's
    kernels: int = 1  # launches, forward
    skew: float = 1.0  # of a transfer: bytes of its busiest rank, which set the time, over the mean
    causal: bool = True  # of attention: a query sees no key after its own
    before: Transfer | None = None  # on the input, forward; all of a transfer op
    after: Transfer | None = None  # on the output, forward
    before_backward: Transfer | None = None  # on the output's gradient; of a transfer op, going back
    regather: Transfer | None = None  # on the input again, for the weight gradient
    after_backward: Transfer | None = None  # on the input's gradient
    timed: Timed | None = None  # what a calibrated device calls it; None: nothing that it measures
    reads: tuple[str, ...] = ()  # ops whose outputs it takes, "" for the block's input; stated in plain PyTorch only
    new_shapes: int = 0  # products of a shape that no earlier one had: rows that routing decides, anew in each step
    index_shape: tuple[float, ...] = ()  # of attention behind an indexer: batch, queries, mean keys, heads x size
    repeats: int = 0  # runs once per expert, in a loop of so many rounds; sizes are of all rounds together
    apart: bool = False  # of a grouped product: its groups run one behind the other
    begins: bool = False  # nothing before it learns: no gradient of its input
    product: Operation | None = None  # of a transfer: whose kernel does it, tile by tile

    @property
    def backward_only(self) -> bool:
        """Whether the forward pass knows nothing of it: gradients of a tensor with several readers are added."""
        return self.kind == "memory" and self.forward_bytes == 0.0 and self.backward_bytes > 0.0


@dataclass(frozen=True, slots=True)
class Shard:
    """How much of a layer this rank holds, and in which formats."""

    batch: int
    seq_len: int  # of the whole sequence
    cp: int = 1
    cp_kind: str = "ring"
    exchanges_heads: bool = False  # context-parallel ranks have all tokens of some heads where a mixer keeps a state
    tp: int = 1
    sequence_parallel: bool = False
    ep: int = 1
    ep_domains: int = 1  # scale-up domains that the ranks of one expert group lie in
    etp: int = 1
    precision: str = "bf16"
    fused: bool = True
    attention_impl: str = "flash"  # flash | flash2 | triton | unfused
    activation_bytes: int = ACTIVATION_BYTES
    routes_whole: bool = False  # every rank of an expert-tensor group routes and sends the tokens of all
    weighs_in_fp32: bool = False  # experts' rows are multiplied by their scores in fp32, by kernels of their own
    masked_dispatch: bool = False  # tokens go to their experts' places by a product with a mask, and back by another
    fused_exchange: bool = False  # experts' kernels fetch rows from other ranks, quantise them and write them back
    fused_projections: bool = True  # queries, keys and values in one GEMM, gate and up in one; else one GEMM each
    fused_norms: bool = False  # RMSNorm is one kernel also where nothing else is fused
    deduplicates: bool = True  # a token goes once to each rank that has experts for it, however many
    weighs_in_experts: bool = False  # scores are multiplied in behind the activation also where it does not
    hybrid_dispatch: bool = False  # by HybridEP: with the weights of all experts of a domain
    experts_impl: str = "streams"  # grouped | streams | sequential
    # Host calls per expert and grouped GEMM, where experts are launched one by one, each quantised first.
    expert_launches: float = 6.0
    expert_launches_low: float = 14.0
    chained_passes: float = 10.0  # of experts' activations with bias, clamp and gate over those of plain SwiGLU
    low_precision_dispatch: bool = False  # tokens go to their experts in fp8
    activation_input_bytes: int = 0  # per element, kept in another format than it has; 0 = as it is
    gathers_heads: bool = False  # all tensor-parallel ranks gather, norm and turn all heads of queries and keys
    fused_mla: bool = True  # latent attention's rotary embedding and concatenation in one kernel
    loss: str = ""  # Megatron's own cross-entropy, over fp32 logits: "eager" op by op, or "compiled"; "": one kernel
    fused_groups: bool = True  # attention of fewer heads for keys and values has a fused kernel

    @property
    def tokens(self) -> int:
        """Tokens that this rank's GEMMs see."""
        return self.batch * self.seq_len // self.cp

    @property
    def residual_tokens(self) -> float:
        """Tokens of the residual stream on this rank."""
        return self.tokens / self.tp if self.sequence_parallel else float(self.tokens)
