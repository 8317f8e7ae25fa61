"""Programs made by hand: pipelines, sharded parameters, overlap on a side stream. Small, but with all that can meet."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from every_rank import whole_job

from windtunnel.studies.programs.communication import Communication
from windtunnel.studies.programs.job import CapturedJob
from windtunnel.studies.programs.program import MemoryEvent, Op, RankProgram, TensorSpec


def spec(*shape: int, dtype: str = "bfloat16", device: str = "device") -> TensorSpec:
    return TensorSpec(shape, dtype, device)


@dataclass
class Script:
    """Writes one rank's program op by op."""

    rank: int
    world_size: int
    ops: list[Op] = field(default_factory=list)
    memory: list[MemoryEvent] = field(default_factory=list)
    resident: list[MemoryEvent] = field(default_factory=list)
    phase: str = "forward"
    micro_batch: int = 0
    module: str = ""

    def add(self, op: Op) -> int:
        self.ops.append(op)
        return len(self.ops) - 1

    def mm(self, m: int, n: int, k: int, after: tuple[int, ...] = (), stream: int = 0, again: bool = False) -> int:
        return self.add(
            Op(
                "aten.mm", "compute", (spec(m, k), spec(k, n)), (spec(m, n),), 2.0 * m * n * k,
                2.0 * (m * k + k * n), 2.0 * m * n, after, stream, self.module, self.phase, self.micro_batch, again,
            )
        )  # fmt: skip

    def move(self, name: str, elements: int, after: tuple[int, ...] = (), stream: int = 0) -> int:
        shape = (spec(elements),)
        return self.add(
            Op(
                f"aten.{name}", "compute", shape, shape, 0.0, 2.0 * elements, 2.0 * elements, after, stream,
                self.module, self.phase, self.micro_batch,
            )
        )  # fmt: skip

    def call(
        self,
        kind: str,
        name: str,
        members: tuple[int, ...],
        size: int,
        after: tuple[int, ...] = (),
        *,
        peer: int = -1,
        tag: int = 0,
        stream: int = 0,
        is_async: bool = True,
        is_control: bool = False,
    ) -> int:
        communication = Communication(
            kind, name, members, members.index(self.rank), size, "bfloat16", peer, tag, "sum",
            is_async=is_async, is_control=is_control,
        )  # fmt: skip
        return self.add(
            Op(
                f"c10d.{kind}_", "communication", (), (), after=after, stream=stream, module=self.module,
                phase=self.phase, micro_batch=self.micro_batch, communication=communication,
            )
        )  # fmt: skip

    def wait(self, *ops: int, stream: int = 0) -> int:
        return self.add(Op("wait", "wait", after=ops, stream=stream, phase=self.phase))

    def sync(self, *ops: int) -> int:
        return self.add(Op("sync", "sync", after=ops, phase=self.phase))

    def program(self) -> RankProgram:
        return RankProgram(
            self.rank, self.world_size, tuple(self.ops), tuple(self.memory), tuple(self.resident),
            facts={"script": "train.py"},
        )  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """Ranks in rank order: pipeline slowest, then data, tensor fastest."""

    pp: int = 2
    dp: int = 2
    tp: int = 2

    @property
    def world(self) -> int:
        return self.pp * self.dp * self.tp

    def groups(self, rank: int) -> dict[str, tuple[int, ...]]:
        ranks = np.arange(self.world).reshape(self.pp, self.dp, self.tp)
        p, d, t = (int(place[0]) for place in np.nonzero(ranks == rank))
        return {
            "tp": tuple(ranks[p, d].tolist()),
            "dp": tuple(ranks[p, :, t].tolist()),
            "pp": tuple(ranks[:, d, t].tolist()),
            "world": tuple(range(self.world)),
        }


def torch_name(kind: str, members: tuple[int, ...]) -> str:
    return f"{kind}_{members[0]}_{len(members)}"


def names(grid: Grid) -> dict[str, str]:
    """torch's name of every group -> its family."""
    return {torch_name(kind, group): kind for rank in range(grid.world) for kind, group in grid.groups(rank).items()}


def pipeline(
    rank: int, grid: Grid, *, layers: int = 2, micro_batches: int = 3, rows: int = 512, width: int = 1024
) -> RankProgram:
    """GPipe over stages of Megatron-like layers, parameters gathered one layer ahead and gradients reduced behind."""
    script, groups = Script(rank, grid.world), grid.groups(rank)
    stage = groups["pp"].index(rank)
    call = lambda kind, name, size, after=(), **more: script.call(  # noqa: E731
        kind, torch_name(name, groups[name]), groups[name], size, after, **more
    )
    parameter, activation = 2 * width * width // grid.tp, 2 * rows * width
    for storage in range(layers):
        script.resident.append(MemoryEvent(-1, storage, parameter, "parameter"))
    gathered: dict[int, int] = {}

    def gather(layer: int) -> None:
        if grid.dp > 1 and 0 <= layer < layers:
            gathered[layer] = call("all_gather", "dp", parameter, stream=7)

    storage = layers
    kept: dict[tuple[int, int], int] = {}
    for mb in range(micro_batches):
        script.micro_batch, script.phase = mb, "forward"
        before: tuple[int, ...] = ()
        if stage > 0:
            before = (call("recv", "pp", activation, peer=groups["pp"][stage - 1]),)
            script.wait(*before)
        gather(0)
        for layer in range(layers):
            script.module = f"layers.{stage * layers + layer}"
            gather(layer + 1)
            if layer in gathered:
                script.wait(gathered[layer])
            x = script.mm(rows, width, width // grid.tp, before)
            if grid.tp > 1:
                reduced = call("all_reduce", "tp", activation, (x,))
                script.wait(reduced)
            x = script.move("gelu", rows * width, (x,))
            script.memory.append(MemoryEvent(x, storage, activation, "activation"))
            kept[mb, layer] = storage
            storage += 1
            before = (x,)
        if stage < grid.pp - 1:
            call("send", "pp", activation, before, peer=groups["pp"][stage + 1])
    for mb in range(micro_batches):
        script.micro_batch, script.phase = mb, "backward"
        before = ()
        if stage < grid.pp - 1:
            before = (call("recv", "pp", activation, peer=groups["pp"][stage + 1], tag=1),)
            script.wait(*before)
        for layer in reversed(range(layers)):
            script.module = f"layers.{stage * layers + layer}"
            x = script.mm(rows, width // grid.tp, width, before)
            if grid.tp > 1:
                script.wait(call("all_reduce", "tp", activation, (x,)))
            script.mm(width, width // grid.tp, rows, (x,))
            if grid.dp > 1 and mb == micro_batches - 1:
                call("reduce_scatter", "dp", parameter, (x,), stream=8)
            script.memory.append(MemoryEvent(x, kept[mb, layer], -activation, "activation"))
            before = (x,)
        if stage > 0:
            call("send", "pp", activation, before, peer=groups["pp"][stage - 1], tag=1)
    script.phase, script.module, script.micro_batch = "optimizer", "", 0
    norm = call("all_reduce", "world", 4)
    script.wait(norm)
    script.sync(norm)
    script.move("_fused_adamw_", 3 * parameter)
    return script.program()


def job_of(grid: Grid, **sizes: int) -> CapturedJob:
    """Every rank captured."""
    return whole_job([pipeline(rank, grid, **sizes) for rank in range(grid.world)], names(grid))


def folded_job(grid: Grid, **sizes: int) -> CapturedJob:
    """One rank of each stage captured, the others alike."""
    per_stage = grid.dp * grid.tp
    captured = [stage * per_stage for stage in range(grid.pp)]
    whole = {name: [] for name in ("tp", "dp", "pp", "world")}
    for rank in range(grid.world):
        for kind, group in grid.groups(rank).items():
            if group not in whole[kind]:
                whole[kind].append(group)
    from windtunnel.studies.programs.job import Family

    families = tuple(
        Family(kind, tuple(groups), tuple(torch_name(kind, group) for group in groups))
        for kind, groups in whole.items()
    )
    return CapturedJob(
        world_size=grid.world,
        programs={rank: pipeline(rank, grid, **sizes) for rank in captured},
        runs=np.repeat(np.array(captured, np.int32), per_stage),
        families=families,
        source="captured",
        content_hash="0123456789ab",
    )
