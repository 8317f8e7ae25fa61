"""A Plan as users write it: mappings, files, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from windtunnel.errors import InputFileError, SpecError, UnknownNameError, UserError
from windtunnel.studies.training import Plan, predict, read_plan
from windtunnel.studies.training.plan import RECOMPUTE_PARTS

LEAST = {"global_batch": 8, "seq_len": 512}


def test_a_plan_says_only_what_it_must() -> None:
    plan = read_plan(LEAST)
    assert (plan.tp, plan.pp, plan.cp, plan.ep, plan.micro_batch, plan.precision) == (1, 1, 1, 1, 1, "bf16")
    assert plan.zero_stage is plan.sequence_parallel is plan.overlap_tp is plan.schedule is None


@pytest.mark.parametrize("spec", [None, 3, [], b"x"])
def test_what_is_no_plan_at_all_is_said(spec: object) -> None:
    with pytest.raises(SpecError, match=r"^plan .*give a mapping of its fields, or the path of a YAML file"):
        read_plan(spec)  # type: ignore[arg-type]


def test_a_plan_is_read_from_yaml(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("tp: 4\nlayers_per_stage: [7, 9]\npp: 2\noverlap_tp: off\nglobal_batch: 8\nseq_len: 512\n")
    plan = read_plan(file)
    assert plan == read_plan(str(file)) == read_plan(plan)
    assert (plan.tp, plan.layers_per_stage, plan.overlap_tp) == (4, (7, 9), False)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"tq": 2}, UnknownNameError, "plan field 'tq'"),
        ({"tp": 0}, SpecError, "tp = 0"),
        ({"tp": "4"}, SpecError, "tp = '4'"),
        ({"tp": True}, SpecError, "tp = True"),
        ({"tp": 2.0}, SpecError, "tp = 2.0"),
        ({"seq_len": 2**27 + 1}, SpecError, "seq_len"),
        ({"framework": "jax"}, SpecError, "framework = 'jax'"),
        ({"precision": "int8"}, SpecError, "precision = 'int8'"),
        ({"zero_stage": 4}, SpecError, "zero_stage = 4"),
        ({"offload_optimizer": 1.5}, SpecError, "offload_optimizer = 1.5"),
        ({"offload_optimizer": float("nan")}, SpecError, "offload_optimizer = nan"),
        ({"layers_per_stage": [1.5]}, SpecError, "layers_per_stage"),
        ({"overlap_tp": "on"}, SpecError, "overlap_tp = 'on'"),
        ({"global_batch": None}, SpecError, "global_batch"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(change: dict[str, Any], kind: type[UserError], words: str) -> None:
    with pytest.raises(kind, match=words):
        read_plan({**LEAST, **change})


@pytest.mark.parametrize("missing", ["global_batch", "seq_len"])
def test_what_is_required_is_asked_for(missing: str) -> None:
    with pytest.raises(SpecError, match=f"{missing} is not given: it is needed"):
        read_plan({name: value for name, value in LEAST.items() if name != missing})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        ("tp: [", "line 1: expected the node content"),
        ("- tp", "no mapping"),
        ("tp: 2\n2: 3\nglobal_batch: 8\nseq_len: 8\n", "unknown plan field '2'"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, content: str | None, words: str) -> None:
    file = tmp_path / "plan.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UserError, match=words) as caught:
        read_plan(file)
    assert str(file) in str(caught.value)


def test_a_mistake_in_a_file_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    for text in ("tp: many", "recompute: most", "tpp: 2"):
        file.write_text(f"global_batch: 8\nseq_len: 512\n{text}\n")
        with pytest.raises(UserError, match=r"plan\.yaml"):
            read_plan(file)
    with pytest.raises(InputFileError):
        read_plan(tmp_path)


@pytest.mark.parametrize(
    ("text", "parts", "layers"),
    [
        ("none", frozenset(), 0),
        ("full", frozenset(), None),
        ("full:3", frozenset(), 3),
        # A block is made again from its input on, its activation with it.
        ("selective:mlp", frozenset({"mlp", "activation"}), 0),
        ("selective:mlp,norms,mlp", frozenset({"mlp", "activation", "norms"}), 0),
        (
            "selective:" + ",".join(RECOMPUTE_PARTS),
            frozenset({*RECOMPUTE_PARTS, "router", "moe_permute", "moe_transfer"}),
            0,
        ),
    ],
)
def test_recomputation_is_read(text: str, parts: frozenset[str], layers: int | None) -> None:
    plan = read_plan({**LEAST, "recompute": text})
    assert plan.recompute_parts == parts
    assert plan.recompute_layers == layers


@pytest.mark.parametrize(
    "text", ["", "all", "none:1", "full:", "full:0", "full:-1", "full:٣", "selective", "selective:", "selective:mlp,x"]
)
def test_recomputation_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"full:N or selective:PART|leave it out"):
        read_plan({**LEAST, "recompute": text})
    with pytest.raises(SpecError, match=r"full:N or selective:PART|leave it out"):  # built in Python, past the reader
        predict("gpt2", "h100-sxm:1", Plan(global_batch=8, seq_len=512, recompute=text))
