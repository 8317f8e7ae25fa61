"""Command lines of vLLM and SGLang, scripts that hold them, and Dynamo's and llm-d's manifests, read.

What is read becomes parts of a question: the model, the engine, the replicas. Variables of scripts are put in; nothing
is run. A DynamoGraphDeployment is read as v1beta1 and v1alpha1.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from windtunnel.errors import SpecError
from windtunnel.files.bytes import read_text
from windtunnel.files.document import read_documents
from windtunnel.files.shell import expanded
from windtunnel.studies.serving.engines.names import IMAGE, engine_in
from windtunnel.studies.serving.launch.flags import UNGRAPHED, fields_of_flags

LINE = re.compile(
    r"(?:^|[\s/;])(vllm serve|vllm\.entrypoints\.(?:openai\.)?api_server|sglang\.launch_server|sglang serve"
    r"|dynamo\.(?:vllm|sglang)|trtllm-serve|vllm/vllm-openai(?::[\w.-]+)?(?:@\w+:\w+)?(?=\s+(?!vllm|python)\S))"
    r"(?:\s|$)"
)
ASSIGNED = re.compile(r"\s*(?:export\s+|readonly\s+)?([A-Za-z_]\w*)=(?:\(([^()]*)\)|(.*))", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Started:
    """One kind of worker: its model, engine, fields of its deployment, how many."""

    model: str
    engine: str
    fields: Mapping[str, Any]
    replicas: int = 1
    role: str = ""  # prefill, decode; "" = both phases
    ignored: tuple[str, ...] = ()  # flags that change speed, perhaps, and are not modelled


@dataclass(frozen=True, slots=True)
class Parts:
    """What a question says of model, engine and replicas, as plain data."""

    model: str
    engine: Mapping[str, object]
    replicas: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def is_started(text: str) -> bool:
    """Whether a word names no model, but a command line of an engine, or files of one."""
    path = Path(text)
    if LINE.search(text):
        return True
    try:
        return (path.is_dir() and bool(_files_in(path))) or (path.suffix in (".sh", ".yaml", ".yml") and path.exists())
    except (OSError, ValueError):  # too long for a path
        return False


def parts_of(text: str) -> Parts:
    """The parts of a question that a command line, or files, say. Raises UserError."""
    workers = list(_workers(text))
    if not workers:
        raise SpecError("MODEL", text, "holds no worker: give a vllm serve line, or a Dynamo or llm-d file")
    first = workers[0]
    roles = {worker.role: worker for worker in workers}
    notes = _notes(dict.fromkeys(flag for worker in workers for flag in worker.ignored))
    engine = dict(first.fields)
    layout = [engine.pop(name, default) for name, default in (("tp", 1), ("pp", 1), ("attn_dp", 1), ("moe_ep", None))]
    engine = {"engine": first.engine, **engine}
    drafted = {name: engine.pop(name) for name in ("speculative_tokens", "acceptance") if name in engine}
    if drafted:
        engine["drafting"] = {"kind": "drafted", **drafted}
    if {"prefill", "decode"} <= set(roles):
        sides = {name: _words(roles[name]) for name in ("prefill", "decode")}
        return Parts(first.model, engine, {"kind": "apart", **sides}, notes)
    sizes: dict[str, object] = dict(zip(("tp", "pp", "dp"), layout, strict=False))
    if layout[3] is not None:
        sizes["ep"] = layout[3]
    together = {"kind": "together", **sizes, "replicas": sum(worker.replicas for worker in workers)}
    return Parts(first.model, engine, together, notes)


def _notes(ignored: Iterable[str]) -> tuple[str, ...]:
    """What is said of flags that are not modelled."""
    if not (flags := list(ignored)):
        return ()
    note = f"not modelled and ignored: {', '.join(flag if len(flag) <= 40 else flag.split()[0] for flag in flags)}"
    graphs = any(UNGRAPHED.search(flag) for flag in flags)
    return (note + ("; decode steps are priced with captured graphs, and take longer without" if graphs else ""),)


def _words(worker: Started) -> str:
    names = (("tp", "tp"), ("pp", "pp"), ("attn_dp", "dp"), ("moe_ep", "ep"))
    sizes = "".join(
        f"{word}{worker.fields[name]}" for name, word in names if worker.fields.get(name, 1) not in (1, None)
    )
    return f"{worker.replicas}x{sizes or 'tp1'}"


def _workers(text: str) -> Iterator[Started]:
    if LINE.search(text):
        yield from _of_script(text, "")
        return
    path = Path(text)
    files = _files_in(path) if path.is_dir() else [path]
    if len({file.name.replace("decode.sh", "prefill.sh") for file in files}) > 1:
        names = ", ".join(file.name for file in files)
        raise SpecError("MODEL", text, f"holds several deployments ({names}): remove those of before")
    for file in files:
        if file.suffix == ".sh":
            role = file.stem if file.stem in ("prefill", "decode") else ""
            yield from _of_script(read_text(file, "give command lines"), role)
        else:
            for document in read_documents(file, "give a Dynamo or llm-d manifest"):
                yield from _of_document(document)


def _of_script(text: str, role: str) -> Iterator[Started]:
    """The workers of command lines, those that are alike together."""
    workers = [_of_line(words, role) for words in _commands(text)]
    for key in dict.fromkeys(str(dict(worker.fields)) for worker in workers):
        alike = [worker for worker in workers if str(dict(worker.fields)) == key]
        yield replace(alike[0], replicas=len(alike))


def _commands(text: str) -> Iterator[list[str]]:
    """The words of each line that starts an engine, variables put in. Raises SpecError."""
    values: dict[str, str] = {}
    joined = re.sub(r"=\(([^()]*)\)", lambda match: f"=({' '.join(match[1].split())})", re.sub(r"\\\r?\n", " ", text))
    for line in re.split(r"\n|;(?=\s|$)|&&", joined):
        assigned = None if LINE.search(line) else ASSIGNED.fullmatch(line)
        # Of an array the words stay as they are quoted.
        line = re.sub(r'"?\$\{(\w+)\[@\]\}"?', lambda match: values.get(match[1], match[0]), line)
        if assigned is not None and assigned[2] is not None:
            values[assigned[1]] = expanded(assigned[2], values)
        elif assigned is not None or LINE.search(line):
            try:
                words = shlex.split(expanded(line if assigned is None else assigned[3], values), comments=True)
            except ValueError as error:
                raise SpecError("MODEL", line.strip()[:80], f"is no shell text ({error}): check its quotes") from None
            if assigned is None:
                yield words
            else:
                values[assigned[1]] = " ".join(words)


def _files_in(folder: Path) -> list[Path]:
    names = ("serve.sh", "prefill.sh", "decode.sh", "dynamo.yaml", "modelserver.yaml")
    return [folder / name for name in names if (folder / name).is_file()]


def _of_document(document: object) -> Iterator[Started]:
    if not isinstance(document, Mapping):
        return
    spec = document.get("spec") or {}
    if document.get("kind") == "DynamoGraphDeployment":
        services = spec.get("services") or {}
        old = [{"name": name, **service, **(service.get("extraPodSpec") or {})} for name, service in services.items()]
        for component in [*(spec.get("components") or ()), *old]:
            role = str(
                component.get("type") or component.get("subComponentType") or component.get("componentType") or ""
            ).lower()
            pod = ((component.get("podTemplate") or {}).get("spec") or {}).get("containers") or [
                component.get("mainContainer")
            ]
            if role in ("worker", "prefill", "decode", "main") or component.get("subComponentType"):
                role = str(component.get("subComponentType") or role)
                yield _of_container(pod[0], role if role in ("prefill", "decode") else "", component.get("replicas", 1))
    elif document.get("kind") == "Deployment":
        name = str((document.get("metadata") or {}).get("name", ""))
        role = name if name in ("prefill", "decode") else ""
        pod = (spec.get("template") or {}).get("spec") or {}
        for container in pod.get("containers") or ():
            if container.get("name") == "modelserver":
                yield _of_container(container, role, spec.get("replicas", 1))


def _of_container(container: object, role: str, replicas: int) -> Started:
    if not isinstance(container, Mapping):
        raise SpecError("containers", container, "a worker needs a container with command and args")
    command, args = container.get("command") or [], container.get("args") or []
    words = [str(word) for word in ([command] if isinstance(command, str) else command)]
    for word in [args] if isinstance(args, str) else args:
        words += shlex.split(str(word)) if " " in str(word) and not str(word).startswith("{") else [str(word)]
    image = str(container.get("image", ""))
    return _of_line(words, role, image, int(replicas))


def _of_line(words: Sequence[str], role: str, image: str = "", replicas: int = 1) -> Started:
    line = next((word for word in words if " " in word and LINE.search(word)), None)  # of `sh -c "vllm serve ..."`
    parts = list(words) if line is None else next(_commands(line))
    match = LINE.search(" ".join(parts))
    if match is None:
        engines = "vllm serve, sglang.launch_server, dynamo.vllm"
        raise SpecError("command", " ".join(words), f"names no engine that is known: {engines}")
    engine = "vllm" if "vllm" in match[1] else "sglang" if "sglang" in match[1] else "trtllm"
    name = match[1].split()[-1].rpartition("/")[2]
    place = next(place for place, word in enumerate(parts) if word.rpartition("/")[2] == name)
    # Of `docker run`: the image, whose arguments may be those of vllm serve.
    image = next((word for word in parts[: place + 1] if IMAGE.fullmatch(word)), image)
    model, fields, ignored = fields_of_flags(parts[place + 1 :])
    if fields.pop("dp_attention", False):  # SGLang: its ranks are among those of --tp, and share what it is told
        ranks = fields.get("attn_dp", 1)
        fields["tp"] = max(1, fields.get("tp", 1) // ranks)
        shared = [name for name in ("max_num_seqs", "max_num_batched_tokens") if name in fields]
        fields |= {name: max(1, fields[name] // ranks) for name in shared}
    if "moe_ep" not in fields and fields.get("attn_dp", 1) > 1:
        fields["moe_ep"] = 1
    if fields.get("moe_ep") == 0:  # experts over all ranks
        fields["moe_ep"] = fields.get("tp", 1) * fields.get("attn_dp", 1)
    inside = engine_in(image)
    release = inside.release if inside is not None and inside.engine == engine else ""
    started = f"{engine}-{release}" if release else image or engine
    return Started(model, started, fields, replicas, role, tuple(dict.fromkeys(ignored)))
