from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from inspect import signature
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
from calibrated_cpu import calibrated_cpu
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windtunnel.errors import UserError
from windtunnel.faces.cli.app import build, main
from windtunnel.faces.cli.flags import FlagValues, command, spelled
from windtunnel.faces.cli.output import cold
from windtunnel.faces.cli.predict import plan_below
from windtunnel.faces.cli.verbs import HOME, LAUNCHERS
from windtunnel.physics.hardware import Cluster
from windtunnel.physics.model import Model
from windtunnel.questions import QUESTIONS, question_class, read
from windtunnel.questions.asked.predict import Predict
from windtunnel.questions.former import current
from windtunnel.questions.old import question_of_command
from windtunnel.questions.words import flag_fields, from_flags, positional_of
from windtunnel.real.calibrate.document import to_yaml
from windtunnel.real.emulate.question import doubts
from windtunnel.studies.predict import answer
from windtunnel.studies.training.plan import FIELDS, Plan, read_plan
from windtunnel.studies.training.question import cluster_of, model_of

ASKED = {"global_batch": 16, "seq_len": 4096}
SWITCHES = ("--overlap-tp", "--compile", "--cuda-graphs", "--overlap-grad-reduce")


@dataclasses.dataclass
class Read:
    """A question's parts as objects."""

    cluster: Cluster
    model: Model
    plan: Plan


def ask(*sets: str, plan: Path | None = None, **flags: Any) -> Read:
    question = asked(*sets, plan=plan, **flags)
    cluster = cluster_of(question.cluster)
    return Read(cluster, model_of(question.model, cluster.n_gpus), read_plan(question.plan))


def asked(*sets: str, model: str = "llama-3-8b", plan: Path | None = None, **flags: Any) -> Predict:
    words = {"model": model, "cluster": "h100-sxm:16", **ASKED, **flags}
    texts = {name.replace("_", "-"): value if isinstance(value, bool) else str(value) for name, value in words.items()}
    files = {} if plan is None else {"plan": str(plan)}
    given = FlagValues({name: value for name, value in texts.items() if value != "None"}, files, sets)
    below = plan_below(given)
    question: Predict = from_flags("predict", given.flags, sets, below.parts, below.path)
    return question


def plan_or_message(spec: Any) -> Plan | str:
    try:
        return read_plan(spec)
    except UserError as error:
        return str(error)


def test_every_plan_field_is_a_flag() -> None:
    flags = flag_fields(Predict)
    for name in FIELDS:
        assert "plan." + name in {field.path for field in flags[name.replace("_", "-")]}


def test_few_flags_are_shown_and_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in QUESTIONS:
        assert main([*verb.split(), "--help"]) == 0
        few = set(re.findall(r"^\S\s+\*?\s*--([\w-]+)", capsys.readouterr().out, re.MULTILINE))
        assert main([*verb.split(), "--help-all"]) == 0
        every = set(re.findall(r"^\S\s+\*?\s*--([\w-]+)", capsys.readouterr().out, re.MULTILINE))
        assert len(few - {"help"}) <= 20, (verb, sorted(few))
        assert few <= every
        assert set(flag_fields(question_class(verb))) - {*positional_of(question_class(verb))} <= every, verb


@pytest.mark.parametrize("text", ["7;8", "", "7,,8", "7,-8x", "٧,٨"])
def test_layers_per_stage_is_counts(text: str) -> None:
    with pytest.raises(UserError, match="layers-per-stage"):
        asked(layers_per_stage=text)


def test_switches_take_on_and_off_as_results_print_them() -> None:
    words = ["predict", "--overlap-tp", "true", "--compile=off", "--cuda-graphs", "--tp", "8", "--overlap-ep", "no"]
    found = ["predict", "--overlap-tp", "--no-compile", "--cuda-graphs", "--tp", "8", "--no-overlap-ep"]
    assert spelled(words) == found


@pytest.mark.parametrize("verb", sorted({verb.split()[0] for verb in QUESTIONS}))
def test_a_switch_takes_no_word_behind_it(verb: str) -> None:
    """`serve ... --full --report run.html` was read as a `--full` of the value --report."""
    module = import_module(f"windtunnel.faces.cli.{HOME.get(verb, verb)}")
    for row in getattr(module, "COMMANDS", ()):
        switches = [
            f"--{name}"
            for name, argument in signature(command(*row)).parameters.items()
            if get_args(argument.annotation)[0] is bool and argument.name in row.outputs
        ]
        assert "--json" in switches or "json" not in row.outputs
        for switch in switches:
            words = [*row.verb.split(), "there", switch, "--report", "run.html"]
            assert spelled(current(words)) == words


@pytest.mark.parametrize("verb", ["predict", "serve plan", "fleet", "model", "schema"])
def test_help_says_where_its_rarer_flags_are(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*verb.split(), "--help"]) == 0
    short = capsys.readouterr().out
    assert main([*verb.split(), "--help-all"]) == 0
    long = capsys.readouterr().out
    assert (f"Rarer flags: windtunnel {verb} --help-all" in short) == (short != long)
    assert "Rarer flags" not in long


@given(st.lists(st.sampled_from(["--tp", "8", "model", "--x=on", "--", "on", *SWITCHES]), max_size=8))
def test_spelling_out_twice_is_spelling_out_once(words: list[str]) -> None:
    # A value is eaten only behind a switch, so that a bare "on" elsewhere stays what it is.
    once = spelled(["predict", *words])
    if not any(a in SWITCHES and b == "on" for a, b in pairwise(once)):
        assert spelled(once) == once


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("llama-3-8b", "--cluster is not given: GPU and count, e.g. h100-sxm:8192, or a cluster file in YAML; see"),
        ("--cluster h100-sxm:8", "MODEL is not given: Name of a shipped model, e.g. llama-3.1-405b"),
        ("llama-3-8b --cluster", "--cluster has no value (one that begins with - is written --cluster=-1)"),
        ("llama-3-8b --clustr h100-sxm:8", "--cluster is not given: did you mean --cluster instead of --clustr?"),
    ],
)
def test_a_word_that_is_missing_is_named(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *words.split()]) == 2
    assert capsys.readouterr().err.startswith(f"windtunnel: error: {said}")


@pytest.mark.parametrize(
    ("name", "habits"),
    [
        ("trl", "fsdp"),
        ("huggingface", "fsdp"),
        ("Megatron-Bridge", "megatron"),
        ("gpt-neox", "megatron-deepspeed"),
        ("Megatron_DeepSpeed", "megatron-deepspeed"),
    ],
)
def test_a_trainer_by_another_name_is_met_by_whose_habits_it_has(
    name: str, habits: str, capsys: pytest.CaptureFixture[str]
) -> None:
    advice = f"give {habits}, whose habits {name} has, or its launch file"
    asked = {"question": "predict", "model": "llama-3-8b", "cluster": "h100-sxm:8", "plan": {"framework": name}}
    with pytest.raises(UserError, match=re.escape(f"({advice})")):
        read(asked)
    assert main(["predict", "llama-3-8b", "--cluster", "h100-sxm:8", "--framework", name]) == 2
    assert capsys.readouterr().err.endswith(f'"maxtext"; {advice}\n')
    assert main(["predict", "llama-3-8b", "--cluster", "h100-sxm:8", "--framework", "nobody"]) == 2
    assert "habits" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("plan llama-3-8b --cluster h100-sxm:8 --bogus", "unknown option --bogus: see `windtunnel plan --help`"),
        (
            "plan llama-3-8b --cluster h100-sxm:8 --techniques lina centauri",
            "nothing takes 'centauri': an option has one value, and is given again for another; see `windtunnel plan",
        ),
        ("sweep --bogus", "unknown option --bogus: see `windtunnel sweep --help`"),
        ("fleet flows t.txt --bogus=3", "unknown option --bogus: see `windtunnel fleet flows --help`"),
        ("predict llama-3-8b --cluster h100:8 --mbs 2", "unknown option --mbs: did you mean --micro-batch?"),
        ("predict llama-3-8b --cluster h100:8 --gpus 8", "unknown option --gpus: did you mean --cluster?"),
        ("predict llama-3-8b --cluster h100:8 --zero 3", "unknown option --zero: did you mean --zero-stage?"),
        (
            "predict llama-3-8b --cluster h100:8 --batch 4",
            "unknown option --batch: did you mean --micro-batch or --global-batch",
        ),
        ("fleet t.csv --polcy fifo", "unknown option --polcy: did you mean --policy?"),
        (
            "predict llama-3-8b --cluster h100:8 --log a.out",
            "unknown option --log: it belongs to `windtunnel diagnose` and `windtunnel rl` and `windtunnel survive`",
        ),
        (f"diagnose llama-3-8b {__file__} --cluster h100:8", f"nothing takes {__file__!r}: if it is what was measured"),
        ("plan llama-3-8b --cluster h100-sxm:8 --global-bach=4", "unknown option --global-bach: did you mean"),
    ],
)
def test_an_option_that_is_unknown_is_met_by_what_is_near_or_by_the_help(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # The dashes that all options begin with do not make two of them alike.
    assert main(words.split()) == 2
    assert capsys.readouterr().err.startswith(f"windtunnel: error: {said}")


def test_flags_win_over_the_plan_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("tp: 4\npp: 2\nglobal_batch: 64\nseq_len: 2048\n")
    plan = ask(plan=file, tp=2, global_batch=None).plan
    assert (plan.tp, plan.pp, plan.global_batch) == (2, 2, 64)


@pytest.mark.parametrize("line", ["tensor: 3", "tp: many"])
def test_a_mistake_in_the_plan_file_names_the_file(tmp_path: Path, line: str) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(f"{line}\nseq_len: 2048\nglobal_batch: 8\n")
    with pytest.raises(UserError, match=re.escape(str(file))):
        ask(plan=file)
    with pytest.raises(UserError) as caught:
        ask(plan=None, tp="many")
    assert str(file) not in str(caught.value)


def test_set_changes_one_number() -> None:
    question = ask("cluster.nic=800Gb/s", "model.layers=4", "plan.micro_batch=2", "cluster.gpu.memory=100 GB")
    assert question.cluster.scale_out.bandwidth_bytes_per_s == 100e9
    assert question.cluster.scale_out.latency_s == ask().cluster.scale_out.latency_s
    assert question.cluster.gpu.memory_bytes == 100_000_000_000
    assert question.model.n_layers == 4
    assert question.plan.micro_batch == 2


def test_setting_nothing_new_changes_nothing() -> None:
    assert ask("cluster.scale_out.bandwidth=400Gb/s").cluster == ask().cluster


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nic=800Gb/s", "did you mean cluster.scale_out"),
        ("cluster.nic", "PATH=VALUE"),
        ("cluster.nic=2026-13-45", "^--set: cluster.nic = '2026-13-45': "),  # to YAML a date, and there is none such
        ("cluster.nick=800Gb/s", "nick"),
        ("cluster.nic=800gb", "800gb"),
        ("cluster.n_gpus.x=1", "holds no x"),
        ("model.depth=3", "depth"),
        ("plan.tq=3", "tq"),
        ("plan.tp=many", "tp"),
    ],
)
def test_a_set_that_means_nothing_is_one_message(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        ask(text)


def test_a_setting_out_of_range_names_the_option_and_the_key() -> None:
    with pytest.raises(UserError, match=r"^--set: model\.layers = -1: "):
        ask("model.layers=-1")


def test_a_model_that_is_none_is_said_before_what_else_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds neither config\.json nor captured\.yaml"):
        answer(asked(model=str(tmp_path)))
    with pytest.raises(UserError, match=r"unknown model 'captures'.*captured folder"):
        answer(asked(model="captures"))


def test_launch_flags_of_a_captured_script_are_refused_before_it_is_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "captured.yaml").touch()
    assert main(["predict", str(tmp_path), "--cluster", "h100-sxm:8", "--launch-flags", "megatron"]) == 2
    assert "--launch-flags = 'megatron': a captured script has its own" in capsys.readouterr().err


def test_a_captured_script_is_cut_by_plan_and_not_by_predict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "captured.yaml").touch()
    cut = [str(tmp_path), "--cluster", "h100-sxm:8", "--pp", "2", "--dp", "4"]
    assert main(["plan", *cut]) == 2
    assert "captured.yaml" in capsys.readouterr().err  # an empty file, and not the flags
    assert main(["predict", *cut]) == 2
    assert "--dp = '4': leave it out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model.layers=3", "^--set = 'model.layers=3': of a captured script only cluster"),
        ("cluster.nic", "PATH=VALUE"),
        ("cluster.nic=2026-13-45", "^--set: cluster.nic = '2026-13-45': "),  # to YAML a date, and there is none such
        ("cluster.nic=fast", "^--set: cluster.nic = 'fast': "),
        ("cluster.gpu.flops.bf16=fast", "^--set: cluster.gpu.flops.bf16 = 'fast': "),
    ],
)
def test_settings_of_a_captured_script_are_read_as_all_others(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "captured.yaml").touch()
    with pytest.raises(UserError, match=said):
        answer(asked(text, model=str(tmp_path), global_batch=None, seq_len=None))


def test_peers_on_links_that_were_not_measured_are_said(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(to_yaml(calibrated_cpu()))
    for gpus, expected in ((1, 0), (2, 1)):
        found = doubts(f"{tmp_path}/my.yaml:{gpus}")
        assert sum("windtunnel calibrate collectives --out" in text for text in found) == expected


def test_what_is_missing_is_named_as_a_flag() -> None:
    with pytest.raises(UserError, match="--global-batch"):
        asked(global_batch=None)


def test_the_command_that_a_result_names_gives_that_result() -> None:
    question = asked("model.layers=4", tp=2, cuda_graphs=True, precision="fp8", micro_batch=2)
    result = answer(question)
    words = shlex.split(result.reproduce)
    assert answer(question_of_command(result.reproduce)).content_hash == result.content_hash
    assert read(result.question) == question
    assert words[:5] == ["windtunnel", "predict", "llama-3-8b", "--cluster", "h100-sxm:16"]
    assert words[5:7] == ["--set", "model.layers=4"]


@given(st.dictionaries(st.one_of(st.sampled_from(sorted(FIELDS)), st.text(max_size=6)), st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12), st.lists(st.integers(), max_size=4),
), max_size=8))  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_any_mapping_is_a_plan_or_a_user_error(fields: dict[str, Any]) -> None:
    plan = plan_or_message(fields)
    assert not isinstance(plan, str) or "\n" not in plan


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_is_a_plan_or_a_user_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "plan.yaml"
    path.write_bytes(data)
    plan = plan_or_message(path)
    assert not isinstance(plan, str) or str(path) in plan


WORDS = [
    "predict",
    "validate",
    "compare",
    "--cluster",
    "--tp",
    "--set",
    "--json",
    "-1",
    "x",
    "",
    "--",
    "=",
    "h100-sxm:8",
]


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=6), max_size=6))
@settings(max_examples=100, deadline=None)
def test_any_words_end_with_a_known_status(words: list[str]) -> None:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(words)
    assert status in (0, 2)
    if status == 2:
        assert err.getvalue().startswith("windtunnel: error: ")
        assert err.getvalue().count("\n") == 1


@pytest.mark.parametrize("verb", [verb for verb, asked in QUESTIONS.items() if asked.example])
def test_the_application_takes_the_example_of_every_verb(verb: str) -> None:
    words = spelled([*verb.split(), *shlex.split(QUESTIONS[verb].example)])
    if verb not in LAUNCHERS:  # whose script takes what follows it
        build(verb.split()[0]).parse_args(words, print_error=False, exit_on_error=False)


def test_what_has_a_place_may_be_given_by_its_flag() -> None:
    placed, flagged = (
        build("fleet").parse_args(["fleet", "when", *words, "--cluster", "t4:8"], print_error=False)[1]
        for words in (["jobs.csv", "j3"], ["--job", "j3", "jobs.csv"])
    )
    assert placed.arguments == flagged.arguments


@pytest.mark.parametrize("verb", ["decide", "check", "diagnose", "predict"])
def test_what_a_launch_file_or_a_verb_says_itself_is_not_called_required(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert text.count("required where no launch file says it (decide: ") == 2
    assert "required." not in text


@pytest.mark.parametrize("words", [["--help"], ["predict", "--help"], ["validate", "--help"], ["--version"]])
def test_help_is_cheap(words: list[str]) -> None:
    code = (
        "import sys; from windtunnel.faces.cli import main; "
        f"status = main({words!r}); "
        "heavy = {'numpy', 'numba', 'torch', 'pyarrow', 'pydantic', 'yaml', 'jinja2'} & set(sys.modules); "
        "sys.exit(f'{status} {sorted(heavy)}' if status or heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_an_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("windtunnel.studies.predict.answer_at_first", interrupted)
    assert main(["predict", "llama-3-8b", "--cluster", "h100-sxm:8", "--global-batch", "8", "--seq", "8"]) == 130


@pytest.mark.parametrize("words", [["--tp", "1.5"], ["--samples=2.0"], ["--cp", ".5"], ["--seed", "1."]])
def test_whole_numbers_are_not_rounded(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["predict", "llama-3-8b", "--cluster", "h100-sxm:8", "--global-batch", "8", "--seq-len", "8", *words]) == 2
    )
    assert "give a whole number" in capsys.readouterr().err


def test_compiled_kernels_are_found_where_they_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert cold()
    (tmp_path / "engine_1").mkdir()
    (tmp_path / "engine_1" / "kernels.replay_fixed-1.py311.nbi").touch()
    assert not cold()
