"""What there is to say about a program without reading it again: totals, groups, peak, answers. Plain data."""

from __future__ import annotations

from collections import Counter

from windtunnel.studies.programs.program import RankProgram
from windtunnel.studies.programs.program_file import runs_of
from windtunnel.studies.programs.rank_classes.equality import digest, kind, peak


def summary(program: RankProgram, key: str | None = None) -> dict[str, object]:
    """Totals of a program, and what places its rank among others. `key`: its digest, where that is known."""
    collectives: dict[str, list[int]] = {}
    control: dict[str, list[int]] = {}
    groups: dict[tuple[int, ...], None] = {}
    peers: set[int] = set()
    for op in program.ops:
        call = op.communication
        if call is None:
            continue
        groups.setdefault(call.members)
        if call.is_message:
            peers.add(call.peer)
        entry = (control if call.is_control else collectives).setdefault(call.kind, [0, 0])
        entry[0] += 1
        entry[1] += call.bytes
    most, at = peak(program)
    answers = Counter((answer.what, answer.told, answer.where) for answer in program.answers)
    return {
        "rank": program.rank,
        "digest": digest(program) if key is None else key,
        "kind": kind(program),
        "ops": len(program.ops),
        "flops": float(sum(op.flops for op in program.ops)),
        "collectives": collectives,
        "control": control,
        "groups": [runs_of(members) for members in groups],
        "peers": sorted(peers),
        "meshes": [[list(names), list(sizes)] for names, sizes in program.meshes],
        "peak_bytes": most,
        "peak_op": op_text(program, at),
        "resident_bytes": sum(event.bytes for event in program.resident),
        "answers": [[*key, count] for key, count in answers.items()],
        "notes": list(program.notes),
    }


def op_text(program: RankProgram, index: int) -> str:
    """An op as a person finds it in the model."""
    if not 0 <= index < len(program.ops):
        return "before the step"
    op = program.ops[index]
    return ", ".join(part for part in (op.name.removesuffix(".default"), op.module, op.phase) if part)
