"""Parameters of model types as transformers builds them on the meta device, beside windtunnel's reading of the config.

    python validation/derive_models.py types.json     (needs torch and transformers; writes the rows of the tests)

Of each type that windtunnel reads: the config of the class's defaults, as transformers writes it, the parameters of the
model built from it without weights, and the balancing biases that are buffers there. Rows that differ are printed and
the exit status is 1.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from windtunnel.errors import UserError
from windtunnel.physics.model import read_config
from windtunnel.physics.model.grammar import type_names

# Sizes that a class leaves open and every checkpoint gives.
GIVEN: dict[str, dict[str, Any]] = {
    "hunyuan_v1_moe": {"num_experts": 64, "moe_topk": 8, "moe_intermediate_size": 3072, "num_shared_expert": 1},
    "hunyuan_v1_dense": {"head_dim": 128},
    "dots1": {"n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 2, "first_k_dense_replace": 1},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "ministral": {"layer_types": ["full_attention", *["sliding_attention"] * 3] * 9, "num_hidden_layers": 36},
}


def built(kind: str) -> dict[str, Any]:
    """The config that transformers writes for a type, and what it builds from it."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    config = CONFIG_MAPPING[kind](**GIVEN.get(kind, {}))
    written = json.loads(config.to_json_string(use_diff=False))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    biases = sum(b.numel() for name, b in model.named_buffers() if "bias" in name and b.is_floating_point())
    return {
        "config": {key: value for key, value in written.items() if value is not None and not key.startswith("id2")},
        "parameters": sum(p.numel() for p in model.parameters()),
        "balancing_bias": biases,
    }


def main(path: str) -> int:
    """Build every type, compare, and write the rows that agree."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    rows, status = {}, 0
    for kind in type_names():
        try:
            row = built(kind)
            ours = read_config(row["config"]).parameters
        except (UserError, KeyError, ValueError, ImportError, TypeError) as error:
            print(f"{kind}: {type(error).__name__}: {str(error)[:160]}")
            continue
        if ours != row["parameters"] + row["balancing_bias"]:
            print(f"{kind}: {ours:,} here, {row['parameters']:,} + {row['balancing_bias']:,} there")
            status = 1
            continue
        rows[kind] = row
    lines = ",\n".join(f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in sorted(rows.items()))
    Path(path).write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    print(f"{len(rows)} of {len(type_names())} types agree")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
