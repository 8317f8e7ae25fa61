"""Flat buffers: tensors that a group gathers or reduces evenly, and the parameters that are views of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.real.capture.recorder.rows import extent_of
from windtunnel.studies.programs.rank_classes.flat_buffers import FlatBuffer

if TYPE_CHECKING:
    import torch

    from windtunnel.real.capture.recorder.storages import Ledger
    from windtunnel.studies.programs.communication import Communication

CUT_EVENLY = ("all_gather", "reduce_scatter")


class FlatBuffers:
    """Of one recorder."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._views: dict[int, set[tuple[int, int, int]]] = {}  # by storage: first byte, the one behind, dimensions
        self._wholes: set[tuple[int, int, int, tuple[int, ...]]] = set()  # storage, first byte, bytes, members

    def saw_module(self, module: torch.nn.Module) -> None:
        """A module has run on its own parameters."""
        for parameter in module._parameters.values():
            extent = extent_of(parameter) if parameter is not None else None
            if extent is None:
                continue
            number = self._ledger.number_if_known(parameter)
            if number is not None and extent[1] - extent[0] < self._ledger.live.get(number, 0):
                self._views.setdefault(number, set()).add((*extent, parameter.dim()))

    def saw_exchange(self, call: Communication, tensors: list[torch.Tensor]) -> None:
        """A group gathers one tensor, or reduces one to parts."""
        if call.kind not in CUT_EVENLY or len(call.members) < 2:
            return
        for tensor in tensors:
            extent = extent_of(tensor)
            if extent is not None and extent[1] - extent[0] == call.bytes:
                self._wholes.add((self._ledger.number(tensor), extent[0], call.bytes, call.members))

    def all(self) -> list[FlatBuffer]:
        """Those with parameters in them, each once."""
        buffers = []
        for number, start, size, members in self._wholes:
            inside = [
                (low - start, high - start, dimensions)
                for low, high, dimensions in self._views.get(number, ())
                if start <= low and high <= start + size
            ]
            if inside:
                buffers.append(FlatBuffer(members, size // len(members), tuple(sorted(inside))))
        return sorted(set(buffers))
