"""The shadow iteration: a standby runs one iteration alone, collectives answered from what a rank recorded.

What happens for the first time (allocations, optimizer state, compiled code) then happens before it counts. Answers
must be real ones: zeros make NaN. Whatever is computed is thrown away. The file is that of `windtunnel run --tape`
(`emulate/tape/tape.py`); data-parallel ranks all have one role, so one tape serves every standby.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.real.emulate.tape.tape import Tape, TapeWriter, bytes_of

if TYPE_CHECKING:
    import torch


class Recorder:
    """Keeps the answers of one iteration's all-reduces; `close` puts the file in its place."""

    def __init__(self, path: Path, size: int) -> None:
        self._writer = TapeWriter(path, {"world_size": size, "role": "data-parallel rank"})
        self._number = 0

    def keep(self, pieces: Sequence[object]) -> None:
        """The pieces as they came out of the all-reduce."""
        for piece in pieces:
            self._writer.add(("allreduce", self._number), [bytes_of(piece)])
            self._number += 1

    def close(self) -> None:
        """The iteration is whole."""
        self._writer.close()


def fill_pieces(path: Path, pieces: Sequence[torch.Tensor]) -> None:
    """Fill the pieces with what the tape has in their order.

    Raises InputFileError for a damaged tape; ValueError where the iteration is not the one that was recorded.
    """
    import torch

    tape = Tape(path)
    try:
        for number, piece in enumerate(pieces):
            place = tape.places.get(("allreduce", number))
            if place is None:
                raise ValueError(f"the tape has {number} all-reduces and the iteration asks for more")
            ((entry, data),) = tape.data(place)
            if entry.shape != tuple(piece.shape):
                raise ValueError(f"all-reduce {number} has shape {tuple(piece.shape)}, on the tape {entry.shape}")
            piece.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8).view(piece.dtype).view(piece.shape))
    finally:
        tape.close()
