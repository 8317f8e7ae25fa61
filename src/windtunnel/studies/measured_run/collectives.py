"""What NCCL Inspector and PyTorch's flight recorder say of collectives.

Inspector writes JSON lines, one a collective and rank; in newer files a header stands in a line of its own, which the
lines behind it inherit. Waiting for the slowest member is inside an execution time, so the least over the ranks is
what the network takes, and whom the others wait for is who waits least.

A flight recorder's dump is a pickle: only plain data is unpickled, and a name of anything else is an error.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeGuard

from windtunnel.errors import InputFileError
from windtunnel.files.bytes import MIB, read_bytes
from windtunnel.studies.measured_run.run import Collective, MeasuredRun

DUMP_BYTES_MOST = 256 * MIB
ELEMENT_BYTES = {"Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Byte": 1, "Bool": 1}
ELEMENT_BYTES_ELSE = 1  # of the formats of 8 bits
GIVE_DUMP = "give what TORCH_FR_DUMP_TEMP_FILE or NCCL Inspector wrote"


def is_inspector(text: str) -> bool:
    """Whether text is JSON lines of NCCL Inspector."""
    head = text[:8192]
    return '"coll_perf"' in head or '"p2p_perf"' in head or '"coll_exec_time_us"' in head


def run_of_inspector(text: str, source: str) -> MeasuredRun:
    """What NCCL Inspector wrote of one rank or of several. Raises InputFileError."""
    collectives: list[Collective] = []
    odd: list[str] = []
    head: dict[str, object] = {}
    ranks = 0
    for line in text.splitlines():
        begins = line.find("{")
        if begins < 0:
            continue
        try:
            item = json.loads(line[begins:])
        except (ValueError, RecursionError):
            odd.append(line.strip()[:160])
            continue
        if not isinstance(item, dict):
            continue
        head = _mapping(item.get("header")) or ({**head, **item} if "n_ranks" in item else head)
        perf = _mapping(item.get("coll_perf")) or (item if "coll_exec_time_us" in item else {})
        if not perf:
            continue
        name, time, size = (perf.get(key) for key in ("coll", "coll_exec_time_us", "coll_msg_size_bytes"))
        if not (_is_number(time) and _is_number(size) and isinstance(name, str)):
            odd.append(line.strip()[:160])
            continue
        ranks = max(ranks, _whole(head.get("n_ranks")))
        rank, number = _whole(head.get("rank")), _whole(perf.get("coll_sn"))
        collectives.append(Collective(name, int(size), rank, time * 1e-6, number))
    if not collectives:
        raise InputFileError(source, "holds no collective that ended", GIVE_DUMP)
    note = f"{len(collectives):,} collectives of {ranks} ranks; the least over the ranks is what the network takes"
    return MeasuredRun(
        source, "NCCL Inspector", collectives=tuple(collectives), notes=(note,), not_understood=tuple(odd)
    )


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain data")


def is_pickle(content: bytes) -> bool:
    """Whether bytes begin as a pickle of protocol 2 or later does."""
    return len(content) > 2 and content[0] == 0x80 and 2 <= content[1] <= 5


def run_of_flight_recorder(paths: Sequence[Path]) -> MeasuredRun:
    """Dumps of one rank or of several, as pickles or JSON. Raises InputFileError."""
    collectives: list[Collective] = []
    open_ones: list[str] = []
    for number, path in enumerate(paths):
        content = read_bytes(path, GIVE_DUMP, DUMP_BYTES_MOST)
        try:
            if is_pickle(content):
                document = _Plain(io.BytesIO(content)).load()
            else:
                document = json.loads(content.decode("utf-8", "replace"))
        except Exception as error:  # a pickle that is damaged raises nearly anything
            raise InputFileError(path, f"is no dump of plain data ({error})", GIVE_DUMP) from None
        entries = document.get("entries") if isinstance(document, dict) else None
        if not isinstance(entries, list):
            raise InputFileError(path, "has no 'entries'", GIVE_DUMP)
        digits = "".join(word for word in path.stem.rpartition("_")[2] if word.isdigit())
        rank = int(digits) if digits and len(digits) < 7 else number
        for entry in entries:
            if not isinstance(entry, dict):
                continue
            name = str(entry.get("profiling_name", "")).partition(":")[2] or "collective"
            if entry.get("state") != "completed":
                open_ones.append(f"rank {rank}: {name} {entry.get('collective_seq_id')} is {entry.get('state')}")
            seconds = _duration(entry)
            if seconds is not None:
                collectives.append(
                    Collective(name, _size(entry), rank, seconds, _whole(entry.get("collective_seq_id")))
                )
    if not collectives and not open_ones:
        raise InputFileError(paths[0], "times no collective: set TORCH_NCCL_ENABLE_TIMING=1", GIVE_DUMP)
    notes = (f"{len(collectives):,} collectives of {len(paths)} ranks", *open_ones[:3])
    return MeasuredRun(str(paths[0]), "flight recorder", collectives=tuple(collectives), notes=notes)


def _duration(entry: Mapping[str, object]) -> float | None:
    duration_ms = entry.get("duration_ms")
    if _is_number(duration_ms):
        return float(duration_ms) * 1e-3
    begin, end = entry.get("time_discovered_started_ns"), entry.get("time_discovered_completed_ns")
    return (end - begin) * 1e-9 if _is_number(begin) and _is_number(end) and end > begin else None


def _size(entry: Mapping[str, object]) -> int:
    lists = (entry.get(name) for name in ("input_dtypes", "input_sizes"))
    kinds, shapes = (entries if isinstance(entries, list | tuple) else [] for entries in lists)
    total = 0
    for at, shape in enumerate(shapes):
        count = 1
        for length in shape if isinstance(shape, list | tuple) else [0]:
            count *= _whole(length)
        total += count * ELEMENT_BYTES.get(str(kinds[at]) if at < len(kinds) else "", ELEMENT_BYTES_ELSE)
    return max(0, total)


def waits_for(collectives: Iterable[Collective]) -> tuple[int, float, int] | None:
    """Whom the others wait for: rank, seconds that they wait more than it a collective, collectives that say so.

    None where ranks do not differ, or where only one rank was recorded.
    """
    by_number: dict[tuple[str, int, int], dict[int, float]] = {}
    for collective in collectives:
        if collective.sequence >= 0:
            by_number.setdefault((collective.kind, collective.size_bytes, collective.sequence), {})[collective.rank] = (
                collective.seconds
            )
    last: dict[int, list[float]] = {}
    for times in by_number.values():
        if len(times) > 1:
            rank = min(times, key=lambda candidate: (times[candidate], candidate))
            last.setdefault(rank, []).append(max(times.values()) - times[rank])
    total = sum(map(len, last.values()))
    if not total:
        return None
    rank = max(last, key=lambda number: (len(last[number]), sum(last[number])))
    if len(last[rank]) <= total / 2 or len(last) == total:
        return None
    return rank, sum(last[rank]) / total, len(last[rank])


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else 0
