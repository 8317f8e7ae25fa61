"""Vision and sound towers against what transformers 5.24 builds, and one by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import windtunnel
from windtunnel.physics.model import load_model, read_config
from windtunnel.physics.model.layers.tower import patch_operations, projector_operations, tower_shard
from windtunnel.physics.model.operations import Shard
from windtunnel.physics.model.reading import grammar

HERE = Path(__file__).parent
CATALOGUE = Path(windtunnel.__file__).parent / "physics" / "model" / "catalogue"
ROWS: dict[str, dict[str, Any]] = json.loads((HERE / "towers_by_transformers.json").read_text())
SOUNDS: dict[str, dict[str, Any]] = json.loads((HERE / "sounds_by_transformers.json").read_text())
TEXT: dict[str, dict[str, Any]] = json.loads((HERE / "derived_by_transformers.json").read_text())


@pytest.mark.parametrize("name", ROWS)
def test_parameters_are_those_that_transformers_builds(name: str) -> None:
    row = ROWS[name]
    model = read_config({**TEXT[name]["config"], **row["beside"], "vision_config": row["vision_config"]})
    assert model.vision is not None
    assert model.vision.parameters == row["parameters"]


@pytest.mark.parametrize("name", SOUNDS)
def test_parameters_of_sound_towers_are_those_that_transformers_builds(name: str) -> None:
    sound = read_config(SOUNDS[name]["config"]).sound
    assert sound is not None
    assert sound.parameters == SOUNDS[name]["parameters"]


@pytest.mark.parametrize("odd", ["1024", 0, -1, 2**60, True, None, [1]])
def test_a_tower_whose_sizes_are_no_sizes_is_that_of_vit_l(odd: object) -> None:
    assert grammar._tower({"hidden_size": odd}) == (24, 1024)
    assert grammar._tower({"hidden_size": 1152, "num_hidden_layers": 27}) == (27, 1152)


def test_a_clip_of_voxtral_by_hand() -> None:
    # 30 seconds are 3,000 frames of 128 bands; the first convolution (3 wide) sees all, the second every other; then 32
    # layers of 1,280 and 5,120 over 1,500 rows, and four rows to a token of 3,072.
    sound = read_config(SOUNDS["voxtral"]["config"]).sound
    assert sound is not None
    taken_in = 2 * (3000 * 3 * 128 * 1280 + 1500 * 3 * 1280 * 1280)
    layers = 32 * (1500 * 2 * 12 * 1280 * 1280 + 4 * 1500 * 1500 * 1280)
    assert sound.forward_flops(1500) == (taken_in + layers, 375 * 2 * (5120 * 3072 + 3072 * 3072))


def test_convolutions_of_qwen3_omni_by_hand() -> None:
    # 8 frames of 128 bands make a row: 4 x 64, 2 x 32 and 1 x 16 places of 3 x 3 weights, 480 channels, then a product.
    sound = read_config(SOUNDS["qwen3_omni_moe_thinker"]["config"]).sound
    assert sound is not None
    channels = 480
    places = 4 * 64 * 9 * channels + (2 * 32 + 1 * 16) * 9 * channels * channels
    assert sound.encoder.more_weights == places + 16 * channels * 1280


@pytest.mark.parametrize("name", ROWS)
def test_text_model_is_the_same_beside_its_tower(name: str) -> None:
    row = ROWS[name]
    beside = read_config({**TEXT[name]["config"], **row["beside"], "vision_config": row["vision_config"]})
    assert beside.parameters == read_config(TEXT[name]["config"]).parameters


def test_an_image_of_qwen3_vl_by_hand() -> None:
    # 1,024 patches of 16 x 16 x 3 numbers in two frames, width 1,152, 27 layers of 4,304; four patches to a token of
    # 4,096; three layers more have a way of their own into the text model.
    tower = load_model("qwen3-vl-8b").vision
    assert tower is not None
    layer = 4 * 1152 * 1152 + 2 * 1152 * 4304
    encoder = 1024 * (2 * 27 * layer + 2 * 1536 * 1152 + 27 * 4 * 1152 * 1024)
    joined = 256 * 4 * 2 * (4608 * 4608 + 4608 * 4096)
    assert tower.forward_flops(1024) == (encoder, joined)
    shard = tower_shard(tower, Shard(batch=1, seq_len=8192), images=3, patches=1024)
    assert shard.tokens == 3072
    ops = [*patch_operations(tower, shard), *projector_operations(tower, shard, 3, 1024, begins=False)]
    products = [op for op in ops if op.kind == "gemm"]
    assert sum(op.flops for op in products) == 3 * (joined + 1024 * 2 * 1536 * 1152)
    assert len(products) == 1 + 8


def test_a_tower_whose_heads_do_not_divide_is_whole_on_each_rank() -> None:
    tower = load_model("qwen3-vl-8b").vision
    assert tower is not None
    assert tower_shard(tower, Shard(batch=1, seq_len=4096, tp=8, sequence_parallel=True), 1, 1024).tp == 8
    assert tower_shard(tower, Shard(batch=1, seq_len=4096, tp=3), 1, 1024).tp == 1


def test_a_checkpoint_of_transformers_4_has_its_published_parameters() -> None:
    # Qwen2.5-VL-7B-Instruct as its config.json stands on the hub: the text model's fields beside the tower's.
    text = json.loads((CATALOGUE / "qwen2.5-7b.json").read_text())
    tower = {
        **{"depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16},
        **{"in_chans": 3, "out_hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2},
        **{"spatial_patch_size": 14, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31]},
    }
    beside = {"vision_config": tower, "image_token_id": 151655, "vision_start_token_id": 151652}
    model = read_config({**{k: v for k, v in text.items() if k != "_source"}, "model_type": "qwen2_5_vl", **beside})
    assert model.vision is not None
    assert model.parameters + model.vision.parameters == 8_292_166_656
