from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windtunnel.errors import InputFileError, UserError
from windtunnel.studies.traces.chakra.node import NodeType
from windtunnel.studies.traces.chakra.wire_form import read_wire
from windtunnel.studies.traces.read import read_trace
from windtunnel.studies.traces.stragglers.counterfactuals import explain
from windtunnel.studies.traces.stragglers.explanation import Explanation

Plain = dict[str, Any]


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def attribute(name: str, value: Any) -> bytes:
    body = text(1, name.encode())
    if isinstance(value, bool):
        return body + number(27, value)
    if isinstance(value, str):
        return body + text(29, value.encode())
    if isinstance(value, float):
        return body + varint(3 << 3 | 1) + struct.pack("<d", value)
    return body + number(9, value)


def wire(nodes: list[Plain], packed: bool = True) -> bytes:
    """The binary form, as protobuf writes it."""
    messages = [text(1, b"0.0.4")]
    for node in nodes:
        body = number(1, node["id"]) + text(2, node["name"].encode()) + number(3, NodeType[node["type"]])
        deps = node.get("deps", [])
        if packed:
            body += text(5, b"".join(map(varint, deps))) if deps else b""
        else:
            body += b"".join(number(5, dep) for dep in deps)
        body += number(6, node.get("start", 0)) + number(7, node.get("us", 0))
        body += b"".join(text(10, attribute(*item)) for item in node.get("attr", {}).items())
        messages.append(body)
    return b"".join(varint(len(message)) + message for message in messages)


def as_json(nodes: list[Plain]) -> str:
    """What the jsonizer writes: protobuf's JSON mapping, one object after another."""
    objects: list[Any] = [{"version": "0.0.4"}]
    for node in nodes:
        attributes = [
            {"name": name, "stringVal" if isinstance(value, str) else "boolVal" if value is True else "int64Val": value}
            for name, value in node.get("attr", {}).items()
        ]
        objects.append(
            {
                **{"id": str(node["id"]), "name": node["name"], "type": node["type"], "attr": attributes},
                **{"dataDeps": [str(dep) for dep in node.get("deps", [])], "durationMicros": str(node.get("us", 0))},
                **{"startTimeMicros": str(node.get("start", 0))},
            }
        )
    return "".join(json.dumps(one, indent=2) for one in objects)


def job(slow: dict[int, int], world: int = 4, layers: int = 3) -> list[list[Plain]]:
    """Layers of compute (100 us) and an all-reduce (20 us); rank r computes `slow[r]` us longer."""
    files = []
    for rank in range(world):
        nodes: list[Plain] = []
        for layer in range(layers):
            before = [2 * layer - 1] if layer else []
            us = 100 + slow.get(rank, 0)
            waited = max(slow.values(), default=0) - slow.get(rank, 0)
            nodes.append({"id": 2 * layer, "name": "gemm", "type": "COMP_NODE", "deps": before, "us": us})
            attributes = {"comm_type": 0, "comm_size": 1024, "pg_name": "dp"}
            nodes.append(
                {
                    **{"id": 2 * layer + 1, "name": "all_reduce", "type": "COMM_COLL_NODE", "deps": [2 * layer]},
                    **{"us": 20 + waited, "attr": attributes},
                }
            )
        files.append(nodes)
    return files


def write(files: list[list[Plain]], folder: Path, form: str = "wire") -> list[Path]:
    paths = []
    for rank, nodes in enumerate(files):
        path = folder / f"job.{rank}.{'et' if form.startswith('wire') else 'json'}"
        if form == "list":
            keys = {"us": "duration_micros", "start": "start_time_micros", "deps": "ctrl_deps"}
            plain = [
                {
                    **{keys.get(key, key): value for key, value in node.items() if key != "attr"},
                    "attr": [
                        {"name": k, "string_val" if isinstance(v, str) else "int64_val": v}
                        for k, v in node.get("attr", {}).items()
                    ],
                }
                for node in nodes
            ]
            path.write_text(json.dumps({"nodes": plain}))
        elif form == "json":
            path.write_text(as_json(nodes))
        else:
            path.write_bytes(wire(nodes, packed=form == "wire"))
        paths.append(path)
    return paths


def explained(files: list[list[Plain]], folder: Path, form: str = "wire") -> Explanation:
    return explain(read_trace(write(files, folder, form)))


@pytest.mark.parametrize("form", ["wire", "wire, unpacked", "json", "list"])
def test_a_slow_rank_is_found_in_every_form(tmp_path: Path, form: str) -> None:
    found = explained(job({2: 80}), tmp_path, form)
    assert found.replayed_ns == 3 * (180 + 20) * 1000
    assert found.ideal_ns == 3 * (120 + 20) * 1000
    assert next(iter(found.worker_slowdown)) == "rank 2"
    assert found.slowest_workers.share == pytest.approx(1.0, abs=0.4)
    assert {part.name for part in found.by_kind} == {"gemm", "all-reduce"}


def test_sends_meet_receives_by_source_destination_and_tag(tmp_path: Path) -> None:
    def pair(rank: int) -> list[Plain]:
        kind = "COMM_SEND_NODE" if rank == 0 else "COMM_RECV_NODE"
        # Two messages whose tags cross: order alone would pair them wrongly.
        tags = (1, 2) if rank == 0 else (2, 1)
        return [
            {
                **{"id": k, "name": f"message {tag}", "type": kind, "us": 10 * tag},
                "attr": {"comm_src": 0, "comm_dst": 1, "comm_tag": tag, "comm_size": 8},
            }
            for k, tag in enumerate(tags)
        ]

    trace = read_trace(write([pair(0), pair(1)], tmp_path))
    met = {int(g): {trace.graph.labels[i] for i in trace.graph.label[trace.graph.rendezvous == g]} for g in (0, 1)}
    assert sorted(map(tuple, met.values())) == [("message 1",), ("message 2",)]
    assert sorted(trace.stage) == [0, 1]


def test_attributes_of_every_type_are_read(tmp_path: Path) -> None:
    attributes = {"negative": -7, "real": 2.5, "text": "dp", "flag": True}
    (path,) = write([[{"id": 1 << 63, "name": "n", "type": "COMP_NODE", "us": 3, "attr": attributes}]], tmp_path)
    (node,) = read_wire(path).nodes
    assert node.attributes == attributes
    assert node.id == 1 << 63


@pytest.mark.parametrize("form", ["wire", "json"])
def test_a_cut_off_file_is_used_up_to_there(tmp_path: Path, form: str) -> None:
    (path,) = write(job({}, world=1), tmp_path, form)
    path.write_bytes(path.read_bytes()[:-9])
    trace = read_trace([path])
    assert trace.graph.n_ops == 5
    assert any("cut off or damaged" in note for note in trace.notes)


def test_a_cycle_is_one_clear_message(tmp_path: Path) -> None:
    nodes = [
        {"id": 0, "name": "a", "type": "COMP_NODE", "deps": [1], "us": 5},
        {"id": 1, "name": "b", "type": "COMP_NODE", "deps": [0], "us": 5},
    ]
    (path,) = write([nodes], tmp_path)
    with pytest.raises(InputFileError, match=r"wait for each other in a circle \(deadlock: 2 of 2 ops"):
        explain(read_trace([path]), [str(path)])


def test_collectives_in_another_order_on_another_rank_do_not_deadlock_silently(tmp_path: Path) -> None:
    files = job({})
    files[1][1]["attr"]["comm_type"] = 2
    notes = explained(files, tmp_path).notes
    assert any("12 collectives without sequence number on ranks that disagree" in note for note in notes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"deps": [99]}, "1 dependencies on nodes that are not in the file, first 99"),
        ({"us": 0, "type": "COMM_COLL_NODE"}, "have no duration"),
        ({"id": 1}, "repeat the id of another"),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, change: Plain, words: str) -> None:
    files = job({}, world=1)
    files[0][-1] = {**files[0][-1], **change}
    assert any(words in note for note in explained(files, tmp_path).notes)


def test_a_trace_without_durations_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.0.json"
    path.write_text('{"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id": 1, "name": "aten::mm", "ctrl_deps": 0}]}')
    with pytest.raises(InputFileError, match="no node that takes time"):
        read_trace([path])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_damaged_file_gives_a_traceback(tmp_path: Path, data: st.DataObject) -> None:
    paths = write(job({1: 50}, world=2), tmp_path, data.draw(st.sampled_from(["wire", "json", "list"])))
    content = bytearray(paths[0].read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    paths[0].write_bytes(bytes(content[: data.draw(st.sampled_from([len(content), len(content) // 2]))]))
    try:
        found = explain(read_trace(paths), [str(path) for path in paths])
    except UserError as error:
        message = str(error)
    else:
        message = str(tmp_path)
        assert np.isfinite(found.slowdown)
    assert str(tmp_path) in message
