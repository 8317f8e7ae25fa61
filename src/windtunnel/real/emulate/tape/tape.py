"""What real peers said, kept in a file: the results of one rank's communications in a real run, to be given again.

    WTTAPE1\\n
    {"rank": 0, "world_size": 2, ...}\\n                            facts
    {"key": [...], "tensors": [["float32", [4, 8], 128], ...]}\\n   one for each communication, in order of completion,
    the tensors' bytes, one after the other                         followed by its data

A communication is known by its members, kind, peer, tag and the tensors that it fills, and by its number among those
that share these; torch's names of groups do not matter, nor do the messages that carry pickled objects. Tensors are
kept as they lie in memory, so what is replayed is what was received, bit by bit, and a deterministic script repeats its
losses exactly.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from windtunnel.errors import InputFileError
from windtunnel.studies.programs.communication import Communication

if TYPE_CHECKING:
    import torch

    from windtunnel.real.capture.virtual_world.peer_data import Exchange

MAGIC = b"WTTAPE1\n"
Key = tuple[object, ...]


class TapeTensor(NamedTuple):
    """One tensor on the tape."""

    dtype: str  # torch's name
    shape: tuple[int, ...]
    bytes: int


class Place(NamedTuple):
    """Where a communication's tensors lie in the file."""

    offset: int
    tensors: tuple[TapeTensor, ...]


@dataclass
class Numbering:
    """Numbers communications that are otherwise the same, in the order in which they are issued."""

    seen: dict[Key, int] = field(default_factory=dict)

    def key(self, call: Communication, outputs: Sequence[torch.Tensor]) -> Key:
        """The key of this very call; the next that is like it has the next number."""
        members = zlib.crc32(repr(call.members).encode())
        filled = " ".join(f"{_dtype(tensor)}{list(tensor.shape)}" for tensor in outputs)
        same = (call.kind, len(call.members), members, call.peer, call.tag, filled)
        number = self.seen[same] = self.seen.get(same, -1) + 1
        return (*same, number)


class TapeWriter:
    """Writes a tape beside its final name; `close` puts it there."""

    def __init__(self, path: Path, facts: Mapping[str, object]) -> None:
        self.path, self._partial = path, path.with_name(f".{path.name}.partial")
        try:
            self._file: BinaryIO | None = self._partial.open("wb")
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputFileError(path, f"cannot be written ({reason})", "give another --tape record FILE") from None
        self._file.write(MAGIC + json.dumps(dict(facts), sort_keys=True).encode() + b"\n")
        self.communications = self.bytes = 0

    def add(self, key: Key, tensors: Sequence[tuple[str, tuple[int, ...], bytes]]) -> None:
        """One communication's results: dtype, shape and data of each tensor."""
        assert self._file is not None
        head = {"key": list(key), "tensors": [[dtype, list(shape), len(data)] for dtype, shape, data in tensors]}
        self._file.write(json.dumps(head, separators=(",", ":")).encode() + b"\n")
        for _, _, data in tensors:
            self._file.write(data)
            self.bytes += len(data)
        self.communications += 1

    def close(self) -> None:
        """The tape is whole."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._partial.replace(self.path)

    def discard(self) -> None:
        """The run did not end as it should: no tape."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._partial.unlink(missing_ok=True)


class Tape:
    """A tape that is read."""

    def __init__(self, path: Path) -> None:
        """Index the file. Raises InputFileError when it is no tape, or is cut off."""
        self.path = path
        self.places: dict[Key, Place] = {}
        try:
            self._file = path.open("rb")
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputFileError(path, f"cannot be read ({reason})", "record one with --tape record") from None
        end = path.stat().st_size
        if self._file.readline() != MAGIC:
            raise InputFileError(path, "is no tape", "record one with --tape record")
        try:
            self.facts: dict[str, object] = json.loads(self._file.readline())
            while line := self._file.readline():
                head = json.loads(line)
                tensors = tuple(TapeTensor(dtype, tuple(shape), size) for dtype, shape, size in head["tensors"])
                at = self._file.tell()
                after = at + sum(tensor.bytes for tensor in tensors)
                if after > end:
                    raise ValueError("cut off")
                self.places[tuple(head["key"])] = Place(at, tensors)
                self._file.seek(after)
        except (ValueError, KeyError, TypeError) as error:
            raise InputFileError(path, f"is damaged near byte {self._file.tell()} ({error})", "record again") from None

    def data(self, place: Place) -> list[tuple[TapeTensor, bytes]]:
        """The tensors of one communication."""
        self._file.seek(place.offset)
        return [(tensor, self._file.read(tensor.bytes)) for tensor in place.tensors]

    def close(self) -> None:
        """The file is not needed any more."""
        self._file.close()


def player(tape: Tape, behind: Callable[[str], None]) -> Callable[[Exchange], bool]:
    """Fills an exchange from the tape; `behind(text)` is told of the first communication that it does not have."""
    numbering = Numbering()
    reports: list[bool] = []

    def play(exchange: Exchange) -> bool:
        if exchange.call.kind in ("send", "barrier"):
            return True
        place = tape.places.get(numbering.key(exchange.call, exchange.outputs))
        if place is None:
            if not reports:
                reports.append(True)
                behind(_missing(tape, exchange))
            return False
        for (_, data), output in zip(tape.data(place), exchange.outputs, strict=True):
            _fill(output, data)
        return True

    return play


def _fill(output: torch.Tensor, data: bytes) -> None:
    import torch

    if data:
        output.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8).view(output.dtype).view(output.shape))


def bytes_of(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], bytes]:
    """dtype, shape and data of a tensor, as the tape keeps them."""
    import torch

    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    data = bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""
    return _dtype(tensor), tuple(tensor.shape), data


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _missing(tape: Tape, exchange: Exchange) -> str:
    call = exchange.call
    toward = f" with rank {call.peer}" if call.peer >= 0 else ""
    filled = ", ".join(f"{_dtype(tensor)}{list(tensor.shape)}" for tensor in exchange.outputs[:3])
    return (
        f"{tape.path} has no further {call.kind}{toward} among {len(call.members)} ranks into {filled} (number "
        f"{call.sequence}); record a longer run, of the same script with the same arguments"
    )
