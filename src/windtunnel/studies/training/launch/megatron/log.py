"""The arguments that Megatron-LM prints of itself when it starts, as the options that it was launched with.

It prints what it works with by the names of its own variables, defaults among them. Only what has an option that is
understood is taken; an option whose variable is its opposite (`--disable-bias-linear` is `add_bias_linear`) is turned.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from windtunnel.studies.training.launch.job_file import Native
from windtunnel.studies.training.launch.megatron import reading as megatron_reading

ARGUMENT = re.compile(r"^(?:\d+: *)?(?:\[[^\]]*\]:? *)? *([a-z][a-z0-9_]*) \.{3,} (.+?)\s*$")
BLOCK_BEGINS, BLOCK_ENDS = re.compile(r"-{4,} arguments -{4,}"), re.compile(r"-{4,} end of arguments -{4,}")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
OPPOSITE = {"add_bias_linear": "disable-bias-linear", "overlap_p2p_comm": "no-overlap-p2p-communication"}
NAMED = {
    "fp8": "fp8-format", "fp4": "fp4-format",
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
    "microbatch_group_size_per_vp_stage": "microbatch-group-size-per-virtual-pipeline-stage",
}  # fmt: skip
OF_EXPERTS = ("moe_", "expert_tensor_parallel")


def arguments_of(lines: Iterable[str]) -> dict[str, str]:
    """Name and value of what stands between Megatron's two rulers; empty without them."""
    arguments: dict[str, str] = {}
    inside = False
    for line in lines:
        if inside or BLOCK_BEGINS.search(line):
            inside = not BLOCK_ENDS.search(line)
            match = ARGUMENT.match(ESCAPES.sub("", line))
            if match:
                arguments[match[1]] = match[2]
    return arguments


def options_of(arguments: Mapping[str, str]) -> str:
    """The same as options."""
    dense = arguments.get("num_experts", "None") == "None"
    words = []
    for name, value in arguments.items():
        if name in OPPOSITE:
            words += [f"--{OPPOSITE[name]}"] if value == "False" else []
        elif value not in ("False", "None") and not (dense and name.startswith(OF_EXPERTS)):
            option = "--" + NAMED.get(name, name).replace("_", "-")
            listed = re.findall(r"'([^']*)'", value) if value.startswith("[") else [value]
            words.append(" ".join([option, *(shlex.quote(word) for word in listed if word != "True")]))
    return " ".join(words)


def read(arguments: Mapping[str, str], n_gpus: int, where: str) -> Native:
    """The job that printed them, on so many GPUs. Raises SpecError."""
    native = megatron_reading.read(options_of(arguments), n_gpus, where)
    odd = ("multi_latent_attention",) if arguments.get("multi_latent_attention") == "True" else ()
    return Native("megatron", native.fields, None if odd else native.model, odd, where, native.sizes)
