from __future__ import annotations

import dataclasses
import io
import itertools
import json

import pytest
from rich.console import Console

from windtunnel.faces.report.comparison.compare import compare
from windtunnel.faces.report.comparison.views import comparison_document
from windtunnel.faces.report.draw.console import print_document
from windtunnel.physics.step.result import Result

PAIRS = list(itertools.product(["result", "faster", "infeasible", "bare"], repeat=2))


@pytest.mark.parametrize(("one", "two"), PAIRS)
def test_laws(one: str, two: str, request: pytest.FixtureRequest) -> None:
    a, b = request.getfixturevalue(one), request.getfixturevalue(two)
    there, back = compare(a, b), compare(b, a)
    assert there.causes_ns == {key: -ns for key, ns in back.causes_ns.items()}
    assert there.memory_causes_bytes == {key: -n for key, n in back.memory_causes_bytes.items()}
    assert [(d.field, d.a, d.b) for d in there.spec] == [(d.field, d.b, d.a) for d in back.spec]
    assert sum(there.causes_ns.values()) == there.step_ns == -back.step_ns
    assert sum(there.memory_causes_bytes.values()) == there.memory_bytes == -back.memory_bytes
    if there.timed:
        assert there.step_ns == b.step_time_ns - a.step_time_ns
    json.dumps(there.to_dict(), allow_nan=False)


@pytest.mark.parametrize("name", ["result", "infeasible", "bare"])
def test_a_result_does_not_differ_from_itself_read_back(name: str, request: pytest.FixtureRequest) -> None:
    result = request.getfixturevalue(name)
    same = compare(result, Result.from_dict(json.loads(result.to_json())))
    assert set(same.causes_ns.values()) <= {0}
    assert set(same.memory_causes_bytes.values()) <= {0}
    assert same.spec == ()


def test_the_sentence_names_the_cause_and_the_change(result: Result, faster: Result, bare: Result) -> None:
    text = compare(result, faster).explanation
    assert "16.0 % less time" in text
    assert "pipeline bubble −2.900 s" in text
    assert "plan.virtual_stages 1 → 4" in text
    assert "19.0 % more time" in compare(faster, result).explanation
    assert "B does not fit: parameters alone do not fit, 121 GiB too much on stage 3; A does." in (
        compare(result, bare).explanation
    )
    assert "Neither A nor B fits: A by 121 GiB, B by 121 GiB." in compare(bare, bare).explanation
    assert "A does not fit" in compare(bare, result).explanation


def test_disturbances_are_part_of_what_was_asked(result: Result) -> None:
    from dataclasses import replace

    slow = replace(result, reproduce=f"{result.reproduce} --slow gpu=3:1.2 --slow gpu=4:1.5 --jitter 0.02")
    found = compare(slow, result)
    assert [(one.field, one.a, one.b) for one in found.spec] == [
        ("slow", ["gpu=3:1.2", "gpu=4:1.5"], None),
        ("jitter", "0.02", None),
    ]
    assert "slow gpu=3:1.2, gpu=4:1.5 → none, jitter 0.02 → none." in found.explanation


def test_sources_and_names_of_links_follow_from_their_numbers(result: Result) -> None:
    from dataclasses import replace

    def on(**link: object) -> Result:
        cluster = {
            "name": "ours",
            "scale_out": {"name": "NDR", "bandwidth_bytes_per_s": 50e9, "latency_s": 3e-6, **link},
        }
        return replace(result, spec={**result.spec, "cluster": {**cluster, "sources": {"gpus": str(link)}}})

    def said(**link: object) -> list[str]:
        return [one.field for one in compare(on(), on(**link)).spec]

    assert said(name="XDR", bandwidth_bytes_per_s=100e9) == ["cluster.scale_out.bandwidth_bytes_per_s"]
    assert said(name="XDR") == ["cluster.scale_out.name"]
    text = compare(on(), on(bandwidth_bytes_per_s=100e9)).explanation
    assert "cluster.scale_out.bandwidth 50.0 GB/s → 100 GB/s" in text
    # What units would round away is written out.
    assert "50,000,000,000 → 50,000,000,001" in compare(on(), on(bandwidth_bytes_per_s=50e9 + 1)).explanation
    assert "cluster.scale_out.latency 3.00 us → 4.00 us" in compare(on(), on(latency_s=4e-6)).explanation


def test_overlapping_bands_are_said(result: Result) -> None:
    from dataclasses import replace

    near = replace(
        result,
        step_time_ns=result.step_time_ns + 10,
        breakdown_ns={**result.breakdown_ns, "host": result.breakdown_ns["host"] + 10},
    )
    assert "bands overlap" in compare(result, near).explanation
    bigger = replace(result, tokens_per_step=2 * result.tokens_per_step)
    assert "tokens/s/GPU" in compare(result, bigger).explanation


@pytest.mark.parametrize(("one", "two"), PAIRS)
@pytest.mark.parametrize("width", [60, 80])
def test_console(one: str, two: str, width: int, request: pytest.FixtureRequest) -> None:
    file = io.StringIO()
    both = compare(request.getfixturevalue(one), request.getfixturevalue(two))
    print_document(comparison_document(both), Console(file=file, width=width))
    text = file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert both.a.content_hash in text
    assert ("Where the time differs" in text) == bool(both.step_ns)


def test_console_differences_add_up(result: Result, faster: Result) -> None:
    file = io.StringIO()
    print_document(comparison_document(compare(result, faster)), Console(file=file, width=80))
    section = file.getvalue().split("Where the time differs")[1].split("\n\n")[0].splitlines()[1:]
    values = {line[:17].strip(): float(line[17:].split(" s")[0].replace("−", "-")) for line in section}
    total = values.pop("step")
    assert sum(values.values()) == pytest.approx(total, abs=1e-9)


def test_the_gradient_norm_is_one_line_on_whichever_tier(result: Result) -> None:
    moved = 10**6
    largest, much = max(result.breakdown_ns.items(), key=lambda part: part[1])

    def on(tier: str, ns: int) -> Result:
        parts = {**result.breakdown_ns, largest: much - ns, f"exposed world (scale-{tier})": ns}
        return dataclasses.replace(result, breakdown_ns=parts)

    file = io.StringIO()
    print_document(comparison_document(compare(on("out", moved), on("up", moved // 2))), Console(width=100, file=file))
    assert len([line for line in file.getvalue().splitlines() if line.startswith("exposed gradient norm ")]) == 1


def test_a_run_that_was_moved_by_a_measured_one_is_named(request: pytest.FixtureRequest) -> None:
    plain: Result = request.getfixturevalue("result")
    moved = dataclasses.replace(plain, warnings=("anchored: my-run.yaml took 1.2 times what is predicted for it",))
    for a, b, name in ((moved, plain, "A"), (plain, moved, "B")):
        assert f"the same thing; {name} is moved by what a run measured" in compare(a, b).explanation
    assert "the same thing." in compare(plain, plain).explanation
