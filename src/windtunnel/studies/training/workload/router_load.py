"""How unevenly a router spreads tokens over experts, and which expert rank that makes the hottest and the fullest.

The terms (share, load, hottest, fullest) are those of docs/physics/imbalance.md.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import SpecError
from windtunnel.physics.model import Model
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.workload.histogram_file import Row, read_histogram

FORMS = (("expert", "tokens"), ("layer", "expert", "tokens"), ("step", "layer", "expert", "tokens"))
SEE = "give zipf:EXPONENT or a CSV file with the header expert,tokens, layer,expert,tokens or step,layer,expert,tokens"
STEEPEST = 20.0
DIGITS = 9  # of a load: sums of the same shares in another order are the same load
LEAST = 1e-6  # of the mean, so that a rank without tokens still has tensors


@dataclass(frozen=True, eq=False)
class RouterLoad:
    """Popularity of the experts in one step."""

    text: str  # as it was given
    shares: tuple[NDArray[np.float64] | None, ...]  # of each layer: float[experts], sum 1; None without experts
    step: int | None = None  # of a trace

    def rank_loads(self, layer: int, ep: int) -> NDArray[np.float64]:
        """float[ep]: tokens that each rank's experts get over the mean; ones where the layer has no experts."""
        shares = self.shares[layer]
        if shares is None:
            return np.ones(ep)
        # Sorted, so that the order of a rank's experts cannot show in the last bit.
        return np.asarray(np.round(np.sort(shares.reshape(ep, -1), axis=1).sum(axis=1) * ep, DIGITS), np.float64)


@dataclass(frozen=True, slots=True)
class RankLoads:
    """Loads of each layer that passes and memory are worked out with, and where they come from."""

    hottest: tuple[float, ...]  # of the rank that gets most in this layer
    fullest: tuple[float, ...]  # of the rank whose kept layers on one device together get most
    mean: float  # of `hottest` over layers with experts: how much longer experts and all-to-all take
    worst: tuple[float, int, int]  # the hottest of all: load, layer, expert rank


def parse_router_load(text: str, model: Model, *, seed: int = 0) -> tuple[RouterLoad, ...]:
    """One load per step: `zipf:EXPONENT`, or a CSV file as FORMS. Raises SpecError and InputFileError."""
    if not any(layer.feed_forward.kind == "moe" for layer in model.layers):
        raise SpecError("router_load", text, f"{model.name} has no experts: leave it out")
    if text.startswith("zipf:"):
        return (_power_law(text, model, seed),)
    path = Path(text)
    header, rows = read_histogram(path, FORMS, SEE)
    if header == FORMS[0]:
        return (_one_for_all(text, model, rows),)
    steps: dict[int, list[Row]] = defaultdict(list)
    for line, keys, tokens in rows:
        steps[keys[0] if len(keys) == 3 else 0].append((line, keys[-2:], tokens))
    many = header == FORMS[2]
    return tuple(_per_layer(text, model, steps[step], step if many else None) for step in sorted(steps))


def rank_loads_of(router: RouterLoad | None, layout: Layout) -> RankLoads:
    """The loads that make each layer's time and each device's memory; all 1 without a router's."""
    n, ep = layout.model.n_layers, layout.plan.ep
    if router is None:
        return RankLoads((1.0,) * n, (1.0,) * n, 1.0, (1.0, 0, 0))
    loads = np.stack([router.rank_loads(layer, ep) for layer in range(n)])
    hottest = loads.max(axis=1)
    fullest, waits = hottest.copy(), _wait_on_gpu(layout)
    virtual_stages = layout.schedule_table().virtual_stage
    for row in virtual_stages:
        layers = [layer for stage in row for layer in layout.virtual_layers[stage] if waits[layer]]
        rank = int(np.argmax(np.round(loads[layers].sum(axis=0), DIGITS)))
        fullest[layers] = loads[layers, rank]
    routed = [layer for layer in range(n) if router.shares[layer] is not None]
    worst = max(routed, key=lambda layer: hottest[layer])
    return RankLoads(
        hottest=tuple(hottest.tolist()),
        fullest=tuple(np.maximum(fullest, LEAST).tolist()),
        mean=float(hottest[routed].mean()),
        worst=(float(hottest[worst]), worst, int(np.argmax(loads[worst]))),
    )


def _wait_on_gpu(layout: Layout) -> list[bool]:
    """Whether a layer's activations wait on the GPU for its backward pass."""
    recomputed, offloaded = layout.plan.recompute_layers, layout.plan.offload_activations
    waits = [layer >= offloaded for layer in range(layout.model.n_layers)]
    for layers in layout.virtual_layers:
        for layer in layers[:recomputed]:
            waits[layer] = False
    return waits


def _experts(model: Model) -> list[int]:
    return [layer.feed_forward.experts if layer.feed_forward.kind == "moe" else 0 for layer in model.layers]


def _power_law(text: str, model: Model, seed: int) -> RouterLoad:
    try:
        exponent = float(text.removeprefix("zipf:"))
    except ValueError:
        exponent = math.nan
    if not 0.0 <= exponent <= STEEPEST:
        raise SpecError("router_load", text, f"zipf takes an exponent from 0 (even) to {STEEPEST:g}")
    shares: list[NDArray[np.float64] | None] = []
    for layer, experts in enumerate(_experts(model)):
        if not experts:
            shares.append(None)
            continue
        popularity = np.arange(1, experts + 1, dtype=np.float64) ** -exponent
        order = np.random.default_rng((seed, 0xE0, layer)).permutation(experts)
        shares.append((popularity / popularity.sum())[order])
    return RouterLoad(text, tuple(shares))


def _one_for_all(text: str, model: Model, rows: list[Row]) -> RouterLoad:
    experts = _experts(model)
    kinds = {count for count in experts if count}
    if len(kinds) > 1:
        raise SpecError("router_load", text, f"layers of {model.name} differ in experts: add the column layer")
    shares = _shares(text, f"{model.name} has", rows, kinds.pop())
    return RouterLoad(text, tuple(shares if count else None for count in experts))


def _per_layer(text: str, model: Model, rows: list[Row], step: int | None) -> RouterLoad:
    experts = _experts(model)
    layers: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        layer = row[1][0]
        if layer >= model.n_layers or not experts[layer]:
            routed = ", ".join(_ranges([number for number, count in enumerate(experts) if count]))
            raise SpecError("layer", layer, f"layers of {model.name} with experts are {routed}", f"{text}:{row[0]}")
        layers[layer].append(row)
    for layer, count in enumerate(experts):
        if count and layer not in layers:
            of = f" of step {step}" if step is not None else ""
            remedy = f"layer {layer}{of} is missing: give every layer with experts, or none for one popularity for all"
            raise SpecError("layer", len(layers), remedy, f"{text}:{rows[-1][0]}")
    whose = [f"layer {layer} of {model.name} has" for layer in range(model.n_layers)]
    shares = (_shares(text, whose[n], layers[n], count) if count else None for n, count in enumerate(experts))
    return RouterLoad(text, tuple(shares), step)


def _shares(text: str, whose: str, rows: list[Row], experts: int) -> NDArray[np.float64]:
    """float[experts] from rows whose last key is the expert."""
    tokens = np.full(experts, np.nan)
    for line, keys, count in rows:
        if keys[-1] >= experts:
            raise SpecError("expert", keys[-1], f"{whose} {experts} experts, from 0 on", f"{text}:{line}")
        tokens[keys[-1]] = count
    missing = np.flatnonzero(np.isnan(tokens)).tolist()
    where = f"{text}:{rows[-1][0]}"
    if missing:
        remedy = f"{whose} {experts} experts, give 0 tokens to idle ones; missing: {', '.join(_ranges(missing))}"
        raise SpecError("expert", f"{len(rows)} given", remedy, where)
    if not tokens.sum() > 0.0:
        raise SpecError("tokens", 0, f"{whose} experts, but none of them gets a token", where)
    shares: NDArray[np.float64] = tokens / tokens.sum()
    return shares


def _ranges(numbers: list[int]) -> list[str]:
    """`3`, `5 to 8`: runs of consecutive numbers."""
    edges = [0, *(i for i in range(1, len(numbers)) if numbers[i] != numbers[i - 1] + 1), len(numbers)]
    runs = [(numbers[a], numbers[b - 1]) for a, b in pairwise(edges)]
    return [str(a) if a == b else f"{a} to {b}" for a, b in runs]
