"""The shape of a decoder-only transformer: everything that decides parameters, FLOPs and bytes, and nothing else.

Notation: hidden h, query heads a, key-value heads k, head size d (values d_v), feed-forward size f, vocabulary V.

    grouped-query attention   h*a*d + h*k*d + h*k*d_v + a*d_v*h
    multi-head latent (MLA)   queries h*r_q + r_q*a*d (or h*a*d), keys and values h*(r_kv + d_rope)
                              + r_kv*a*(d_nope + d_v), output a*d_v*h, a norm on each latent; d = d_nope + d_rope
    feed-forward              2*h*f, gated 3*h*f; a mixture holds E of these, a router h*E and shared experts

Sources: Vaswani 2017 (arXiv 1706.03762), Ainslie 2023 (GQA, 2305.13245), DeepSeek-V2 and V3 (2405.04434, 2412.19437),
Shazeer 2020 (gated units, 2002.05202), Fedus 2021 (mixtures, 2101.03961). FLOPs: Kaplan 2020 (2001.08361), app. B of
PaLM (2204.02311): a multiply-add is two FLOPs, and only matrix multiplications count.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any, Literal

from windtunnel.errors import SpecError
from windtunnel.physics.model.limits import LAYERS_MAX, counted
from windtunnel.physics.model.repeats import repeats_of, resized

PARAMETERS_MAX = 10**16  # a hundred times what anybody has trained; keeps every product inside an int64

AttentionKind = Literal["gqa", "mla", "recurrent"]
FeedForwardKind = Literal["dense", "moe"]
QkNorm = Literal["none", "per_head", "full", "l2"]
Position = Literal["rope", "learned", "alibi", "none"]
Norm = Literal["rmsnorm", "layernorm"]
AttentionCount = Literal["full", "causal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One attention block. `head_dim` is the size of queries and keys, `value_head_dim` that of values.

    `qk_norm`: "per_head" has a weight vector of head size for queries and one for keys (Qwen 3), "full" one of all
    heads together, "l2" normalises without weights (Llama 4). `window`: how many keys a query sees, its own included;
    with `chunked` it sees those of its own chunk only (Llama 4). `sinks`: one learned logit per head (gpt-oss).
    `output_gate`: a matrix of its own gates the output (MiniMax-01's linear attention).
    """

    kind: AttentionKind = "gqa"
    heads: int
    kv_heads: int
    head_dim: int
    value_head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: QkNorm = "none"
    position: Position = "rope"
    window: int | None = None
    chunked: bool = False
    sinks: bool = False
    output_gate: bool = False
    causal: bool = True
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    rope_head_dim: int = 0
    nope_head_dim: int = 0

    def matmul_parameters(self, hidden_size: int) -> int:
        """Weights of the projection matrices, without biases and norms."""
        output = self.heads * self.value_head_dim * hidden_size * (1 + self.output_gate)
        if self.kind == "gqa":
            keys_values = self.kv_heads * (self.head_dim + self.value_head_dim)
            return hidden_size * (self.heads * self.head_dim + keys_values) + output
        rank = self.kv_lora_rank or 0
        queries = self.heads * self.head_dim
        query = hidden_size * queries if self.q_lora_rank is None else self.q_lora_rank * (hidden_size + queries)
        down = hidden_size * (rank + self.rope_head_dim)
        return query + down + rank * self.heads * (self.nope_head_dim + self.value_head_dim) + output

    def parameters(self, hidden_size: int) -> int:
        """All learned numbers of the block: matrices, biases, norms of queries, keys and latents, sinks."""
        total = self.matmul_parameters(hidden_size)
        if self.kind == "gqa":
            bias = self.heads * self.head_dim + self.kv_heads * (self.head_dim + self.value_head_dim)
        else:
            rank, query_rank = self.kv_lora_rank or 0, self.q_lora_rank or 0
            bias = query_rank + rank + self.rope_head_dim  # only the down-projections carry one
            total += query_rank + rank  # a norm on each latent
        norm = {"none": 0, "l2": 0, "per_head": 2 * self.head_dim, "full": (self.heads + self.kv_heads) * self.head_dim}
        total += bias * self.qkv_bias + hidden_size * self.out_bias
        return total + norm[self.qk_norm] + self.heads * self.sinks

    def mean_keys(self, seq_len: int, count: AttentionCount = "causal") -> float:
        """How many keys a query meets on average over a sequence of `seq_len` tokens.

        "causal" counts what the mask leaves, (s + 1) / 2 without a window; "full" ignores the mask, not the window.
        """
        reach = seq_len if self.window is None else min(self.window, seq_len)
        if count == "full" or not self.causal:
            return float(reach)
        if not self.chunked:
            return reach - reach * (reach - 1) / (2 * seq_len)
        chunks, rest = divmod(seq_len, reach)
        return (chunks * reach * (reach + 1) + rest * (rest + 1)) / (2 * seq_len)

    def score_flops_per_token(self, seq_len: int, count: AttentionCount = "causal") -> float:
        """Forward FLOPs of QK^T and of the weighted sum of values, per token."""
        return 2.0 * self.heads * (self.head_dim + self.value_head_dim) * self.mean_keys(seq_len, count)

    def cache_width(self, tp: int = 1) -> float:
        """Numbers that a decoder keeps of one token on one of `tp` ranks; KV heads are not split below one."""
        if self.kind == "mla":
            return float((self.kv_lora_rank or 0) + self.rope_head_dim)
        return -(-self.kv_heads // tp) * float(self.head_dim + self.value_head_dim)

    def state_bytes(self) -> float:
        """Bytes that a decoder keeps of one sequence, whatever its length."""
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """One feed-forward block, dense or a mixture of experts. `size` is that of one expert in a mixture.

    `shared_size` is the total size of the experts that every token visits, `shared_gate` a learned scalar gate on
    them (Qwen 2 MoE). `router_bias` is one number per expert (gpt-oss; the balancing bias of DeepSeek V3).
    `expert_groups` and `groups_per_token`: a token's experts lie in so many of the groups (DeepSeek); 0 = no limit.
    """

    kind: FeedForwardKind = "dense"
    size: int
    gated: bool
    activation: str
    bias: bool = False
    experts: int = 0
    experts_per_token: int = 0
    shared_size: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    expert_groups: int = 0
    groups_per_token: int = 0

    @property
    def matrices(self) -> int:
        """Weight matrices of one block: up and down, and the gate if there is one."""
        return 3 if self.gated else 2

    def block_parameters(self, hidden_size: int) -> int:
        """One dense block, or one expert."""
        bias = (self.matrices - 1) * self.size + hidden_size
        return self.matrices * hidden_size * self.size + bias * self.bias

    def shared_parameters(self, hidden_size: int) -> int:
        """The experts that every token visits, with their gate."""
        return self.matrices * hidden_size * self.shared_size + hidden_size * self.shared_gate

    def router_parameters(self, hidden_size: int) -> int:
        """The matrix that scores the experts, and its bias."""
        return self.experts * (hidden_size + self.router_bias)

    def matmul_parameters(self, hidden_size: int) -> int:
        """Weights that one token is multiplied with."""
        per_expert = self.matrices * hidden_size * self.size
        if self.kind == "dense":
            return per_expert
        return self.experts_per_token * per_expert + self.shared_parameters(hidden_size) + hidden_size * self.experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One transformer layer. `parallel_block`: attention and feed-forward read the same input (GPT-NeoX, GPT-J)."""

    attention: Attention
    feed_forward: FeedForward
    norms: int = 2
    parallel_block: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParameters:
    """Parameters of one layer by what holds them; `expert` is one expert's share of `experts`."""

    attention: int
    dense: int
    experts: int
    expert: int
    shared: int
    router: int
    norms: int
    experts_per_token: int

    @property
    def feed_forward(self) -> int:
        """Dense block, experts, shared experts and router together."""
        return self.dense + self.experts + self.shared + self.router

    @property
    def total(self) -> int:
        """Every parameter of the layer."""
        return self.attention + self.feed_forward + self.norms

    @property
    def active(self) -> int:
        """Those that one token meets: all but the experts it is not routed to."""
        return self.total - self.experts + self.experts_per_token * self.expert


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder-only language model: its layers in order, and what stands before and after them.

    `learned_positions`: rows of the position table, 0 = none. `embedding_norm`: a norm right after the embedding
    (BLOOM). `mtp_layers`: multi-token-prediction modules (DeepSeek V3), each one more layer (`ahead`) behind two
    norms and a 2h -> h projection; they share embedding and head, and published totals leave them out, as `parameters`
    does. `notes`: what the source describes and this model leaves out. `more_weights`: elements of matrices outside
    of the layers that every token is multiplied with, `more_parameters`: whatever else is learned there; both count
    with the embedding. `more_tables`: those of them in tables of which a token reads a few rows (n-grams, an
    embedding for each layer), which are not active. `derived`: read from what transformers built, not from a file
    of this package. `step_tokens`: of a diffusion model, what every step works on anew, `step_passes` times; its
    answer is its steps. `tower`: layers and width of the vision tower, as engines read them off the config; None
    for a model of text. `vision`: that tower, and `sound`: one that hears, where their types are read; no count of
    the model has their parameters.
    """

    name: str
    family: str
    hidden_size: int
    vocab_size: int
    layers: tuple[Layer, ...] = field(repr=False)
    norm: Norm = "rmsnorm"
    norm_bias: bool = False
    tied_embeddings: bool = False
    learned_positions: int = 0
    final_norm: bool = True
    embedding_norm: bool = False
    output_bias: bool = False
    max_sequence_length: int = 4096
    mtp_layers: int = 0
    notes: tuple[str, ...] = ()
    more_weights: int = 0
    more_parameters: int = 0
    more_tables: int = 0
    derived: bool = False
    step_tokens: int = 0
    step_passes: int = 1
    tower: tuple[int, int] | None = None
    vision: Tower | None = None
    sound: Tower | None = None

    def __post_init__(self) -> None:
        """Equal layers become one object, which is all that whoever works layer by layer looks at."""
        first_equal: dict[Layer, Layer] = {}
        same = tuple(first_equal.setdefault(layer, layer) for layer in self.layers)
        if any(layer is not other for layer, other in zip(same, self.layers, strict=True)):
            object.__setattr__(self, "layers", same)

    @property
    def n_layers(self) -> int:
        """How many layers, without the multi-token-prediction modules."""
        return len(self.layers)

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm over the hidden size."""
        return self.hidden_size * (1 + self.norm_bias)

    def distinct_layers(self) -> tuple[tuple[Layer, int], ...]:
        """Each different layer once, in order of first appearance, with how often it occurs."""
        return repeats_of(self.layers)

    def layer_parameters(self, index: int) -> LayerParameters:
        """Parameters of layer `index` (negative counts from the end)."""
        return self.parameters_of(self.layers[index])

    def parameters_of(self, layer: Layer) -> LayerParameters:
        """Parameters that `layer` has at this model's hidden size."""
        block, hidden = layer.feed_forward, self.hidden_size
        mixture = block.kind == "moe"
        expert = block.block_parameters(hidden)
        return LayerParameters(
            attention=layer.attention.parameters(hidden),
            dense=0 if mixture else expert,
            experts=block.experts * expert if mixture else 0,
            expert=expert if mixture else 0,
            shared=block.shared_parameters(hidden) if mixture else 0,
            router=block.router_parameters(hidden) if mixture else 0,
            norms=layer.norms * self.norm_parameters,
            experts_per_token=block.experts_per_token if mixture else 0,
        )

    @property
    def embedding_parameters(self) -> int:
        """Token table, position table, the norm after them, and what else is outside of the layers."""
        table = (self.vocab_size + self.learned_positions) * self.hidden_size
        return table + self.norm_parameters * self.embedding_norm + self.more_weights + self.more_parameters

    @property
    def head_parameters(self) -> int:
        """The output matrix where it is not the token table itself, and its bias."""
        return 0 if self.tied_embeddings else self.vocab_size * (self.hidden_size + self.output_bias)

    @property
    def parameters(self) -> int:
        """All parameters, as published: without multi-token-prediction modules."""
        return self._outside_layers + sum(n * self.parameters_of(layer).total for layer, n in self.distinct_layers())

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: `parameters` less the experts it is not routed to and tables of n-grams."""
        inside = sum(n * self.parameters_of(layer).active for layer, n in self.distinct_layers())
        return self._outside_layers - self.more_tables + inside

    @property
    def ahead(self) -> int:
        """Which layer multi-token prediction has once more: the last that keeps keys (hybrids attend there), whole."""
        numbers = (
            i for i, layer in enumerate(self.layers) if layer.attention.kind != "recurrent" and layer.feed_forward.size
        )
        return max(numbers, default=self.n_layers - 1)

    @property
    def mtp_parameters(self) -> int:
        """Parameters of the multi-token-prediction modules; embedding and head are shared with the model."""
        if not self.mtp_layers:
            return 0
        module = self.layer_parameters(self.ahead).total + 2 * self.hidden_size**2 + 3 * self.norm_parameters
        return self.mtp_layers * module

    @property
    def matmul_parameters(self) -> int:
        """Weights that one token is multiplied with: projections, its experts, router, and the head (tied or not)."""
        hidden = self.hidden_size
        inside = sum(
            n * (layer.attention.matmul_parameters(hidden) + layer.feed_forward.matmul_parameters(hidden))
            for layer, n in self.distinct_layers()
        )
        return inside + self.vocab_size * hidden + self.more_weights

    def forward_flops_per_token(self, seq_len: int, attention: AttentionCount = "causal") -> float:
        """Model FLOPs of one token's forward pass in a sequence of `seq_len`; a training step costs three times that.

        2 * `matmul_parameters` + sum over layers of 2 * heads * (d + d_v) * keys met. `attention="full"` leaves out the
        causal mask: with `d == d_v` that is the convention 2*N + 4*L*a*d*s of PaLM and Megatron-LM; "causal" counts
        only what the mask leaves, about half. Recomputation and multi-token prediction are not model FLOPs.
        """
        counts = self.distinct_layers()
        scores = sum(n * layer.attention.score_flops_per_token(seq_len, attention) for layer, n in counts)
        return 2.0 * self.matmul_parameters + scores

    def to_dict(self) -> dict[str, object]:
        """JSON-able form; runs of equal layers are one entry `{"repeat": n, ...}`."""
        whole = {name: getattr(self, name) for name in self.__slots__ if name not in LEFT_OUT}
        whole = {name: value for name, value in whole.items() if value or name not in SELDOM}
        runs = [{"repeat": sum(1 for _ in same), **asdict(layer)} for layer, same in groupby(self.layers)]
        counts = {"parameters": self.parameters, "active_parameters": self.active_parameters}
        return {**whole, "notes": list(self.notes), "layers": runs, **counts}

    def with_changes(
        self,
        *,
        layers: int | None = None,
        vocab_size: int | None = None,
        max_sequence_length: int | None = None,
        tied_embeddings: bool | None = None,
        mtp_layers: int | None = None,
        name: str | None = None,
    ) -> Model:
        """The same model with a few numbers changed: a depth-reduced proxy, a padded vocabulary, a longer context.

        Fewer layers keeps the first ones; more repeats the pattern that the last ones follow. A learned position table
        grows and shrinks with `max_sequence_length`. Raises SpecError on a number out of range.
        """
        changed: dict[str, Any] = {"tied_embeddings": tied_embeddings, "name": name}
        if layers is not None:
            changed["layers"] = resized(self.layers, counted("layers", layers, LAYERS_MAX))
        if vocab_size is not None:
            changed["vocab_size"] = counted("vocab_size", vocab_size)
        if max_sequence_length is not None:
            changed["max_sequence_length"] = counted("max_sequence_length", max_sequence_length)
            changed["learned_positions"] = max_sequence_length if self.learned_positions else 0
        if mtp_layers is not None:
            changed["mtp_layers"] = counted("mtp_layers", mtp_layers, LAYERS_MAX, least=0)
        return checked(replace(self, **{key: value for key, value in changed.items() if value is not None}))

    @property
    def _outside_layers(self) -> int:
        return self.embedding_parameters + self.head_parameters + self.norm_parameters * self.final_norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """An encoder of images or of sound beside a text model, and what makes tokens of its patches.

    `encoder`: its layers; `more_weights` are the product that takes a patch in. `patches`: of an image at the config's
    size (of a clip: rows that layers see), 0 where images come in any; `registers`: rows that the encoder adds to an
    image's own. `merge`: patches that become one token. `projector`: inputs and outputs of each product over such a
    token, `projector_more`: what else is learned there.
    """

    encoder: Model
    patches: int
    registers: int
    merge: int
    projector: tuple[tuple[int, int], ...]
    projector_more: int

    @property
    def projector_parameters(self) -> int:
        """Parameters of what makes tokens of patches."""
        return sum(k * n for k, n in self.projector) + self.projector_more

    @property
    def parameters(self) -> int:
        """All parameters of the tower."""
        return self.encoder.parameters + self.projector_parameters

    def forward_flops(self, patches: int) -> tuple[float, float]:
        """Model FLOPs of one image's forward pass: of the encoder, and of the projector."""
        rows = patches + self.registers
        joined = 2.0 * patches / self.merge * sum(k * n for k, n in self.projector)
        return rows * self.encoder.forward_flops_per_token(rows, "full"), joined


def checked(model: Model, where: str | None = None) -> Model:
    """`model` itself if its numbers agree with each other, else a SpecError."""
    for layer, _ in model.distinct_layers():
        attention, block = layer.attention, layer.feed_forward
        if attention.heads % attention.kv_heads:
            remedy = f"give a divisor of the {attention.heads} query heads"
            raise SpecError("key-value heads", attention.kv_heads, remedy, where)
        if block.kind == "moe" and not 1 <= block.experts_per_token <= block.experts:
            remedy = f"give 1 to {block.experts}, the number of experts"
            raise SpecError("experts per token", block.experts_per_token, remedy, where)
        if block.expert_groups and (
            block.experts % block.expert_groups or not 1 <= block.groups_per_token <= block.expert_groups
        ):
            remedy = f"give groups that divide the {block.experts} experts, and at most that many groups per token"
            raise SpecError("expert groups", (block.expert_groups, block.groups_per_token), remedy, where)
    if model.parameters + model.mtp_parameters > PARAMETERS_MAX:
        remedy = f"lower the sizes: models up to {PARAMETERS_MAX:.0e} parameters are supported"
        raise SpecError("parameters", model.parameters + model.mtp_parameters, remedy, where)
    return model


def notes_of(*models: Model) -> tuple[str, ...]:
    """What models leave out, for the warnings of whatever prices them; of several models with their names."""
    named = len({model.name for model in models}) > 1
    return tuple(dict.fromkeys(f"{model.name}: {note}" if named else note for model in models for note in model.notes))


# Of a model's written form: only where they say something.
LEFT_OUT = ("layers", "notes", "vision", "sound")
SELDOM = ("more_weights", "more_parameters", "more_tables", "derived", "tower")
