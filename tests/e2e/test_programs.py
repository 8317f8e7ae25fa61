"""Programs that are not ours run unmodified under `windtunnel capture`, at 8 ranks and their smallest size.

They are the same launch lines that write docs/support.md; those whose packages are not installed are skipped.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "validation" / "programs"
sys.path.insert(0, str(FOLDER))
import run_programs  # noqa: E402 (of the folder that was just named)
from assets import write_torchtitan_assets  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed"),
]
CHOSEN = {
    # program -> kinds of communication that its step must have
    "torchtitan: Llama 3 debug model, FSDP2": {"all_gather", "reduce_scatter"},
    "torchtitan: Llama 3 debug model, TP 2": {"all_gather", "reduce_scatter"},
    "torchtitan: Llama 3 debug model, PP 2, 1F1B": {"send"},
    "torchtitan: DeepSeek-V3 debug model, EP 4": {"all_to_all"},
    "transformers Trainer, DDP": {"all_reduce"},
    "transformers Trainer, FSDP 2": {"all_gather", "reduce_scatter"},
    "Lightning, DDP": {"all_reduce"},
    "megatron-core GPT, TP 2": {"all_reduce"},
}
BY_NAME = {program.name: program for program in run_programs.PROGRAMS}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where programs are started: torchtitan looks for its assets here."""
    if find_spec("tokenizers") is None:
        return tmp_path_factory.mktemp("programs")
    return write_torchtitan_assets(tmp_path_factory.mktemp("programs"))


@pytest.mark.parametrize("name", CHOSEN)
def test_a_program_is_captured_unmodified(name: str, place: Path) -> None:
    """It trains two steps, is folded, equals a rank drawn at random, and calls what its layout needs."""
    program = BY_NAME[name]
    if absent := run_programs.missing(program):
        pytest.skip(f"{', '.join(absent)} not installed")
    capture = run_programs.capture(program, program.small, place, 300.0, verify=1)
    assert capture["ok"], capture["why"]
    import yaml

    document: dict[str, Any] = yaml.safe_load((Path(str(capture["folder"])) / "captured.yaml").read_text())
    called = {kind for one in document["classes"] for kind in one["collectives"]}
    assert CHOSEN[name] <= called
    assert document["verification"]["equal"]
    assert sum(one["ranks"] for one in document["classes"]) == program.small


def test_every_chosen_program_is_listed() -> None:
    """The names above are those of the list."""
    assert set(CHOSEN) <= set(BY_NAME)
