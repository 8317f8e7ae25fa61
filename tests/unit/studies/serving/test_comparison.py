"""`serve --measured 32ms --measured-output 2100`: whether a deployment that runs is as it should be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from windtunnel.faces.cli.app import main
from windtunnel.questions import read, run

ASKED = {
    "question": "serve",
    "model": "llama-3.1-8b",
    "cluster": "h100-sxm:1",
    "requests": {"prompt": 64, "output": 32, "requests": 20},
    "load": {"concurrency": 4},
}


def served(**measured: Any) -> Any:
    return run(read({**ASKED, **measured}))


@pytest.mark.parametrize(("factor", "verdict"), [(0.3, "faster"), (1.0, "as expected"), (3.0, "slower")])
def test_a_verdict_is_that_of_the_band(factor: float, verdict: str) -> None:
    result = served().result
    found = served(measured=result.tpot.mean * factor, measured_output=result.output_tokens_per_s / factor).measured
    assert [one.verdict for one in found] == [verdict, verdict]
    assert (found[0].p5, found[0].p95) == pytest.approx(result.tpot_band_s)
    assert found[1].p95 / found[1].predicted == pytest.approx(found[0].p95 / found[0].predicted)


def test_it_is_said_first_and_stands_in_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    words = "serve llama-3.1-8b --cluster h100-sxm:1 --prompt 64 --output 32 --requests 20 --concurrency 4"
    words += " --measured 99ms"
    main(words.split())
    printed = capsys.readouterr().out
    assert printed.index("TPOT of 99.0 ms is slower") < printed.index("Keeps up")
    main([*words.split(), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["measured"][0]["verdict"] == "slower"
    assert answer["reproduce"].endswith("--measured 99ms")


def test_nothing_changes_where_nothing_was_measured() -> None:
    assert "measured" not in served().to_dict()


def test_nothing_is_held_against_what_does_not_fit() -> None:
    found = served(model="llama-3-70b", measured=0.03)
    assert not found.measured
    assert "held against nothing" in found.warnings[-1]


def test_output_of_requests_that_come_by_themselves_is_no_verdict_until_the_queue_grows() -> None:
    kept_up = served(load={"rate": 1.0}, measured_output=5.0)
    assert not kept_up.measured
    assert "requests that come by themselves ask for" in kept_up.warnings[-1]
    (behind,) = served(
        load={"rate": 1000.0}, requests={"prompt": 2048, "output": 512, "requests": 2000}, measured_output=5.0
    ).measured
    assert behind.verdict == "slower"
    assert behind.sentence.startswith("Output of 5 tokens/s")
