"""Words of a table's cells, as tables of several frameworks spell them, and what they mean for a plan.

Each reader gives the plan's value and a note. The note is empty where the word is understood; else it says what the
cell was taken for. A cell that no rule understands is taken as if it were empty: what the framework does, or a sweep.
The band of such a row is wider (`UNREAD`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

UNREAD = 0.2  # relative standard deviation of a step for each cell that is not understood: a guess

NOTHING = frozenset(("", "none", "no", "off", "false", "0", "disabled", "n/a"))
SWITCHED_ON = frozenset(("yes", "on", "true", "1", "enabled"))

# The first pattern that is found in the word decides.
TASKS: tuple[tuple[str, str], ...] = (
    (r"lora|peft|adapter|dora", "lora"),
    (r"dpo|orpo|simpo|kto|preference", "dpo"),
    (r"grpo|ppo|rloo|rlhf|rlvr|gspo|dapo|policy|reinforce|\brl\b", "rl"),
    (r"log-?prob|forward|inference|evaluation", "forward"),
    (r"sft|tun|instruct|supervised|\bfull\b|reward|distill", "sft"),
    (r"train|^cpt$|mlperf|benchmark|extension|^$", "pretrain"),
)
FORMATS: tuple[tuple[str, str], ...] = (
    (r"mx-?fp-?8|fp8-mx", "mxfp8"),
    (r"nv-?fp-?4", "nvfp4"),
    (r"mx-?fp-?[46]", "mxfp4"),
    (r"fp-?4|w4a4", "fp4"),
    (r"fp8-fine", "fp8-fine"),
    (r"delayed|fp8-ds", "fp8"),
    (r"deepgemm|(fp8|float8).*(cs$|sc$|current|tensor|row|block|group|channel|1x128)", "fp8-current"),
    (r"fp-?8|float-?8|e4m3", "plain fp8"),
    (r"nf4|qlora|4-?bit|int4", "nf4"),
    (r"int8|8-?bit", "int8"),
    (r"fp16|(?<!b)float16|half", "fp16"),
    (r"bf-?16|bfloat|mixed|amp$", "bf16"),
    (r"tf32", "tf32"),
    (r"fp32|float32|single", "fp32"),
)
# What is made again, as Megatron-Core's `--recompute-modules` and other sources name it.
RECOMPUTED: tuple[tuple[str, str], ...] = (
    (r"^core[_ -]?att|^attention core|^sdpa|^fmha|^flash", "core_attention"),
    (r"mla_up", "mla_up_proj"),
    (r"^(self[_ -]?)?att", "attention"),
    (r"\bops?\b|\bsac\b|^dots|budget|minimal", "ops"),
    (r"norm", "norms"),
    (r"^(moe|expert)s?[_ -]?act|^expert_fc", "moe_activation"),
    (r"^shared_exp", "shared_experts"),
    (r"^(moe|experts)$", "moe"),
    (r"^(mlp|ffn|feed)", "mlp"),
    (r"^(swiglu|silu|gelu|act)", "activation"),
)
SCHEDULES: tuple[tuple[str, str], ...] = (
    (r"dualpipe-?v", "dualpipe-v"),
    (r"dualpipe", "dualpipe"),
    (r"zb-?v|v-?schedule", "zb-v"),
    (r"zb|zero-?bubble", "zb-h1"),
    (r"interleav|vpp|looped", "interleaved"),
    (r"1f1b", "1f1b"),
    (r"gpipe|afab|all-forward", "gpipe"),
)
CONTEXT: tuple[tuple[str, str], ...] = (
    (r"a2a\+p2p|hierarch|usp", "ring"),  # all-to-all inside a node, a ring around
    (r"ulysses|a2a|all-?to-?all", "ulysses"),
    (r"ring|p2p|zigzag|all-?gather|llama3", "ring"),
)
WIDTHS: tuple[tuple[str, str], ...] = (
    (r"^(bf16|bfloat16|fp16|float16|half)\b", "bf16"),
    (r"^(fp32|float32|float)\b", "fp32"),
)
OPTIMIZERS: tuple[tuple[str, Mapping[str, object]], ...] = (
    (r"8-?bit", {"optimizer_dtype": "int8"}),
    (r"bf16-moments|moments?.*bf16|bf16.*moments?", {"optimizer_dtype": "bf16"}),
    (r"adamwbf16", {"optimizer_dtype": "bf16", "master_dtype": "bf16"}),
    (r"muon", {"optimizer": "muon"}),
    (r"cpu|offload", {"offload_optimizer": 1.0}),
    (r"^sgd|lion", {"optimizer": "sgd"}),  # one moment
    (r"adam", {}),
)


def first_match(patterns: Sequence[tuple[str, str]], word: str) -> str | None:
    """What the first pattern that is in the word stands for."""
    return next((value for pattern, value in patterns if re.search(pattern, word)), None)


def plain(word: str) -> str:
    """A word in small letters with single hyphens."""
    return re.sub(r"[\s_(),:]+", "-", word.strip().lower()).strip("-")


def not_understood(column: str, word: str, meaning: str) -> str:
    """A note."""
    return f"{column} {word!r} not understood, taken as {meaning}"


def task(word: str) -> tuple[str, str]:
    """`pretrain`, `sft`, `lora`, `dpo`, `rl` or `forward`."""
    name = first_match(TASKS, word.strip().lower())
    return (name, "") if name else ("pretrain", not_understood("task", word, "pretrain"))


def precision(word: str) -> tuple[str, str]:
    """A format, by one of the names in FORMATS."""
    name = first_match(FORMATS, plain(word))
    if name in ("int8", "tf32") or "fp6" in plain(word):
        return str(name), not_understood("precision", word, {"int8": "bf16", "tf32": "fp32"}.get(str(name), str(name)))
    if name is None:
        return "bf16", not_understood("precision", word, "bf16")
    mixed = re.search(r"\+|/|&| and |,", word) and "16" in word and "16" not in name and name != "nf4"
    return name, f"precision {word!r}: all products taken as {name}" if mixed else ""


def recompute(word: str, layers: int | None, operators: bool) -> tuple[str | None, str]:
    """`none`, `full`, `full:N`, `selective:PARTS`; None: as if not stated.

    `layers`: of the model; `operators`: whether `selective` by itself is by operators, as torchtitan's is.
    """
    text = word.strip().lower()
    if text in NOTHING:
        return "none", ""
    if "offload" in text:
        return None, not_understood("recompute", word, "not stated")
    every = re.search(r"every (\d)|every (other)|selective[ :(]*(\d)\b", text)
    counted = re.search(r"(\d+) layers?\b|\bblock\W+(\d+)|\blayers\W+(\d+)", text)
    if every and layers:
        return f"full:{max(1, layers // int(every[1] or every[3] or 2))}", ""
    if counted and "uniform" not in text:
        number = next(int(group) for group in counted.groups() if group)
        return ("full" if layers and number >= layers else f"full:{number}"), ""
    if text == "selective":
        return ("selective:ops" if operators else "selective:core_attention"), ""
    match = re.fullmatch(r"selective\W+(.+?)\)?", text)
    if not match and (text in SWITCHED_ON or re.search(r"^full|\bfull$|checkpoint|uniform|^all\b", text)):
        return "full", ""
    parts = [part.strip(" ()") for part in re.split(r"[+,]", match[1] if match else text)]
    names = list(dict.fromkeys(name for part in parts if (name := first_match(RECOMPUTED, part))))
    unknown = [part for part in parts if not first_match(RECOMPUTED, part)]
    if not names:
        return None, not_understood("recompute", word, "not stated")
    value = "selective:" + ",".join(names)
    return value, not_understood("recompute", ", ".join(unknown), "kept") if unknown else ""


def offload(word: str, layers: int | None, adapters: bool) -> tuple[dict[str, object], str]:
    """Fields of a plan that say what the host keeps."""
    text = word.strip().lower()
    if text in NOTHING:
        return {}, ""
    if "optim" in text or "param" in text or text in ("cpu", "cpu offload"):
        share = re.search(r"(\d+(?:\.\d+)?)\s*(%?)", text)
        part = min(1.0, float(share[1]) / (100.0 if share[2] else 1.0)) if share else 1.0
        note = "" if "optim" in text and "param" not in text else not_understood("offload", word, "optimizer")
        return {"offload_optimizer": part}, note
    counted = re.search(r"activations?\b.*?(\d+)\s*layers?|(\d+)\s*layers?", text)
    if counted and not adapters:
        return {"offload_activations": int(counted[1] or counted[2])}, ""
    if re.fullmatch(r"(all )?activations?( offload(ing)?)?", text) and layers and not adapters:
        return {"offload_activations": layers}, ""
    return {}, not_understood("offload", word, "none")


def schedule(word: str, pp: int, vpp: int) -> tuple[str | None, str]:
    """A pipeline's schedule; None: by whether there are virtual stages."""
    name = first_match(SCHEDULES, plain(word))
    if plain(word) in NOTHING or (name and pp == 1) or name == "interleaved":  # so are those with virtual stages
        return None, ""
    if name and vpp > 1:
        return None, "" if name == "1f1b" else not_understood("schedule", word, "interleaved, as vpp says")
    return (name, "") if name else (None, not_understood("schedule", word, "not stated"))


def context_kind(word: str) -> tuple[str, str]:
    """How context parallelism works: Ulysses is all-to-all over heads."""
    name = first_match(CONTEXT, word.strip().lower())
    return (name, "") if name else ("ring", not_understood("cp_kind", word, "ring"))


def width(column: str, word: str) -> tuple[str | None, str]:
    """`bf16` or `fp32`; None: as the framework does."""
    name = first_match(WIDTHS, word.strip().lower())
    return (name, "") if name else (None, not_understood(column, word, "not stated"))


def optimizer(word: str) -> tuple[dict[str, object], str]:
    """Fields of a plan that an optimizer's name says."""
    text = plain(word)
    rules = [dict(fields) for pattern, fields in OPTIMIZERS if re.search(pattern, text)]
    if not rules and text not in NOTHING:
        return {}, not_understood("optimizer", word, "adamw")
    return {name: value for fields in reversed(rules) for name, value in fields.items()}, ""


def graphs(word: str, experts: bool) -> tuple[dict[str, object], str]:
    """What is launched as a CUDA graph."""
    text = plain(word)
    if text in NOTHING:
        return {"cuda_graphs": False} if text else {}, ""
    if text.startswith("full"):
        return {"cuda_graphs": True, "full_graph": True}, ""
    # By layer and by module, Megatron-Core's and TransformerEngine's graphs leave out experts: most launches.
    if text in SWITCHED_ON or re.search(r"layer|attn|attention|moe|mlp|module|partial|scope|engine|local|mcore", text):
        return {"cuda_graphs": not experts}, ""
    return {}, not_understood("cuda_graph", word, "not stated")


def stages(word: str, layers: int | None, pp: int, vpp: int | None) -> tuple[dict[str, object], str]:
    """Layers of each virtual stage by Megatron's `pipeline_model_parallel_layout`, such as `Et*4|(t*4|)*14tmL`."""
    text = word.strip()
    if not text:
        return {}, ""
    for pattern in (r"\(([^()]*)\)\*(\d+)", r"([a-zA-Z])\*(\d+)"):
        text = re.sub(pattern, lambda match: match[1] * int(match[2]), text.replace(",", ""))
    counts = tuple(stage.count("t") for stage in text.split("|"))
    fits = sum(counts) == layers and len(counts) % pp == 0 and (vpp is None or len(counts) == pp * vpp)
    if set(text) - set("EtmL|") or not fits:
        return {}, not_understood("pipeline_layout", word, "not stated")
    return {"layers_per_stage": counts}, ""
