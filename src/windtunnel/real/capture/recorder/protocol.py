"""What the parts of a recorder need of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from windtunnel.real.capture.fake_tensors.data_dependent import Reader, Records
from windtunnel.real.capture.fake_tensors.pretended_gpu import PretendedCuda
from windtunnel.real.capture.recorder.call_journal import CallJournal
from windtunnel.real.capture.recorder.flat_buffers import FlatBuffers
from windtunnel.real.capture.recorder.modules import Whereabouts
from windtunnel.real.capture.recorder.op_table import OpFacts
from windtunnel.real.capture.recorder.replicas import Replicas

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from windtunnel.real.operator_call import Arguments, Keywords


class Recording(Records, Protocol):
    """A recorder as `dispatch` and `exchanges` see it."""

    reader: Reader
    journal: CallJournal
    where: Whereabouts
    buffers: FlatBuffers
    replicas: Replicas
    world: Any
    cuda: PretendedCuda | None

    def read(self, func: OpOverload, facts: OpFacts, args: Arguments, kwargs: Keywords, inputs: list[object]) -> object:
        """An op that gives Python a value: what it is told; the host waits for the device."""
