"""The distinct passes of a step: each is built and replayed once, and remembered from one question to the next."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from windtunnel.studies.training.answers import forget_answers
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.model_chunks import Piece, pieces_of
from windtunnel.studies.training.lowering.pass_builder import Segment
from windtunnel.studies.training.lowering.pass_lowering import Stretches, build_segment
from windtunnel.studies.training.lowering.step import FRAMES, LoweredStep
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import Kind, Schedule

PARTS = 1_000_000  # of a NIC, as shares are kept in whole numbers


def distinct_passes(
    pieces: tuple[Piece, ...], schedule: Schedule, pricer: Pricer
) -> tuple[tuple[Segment, ...], tuple[str, ...], NDArray[np.int32]]:
    """Each distinct pass once."""
    table = np.full((len(pieces), len(Kind)), -1, np.int32)
    numbers: dict[tuple[object, Kind], int] = {}
    stretches: Stretches = {}
    segments: list[Segment] = []
    names: list[str] = []
    for stage, piece in enumerate(pieces):
        for kind in schedule.kinds:
            key = (piece.key, kind)
            if key not in numbers:
                numbers[key] = len(segments)
                segments.append(_pass(piece, kind, pricer, stretches))
                names.append(kind.words)
            table[stage, kind] = numbers[key]
    return tuple(segments), tuple(names), table


_PIECES: OrderedDict[tuple[object, ...], tuple[object, tuple[Piece, ...]]] = OrderedDict()
PIECES_KEPT = 64


def known_pieces(layout: Layout) -> tuple[Piece, ...]:
    """The pieces of a layout, remembered: they do not depend on how many sequences a step has."""
    key = (id(layout.model), layout.plan.with_fields({"global_batch": 1}), layout.cluster)
    entry = _PIECES.get(key)
    if entry is None:
        entry = _PIECES[key] = (layout.model, pieces_of(layout))
        while len(_PIECES) > PIECES_KEPT:
            _PIECES.popitem(last=False)
    else:
        _PIECES.move_to_end(key)
    return entry[1]


_PASSES: OrderedDict[tuple[object, ...], tuple[object, Segment]] = OrderedDict()
PASSES_KEPT = 1024


def forget_passes() -> None:
    """Drop every remembered pass and step: for whoever changes constants in a running process."""
    forget_answers()
    FRAMES.clear()
    _PASSES.clear()
    _PIECES.clear()


def _pass(piece: Piece, kind: Kind, pricer: Pricer, stretches: Stretches | None = None) -> Segment:
    """A pass, remembered: it does not depend on how many replicas or micro-batches there are."""
    layout = pricer.layout
    # The model goes in by identity (and is kept alive): hashing every layer would cost more than the look-up saves.
    pace = (pricer.slow_compute, pricer.slow_links, pricer.document_length)
    key = (id(layout.model), pricer.pass_key, piece.key, kind, pace)
    entry = _PASSES.get(key)
    if entry is None:
        entry = _PASSES[key] = (layout.model, build_segment(pricer, piece.blocks, kind, stretches=stretches))
        while len(_PASSES) > PASSES_KEPT:
            _PASSES.popitem(last=False)
    else:
        _PASSES.move_to_end(key)
    return entry[1]


def pass_durations(step: LoweredStep, pieces: tuple[Piece, ...], pricer: Pricer) -> NDArray[np.int64]:
    """int64[segments]: how long each pass of a step takes at other prices."""
    return np.array([segment.duration_ns for segment in passes_at(step, pieces, pricer)], np.int64)


def passes_at(step: LoweredStep, pieces: tuple[Piece, ...], pricer: Pricer) -> tuple[Segment, ...]:
    """The passes of a step at other prices."""
    segments: dict[int, Segment] = {}
    for stage, kind in zip(*np.nonzero(step.segment_of >= 0), strict=True):
        number = int(step.segment_of[stage, kind])
        if number not in segments:
            segments[number] = _pass(pieces[stage], Kind(int(kind)), pricer)
    return tuple(segments[number] for number in range(len(step.segments)))


def nic_parts(segments: tuple[Segment, ...]) -> NDArray[np.int64]:
    """int64[segments]: share of a GPU's NIC that each pass takes, in parts of PARTS."""
    return np.array([round(PARTS * min(1.0, segment.nic_share)) for segment in segments], np.int64)
