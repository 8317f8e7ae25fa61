from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from windtunnel.faces.report.documents import write_report
from windtunnel.faces.report.draw.page import page_of
from windtunnel.faces.report.prediction.views import prediction_document
from windtunnel.physics.step.result import Result

NAMES = ["result", "disturbed", "faster", "infeasible", "bare", "hostile"]


def render_html(result: Result) -> str:
    return page_of(prediction_document(result))


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: dict[str, list[str]] = {}
        self.feed(text)
        assert self.open == [], "unbalanced tags"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "br", "img", "input"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text.setdefault(self.open[-1], []).append(data)

    def classes(self) -> list[str]:
        return [name for _, attrs in self.tags for name in (attrs.get("class") or "").split()]


def _data(text: str) -> dict:
    match = re.search(r'<script type="application/json" class="views-data" id="data">(.*?)</script>', text, re.DOTALL)
    assert match is not None
    return json.loads(match[1])


@pytest.mark.parametrize("name", NAMES)
def test_needs_nothing_from_outside(name: str, request: pytest.FixtureRequest) -> None:
    text = render_html(request.getfixturevalue(name))
    assert not re.search(r"https?:|//[a-z]", re.sub(r"(?m)^\s*//.*$", "", text))
    assert "url(" not in text
    assert "@import" not in text
    assert not [attrs for _, attrs in Page(text).tags if {"src", "href", "srcset", "action"} & set(attrs)]
    assert "default-src 'none'" in text


@pytest.mark.parametrize("name", NAMES)
def test_every_colour_is_defined(name: str, request: pytest.FixtureRequest) -> None:
    text = render_html(request.getfixturevalue(name))
    lanes = [one["categories"] for one in _data(text).values() if "categories" in one]
    used = {c for c in Page(text).classes() if re.fullmatch(r"[a-z]+-\d", c)} | {
        c["slot"] for lane in lanes for c in lane
    }
    for slot in used:
        assert f".{slot} {{" in text
        assert text.count(f"--{slot}: #") >= 2, f"{slot} lacks a light or a dark colour"


def test_the_bars_of_the_breakdown_fill_the_whole(result: Result) -> None:
    text = render_html(result)
    stacks = re.findall(r'<div class="stack[^>]*>(.*?)</div>', text, re.DOTALL)
    widths = [[float(w) for w in re.findall(r'class="seg [^"]*" style="width:([\d.]+)%', stack)] for stack in stacks]
    n_stages = len(result.stages)
    whole, fullest, memory, stages = widths[0], widths[1], widths[2 : 2 + n_stages], widths[2 + n_stages :][:n_stages]
    assert len(whole) == len(result.breakdown_ns)
    assert [len(row) for row in stages] == [len(stage.breakdown_ns) for stage in result.stages]
    for row in (whole, fullest):
        assert sum(row) == pytest.approx(100.0, abs=0.01)
    assert [sum(row) for row in stages] == pytest.approx([sum(stages[0])] * n_stages, abs=0.02)  # all take the step
    # Memory bars are on one scale: lengths are proportional to bytes.
    per_percent = [stage.device_bytes / sum(row) for stage, row in zip(result.memory, memory, strict=True)]
    assert max(per_percent) == pytest.approx(min(per_percent), rel=1e-3)


def test_printed_breakdown_adds_up(result: Result) -> None:
    table = re.search(
        r'id="where-the-step-goes.*?<tbody>(.*?)</tbody>.*?<tfoot>(.*?)</tfoot>', render_html(result), re.DOTALL
    )
    assert table is not None
    parts = [float(value) for value in re.findall(r"<td>([\d.]+) s</td>", table[1])]
    assert len(parts) == len(result.breakdown_ns)
    assert sum(parts) == pytest.approx(float(re.findall(r"<td>([\d.]+) s</td>", table[2])[0]), abs=1e-9)
    assert sum(float(value) for value in re.findall(r"<td>([\d.]+) %</td>", table[1])) == pytest.approx(100.0)


def test_the_timeline_holds_every_op(result: Result) -> None:
    data = _data(render_html(result))["timeline"]
    lanes = [lane for lane in data["lanes"] for _ in range(lane["count"])]
    columns = zip(lanes, data["start"], data["length"], data["category"], data["label"], strict=True)
    found = sorted(
        (lane["group"], lane["name"], data["labels"][label], data["first"] + start, data["first"] + start + length)
        for lane, start, length, _, label in columns
    )
    assert found == sorted(
        (result.class_name(op.stage), op.stream, op.label, op.start_ns, op.end_ns) for op in result.excerpt
    )


def test_hostile_text_stays_text(hostile: Result) -> None:
    text = render_html(hostile)
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert "alert(1)" not in "".join(part for part in page.text["script"] if not part.lstrip().startswith("{"))
    assert "49" not in page.text["h1"][0]
    assert "</script><script>" in page.text["h1"][0]
    assert "\x1b" not in text
    assert _data(text)["timeline"]["labels"]


def test_infeasible_comes_first(infeasible: Result, bare: Result) -> None:
    text = render_html(infeasible)
    assert text.index("Does not fit: ") < text.index("step time")
    assert "17.7 GiB too much" in text
    assert 'id="timeline"' not in render_html(bare)
    assert "step time" not in render_html(bare)


def test_same_result_same_bytes(result: Result, tmp_path: Path) -> None:
    write_report(result, tmp_path / "a.html")
    write_report(Result.from_dict(json.loads(json.dumps(result.to_dict()))), tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_the_console_does_not_pay_for_the_page() -> None:
    code = (
        "import sys, windtunnel.faces.report.prediction.views, windtunnel.faces.report.draw.console;"
        "print([name for name in ('jinja2', 'pydantic', 'numpy', 'yaml') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"


def test_passes_are_told_apart_and_lanes_do_not_claim_exposure(result: Result) -> None:
    from dataclasses import replace

    labels = ("forward", "backward", "backward-input", "backward-weight", "")
    ops = [replace(result.excerpt[0], label=label, category="compute") for label in labels]
    ops.append(replace(result.excerpt[0], stream="dp", label="gather", category="exposed dp (scale-out)"))
    data = _data(render_html(replace(result, excerpt=tuple(ops))))["timeline"]
    names = [category["label"] for category in data["categories"]]
    assert names == ["backward", "compute", "forward", "weight gradient", "DP (scale-out)"]
    assert len({category["slot"] for category in data["categories"]}) == 4


def test_lists_in_the_spec_and_sources_find_their_place(result: Result) -> None:
    from dataclasses import replace

    model = {"name": "m", "layers": [{"repeat": 3, "kind": "gqa"}, {"repeat": 1}], "sizes": (1, 2)}
    cluster = {"name": "c", "unset": None, "sources": {"gpu": "data sheet, 2023"}}
    text = render_html(replace(result, spec={"model": model, "cluster": cluster}))
    assert '<td class="text">model.layers.1.repeat</td><td class="text">1</td>' in text
    assert '<td class="text">model.sizes</td><td class="text">1, 2</td>' in text
    assert "unset" not in text
    assert text.index("Sources of the hardware") < text.index("data sheet, 2023")
