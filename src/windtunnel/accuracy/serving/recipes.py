"""Deployments that a public benchmark published, for rows of its results that leave workers and drafting open.

InferenceX lists what it starts at each concurrency: workers of both kinds, their layouts, whether tokens are drafted.
`recipes.csv` holds those lists for prompts and answers on GPUs of their own, as they stood in February and March 2026:
facts, no measurement. Read in SemiAnalysisAI/InferenceX, .github/configs/nvidia-master.yaml (0004cf5f; B200 SGLang of
March: togethercomputer/InferenceX 35558d28), perf-changelog.yaml (layouts corrected by pull request 919; drafting on
B200 SGLang added by 667, after the lists without), and in the recipes of srt-slurm (depths of drafting). TensorRT-LLM's
list on H200 counts requests of one decode worker (1 stands for 1.2); here as everywhere `concurrency` is the client's.

A layout is `tp8` (all over 8 GPUs), `tep8` (attention over 8, experts apart), `dep8` (attention repeated, experts
apart), `dp8` (attention repeated, experts in slices).
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from windtunnel.accuracy.serving.rows import ServingRow, layout

FILE = Path(__file__).parent / "recipes.csv"
MODELS = {"deepseek-v3": "deepseek-r1"}  # as tables name the family


@dataclass(frozen=True, slots=True)
class Recipe:
    """One published deployment."""

    drafted: int  # tokens per step; 0 = none
    prefill_workers: int
    prefill: str
    decode_workers: int
    decode: str
    ran: tuple[str, ...] = ()  # dates on which the benchmark ran this list, where it did not run all at once


def layout_of(name: str) -> dict[str, Any]:
    """Fields of a deployment for a layout like `dep8`."""
    found = re.fullmatch(r"(tp|tep|dep|dp)(\d+)", name)
    if found is None:
        raise ValueError(f"no layout: {name}")
    kind, gpus = found[1], int(found[2])
    tp, ranks = (gpus, 1) if kind in ("tp", "tep") else (1, gpus)
    slices, groups = (gpus, 1) if kind in ("tp", "dp") else (1, gpus)
    return {"tp": tp, "attn_dp": ranks, "moe_tp": slices, "moe_ep": groups}


def recipes_of(row: ServingRow) -> list[Recipe]:
    """Recipes of the row's model, GPU, engine, precision, lengths and concurrency, in the order of the list.

    Where some of them ran on the row's date or have its own sizes, the others are left out. Tables list the sizes of one side for both:
    those of prefill workers for the most part.
    """
    concurrency = row.number("concurrency")
    if concurrency is None:
        return []
    family = row.text("model_family") or row.text("model").rpartition("/")[2].lower()
    precision = "fp4" if "4" in row.text("precision") else "fp8"
    engine = "trtllm" if "trt" in row.text("engine").lower() else row.text("engine").lower()
    gpu = row.text("gpu").lower().partition("_")[0]
    key = (MODELS.get(family, family), gpu, engine, precision, row.whole("isl", 1), row.whole("osl", 1))
    found = list(dict.fromkeys(_listed().get((*key, round(concurrency)), ())))
    sizes = _sizes(layout(row, "prefill_"))
    dated = [one for one in found if row.text("measured") in one.ran]
    found = dated or [one for one in found if not one.ran] or found
    by_prefill = [one for one in found if _sizes(layout_of(one.prefill)) == sizes]
    return by_prefill or [one for one in found if _sizes(layout_of(one.decode)) == sizes] or found


def _sizes(fields: dict[str, Any]) -> tuple[int, int]:
    """(GPUs of a worker, groups of experts): what tables keep of a layout."""
    return fields["tp"] * fields["attn_dp"] * fields.get("pp", 1), fields.get("moe_ep", 1)


@lru_cache(maxsize=1)
def _listed() -> dict[tuple[Any, ...], list[Recipe]]:
    listed: dict[tuple[Any, ...], list[Recipe]] = {}
    with FILE.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            sides = [re.fullmatch(r"(\d+) x (\w+)", line[side]) for side in ("prefill", "decode")]
            (n_prefill, prefill), (n_decode, decode) = (side.groups() for side in sides if side is not None)
            one = Recipe(int(line["drafted"]), int(n_prefill), prefill, int(n_decode), decode, tuple(line["ran"].split()))
            names = (line["model"], line["gpu"], line["engine"], line["precision"])
            for concurrency in line["concurrency"].split():
                key = (*names, int(line["isl"]), int(line["osl"]), int(concurrency))
                listed.setdefault(key, []).append(one)
    return listed
