"""Laws of counting: parameters add up, FLOPs follow from them, windows are what brute force says."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace

import pytest
from every_case import over
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import SpecError
from windtunnel.physics.model import Attention, FeedForward, Layer, Model, catalogue_names, load_model, transformer
from windtunnel.physics.model.mixers import Indexed, Recurrent

MODELS = [load_model(name) for name in catalogue_names()]
each_model = over("model", MODELS, lambda m: m.name)
# A diffusion model's token meets one of two streams, and its vocabulary is a patch.
each_language_model = over("model", [m for m in MODELS if not m.step_tokens], lambda m: m.name)


@each_model
def test_parameters_are_the_sum_of_their_parts(model: Model) -> None:
    parts = [model.layer_parameters(i) for i in range(model.n_layers)]
    outside = model.embedding_parameters + model.head_parameters + model.norm_parameters * model.final_norm
    assert model.parameters == outside + sum(p.attention + p.feed_forward + p.norms for p in parts)
    assert model.active_parameters == outside - model.more_tables + sum(p.active for p in parts)
    assert all(p.active <= p.total for p in parts)
    assert model.active_parameters <= model.parameters


@each_model
def test_a_layer_more_adds_exactly_its_parameters(model: Model) -> None:
    deeper = model.with_changes(layers=model.n_layers + 1)
    assert deeper.parameters - model.parameters == deeper.layer_parameters(-1).total
    shallower = model.with_changes(layers=model.n_layers - 1)
    assert model.parameters - shallower.parameters == model.layer_parameters(-1).total
    assert deeper.with_changes(layers=model.n_layers) == model


@each_model
def test_equal_layers_are_one_object(model: Model) -> None:
    copies = replace(model, layers=tuple(replace(layer) for layer in model.layers))
    assert len({id(layer) for layer in copies.layers}) == len(set(model.layers)) == len(model.distinct_layers())
    assert replace(model, name="another").layers is model.layers


@each_model
def test_layers_beyond_the_last_follow_the_pattern(model: Model) -> None:
    periods = {"llama-4-scout": 4, "llama-4-maverick": 4, "gpt-oss-20b": 2, "gpt-oss-120b": 2, "minimax-01": 8}
    period = {**periods, "gemma-2-9b": 2, "gemma-2-27b": 2, "gemma-3-12b": 6}.get(model.name, 1)
    if period == 1 and len(set(model.layers[-9:])) > 1:
        pytest.skip("a hybrid without a period, or none that is listed")
    deeper = model.with_changes(layers=model.n_layers + 9).layers
    assert all(deeper[i] == deeper[i - period] for i in range(model.n_layers, len(deeper)))


@each_language_model
def test_vocabulary_costs_one_row_or_two(model: Model) -> None:
    larger = model.with_changes(vocab_size=model.vocab_size + 128)
    rows = 128 if model.tied_embeddings else 256
    biases = 128 if model.name in ("gpt-j-6b", "phi-3.5-moe") else 0  # of the output matrix
    assert larger.parameters - model.parameters == rows * model.hidden_size + biases
    assert larger.matmul_parameters - model.matmul_parameters == 128 * model.hidden_size


@each_language_model
def test_matmul_parameters_are_fewer_than_active_plus_a_tied_head(model: Model) -> None:
    head = model.vocab_size * model.hidden_size if model.tied_embeddings else 0
    looked_up = model.embedding_parameters - model.more_weights - model.more_tables
    vectors = model.active_parameters + head - looked_up - model.matmul_parameters
    assert 0 <= vectors < 0.002 * model.active_parameters  # norms, biases and sinks


@each_model
def test_full_attention_flops_are_those_of_palm_where_nothing_is_windowed(model: Model) -> None:
    if any(type(one.attention) is not Attention and one.attention.kind != "recurrent" for one in model.layers):
        pytest.skip("sparse or streamed attention is held against transformers, in test_types.py")
    if any(one.attention.kind == "recurrent" and one.attention.form != "lightning" for one in model.layers):
        pytest.skip("so are mixers with a fixed state")
    seq = 2048
    latent = model.layers[0].attention.kind == "mla"
    expected = 2 * model.matmul_parameters
    for layer in model.layers:
        a = layer.attention
        per_head = a.rope_head_dim + a.nope_head_dim + a.value_head_dim if latent else a.head_dim + a.value_head_dim
        if isinstance(a, Recurrent):  # linear attention of MiniMax-01: blocks of 256 tokens, and a state of d x d
            expected += a.heads * (4 * a.head_dim**2 + 256 * 2 * a.head_dim)
        else:
            expected += 2 * a.heads * per_head * min(seq, a.window or seq)
    assert model.forward_flops_per_token(seq, "full") == pytest.approx(expected, rel=1e-12)
    assert model.forward_flops_per_token(seq) < model.forward_flops_per_token(seq, "full") or model.step_tokens
    assert model.forward_flops_per_token(1) == model.forward_flops_per_token(1, "full")


def test_405b_training_flops_per_token() -> None:
    """arXiv 2407.21783: 3.8e25 FLOPs for 15.6e12 tokens at a sequence of 8,192, by 6 N per token."""
    model = load_model("llama-3.1-405b")
    assert 15.6e12 * 6 * model.parameters == pytest.approx(3.8e25, rel=0.005)
    assert 3 * model.forward_flops_per_token(8192) * 15.6e12 == pytest.approx(3.8e25, rel=0.05)


@given(seq=st.integers(1, 300), window=st.none() | st.integers(1, 400), chunked=st.booleans())
def test_mean_keys_equals_brute_force(seq: int, window: int | None, chunked: bool) -> None:
    attention = Attention(
        heads=1, kv_heads=1, head_dim=1, value_head_dim=1, window=window, chunked=chunked and window is not None
    )
    reach = window or seq
    met = [(i % reach if attention.chunked else min(i, reach - 1)) + 1 for i in range(seq)]
    assert attention.mean_keys(seq) == pytest.approx(sum(met) / seq)
    assert attention.mean_keys(seq, "full") == min(reach, seq)
    assert replace(attention, causal=False).mean_keys(seq) == min(reach, seq)


@given(
    hidden=st.integers(1, 64),
    kv=st.integers(1, 4),
    group=st.integers(1, 4),
    size=st.integers(1, 32),
    flags=st.tuples(*[st.booleans()] * 5),
)
def test_counts_equal_the_tensors_listed_one_by_one(
    hidden: int, kv: int, group: int, size: int, flags: tuple[bool, ...]
) -> None:
    qkv, out, normed, gated, biased = flags
    heads = kv * group
    attention = Attention(
        heads=heads,
        kv_heads=kv,
        head_dim=size,
        value_head_dim=size,
        qkv_bias=qkv,
        out_bias=out,
        qk_norm="per_head" if normed else "none",
    )
    block = FeedForward(size=7, gated=gated, activation="silu", bias=biased)
    model = Model(
        name="m",
        family="f",
        hidden_size=hidden,
        vocab_size=11,
        layers=(Layer(attention=attention, feed_forward=block),),
    )
    shapes = [(11, hidden), (11, hidden), (hidden,), (hidden,), (hidden,)]  # tables, two norms and the last
    shapes += [(heads * size, hidden), (kv * size, hidden), (kv * size, hidden), (hidden, heads * size)]
    shapes += [(heads * size,), (kv * size,), (kv * size,)] * qkv + [(hidden,)] * out + [(size,), (size,)] * normed
    shapes += [(7, hidden), (hidden, 7)] + [(7, hidden)] * gated + ([(7,), (hidden,)] + [(7,)] * gated) * biased
    total = sum(s[0] * (s[1] if len(s) == 2 else 1) for s in shapes)
    assert model.parameters == total


def test_mixture_counts() -> None:
    block = FeedForward(
        kind="moe",
        size=10,
        gated=True,
        activation="silu",
        experts=8,
        experts_per_token=2,
        shared_size=20,
        shared_gate=True,
    )
    attention = Attention(heads=1, kv_heads=1, head_dim=4, value_head_dim=4)
    layer = Layer(attention=attention, feed_forward=block)
    model = Model(name="m", family="f", hidden_size=4, vocab_size=1, layers=(layer,))
    parts = model.layer_parameters(0)
    assert (parts.expert, parts.experts, parts.shared, parts.router, parts.dense) == (120, 960, 244, 32, 0)
    assert parts.total - parts.active == 6 * 120
    assert block.matmul_parameters(4) == 2 * 120 + 244 + 32


def test_models_are_hashable_frozen_values() -> None:
    model = load_model("deepseek-v3")
    assert hash(model) == hash(replace(model))
    assert model == replace(model)
    with pytest.raises(FrozenInstanceError):
        model.vocab_size = 1  # type: ignore[misc]


@each_model
def test_to_dict_is_json_and_keeps_every_layer(model: Model) -> None:
    document = json.loads(json.dumps(model.to_dict(), allow_nan=False))
    assert sum(run["repeat"] for run in document["layers"]) == model.n_layers
    assert document["parameters"] == model.parameters
    assert document["hidden_size"] == model.hidden_size
    assert document["layers"][-1]["attention"]["heads"] == model.layers[-1].attention.heads


def test_distinct_layers_count_in_order() -> None:
    runs = load_model("deepseek-v3").distinct_layers()
    assert [n for _, n in runs] == [3, 58]
    assert [layer.feed_forward.kind for layer, _ in runs] == ["dense", "moe"]
    assert [n for _, n in load_model("gpt-oss-20b").distinct_layers()] == [12, 12]


def test_learned_positions_follow_the_sequence() -> None:
    model = load_model("gpt2")
    longer = model.with_changes(max_sequence_length=4096)
    assert longer.parameters - model.parameters == 3072 * 768
    assert load_model("llama-2-7b").with_changes(max_sequence_length=10**6).parameters == 6_738_415_616


def test_tying_and_names_and_prediction_modules() -> None:
    model = load_model("llama-2-7b")
    tied = model.with_changes(tied_embeddings=True, name="tied")
    assert model.parameters - tied.parameters == 32_000 * 4096
    assert tied.name == "tied"
    assert load_model("deepseek-v3").with_changes(mtp_layers=0).mtp_parameters == 0


@pytest.mark.parametrize("layers", [0, -1, 10**9, 2.0, True, "3", 10**4000])
def test_changes_out_of_range_are_refused(layers: object) -> None:
    with pytest.raises(SpecError, match="layers"):
        load_model("gpt2").with_changes(layers=layers)  # type: ignore[arg-type]


def test_a_model_too_large_to_count_is_refused() -> None:
    with pytest.raises(SpecError, match="parameters"):
        transformer(hidden=2**20, layers=10_000, heads=64, vocab=1, ffn=2**24)


@given(seq=st.integers(1, 200), selected=st.integers(1, 250), pool=st.integers(1, 4))
def test_an_indexer_scores_all_keys_and_attention_the_chosen(seq: int, selected: int, pool: int) -> None:
    """Counted token by token: the i-th has i keys before it and itself, and chooses `selected` of them at most."""
    mixer = Indexed(
        heads=3,
        kv_heads=1,
        head_dim=5,
        value_head_dim=7,
        index_heads=2,
        index_dim=4,
        selected=selected,
        index_pool=pool,
    )
    chosen = sum(min(i + 1, selected) for i in range(seq)) / seq
    scored = sum(i + 1 for i in range(seq)) / seq
    by_hand = 2 * 3 * (5 + 7) * chosen + 2 * 2 * (4 + 1) * scored / pool
    assert mixer.score_flops_per_token(seq) == pytest.approx(by_hand)
    in_full = 2 * 3 * (5 + 7) * min(selected, seq) + 2 * 2 * (4 + 1) * seq / pool
    assert mixer.score_flops_per_token(seq, "full") == pytest.approx(in_full)
