"""`serve policies`: the same requests under each batching policy and each router.

fcfs       the engine's own continuous batching, by its rules
skip-join  FastServe's feedback queues: whole prompts, preempted requests' caches swapped to their part of the host's
           memory over PCIe, half the price each way

Several models, each with its share of the rate: the ways to share GPUs of `multiplex/shared.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from windtunnel.errors import SpecError, UnknownNameError
from windtunnel.physics.hardware.catalogue import cluster_of
from windtunnel.physics.model.catalogue import model_of
from windtunnel.questions.asked.serve.parts import OpenLoad, Replicas
from windtunnel.questions.asked.serve.policies import ServePolicies
from windtunnel.questions.header import Answer
from windtunnel.studies.serving.batching.skip_join import SkipJoinBatching
from windtunnel.studies.serving.build import Engine
from windtunnel.studies.serving.multiplex.shared import SHARING, Sharing, share
from windtunnel.studies.serving.parts import assumed, deployment_of, workload_of
from windtunnel.studies.serving.placement.answer import several_of
from windtunnel.studies.serving.replica.replica import Replica
from windtunnel.studies.serving.replica.stepwise import StepwiseReplica
from windtunnel.studies.serving.result import ServingResult, refusals
from windtunnel.studies.serving.run import serve_with, sources_of
from windtunnel.studies.serving.step_time.times import TICKS_PER_NS, TICKS_PER_S
from windtunnel.studies.serving.study import checkpoint_of, priced


@dataclass(frozen=True)
class BatchingTraits:
    """A batching policy: what makes its replica of an engine and the longest prompt, and what it can do."""

    replica: Callable[[Engine, int], Replica | StepwiseReplica]
    adapters: bool = True  # whether it serves LoRA adapters
    prefixes: bool = True  # whether it keeps prefixes


@dataclass(frozen=True, eq=False)
class PolicyComparison(Answer):
    """What became of the requests, by policy and router."""

    results: Mapping[str, ServingResult]
    sources: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def provenance(self) -> dict[str, object]:
        """What prices steps."""
        return {"step times": list(self.sources)}

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        return {"policies": {name: result.to_dict() for name, result in self.results.items()}}


def answer(question: ServePolicies) -> PolicyComparison | Sharing:
    """Serve the requests under each. Raises UserError."""
    several = "," in question.model.base
    choices = SHARING if several else tuple(POLICIES)
    policies = list(choices) if question.policy is None else _names("policy", question.policy)
    for name in policies:
        if name not in choices:
            raise UnknownNameError("policy of several models" if several else "batching policy", name, choices)
    if several:
        return _shared(question, policies)
    routers = _names("router", question.router)
    for name in policies:
        if question.engine.lora is not None and not POLICIES[name].adapters:
            raise SpecError("lora", question.engine.lora, f"{name} has no slots of adapters: --policy fcfs")
        if "prefix-aware" in routers and not POLICIES[name].prefixes:
            raise SpecError("router", "prefix-aware", f"{name} keeps no prefixes: leave one of them out")
    load = workload_of(question.requests, question.load, question.seed)
    model, machine = model_of(question.model), cluster_of(question.cluster)
    engine = priced(model, machine, question.engine, question.replicas, checkpoint_of(question.model))
    longest = int(load.input_tokens.max())
    results: dict[str, ServingResult] = {}
    for policy in policies:
        for router in routers:
            results[policy if len(routers) == 1 else f"{policy}, {router}"] = serve_with(
                engine,
                load,
                replicas=question.replicas.replicas,
                router=router,
                slo=question.limits.seconds(),
                cost_per_gpu_hour=question.price,
                make=partial(POLICIES[policy].replica, engine, longest),
            )
    notes = tuple(f"{name}: {text}" for name, result in results.items() for text in refusals(result))
    return PolicyComparison(results, sources_of(engine), (*load.notes, *assumed(question.engine, engine.model), *notes))


def _shared(question: ServePolicies, policies: list[str]) -> Sharing:
    """Several models on one cluster."""
    if not isinstance(question.load, OpenLoad):
        raise SpecError("rate", None, "models share GPUs by their shares of a rate: add --rate")
    if question.replicas != Replicas() or question.router != "least-loaded":
        raise SpecError("tp", question.replicas.tp, "where models stand is sought here: leave layouts and router out")
    load = workload_of(question.requests, question.load, question.seed)
    deployment, limits = deployment_of(question.engine), question.limits.seconds()
    machine = cluster_of(question.cluster)
    several = several_of(question.model.base, question.load.rate, machine, deployment, load, limits)
    return share(several, policies, question.price)


def _names(field: str, text: str) -> list[str]:
    names = [PAPERS.get(name.strip().lower(), name.strip()) for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise SpecError(field, text, "name one or several, each once")
    return names


def _skip_join_replica(engine: Engine, longest: int) -> StepwiseReplica:
    """A replica with feedback queues and a part of the host's memory to swap to."""
    host, deployment = engine.cluster.host, engine.deployment
    block_bytes = engine.memory.kv_per_token * engine.rules.block_size  # on one GPU
    swap_ticks = round(TICKS_PER_S * block_bytes / host.pcie_bandwidth_bytes_per_s / 2)
    host_blocks = int(host.memory_bytes / engine.cluster.gpus_per_node / block_bytes) * deployment.attn_dp
    batching = SkipJoinBatching(
        lambda tokens: engine.times.mixed(0, 0, [(tokens, 0)], 1) // TICKS_PER_NS,
        batch=engine.rules.max_num_seqs,
        prompt_tokens=max(engine.rules.token_budget, longest),
        host_blocks=host_blocks,
    )
    rules = replace(engine.rules, swap_ticks_per_block=swap_ticks)
    return StepwiseReplica(engine.times, rules, engine.blocks, batching, host_blocks)


PAPERS = {"fastserve": "skip-join", "muxserve": "shares"}  # by which a policy is known as well
POLICIES = {
    "fcfs": BatchingTraits(lambda engine, longest: engine.replica()),
    "skip-join": BatchingTraits(_skip_join_replica, adapters=False, prefixes=False),
}
