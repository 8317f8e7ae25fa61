"""Jobs to choose in the picture of a fleet: their times, and what was held when they came."""

from pathlib import Path

from windtunnel.faces.report.fleet.page import Occupancy, _bars, write_fleet_page


def run(waited: tuple[float, ...] = (0.0, 95.0)) -> Occupancy:
    return Occupancy("fifo", [0.0, 100.0], [100.0, 130.0], [800.0, 240.0], ["a", "<b>"], waited)


def test_a_job_says_its_times_and_what_was_held_when_it_came() -> None:
    bars, lanes = _bars(run(), 0.0, 130.0, 8)
    assert lanes == 1  # one after the other
    assert bars[0]["cells"] == ["<b>", "8", "5 s", "95 s", "100 s", "130 s", "8 of 8 GPUs were held when it came"]
    assert bars[1]["cells"][-1] == "it did not wait"
    larger, _ = _bars(run(), 0.0, 130.0, 16)
    assert larger[0]["cells"][-1].startswith("8 GPUs were free")


def test_names_of_jobs_are_never_markup(tmp_path: Path) -> None:
    document = {"policies": {"fifo": {"policy": "fifo"}}, "gpus": 8, "trace": "t", "cluster": "c", "left_out": {}}
    write_fleet_page(tmp_path / "fleet.html", document, [run()])
    text = (tmp_path / "fleet.html").read_text()
    assert "&lt;b&gt;" in text
    assert "<b>" not in text
