"""What can be said about a working window of layers (`--technique offload:window=15,host_threads=12`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from windtunnel.studies.techniques import constants
from windtunnel.studies.techniques.parameters import Parameters


@dataclass(frozen=True, slots=True)
class OffloadPlan(Parameters):
    """The plan that pricing and the real twin share."""

    window: int | None = field(
        default=None, metadata={"help": "layers on the device at a time; auto: by formula", "least": 1}
    )
    device_memory: int | None = field(
        default=None, metadata={"help": "budget of device memory (the GPU's)", "unit": "bytes", "least": 1}
    )
    host_threads: int = field(
        default=constants.HOST_THREADS_PER_GPU,
        metadata={"help": "hardware threads of the host that update one GPU's layers", "least": 1},
    )
    updaters: int = field(
        default=1, metadata={"help": "layers that are updated at once; they share the threads", "least": 1}
    )
    optimizer: str = field(
        default="eager", metadata={"help": "kernels of the host's optimizer", "one_of": ("eager", "fused")}
    )
    host_memory: int | None = field(
        default=None,
        metadata={"help": "host memory for one GPU's layers (the node's / its GPUs)", "unit": "bytes", "least": 1},
    )
    nvme: bool = field(default=False, metadata={"help": "what host memory does not hold lies on an NVMe drive"})
