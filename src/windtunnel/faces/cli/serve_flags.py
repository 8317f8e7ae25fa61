"""Which flags of `windtunnel serve` mean something in which mode: whatever else is given is refused before any work.

A flag that holds its default counts as not given.
"""

from __future__ import annotations

from collections.abc import Mapping

from windtunnel.errors import SpecError

LAYOUT = frozenset({"tp", "pp", "dp", "ep"})
DRAFTING = frozenset({"speculative_tokens", "acceptance"})
ENGINE = frozenset(
    {
        "cluster", "engine", "weights", "expert_weights", "kv", "max_num_seqs", "max_num_batched_tokens",
        "num_gpu_blocks", "block_size", "gpu_memory_utilization", "prefix_caching", "chunked_prefill",
    }
)  # fmt: skip
LOAD = frozenset({"workload", "requests", "rate", "cv", "prompt", "output", "length_ratio", "seed"})
CLOSED = frozenset({"concurrency", "waves"})
ANSWER = frozenset({"slo", "goodput", "attain", "gpu_hour", "requests_out", "report", "json"})
SEVERAL = ENGINE | LOAD | DRAFTING | LAYOUT | {"search", "slo", "json"}
POOLS = frozenset({"prefill", "decode"})
SPOT = frozenset({"cluster", "engine", "weights", "expert_weights", "kv", "tp", "pp", "dp"})  # policies say why no tp
SPOT |= {"max_num_batched_tokens", "gpu_memory_utilization", "spot", "spot_policy", "notice", "gpu_hour", "json"}
ONE = frozenset({"replicas", "router", "kernels", "trace"})  # of replicas that do both phases

LISTEN = ENGINE | DRAFTING | {"listen", "speed", "lose", "max_waiting", "record"}
LISTEN |= {"replicas", "router", "workload", "requests", "output", "length_ratio", "seed"}

MODES: dict[str, tuple[str, frozenset[str]]] = {
    "pool": ("a pool file", frozenset({"report", "json"})),
    "real": ("--real", frozenset({"real", "requests", "rate", "cv", "seed", "json"})),
    "listen": ("--listen", LISTEN | LAYOUT | {"kernels"}),
    "listen apart": ("--listen and --prefill, --decode", LISTEN | POOLS),
    "spot": ("--spot", SPOT | LOAD | CLOSED),
    "distserve": ("--search distserve", SEVERAL - LAYOUT | {"attain"}),  # the layouts are what is sought
    "alpaserve": ("--search alpaserve", SEVERAL),
    "muxserve": ("--search muxserve", SEVERAL),
    "apart": ("--prefill and --decode", ENGINE | DRAFTING | LOAD | CLOSED | ANSWER | POOLS),
    "plain": ("", ENGINE | LAYOUT | DRAFTING | LOAD | CLOSED | ANSWER | ONE),
}  # fmt: skip

NEEDS = (  # a flag, and those of which one must be there
    ("speed", ("listen",)), ("lose", ("listen",)), ("max_waiting", ("listen",)), ("record", ("listen",)),
    ("spot_policy", ("spot",)), ("notice", ("spot",)), ("attain", ("goodput", "search")), ("waves", ("concurrency",)),
    ("acceptance", ("speculative_tokens",)),
)  # fmt: skip
LISTENING = (("output", "workload"),)  # a trace's answers have lengths of their own
AGAINST = (("rate", "concurrency"), ("cv", "concurrency"), ("length_ratio", "workload"))


def check_flags(given: Mapping[str, object], *, pool: bool) -> None:
    """`given`: flags that hold something else than their default, by Python name. Raises SpecError."""
    name, allowed = MODES[_mode(given, pool)]
    for flag, value in given.items():
        told = _worth(value)
        needed = next((others for one, others in NEEDS if one == flag), ())
        if needed and not any(other in given for other in needed):
            with_which = " or ".join(map(_word, needed))
            raise SpecError(_word(flag), told, f"means something with {with_which} only: leave it out")
        if flag not in allowed:
            raise SpecError(_word(flag), told, f"has no meaning with {name}: leave it out")
    if "listen" in given and "real" not in given:
        for flag in ("length_ratio", "seed"):
            if flag in given and "output" not in given:
                remedy = "draws the lengths of answers up to --output: give that too, or leave it out"
                raise SpecError(_word(flag), _worth(given[flag]), remedy)
    for flag, other in (*AGAINST, *(LISTENING if "listen" in given else ())):
        if flag in given and other in given:
            raise SpecError(_word(flag), _worth(given[flag]), f"contradicts {_word(other)}: leave one of them out")
    seed = given.get("seed", 0)
    if isinstance(seed, int) and seed < 0:
        raise SpecError("--seed", seed, "give a whole number from 0 on")


def _mode(given: Mapping[str, object], pool: bool) -> str:
    if pool:
        return "pool"
    apart = not POOLS.isdisjoint(given)
    if "listen" in given and "real" not in given:
        return "listen apart" if apart else "listen"
    for mode in ("real", "spot"):
        if mode in given:
            return mode
    if "search" in given:
        return str(given["search"])
    return "apart" if apart else "plain"


def _word(flag: str) -> str:
    return "--" + flag.replace("_", "-")


def _worth(value: object) -> object:
    return "given" if value is True else value if isinstance(value, (int, float)) else str(value)
