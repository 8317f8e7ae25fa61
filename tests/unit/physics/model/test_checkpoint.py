from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from windtunnel.errors import SpecError
from windtunnel.physics.model.catalogue import stored_as
from windtunnel.physics.model.checkpoint import Stored, stored_formats

ALONE = ["lm_head", "model.layers.0.self_attn*"]


@pytest.mark.parametrize(
    ("config", "stored"),
    [
        ({}, Stored("bf16")),
        ({"torch_dtype": "float16"}, Stored("fp16")),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, Stored("fp8_block")),
        ({"quantization_config": {"quant_method": "fp8"}, "expert_dtype": "fp4"}, Stored("fp8", "mxfp4")),
        ({"quantization_config": {"quant_method": "fp8", "expert_dtype": "fp4"}}, Stored("fp8", "mxfp4")),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, Stored("int4")),
        ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, Stored("int8")),
        (
            {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}},
            Stored("nvfp4", None, "fp8"),
        ),
        (  # a mixture whose attention was left alone
            {
                "num_local_experts": 8,
                "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ALONE},
            },
            Stored("bf16", "nvfp4"),
        ),
        (
            {
                "text_config": {
                    "quantization_config": {
                        "quant_method": "compressed-tensors",
                        "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
                    }
                }
            },
            Stored("int4"),
        ),
    ],
)
def test_formats_are_those_of_the_quantization_config(config: dict[str, Any], stored: Stored) -> None:
    assert stored_formats(config) == stored


def test_a_format_that_is_not_known_is_asked_about() -> None:
    with pytest.raises(SpecError, match="--weights"):
        stored_formats({"quantization_config": {"quant_method": "magic"}})


def test_shipped_models_and_nvidias_file_beside_a_config(tmp_path: Path) -> None:
    assert stored_as("openai/gpt-oss-120b") == Stored("bf16", "mxfp4")
    assert stored_as("unsloth/gpt-oss-20b-BF16") == Stored("bf16")  # its experts too
    assert stored_as("deepseek-v3") == Stored("fp8_block")
    assert stored_as("llama-3.1-8b") == Stored("bf16")
    for name, stored in {
        "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8": Stored("fp8_block"),
        "zai-org/GLM-4.6-FP8": Stored("fp8"),
        "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic": Stored("fp8"),
        "nvidia/DeepSeek-R1-0528-NVFP4-v2": Stored("nvfp4"),
        "Qwen/Qwen3-30B-A3B-GPTQ-Int4": Stored("int4"),
        "deepseek-ai/DeepSeek-V3-0324": Stored("fp8_block"),
        "openai/gpt-oss-120b-mxfp4": Stored("bf16", "mxfp4"),
        "mlx-community/Qwen3-8B-4bit": Stored("int4"),
        "Qwen/Qwen3-8B-GGUF": Stored("bf16"),  # of many formats: as the model itself
    }.items():
        assert stored_as(name) == stored
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert stored_as(tmp_path) == Stored("bf16")
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    assert stored_as(str(tmp_path)) == Stored("fp8")
