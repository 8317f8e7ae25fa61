"""One layer of a pass, before it is priced."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.physics.model.operations import Operation


@dataclass(frozen=True, slots=True)
class Block:
    """Ops of one layer (or of embedding or head), with the parameters that sharded data parallelism gathers for it."""

    operations: tuple[Operation, ...]
    dense_parameters: float = 0.0  # on this rank, before sharding over data-parallel ranks
    expert_parameters: float = 0.0
    recompute: bool = False  # in full
    offload: bool = False
    input_bytes: float = 0.0  # what enters it: all that is kept of it where it is recomputed
    adapters: float | None = None  # parameters of its adapters, where all others are frozen
    tower: bool = False  # of an encoder of images, in front of the embedding
    forward_only: bool = False  # nothing in it and nothing before it learns

    @property
    def offloaded_bytes(self) -> float:
        """What goes to the host behind its forward pass and comes back before its backward one."""
        if not self.offload:
            return 0.0
        return self.input_bytes if self.recompute else sum(op.saved_bytes for op in self.operations)

    @property
    def learning(self) -> tuple[float, float]:
        """Dense and expert parameters that learn."""
        if self.adapters is not None:
            return self.adapters, 0.0
        return (0.0, 0.0) if self.forward_only else (self.dense_parameters, self.expert_parameters)

    @property
    def frozen(self) -> tuple[float, float]:
        """Dense and expert parameters that do not."""
        whole = self.dense_parameters, self.expert_parameters
        return whole if self.forward_only or self.adapters is not None else (0.0, 0.0)

    @property
    def norms(self) -> int:
        """How many norms it has."""
        return sum(op.part == "norms" for op in self.operations)

    @property
    def is_end(self) -> bool:
        """Whether it is the embedding or the head."""
        return self.operations[-1].name in ("embedding", "loss")
