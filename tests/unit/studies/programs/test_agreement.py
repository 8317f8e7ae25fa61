"""Whether ranks can run together what each was captured to do."""

from every_rank import whole_job
from handmade import Script

from windtunnel.studies.programs.communication import Communication
from windtunnel.studies.programs.program import Op, RankProgram
from windtunnel.studies.programs.rank_classes.agreement import book_of, book_of_some, deadlock, disagreement
from windtunnel.studies.programs.rank_classes.findings import Finding

WORLD = 4


def text_of(found: Finding | None) -> str:
    """What was found, for a person; "" for nothing."""
    return "" if found is None else found.text


def rank_program(rank: int, calls: list[tuple[str, dict[str, object]]], world: int = WORLD) -> RankProgram:
    """Calls and waits: ("all_reduce", {...}), ("wait", {"of": 0})."""
    script = Script(rank, world)
    made: list[int] = []
    for kind, more in calls:
        if kind == "wait":
            script.add(Op("wait", "wait", after=(made[int(str(more["of"]))],)))
            continue
        given = {"bytes": 32, "dtype": "float32", "members": tuple(range(world)), **more}
        members = given.pop("members")
        call = Communication(kind, "world", members, members.index(rank), **given)  # type: ignore[attr-defined, arg-type]
        made.append(script.add(Op(f"c10d.{kind}", "communication", communication=call)))
    return RankProgram(rank, world, tuple(script.ops))


def everybody(odd: list[tuple[str, dict[str, object]]], others: list[tuple[str, dict[str, object]]]) -> str:
    """What does not fit where rank 1 is odd."""
    job = whole_job([rank_program(rank, odd if rank == 1 else others) for rank in range(WORLD)])
    return text_of(disagreement(book_of(job)))


def test_what_fits_is_fine() -> None:
    calls = [("all_reduce", {"reduce_op": "sum"}), ("broadcast", {"peer": 2}), ("barrier", {"bytes": 0, "dtype": ""})]
    assert everybody(calls, calls) == ""
    assert everybody([("all_to_all", {"bytes": 10})], [("all_to_all", {"bytes": 30})]) == ""  # a part of its own
    control = {"is_control": True}
    assert everybody([("all_gather", {**control, "bytes": 5})], [("all_gather", {**control, "bytes": 9})]) == ""


def test_a_member_that_differs_is_named_with_how() -> None:
    reduced = [("all_reduce", {"reduce_op": "sum"})]
    for odd, why in (
        ([], "rank 1 calls nothing: a member that skips"),
        ([("all_reduce", {"reduce_op": "sum", "bytes": 64})], "do not agree on the shape"),
        ([("all_reduce", {"reduce_op": "sum", "dtype": "int32"})], "do not agree on the dtype"),
        ([("all_reduce", {"reduce_op": "max"})], "do not agree on the reduction"),
        ([("all_gather", {})], "the same collective in the same order"),
    ):
        found = everybody(odd, reduced)  # type: ignore[arg-type]
        assert why in found
        assert "rank 0 calls all_reduce (sum) of 32 bytes float32" in found
    assert "agree on the root" in everybody([("broadcast", {"peer": 1})], [("broadcast", {"peer": 0})])


def pair(zero: list[tuple[str, dict[str, object]]], one: list[tuple[str, dict[str, object]]]) -> tuple[str, str, str]:
    job = whole_job([rank_program(0, zero, 2), rank_program(1, one, 2)])
    return text_of(disagreement(book_of(job))), text_of(deadlock(job)), text_of(deadlock(job, eager_sends=True))


def test_messages_are_as_many_and_as_large_as_received() -> None:
    send, receive = ("send", {"peer": 1}), ("recv", {"peer": 0})
    assert pair([send], [receive]) == ("", "", "")
    assert "rank 0 sends 2 messages a step to rank 1, which receives 1" in pair([send, send], [receive])[0]
    told = ("send", {"peer": 1, "is_control": True})  # shapes, before the step of the other rank began
    assert pair([told, send], [receive])[0] == ""
    assert "sends 2 messages a step to rank 1, which receives 1" in pair([told, send, send], [receive])[0]
    assert "has 32 bytes float32, and is received as 8 bytes" in pair([send], [("recv", {"peer": 0, "bytes": 8})])[0]


def test_two_that_both_receive_first_wait_for_ever() -> None:
    first = [("recv", {"peer": 1}), ("wait", {"of": 0}), ("send", {"peer": 1}), ("wait", {"of": 1})]
    other = [("recv", {"peer": 0}), ("wait", {"of": 0}), ("send", {"peer": 0}), ("wait", {"of": 1})]
    fits, waits, eager = pair(first, other)  # type: ignore[arg-type]
    assert fits == ""
    assert "rank 0 waits in a recv" in waits
    assert "for rank 0" in waits
    assert eager
    head_on = [first[2], ("wait", {"of": 0}), first[0], ("wait", {"of": 1})]
    its = [other[2], ("wait", {"of": 0}), other[0], ("wait", {"of": 1})]
    _, waits, eager = pair(head_on, its)  # type: ignore[arg-type]
    assert "waits in a send" in waits
    assert eager == ""
    begun_first = [first[0], first[2], ("wait", {"of": 0}), ("wait", {"of": 1})]
    assert pair(begun_first, [other[0], other[2], ("wait", {"of": 0}), ("wait", {"of": 1})]) == ("", "", "")  # type: ignore[arg-type]


def test_of_some_ranks_only_these_are_compared() -> None:
    calls = [("all_reduce", {"reduce_op": "sum"})]
    known = {rank: rank_program(rank, calls) for rank in (0, 2)}  # type: ignore[arg-type]
    assert disagreement(book_of_some(known)) is None
    known[3] = rank_program(3, [])
    assert "rank 3 calls nothing" in text_of(disagreement(book_of_some(known)))  # it is a member, and was run
    known[3] = rank_program(3, [("all_reduce", {"reduce_op": "sum", "bytes": 8})])
    assert "rank 3 calls all_reduce (sum) of 8 bytes" in text_of(disagreement(book_of_some(known)))
