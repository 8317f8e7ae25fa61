"""Pipelines: pieces of the model on each rank, schedules, and how layers are dealt out to stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windtunnel.physics.hardware.mixed import MixedCluster
from windtunnel.studies.planning.space.features import Features

Counts = tuple[int, ...] | None  # layers of each virtual stage; None: as the framework deals them out
Pipeline = tuple[int, str | None, Counts]  # model pieces per rank, the schedule, and the layers of each piece


def pipelines(
    has: Features, constraints: Mapping[str, Any], layers: int, pp: int, types: MixedCluster | None = None
) -> tuple[Pipeline, ...]:
    """Of so many layers over `pp` ranks. `types`: those that stages follow."""
    own: Counts = constraints.get("layers_per_stage")
    if pp == 1:
        return ((constraints.get("virtual_stages") or 1, constraints.get("schedule"), own),)
    options: list[Pipeline] = []
    even = _dealt_evenly(layers, pp, 1)
    open_layers = has.uneven and own is None and constraints.get("account_for_embedding") is None
    if own is not None:
        chunks = len(own) // pp if len(own) % pp == 0 else 1
        options += [(chunks, "interleaved", own)] if chunks > 1 and has.interleaves else []
    elif has.interleaves:
        several = range(2, layers // pp + 2)
        divided = [v for v in several if _dealt_evenly(layers, pp, v)]
        options += [(v, "interleaved", None) for v in divided]
        if open_layers and not divided:
            options += [(v, "interleaved", dealt(layers, pp * v)) for v in several if pp * v <= layers]
    for name in has.schedules:
        options.append((1, name, dealt(layers, pp) if open_layers and not even and name in ONE_PIECE else own))
        if open_layers and name in ONE_PIECE:
            options += [(1, name, counts) for counts in uneven(layers, pp)]
    if types is not None and open_layers:
        options += _by_type(has, layers, pp, types)
    if constraints.get("schedule") is not None and constraints["schedule"] not in {name for _, name, _ in options}:
        options.append((constraints.get("virtual_stages") or 1, constraints["schedule"], own))
    return tuple(
        (v, name, counts)
        for v, name, counts in options
        if constraints.get("schedule") in (None, name) and constraints.get("virtual_stages") in (None, v)
    )


def _by_type(has: Features, layers: int, pp: int, mixed: MixedCluster) -> list[Pipeline]:
    """Stages of each type have as many layers as each other; how many the types have together is open.

    Of two types every share is tried, of more the one by their peaks.
    """
    ranks = [part.n_gpus * pp // mixed.n_gpus for part in mixed.parts]
    if any(part.n_gpus * pp % mixed.n_gpus for part in mixed.parts) or layers < pp:
        return []
    if len(ranks) == 2:
        shares: list[tuple[int, ...]] = [(number, layers - number) for number in range(ranks[0], layers - ranks[1] + 1)]
    else:
        shares = [_by_peak(layers, ranks, mixed)]
    usual = {dealt(layers, pp), *uneven(layers, pp)}  # those are there already
    options: list[Pipeline] = []
    for share in shares:
        each = list(zip(ranks, share, strict=True))
        counts = tuple(count for own, number in each for count in dealt(number, own))
        if counts not in usual and min(counts) > 0:
            options += [(1, name, counts) for name in has.schedules if name in ONE_PIECE]
        for chunks in range(2, min(number // own for own, number in each) + 1):
            piece = tuple(count for own, number in each for count in [number // (own * chunks)] * own)
            if has.interleaves and sum(piece) * chunks == layers and len(set(piece)) > 1:
                options.append((chunks, "interleaved", piece * chunks))
    return options


def _by_peak(layers: int, ranks: list[int], mixed: MixedCluster) -> tuple[int, ...]:
    weights = [own * part.gpu.peak_flops("bf16") for own, part in zip(ranks, mixed.parts, strict=True)]
    counts = [max(own, int(layers * weight / sum(weights))) for own, weight in zip(ranks, weights, strict=True)]
    counts[weights.index(max(weights))] += layers - sum(counts)
    return tuple(counts)


def _dealt_evenly(layers: int, pp: int, chunks: int) -> bool:
    """Megatron-Core deals layers out evenly, or counts embedding and head as a layer each."""
    return layers % (pp * chunks) == 0 or (layers + 2) % (pp * chunks) == 0


ONE_PIECE = ("1f1b", "gpipe", "zb-h1")  # schedules with one piece of the model on each rank
# How many layers less than the others the first and the last stage have: what embedding and head may be worth.
LESS = ((0, 1), (0, 2), (1, 1), (1, 2))


def dealt(layers: int, stages: int, first: int = 0, last: int = 0) -> tuple[int, ...]:
    """Layers of each stage where the ends have so many less than an equal share; a remainder goes to the middle."""
    share, rest = divmod(layers + first + last, stages)
    begin = (stages - rest) // 2
    counts = [share + (begin <= stage < begin + rest) for stage in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    return tuple(counts)


def uneven(layers: int, stages: int) -> tuple[tuple[int, ...], ...]:
    """Other ways to deal layers out than the usual one, each once."""
    usual = dealt(layers, stages)
    if layers % stages and (layers + 2) % stages == 0:  # then embedding and head count as a layer each
        usual = dealt(layers, stages, 1, 1)
    ways = [dealt(layers, stages, *less) for less in ((0, 0), *LESS)]
    return tuple(dict.fromkeys(counts for counts in ways if counts != usual and min(counts) > 0))
