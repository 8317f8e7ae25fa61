"""MuxServe's placement (ICML '24): meshes of GPUs, and which models share each.

    estimate  a mesh's models share its KV memory by rate x KV per token; batches grow by one for the model that is
              furthest from its rate, until all are satisfied or memory is full
              throughput_i = b_i / (answer x decode step_i + sum of all prefills);  satisfied: 1.1 x it > rate (+0.5 at
              most)
    share     of each model on each mesh size: the least SM share of decoding with which it is satisfied alone
    place     for every partition of the cluster into meshes of 1, 2, 4, 8 GPUs: models by rate x size, largest first,
              each to the mesh where total throughput gains most and memory and SM shares (120 %) fit; best total wins

Source: hao-ai-lab/MuxServe, muxsched. Times come as callables, in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from windtunnel.errors import SpecError

SIZES = (8, 4, 2, 1)
SHARES = (30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0)
SM_LIMIT = 120.0  # percent, sum of decode shares on a mesh
MEMORY_USED, RESERVED_BYTES = 0.98, 6e9  # share of memory; per model, beside weights


@dataclass(frozen=True, eq=False)
class Model:
    """One model to be placed. Times: (GPUs, SM percent, batch) -> s of a decode step; (GPUs, batch) -> s of prompts."""

    name: str
    rate_per_s: float
    weight_bytes: float
    kv_token_bytes: float
    prompt: float
    answer: float
    decode_s: Callable[[int, float, int], float]
    prefill_s: Callable[[int, int], float]
    sizes: tuple[int, ...] = SIZES  # of meshes on which it has a layout


@dataclass(frozen=True, slots=True)
class Mesh:
    """GPUs, and (model, decode share) on them."""

    gpus: int
    models: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class MuxPlacement:
    """The best found."""

    meshes: tuple[Mesh, ...]
    throughput_per_s: float
    partitions: int  # partitions
    runner_up: tuple[float, tuple[Mesh, ...]] | None  # requests/s, and its meshes


def pool_bytes(placed: Sequence[Model], gpus: int, gpu_bytes: float) -> float:
    """What the weights of these models leave of a mesh for the cache."""
    return MEMORY_USED * gpu_bytes * gpus - sum(model.weight_bytes + RESERVED_BYTES for model in placed)


def estimate(models: Sequence[Model], mesh: Mesh, gpu_bytes: float) -> list[float] | None:
    """Requests per second of each model on a mesh, at most its rate; None where weights leave no room."""
    placed = [models[m] for m, _ in mesh.models]
    memory = pool_bytes(placed, mesh.gpus, gpu_bytes)
    if memory <= 0.0:
        return None
    wants = [model.rate_per_s * model.kv_token_bytes for model in placed]
    most = [
        int(memory * want / sum(wants) / model.kv_token_bytes / (model.prompt + model.answer))
        for want, model in zip(wants, placed, strict=True)
    ]
    if min(most) < 1:
        return None
    batch = [1] * len(placed)

    def throughput() -> list[float]:
        prompts = sum(model.prefill_s(mesh.gpus, b) for model, b in zip(placed, batch, strict=True))
        return [
            b / (model.decode_s(mesh.gpus, share, b) * model.answer + prompts)
            for model, b, (_, share) in zip(placed, batch, mesh.models, strict=True)
        ]

    while True:
        now = throughput()
        lacking = [
            (got / model.rate_per_s, place)
            for place, (model, got) in enumerate(zip(placed, now, strict=True))
            if got + min(0.5, 0.1 * got) <= model.rate_per_s and batch[place] < most[place]
        ]
        if not lacking:
            return [min(got, model.rate_per_s) for model, got in zip(placed, now, strict=True)]
        batch[min(lacking)[1]] += max(1, batch[min(lacking)[1]] // 8)  # by one, faster where it is large
        batch[min(lacking)[1]] = min(batch[min(lacking)[1]], most[min(lacking)[1]])


def partitions(gpus: int, per_node: int = 8) -> Iterator[tuple[int, ...]]:
    """Ways to cut a cluster into meshes of 8, 4, 2, 1 inside nodes, largest first, alike ones once."""
    sizes = [size for size in SIZES if size <= per_node]

    def cut(left: int, place: int) -> Iterator[tuple[int, ...]]:
        if left == 0:
            yield ()
            return
        for at in range(place, len(sizes)):
            if sizes[at] <= left:
                for rest in cut(left - sizes[at], at):
                    yield (sizes[at], *rest)

    yield from cut(gpus, 0)


def place_muxserve(
    models: Sequence[Model], gpus: int, gpu_bytes: float, per_node: int = 8, sm_limit: float = SM_LIMIT
) -> MuxPlacement:
    """The placement with the most total throughput. Raises SpecError where some model fits in no partition.

    `sm_limit`: percent of the SMs that a mesh gives out; 0: one model on each.
    """

    @cache
    def estimated(mesh: Mesh) -> float | None:
        throughputs = estimate(models, mesh, gpu_bytes)
        return None if throughputs is None else sum(throughputs)

    @cache
    def share_of(model: int, size: int) -> float:
        """The least decode share with which a model is satisfied alone; all of it where none is enough."""
        for share in SHARES:
            got = estimated(Mesh(size, ((model, share),)))
            if got is not None and got + min(0.5, 0.1 * got) > models[model].rate_per_s:
                return share
        return SHARES[-1]

    order = sorted(range(len(models)), key=lambda m: (-models[m].rate_per_s * models[m].weight_bytes, m))
    best: tuple[float, tuple[Mesh, ...]] | None = None
    second: tuple[float, tuple[Mesh, ...]] | None = None
    attempts = 0
    for sizes in partitions(gpus, per_node):
        attempts += 1
        meshes = [Mesh(size) for size in sizes]
        total = 0.0
        for model in order:
            options: dict[Mesh, tuple[float, int, Mesh]] = {}
            for place, mesh in enumerate(meshes):
                if mesh in options or mesh.gpus not in models[model].sizes:
                    continue
                share = share_of(model, mesh.gpus)
                if mesh.models and sum(s for _, s in mesh.models) + share > sm_limit:
                    continue
                changed = Mesh(mesh.gpus, tuple(sorted((*mesh.models, (model, share)))))
                got = estimated(changed)
                if got is not None:
                    before = (estimated(mesh) or 0.0) if mesh.models else 0.0
                    options[mesh] = (got - before, place, changed)
            if not options:
                break
            gain, place, changed = max(options.values(), key=lambda option: (option[0], -option[1]))
            meshes[place] = changed
            total += gain
        else:
            if best is None or total > best[0]:
                second = best
                best = (total, tuple(meshes))
            elif second is None or total > second[0]:
                second = (total, tuple(meshes))
    if best is None:
        raise SpecError(
            "models", [model.name for model in models], f"do not fit on {gpus} GPUs; give more, or fewer models"
        )
    return MuxPlacement(best[1], best[0], attempts, second)
