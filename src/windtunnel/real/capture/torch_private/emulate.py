"""The private names of PyTorch that `windtunnel run` needs, each with why. Tried on 2.13."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from windtunnel.real.capture.replacements import Replacements

if TYPE_CHECKING:
    import torch.distributed as dist


def checkpoints_of_one_rank(replacements: Replacements, report: Callable[[str], None]) -> None:
    """`torch.distributed.checkpoint` saves and loads what the real rank holds, and nobody else.

    Its planners gather a plan from every rank, which would be this rank's n times: duplicates are given to whichever
    rank has least to write, and the whole would not add up to the tensors. So the planning goes on without peers
    (`_DistWrapper` with `use_dist` off is what `no_dist=True` gives), and that parts are missing is no error.
    """
    from torch.distributed.checkpoint import default_planner, utils

    wrapper = utils._DistWrapper
    init = wrapper.__init__
    reports: list[bool] = []

    @functools.wraps(init)
    def init_alone(self: object, group: dist.ProcessGroup | None, use_dist: bool, coordinator_rank: int) -> None:
        if use_dist and not reports:
            reports.append(True)
            report("checkpoints hold the real rank's part only: they resume here, not on a cluster")
        init(self, group, False, coordinator_rank)

    def partial_is_fine(*_: object, **__: object) -> list[str]:
        return []

    replacements.set(wrapper, "__init__", init_alone)
    replacements.set(default_planner, "_validate_global_plan", partial_is_fine)


def backend_of(group: dist.ProcessGroup, device: str) -> object:
    """The real backend that a group has for a device: `_get_backend`. Its methods let Python's lock go, ops do not."""
    import torch

    return group._get_backend(torch.device(device))


def compiled_kernel(source: str, name: str) -> Callable[..., object]:
    """A CUDA kernel from its source, by NVRTC: nothing public launches one on a stream without a C++ extension."""
    import torch

    kernel: Callable[..., object] = torch.cuda._compile_kernel(source, name)
    return kernel


def sleep_on_stream(cycles: int) -> None:
    """Spin in the current CUDA stream: what PyTorch's own tests hold streams with; nothing public does."""
    import torch

    torch.cuda._sleep(cycles)
