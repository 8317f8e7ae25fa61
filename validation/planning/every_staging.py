"""Every cut of layers into stages on submeshes: what the dynamic programme is held against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from windtunnel.studies.planning.alpa.stages import Stage


def every_staging(layers: int, devices: Sequence[int], total_devices: int) -> Iterator[tuple[Stage, ...]]:
    """All cuts on all submeshes, configuration 0: the oracle for small ones."""

    def behind(first: int, left: int) -> Iterator[tuple[Stage, ...]]:
        if first == layers:
            if left == 0:
                yield ()
            return
        for last in range(first, layers):
            for submesh, width in enumerate(devices):
                if width <= left:
                    for rest in behind(last + 1, left - width):
                        yield (Stage(first, last, submesh, 0), *rest)

    return behind(0, total_devices)
