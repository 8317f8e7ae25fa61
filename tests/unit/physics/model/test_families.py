"""Models from the plain numbers of published tables have the parameters that those tables state."""

from __future__ import annotations

from typing import Any

import pytest

from windtunnel.errors import SpecError, UnknownNameError
from windtunnel.physics.model import catalogue_names, families, load_model, transformer

GPT = {"family": "gpt", "vocab": 51_200, "max_sequence_length": 2048}
MPT = {"family": "mpt", "vocab": 50_368}

# Billions of parameters as printed by the source, in the last digit given.
TABLES = [
    # arXiv 2104.04473 table 1 (Megatron-LM)
    ("1.7", {**GPT, "hidden": 2304, "layers": 24, "heads": 24, "ffn": 9216}),
    ("3.6", {**GPT, "hidden": 3072, "layers": 30, "heads": 32, "ffn": 12_288}),
    ("7.5", {**GPT, "hidden": 4096, "layers": 36, "heads": 32, "ffn": 16_384}),
    ("18.4", {**GPT, "hidden": 6144, "layers": 40, "heads": 48, "ffn": 24_576}),
    ("39.1", {**GPT, "hidden": 8192, "layers": 48, "heads": 64, "ffn": 32_768}),
    ("76.1", {**GPT, "hidden": 10_240, "layers": 60, "heads": 80, "ffn": 40_960}),
    ("174.6", {**GPT, "hidden": 12_288, "layers": 96, "heads": 96, "ffn": 49_152}),
    ("145.6", {**GPT, "hidden": 12_288, "layers": 80, "heads": 96, "ffn": 49_152}),
    ("310.1", {**GPT, "hidden": 16_384, "layers": 96, "heads": 128, "ffn": 65_536}),
    ("529.6", {**GPT, "hidden": 20_480, "layers": 105, "heads": 128, "ffn": 81_920}),
    ("1008.0", {**GPT, "hidden": 25_600, "layers": 128, "heads": 160, "ffn": 102_400}),
    # llm-foundry, scripts/train/benchmarking
    ("0.125", {**MPT, "hidden": 768, "layers": 12, "heads": 12, "ffn": 3072, "max_sequence_length": 2048}),
    ("0.174", {**MPT, "hidden": 768, "layers": 12, "heads": 12, "ffn": 3072, "max_sequence_length": 65_536}),
    ("1.316", {**MPT, "hidden": 2048, "layers": 24, "heads": 16, "ffn": 8192, "max_sequence_length": 2048}),
    ("6.659", {**MPT, "hidden": 4096, "layers": 32, "heads": 32, "ffn": 16_384, "max_sequence_length": 2048}),
    ("12.854", {**MPT, "hidden": 5120, "layers": 40, "heads": 40, "ffn": 20_480, "max_sequence_length": 2048}),
    ("29.975", {**MPT, "hidden": 7168, "layers": 48, "heads": 56, "ffn": 28_672, "max_sequence_length": 2048}),
    ("64.862", {**MPT, "hidden": 8192, "layers": 80, "heads": 64, "ffn": 32_768, "max_sequence_length": 2048}),
]


@pytest.mark.parametrize(("printed", "numbers"), TABLES, ids=lambda v: v if isinstance(v, str) else "")
def test_parameters_round_to_the_printed_number(printed: str, numbers: dict[str, Any]) -> None:
    unit = 10.0 ** -len(printed.partition(".")[2])
    assert transformer(**numbers).parameters / 1e9 == pytest.approx(float(printed), abs=0.501 * unit)


FROM_CATALOGUE = {
    "llama-3.1-405b": "llama",
    "llama-2-70b": "llama",
    "mixtral-8x7b": "mixtral",
    "qwen2.5-32b": "qwen2.5",
    "qwen3-32b": "qwen3",
    "qwen3-235b-a22b": "qwen3",
    "gpt2-xl": "gpt2",
    "gpt3-175b": "gpt",
    "gpt-neox-20b": "gpt-neox",
    "bloom-176b": "bloom",
    "nemotron-4-340b": "nemotron",
    "grok-1": "grok",
    "gpt-oss-120b": "gpt-oss",
}


@pytest.mark.parametrize("name", FROM_CATALOGUE)
def test_plain_numbers_give_the_layers_of_the_config(name: str) -> None:
    model = load_model(name)
    attention, block = model.layers[0].attention, model.layers[0].feed_forward
    built = transformer(
        hidden=model.hidden_size,
        layers=model.n_layers,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        ffn=block.size,
        gated=block.gated,
        vocab=model.vocab_size,
        experts=block.experts,
        topk=block.experts_per_token,
        family=FROM_CATALOGUE[name],
        max_sequence_length=model.max_sequence_length,
    )
    same_activation = [
        (layer, twin.feed_forward.activation) for layer, twin in zip(built.layers, model.layers, strict=True)
    ]
    assert [layer.attention for layer in built.layers] == [layer.attention for layer in model.layers]
    assert len({a for _, a in same_activation}) == 1
    assert (built.norm, built.norm_bias, built.tied_embeddings) == (model.norm, model.norm_bias, model.tied_embeddings)
    assert built.layers[0].parallel_block == model.layers[0].parallel_block
    assert built.parameters == model.parameters
    assert built.matmul_parameters == model.matmul_parameters


SMALL: dict[str, Any] = {"hidden": 64, "layers": 2, "heads": 4, "vocab": 100, "ffn": 256}


@pytest.mark.parametrize("family", sorted(families()))
def test_every_family_builds(family: str) -> None:
    model = transformer(**SMALL, family=family.upper())
    assert model.family == family
    assert model.parameters > transformer(**{**SMALL, "layers": 1}, family=family).parameters


def test_conventions_can_be_overridden() -> None:
    tied, untied = (transformer(**SMALL, family="gpt", tied_embeddings=t) for t in (True, False))
    assert untied.parameters - tied.parameters == 100 * 64
    assert transformer(**SMALL, gated=False).layer_parameters(0).dense == 2 * 64 * 256
    assert transformer(**SMALL, head_dim=32, kv_heads=2).layers[0].attention.head_dim == 32


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"heads": 5}, "heads"),
        ({"kv_heads": 3}, "key-value heads"),
        ({"heads": 0}, "heads"),
        ({"hidden": -64}, "hidden"),
        ({"hidden": "64"}, "hidden"),
        ({"layers": 10**9}, "layers"),
        ({"vocab": 0}, "vocab"),
        ({"ffn": 1.5}, "ffn"),
        ({"experts": 4, "topk": 5}, "experts per token"),
        ({"experts": 4}, "topk"),
        ({"topk": 2}, "experts"),
        ({"max_sequence_length": 0}, "max_sequence_length"),
        ({"family": 3}, "family"),
    ],
)
def test_numbers_that_make_no_model_are_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError, match=field):
        transformer(**{**SMALL, **change})


def test_unknown_family() -> None:
    with pytest.raises(UnknownNameError, match="mamba"):
        transformer(**SMALL, family="mamba")


def test_catalogue_models_named_here_exist() -> None:
    assert set(FROM_CATALOGUE) <= set(catalogue_names())
