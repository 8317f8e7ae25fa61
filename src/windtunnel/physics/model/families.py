"""Models from plain numbers: what tables of published runs give, completed by what the family is known to have.

A homogeneous model is hidden size, layers, heads and so on, plus the conventions of its family: biases, norms,
positions, whether the embedding is also the output matrix. Sources: the reference configs of each family. `gpt` is
GPT-3 as trained by Megatron-LM (Narayanan 2021, arXiv 2104.04473: 12*l*h^2*(1 + 13/(12h) + (V+s)/(12lh))); `mpt` is
llm-foundry's training default (learned positions and biases; the released MPT checkpoints have ALiBi and none).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from windtunnel.errors import SpecError, UnknownNameError
from windtunnel.files.document import own_document
from windtunnel.physics.model.architecture import (
    Attention,
    FeedForward,
    Layer,
    Model,
    Norm,
    Position,
    QkNorm,
    checked,
)
from windtunnel.physics.model.limits import HEADS_MAX, LAYERS_MAX, SIZE_MAX, counted, showable

FILE = Path(__file__).parent / "families.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What all models of a family share."""

    norm: Norm = "rmsnorm"
    norms: int = 2
    position: Position = "rope"
    tied: bool = False
    gated: bool = True
    activation: str = "silu"
    qkv_bias: bool = False
    out_bias: bool = False
    ffn_bias: bool = False
    qk_norm: QkNorm = "none"
    sinks: bool = False
    router_bias: bool = False
    parallel_block: bool = False
    embedding_norm: bool = False
    norm_bias: bool = False
    window: int | None = None
    full_every: int = 0  # every so many layers the last has no window; 0: none

    @property
    def learned(self) -> bool:
        """Whether positions are a table of parameters."""
        return self.position == "learned"


@cache
def families() -> dict[str, Family]:
    """Those of `families.yaml`, whose entries differ from Family's defaults or from the family that one is `like`."""
    known: dict[str, Family] = {}
    for name, entries in own_document(FILE.read_text(encoding="utf-8")).items():
        changes = {key: value for key, value in entries.items() if key != "like"}
        known[name] = replace(known.get(entries.get("like"), Family()), **changes)
    return known


def transformer(
    *,
    hidden: int,
    layers: int,
    heads: int,
    vocab: int,
    ffn: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    gated: bool | None = None,
    experts: int | None = None,
    topk: int | None = None,
    shared_size: int = 0,
    family: str = "llama",
    name: str | None = None,
    max_sequence_length: int = 4096,
    tied_embeddings: bool | None = None,
) -> Model:
    """A model whose layers are all alike, from plain numbers and the conventions of `family`.

    `ffn` is the intermediate size, of one expert in a mixture; `topk` experts per token; `shared_size` the total size
    of the experts that every token visits. None takes the family's convention (`kv_heads`: as many as heads;
    `head_dim`: hidden / heads). Families with learned positions get a table of `max_sequence_length` rows. Raises
    SpecError for a number out of range, UnknownNameError for a family that is not known.
    """
    if not isinstance(family, str):
        raise SpecError("family", showable(family), f"give one of {', '.join(families())}")
    key = family.lower().replace("_", "-")
    if key not in families():
        raise UnknownNameError("model family", family, families())
    kind = families()[key]
    counted("hidden", hidden, SIZE_MAX)
    counted("heads", heads, HEADS_MAX)
    if head_dim is None and hidden % heads:
        raise SpecError("heads", heads, f"give a divisor of the hidden size {hidden}, or a head_dim")
    size = counted("head_dim", hidden // heads if head_dim is None else head_dim, HEADS_MAX)
    block = FeedForward(
        size=counted("ffn", ffn, SIZE_MAX),
        gated=kind.gated if gated is None else gated,
        activation=kind.activation,
        bias=kind.ffn_bias,
    )
    if experts:
        block = replace(
            block,
            kind="moe",
            experts=counted("experts", experts, HEADS_MAX),
            experts_per_token=counted("topk", topk, HEADS_MAX),
            shared_size=counted("shared_size", shared_size, SIZE_MAX, least=0),
            router_bias=kind.router_bias,
        )
    elif topk or shared_size:
        raise SpecError("experts", experts, "give the number of experts, or leave out topk and shared_size")
    attention = Attention(
        heads=heads,
        kv_heads=counted("kv_heads", heads if kv_heads is None else kv_heads, HEADS_MAX),
        head_dim=size,
        value_head_dim=size,
        qkv_bias=kind.qkv_bias,
        out_bias=kind.out_bias,
        qk_norm=kind.qk_norm,
        position=kind.position,
        sinks=kind.sinks,
    )
    plain = _layer(attention, block, kind, None)
    windowed = _layer(attention, block, kind, kind.window)
    n = counted("layers", layers, LAYERS_MAX)
    counted("max_sequence_length", max_sequence_length)
    model = Model(
        name=name or f"{key}-{layers}x{hidden}",
        family=key,
        hidden_size=hidden,
        vocab_size=counted("vocab", vocab, SIZE_MAX),
        layers=tuple(plain if kind.full_every and (i + 1) % kind.full_every == 0 else windowed for i in range(n)),
        norm=kind.norm,
        norm_bias=kind.norm_bias,
        tied_embeddings=kind.tied if tied_embeddings is None else tied_embeddings,
        learned_positions=max_sequence_length if kind.learned else 0,
        embedding_norm=kind.embedding_norm,
        max_sequence_length=max_sequence_length,
    )
    return checked(model)


def _layer(attention: Attention, block: FeedForward, kind: Family, window: int | None) -> Layer:
    seen = attention if window is None else replace(attention, window=window)
    return Layer(attention=seen, feed_forward=block, norms=kind.norms, parallel_block=kind.parallel_block)
