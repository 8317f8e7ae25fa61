"""Attention modules that were timed whole: which table times what, and laws of their times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windtunnel.physics.cost.inference.modules import kind_of, module_of, streams_of
from windtunnel.physics.cost.measured.cache import package_data
from windtunnel.physics.hardware import get_gpu
from windtunnel.physics.model import Model, read_config

ROWS = json.loads((Path(__file__).parents[1] / "model" / "derived_by_transformers.json").read_text())
timed = pytest.mark.skipif(package_data() is None, reason="the measured tables are not installed")


def model_of(kind: str) -> Model:
    return read_config(ROWS[kind]["config"])


def test_which_table_times_a_layer() -> None:
    kinds = {
        name: {kind_of(layer.attention) for layer in model_of(name).layers}
        for name in ("deepseek_v32", "deepseek_v4", "minimax_m3_vl_text#sparse", "llama", "qwen3_next")
    }
    assert kinds == {
        "deepseek_v32": {"dsa"},
        "deepseek_v4": {"dsv4_csa", "dsv4_hca"},
        "minimax_m3_vl_text#sparse": {None, "msa"},
        "llama": {None},
        "qwen3_next": {None},
    }


@timed
@pytest.mark.parametrize("name", ["deepseek_v32", "deepseek_v4", "minimax_m3_vl_text#sparse"])
def test_more_sequences_longer_contexts_and_prompts_take_longer(name: str) -> None:
    mixer = next(layer.attention for layer in reversed(model_of(name).layers) if kind_of(layer.attention))
    module = module_of(get_gpu("h200-sxm"), "vllm", mixer, 16, "fp8_block", "fp8")
    assert module is not None
    assert 0.0 < module.decode.at(1, 1024) <= module.decode.at(64, 1024) <= module.decode.at(64, 65536)
    assert 0.0 < module.prompt.at(1024) < module.prompt.at(8192)
    assert module.prompt_s(1024, 0) <= module.prompt_s(1024, 16384)
    assert module_of(get_gpu("mi300x"), "vllm", mixer, 16, "fp8_block", "fp8") is None


@timed
def test_hyper_connections_grow_with_tokens_and_width() -> None:
    narrow, wide = (streams_of("h200_sxm", "vllm", hidden) for hidden in (4096, 7168))
    assert narrow is not None
    assert wide is not None
    assert narrow.at(1) < narrow.at(8192) < wide.at(8192)
