from __future__ import annotations

import io
import re
import shlex
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from windtunnel.faces.report.documents import notebook_html
from windtunnel.faces.report.draw.console import command_lines, print_document
from windtunnel.faces.report.draw.markdown import markdown_of
from windtunnel.faces.report.draw.page import page_of
from windtunnel.faces.report.prediction.views import prediction_document
from windtunnel.physics.step.result import Result
from windtunnel.views import Bar, Bars, Document, Files, Lane, Lanes, Part, Span


def _printed(result: Result, width: int = 80, encoding: str = "utf-8", full: bool = True, **options: object) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    print_document(prediction_document(result), Console(file=file, width=width, **options), full=full)  # type: ignore[arg-type]
    file.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("width", [50, 60, 80, 100, 200])
@pytest.mark.parametrize("name", ["result", "disturbed", "infeasible", "bare", "hostile"])
def test_fits_the_width_without_trailing_blanks(name: str, width: int, request: pytest.FixtureRequest) -> None:
    lines = _printed(request.getfixturevalue(name), width).splitlines()
    assert max(map(cell_len, lines)) <= min(width, 100)
    assert [line for line in lines if line != line.rstrip()] == []


def _rows(text: str, title: str) -> list[list[str]]:
    section = text[text.index(title) :].split("\n\n")[0].splitlines()[1:]
    return [re.split(r"\s{2,}", line) for line in section]


def test_breakdown_adds_up_as_printed(result: Result) -> None:
    *parts, total = _rows(_printed(result), "Where the step goes")
    assert len(parts) == len(result.breakdown_ns)
    seconds = [float(row[1].removesuffix(" s")) for row in parts]
    assert sum(seconds) == pytest.approx(float(total[1].removesuffix(" s")), abs=1e-9)
    assert float(total[1].removesuffix(" s")) == pytest.approx(result.step_time_s, abs=5e-4)
    assert sum(float(row[2].removesuffix(" %")) for row in parts) == pytest.approx(100.0)


def test_memory_adds_up_as_printed(result: Result) -> None:
    *parts, total = _rows(_printed(result), "share of the capacity")
    sizes = [float(row[1].removesuffix(" GiB")) for row in parts]
    assert sum(sizes) == pytest.approx(float(total[1].removesuffix(" GiB")), abs=1e-9)
    assert float(total[1].removesuffix(" GiB")) == pytest.approx(result.peak_memory.device_bytes / 2**30, abs=5e-3)


def test_tokens_that_are_not_known_are_not_told(result: Result) -> None:
    unknown = replace(result, tokens_per_step=0, tokens_per_s=0.0, tokens_per_s_per_gpu=0.0)
    for told in (_printed(unknown), page_of(prediction_document(unknown)), notebook_html(unknown)):
        assert "tokens/s" not in told
        assert "MFU" in told


def test_says_what_a_person_wants_to_know(result: Result) -> None:
    text = _printed(result)
    for wanted in ("16.98 s", "16.21 s – 18.03 s", "90.48 tokens/s/GPU", "22.5 %", "66.0 GiB", "79.2 GiB", "roofline"):
        assert wanted in text
    flat = " ".join(text.split())
    for wanted in (
        result.mfu_convention,
        *result.warnings,
        *result.defaults,
        *(one.flags for one in result.advice),
        "−12.5 %",
        "41 legal changes of the plan tried",
    ):
        assert wanted in flat


def test_infeasible_says_why_and_the_way_out(infeasible: Result, bare: Result) -> None:
    assert infeasible.infeasible is not None
    flat = " ".join(_printed(infeasible).split())
    assert "Does not fit" in flat
    assert "17.7 GiB too much" in flat
    for one in infeasible.advice:
        assert one.flags in flat
    assert "parameters alone do not fit" in _printed(bare)
    assert "step time" not in _printed(bare)


def test_the_first_screen_is_the_verdict_the_figures_and_what_to_change(result: Result) -> None:
    lines = _printed(result, width=100, full=False).splitlines()
    assert lines[5].startswith("Fits with 13.2 GiB to spare; 22.5 % MFU; 26.2 % of the step is pipeline bubble")
    assert len(lines) <= 45
    assert {*map(str.strip, lines)} - {""} - {"--full shows the rest, --report FILE.html draws it."} <= {
        *map(str.strip, _printed(result, width=100).splitlines())
    }
    assert " 0.000 s" not in "\n".join(lines)


def test_markdown_and_notebook_say_the_same_verdict(result: Result, hostile: Result) -> None:
    verdict = "Fits with 13.2 GiB to spare"
    assert verdict in markdown_of(prediction_document(result))
    assert verdict in notebook_html(result)
    for text in (markdown_of(prediction_document(hostile)).split("```")[0], notebook_html(hostile)):
        assert "<script" not in text
        assert "\x1b" not in text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_old_encodings_lose_beauty_not_facts(result: Result, encoding: str) -> None:
    text = _printed(result, encoding=encoding)
    assert "####" in text
    assert "16.977 s" in text


def test_without_colour_there_are_no_escapes(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in _printed(result)
    assert "\x1b[3" in _printed(result, force_terminal=True, color_system="standard")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in _printed(result, force_terminal=True, color_system="standard")


def test_hostile_names_are_only_text(hostile: Result) -> None:
    text = _printed(hostile)
    assert "\x1b" not in text
    assert "[red]" in text


@pytest.mark.parametrize("columns", [20, 40, 78, 200])
def test_folded_command_means_the_same(result: Result, columns: int) -> None:
    command = result.reproduce + " --note 'two  words' --empty ''"
    assert shlex.split(command_lines(command, columns).replace("\\\n", "")) == shlex.split(command)


def test_same_result_same_text(result: Result) -> None:
    assert _printed(result) == _printed(Result.from_dict(result.to_dict()))


def test_classes_that_are_no_stages_have_names_of_their_own(result: Result) -> None:
    numbers = [one.stage for one in result.memory]
    named = replace(result, class_names=tuple(f"ranks like {number}" for number in range(max(numbers) + 1)))
    fullest = result.peak_memory.stage
    assert f"on stage {fullest}" in _printed(result)
    assert f"on ranks like {fullest}" in _printed(named)
    assert f"stage {fullest}" not in _printed(named)


def test_shades_of_bars_are_named_where_each_has_one_of_its_own() -> None:
    def printed(*names: str) -> str:
        return drawn([Bar(row, [Part(name, 1.0) for name in names]) for row in ("here", "there")])

    def drawn(bars: list[Bar]) -> str:
        console = Console(record=True, width=80, file=io.StringIO())
        print_document(Document("t", "title", [Bars("Where it goes", "s", bars)]), console)
        return console.export_text()

    assert "\u2588 trains  \u2593 waits  \u2592 starts" in printed("trains", "waits", "starts")
    missing = [Bar("here", [Part("trains", 2.0), Part("waits", 1.0)]), Bar("there", [Part("waits", 3.0)] * 2)]
    assert "\u2593" * 40 in drawn(missing)  # one shade for a label, wherever it stands in its bar
    many = printed("trains", "waits", "starts", "loads", "saves")
    assert "starts" not in many
    assert "\u2593" not in many
    assert "\u2588" * 40 in many


def test_a_patch_is_not_cut_at_the_width() -> None:
    line = "+  --micro-batch-size 1 " + "--an-option " * 30 + "\\"
    console = Console(width=80, file=io.StringIO())
    print_document(Document("t", "title", [Files("Patch", [("a", line)])]), console)
    assert line in console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_many_short_spans_of_a_lane_end_where_the_time_does() -> None:
    spans = [Span(i / 1000, (i + 0.5) / 1000, "s", "compute-0") for i in range(500)]
    late = Lane("dp", [Span(0.9, 1.0, "s", "comm-0")], "stage 12")
    lanes = Lanes("Timeline", [Lane("compute", spans, "stage 12"), late])
    console = Console(record=True, width=80, file=io.StringIO())
    print_document(Document("t", "title", [lanes]), console)
    first, last = (line for line in console.export_text().splitlines() if line.startswith("stage 12"))
    assert first.startswith("stage 12 compute")  # the label had to make room
    assert len(first.rstrip()) < len(last.rstrip()) * 0.7  # half of the time
