"""Reads the JSON that PyTorch's profiler (Kineto) writes, plain or gzipped, also where it was cut off.

A file that ends in the middle, because the job died or the disk was full, still holds every event before that point:
they are read one by one until the first that is incomplete.
"""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path

from windtunnel.errors import InputFileError
from windtunnel.files.bytes import MIB, UNPACKED_BYTES_MOST, read_bytes
from windtunnel.studies.traces.chakra.json_form import concatenated
from windtunnel.studies.traces.json_trace import JsonTrace, whole_values

TRACE_BYTES_MOST = 4096 * MIB
_REMEDY = (
    "give a trace written by torch.profiler's export_chrome_trace, or a Chakra trace; a log goes to"
    " `windtunnel diagnose`"
)
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_RANK = re.compile(r'"distributedInfo"\s*:\s*(?=\{)')
_NODES = re.compile(r'"nodes"\s*:\s*\[')
_OURS = re.compile(r'"otherData"\s*:\s*\{"title"\s*:\s*"(?:[^"\\]|\\.){0,400}"\s*,\s*"result"')
_RECORDED = "explain wants what a job really did: give traces that its ranks recorded"
_EXCERPT = (
    "is the timeline of a prediction that windtunnel drew (`predict --trace`), an excerpt of one GPU per stage in "
    "which nothing waits for anything"
)


def read_json_trace(path: Path) -> JsonTrace:
    """Read `path`. Raises InputFileError: no JSON, or neither a Kineto nor a Chakra trace."""
    content, cut = unpacked(path)
    text = content.decode("utf-8", "replace")
    del content
    try:
        document: object = json.loads(text)
    except (ValueError, RecursionError):
        _refuse_ours(path, _OURS.search(text[:4096]) is not None)
        return _salvaged(path, text)
    if isinstance(document, dict):
        other = document.get("otherData")
        _refuse_ours(path, isinstance(other, dict) and {"title", "result"} <= other.keys(), document.get("schema"))
    notes = ("the compressed file is cut off",) if cut else ()
    if isinstance(document, list):
        document = {"traceEvents": document}
    if isinstance(document, dict):
        for key, is_kineto in (("traceEvents", True), ("nodes", False)):
            items = document.get(key)
            if isinstance(items, list):
                return JsonTrace(path, items, is_kineto, {k: v for k, v in document.items() if k != key}, notes)
    raise InputFileError(path, "has neither 'traceEvents' (Kineto) nor 'nodes' (Chakra)", _REMEDY)


def _refuse_ours(path: Path, is_excerpt: bool, schema: object = None) -> None:
    """Predictions are no traces: explaining one would find stragglers that nobody simulated."""
    if is_excerpt:
        raise InputFileError(
            path,
            _EXCERPT,
            f"{_RECORDED}; of a prediction, `windtunnel predict ... --slow gpu=0:1.2` says what a straggler costs",
        )
    if isinstance(schema, str) and schema.startswith("windtunnel"):
        raise InputFileError(path, f"is an answer of windtunnel ({schema}), no trace", _RECORDED)


def unpacked(path: Path) -> tuple[bytes, bool]:
    """The content of a plain or gzipped file, and whether the compressed stream is cut off or damaged."""
    raw = read_bytes(path, "give a trace of fewer steps, or of one rank", TRACE_BYTES_MOST)
    if raw[:2] != b"\x1f\x8b":
        return raw, False
    parts: list[bytes] = []
    total = 0
    while raw[:2] == b"\x1f\x8b":
        stream = zlib.decompressobj(wbits=31)
        try:
            for at in range(0, len(raw), 1 << 20):
                parts.append(stream.decompress(raw[at : at + (1 << 20)]))
                total += len(parts[-1])
                if total > UNPACKED_BYTES_MOST:
                    problem = f"unpacks to more than {UNPACKED_BYTES_MOST // MIB} MiB"
                    raise InputFileError(path, problem, "record fewer steps")
                if stream.eof:
                    raw = stream.unused_data + raw[at + (1 << 20) :]
                    break
        except zlib.error:
            return b"".join(parts), True
        if not stream.eof:
            return b"".join(parts), True
    return b"".join(parts), False


def _salvaged(path: Path, text: str) -> JsonTrace:
    """The complete items before the first incomplete one."""
    matches = [(pattern.search(text), is_kineto) for pattern, is_kineto in ((_EVENTS, True), (_NODES, False))]
    begins = [(match.end(), is_kineto) for match, is_kineto in matches if match]
    if not begins:
        sequence = concatenated(path, text)
        if sequence is None:
            raise InputFileError(path, "is no JSON", _REMEDY)
        return sequence
    at, is_kineto = min(begins)
    items, _ = whole_values(text, at)
    if not items:
        raise InputFileError(path, "is damaged before its first event", _REMEDY)
    top: dict[str, object] = {}
    info = _RANK.search(text)
    if info:
        try:
            top["distributedInfo"] = json.JSONDecoder().raw_decode(text, info.end())[0]
        except (ValueError, RecursionError):
            top = {}
    note = f"cut off or damaged: the {len(items):,} events before that point were used"
    return JsonTrace(path, items, is_kineto, top, (note,))
