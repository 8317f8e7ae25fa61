"""Categories: in which order they are read and which colour slot each gets, the same in every picture.

Keys come from the predictor and are not fixed here: a key is put into a family by the words in it, families have an
order and a ramp of colour slots, and an unknown key gets a spare slot. JSON keeps no order of keys, so order here
depends on names only: the same result always looks the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# family, words that put a key into it, number of colour slots (templates/report.css defines them).
_TIME_FAMILIES: tuple[tuple[str, str, int], ...] = (
    ("compute", r"compute|gemm|matmul|attention|expert|moe|math|forward|backward|recompute", 4),
    ("memory", r"memory|element|norm|embed|loss|copy|copies|cast", 2),
    ("optimizer", r"optimi[sz]er|adam|muon", 2),
    (
        "comm",
        r"comm|nvlink|xgmi|network|nic|rail|pcie|fabric|exposed|reduce|gather|scatter|all_?to_?all|p2p|send|recv|receive"
        r"|(^|[^a-z])(tp|dp|pp|cp|ep|fsdp|rdma|ib)([^a-z]|$)",
        5,
    ),
    ("bubble", r"bubble|idle", 1),
    ("waiting", r"wait|straggl|skew|slowed", 3),
    ("host", r"host|launch|cpu|data_?load|overhead|offload", 2),
    ("other", r"", 4),
)
# Which family wins when words of several occur: "optimizer" before "memory", "exposed ... compute" is communication.
_PRIORITY = ("bubble", "waiting", "host", "comm", "optimizer", "memory", "compute", "other")
_TIME_ORDER = {name: i for i, (name, _, _) in enumerate(_TIME_FAMILIES)}
_TIME_SLOTS = {name: slots for name, _, slots in _TIME_FAMILIES}
_TIME_WORDS = {name: re.compile(words) for name, words, _ in _TIME_FAMILIES}

MEMORY_ORDER = ("parameters", "gradients", "optimizer", "activations", "communication", "workspace")
UNUSED = "cached, not in use"
CONTEXT = "context, NCCL"

SOURCES = {
    "measured": "this very shape was timed on this device",
    "interpolated": "between shapes that were timed",
    "fitted": "a formula whose few constants were fitted to measurements",
    "roofline": "data-sheet rates times an assumed efficiency",
}
# Keys that are nearly always there keep their colour, whatever else is.
_PINNED = {"gemm": "compute-0", "compute": "compute-0", "attention": "compute-1"}
_ACRONYMS = {
    word.lower(): word
    for word in (
        *("GEMM", "NVLink", "NIC", "PCIe", "CPU", "GPU", "NCCL", "xGMI", "MoE"),
        *("TP", "PP", "DP", "CP", "EP", "FSDP"),
    )
} | {"edp": "experts' DP", "etp": "experts' TP"}

# Slower work, too, where a stage is uneven, sequences are packed or something jitters.
_LABELS = {"waiting for disturbed ranks": "lost to disturbances"}


@dataclass(frozen=True, slots=True)
class Category:
    """A key of a breakdown as it is shown."""

    key: str
    label: str
    slot: str  # CSS class and console style, e.g. "comm-1"

    @property
    def family(self) -> str:
        """The slot without its number."""
        return self.slot.rpartition("-")[0]


# Passes of a pipeline are told apart by shade: all are compute.
PASSES = {
    "forward": Category("forward", "forward", "compute-1"),
    "backward": Category("backward", "backward", "compute-0"),
    "weight": Category("weight", "weight gradient", "compute-2"),
}


def pass_of(words: str) -> Category | None:
    """The pass that the first of these words is; None for other work."""
    named = re.findall(r"[a-z]+", words.lower())
    return PASSES["weight" if "weight" in named else named[0]] if named and named[0] in PASSES else None


def label_of(key: str) -> str:
    """`exposed_nvlink` -> `exposed NVLink`; the one collective of all ranks is named by what it is for."""
    if key in _LABELS:
        return _LABELS[key]
    key = re.sub(r"\bworld \(scale-(out|up)\)", "gradient norm", key)
    return " ".join(_ACRONYMS.get(word.lower(), word) for word in key.replace("_", " ").split())


def label_on_lane(key: str) -> str:
    """Label of one op: whether it is exposed depends on what runs beside it, so that word is left out."""
    return label_of(key).removeprefix("exposed ")


def family_of(key: str) -> str:
    """The family of a time category."""
    low = key.lower()
    return next(family for family in _PRIORITY if _TIME_WORDS[family].search(low))


def time_categories(keys: Iterable[str]) -> dict[str, Category]:
    """Every key with its label and colour slot, in reading order."""
    ordered = sorted(set(keys), key=lambda key: (_TIME_ORDER[family_of(key)], _PINNED.get(key, "~"), key))
    used: dict[str, int] = {}
    categories = {}
    for key in ordered:
        family = family_of(key)
        if key in _PINNED:
            categories[key] = Category(key, label_of(key), _PINNED[key])
            continue
        # Unpinned compute goes on after the pinned shades.
        used.setdefault(family, 2 if family == "compute" else 0)
        categories[key] = Category(key, label_of(key), f"{family}-{used[family] % _TIME_SLOTS[family]}")
        used[family] += 1
    return categories


def memory_categories(keys: Iterable[str]) -> dict[str, Category]:
    """The same for memory."""
    order = {name: i for i, name in enumerate((*MEMORY_ORDER, UNUSED, CONTEXT))}
    ordered = sorted(set(keys), key=lambda key: (order.get(key, len(MEMORY_ORDER) - 0.5), key))
    slots = iter(range(len(ordered)))
    return {
        key: Category(key, label_of(key), f"mem-{order[key]}" if key in order else f"other-{next(slots) % 4}")
        for key in ordered
    }


def source_categories(provenance: Mapping[str, float]) -> dict[str, Category]:
    """The same for the sources of prices, best first."""
    rank = {name: i for i, name in enumerate(SOURCES)}
    ordered = sorted(provenance, key=lambda key: (rank.get(key, len(rank)), key))
    return {key: Category(key, label_of(key), f"src-{rank.get(key, len(rank) - 1)}") for key in ordered}
