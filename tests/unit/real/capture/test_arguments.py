from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.errors import LayoutError, SpecError, UserError
from windtunnel.real.capture.arguments import WITH_VALUE, parse_launch, split_words

OWN, SWITCHES = {"--world-size", "--cluster", "--seed"}, {"--quiet"}


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_torchruns_words_are_understood_in_all_their_spellings(script: str) -> None:
    for words in (
        ["--nnodes", "2", "--nproc-per-node", "8"],
        ["--nnodes=2", "--nproc_per_node=8"],
        ["--nnodes=1:2", "--nproc-per=8", "--rdzv_backend", "c10d", "--rdzv-endpoint=head:29501"],
        ["--nnodes", "2", "--nproc_per_node", "gpu", "-t", "3", "-r3"],
    ):
        launch = parse_launch([*words, script, "--lr", "3", "-m"], environ={})
        assert (launch.world_size, launch.local_world_size) == (16, 8)
        assert launch.target == script
        assert launch.arguments == ("--lr", "3", "-m")
        assert not launch.is_module


def test_environment_variables_are_torchruns_defaults(script: str) -> None:
    environ = {"PET_NNODES": "4", "PET_NPROC_PER_NODE": "2"}
    assert parse_launch([script], environ=environ).world_size == 8
    assert parse_launch(["--nnodes", "1", script], environ=environ).world_size == 2


def test_a_module_and_its_arguments() -> None:
    launch = parse_launch(["-m", "torchtitan.train", "--job.config", "x.toml"], world_size=16, environ={})
    assert (launch.target, launch.is_module) == ("torchtitan.train", True)
    assert launch.arguments == ("--job.config", "x.toml")
    assert launch.line == "-m torchtitan.train"


def test_the_environment_of_a_rank_places_it_in_its_node(script: str) -> None:
    launch = parse_launch(["--rdzv-endpoint", "head:1234", script], world_size=8192, environ={})
    environment = launch.environment(8191)
    expected = {
        "RANK": "8191",
        "LOCAL_RANK": "7",
        "GROUP_RANK": "1023",
        "WORLD_SIZE": "8192",
        "LOCAL_WORLD_SIZE": "8",
        "GROUP_WORLD_SIZE": "1024",
        "MASTER_ADDR": "head",
        "MASTER_PORT": "1234",
    }
    assert expected.items() <= environment.items()
    assert all(isinstance(value, str) for value in environment.values())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--no-python", "train.sh"], "--no-python"),
        (["--nprocs", "8", "x"], "goes after it"),
        (["--nproc-per-node", "0", __file__], "--nproc-per-node"),
        (["missing.py"], "no such file"),
        ([], "name the script"),
        (["--standalone"], "name the script"),
        (["--nnodes"], "give a value"),
    ],
)
def test_mistakes_name_what_is_wrong(words: list[str], text: str) -> None:
    with pytest.raises(UserError, match=text):
        parse_launch(words, world_size=8, environ={})


@pytest.mark.parametrize("words", [["--world-size", "8"], ["--world_size=8"], ["--lr", "1", "--world-size", "8"]])
def test_an_option_behind_the_script_is_found_there(words: list[str]) -> None:
    with pytest.raises(SpecError, match="put --world-size before the script"):
        parse_launch([__file__, *words], environ={})
    with pytest.raises(SpecError, match="say how many ranks"):
        parse_launch([__file__], environ={})


def test_sizes_that_clash_are_refused(script: str) -> None:
    with pytest.raises(LayoutError, match="= 16 ranks, not 32"):
        parse_launch(["--nnodes", "2", "--nproc-per-node", "8", script], world_size=32, environ={})
    with pytest.raises(LayoutError, match="no multiple of 8"):
        parse_launch([script], world_size=12, environ={})
    with pytest.raises(SpecError, match="say how many ranks"):
        parse_launch([script], environ={})


def test_own_options_are_told_from_torchruns_and_the_scripts() -> None:
    script = ["pkg", "--seed", "2", "--quiet", "--", "z"]
    words = ["--nnodes", "2", "--world_size=4", "--quiet", "--seed", "1", "-m", *script]
    own = ["--world-size=4", "--quiet", "--seed", "1"]
    assert split_words(words, OWN, SWITCHES) == [*own, "--", "--nnodes", "2", "-m", *script]


def test_a_double_dash_before_the_script_is_dropped_once() -> None:
    assert split_words(["--seed", "1", "--", "train.py", "--", "x"], OWN, SWITCHES) == [
        "--seed", "1", "--", "train.py", "--", "x",
    ]  # fmt: skip


def test_every_option_of_the_installed_torchrun_is_known() -> None:
    run = pytest.importorskip("torch.distributed.run")
    parser = run.get_args_parser()
    for action in parser._actions:
        for word in action.option_strings:
            if word in ("-h", "--help") or not word.startswith("--"):
                continue
            name = word.removeprefix("--").replace("_", "-")
            takes_value = action.nargs != 0
            assert (name in WITH_VALUE) == takes_value, word
            words = [word, "1", "-m", "x"] if takes_value else [word, "-m", "x"]
            if name in ("no-python", "nnodes", "nproc-per-node", "module"):
                continue
            assert parse_launch(words, world_size=8, environ={}).target == "x"
