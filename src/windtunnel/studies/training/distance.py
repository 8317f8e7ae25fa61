"""How far a question lies from what was measured, in words and as what that adds to the band.

`cost/calibration/seen.yaml` says what published runs there are by software and GPU generation, and how far off they
were with their source left out of whatever it informed. What lies beyond them is less known: another pair of software
and GPU, more GPUs, a format, a mixture or adapters that none of them had, a release that none of them names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from windtunnel.physics.cost.calibration import read_calibration
from windtunnel.physics.cost.training import release_name, training_document
from windtunnel.physics.hardware.gpu import AS_MEASURED
from windtunnel.physics.model.architecture import Model
from windtunnel.physics.model.mixers import Compressed, Indexed, Recurrent
from windtunnel.studies.training.layout import Layout

WORTH_SAYING = 0.10
UNSEEN_MIXERS = 0.3  # published runs of Nemotron 3 and DeepSeek V4, predicted blind, took 20 to 70 % longer
DERIVED = 0.2  # a guess: what a mixer that is taken for another may cost more or less


class Distance(NamedTuple):
    """One way in which a question lies beyond what was measured."""

    words: str
    sigma: float  # relative standard deviation that it adds
    of: str = ""  # or that runs like it have altogether: "like", or "own" of one project whose release is named


def distances(layout: Layout) -> tuple[Distance, ...]:
    """All of them, widest first; none on a device that was measured itself."""
    if layout.cluster.calibration is not None:
        return ()
    widening = [distance for distance in _distances(layout) if distance.sigma > 0.0]
    return tuple(sorted(widening, key=lambda distance: -distance.sigma))


def unseen_mixers(model: Model) -> list[str]:
    """Kinds of mixers that no training run which informed the constants has."""
    attentions = {layer.attention for layer, _ in model.distinct_layers()}
    kinds = {mixer.form for mixer in attentions if isinstance(mixer, Recurrent)}
    return sorted(kinds | {"sparse attention" for mixer in attentions if isinstance(mixer, Indexed | Compressed)})


def _distances(layout: Layout) -> Iterator[Distance]:
    rules, plan, gpu = training_document()["distance"], layout.plan, layout.cluster.gpu
    seen, named = seen_of(layout)
    if seen is None:
        any_run = any(gpu.generation in of for of in read_calibration("seen.yaml").values())
        what = f"{layout.habits.title} on {gpu.generation}" if any_run else f"GPUs of generation {gpu.generation}"
        yield Distance(f"no run of {what} was measured", rules["unseen"])
    else:
        experts = any(layer.feed_forward.kind == "moe" for layer, _ in layout.model.distinct_layers())
        off = seen.get("mixture_error", seen["error"]) if experts else seen["error"]
        words = f"runs like it that informed nothing were off by {off:.0%}" if off >= WORTH_SAYING else ""
        software = layout.habits.title + (f" ({release_name(plan.release)})" if named else "")
        like = f"no run of {software} on {gpu.generation}"
        yield Distance(words, off, "own" if named and seen["projects"] == 1 else "like")
        if not named:
            names = [name for name in read_calibration("seen.yaml") if name.startswith(f"{plan.framework} ")]
            stated = "none is given (--release)"
            if plan.release:
                others = ", ".join(name.partition(" ")[2] for name in names)
                stated = f"of {release_name(plan.release) or plan.release} no run was measured (of {others} some were)"
            which = stated if names else "no measured run says of which it is"
            yield Distance(f"releases of {layout.habits.title} differ, and {which}", rules["release"])
        if plan.precision not in seen["precisions"]:
            yield Distance(f"{like} in {plan.precision} was measured", rules["precision"])
        more = math.log2(layout.cluster.n_gpus / seen["gpus"])
        if more > 0.0:
            yield Distance(f"{like} on more than {seen['gpus']:,} GPUs was measured", rules["doubling"] * more)
        if plan.ep > 1 and not seen["mixtures"]:
            yield Distance(f"{like} with experts over several ranks was measured", rules["mixture"])
        if plan.lora_rank and not seen["adapters"]:
            yield Distance(f"{like} with adapters was measured", rules["adapters"])
    if mixers := unseen_mixers(layout.model):
        yield Distance(f"no run with {' and '.join(mixers)} layers informed the constants", UNSEEN_MIXERS)
    if layout.model.derived:
        yield Distance("the model was derived from what transformers builds, not verified", DERIVED)
    if gpu.kernel_tables is not None and gpu.kernel_scale != AS_MEASURED:
        yield Distance(f"{gpu.name}'s kernels are another GPU's, scaled", rules["scaled"])
    if plan.images or plan.clips:
        yield Distance("the step may wait for images, video or sound, whose loading is left out", rules["loading"])
    if layout.tokens_per_rank < rules["few_tokens"]:
        yield Distance(f"kernels are short at {layout.tokens_per_rank:,} tokens", rules["short"])


def memory_spread(layout: Layout) -> float:
    """How far published peaks of memory lie above predicted ones, in one of twenty runs."""
    if layout.cluster.calibration is not None:
        return 0.0
    rules, plan = training_document()["memory_spread"], layout.plan
    spread = float(rules.get(plan.framework, rules["default"]))
    return math.hypot(spread, rules["adapters"]) if plan.lora_rank else spread


def seen_of(layout: Layout) -> tuple[dict[str, Any] | None, bool]:
    """What was measured of the plan's release on its GPU's generation, and true; else of its framework, or None."""
    seen, generation = read_calibration("seen.yaml"), layout.cluster.gpu.generation
    framework = layout.plan.framework
    own = seen.get(f"{framework} {release_name(layout.plan.release)}", {}).get(generation)
    return (own, True) if own else (seen.get(framework, {}).get(generation), False)
