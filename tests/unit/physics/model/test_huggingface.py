"""The config reader: honours every field that matters, refuses the rest by name, and never fails in another way."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from every_case import over
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import InputFileError, SpecError, UserError
from windtunnel.physics.model import Model, catalogue_names, load_model, read_config
from windtunnel.physics.model.catalogue import FOLDER
from windtunnel.physics.model.reading.type_files import type_names

CONFIGS = {name: json.loads((FOLDER / f"{name}.json").read_text()) for name in catalogue_names()}


def config(name: str, **changes: Any) -> dict[str, Any]:
    return {**CONFIGS[name], **changes}


def without(name: str, *keys: str) -> dict[str, Any]:
    return {k: v for k, v in CONFIGS[name].items() if k not in keys}


@over("name", CONFIGS)
def test_an_unknown_field_is_named_with_a_remedy(name: str) -> None:
    text = CONFIGS[name].get("text_config")
    unknown = {"flux_capacitor": 3} if text is None else {"text_config": {**text, "flux_capacitor": 3}}
    with pytest.raises(SpecError, match=r"flux_capacitor = 3: .*remove it"):
        read_config(config(name, **unknown))
    if text is not None:  # beside the text model, which it does not shape
        assert "flux_capacitor" in read_config(config(name, flux_capacitor=3)).notes[-1]
    assert read_config(config(name, torch_dtype="bfloat16", _comment=[1], eos_token_id=2)) == read_config(config(name))


@over("name", CONFIGS)
def test_every_number_of_a_shipped_config_matters_or_is_refused(name: str) -> None:
    """Doubling any shape field changes the model or is an error: nothing that looks like a shape is ignored."""
    ignored = {"qwen3-30b-a3b": {"intermediate_size"}, "qwen3-235b-a22b": {"intermediate_size"}}  # no dense layer
    ignored["llama-4-scout"] = {"intermediate_size_mlp"}
    ignored["deepseek-v2-lite"] = {"n_group", "topk_group"}  # groups do not matter to a greedy choice
    ignored["kimi-k2"] = {"topk_group"}  # one group
    before = read_config(config(name))
    for key, value in CONFIGS[name].items():
        if isinstance(value, bool) or not isinstance(value, int) or not value or key in ignored.get(name, set()):
            continue
        try:
            after = read_config(config(name, **{key: 2 * value}))
        except SpecError:
            continue
        assert after != before, key


@over("name", CONFIGS)
def test_every_required_field_is_asked_for_by_name(name: str) -> None:
    known_depth = {"num_hidden_layers", "n_layer", "n_layers"}
    for key in CONFIGS[name]:
        if key in known_depth or key in {"vocab_size", "model_type"}:
            with pytest.raises(SpecError, match=key):
                read_config(without(name, key))


def test_a_context_that_is_not_given_is_said_in_words() -> None:
    text = "max_position_embeddings is not given: .* the longest context that it is made for, such as 8192"
    with pytest.raises(SpecError, match=text):
        read_config(without("llama-3-8b", "max_position_embeddings"))


@pytest.mark.parametrize("bad", ["4096", 4096.0, True, 0, -1, 10**12, 10**4000, float("nan"), float("inf"), [1], {}])
@pytest.mark.parametrize(("name", "key"), [("llama-3-8b", "hidden_size"), ("gpt2", "n_embd"), ("mpt-7b", "d_model")])
def test_numbers_of_the_wrong_kind_are_refused(name: str, key: str, bad: object) -> None:
    with pytest.raises(SpecError, match=key):
        read_config(config(name, **{key: bad}))


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("llama-3-8b", {"num_attention_heads": 7, "num_key_value_heads": 7}, "num_attention_heads"),
        ("llama-3-8b", {"num_key_value_heads": 5}, "num_key_value_heads"),
        ("llama-3-8b", {"hidden_act": "tanh"}, "hidden_act"),
        ("llama-3-8b", {"attention_bias": "no"}, "attention_bias"),
        ("llama-3-8b", {"sliding_window": 128}, "sliding_window"),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ("qwen3-8b", {"layer_types": ["full_attention"]}, "layer_types"),
        ("qwen3-8b", {"layer_types": ["sliding_attention"] * 36}, "layer_types"),
        ("qwen3-8b", {"use_sliding_window": True}, "sliding_window"),
        ("qwen3-30b-a3b", {"mlp_only_layers": [48]}, "mlp_only_layers"),
        ("qwen3-30b-a3b", {"shared_expert_intermediate_size": 768}, "shared_expert"),
        ("deepseek-v3", {"num_key_value_heads": 8}, "num_key_value_heads"),
        ("deepseek-v3", {"n_group": 7}, "n_group"),
        ("deepseek-v3", {"topk_group": 9}, "n_group"),
        ("deepseek-v3", {"qk_head_dim": 128}, "qk_head_dim"),
        ("deepseek-v3", {"topk_method": "magic"}, "topk_method"),
        ("gpt2", {"n_head": 7}, "n_head"),
        ("gpt2", {"hidden_size": 1024}, "hidden_size"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
        ("mpt-7b", {"attn_config": {"qk_ln": True}}, r"attn_config\.qk_ln"),
        ("mpt-7b", {"attn_config": {"attn_type": "other"}}, r"attn_config\.attn_type"),
        ("mpt-7b", {"attn_config": {"turbo": 1}}, r"attn_config\.turbo"),
        ("mpt-7b", {"attn_config": 3}, "attn_config"),
        ("mpt-7b", {"ffn_config": {"ffn_type": "mb_dmoe"}}, r"ffn_config\.ffn_type"),
        ("bloom-176b", {"apply_residual_connection_post_layernorm": True}, "apply_residual"),
        ("gpt-oss-20b", {"experts_per_token": 2}, "experts_per_token"),
        ("llama-4-scout", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ("llama-4-scout", {"attention_chunk_size": None}, "attention_chunk_size"),
        ("llama-3-8b", {3: 4}, "names of fields"),
    ],
)
def test_contradictions_name_the_field(name: str, changes: dict[Any, Any], field: str) -> None:
    with pytest.raises(SpecError, match=field):
        read_config({**CONFIGS[name], **changes})


def test_unknown_architecture() -> None:
    with pytest.raises(SpecError, match=r"perceiver.*cannot be read"):
        read_config({"model_type": "perceiver"})
    for kind in (None, 3, ["llama"], 10**5000):
        with pytest.raises(SpecError, match="model_type"):
            read_config({"model_type": kind})


def test_windows() -> None:
    assert read_config(config("mistral-7b")).layers[0].attention.window == 4096
    assert read_config(without("mistral-7b", "sliding_window")).layers[0].attention.window == 4096
    assert read_config(config("mistral-7b", sliding_window=None)).layers[0].attention.window is None
    qwen = read_config(config("qwen2-7b", use_sliding_window=True, sliding_window=1024, max_window_layers=20))
    assert [layer.attention.window for layer in qwen.layers] == [None] * 20 + [1024] * 8
    assert [layer.attention.window for layer in load_model("gpt-oss-20b").layers[:4]] == [128, None, 128, None]


def test_llama_4_layers() -> None:
    scout, maverick = load_model("llama-4-scout"), load_model("llama-4-maverick")
    assert {layer.feed_forward.kind for layer in scout.layers} == {"moe"}
    assert [layer.feed_forward.kind for layer in maverick.layers[:4]] == ["dense", "moe", "dense", "moe"]
    assert maverick.layers[0].feed_forward.size == 16_384
    assert maverick.layers[1].feed_forward.shared_size == 8192
    assert [layer.attention.window for layer in scout.layers[:4]] == [8192, 8192, 8192, None]
    assert [layer.attention.position for layer in scout.layers[:4]] == ["rope", "rope", "rope", "none"]
    assert [layer.attention.qk_norm for layer in scout.layers[:4]] == ["l2", "l2", "l2", "none"]
    assert maverick.layers[0].attention.qk_norm == "none"


def test_llama_4_with_a_vision_tower_says_that_it_is_left_out() -> None:
    text = without("llama-4-scout", "_source")
    whole = read_config({"model_type": "llama4", "text_config": text, "vision_config": {"hidden_size": 1408}})
    assert whole.layers == load_model("llama-4-scout").layers
    assert "vision" in whole.notes[0]
    assert read_config({"model_type": "llama4", "text_config": text}).notes == ()
    with pytest.raises(SpecError, match=r"text_config\.warp"):
        read_config({"model_type": "llama4", "text_config": {**text, "warp": 9}})
    with pytest.raises(SpecError, match="text_config"):
        read_config({"model_type": "llama4"})


def test_deepseek_layers() -> None:
    model = load_model("deepseek-v3")
    assert [layer.feed_forward.kind for layer in model.layers[:5]] == ["dense"] * 3 + ["moe"] * 2
    block = model.layers[-1].feed_forward
    assert (block.shared_size, block.expert_groups, block.groups_per_token, block.router_bias) == (2048, 8, 4, True)
    lite = load_model("deepseek-v2-lite").layers[-1]
    assert lite.attention.q_lora_rank is None
    assert (lite.feed_forward.expert_groups, lite.feed_forward.router_bias) == (0, False)
    sparse = read_config(config("deepseek-v3", moe_layer_freq=2, n_shared_experts=None))
    assert [layer.feed_forward.kind for layer in sparse.layers[3:7]] == ["dense", "moe", "dense", "moe"]
    assert sparse.layers[4].feed_forward.shared_size == 0


def test_qwen_mixtures() -> None:
    """Qwen1.5-MoE-A2.7B: 14,315,784,192 is the safetensors total on its model page."""
    small = {
        "model_type": "qwen2_moe", "hidden_act": "silu", "decoder_sparse_step": 1, "vocab_size": 151_936,
        "max_position_embeddings": 32_768, "use_sliding_window": False, "norm_topk_prob": False, "hidden_size": 2048,
        "intermediate_size": 5632, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
        "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 60, "num_experts_per_tok": 4,
        "num_hidden_layers": 24,
    }  # fmt: skip
    assert read_config(small).parameters == 14_315_784_192
    assert read_config(small).active_parameters / 1e9 == pytest.approx(2.7, abs=0.05)
    mixed = read_config(config("qwen3-30b-a3b", decoder_sparse_step=2, mlp_only_layers=[1]))
    assert [layer.feed_forward.kind for layer in mixed.layers[:4]] == ["dense", "dense", "dense", "moe"]
    assert mixed.layers[0].feed_forward.size == 6144


def test_mpt_positions_and_biases() -> None:
    base = without("mpt-7b", "attn_config", "no_bias")
    released = read_config({**base, "attn_config": {"alibi": True}, "no_bias": True, "learned_pos_emb": True})
    assert released.parameters == 6_649_286_656
    trained = read_config({**base, "attn_config": {"alibi": False}, "no_bias": False})
    assert trained.learned_positions == 2048
    assert trained.parameters - released.parameters == 2048 * 4096 + 32 * (3 + 1 + 4 + 1 + 2) * 4096 + 4096
    grouped = read_config({**base, "attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 8}})
    assert grouped.layers[0].attention.kv_heads == 8
    single = read_config({**base, "attn_config": {"attn_type": "multiquery_attention"}})
    assert single.layers[0].attention.kv_heads == 1
    assert read_config({**base, "norm_type": "rmsnorm", "no_bias": False}).norm_bias is False
    stated = [(True, False, True), (False, True, True), (False, False, True), (False, False, False)]
    made = [
        read_config({**base, "attn_config": {"alibi": alibi, "rope": rope}, "learned_pos_emb": learned})
        for alibi, rope, learned in stated
    ]
    assert [one.layers[0].attention.position for one in made] == ["alibi", "rope", "learned", "none"]


def test_biases_of_llama() -> None:
    plain = read_config(config("llama-3-8b"))
    biased = read_config(config("llama-3-8b", attention_bias=True, mlp_bias=True))
    per_layer = 4096 + 2 * 1024 + 4096 + 2 * 14_336 + 4096
    assert biased.parameters - plain.parameters == 32 * per_layer


@pytest.mark.skipif(find_spec("aiconfigurator_core") is None, reason="the package with the configs is not installed")
@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("meta-llama--Meta-Llama-3.1-405B", "llama-3.1-405b"),
        ("meta-llama--Meta-Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama--Llama-4-Scout-17B-16E-Instruct", "llama-4-scout"),
        ("meta-llama--Llama-4-Maverick-17B-128E-Instruct", "llama-4-maverick"),
        ("mistralai--Mixtral-8x22B-v0.1", "mixtral-8x22b"),
        ("mistralai--Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("Qwen--Qwen3-32B", "qwen3-32b"),
        ("Qwen--Qwen3-235B-A22B", "qwen3-235b-a22b"),
        ("deepseek-ai--DeepSeek-V3", "deepseek-v3"),
        ("openai--gpt-oss-120b", "gpt-oss-120b"),
        ("openai--gpt-oss-20b", "gpt-oss-20b"),
    ],
)
def test_configs_as_published_give_the_shipped_model(stem: str, name: str) -> None:
    spec = find_spec("aiconfigurator_core")
    assert spec is not None
    assert spec.origin is not None
    published = read_config(Path(spec.origin).parent / "model_configs" / f"{stem}_config.json", name)
    shipped = load_model(name)
    assert published.layers == shipped.layers
    assert published.parameters == shipped.parameters
    assert published.max_sequence_length == shipped.max_sequence_length


def test_broken_files_say_where(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{\n "model_type": "llama",\n "hidden_size": ,\n}')
    with pytest.raises(InputFileError, match="line 3"):
        read_config(file)
    cases = {
        b"": "line 1",
        b"[1]": "not an object",
        b'{"a": 1, "a": 2}': "given twice",
        b"\xff\xfe\x00": "not text in UTF-8",
        b"[" * 200_000: "JSON",
        b'{"a": ' + b"9" * 5000 + b"}": "JSON",
    }
    for content, message in cases.items():
        file.write_bytes(content)
        with pytest.raises(InputFileError, match=message):
            read_config(file)
    file.write_text(json.dumps(config("gpt2", n_layer="many")))
    with pytest.raises(SpecError, match=r"config\.json: n_layer = 'many'"):
        read_config(file)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["gpt2"]), encoding="utf-8-sig")
    assert read_config(tmp_path).parameters == 124_439_808


HUGE = st.sampled_from([40, 5000]).map(lambda digits: 10**digits)  # the latter has no repr
NUMBERS = st.integers() | st.integers(0, 300) | st.sampled_from([2**27, 2**16, 16_384]) | HUGE
SCALARS = st.none() | st.booleans() | NUMBERS | st.floats() | st.text(max_size=8)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
KEYS = sorted({key for found in CONFIGS.values() for key in found} | {"layer_types", "n_inner", "text_config"})


def survives(mapping: Any) -> None:
    try:
        model = read_config(mapping)
    except UserError:
        return
    assert isinstance(model, Model)
    assert model.parameters > 0
    assert model.forward_flops_per_token(64) > 0


def test_a_size_whose_default_is_not_there_is_missing() -> None:
    config = {name: value for name, value in CONFIGS["kimi-linear-48b-a3b"].items() if name != "linear_conv_kernel_dim"}
    with pytest.raises(SpecError, match=r"linear_conv_kernel_dim.*the model needs this field"):
        read_config(config)


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(sorted(CONFIGS)),
    changes=st.dictionaries(st.sampled_from(KEYS), ANYTHING | st.integers(1, 64), max_size=4),
    dropped=st.sets(st.sampled_from(KEYS), max_size=2),
)
def test_no_change_to_a_config_gives_another_error(name: str, changes: dict[str, Any], dropped: set[str]) -> None:
    survives({k: v for k, v in {**CONFIGS[name], **changes}.items() if k not in dropped})


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(type_names()),
    fields=st.dictionaries(st.sampled_from(KEYS) | st.text(), ANYTHING, max_size=9),
)
def test_no_mapping_at_all_gives_another_error(kind: str, fields: dict[str, Any]) -> None:
    survives({**fields, "model_type": kind})


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode) | st.text('[]{}:,"0aeE.-+ n', max_size=30))
def test_no_file_content_gives_another_error(tmp_path_factory: pytest.TempPathFactory, content: bytes | str) -> None:
    file = tmp_path_factory.mktemp("fuzz") / "config.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError):
        read_config(file)


WRITTEN_BY_5 = json.loads((Path(__file__).parent / "written_by_transformers_5.json").read_text())


@over("name", WRITTEN_BY_5)
def test_a_config_as_transformers_5_writes_it_is_the_same_model(name: str) -> None:
    """Made by `config_class(**config).to_json_string()` of transformers 5.23: what it adds, changes and leaves out."""
    changes = WRITTEN_BY_5[name]
    later = {k: v for k, v in {**CONFIGS[name], **changes["set"]}.items() if k not in changes["gone"]}
    assert later["transformers_version"][0] == "5"
    assert read_config(later, name) == load_model(name)


def test_fields_nobody_knows_are_left_out_only_where_they_ask_for_nothing() -> None:
    known = read_config(config("llama-3-8b"))
    for value in (None, False):
        model = read_config(config("llama-3-8b", flux_capacitor=value))
        assert model.layers == known.layers
        assert "flux_capacitor" in model.notes[0]
    for value in (True, 0, "x", []):
        with pytest.raises(SpecError, match="flux_capacitor"):
            read_config(config("llama-3-8b", flux_capacitor=value))
    with pytest.raises(SpecError, match="is_encoder_decoder"):
        read_config(config("llama-3-8b", is_encoder_decoder=True))
    assert read_config(config("llama-3-8b", is_encoder_decoder=False)) == known
