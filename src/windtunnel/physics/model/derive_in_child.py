"""Run by itself: a config on standard input, what transformers builds of it on standard output, both JSON.

Nothing is downloaded, no code of a checkpoint is run and no weight is made: the model is built on the meta device. Per
layer: parameters of matrices and of the rest, of its mixer, its feed-forward and its experts.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

MIXER = re.compile(r"attn|attention|mixer|mamba|temporal|conv|rglru|recurrent|ssm|wkv", re.IGNORECASE)
SHARED = re.compile(r"shared", re.IGNORECASE)


def of_layer(layer: Any) -> dict[str, int]:
    """Elements by what holds them."""
    found = {"mixer": 0, "mixer_rest": 0, "block": 0, "shared": 0, "rest": 0, "experts": 0, "expert_weights": 0}
    for path, p in layer.named_parameters():
        if p.dim() == 3 and "expert" in path:
            found["experts"], found["expert_weights"] = int(p.shape[0]), found["expert_weights"] + p.numel()
        elif MIXER.search(path) and not re.search(r"mlp|feed_forward|ffn", path):
            found["mixer" if p.dim() >= 2 else "mixer_rest"] += p.numel()
        elif p.dim() == 2:
            found["shared" if SHARED.search(path) else "block"] += p.numel()
        else:
            found["rest"] += p.numel()
    return found


def main() -> None:
    """Build and print."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    import torch
    import transformers
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    given = json.loads(sys.stdin.read())
    kind = given.pop("model_type")
    left_out = ("architectures", "auto_map", "quantization_config", "torch_dtype", "dtype", "transformers_version")
    config = CONFIG_MAPPING[kind](**{key: value for key, value in given.items() if key not in left_out})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    stacks = [
        (path, m) for path, m in model.named_modules() if isinstance(m, torch.nn.ModuleList) and "expert" not in path
    ]
    path, layers = max(stacks, key=lambda stack: sum(p.numel() for p in stack[1].parameters()))
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    fields = {key: value for key, value in text.to_dict().items() if isinstance(value, int | float | bool | str | list)}
    print(
        json.dumps(
            {
                "transformers": transformers.__version__,
                "parameters": sum(p.numel() for p in model.parameters()),
                "layers": [of_layer(layer) for layer in layers],
                "stack": path,
                "fields": fields,
            }
        )
    )


if __name__ == "__main__":
    main()
