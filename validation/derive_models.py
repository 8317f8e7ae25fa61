"""Parameters of model types as transformers builds them on the meta device, beside windtunnel's reading of the config.

    python validation/derive_models.py rows.json [TYPE ...] [--options] [--passes]    (needs torch and transformers)
    python validation/derive_models.py src/windtunnel/physics/model/types/_names.json --names

Of each type: the config of the class's defaults, as transformers writes it, the parameters of the model built from it
without weights, those of towers and what joins them left out, and the balancing biases that are buffers there. Rows
that differ are printed and the exit status is 1. A type that is not read yet is printed with the shapes of its
parameters, which is what its file is written from. `--options`: also with each true or false of the config the other
way round; what a file refuses (`only`) is no error, what it reads wrongly is. `--passes`: with FLOPs of a forward pass
and bytes of the cache behind it (`forward_pass.py`). `--names`: other names of fields by type, instead.
Rows that the file has already and that are not asked for stay.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import forward_pass

from windtunnel.errors import UserError
from windtunnel.physics.model import read_config
from windtunnel.physics.model.reading.config_fields import irrelevant
from windtunnel.physics.model.reading.type_files import fields_asked, type_names

IN_FP32 = ("xlnet", "xlstm")  # its code wants it
# Passes that multiply more: 32 tokens of a prompt (`cpmant#bare` has none), empty images and sounds.
UNPASSED = ("cpmant", "gemma3n")
UNTOUCHED = ("is_decoder", "is_encoder_decoder", "add_cross_attention")  # another class
SPARSE = [*["full_attention"] * 3, *["minimax_m3_sparse"] * 5]
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
SECTIONS = {**ROPE, "partial_rotary_factor": 0.5, "mrope_section": [8, 12, 12]}
QSA = {
    "rope_parameters": {**ROPE, "partial_rotary_factor": 0.25},
    "indexer_n_heads": 16,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 128,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 16,
}
TOKENS, LONGEST = 256, 8200
# Sizes that a class leaves open and every checkpoint gives, and second configs of a type (`TYPE#what`).
GIVEN: dict[str, dict[str, Any]] = {
    "hunyuan_v1_moe": {
        "num_experts": 64,
        "moe_topk": 8,
        "moe_intermediate_size": 3072,
        "num_shared_expert": 1,
        "head_dim": 128,
        "intermediate_size": 3072,
    },
    "hunyuan_v1_dense": {"head_dim": 128},
    "dots1": {"n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 2, "first_k_dense_replace": 1},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "ministral": {
        "layer_types": ["full_attention", *["sliding_attention"] * 3] * 9,
        "num_hidden_layers": 36,
        "head_dim": 128,
        "vocab_size": 131072,
        "intermediate_size": 12288,
    },
    "deepseek_v2": {"num_experts_per_tok": 6},
    "nemotron": {"num_key_value_heads": 8},
    "minimax_m3_vl_text#sparse": {
        "num_hidden_layers": 8,
        "layer_types": SPARSE,
        "mlp_layer_types": ["dense", *["sparse"] * 7],
    },
    "bamba#attention": {"attn_layer_indices": [9, 18, 27]},
    "granitemoehybrid#attention": {"layer_types": ["mamba", "attention"] * 16},
    "gemma4_text#shared": {"num_kv_shared_layers": 10, "use_double_wide_mlp": True},
    "gemma4_text#experts": {
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": True,
        "num_experts": 128,
        "top_k_experts": 8,
        "moe_intermediate_size": 704,
    },
    "aya_vision": {"vision_config": {"model_type": "siglip_vision_model", "num_attention_heads": 16}},
    "chameleon": {"vocabulary_map": {"<image>": 4}},
    "cohere_compass": {"text_config": {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}}},
    "dbrx": {
        "attn_config": {"rope_theta": 10000.0, "kv_n_heads": 8, "clip_qkv": 8.0},
        "ffn_config": {"moe_num_experts": 16, "moe_top_k": 4},
    },
    "granite4_vision": {"deepstack_layer_map": [[3, 0]], "spatial_layer_map": [[3, 1]], "downsample_rate": "4/8"},
    "perception_lm": {
        "vision_config": {"architecture": "vit_pe_core_large_patch14_336", "model_args": {"embed_dim": 1024}}
    },
    "hunyuan_vl": {"text_config": {"head_dim": 128}},
    "qwen3_omni_moe": {
        "enable_audio_output": False,
        "thinker_config": {"text_config": {"num_attention_heads": 32, "head_dim": 128}},
    },
    "t5": {},
    "t5#gated": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 4},
    "mt5": {},
    "umt5": {},
    "blenderbot": {"encoder_layers": 24},
    "cpmant#bare": {"prompt_length": 0},
    "glm4v": {"text_config": {"rope_parameters": SECTIONS}},
    "glm46v": {"text_config": {"rope_parameters": SECTIONS}},
    "glmga": {"text_config": {"rope_parameters": SECTIONS}},
    "glm4v_moe": {"text_config": {"rope_parameters": SECTIONS, "head_dim": 128}},
    "qwen3_omni_moe_thinker": {"text_config": {"num_attention_heads": 32, "head_dim": 128}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}},
    "qwen4_exp_text": {**QSA, "ple_layer_ids": [2, 6], "eos_token_id": 1},
    "qwen4_exp": {"text_config": QSA},
    "falcon_h1#norm": {"mamba_rms_norm": True},
}
OF_TOWERS = re.compile(
    r"visual|vision|audio|tower|projector|language_projection|merger|image|img_|connector|aligner|qformer|query_tokens|resampler|perceiver"
    r"|image_adapter|model[.]adapter|model[.]encoder[.]|adaptor|tokenizer_encoder|word_timestamp|talker|token2wav|generation|vqmodel|embed_tokens_extend|view_separator|modality_projection|embed_audio|mlp_AR|\.vit\."
)


def transformers_types() -> tuple[set[str], ...]:
    """The types of causal language models, of models that read images, and of those that read sound."""
    from transformers.models.auto import modeling_auto as auto

    names = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM")
    return tuple({*getattr(auto, f"MODEL_FOR_{name}_MAPPING_NAMES")} for name in names)


def built(name: str, **changes: object) -> dict[str, Any]:
    """The config that transformers writes for a type with some `changes`, and what it builds from it."""
    import torch
    from transformers import (
        CONFIG_MAPPING,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoModelForMultimodalLM,
        AutoModelForSeq2SeqLM,
    )

    CAUSAL, IMAGES, SOUNDS = transformers_types()
    kind = name.split("#")[0]
    config = CONFIG_MAPPING[kind](**{**GIVEN.get(name, {}), **changes})
    if kind in CAUSAL and not config.is_encoder_decoder and hasattr(config, "is_decoder"):
        config.is_decoder = True  # as a decoder, which is what these classes build
    written = json.loads(config.to_json_string(use_diff=False))
    with torch.device("meta"):
        made = AutoModelForMultimodalLM if kind in SOUNDS else AutoModelForSeq2SeqLM
        made = AutoModelForImageTextToText if kind in IMAGES else made
        made = AutoModelForCausalLM if kind in CAUSAL else made
        precision = torch.float32 if kind in IN_FP32 else torch.bfloat16
        model = made.from_config(config, dtype=precision, attn_implementation="eager")
    biases = [b for path, b in model.named_buffers() if "bias" in path and b.is_floating_point() and b.dim() == 1]
    shapes: Counter[str] = Counter()
    for path, p in model.named_parameters():
        shapes[f"{re.sub(r'[.][0-9]+[.]', '.N.', path)} {tuple(p.shape)}"] += 1
    text = [p.numel() for path, p in model.named_parameters() if not OF_TOWERS.search(path)]
    # LongCat makes room for matrices of the experts that give back their input, which no token is multiplied with.
    pairs = [(getattr(m, "gate_up_proj", None), getattr(m, "down_proj", None)) for m in model.modules()]
    stacked = [(up, down) for up, down in pairs if isinstance(up, torch.nn.Parameter) and down is not None]
    idle = sum((up.shape[0] - down.shape[0]) * up[0].numel() for up, down in stacked)
    return {
        "config": _slim(written),
        "parameters": sum(text) - idle,
        "balancing_bias": sum(b.numel() for b in biases),
        "shapes": shapes,
        "model": model,
    }


def _slim(config: dict[str, Any]) -> dict[str, Any]:
    """Without what says nothing about shapes."""
    kept: dict[str, Any] = {}
    for key, value in config.items():
        if (
            (value is None and "window" not in key)
            or (key in irrelevant() and key not in ("model_type", "rope_parameters"))
            or key.startswith("id2")
        ):
            continue
        if key == "rope_parameters" or (
            isinstance(value, dict) and re.match(r"(vision|audio|vq|qformer|high_res|depth)_", key)
        ):
            continue
        kept[key] = _slim(value) if key == "text_config" else value
    return kept


def _passed(kind: str, model: Any, config: dict[str, Any]) -> dict[str, Any]:
    """What a forward pass multiplied, over TOKENS, and bytes of the cache behind 1, some, and more than a window."""
    window = max(layer.attention.window or 0 for layer in read_config(config).layers)
    long = (window + 7,) if TOKENS - 8 < window < LONGEST else ()
    row: dict[str, Any] = {}
    for counts in ((), (1, TOKENS - 1, *long)):
        try:
            found = forward_pass.measured(model, TOKENS, counts)
        except Exception as error:  # a pass that asks for values, or for more than tokens
            print(f"{kind}: no {'cache' if counts else 'pass'}: {type(error).__name__}: {str(error)[:120]}")
            break
        row["flops"] = {key: value for key, value in found["flops"].items() if key in ("weights", "scores")}
        row["cache"] = found["cache"]
    return row


def misread(name: str) -> list[str]:
    """Options of a type, each true or false alone the other way round, whose parameters are read wrongly."""
    written, kind = built(name)["config"], name.split("#")[0]
    CAUSAL, IMAGES, _ = transformers_types()
    # Of a type with both classes the text model's own is built here, which the flag beside it does not tie.
    untouched = (*UNTOUCHED, "tie_word_embeddings") if kind in CAUSAL & IMAGES else UNTOUCHED
    found = []
    for field in (key for key, value in written.items() if isinstance(value, bool) and key not in untouched):
        try:
            row = built(name, **{field: not written[field]})
        except Exception as error:  # an option that the class itself cannot be built with
            print(f"{name}: {field} = {not written[field]}: not built: {type(error).__name__}: {str(error)[:120]}")
            continue
        try:
            ours = read_config(row["config"]).parameters
        except UserError:
            continue
        if ours != row["parameters"] + row["balancing_bias"]:
            there = f"{row['parameters']:,} + {row['balancing_bias']:,}"
            found.append(f"{name}: {field} = {not written[field]}: {ours:,} here, {there} there")
    return found


def names_of_fields() -> dict[str, dict[str, list[str]]]:
    """What classes of types with a file call a field besides (`attribute_map`): names of it by the field, by type."""
    from transformers import CONFIG_MAPPING

    by_type: dict[str, dict[str, list[str]]] = {}
    for kind in sorted({*type_names()} & {*CONFIG_MAPPING}):
        for name, field in (CONFIG_MAPPING[kind].attribute_map or {}).items():
            if name != field and field in fields_asked(kind):
                by_type.setdefault(kind, {}).setdefault(field, []).append(name)
    return by_type


def main(path: str, *given: str) -> int:
    """Build every type, compare, and write the rows that agree."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    names = [name for name in given if not name.startswith("--")]
    # transformers imports a package `kernels`, which the script of that name beside this one is not.
    sys.path[:] = [folder for folder in sys.path if Path(folder) != Path(__file__).parent]
    if "--names" in given:
        lines = ",\n".join(f"{json.dumps(kind)}:{json.dumps(names)}" for kind, names in names_of_fields().items())
        Path(path).write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
        return 0
    forward_pass.mark_scans()
    groups = transformers_types()
    known = set().union(*groups)
    rows = json.loads(Path(path).read_text(encoding="utf-8")) if Path(path).exists() else {}
    status = 0
    for kind in names or sorted(known | {*GIVEN}):
        try:
            row = built(kind)
        except Exception as error:  # whatever a class of transformers makes of its own defaults
            print(f"{kind}: not built: {type(error).__name__}: {str(error)[:120]}")
            continue
        shapes, model = row.pop("shapes"), row.pop("model")
        if kind.split("#")[0] not in type_names():
            print(f"{kind}: no file", *(f"    {shape} x {n}" for shape, n in shapes.items()) if names else (), sep="\n")
            continue
        try:
            ours = read_config(row["config"]).parameters
        except UserError as error:
            print(f"{kind}: {str(error)[:200]}")
            status = 1
            continue
        if ours != row["parameters"] + row["balancing_bias"]:
            print(f"{kind}: {ours:,} here, {row['parameters']:,} + {row['balancing_bias']:,} there")
            status = 1
            continue
        if "--passes" in given and kind not in UNPASSED:
            row |= _passed(kind, model, row["config"])
        rows[kind] = row
        wrong = misread(kind) if "--options" in given else []
        status = 1 if wrong else status
        print(*wrong, sep="\n", end="\n" if wrong else "")
        lines = ",\n".join(f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in sorted(rows.items()))
        Path(path).write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    counts = ", ".join(f"{len(group & {*type_names()})} of {len(group)}" for group in groups)
    print(f"{len(rows)} rows agree; types with a file: {counts} (causal, images, sound)")
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
