"""The few constants of techniques; `constants.yaml` has each with its source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from windtunnel.input_file import own_yaml


@dataclass(frozen=True, slots=True)
class Constants:
    """As in the file."""

    pcie_efficiency: float
    host_bytes_per_s_per_thread: float
    host_threads_per_gpu: float
    eager_adam_bytes: float
    fused_adam_bytes: float
    reserved_over_allocated: float
    window_headroom: float
    nvme_bytes_per_s: float
    select_passes: float
    cut_launch_s: float


@lru_cache(maxsize=1)
def constants() -> Constants:
    """The file's numbers."""
    text = files("windtunnel.techniques").joinpath("constants.yaml").read_text(encoding="utf-8")
    numbers: dict[str, float | str] = own_yaml(text)
    # YAML reads 1.5e9, without a sign in the exponent, as a word.
    return Constants(**{name: float(value) for name, value in numbers.items()})
