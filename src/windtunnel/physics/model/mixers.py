"""What stands in the place of plain attention: sparse attention behind an indexer, and mixers with a fixed state.

Per token, for H heads with keys of d_k and values of d_v, chunks of c tokens (what a fused kernel computes; the
recurrence itself is what decoding runs):

    gdn, kda    gated delta rule (Yang 2024, arXiv 2412.06464)   H (6 d_k d_v + c (4 d_k + 3 d_v))
    mamba2      state-space duality (Dao 2024, 2405.21060)       H (4 d_k d_v + c (d_k + d_v))
    lightning   linear attention with decay (2401.04658), and mlstm (xLSTM, 2405.04517): as mamba2
    mamba1      selective scan (Gu 2023, 2312.00752), a head per channel, and rglru (Griffin, 2402.19427), rwkv
                (2305.13048), all channel by channel on vector units: 9 H d_k d_v
    conv        a short convolution between two gates (LFM2)     0
    none        nothing: the layer is its feed-forward alone (Llama-Nemotron)

and 2 FLOPs per weight of the short convolution in front. These FLOPs follow from the papers, no kernel was counted.
The state is in fp32, the convolution's last inputs in 16 bits; neither grows with the context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from windtunnel.physics.model.architecture import Attention, AttentionCount, FeedForward, Layer, Model

Form = Literal["gdn", "kda", "mamba2", "lightning", "mlstm", "mamba1", "rglru", "rwkv", "conv", "none"]
DELTA_RULE = ("gdn", "kda")
BY_CHANNEL = ("mamba1", "rglru", "rwkv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extended(Attention):
    """Attention with more in it: `more_weights` elements of matrices, `more_parameters` of whatever else is learned.

    `shared`: no keys are kept: an earlier layer's are read (Gemma 3n), or all tokens are there at once (T5's encoder).
    `more_state`: numbers of a sequence in 16 bits that are kept beside keys, such as the last inputs of short
    convolutions (Inkling).
    """

    more_weights: int = 0
    more_parameters: int = 0
    more_state: int = 0
    shared: bool = False

    def matmul_parameters(self, hidden_size: int) -> int:
        """Weights of all matrices."""
        return Attention.matmul_parameters(self, hidden_size) + self.more_weights

    def parameters(self, hidden_size: int) -> int:
        """All learned numbers."""
        return Attention.parameters(self, hidden_size) + self.more_parameters

    def cache_width(self, tp: int = 1) -> float:
        """Numbers that a decoder keeps of one token."""
        return 0.0 if self.shared else Attention.cache_width(self, tp)

    def state_bytes(self) -> float:
        """Of one sequence, whatever its length."""
        return 2.0 * self.more_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed(Extended):
    """Attention over the `selected` best keys; an indexer of small heads scores all of them (DeepSeek V3.2).

    `index_heads` = 0: the choice of an earlier layer is used again. The indexer's queries come from the latent; its
    keys are scored by means of `index_pool` at a time (GLM 5 Next).
    """

    index_heads: int
    index_dim: int
    selected: int
    index_pool: int = 1

    @property
    def index_weights(self) -> int:
        """Matrix elements of the indexer that its queries take."""
        return (self.q_lora_rank or 0) * self.index_heads * self.index_dim

    def matmul_parameters(self, hidden_size: int) -> int:
        """Weights of all matrices, the indexer's three among them."""
        own = hidden_size * (self.index_dim + self.index_heads) if self.index_heads else 0
        return Extended.matmul_parameters(self, hidden_size) + self.index_weights + own

    def parameters(self, hidden_size: int) -> int:
        """All learned numbers; the indexer's keys have a LayerNorm."""
        return Extended.parameters(self, hidden_size) + (2 * self.index_dim if self.index_heads else 0)

    def score_flops_per_token(self, seq_len: int, count: AttentionCount = "causal") -> float:
        """Scores and values of the keys that are chosen, and the indexer's scores of all."""
        keys, reach = Attention.mean_keys(self, seq_len, count), min(self.selected, seq_len)
        chosen = float(reach) if count == "full" else reach - reach * (reach - 1) / (2 * seq_len)
        return 2.0 * self.heads * (self.head_dim + self.value_head_dim) * chosen + self.index_flops(keys)

    def index_flops(self, keys: float) -> float:
        """Of one token against so many keys: products of small heads, and their weighted sum."""
        return 2.0 * self.index_heads * (self.index_dim + 1) * keys / self.index_pool

    def cache_width(self, tp: int = 1) -> float:
        """The latent, and the indexer's key, which every rank keeps."""
        return Extended.cache_width(self, tp) + (self.index_dim if self.index_heads else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed(Extended):
    """One key that is its value, of the last `window` tokens and of every `ratio` tokens before (DeepSeek V4).

    `overlap`: how many such compressed keys a token goes into. An indexer scores them and `selected` are met
    (compressed sparse attention); `index_heads` 0: as an earlier layer chose; `selected` 0: all are met (heavily
    compressed attention); `ratio` 0: the window alone. `shared`: compressed keys are an earlier layer's (V4.1). The
    output goes through `out_groups` matrices of rank `out_rank`.
    """

    ratio: int
    overlap: int = 1
    index_heads: int = 0
    index_dim: int = 0
    selected: int = 0
    out_rank: int
    out_groups: int

    @property
    def key_width(self) -> int:
        """Numbers of one compressed key that this layer makes, with the indexer's."""
        return self.head_dim + (self.index_dim if self.index_heads else 0) if self.ratio and not self.shared else 0

    @property
    def in_width(self) -> int:
        """Columns of the projections that read the layer's input: key, queries, compressors with a gate, weights."""
        return (self.q_lora_rank or 0) + self.head_dim + 2 * self.key_width * self.overlap + self.index_heads

    def matmul_parameters(self, hidden_size: int) -> int:
        """Weights of all matrices."""
        queries = (self.q_lora_rank or 0) * (self.heads * self.head_dim + self.index_heads * self.index_dim)
        out = self.out_rank * (self.heads * self.head_dim + self.out_groups * hidden_size)
        return hidden_size * self.in_width + queries + out + self.more_weights

    def parameters(self, hidden_size: int) -> int:
        """All learned numbers: matrices, norms of queries and keys, places in a compressed key, sinks."""
        total = self.matmul_parameters(hidden_size) + (self.q_lora_rank or 0) + self.head_dim + self.more_parameters
        return total + self.key_width * (1 + self.ratio * self.overlap) + self.heads * self.sinks

    def score_flops_per_token(self, seq_len: int, count: AttentionCount = "causal") -> float:
        """Scores and values of the window and of the compressed keys, and the indexer's scores."""
        keys = Attention.mean_keys(self, seq_len, count) + self.far_keys(seq_len, count)
        return 2.0 * self.heads * 2 * self.head_dim * keys + self.index_flops(seq_len, count)

    def far_keys(self, seq_len: float, count: AttentionCount = "causal") -> float:
        """Compressed keys that a token meets on average."""
        most = self._compressed(seq_len, count)
        return min(most, float(self.selected)) if self.selected else most

    def index_flops(self, seq_len: float, count: AttentionCount = "causal") -> float:
        """The indexer's scores of all compressed keys, per token."""
        return 2.0 * self.index_heads * (self.index_dim + 1) * self._compressed(seq_len, count)

    def _compressed(self, seq_len: float, count: AttentionCount) -> float:
        return seq_len / self.ratio / (1.0 if count == "full" else 2.0) if self.ratio else 0.0

    def cache_width(self, tp: int = 1) -> float:
        """A part of a compressed key and of the indexer's; every rank keeps them."""
        return self.key_width / self.ratio if self.ratio else 0.0

    def state_bytes(self) -> float:
        """In 16 bits: the window's keys, which are its values, and what is to be compressed, keys and gates.

        Those are of the tokens since the last compressed key, and where keys overlap of that key's tokens as well.
        """
        waiting = (self.ratio - 1) * self.overlap + (self.overlap - 1) * self.ratio
        return 2.0 * ((self.window or 0) * self.head_dim + 2.0 * self.key_width * max(0, waiting))


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed(Layer):
    """A layer between which so many residual streams run, mixed before and behind each half (hyper-connections)."""

    streams: int = 1


def streams_of(model: Model) -> int:
    """Residual streams that run between a model's layers: several with hyper-connections."""
    return max((layer.streams for layer, _ in model.distinct_layers() if isinstance(layer, Streamed)), default=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent(Extended):
    """A mixer whose memory is a state of `heads` x `head_dim` x `value_head_dim`, whatever the context.

    `in_width`: columns of the projections that read the layer's input; `more_weights`: matrices behind them, such as
    the low-rank gates of KDA; `conv_channels` and `conv_width`: of the short causal convolution in front.
    """

    form: Form
    in_width: int
    conv_channels: int = 0
    conv_width: int = 0
    chunk: int = 64

    def matmul_parameters(self, hidden_size: int) -> int:
        """Weights of the projections in and out, and of what lies between."""
        return hidden_size * (self.in_width + self.heads * self.value_head_dim) + self.more_weights

    def parameters(self, hidden_size: int) -> int:
        """All learned numbers: matrices, convolution, biases, decays and norms."""
        return self.matmul_parameters(hidden_size) + self.conv_channels * self.conv_width + self.more_parameters

    def mean_keys(self, seq_len: int, count: AttentionCount = "causal") -> float:
        """No key is kept."""
        return 0.0

    def score_flops_per_token(self, seq_len: int, count: AttentionCount = "causal") -> float:
        """The scan over the tokens in chunks, and the convolution."""
        return self.scan_flops(min(self.chunk, seq_len))

    def scan_flops(self, chunk: int) -> float:
        """Forward FLOPs of one token in chunks of so many; 1: the recurrence of decoding."""
        d, dv, convolution = self.head_dim, self.value_head_dim, 2.0 * self.conv_channels * self.conv_width
        if self.form == "conv":
            return convolution
        if self.form in BY_CHANNEL:
            return convolution + 9.0 * self.heads * d * dv
        if self.form in DELTA_RULE:
            return convolution + self.heads * (6.0 * d * dv + chunk * (4.0 * d + 3.0 * dv))
        return convolution + self.heads * (4.0 * d * dv + chunk * (d + dv))

    def cache_width(self, tp: int = 1) -> float:
        """Nothing is kept per token."""
        return 0.0

    def state_bytes(self) -> float:
        """Of one sequence: the state in fp32 and the last inputs of convolutions in 16 bits."""
        state = 0 if self.form == "conv" else self.heads * self.head_dim * self.value_head_dim
        return 4.0 * state + 2.0 * self.conv_channels * self.conv_width + 2.0 * self.more_state


def absent(attention: Attention) -> bool:
    """Whether a layer has no mixer: it is its feed-forward alone."""
    return isinstance(attention, Recurrent) and attention.form == "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendedBlock(FeedForward):
    """A feed-forward with more in it. `latent`: experts read and write a vector so wide, between two matrices.

    (Nemotron 3; 0: they work on the hidden size.) `scored`: what a router scores beside the experts, shared ones or
    such as compute nothing (LongCat). `more_parameters`: whatever else of the block is learned.
    """

    latent: int = 0
    scored: int = 0
    more_parameters: int = 0

    def block_parameters(self, hidden_size: int) -> int:
        """One dense block, or one expert at the width that it works on."""
        more = self.more_parameters if self.kind == "dense" else 0
        return FeedForward.block_parameters(self, self.latent or hidden_size) + more

    def router_parameters(self, hidden_size: int) -> int:
        """The router, the ways into the latent and out of it, and the rest."""
        more = 2 * hidden_size * self.latent + self.scored * (hidden_size + self.router_bias) + self.more_parameters
        return FeedForward.router_parameters(self, hidden_size) + more

    def matmul_parameters(self, hidden_size: int) -> int:
        """Weights that one token is multiplied with."""
        more = hidden_size * (2 * self.latent + self.scored)
        experts = self.experts_per_token * self.matrices * self.size * ((self.latent or hidden_size) - hidden_size)
        return FeedForward.matmul_parameters(self, hidden_size) + (experts if self.kind == "moe" else 0) + more
