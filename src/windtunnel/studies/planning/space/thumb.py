"""The plan that a rule of thumb gives, to hold the answer against.

The rule of Megatron-Core's documentation and of most recipes: tensor parallelism over the NVLink domain, of eight GPUs
at most, where the model does not fit without; then the shallowest pipeline that fits, one sequence per micro-batch,
ZeRO-1, nothing recomputed if possible and everything if not; the rest data-parallel. Experts, each whole, are spread
over the NVLink domain. For frameworks that shard parameters: ZeRO-3 alone, then the same with tensor parallelism.
"""

from __future__ import annotations

from windtunnel.errors import UserError
from windtunnel.studies.planning.oracle import Layout, Plan, check_lies_on_one, laid_out, memory_bytes
from windtunnel.studies.planning.space.plan_space import Space, divisors, expert_degrees, shared_experts

TRIED_MOST = 24
TENSOR_MOST = 8  # the rule is of nodes of eight; recipes for racks of 72 have no more


def rule_of_thumb(space: Space) -> Layout | None:
    """The first plan in the order of the rule that is legal and fits; None where there is none."""
    domain = space.cluster.gpus_in_domain
    heads = space.model.layers[0].attention.heads
    tensor = max((tp for tp in divisors(domain) if tp <= TENSOR_MOST and heads % tp == 0), default=1)
    pipelines = [pp for pp in divisors(space.cluster.n_gpus) if pp <= space.model.n_layers]
    zero = max(space.features.zero)
    degrees = [tp for tp in dict.fromkeys((1, tensor)) if tp == 1 or space.features.tensor]
    attempts, usable = 0, space.cluster.gpu.usable_memory_bytes
    for tp, pp in [(degrees[0], 1), *((degrees[-1], pp) for pp in pipelines)]:
        for recompute in ("none", "full"):
            open_fields = {"tp": tp, "pp": pp, "zero_stage": zero, "recompute": recompute, "micro_batch": 1}
            if space.mixture and space.features.experts:
                among = space.cluster.n_gpus // (pp if space.features.folds else tp * pp)
                spread = [ep for ep in divisors(shared_experts(space.model)) if ep <= domain and among % ep == 0]
                open_fields |= {"ep": spread[-1], "etp": min(expert_degrees(tp, folds=space.features.folds))}
            fields = {**open_fields, **{name: value for name, value in space.fixed.items() if value is not None}}
            try:
                layout = laid_out(space.model, space.cluster, Plan(**fields))
                if space.mixed is not None:
                    check_lies_on_one(layout, space.mixed)
            except UserError:
                continue
            attempts += 1
            if memory_bytes(layout, usable) <= usable:
                return layout
            if attempts >= TRIED_MOST:
                return None
    return None
