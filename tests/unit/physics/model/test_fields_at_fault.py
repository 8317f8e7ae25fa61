"""Fields of a wrong type or beside others that they do not go with: one error that names fields, never a reading."""

from __future__ import annotations

from typing import Any

import pytest

from windtunnel.errors import SpecError
from windtunnel.physics.model import read_config

MPT = {"model_type": "mpt", "d_model": 64, "n_heads": 8, "n_layers": 2, "vocab_size": 100, "max_seq_len": 128}
T5 = {
    "model_type": "t5",
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
    "vocab_size": 32128,
}
GROUPED = {"attn_type": "grouped_query_attention"}


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (MPT, {"attn_config": GROUPED}, "attn_config.kv_n_heads is not given: give it with grouped_query_attention"),
        (MPT, {"attn_config": {**GROUPED, "kv_n_heads": True}}, "attn_config.kv_n_heads = True"),
        (MPT, {"attn_config": {"kv_n_heads": 4}}, "attn_config.kv_n_heads = 4: give it with grouped_query_attention"),
        (MPT, {"no_bias": "false"}, "no_bias = 'false': give true or false"),
        (MPT, {"learned_pos_emb": "false"}, "learned_pos_emb = 'false': give true or false"),
        (MPT, {"expansion_ratio": True}, "expansion_ratio = True: give a number"),
        (MPT, {"expansion_ratio": "4"}, "expansion_ratio = '4': give a number"),
        (MPT, {"expansion_ratio": 4096}, "expansion_ratio = 4096: what has to hold is `expansion_ratio <= 1024`"),
        (MPT, {"n_heads": 7}, "n_heads = 7: what has to hold is `d_model % n_heads == 0`, with d_model = 64"),
        (MPT, {"n_heads": 0}, "n_heads = 0: `d_model % n_heads == 0` cannot be worked out, with d_model = 64"),
        (T5, {"num_layers": "8"}, "num_layers = '8': "),
        (T5, {"num_layers": True}, "num_layers = True: "),
        (T5, {"num_decoder_layers": "6"}, "num_decoder_layers = '6': "),
    ],
)
def test_a_field_at_fault_is_named_with_its_value(
    config: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        read_config({**config, **changes})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("word", "parameters"), [("relu", 60_506_624), ("gated-relu", 73_089_536), ("gated-gelu", 73_089_536)]
)
def test_t5_is_gated_where_its_word_begins_so(word: str, parameters: int) -> None:
    """Parameters are those that transformers 5.24 builds."""
    model = read_config({**T5, "feed_forward_proj": word})
    assert (model.parameters, model.layers[0].feed_forward.activation) == (parameters, word.removeprefix("gated-"))


@pytest.mark.parametrize("word", ["banana", "gated-banana", "relu-gated", 3])
def test_a_projection_that_t5_has_not_is_refused(word: object) -> None:
    with pytest.raises(SpecError, match="feed_forward_proj"):
        read_config({**T5, "feed_forward_proj": word})


def test_the_gate_of_t5_contradicts_no_other_field() -> None:
    with pytest.raises(SpecError, match="is_gated_act = True"):
        read_config({**T5, "is_gated_act": True})


LLAMA = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6,
         "num_attention_heads": 4, "vocab_size": 1000, "max_position_embeddings": 1024}  # fmt: skip


@pytest.mark.parametrize("field", ["rope_lora_rank", "rope_layers", "yarn_layers", "foo_coef"])
def test_a_field_that_only_sounds_of_angles_is_refused(field: str) -> None:
    with pytest.raises(SpecError, match=field):
        read_config({**LLAMA, field: 512})


@pytest.mark.parametrize("field", ["rope_local_base_freq", "yarn_factor", "rotary_dim", "router_z_loss_coef"])
def test_angles_and_weights_of_losses_change_no_shape(field: str) -> None:
    assert read_config({**LLAMA, field: 8}).layers == read_config(LLAMA).layers


GEMMA = {"model_type": "gemma4_text", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1000, "sliding_window": 128,
         "max_position_embeddings": 1024, "layer_types": ["sliding_attention"] * 5 + ["full_attention"]}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "parameters"),
    [({}, 408_522_048), ({"hidden_size_per_layer_input": 0}, 4_687_424), ({"global_head_dim": 64}, 407_144_896)],
)
def test_gemma_4_takes_the_defaults_of_its_class(changes: dict[str, Any], parameters: int) -> None:
    """Parameters are those that transformers 5.24 builds."""
    assert read_config({**GEMMA, **changes}).parameters == parameters


def test_sizes_by_layer_of_gemma_4_are_those_of_windowed_layers_too() -> None:
    """Heads of 64 in place of 32: as many again of queries, keys, values, outputs, and of both norms."""
    plain = read_config({**GEMMA, "per_layer_config": {"05": {"head_dim": 32}}})
    wider = read_config({**GEMMA, "per_layer_config": {"00": {"head_dim": 64}}})
    assert wider.parameters - plain.parameters == 256 * 32 * (4 + 2 + 2 + 4) + 2 * 32
    narrow = read_config({**GEMMA, "per_layer_config": {"03": {"intermediate_size": 128}}})
    assert plain.parameters - narrow.parameters == 3 * 256 * (512 - 128)


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_kv_shared_layers", -3), ("num_kv_shared_layers", 60), ("per_layer_config", {"00": {"sliding_window": 8}})],
)
def test_what_gemma_4_cannot_have_is_refused(field: str, value: object) -> None:
    with pytest.raises(SpecError, match=field):
        read_config({**GEMMA, field: value})
