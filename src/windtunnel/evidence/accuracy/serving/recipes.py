"""Deployments that a public benchmark published, for rows of its results that leave workers and drafting open.

InferenceX lists what it starts at each concurrency: workers of both kinds, their layouts, whether tokens are drafted.
`recipes.csv` holds those lists, for the most part those with prompts and answers on GPUs of their own, as they stood
in February and March 2026: facts, no measurement of speed. Read in SemiAnalysisAI/InferenceX,
.github/configs/nvidia-master.yaml (0004cf5f; B200 SGLang of March: togethercomputer/InferenceX 35558d28),
perf-changelog.yaml (layouts corrected by pull request 919; drafting added by 392 in January 2026, on B200 SGLang with
pools by 667, after the lists without), and in srt-slurm's recipes (depths of drafting). TensorRT-LLM's list on H200
counts requests of one decode worker (1 stands for 1.2); here as everywhere `concurrency` is the client's.

`ran` is given for B200 SGLang fp8 only, whose lists ran on days of their own. No list says its day: days are told by
the numbers of requests in flight that a table has of a day, not by speeds. 1024/1024 has 256 and neither 8 nor 512 on
2026-02-07, as the list without drafting; 8 and 512 and no 256 on 2026-02-13, as the list that drafts. 8192/1024 of
February has 8 and 16 on the second day alone; 160 and 288, of March's lists alone, on 2026-03-18. The change log has
them in this order (658, 667; both anew for 8192/1024: 907).

`accepted` is fitted, one number for random prompts (0.7), one for prompts in a chat template (0.5), which InferenceX
began to use where it drafts since acceptance is too high without (perf-changelog.yaml, pull request 649).

A layout is `tp8` (all over 8 GPUs), `tep8` (attention over 8, experts apart), `dep8` (attention repeated, experts
apart), `dp8` (attention repeated, experts in slices).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from windtunnel.evidence.accuracy.serving.rows import ServingRow, layout
from windtunnel.files.table import read_table

FILE = Path(__file__).parent / "recipes.csv"
MODELS = {"deepseek-v3": "deepseek-r1"}  # as tables name the family
DRAFTING = "deepseek-r1"  # rows of this name may have drafted; the same runs without are listed as DeepSeek-V3
DRAFTING_SINCE = "2026"  # the benchmark's runs before did not draft


@dataclass(frozen=True, slots=True)
class Recipe:
    """One published deployment."""

    drafted: int  # tokens per step; 0 = none
    accepted: float  # chance that one is kept
    prefill_workers: int
    prefill: str
    decode_workers: int
    decode: str
    ran: tuple[str, ...] = ()  # dates on which the benchmark ran this list, where it did not run all at once


def layout_of(name: str) -> dict[str, Any]:
    """Fields of a deployment for a layout like `dep8`."""
    match = re.fullmatch(r"(tp|tep|dep|dp)(\d+)", name)
    if match is None:
        raise ValueError(f"no layout: {name}")
    kind, gpus = match[1], int(match[2])
    tp, ranks = (gpus, 1) if kind in ("tp", "tep") else (1, gpus)
    slices, groups = (gpus, 1) if kind in ("tp", "dp") else (1, gpus)
    return {"tp": tp, "attn_dp": ranks, "moe_tp": slices, "moe_ep": groups}


def recipes_of(row: ServingRow, others: Collection[Recipe] = ()) -> list[Recipe]:
    """Recipes of the row's model, GPU, engine, precision, lengths and concurrency, in the order of the list.

    Where some of them ran on the row's date or have its own sizes, the others are left out. Tables list the sizes of
    one side for both: those of prefill workers for the most part. So are `others`, which are other rows' runs: a list
    runs once a day.
    """
    recipes = list(dict.fromkeys(_listed().get(point_of(row), ())))
    dated = [recipe for recipe in recipes if row.text("measured") in recipe.ran]
    recipes = dated or [recipe for recipe in recipes if not recipe.ran] or recipes
    if drafted_not_yet(row):
        recipes = [recipe for recipe in recipes if not recipe.drafted]
    if row.disaggregated:
        sizes = _sizes(layout(row, "prefill_"))
        by_prefill = [recipe for recipe in recipes if _sizes(layout_of(recipe.prefill)) == sizes]
        recipes = by_prefill or [recipe for recipe in recipes if _sizes(layout_of(recipe.decode)) == sizes] or recipes
    else:
        recipes = [recipe for recipe in recipes if _sizes(layout_of(recipe.decode)) == _sizes(layout(row))]
    return [recipe for recipe in recipes if recipe not in others] or recipes


def drafted_not_yet(row: ServingRow) -> bool:
    """Whether a run is older than the first that drafted."""
    return "" < row.text("measured") < DRAFTING_SINCE


def taken_by(rows: Iterable[ServingRow]) -> dict[tuple[object, ...], frozenset[Recipe]]:
    """By point and date: the recipes without drafting whose runs some row states in full.

    The dump that states workers lists runs without drafting, under the name of the base model.
    """
    recipes_by_day: dict[tuple[object, ...], set[Recipe]] = {}
    for row in rows:
        if row.text("spec_level") != "A" or DRAFTING in row.text("model").lower() or not row.text("measured"):
            continue
        workers = tuple(row.whole_number(f"{side}_num_workers", 1) for side in ("prefill", "decode"))
        same = [
            recipe
            for recipe in recipes_of(row)
            if not recipe.drafted
            and (not row.disaggregated or (recipe.prefill_workers, recipe.decode_workers) == workers)
        ]
        recipes_by_day.setdefault(when(row), set()).update(same)
    return {key: frozenset(recipes) for key, recipes in recipes_by_day.items()}


def when(row: ServingRow) -> tuple[object, ...]:
    """What `taken_by` goes by."""
    return (*point_of(row), row.text("measured"))


def point_of(row: ServingRow) -> tuple[object, ...]:
    """What entries are listed by: model, GPU, engine, precision, whether in pools, lengths, requests in flight."""
    concurrency = row.number("concurrency")
    family = row.text("model_family") or row.text("model").rpartition("/")[2].lower()
    precision = "fp4" if "4" in row.text("precision") else "fp8"
    engine = "trtllm" if "trt" in row.text("engine").lower() else row.text("engine").lower()
    gpu = row.text("gpu").lower().partition("_")[0]
    names = (MODELS.get(family, family), gpu, engine, precision, row.disaggregated)
    return (
        *names,
        row.whole_number("isl", 1),
        row.whole_number("osl", 1),
        None if concurrency is None else round(concurrency),
    )


def _sizes(fields: dict[str, Any]) -> tuple[int, int]:
    """(GPUs of a worker, groups of experts): what tables keep of a layout."""
    return fields["tp"] * fields["attn_dp"] * fields.get("pp", 1), fields.get("moe_ep", 1)


@lru_cache(maxsize=1)
def _listed() -> dict[tuple[object, ...], list[Recipe]]:
    listed: dict[tuple[object, ...], list[Recipe]] = {}
    for _, line in read_table(FILE).rows():
        n_prefill, _, prefill = (line["prefill"] or "0 x ").partition(" x ")
        n_decode, _, decode = line["decode"].partition(" x ")
        ran = tuple(line["ran"].split())
        drafts = (int(line["drafted"]), float(line["accepted"] or 0.0))
        recipe = Recipe(*drafts, int(n_prefill), prefill, int(n_decode), decode, ran)
        names = (line["model"], line["gpu"], line["engine"], line["precision"], bool(prefill))
        for concurrency in line["concurrency"].split():
            key = (*names, int(line["isl"]), int(line["osl"]), int(concurrency))
            listed.setdefault(key, []).append(recipe)
    return listed
