"""A change of a plan as an edit of the user's own launch file: arguments, TOML, JSON, YAML, or a script of the Trainer.

What the writers of this package would write before and after the change is compared option by option, and each
difference is made where the file says it: the value behind an option, or the variable that holds it and nothing else;
a new option goes behind one that is there. All else stays to the byte.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher, unified_diff
from pathlib import Path

from windtunnel.errors import UserError
from windtunnel.files.bytes import read_text, scratch_folder
from windtunnel.files.document import read_mapping
from windtunnel.questions.asked.parts.plan import OpenPlan, open_plan
from windtunnel.studies.training.launch import accelerate
from windtunnel.studies.training.launch.job_file import Native, _leaves
from windtunnel.studies.training.launch.megatron.reading import GRANULARITY, SWIFT, Arguments, shell_words
from windtunnel.studies.training.launch.native import PLAN, plan_text, read_native
from windtunnel.studies.training.launch.recipes import launch_line
from windtunnel.studies.training.launch.recipes import reading as recipes
from windtunnel.studies.training.launch.trainer import reading as trainer
from windtunnel.studies.training.launch.trainer import writing as trainer_writing
from windtunnel.studies.training.launch.trainer.dialects import OWN

ANCHORS = (
    *("--micro-batch-size", "--global-batch-size", "--seq-length", "--tensor-model-parallel-size"),
    *("--per-device-train-batch-size", "--gradient-accumulation-steps"),
)
VALUE = r"(\"[^\"\n]*\"|'[^'\n]*'|[^\s\\)\"']+)"
NAME = r"--|[{(\"]*[\w.-]+\"?[=:]"  # a word that names what follows
RESHARDS, OLDER = "fsdp_config.fsdp_reshard_after_forward", "fsdp_config.fsdp_sharding_strategy"
AUTO = {"parallelism.data_parallel_shard_degree": -1}
# Keys whose defaults follow from others: said where the file leaves them open and one of the others changes.
FOLLOWS = {
    "training.global_batch_size": ("training.local_batch_size", "parallelism."),
    "zero_optimization.overlap_comm": ("zero_optimization.stage",),
}

BATCH = "--global-batch-size"  # without it: micro-batch times data-parallel degree, so said where one of them changes
BATCH_FOLLOWS = (
    "--micro-batch-size",
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--context-parallel-size",
)
OLDER_OPTIONS = {"--recompute-granularity": "--recompute-activations"}  # the older one wins over the newer

Plan = Mapping[str, object]


def patch(path: str, before: tuple[Plan, int], after: tuple[Plan, int], n_gpus: int, model: str) -> str:
    """The file's text with a change of its plan; empty where the format has no option for it.

    `before` and `after`: the fields of a plan and its data-parallel degree. Raises UserError.
    """
    path, recipe = recipes.split(path)
    text, kind = read_text(path, PLAN), Path(path).suffix.lower()
    if recipe or (kind == ".py" and recipes.framework_of(path)):
        return ""
    sides = [(open_plan(**plan), dp) for plan, dp in (before, after)]
    settings = trainer.settings_of(path)
    if settings is not None:
        return _of_trainer(text, kind, settings, sides, trainer.dialect(path))
    if kind in (".yaml", ".yml") and not accelerate.is_accelerate(read_mapping(path, PLAN)):
        return ""  # Primus' and GPT-NeoX's are read alone
    format_of, edit = EDITS.get(kind, ("megatron", None))
    (before_text, left), (after_text, left_then) = (plan_text(format_of, plan, dp, n_gpus, model) for plan, dp in sides)
    if set(left_then) - set(left):  # what is changed has no key
        return ""
    if edit is None:
        options = [_options(side) for side in (before_text, after_text)]
        if SWIFT.search(text):  # recomputes selectively unless told
            options = [{GRANULARITY: ["none"]} | each for each in options]
        launched = launch_line.is_launch_line(text)
        if launched:
            options = [launch_line.own_options(each) for each in options]
            changed = {name for name in {*options[0], *options[1]} if options[0].get(name) != options[1].get(name)}
            if changed - {*launch_line.OPTIONS.values()}:
                return ""
        micro, total = (int(options[1][name][0]) for name in ("--micro-batch-size", BATCH))
        follows = micro * sides[1][1] == total
        return _arguments(text, *options, batch_follows=follows, between="_" if launched else "-")
    old, new = (_document(side, kind) for side in (before_text, after_text))
    own = dict(_leaves(_document(text, kind), ""))
    changed = {name for name in {*old, *new} if old.get(name) != new.get(name)}
    changed |= {
        name
        for name, others in FOLLOWS.items()
        if name in new and own.get(name, -1) == -1 and any(word.startswith(others) for word in changed)
    }
    batch, local = "training.global_batch_size", "training.local_batch_size"
    if batch in changed and batch not in own and new[batch] == int(str(new[local])) * sides[1][1]:
        changed.remove(batch)  # it follows from the ranks again
    for name in sorted(changed):
        if name not in AUTO or own.get(name) != AUTO[name]:
            text = edit(text, name, new.get(name), own)
    return "" if text == read_text(path, PLAN) else text


def diff(path: str, patched: str) -> str:
    """The unified diff of a file and what it is to be, as `patch -p1` takes it; empty where they are the same."""
    before, after = (text.splitlines(keepends=True) for text in (read_text(path, PLAN), patched))
    name = path.lstrip("/")
    lines = unified_diff(before, after, f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def words_of(change: str) -> str:
    """What a diff changes, in words of its file: what is new with the name before it, else what is left out."""
    lines = [line for line in change.splitlines() if line[:1] in ("-", "+") and line[:3] not in ("---", "+++")]
    old, new = (
        [
            word
            for line in lines
            if line[0] == sign
            for word in re.sub(r" *= *", "=", re.sub(r"(^|\s)#.*", "", line[1:])).split()
            if word != "\\"
        ]
        for sign in "-+"
    )
    added: list[str] = []
    removed: list[str] = []
    for kind, begin, end, at, until in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "delete":
            removed += old[begin:end]
        elif kind != "equal":
            while at and not re.match(NAME, new[at]):
                at -= 1
            added += new[at:until]
    words = " ".join(added or removed).strip(" ,{}()")
    return f"{'with' if added else 'without'} {words}"


def read_again(path: str, patched: str, n_gpus: int) -> Native:
    """What the patched file says. Raises UserError."""
    with scratch_folder() as folder:
        copy = Path(folder) / Path(path).name
        copy.write_text(patched, encoding="utf-8")
        if trainer.settings_of(copy) is not None:  # which may name a file that lies beside it
            return trainer.read(copy, n_gpus, Path(path))
        return read_native(copy, n_gpus)


def _of_trainer(
    text: str, kind: str, settings: trainer.Settings, sides: Sequence[tuple[OpenPlan, int]], dialect: str
) -> str:
    """The same for a file of Hugging Face's Trainer, which has no format but only names; `dialect`: other names."""
    (old, left), (new, left_then) = (trainer_writing.write(plan, dp, settings) for plan, dp in sides)
    changed = {name: new.get(name) for name in sorted({*old, *new}) if old.get(name) != new.get(name)}
    if set(left_then) - set(left) or not changed:
        return ""
    if dialect:
        names = OWN[dialect]
        if not changed.keys() <= names.keys():
            return ""
        old, new = (
            {names.get(name, name): False if value is None else value for name, value in side.items()}
            for side in (old, new)
        )
        changed = {names[name]: new.get(names[name]) for name in changed}
    if kind in (".yaml", ".yml"):
        own = dict(_leaves(_document(text, kind), ""))
        for name, value in changed.items():
            text = _yaml(text, name, value, own)
        return text
    if kind == ".py":
        write = _assigned if dialect else _python
        for name, value in changed.items():
            text = write(text, name, value)
        return text
    current, wanted = (
        {f"--{name}": [_argument(side[name])] for name in changed if side.get(name) is not None} for side in (old, new)
    )
    return _arguments(text, current, wanted)


def _argument(value: object) -> str:
    return f'"{value}"' if " " in str(value) else str(value)


def _document(text: str, kind: str) -> dict[str, object]:
    """A text of a format as its leaves by dotted name."""
    with scratch_folder() as folder:
        path = Path(folder) / f"text{kind}"
        path.write_text(text, encoding="utf-8")
        return dict(_leaves(read_mapping(path, PLAN), ""))


# --------------------------------------------------------------------------------------------- Megatron's arguments


def _options(text: str) -> dict[str, list[str]]:
    return Arguments(shell_words(text, "arguments"), "arguments").options


def _arguments(
    text: str,
    old: Mapping[str, list[str]],
    new: Mapping[str, list[str]],
    *,
    batch_follows: bool = False,
    between: str = "-",
) -> str:
    """`batch_follows`: without its option the global batch is the right one; `between`: the words of a new option."""
    changed = {name for name in {*old, *new} if old.get(name) != new.get(name)}
    if BATCH in new and changed.intersection(BATCH_FOLLOWS) and _find(_option(BATCH), text) is None:
        changed = changed - {BATCH} if batch_follows else changed | {BATCH}
    for name in sorted(changed):
        if name in OLDER_OPTIONS:
            text = _without(text, OLDER_OPTIONS[name])
        there = _find(_option(name), text)
        if name not in new:
            text = _without(text, name)
        elif there is None:
            text = _added(text, "--" + name.removeprefix("--").replace("-", between), new[name])
        elif new[name]:
            text = _with_value(text, name, new[name])
    return text


def _option(name: str, values: int = 0) -> re.Pattern[str]:
    """An option, and so many values behind it."""
    spelled = "--" + re.sub("[-_]", "[-_]", name.removeprefix("--"))
    return re.compile(rf"(?m)(?<=[\s\"'(=]){spelled}(?![\w-])" + rf"(?:[ \t]*=[ \t]*|[ \t]+){VALUE}" * values)


def _with_value(text: str, name: str, words: list[str]) -> str:
    match = _find(_option(name, 1), text)
    if match is None:
        raise UserError(f"{name} has no value that can be changed here")
    variable = re.fullmatch(r"[\"']?\$\{?([A-Za-z_]\w*)\}?[\"']?", match[1])
    if variable and len(words) == 1:
        uses = len(re.findall(rf"\$\{{?{variable[1]}\b", text))
        matches = list(re.finditer(rf"(?m)^([ \t]*(?:export[ \t]+)?{variable[1]}=){VALUE}", text))
        if uses == 1 and len(matches) == 1:
            return text[: matches[0].start(2)] + words[0] + text[matches[0].end(2) :]
    end = match.end(1)
    for _ in range(1, _count_of(text, end)):  # further values of a list
        more = re.compile(rf"[ \t]+{VALUE}").match(text, end)
        end = end if more is None else more.end(1)
    return text[: match.start(1)] + " ".join(words) + text[end:]


def _count_of(text: str, at: int) -> int:
    """How many values an option has whose first one ends here; a variable behind it holds other options."""
    rest = re.compile(r"(?:[ \t]+(?![-$])[^\s\\)\"'#]+)*").match(text, at)
    return 1 + (len(rest[0].split()) if rest else 0)


def _without(text: str, name: str) -> str:
    match = _find(_option(name), text)
    if match is None:
        return text
    values = re.compile(r"(?:[ \t]*=[ \t]*[^\s\\)]+|(?:[ \t]+(?!-)[^\s\\)#\"']+)*)").match(text, match.end())
    end = match.end() if values is None else values.end()
    begin = text.rfind("\n", 0, match.start()) + 1
    stop = text.find("\n", end)
    stop = len(text) if stop < 0 else stop + 1
    left = (text[begin : match.start()] + text[end:stop]).strip()
    if left in ("", "\\"):  # the line held nothing else
        before = text[:begin] if left else re.sub(r"[ \t]*\\\n\Z", "\n", text[:begin])  # its command ends there now
        return before + text[stop:]
    return (
        text[: match.start()].rstrip(" \t")
        + (" " if text[end : end + 1] not in ("\n", '"', "'", " ") else "")
        + text[end:]
    )


def _added(text: str, name: str, words: list[str]) -> str:
    for anchor in ANCHORS:
        match = _find(_option(anchor, 1), text)
        if match is not None:
            return text[: match.end()] + " " + " ".join([name, *words]) + text[match.end() :]
    raise UserError(f"no option is there behind which {name} could be put")


def _find(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The first match outside of comments, which are blanked at their length."""
    return pattern.search(re.sub(r"(?m)(?:^|(?<=\s))#[^\n]*", lambda comment: " " * len(comment[0]), text))


# ------------------------------------------------------------------------------------------------- keys and values


def _toml(text: str, name: str, value: object, own: Mapping[str, object]) -> str:
    section, _, key = name.rpartition(".")
    lines = text.splitlines(keepends=True)
    headers = [at for at, line in enumerate(lines) if re.match(r"\s*\[", line)]
    begin = next((at for at in headers if re.match(rf"\s*\[{re.escape(section)}\]", lines[at])), None)
    entry = f"{key} = {json.dumps(value)}"
    if begin is None:
        return text if value is None else f"{text.rstrip()}\n\n[{section}]\n{entry}\n"
    end = next((at for at in headers if at > begin), len(lines))
    at = next((at for at in range(begin, end) if re.match(rf"\s*{key}\s*=", lines[at])), None)
    if at is None:
        return text if value is None else "".join([*lines[: begin + 1], entry + "\n", *lines[begin + 1 :]])
    parts = re.match(r"(\s*)[^=]+=\s*(?:\"[^\"]*\"|'[^']*'|\[[^\]]*\]|[^\s#]+)(\s*#.*)?", lines[at])
    indent, comment = (parts[1], parts[2] or "") if parts else ("", "")
    lines[at] = "" if value is None else f"{indent}{entry}{comment.rstrip()}\n"
    return "".join(lines)


def _json(text: str, name: str, value: object, own: Mapping[str, object]) -> str:
    parent, _, key = name.rpartition(".")
    if name in own:
        matches = list(re.finditer(rf'"{re.escape(key)}"\s*:\s*("[^"\n]*"|[^,\s}}]+)', text))
        same = [match for match in matches if json.loads(match[1]) == own[name]]
        if len(matches) != len(same) or len(same) != 1 or value is None:
            raise UserError(f"{name} stands several times")
        return text[: same[0].start(1)] + json.dumps(value) + text[same[0].end(1) :]
    if value is None:
        return text
    outer = (
        re.search(rf'"{re.escape(parent.rpartition(".")[2])}"\s*:\s*\{{', text) if parent else re.search(r"\{", text)
    )
    if outer is None:
        inner: object = value
        for part in reversed(name.split(".")[1:]):
            inner = {part: inner}
        outer, key, value = re.search(r"\{", text), name.split(".")[0], inner
    assert outer is not None  # it was read as a mapping
    indent = re.search(r"\n([ \t]*)\"", text[outer.end() :])
    space = indent[1] if indent else "  "
    return f"{text[: outer.end()]}\n{space}{json.dumps(key)}: {json.dumps(value)},{text[outer.end() :]}"


def _yaml(text: str, name: str, value: object, own: Mapping[str, object]) -> str:
    if name == RESHARDS and OLDER in own and name not in own:  # what FSDP 1 says by a strategy
        strategy = str(own[OLDER]).replace("FULL_SHARD", "SHARD_GRAD_OP") if value is False else "FULL_SHARD"
        name, value = OLDER, strategy
    parent, _, key = name.rpartition(".")
    spelled = json.dumps(value) if not isinstance(value, str) else value
    matches = list(re.finditer(rf"(?m)^([ \t]*){re.escape(key)}:[ \t]*([^\n#]*?)([ \t]*(?:#[^\n]*)?)\n", text + "\n"))
    if name in own and len(matches) == 1:
        match = matches[0]
        quoted = f"'{spelled}'" if match[2][:1] in "'\"" and match[2] else spelled
        entry = "" if value is None else f"{match[1]}{key}: {quoted}{match[3]}\n"
        return (text[: match.start()] + entry + text[match.end() :]).rstrip("\n") + "\n"
    if value is None:
        return text
    if not parent:
        return f"{text.rstrip()}\n{key}: {spelled}\n"
    outer = re.search(rf"(?m)^{re.escape(parent)}:[ \t]*\n([ \t]+)", text)
    if outer is None:
        return f"{text.rstrip()}\n{parent}:\n  {key}: {spelled}\n"
    return f"{text[: outer.start(1)]}{outer[1]}{key}: {spelled}\n{text[outer.start(1) :]}"


def _assigned(text: str, name: str, value: object) -> str:
    """A constant that a configuration assigns once. Raises UserError where it does not."""
    matches = list(re.finditer(rf"(?m)^{re.escape(name)}[ \t]*=[ \t]*(\w+)[ \t]*(?=#|$)", text))
    if len(matches) != 1 or value is None:
        raise UserError(f"{name} has no place in this script")
    return text[: matches[0].start(1)] + repr(value) + text[matches[0].end(1) :]


def _python(text: str, name: str, value: object) -> str:
    """A keyword of the one call that says how a Trainer trains. Raises UserError where there are several, or none."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and trainer.says_how(node)]
    if len(calls) != 1 or not calls[0].keywords or "." in name:
        raise UserError(f"{name} has no place in this script")
    spelled = "False" if value is None else json.dumps(value) if isinstance(value, str) else repr(value)
    there = next((keyword.value for keyword in calls[0].keywords if keyword.arg == name), None)
    if there is None and value is None:
        return text
    lines = text.encode().splitlines(keepends=True)  # columns are of UTF-8
    node = calls[0].keywords[0].value if there is None else there
    assert node.end_lineno is not None
    ends = sum(map(len, lines[: node.end_lineno - 1])) + (node.end_col_offset or 0)
    begins = ends if there is None else sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    replacement = f", {name}={spelled}" if there is None else spelled
    return (text.encode()[:begins] + replacement.encode() + text.encode()[ends:]).decode()


EDITS = {
    ".toml": ("torchtitan", _toml), ".json": ("deepspeed", _json), ".yaml": ("accelerate", _yaml),
    ".yml": ("accelerate", _yaml),
}  # fmt: skip
