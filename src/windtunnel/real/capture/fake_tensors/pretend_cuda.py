"""Pretended GPUs on a build of PyTorch that has none: `torch.cuda` as a script sees it, for tensors that hold no data.

Streams and events write down the order that a script puts its work in (`stream_order`). Memory statistics are those
of the recorder's ledger. CUDA graphs are refused: what they replay would be executed unseen. Everything replaced is
put back on exit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from windtunnel.errors import UserError
from windtunnel.real.capture.fake_tensors.control_flow import is_script_file
from windtunnel.real.capture.fake_tensors.pretended_gpu import PretendedCuda, PretendedGpu
from windtunnel.real.capture.recorder.stream_order import Moment
from windtunnel.real.capture.torch_private import cuda as compat

if TYPE_CHECKING:
    import torch


class CudaGraphError(UserError):
    """The script captures a CUDA graph."""


_active: list[PretendedCuda] = []  # torch.cuda is one for the process, and so is what stands in for it


def pretended() -> PretendedCuda | None:
    """What `torch.cuda` is at the moment; None where it is itself."""
    return _active[-1] if _active else None


@contextmanager
def pretend_cuda(gpu: PretendedGpu | None = None, *, count: int = 8, device: int = 0) -> Iterator[PretendedCuda]:
    """`count` GPUs, of which `device` is the current one, until exit."""
    state = PretendedCuda(gpu or PretendedGpu(), count, device)
    with ExitStack() as stack:
        compat.replace_torch_cuda(stack, state, make_classes(state), refuse_graphs)
        _active.append(state)
        stack.callback(_active.remove, state)
        yield state


def refuse_graphs(*_: object, **__: object) -> object:
    """In place of everything that begins a CUDA graph."""
    raise CudaGraphError(
        "the script captures a CUDA graph; its replay would be executed unseen: turn CUDA graphs off for the capture "
        "(what they save of launch overhead is set when predicting)"
    )


def make_classes(state: PretendedCuda) -> tuple[type, type, type]:
    """(Stream, Event, context of a stream) for `state`: classes, because scripts test for them."""
    import torch

    class Stream:
        def __init__(self, device: torch.device = None, priority: int = 0, **kwargs: int) -> None:
            number = kwargs.get("stream_id")
            own = is_script_file(sys._getframe(1).f_code.co_filename)
            self.stream_id = state.next_stream(made_by_script=own) if number is None else int(number)
            self.cuda_stream = self.stream_id
            self.priority = priority
            index = device if device is None or isinstance(device, int) else torch.device(device).index
            self.device_index = state.device if index is None else index
            self.device = torch.device("cuda", self.device_index)
            self.device_type = 1

        def wait_stream(self, stream: torch.cuda.Stream) -> None:
            state.wait(self.stream_id, state.moment(stream.stream_id))

        def wait_event(self, event: torch.cuda.Event) -> None:
            state.wait(self.stream_id, event.moment)

        def record_event(self, event: torch.cuda.Event = None) -> object:
            event = Event() if event is None else event
            event.record(self)
            return event

        def synchronize(self) -> None:
            state.synchronise("stream", state.moment(self.stream_id))

        def query(self) -> bool:
            state.synchronise("", state.moment(self.stream_id))
            return True

        def is_capturing(self) -> bool:
            return False

        def __enter__(self) -> object:
            self._before = state.use_stream(self.stream_id)
            return self

        def __exit__(self, *_: object) -> None:
            state.use_stream(self._before)

        def __hash__(self) -> int:
            return hash(self.stream_id)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Stream) and other.stream_id == self.stream_id

        def __repr__(self) -> str:
            return f"<pretended torch.cuda.Stream {self.stream_id} on {self.device}>"

    class Event:
        def __init__(self, *_: object, **__: object) -> None:
            self.moment = Moment()
            self.device = torch.device("cuda", state.device)
            self.event_id = self.cuda_event = id(self)

        def record(self, stream: torch.cuda.Stream = None) -> object:
            self.moment = state.moment(state.stream if stream is None else stream.stream_id)
            return self

        def wait(self, stream: torch.cuda.Stream = None) -> None:
            state.wait(state.stream if stream is None else stream.stream_id, self.moment)

        def query(self) -> bool:
            state.synchronise("", self.moment)
            return True

        def synchronize(self) -> None:
            state.synchronise("event", self.moment)

        def elapsed_time(self, _end: object) -> float:
            return 1.0

    class OnStream:
        """`with torch.cuda.stream(s)`; None leaves the stream as it is."""

        def __init__(self, stream: torch.cuda.Stream) -> None:
            self.stream = stream

        def __enter__(self) -> None:
            self._before = state.use_stream(state.stream if self.stream is None else self.stream.stream_id)

        def __exit__(self, *_: object) -> None:
            state.use_stream(self._before)

    return Stream, Event, OnStream
