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

Module = Any  # a module of PyTorch, which only `main` imports
MIXER = re.compile(r"attn|attention|mixer|mamba|temporal|conv|rglru|recurrent|ssm|wkv", re.IGNORECASE)
SHARED = re.compile(r"shared", re.IGNORECASE)


def of_layer(layer: Module) -> dict[str, int]:
    """Elements by what holds them."""
    elements = {"mixer": 0, "mixer_rest": 0, "block": 0, "shared": 0, "rest": 0, "experts": 0, "expert_weights": 0}
    for path, p in layer.named_parameters():
        if p.dim() == 3 and "expert" in path:
            elements["experts"], elements["expert_weights"] = int(p.shape[0]), elements["expert_weights"] + p.numel()
        elif MIXER.search(path) and not re.search(r"mlp|feed_forward|ffn", path):
            elements["mixer" if p.dim() >= 2 else "mixer_rest"] += p.numel()
        elif p.dim() == 2:
            elements["shared" if SHARED.search(path) else "block"] += p.numel()
        else:
            elements["rest"] += p.numel()
    return elements


def order_of(model: Module, layers: Module) -> list[int]:
    """The layers by number as a forward pass over four tokens runs them: some types run their middle several times.

    Each once, in order, where a pass cannot be followed without weights (it reads values, or wants more than tokens).
    """
    import torch

    ran: list[int] = []
    for number, layer in enumerate(layers):
        layer.register_forward_pre_hook(lambda *_, number=number: ran.append(number))
    once = list(range(len(layers)))
    try:
        with torch.no_grad(), torch.device("meta"):
            mask = torch.ones(1, 1, 4, 4, dtype=torch.bool)  # whole, since making one reads what the tokens are
            model.bfloat16()(input_ids=torch.zeros(1, 4, dtype=torch.long), attention_mask=mask, use_cache=False)
    except Exception:  # of any class of transformers, for any reason
        return once
    return ran if {*ran} == {*once} else once


def main() -> None:
    """Build and print."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    import torch
    import transformers
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

    config_fields = json.loads(sys.stdin.read())
    kind = config_fields.pop("model_type")
    left_out = ("architectures", "auto_map", "quantization_config", "torch_dtype", "dtype", "transformers_version")
    config = CONFIG_MAPPING[kind](**{key: value for key, value in config_fields.items() if key not in left_out})
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    text_classes = AutoModelForCausalLM._model_mapping
    # What writes text, without the towers beside it where that is a class of its own.
    choice = next(
        ((AutoModelForCausalLM, candidate) for candidate in (text, config) if type(candidate) in text_classes), None
    )
    if choice is None and type(config) in AutoModelForImageTextToText._model_mapping:
        choice = AutoModelForImageTextToText, config
    if choice is None:
        sys.exit(f"transformers {transformers.__version__} has no class that writes text from this config")
    with torch.device("meta"):
        model = choice[0].from_config(choice[1], trust_remote_code=False)
    stacks = [
        (path, m) for path, m in model.named_modules() if isinstance(m, torch.nn.ModuleList) and "expert" not in path
    ]
    path, layers = max(stacks, key=lambda stack: sum(p.numel() for p in stack[1].parameters()))
    fields = {key: value for key, value in text.to_dict().items() if isinstance(value, int | float | bool | str | list)}
    print(
        json.dumps(
            {
                "transformers": transformers.__version__,
                "parameters": sum(p.numel() for p in model.parameters()),
                "layers": [of_layer(layer) for layer in layers],
                "order": order_of(model, layers),
                "stack": path,
                "fields": fields,
            }
        )
    )


if __name__ == "__main__":
    main()
