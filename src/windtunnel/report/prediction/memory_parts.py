"""What a GPU's memory is made of, in parts that sum exactly to what `nvidia-smi` would show."""

from __future__ import annotations

from windtunnel.report.prediction.categories import CONTEXT, UNUSED, Category, memory_categories
from windtunnel.result import StageMemory


def memory_parts(stage: StageMemory) -> list[tuple[Category, int]]:
    """Parts at the peak, in reading order: the allocated categories, what the allocator caches, and what is outside it.

    The allocated and the reserved peak may fall at different moments; the cached part is their difference.
    """
    parts = {
        **stage.categories,
        UNUSED: stage.peak_reserved_bytes - stage.peak_allocated_bytes,
        CONTEXT: stage.device_bytes - stage.peak_reserved_bytes,
    }
    return [(category, parts[key]) for key, category in memory_categories(parts).items()]
