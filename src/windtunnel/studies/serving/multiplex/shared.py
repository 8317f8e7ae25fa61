"""Several models on one cluster by `serve policies`: MuxServe's units (ICML '24) beside taking turns and being apart.

shares  models share meshes by SM shares and one cache of moving quotas (ADBS), as MuxServe places them
turns   the same meshes, the whole GPU to one job at a time (temporal sharing)
apart   every model on a mesh of its own (spatial partitioning)

Steps are those of `serve` for a whole GPU, host included, longer with fewer SMs by the two slopes of the placement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from windtunnel.errors import SpecError
from windtunnel.questions.header import Answer
from windtunnel.questions.typed import Plain, check_figures, plain_fields
from windtunnel.studies.serving.build import Engine
from windtunnel.studies.serving.measures import Distribution, distribution
from windtunnel.studies.serving.multiplex.unit import Llm, UnitRequest, run_unit
from windtunnel.studies.serving.placement.muxserve import SM_LIMIT, Mesh, pool_bytes
from windtunnel.studies.serving.placement.muxserve import Model as PlacedModel
from windtunnel.studies.serving.placement.several import (
    PREFILL_SHARE,
    Several,
    decode_slower,
    engine_on,
    mean_lengths,
    meshes,
    prefill_slower,
    requests_of,
)
from windtunnel.studies.serving.run import sources_of
from windtunnel.studies.serving.step_time.times import TICKS_PER_S

SHARING = ("shares", "turns", "apart")
KERNEL_BANDWIDTH = 0.85  # of a GPU's memory, as kernels reach it


@dataclass(frozen=True, slots=True)
class Shares:
    """What became of the requests of one model, or of all."""

    requests: int
    refused: int
    ttft_s: Distribution | None
    tpot_s: Distribution | None
    e2e_s: Distribution | None
    requests_per_s: float
    output_tokens_per_s: float
    preemptions: int
    slo_attainment: float | None
    cost: float | None = None

    def __post_init__(self) -> None:
        check_figures(self)


@dataclass(frozen=True, eq=False)
class Sharing(Answer):
    """All models together and each of them, by policy; policies that are not possible, and why."""

    policies: Mapping[str, tuple[Shares, Mapping[str, Shares], str]]
    impossible: Mapping[str, str]
    sources: tuple[str, ...]
    assumed: tuple[str, ...]

    @property
    def warnings(self) -> list[str]:  # type: ignore[override]
        """What is assumed, what is not possible, and what is refused."""
        impossible = [f"{name}: not possible: {why}" for name, why in self.impossible.items()]
        refused = ((name, policy[0].refused) for name, policy in self.policies.items())
        impossible = [*self.assumed, *impossible]
        return impossible + [f"{name}: {count} requests need more than the cache" for name, count in refused if count]

    @property
    def provenance(self) -> dict[str, object]:
        """What prices steps."""
        return {"step times": list(self.sources)}

    def to_dict(self) -> dict[str, Plain]:
        """Ready for JSON."""
        return {
            "policies": {
                policy: {
                    **plain_fields(total),
                    "placement": words,
                    "models": {name: plain_fields(shares) for name, shares in each.items()},
                }
                for policy, (total, each, words) in self.policies.items()
            }
        }


def share(several: Several, policies: Sequence[str], price: float | None) -> Sharing:
    """The same requests under each. Raises SpecError where none of the policies has room for the models."""
    played: dict[str, tuple[Shares, Mapping[str, Shares], str]] = {}
    impossible: dict[str, str] = {}
    sources: dict[str, None] = {}
    for policy in policies:
        try:
            mux_placement, placed = meshes(several, 0.0 if policy == "apart" else SM_LIMIT)
        except SpecError as error:
            impossible[policy] = str(error)
            continue
        llms: dict[int, Llm] = {}
        refused = [0] * len(placed)
        for mesh in mux_placement.meshes:
            llms |= _served(several, policy, mesh, placed, refused, sources)
        total = _figures(several, list(llms.values()), sum(refused), price)
        each = {several.models[m].name: _figures(several, [llms[m]], refused[m]) for m in sorted(llms)}
        played[policy] = (total, each, _words(several, mux_placement.meshes, policy == "shares"))
    if not played:
        raise SpecError("model", [model.name for model in several.models], "; ".join(impossible.values()))
    return Sharing(played, impossible, tuple(sources), several.workload.notes)


@dataclass(eq=False)
class _Times:
    """Of a whole GPU, or several, and longer with a share of it."""

    engine: Engine
    prompt: int  # mean tokens
    _known: dict[tuple[int, int], float] = field(default_factory=dict)

    def prefill_s(self, sm_percent: float, tokens: float) -> float:
        whole = int(tokens)
        count = max(1, round(whole / self.prompt))
        if (0, whole) not in self._known:
            chunks = [(whole // count + (place < whole % count), 0) for place in range(count)]
            self._known[0, whole] = self.engine.times.mixed(0, 0, chunks, count) / TICKS_PER_S
        return self._known[0, whole] * prefill_slower(sm_percent)

    def decode_s(self, sm_percent: float, batch: int, context: float) -> float:
        return (
            self.engine.times.decode(batch).at(round(batch * context)) / TICKS_PER_S * decode_slower(sm_percent, batch)
        )


def _served(
    several: Several, policy: str, mesh: Mesh, placed: list[PlacedModel], refused: list[int], sources: dict[str, None]
) -> dict[int, Llm]:
    """The models of one mesh, their requests served."""
    here = [placed[m] for m, _ in mesh.models]
    if not here:
        return {}
    gpu = several.cluster.gpu
    pool = pool_bytes(here, mesh.gpus, float(gpu.usable_memory_bytes)) / mesh.gpus
    prompt, output = mean_lengths(several.workload)
    wants = sum(model.rate_per_s * model.kv_token_bytes for model in here)
    llms: dict[int, Llm] = {}
    for m, decode_share in mesh.models:
        model, engine = placed[m], engine_on(several, several.models[m], mesh.gpus)
        assert engine is not None, "it was placed there"
        sources |= dict.fromkeys(sources_of(engine))
        token = model.kv_token_bytes / mesh.gpus
        requests = _requests(several, m, min(engine.longest, int(pool / token)), refused)
        quota = pool * model.rate_per_s * model.kv_token_bytes / wants / token / (prompt + output)
        shared = policy == "shares"
        llms[m] = Llm(
            model.name,
            _Times(engine, prompt),
            requests,
            PREFILL_SHARE if shared else 100.0,
            decode_share if shared else 100.0,
            0.0,  # the host's time is in the steps
            0.0,
            engine.rules.max_num_seqs if policy == "turns" else max(1.0, quota),
            engine.memory.weights,
            token,
            KERNEL_BANDWIDTH * gpu.memory_bandwidth_bytes_per_s,
        )
    run_unit(list(llms.values()), "fcfs" if policy == "turns" else "adbs", pool)
    return llms


def _requests(several: Several, model: int, longest: int, refused: list[int]) -> list[UnitRequest]:
    """Those of one model that a cache of `longest` tokens can hold."""
    load, requests = several.workload, []
    for index, (at_s, whose) in enumerate(requests_of(several)):
        if whose == model:
            prompt, output = int(load.input_tokens[index]), int(load.output_tokens[index])
            if prompt + output <= longest:
                requests.append(UnitRequest(at_s, prompt, output, index))
            else:
                refused[model] += 1
    return requests


def _figures(several: Several, llms: Sequence[Llm], refused: int, price: float | None = None) -> Shares:
    done = [request for llm in llms for request in llm.requests]
    assert all(request.last_s >= 0.0 for request in done), "every request ends"
    stamps = [(request.arrival_s, request.first_s, request.last_s, request.output) for request in done]
    arrival, first, last, outputs = np.array(stamps).reshape(-1, 4).T
    gaps = (last - first) / np.maximum(outputs - 1, 1)
    in_time = (first - arrival <= several.slo.get("ttft_s", np.inf)) & (gaps <= several.slo.get("tpot_s", np.inf))
    span = float(last.max()) if done else 1.0
    total = len(done) + refused
    return Shares(
        requests=total,
        refused=refused,
        ttft_s=distribution(first - arrival),
        tpot_s=distribution(gaps[outputs > 1]),
        e2e_s=distribution(last - arrival),
        requests_per_s=len(done) / span,
        output_tokens_per_s=float(outputs.sum()) / span,
        preemptions=sum(llm.preemptions for llm in llms),
        slo_attainment=float(in_time.sum()) / total if several.slo and total else None,
        cost=None if price is None else several.cluster.n_gpus * span / 3600.0 * price,
    )


def _words(several: Several, placed: Sequence[Mesh], shares: bool) -> str:
    """Which models are on how many GPUs, and their shares of SMs."""
    each = (
        (mesh.gpus, ", ".join(several.models[m].name + (f" {part:g} %" if shares else "") for m, part in mesh.models))
        for mesh in placed
    )
    return " | ".join(f"{gpus}: {models or 'idle'}" for gpus, models in each)
