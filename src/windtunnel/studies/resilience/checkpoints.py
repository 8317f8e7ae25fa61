"""What a checkpoint costs: a blocking copy to the host, a write behind it, and reading it back.

    stall     overhead + state of one GPU / its host link                       MegaScale: "several seconds" at most
    persist   whole state / file system                                      hidden, but the interval cannot be shorter
    load      whole state / file system + state of one GPU / its NIC         one reader per shard, then broadcast to
              replicas

Source: MegaScale (NSDI 2024, section 4) for both stages and the single reader. State is 14 bytes a parameter under Adam
in mixed precision: bf16 weights, and in fp32 a master copy and two moments (Micikevicius et al. 2018).
"""

from __future__ import annotations

from dataclasses import dataclass

ADAM_BYTES_PER_PARAMETER = 14


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State of a job and the ways that it can take."""

    state_bytes: int  # of the whole job, each part once
    gpus_holding: int  # GPUs over which it is sharded: those of one replica, or all where the optimizer is sharded
    replicas: int
    to_host_bytes_per_s: float  # of one GPU
    nic_bytes_per_s: float  # of one GPU
    storage_bytes_per_s: float  # of the file system, all clients together
    overhead_s: float = 0.0  # of each save, beside the copy

    @property
    def shard_bytes(self) -> float:
        """What one GPU saves."""
        return self.state_bytes / self.gpus_holding

    @property
    def stall_s(self) -> float:
        """How long training waits for one checkpoint."""
        return self.overhead_s + self.shard_bytes / self.to_host_bytes_per_s

    @property
    def persist_s(self) -> float:
        """From the host to the file system."""
        return self.state_bytes / self.storage_bytes_per_s

    @property
    def least_interval_s(self) -> float:
        """Work between checkpoints when one is begun as soon as the last is written."""
        return max(self.persist_s, 1.0)

    def load_s(self) -> float:
        """Reading back: one replica reads and sends to the others."""
        spread = self.shard_bytes / self.nic_bytes_per_s if self.replicas > 1 else 0.0
        return self.persist_s + spread
