"""Messages, objects and the key-value store in a virtual world."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
dist = torch.distributed

from mailboxes import LocalMailbox, connect_mailbox, serve_mailbox  # noqa: E402
from worlds import Clock, Hands, hands, nothing_left, opened  # noqa: E402, F401

from windtunnel.real.capture.torch_private import distributed as compat  # noqa: E402
from windtunnel.real.capture.virtual_world.refusals import (  # noqa: E402
    NoPeerError,
    UnsupportedCommunicationError,
    WorldError,
)


def as_rank(rank: int, mailbox: Any, script: Any, **more: Any) -> Any:
    with opened(rank, 4, mailbox=mailbox, **more):
        return script()


def test_control_messages_and_objects_go_through_the_mailbox() -> None:
    box = LocalMailbox()

    def sender() -> None:
        group = dist.new_group([1, 2])
        for number in (3, 4):
            dist.send(torch.tensor([number, 5]), 2, group=group, tag=1)
        dist.send(torch.tensor([True, False]), 2)
        dist.send_object_list([{"shape": (2, 3)}, torch.empty(3, device="meta")], 2, use_batch=True)
        dist.broadcast_object_list(["config", 7], src=1)
        dist.send(torch.ones(3), 2)  # an activation: not sent

    def receiver() -> list[Any]:
        group = dist.new_group([1, 2])
        dist.recv(x := torch.zeros(2, dtype=torch.int64), 1, group=group, tag=1)
        dist.irecv(y := torch.zeros(2, dtype=torch.int64), 1, group=group, tag=1).wait()
        dist.recv(flags := torch.zeros(2, dtype=torch.bool), 1)
        objects: list[Any] = [None, None]
        assert dist.recv_object_list(objects, 1, use_batch=True) == 1
        dist.broadcast_object_list(given := [None, None], src=1)
        dist.recv(z := torch.zeros(3), 1)
        assert z.abs().max() < 1
        return [x.tolist(), y.tolist(), flags.tolist(), objects[0], tuple(objects[1].shape), given]

    as_rank(1, box, sender)
    got = as_rank(2, box, receiver)
    assert got == [[3, 5], [4, 5], [True, False], {"shape": (2, 3)}, (3,), ["config", 7]]


def test_a_list_to_scatter_has_an_object_for_each_rank() -> None:
    def script() -> None:
        dist.scatter_object_list([None], ["to 0", "to 1", "to 2"], src=0)

    with pytest.raises(WorldError, match="3 objects for a group of 4 ranks"):
        as_rank(0, LocalMailbox(), script)


def test_ranks_that_are_known_to_run_gather_and_scatter_real_objects() -> None:
    box, seen = LocalMailbox(), []

    def script() -> None:
        rank = dist.get_rank()
        dist.all_gather_object(everyone := [None] * 4, rank)
        dist.gather_object(rank, at_root := [None] * 4 if rank == 3 else None, dst=3)
        dist.scatter_object_list(mine := [None], [f"to {other}" for other in range(4)] if rank == 1 else None, src=1)
        dist.recv(x := torch.zeros(1, dtype=torch.int32)) if rank == 3 else dist.send(
            torch.ones(1, dtype=torch.int32), 3
        )
        seen.append((everyone, at_root, mine, x.tolist() if rank == 3 else None))

    # both need each other, and there is one world per process: the first is played on a second thread's mailbox by hand
    box.post(_key(1, 3, "all_gather"), _pickled(1))
    box.post(_key(1, 3, "gather"), _pickled(1))
    box.post(_key(1, 1, "scatter"), _pickled([_pickled(f"to {other}") for other in range(4)]))
    box.post(_key(1, 3, "tag 0"), b"=" + (9).to_bytes(4, "little"))
    as_rank(3, box, script, beside=[1])
    # 0 and 2 do not run: 0 is like 1, 2 like 3
    assert seen == [([1, 1, 3, 3], [1, 1, 3, 3], ["to 3"], [9])]


def _key(sender: int, receiver: int, what: str) -> str:
    import zlib

    return f"{zlib.crc32(repr((0, 1, 2, 3)).encode()):08x}.0/{sender}>{receiver}/{what}/0"


def _pickled(thing: Any) -> bytes:
    import pickle

    return pickle.dumps(thing)


def test_without_the_peer_the_message_names_it() -> None:
    vote = torch.zeros(1, dtype=torch.int32)
    with opened(1, 4):
        with pytest.raises(NoPeerError, match="rank 2"):
            dist.recv(vote, 2)
        with pytest.raises(NoPeerError, match="rank 3"):
            dist.recv_object_list([None], 3)
        dist.send(vote, 2)  # nobody reads it: no harm
        dist.send_object_list([1], 2)
    with (
        opened(1, 4, mailbox=LocalMailbox(), mailbox_timeout_s=0.05),
        pytest.raises(NoPeerError, match=r"rank 2 .* 0\.05 s"),
    ):
        dist.recv(vote, 2)


def test_objects_of_a_virtual_root_are_missing_and_said_to_be() -> None:
    with opened(1, 4) as world:
        dist.broadcast_object_list(given := [None, 3], src=0)
        dist.broadcast_object_list(own := ["mine"], src=0)
        assert (given, own) == ([None, 3], ["mine"])
        assert len(world.notes) == 1
        assert "rank 0" in world.notes[0]
        world.calls = []
        dist.all_gather_object(things := [None] * 4, ["x"])
        things[0].append("y")
        assert things[1] == ["x"]
        assert [(call.kind, call.is_control) for call in world.calls] == [("all_gather", True)]


def test_what_rank_0_sets_in_the_store_others_get() -> None:
    from torch.distributed.distributed_c10d import _get_default_store

    box = LocalMailbox()

    def script() -> list[bytes]:
        store = _get_default_store()
        if dist.get_rank() == 0:
            store.set("shared", "42")
            store.set("shared", "43")
        store.set(f"of/{dist.get_rank()}", "mine")
        store.wait(["shared"])
        return [store.get("shared"), store.get(f"of/{dist.get_rank()}")]

    assert as_rank(0, box, script) == [b"43", b"mine"]
    assert as_rank(3, box, script) == [b"42", b"mine"]  # what was set first, however late it is read
    with pytest.raises(UnsupportedCommunicationError, match="set the key on every rank"):
        as_rank(0, box, lambda: _get_default_store().get("of nobody"))


def test_a_mailbox_over_a_store() -> None:
    box = serve_mailbox()
    other = connect_mailbox(box.port)
    box.post("a", b"\x00\x01")
    assert other.get("a", 5) == b"\x00\x01"
    with pytest.raises(TimeoutError):
        other.get("b", 0.05)


@pytest.mark.parametrize("placeholder", [None, {}, [], "", 0])
def test_a_placeholder_becomes_what_the_root_sends(placeholder: Any) -> None:
    """A checkpoint that rank 0 alone has read is handed out so, to ranks that pass an empty dictionary."""
    box = LocalMailbox()
    as_rank(0, box, lambda: dist.broadcast_object_list([{"weight": 4}, 7], src=0))

    def receiver() -> list[Any]:
        dist.broadcast_object_list(given := [placeholder, 5], src=0)
        return given

    assert as_rank(2, box, receiver) == [{"weight": 4}, 7]


@pytest.mark.parametrize(("any_can_run", "known"), [(True, False), (False, True)])
def test_an_answer_of_the_root_replaces_what_is_no_placeholder(any_can_run: bool, known: bool) -> None:
    """`load = True; if rank == 0: load = exists(folder)`, broadcast: others must not go on with their own True."""
    box = LocalMailbox()
    as_rank(0, box, lambda: dist.broadcast_object_list([False], src=0))

    def receiver() -> bool:
        dist.broadcast_object_list(given := [True], src=0)
        return given[0]

    assert as_rank(1, box, receiver, any_can_run=any_can_run) is known


def test_arguments_that_another_torch_has_more_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """`weights_only` of the object collectives in 2.14: the function that is replaced has it, ours does not."""
    original = dist.all_gather_object

    def of_another_version(object_list: Any, obj: Any, group: Any = None, weights_only: bool = False) -> Any:
        return original(object_list, obj, group)

    for module in compat.modules_that_name_group_functions():
        if vars(module).get("all_gather_object") is original:
            monkeypatch.setattr(module, "all_gather_object", of_another_version)
    with opened(0, 4):
        dist.all_gather_object(found := [None] * 4, {"a": 1}, weights_only=True)  # type: ignore[call-arg]
    assert found == [{"a": 1}] * 4
