"""When two ranks run the same program: peers written as roles, not as global ranks.

The role of a call's group is its turn among the groups that the rank calls in, and how its members lie: their
distances from the first. A message's peer is (place of the peer - own place) mod size; the root of a broadcast,
reduce, gather or scatter is its place in the group. A number in the name of a module (`experts.5`) is its turn among
those that the rank comes to: ranks that hold different experts do the same. What op i is, what it depends on, where
it runs, its shapes and bytes: all as recorded; but not how many calls of its group came before, which differs from
step to step. Of a kernel that goes over lists of tensors (`_foreach_add_`) only the elements count, not how they are
cut: FSDP 1 cuts flat shards anywhere, and each rank holds other pieces of parameters. In the optimizer, and outside
all modules and passes, tensors are pieces of such parts too: their dimensions are compared op by op, and the elements
of all ops of a name together. Memory is compared by what matters of it: what is resident in each category, and the
peak. What the host of a GPU does to its own tensors beside the model is a batch being put together: how long
documents are differs by rank, and is not compared.

Roles are invariant when a group is moved: two ranks at the same places of their own groups have equal programs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from windtunnel.studies.programs.communication import Communication
from windtunnel.studies.programs.program import Op, RankProgram, TensorSpec

ROOTED = ("broadcast", "reduce", "gather", "scatter")
_MULTI_TENSOR = ("aten._foreach_", "aten._fused_ada", "aten._fused_sgd", "aten._amp_foreach_")
_FIELDS = (
    *("name", "kind", "inputs", "outputs", "communication", "scalars", "stream", "phase", "micro_batch", "recompute"),
    *("module", "flops", "bytes_read", "bytes_written", "after"),
)


@dataclass(frozen=True)
class Difference:
    """Where two programs part."""

    op: int  # index; -1: in memory
    text: str  # "op 17 (aten.mm, layers.0.wq, forward): inputs are ... on rank 0, ... on rank 8"


def digest(program: RankProgram) -> str:
    """Equal for two ranks exactly when their programs are, with peers as roles."""
    text = hashlib.blake2b(digest_size=16)
    for role in _roles(program):
        text.update(repr(role).encode())
    text.update(repr(sorted((memory_facts(program) | piece_totals(program)).items())).encode())
    return text.hexdigest()


def first_difference(program: RankProgram, other: RankProgram) -> Difference | None:
    """The first op, in order of issue, that differs; or the memory, where all ops are equal; or None."""
    ours, theirs = ([at for at, op in enumerate(of.ops) if not is_batch_making(op)] for of in (program, other))
    pairs = zip(ours, theirs, _roles(program), _roles(other), strict=False)
    for index, its_index, mine, its in pairs:
        if mine == its:
            continue
        for name, left, right in zip(_FIELDS, mine, its, strict=True):
            if left != right:
                op = program.ops[index]
                left, right = _shown(name, op, left), _shown(name, other.ops[its_index], right)
                what = f"{name.replace('_', ' ')}: {left} on rank {program.rank}, {right} on rank {other.rank}"
                return Difference(index, f"op {index} ({_place(op)}): {what}")
    if len(ours) != len(theirs):
        longer, longer_order = (program, ours) if len(ours) > len(theirs) else (other, theirs)
        shorter, count = (other, len(theirs)) if longer is program else (program, len(ours))
        at = longer_order[count]
        text = f"op {at} ({_place(longer.ops[at])}): only rank {longer.rank} has it"
        return Difference(at, f"{text}, rank {shorter.rank} ends after {len(shorter.ops)} ops")
    mine_totals, its_totals = piece_totals(program), piece_totals(other)
    for name in sorted(mine_totals.keys() | its_totals.keys()):
        mine_count, its_count = mine_totals.get(name, 0), its_totals.get(name, 0)
        if mine_count != its_count:
            at = next(at for at, op in enumerate((program if mine_count else other).ops) if name.startswith(op.name))
            counts = f"{mine_count:,} elements on rank {program.rank}, {its_count:,} on rank {other.rank}"
            return Difference(at, f"op {at} and others, all {name} in the optimizer and between passes: {counts}")
    mine_memory, its_memory = memory_facts(program), memory_facts(other)
    for name in sorted(mine_memory.keys() | its_memory.keys()):
        left, right = str(mine_memory.get(name, 0)), str(its_memory.get(name, 0))
        if left != right:
            text = f"memory, {name}: {left} bytes on rank {program.rank}, {right} on rank {other.rank}"
            return Difference(-1, text)
    return None


def memory_facts(program: RankProgram) -> dict[str, int]:
    """Bytes resident in each category when the step begins, and the most that is live at once."""
    facts: dict[str, int] = {}
    for event in program.resident:
        name = f"resident {event.category}"
        facts[name] = facts.get(name, 0) + event.bytes
    facts["peak"] = peak(program)[0]
    return facts


def piece_totals(program: RankProgram) -> dict[str, int]:
    """Elements that ops on pieces take and give, by their name and dtype."""
    totals: dict[str, int] = {}
    for op in program.ops:
        if is_on_pieces(op):
            for (dtype, device), count in _totals((*op.inputs, *op.outputs)):
                name = f"{op.name} ({dtype}, {device})"
                totals[name] = totals.get(name, 0) + count
    return totals


def peak(program: RankProgram) -> tuple[int, int]:
    """Most bytes live at once, and the op at which that is (-1: before the first)."""
    live = most = sum(event.bytes for event in program.resident)
    at = -1
    for event in program.memory:
        live += event.bytes
        if live > most:
            most, at = live, event.op
    return most, at


def peer_offset(call: Communication) -> int:
    """A message's peer, or a root, as a role; -1 where there is none or it is outside the group."""
    if call.peer < 0 or call.peer not in call.members:
        return -1
    place = call.members.index(call.peer)
    return place if call.kind in ROOTED else (place - call.position) % len(call.members)


def kind(program: RankProgram) -> str:
    """Equal for ranks that do the same ops on the same shapes, in whatever order and however often."""
    ops = {
        (op.name, op.inputs, op.outputs, None if (call := op.communication) is None else (call.kind, call.bytes))
        for op in program.ops
        if not is_batch_making(op)
    }
    text = hashlib.blake2b(digest_size=16)
    for line in sorted(map(repr, ops)):
        text.update(line.encode())
    return text.hexdigest()


def _roles(program: RankProgram) -> Iterator[tuple[object, ...]]:
    turns: dict[str, int] = {}
    lies: dict[tuple[str, int], str] = {}
    modules = _ModuleRoles()
    texts: dict[tuple[int, bool, bool], str] = {}  # shapes in words, by identity: recorded programs share a few tuples

    def shapes(specs: tuple[TensorSpec, ...], many: bool, pieces: bool) -> str:
        key = (id(specs), many, pieces)
        if key not in texts:
            if pieces:
                kinds = [(0 if many else len(shape), dtype, device) for shape, dtype, device in specs]
                texts[key] = repr(sorted(set(kinds)) if many else kinds)
            else:
                texts[key] = repr(_totals(specs) if many else tuple(map(tuple, specs)))
        return texts[key]

    turn_of: dict[int, int] = {}  # of an op, among those that are compared
    for index, op in enumerate(program.ops):
        if is_batch_making(op):
            continue
        turn_of[index] = len(turn_of)
        call = op.communication
        many, pieces = is_multi_tensor(op), is_on_pieces(op)
        yield (
            op.name,
            op.kind,
            shapes(op.inputs, many, pieces),
            shapes(op.outputs, many, pieces),
            None if call is None else _call_role(call, turns, lies),
            op.scalars,
            op.stream,
            op.phase,
            op.micro_batch,
            op.recompute,
            modules.role_of(op.module),
            float(op.flops),
            0.0 if many or pieces else float(op.bytes_read),  # they follow from the tensors
            0.0 if many or pieces else float(op.bytes_written),
            tuple(turn_of[earlier] for earlier in op.after if earlier in turn_of),
        )


def is_batch_making(op: Op) -> bool:
    """Whether the host works on its own tensors alone, in no module and no pass."""
    if op.kind != "compute" or op.phase != "other" or op.module:
        return False
    specs = (*op.inputs, *op.outputs)
    return bool(specs) and all(spec.device == "host" for spec in specs)


def is_on_pieces(op: Op) -> bool:
    """Whether a kernel may work on pieces of a rank's part of a flat buffer: in the optimizer, or between passes."""
    between = not op.module and op.phase in ("optimizer", "other")
    return between and op.kind in ("compute", "copy") and not op.flops and not is_batch_making(op)


def is_multi_tensor(op: Op) -> bool:
    """Whether one kernel goes over lists of tensors of any sizes, as optimizers do."""
    return op.name.startswith(_MULTI_TENSOR)


def _totals(specs: Iterable[TensorSpec]) -> tuple[tuple[tuple[str, str], int], ...]:
    """Elements by dtype and device: numbers without dimensions, such as the step of each parameter, are nothing."""
    totals: dict[tuple[str, str], int] = {}
    for shape, dtype, device in specs:
        if shape:
            totals[dtype, device] = totals.get((dtype, device), 0) + math.prod(shape)
    return tuple(sorted(totals.items()))


def _call_role(call: Communication, turns: dict[str, int], lies: dict[tuple[str, int], str]) -> tuple[object, ...]:
    turn = turns.setdefault(call.group, len(turns))
    key = (call.group, id(call.members))
    if key not in lies:
        first = call.members[0] if call.members else 0
        offsets = repr([rank - first for rank in call.members]).encode()
        lies[key] = f"{len(call.members)} ranks {hashlib.blake2b(offsets, digest_size=4).hexdigest()}"
    return (
        call.kind,
        turn,
        lies[key],
        call.bytes,
        call.dtype,
        peer_offset(call) if call.peer >= 0 else -1,
        call.tag,
        call.reduce_op,
        call.sent_bytes,
        call.received_bytes,
        call.is_async,
        call.is_control,
        call.batch,
    )


class _ModuleRoles:
    """Names with turns for numbers, of one program."""

    def __init__(self) -> None:
        self._roles: dict[str, str] = {}
        self._turns: dict[str, dict[str, int]] = {}  # by what stands before a number

    def role_of(self, name: str) -> str:
        """`layers.0.experts.0.w1` of `layers.0.experts.4.w1`, where 4 is the first that the rank comes to."""
        role = self._roles.get(name)
        if role is None:
            parts = name.split(".")
            for at, part in enumerate(parts):
                if part.isdigit():
                    turns = self._turns.setdefault(".".join(name.split(".")[:at]), {})
                    parts[at] = str(turns.setdefault(part, len(turns)))
            role = self._roles[name] = ".".join(parts)
        return role


def _place(op: Op) -> str:
    return ", ".join(part for part in (op.name, op.module, op.phase) if part)


def _shown(name: str, op: Op, role: object) -> str:
    """One field for a person."""
    if name == "communication":
        return call_text(op.communication)
    if name == "module":
        return repr(op.module)
    if name in ("inputs", "outputs"):
        specs: tuple[TensorSpec, ...] = getattr(op, name)
        return " ".join(f"{spec.dtype}{list(spec.shape)}" for spec in specs) or "none"
    return repr(role)


def call_text(call: Communication | None) -> str:
    """`all_gather of 4096 bytes among 8 ranks`."""
    if call is None:
        return "no communication"
    toward = f", peer at {peer_offset(call)}" if call.peer >= 0 else ""
    return f"{call.kind} of {call.bytes} bytes among {len(call.members)} ranks{toward}"
