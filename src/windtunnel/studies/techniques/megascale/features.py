"""MegaScale's set (NSDI 2024, arXiv 2402.15627): each feature as a change of the model or of the plan.

    parallel_block        attention and feed-forward read the same input: one norm, one gather and one reduction less
    sliding_window        a query sees `window` keys
    tp_overlap            tensor-parallel collectives in chunks beside their GEMMs
    pp_overlap            pipeline sends and receives decoupled from compute
    dp_overlap            gradients reduced and parameters gathered per virtual stage, behind the others' compute; only
                          the first gather and the last reduction are exposed, and the first is prefetched
    efficient_operators   FlashAttention-2, fused LayerNorm and GeLU
    larger_batch          LAMB bears `batch_factor` times the batch: fewer bubbles and updates per token
    ordered_groups        communicators made in a global order, O(n) barriers: start-up only, no part of a step

The first, second and seventh change what is trained; they are named, not called overlap. `other` of the published table
(data pipeline, slow code segments) is a property of one code base and is not priced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from windtunnel.errors import SpecError, UnknownNameError
from windtunnel.physics.model import Model
from windtunnel.questions.about import About
from windtunnel.studies.techniques.parameters import Parameters
from windtunnel.studies.training import Plan

FEATURES = (
    "parallel_block",
    "sliding_window",
    "tp_overlap",
    "pp_overlap",
    "dp_overlap",
    "efficient_operators",
    "larger_batch",
)  # in the order of the published ablation
WINDOW, BATCH_FACTOR = 512, 4  # left open by the paper, and its LAMB
OVERLAPS = ("tp_overlap", "pp_overlap", "dp_overlap")
_PLAN: Mapping[str, Mapping[str, object]] = {
    "tp_overlap": {"overlap_tp": True},
    "pp_overlap": {"overlap_p2p": True},
    "dp_overlap": {"overlap_grad_reduce": True, "overlap_param_gather": True},
    "efficient_operators": {"attention_impl": "flash2", "compile": True},
}
_WITHOUT: Mapping[str, Mapping[str, object]] = {
    "tp_overlap": {"overlap_tp": False},
    "pp_overlap": {"overlap_p2p": False},
    "dp_overlap": {"overlap_grad_reduce": False, "overlap_param_gather": False},
    "efficient_operators": {"attention_impl": "triton", "compile": False},
}


@dataclass(frozen=True, slots=True)
class MegaScalePlan(Parameters):
    """Which features, and their numbers."""

    features: Annotated[str, About(f"all, overlaps, or some of {'+'.join(FEATURES)}")] = "overlaps"
    window: Annotated[int, About("keys that a query sees with sliding_window", least=1)] = WINDOW
    batch_factor: Annotated[int, About("times the batch with larger_batch", least=1)] = BATCH_FACTOR

    def __post_init__(self) -> None:
        Parameters.__post_init__(self)
        names = self.chosen()
        for name, usual, feature in (
            ("window", WINDOW, "sliding_window"),
            ("batch_factor", BATCH_FACTOR, "larger_batch"),
        ):
            if getattr(self, name) != usual and feature not in names:
                raise SpecError(name, getattr(self, name), f"it is of {feature}, which features do not name")

    def chosen(self) -> tuple[str, ...]:
        """The features in the order of the ablation. Raises UnknownNameError."""
        if self.features == "all":
            return FEATURES
        if self.features == "overlaps":
            return OVERLAPS
        names = self.features.replace("-", "_").split("+")
        for name in names:
            if name not in FEATURES:
                raise UnknownNameError("feature of MegaScale", name, FEATURES, "(join several with +)")
        return tuple(name for name in FEATURES if name in names)


def without_features(plan: Plan, features: tuple[str, ...]) -> Plan:
    """The plan with these features off, unless it asks for one itself."""
    changes = {key: value for name in features for key, value in _WITHOUT.get(name, {}).items()}
    if plan.attention_impl != "flash":
        changes.pop("attention_impl", None)
    return plan.with_fields(changes)


def with_feature(model: Model, plan: Plan, name: str, parameters: MegaScalePlan) -> tuple[Model, Plan]:
    """Model and plan with one feature more."""
    if name == "parallel_block":
        layers = tuple(replace(layer, parallel_block=True, norms=1) for layer in model.layers)
        return replace(model, layers=layers), plan
    if name == "sliding_window":
        seen = min(parameters.window, plan.seq_len)
        layers = tuple(
            replace(layer, attention=replace(layer.attention, window=min(seen, layer.attention.window or seen)))
            for layer in model.layers
        )
        return replace(model, layers=layers), plan
    if name == "larger_batch":
        return model, plan.with_fields({"global_batch": plan.global_batch * parameters.batch_factor})
    changes = dict(_PLAN[name])
    if plan.attention_impl not in ("flash", "triton"):
        changes.pop("attention_impl", None)
    return model, plan.with_fields(changes)
