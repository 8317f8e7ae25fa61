"""Model types read from `types/*.yaml`: against what transformers builds, and by laws of their mixers."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from every_case import over

from windtunnel.errors import SpecError
from windtunnel.physics.model import read_config
from windtunnel.physics.model.architecture import Model
from windtunnel.physics.model.cache import kept_bytes, kv_bytes_per_token, state_bytes_per_sequence
from windtunnel.physics.model.layers.layer import head_operations, layer_operations
from windtunnel.physics.model.mixers import ExtendedBlock, Indexed, Recurrent
from windtunnel.physics.model.operations import Shard
from windtunnel.physics.model.reading.type_files import other_names, type_names

# Made by `validation/derive_models.py` with transformers on the meta device.
DERIVED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "derived_by_transformers.json").read_text())


@cache
def model_of(kind: str) -> Model:
    return read_config(DERIVED[kind]["config"])


def sequence_bytes(model: Model, context: float) -> float:
    return sum(n * kept_bytes(layer.attention, context) for layer, n in model.distinct_layers())


@over("kind", DERIVED)
def test_parameters_are_those_that_transformers_builds(kind: str) -> None:
    """Exactly; where a router's balancing bias is a buffer there, with it."""
    row = DERIVED[kind]
    assert model_of(kind).parameters == row["parameters"] + row["balancing_bias"]


# Configs of checkpoints with code of their own, which transformers does not build, and parameters as published: counted
# from the files of a checkpoint, or its card's round number (Ling, Step 3, MiniMax-Text-01, Phi-4-multimodal's text,
# GigaChat 3.5, Llama-Nemotron Super); Sarvam's two by what transformers 5.24 makes of such a config.
CHECKPOINTS = json.loads((Path(__file__).parent / "written_by_checkpoints.json").read_text())


@over("name", CHECKPOINTS)
def test_parameters_of_checkpoints_with_code_of_their_own(name: str) -> None:
    row = CHECKPOINTS[name]
    exact = row["published"] % 10**6 != 0
    assert read_config(row["config"]).parameters == pytest.approx(row["published"], rel=1e-12 if exact else 4e-3)


@over("kind", sorted({*DERIVED} & {*other_names()}))
def test_another_name_of_a_field_is_that_field(kind: str) -> None:
    """As transformers' classes have them (`attribute_map`), which configs of checkpoints use."""
    config, model = DERIVED[kind]["config"], model_of(kind)
    for field, names in other_names()[kind].items():
        for name in names if config.get(field) is not None else ():
            if name not in config:
                renamed = read_config({name if key == field else key: value for key, value in config.items()})
                assert (renamed.layers, renamed.parameters) == (model.layers, model.parameters), name
                both = read_config({**config, name: config[field]})
                assert (both.layers, both.parameters) == (model.layers, model.parameters), name


def test_two_names_of_a_field_that_contradict_are_refused() -> None:
    config = DERIVED["deepseek_v3"]["config"]
    with pytest.raises(SpecError, match="num_local_experts"):
        read_config({**config, "num_local_experts": 2 * config["n_routed_experts"]})


def test_layers_without_a_mixer_or_a_feed_forward_or_both() -> None:
    """Llama-Nemotron: the half that is there with its norm, and nothing of what is not."""
    config = CHECKPOINTS["llama-3.3-nemotron-super-49b"]["config"]
    whole, alone = config["block_configs"][0], {"no_op": True, "replace_with_linear": False}
    mixer, block = {"attention": whole["attention"]}, {"ffn": whole["ffn"]}
    kinds = [
        {**mixer, **block},
        {**mixer, "ffn": alone},
        {"attention": alone, **block},
        {"attention": alone, "ffn": alone},
    ]
    model = read_config({**config, "block_configs": kinds, "num_hidden_layers": len(kinds)})
    both, no_block, no_mixer = (model.parameters_of(layer) for layer in model.layers)
    assert both.total == no_block.total + no_mixer.total
    assert no_mixer.total == 3 * 8192 * 14336 + 8192  # two thirds of 2.625 times the width, and a norm
    shard = Shard(batch=1, seq_len=4096, tp=8)
    ops, ops_no_block, ops_no_mixer = (layer_operations(layer, model, shard) for layer in model.layers)
    assert sum(op.flops for op in ops) == sum(op.flops for op in (*ops_no_block, *ops_no_mixer))
    assert [op.name for op in ops_no_mixer] == ["norm_1", "mlp_up", "activation", "mlp_down", "residual_2"]
    assert kv_bytes_per_token(model) == 2 * kv_bytes_per_token(replace(model, layers=model.layers[:1]))
    linear = {"attention": {**whole["attention"], "replace_with_linear": True}, **block}
    with pytest.raises(SpecError, match="kind of layer 0 = 'other'"):
        read_config({**config, "block_configs": [linear], "num_hidden_layers": 1})


# Diffusion transformers as diffusers 0.42 builds them on the meta device: its defaults, and configs of FLUX.2 klein,
# Wan 2.2 TI2V-5B, Wan 2.1 I2V and Stable Diffusion 3.5 Large and Medium.
DIFFUSERS = json.loads((Path(__file__).parent / "built_by_diffusers.json").read_text())


@over("name", DIFFUSERS)
def test_parameters_are_those_that_diffusers_builds(name: str) -> None:
    assert read_config(DIFFUSERS[name]["config"]).parameters == DIFFUSERS[name]["parameters"]


def test_tokens_of_a_video_step_follow_its_autoencoder() -> None:
    """81 frames are 21 in the latent; Wan 2.2 5B's autoencoder takes twice the pixels a side."""
    assert read_config(DIFFUSERS["wani2v"]["config"]).step_tokens == 21 * 30 * 52
    assert read_config(DIFFUSERS["wan22"]["config"]).step_tokens == 21 * 15 * 26


def test_tables_of_n_grams_have_a_prime_of_rows_for_each_head() -> None:
    """Qwen4-Exp: heads of 11 and 13 rows, padded to 32 of 3 numbers; without a layer there is no table."""
    config = {**DERIVED["qwen4_exp_text"]["config"], "ngram_size": 2, "heads_per_ngram": 2, "ngram_vocab_size_base": 10,
              "ple_embed_dim": 6, "make_ngram_vocab_size_divisible_by": 16, "ple_layer_ids": [2]}  # fmt: skip
    width = config["hc_count"] * config["hidden_size"]
    layer = 6 * (width + config["hidden_size"]) + (3 + config["ple_conv_kernel_size"]) * width
    without = read_config({**config, "ple_layer_ids": []}).parameters
    assert read_config(config).parameters - without == 32 * 3 + layer


@pytest.mark.parametrize("sizes", [{"heads_per_ngram": 16_384}, {"ngram_size": 1_000}])
def test_more_tables_of_n_grams_than_any_model_has_are_refused(sizes: dict[str, int]) -> None:
    """Before their primes are sought: 16,384 from a thousand million on took a minute."""
    config = {**DERIVED["qwen4_exp_text"]["config"], "ngram_vocab_size_base": 10**9 - 1, **sizes}
    with pytest.raises(SpecError, match=r"heads_per_ngram .*<= 512"):
        read_config(config)


def test_nearly_every_type_has_a_derived_row() -> None:
    """Those without: the defaults of their class build nothing, it needs another package, or transformers has none."""
    without = set(type_names()) - {kind.split("#")[0] for kind in DERIVED}
    without -= {row["config"]["model_type"] for row in CHECKPOINTS.values()}
    without -= {row["config"]["_class_name"] for row in DIFFUSERS.values()}
    assert without <= {
        "FluxTransformer2DModel", "HunyuanVideoTransformer3DModel",
        "audioflamingo3", "deepseek_ref", "emu3_text_model", "musicflamingo",
        "bailing_moe_linear", "bailing_moe_v2", "bailing_moe_v3_vl", "dots_ocr", "kimi_vl", "mimo_v2",
        "minimax_m1", "step3_vl",
        "arctic", "deepseek", "granite4_vision_text", "grok-1", "grok-2", "internlm3", "kimi_k2", "kimi_k3",
        "mimo", "minimax_m3", "step3p5",
    } | {kind for kind in without if kind.endswith(("_text", "_text_model"))}  # fmt: skip


@over("kind", DERIVED)
def test_ops_of_a_layer_have_the_flops_of_its_model(kind: str) -> None:
    """But for the scalar gate on shared experts, which no op has."""
    model, shard = model_of(kind), Shard(batch=1, seq_len=512)
    ops = [(op, n) for layer, n in model.distinct_layers() for op in layer_operations(layer, model, shard)]
    ops += [(op, 1) for op in head_operations(model, shard, model.vocab_size)]
    expected = model.forward_flops_per_token(512, "full") * 512
    assert sum(n * op.flops for op, n in ops) == pytest.approx(expected, rel=5e-5)


@pytest.mark.parametrize("kind", ["qwen3_next", "kimi_linear", "mamba2"])
def test_a_recurrent_mixer_keeps_a_state_and_nothing_per_token(kind: str) -> None:
    for layer, _ in model_of(kind).distinct_layers():
        mixer = layer.attention
        if isinstance(mixer, Recurrent):
            assert mixer.cache_width() == 0.0
            assert mixer.state_bytes() > 4.0 * mixer.heads * mixer.head_dim * mixer.value_head_dim
            assert mixer.score_flops_per_token(4096) == mixer.score_flops_per_token(65536) > mixer.scan_flops(1)


# Of a forward pass over so many tokens, FLOPs of products with weights and of attention's, and bytes of the cache.
PASSED = [kind for kind, row in DERIVED.items() if "flops" in row]
TOKENS = 256
SCORES_APART = {
    "diffllama": 2.0,  # its code scores the same keys twice, for values of twice the size
}
WEIGHTS_APART = {
    "zaya": 40 * 2 * 2048 * 128,  # half of its values are those of the token before, for which it takes one more
}
CACHES_APART = {
    "deepseek_v4": "fractions of keys, and gates in fp32",
    "dots3_note": "keys of the indexer in fp32",
    "dots3_note_text": "keys of the indexer in fp32",
    "glm5_next": "keys of the indexer with their gates and a mark",
    "gpt_neo": "whole, where a window is all that is read",
    "minimax": "states in 16 bits",
    "unlimited_ocr": "the whole of a reference that every token sees",
}


@over("kind", PASSED)
def test_flops_are_those_that_transformers_multiplies(kind: str) -> None:
    """With weights to the last; of attention, which is run there without windows, but for an indexer's sums."""
    model, flops = model_of(kind), DERIVED[kind]["flops"]
    assert 2 * model.matmul_parameters * TOKENS == flops["weights"] - WEIGHTS_APART.get(kind, 0)
    mixers = [
        (layer.attention, n) for layer, n in model.distinct_layers() if not isinstance(layer.attention, Recurrent)
    ]
    scores = sum(n * replace(mixer, window=None).score_flops_per_token(TOKENS, "full") for mixer, n in mixers)
    assert scores * TOKENS * SCORES_APART.get(kind, 1.0) == pytest.approx(flops.get("scores", 0), rel=2e-4)


@over("kind", [kind for kind in PASSED if any(DERIVED[kind]["cache"].values())])
def test_cache_bytes_are_those_of_transformers(kind: str) -> None:
    """Behind one token, many, and more than a window, of which it keeps one less."""
    model = model_of(kind)
    cut = [
        layer
        if layer.attention.window is None
        else replace(layer, attention=replace(layer.attention, window=layer.attention.window - 1))
        for layer in model.layers
    ]
    kept = [sequence_bytes(replace(model, layers=tuple(cut)), int(tokens)) for tokens in DERIVED[kind]["cache"]]
    assert (kept == list(DERIVED[kind]["cache"].values())) is (kind not in CACHES_APART)


@pytest.mark.parametrize(
    ("kind", "per_token", "per_sequence"),
    [
        # Keys and values of the full layers alone; the others keep 128 tokens.
        ("gpt_oss", 18 * 2 * 2 * 8 * 64, 18 * 128 * 2 * 2 * 8 * 64),
        ("deepseek_v3", 61 * 2 * 576, 0),
        ("deepseek_v32", 61 * 2 * (576 + 128), 0),
        ("qwen3_next", 12 * 2 * 2 * 2 * 256, 36 * 2_162_688),
        # V4's class default: 23 layers compress by 128, 20 by 4 with an indexer; all keep 128 keys that are values, and
        # keys and gates of what is to be compressed: up to 127 tokens, or 3 twice as wide and the 4 before.
        (
            "deepseek_v4",
            23 * 2 * 512 / 128 + 20 * 2 * (512 + 128) / 4,
            2 * (43 * 128 * 512 + 23 * 2 * 127 * 512 + 20 * 2 * (3 * 2 + 4) * (512 + 128)),
        ),
        ("minimax", 16 * 2 * 2 * 8 * 128, 16 * 4 * 32 * 128 * 128),
    ],
)
def test_what_a_decoder_keeps(kind: str, per_token: float, per_sequence: int) -> None:
    model = model_of(kind)
    assert kv_bytes_per_token(model) == per_token
    assert state_bytes_per_sequence(model) == per_sequence
    long = 1 << 20
    assert sequence_bytes(model, long) == pytest.approx(per_token * long + per_sequence, rel=1e-12)
    assert sequence_bytes(model, 64) <= sequence_bytes(model, 128) <= sequence_bytes(model, long)


def test_an_indexer_bounds_the_keys_that_are_met() -> None:
    layer = model_of("deepseek_v32").layers[0].attention
    assert isinstance(layer, Indexed)
    assert layer.cache_width() * 2 == 1408
    core = 2.0 * layer.heads * (layer.head_dim + layer.value_head_dim)
    long = layer.score_flops_per_token(1 << 20) - layer.index_flops(layer.mean_keys(1 << 20))
    assert core * layer.selected * 0.99 < long <= core * layer.selected


def test_experts_behind_a_latent_are_smaller() -> None:
    block = ExtendedBlock(
        kind="moe", size=8, gated=False, activation="relu2", experts=4, experts_per_token=2, latent=16
    )
    assert block.block_parameters(64) == 2 * 16 * 8
    assert block.router_parameters(64) == 4 * 64 + 2 * 64 * 16


@pytest.mark.parametrize("kind", ["qwen3_5", "qwen3_5_moe", "qwen4_exp"])
@pytest.mark.parametrize("beside", [None, False, True])
@pytest.mark.parametrize("inside", [None, False, True])
def test_the_flag_beside_the_text_model_ties_the_output_matrix(
    kind: str, beside: bool | None, inside: bool | None
) -> None:
    """As transformers 5.24 builds all nine: the outer model ties by its own config, whose class has false."""
    config = json.loads(json.dumps(DERIVED[kind]["config"]))
    for part, flag in ((config, beside), (config["text_config"], inside)):
        part.pop("tie_word_embeddings", None)
        if flag is not None:
            part["tie_word_embeddings"] = flag
    assert read_config(config).tied_embeddings is bool(beside)


def test_a_field_that_no_entry_asks_for_is_refused_and_a_missing_one_named() -> None:
    config = DERIVED["minimax_m2"]["config"]
    with pytest.raises(SpecError, match="flux_capacitor"):
        read_config({**config, "flux_capacitor": 3})
    for field in ("num_local_experts", "hidden_size", "num_attention_heads", "num_hidden_layers"):
        with pytest.raises(SpecError, match=field):
            read_config({key: value for key, value in config.items() if key != field})
        for value in (-1, 10**40, "8", [8], {}):
            with pytest.raises(SpecError):
                read_config({**config, field: value})
