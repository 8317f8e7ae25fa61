"""What real peers said, written and given again."""

import time
from pathlib import Path
from typing import Any

import pytest

from windtunnel.errors import InputFileError
from windtunnel.real.capture.virtual_world.peer_data import Exchange
from windtunnel.real.emulate.tape.tape import Numbering, Tape, TapeWriter, bytes_of, player
from windtunnel.studies.programs.communication import Communication

torch = pytest.importorskip("torch")


def call(kind: str = "all_reduce", number: int = 0, peer: int = -1) -> Communication:
    return Communication(kind, "name of no matter", (0, 1), 0, 64, sequence=number, peer=peer)


def exchange(made: Communication, *outputs: Any) -> Exchange:
    return Exchange(made, outputs, outputs, lambda tensor: None)


def recorded(path: Path, *entries: tuple[Communication, Any]) -> Path:
    writer, numbering = TapeWriter(path, {"rank": 0, "world_size": 2}), Numbering()
    for made, tensor in entries:
        writer.add(numbering.key(made, [tensor]), [bytes_of(tensor)])
    writer.close()
    return path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "float8_e4m3fn"])
def test_tensors_come_back_bit_by_bit(tmp_path: Path, dtype: str) -> None:
    said = torch.tensor([[0.0, -0.0, 1.5], [float("inf"), 3.25, 1e-3]]).to(getattr(torch, dtype))
    play = player(Tape(recorded(tmp_path / "tape", (call(), said))), pytest.fail)
    got = torch.zeros_like(said)
    assert play(exchange(call(), got))
    assert torch.equal(got.view(torch.uint8), said.view(torch.uint8))


def test_like_communications_are_told_apart_by_their_number(tmp_path: Path) -> None:
    one, two = torch.ones(3), torch.full((3,), 2.0)
    path = recorded(tmp_path / "tape", (call(), one), (call("recv", peer=1), two), (call(), two))
    play = player(Tape(path), pytest.fail)
    got = [torch.zeros(3) for _ in range(3)]
    for tensor, kind, peer in zip(got, ("recv", "all_reduce", "all_reduce"), (1, -1, -1), strict=True):
        assert play(exchange(call(kind, peer=peer), tensor))
    assert [int(tensor[0]) for tensor in got] == [2, 1, 2]


def test_the_end_of_the_tape_is_told_once(tmp_path: Path) -> None:
    texts: list[str] = []
    play = player(Tape(recorded(tmp_path / "tape", (call(), torch.ones(3)))), texts.append)
    assert [play(exchange(call(), torch.zeros(3))) for _ in range(3)] == [True, False, False]
    (text,) = texts
    assert "has no further all_reduce among 2 ranks" in text
    assert "record a longer run" in text


def test_another_shape_is_not_on_the_tape(tmp_path: Path) -> None:
    texts: list[str] = []
    play = player(Tape(recorded(tmp_path / "tape", (call(), torch.ones(3)))), texts.append)
    assert not play(exchange(call(), torch.zeros(4)))
    assert "into float32[4]" in texts[0]


def test_a_run_that_fails_leaves_no_tape(tmp_path: Path) -> None:
    writer = TapeWriter(tmp_path / "tape", {})
    writer.add(("all_reduce", 0), [bytes_of(torch.ones(3))])
    writer.discard()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_damaged_tape_is_refused(tmp_path: Path, cut: int) -> None:
    path = recorded(tmp_path / "tape", (call(), torch.ones(64)))
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(InputFileError, match=r"damaged|no tape"):
        Tape(path)


def test_a_file_that_is_no_tape_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"hello\n")
    with pytest.raises(InputFileError, match="is no tape"):
        Tape(tmp_path / "x")


def test_a_monitored_barrier_is_passed_while_recording() -> None:
    dist = pytest.importorskip("torch.distributed")
    from windtunnel.real.emulate.tape.record_real import Recording

    heard: list[Communication] = []
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with Recording(None, heard=heard.append):
            dist.monitored_barrier()
            dist.barrier()
    finally:
        dist.destroy_process_group()
    assert [call.kind for call in heard] == ["barrier"]


def test_a_recording_holds_no_tensor_of_a_communication_that_is_over() -> None:
    import torch.distributed as dist

    from windtunnel.real.emulate.tape.record_real import Recording

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with Recording(None):
            tensor = torch.ones(8)
            dist.all_reduce(tensor)
            storage = tensor.untyped_storage()._weak_ref()
            del tensor
            until = time.monotonic() + 10.0  # gloo's own thread lets go of it a little later
            while not torch.UntypedStorage._expired(storage) and time.monotonic() < until:
                time.sleep(0.01)
            assert torch.UntypedStorage._expired(storage)
    finally:
        dist.destroy_process_group()
