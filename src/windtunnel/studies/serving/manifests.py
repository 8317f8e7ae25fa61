"""How a deployment is started, written and read: vLLM's and SGLang's command lines, Dynamo's and llm-d's manifests.

    vllm     serve.sh, or prefill.sh and decode.sh: one `vllm serve` line for each replica
    dynamo   dynamo.yaml: a DynamoGraphDeployment, v1beta1 (read: v1alpha1, too)
    llm-d    modelserver.yaml: patches of the Deployments `decode` and `prefill` for its Kustomize bases

What is read becomes parts of a question: the model, the engine, the replicas. Flags that say nothing of speed are
passed over, others that are not modelled are named in a note. Variables of scripts are put in; nothing is run.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from windtunnel.errors import SpecError
from windtunnel.files.bytes import read_text
from windtunnel.files.document import read_documents, to_yaml
from windtunnel.files.shell import expanded
from windtunnel.physics.model.catalogue import hub_name
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.engines.names import IMAGE, engine_in
from windtunnel.studies.serving.engines.profile import load_engine

Form = Literal["vllm", "dynamo", "llm-d"]
FORMS: tuple[Form, ...] = ("vllm", "dynamo", "llm-d")
LINE = re.compile(
    r"(?:^|[\s/;])(vllm serve|vllm\.entrypoints\.(?:openai\.)?api_server|sglang\.launch_server|sglang serve"
    r"|dynamo\.(?:vllm|sglang)|trtllm-serve|vllm/vllm-openai(?::[\w.-]+)?(?:@\w+:\w+)?(?=\s+(?!vllm|python)\S))"
    r"(?:\s|$)"
)
ASSIGNED = re.compile(r"\s*(?:export\s+|readonly\s+)?([A-Za-z_]\w*)=(?:\(([^()]*)\)|(.*))", re.DOTALL)
INTEGERS = {  # flag -> field of a deployment
    "tensor-parallel-size": "tp", "tp": "tp", "tp-size": "tp", "pipeline-parallel-size": "pp", "pp": "pp",
    "pp-size": "pp", "data-parallel-size": "attn_dp", "dp": "attn_dp", "dp-size": "attn_dp",
    "max-model-len": "max_model_len", "context-length": "max_model_len", "max-num-seqs": "max_num_seqs",
    "max-running-requests": "max_num_seqs", "max-num-batched-tokens": "max_num_batched_tokens",
    "chunked-prefill-size": "max_num_batched_tokens", "block-size": "block_size", "page-size": "block_size",
    "num-gpu-blocks-override": "num_gpu_blocks", "ep": "moe_ep", "ep-size": "moe_ep", "expert-parallel-size": "moe_ep",
}  # fmt: skip
LEFT_OPEN: dict[tuple[str, str], dict[str, bool]] = {  # values that are no sizes; lengths are then the model's
    ("max-model-len", "-1"): {}, ("max-model-len", "auto"): {},
    ("chunked-prefill-size", "-1"): {"chunked_prefill": False},
}  # fmt: skip
NEGATIVE = re.compile(r"-\d[\d.]*")
SHARES = {"gpu-memory-utilization": "gpu_memory_utilization", "mem-fraction-static": "gpu_memory_utilization"}
SWITCHES: dict[str, tuple[str, bool]] = {
    "enable-prefix-caching": ("prefix_caching", True), "no-enable-prefix-caching": ("prefix_caching", False),
    "disable-radix-cache": ("prefix_caching", False), "enable-chunked-prefill": ("chunked_prefill", True),
    "no-enable-chunked-prefill": ("chunked_prefill", False), "language-model-only": ("images", False),
}  # fmt: skip
FORMATS = {"fp8": "fp8", "modelopt": "fp8", "modelopt_fp4": "nvfp4", "mxfp4": "mxfp4", "awq": "int4", "gptq": "int4"}
CACHES = {"auto": None, "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "bfloat16": "bf16", "bf16": "bf16"}
# Say nothing of speed; what a word begins with, or all of it.
QUIET = (
    "host", "port", "api-key", "served-model-name", "trust-remote-code", "tokenizer", "seed", "download-dir",
    "chat-template", "tool-", "enable-auto-tool-choice", "reasoning-parser", "enable-reasoning", "disable-log-",
    "disable-uvicorn-", "enable-log-", "no-enable-log-", "max-log-len", "uvicorn-", "ssl-", "hf-token", "allowed-",
    "revision", "code-revision", "log-", "cpu-offload-gb", "root-path", "generation-config", "load-format",
    "distributed-executor-backend", "kv-transfer-config", "disaggregation-", "response-role", "skip-server-warmup",
    "enable-metrics", "headless", "device", "speculative-algorithm", "speculative-draft-model-path",
    "speculative-eagle-topk", "task", "runner",
)  # fmt: skip
ALONE = re.compile(  # switches: the word after them is no value of theirs
    r"(no-|enable-|disable-|skip-|use-).*|trust-remote-code|enforce-eager|async-scheduling|headless|O\d"
)
UNGRAPHED = re.compile(r"enforce-eager|disable-cuda-graph|-O0|cudagraph.?mode\W+(NONE|0)")
FLOATS = ("auto", "half", "float16", "fp16", "bfloat16", "bf16")
IMAGES = {"vllm": "vllm/vllm-openai", "sglang": "lmsysorg/sglang"}
RUNTIME = "nvcr.io/nvidia/ai-dynamo/{}-runtime:1.3.0"  # the first of v1beta1's flags: vLLM 0.23.0, SGLang 0.5.14
CONNECTOR = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'


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
    model, fields, ignored = _flags(parts[place + 1 :])
    if fields.pop("dp_attention", False):  # SGLang: its ranks are among those of --tp
        fields["tp"] = max(1, fields.get("tp", 1) // fields.get("attn_dp", 1))
    if "moe_ep" not in fields and fields.get("attn_dp", 1) > 1:
        fields["moe_ep"] = 1
    if fields.get("moe_ep") == 0:  # experts over all ranks
        fields["moe_ep"] = fields.get("tp", 1) * fields.get("attn_dp", 1)
    inside = engine_in(image)
    release = inside.release if inside is not None and inside.engine == engine else ""
    started = f"{engine}-{release}" if release else image or engine
    return Started(model, started, fields, replicas, role, tuple(dict.fromkeys(ignored)))


def _flags(words: list[str]) -> tuple[str, dict[str, Any], list[str]]:
    """(model, fields, flags that are not modelled). Raises SpecError for values that are none."""
    model, fields, ignored = "", {}, []  # type: str, dict[str, Any], list[str]
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            model = model or word
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if name in SWITCHES:
            key, on = SWITCHES[name]
            fields[key] = on
            continue
        alone = ALONE.fullmatch(name) is not None or word == "-ep"  # vLLM's -ep is a switch
        is_value = bool(rest) and (NEGATIVE.fullmatch(rest[0]) is not None or not rest[0].startswith("-"))
        if not equals and is_value and not (alone and not _plain(rest[0])):
            value = rest.pop(0)
        if name in ("enable-expert-parallel", "enable-ep-moe") or (name == "ep" and not value):
            fields["moe_ep"] = 0
        elif name == "enable-dp-attention":
            fields["dp_attention"] = True
        elif name in ("model", "model-path"):
            model = value
        elif name.startswith("limit-mm-per-prompt") and re.search(r'image["\s]*:\s*0\b', f"{name}:{value}"):
            fields["images"] = False
        elif (name, value) in LEFT_OPEN:
            fields |= LEFT_OPEN[name, value]
        elif name in INTEGERS:
            fields[INTEGERS[name]] = _integer(name, value)
        elif name in SHARES:
            fields[SHARES[name]] = _share(name, value)
        elif name == "kv-cache-dtype":
            if value not in CACHES:
                raise SpecError("--kv-cache-dtype", value, f"use one of {', '.join(CACHES)}")
            fields["kv"] = CACHES[value]
        elif name in ("quantization", "q"):
            if value not in FORMATS:
                raise SpecError("--quantization", value, f"is not known; known: {', '.join(FORMATS)}")
            fields["weights"] = FORMATS[value]
        elif name == "speculative-num-steps":
            fields["speculative_tokens"] = _integer(name, value)
        elif name == "speculative-num-draft-tokens":  # with the steps beside it, they count
            fields.setdefault("speculative_tokens", _integer(name, value))
        elif name in ("speculative-config", "sc"):
            match = re.search(r'num_speculative_tokens"?\s*:\s*(-?\d+)', value)
            fields["speculative_tokens"] = _integer(f"{name} num_speculative_tokens", match[1]) if match else 1
        elif name == "cpu-offload-gb" and NEGATIVE.fullmatch(value):
            raise SpecError(f"--{name}", value, "give GiB of host memory: 0, or leave it out")
        elif name == "cpu-offload-gb" and value not in ("0", "0.0"):
            raise SpecError(f"--{name}", value, "weights in host memory are not modelled: leave it out")
        elif name.startswith("O") and name + value not in ("O2", "O3"):
            ignored.append(f"-{name}{value}")
        elif not name.startswith((*QUIET, "O")) and not (name == "dtype" and value in FLOATS):
            ignored.append(f"--{name} {value}".strip())
    if not model or model.startswith("$"):
        problem = f"{model} has no value: give it one, or write the model out" if model else "the line names no model"
        raise SpecError("MODEL", " ".join(words), problem)
    return model, {key: value for key, value in fields.items() if value is not None}, ignored


def _plain(word: str) -> bool:
    """Whether a word is a switch's value rather than a model."""
    return word.lower() in ("true", "false", "on", "off") or word.replace(".", "").isdigit()


def _integer(name: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise SpecError(f"--{name}", value or None, "give a whole number of at least 1 after it")
    return int(value)


def _share(name: str, value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0.0 < share <= 1.0:
        raise SpecError(f"--{name}", value or None, "give a share of the memory after it, such as 0.9")
    return share


def flags_of(deployment: Deployment) -> list[str]:
    """vLLM's flags of a replica: what its defaults would not do."""
    flags = []
    sizes = (("tensor-parallel-size", "tp"), ("pipeline-parallel-size", "pp"), ("data-parallel-size", "attn_dp"))
    flags += [f"--{flag}={getattr(deployment, name)}" for flag, name in sizes if getattr(deployment, name) > 1]
    if deployment.moe_ep is not None and deployment.moe_ep > 1:
        flags.append("--enable-expert-parallel")
    for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "gpu_memory_utilization"):
        value = getattr(deployment, name)
        if value is not None:
            flags.append(f"--{name.replace('_', '-')}={value}")
    flags += ["--kv-cache-dtype=fp8"] * (deployment.kv == "fp8")
    flags += ["--language-model-only"] * (deployment.images is False)
    for name, flag in (("prefix_caching", "enable-prefix-caching"), ("chunked_prefill", "enable-chunked-prefill")):
        value = getattr(deployment, name)
        if value is not None:
            flags.append(f"--{flag}" if value else f"--no-{flag}")
    return flags


@dataclass(frozen=True, slots=True)
class Side:
    """Workers of one kind that are to be written; `role` "" for both phases."""

    role: str
    deployment: Deployment
    replicas: int


def files_of(form: Form, model: str, sides: Sequence[Side]) -> dict[str, str]:
    """File name -> text: with the model's id on the hub, or a comment that it has to be filled in.

    Raises SpecError for what no file of these says.
    """
    for option in ("lora", "kv_tiers"):
        if (value := getattr(sides[0].deployment, option)) is not None:
            raise SpecError("--emit", value, f"writes no {option}: leave it out, and add it to what is written")
    name = hub_name(model)
    texts = _texts(form, name or model, sides)
    if name is not None or os.path.isdir(model):
        return texts
    comment = f"# {model} is no id of the Hugging Face hub: write the checkpoint's id, or the path of its folder\n"
    shebang = "#!/bin/sh\n"
    return {
        file: shebang + comment + text.removeprefix(shebang) if text.startswith(shebang) else comment + text
        for file, text in texts.items()
    }


def _texts(form: Form, model: str, sides: Sequence[Side]) -> dict[str, str]:
    if form == "vllm":
        return {f"{side.role or 'serve'}.sh": _script(model, side) for side in sides}
    image = _image(sides[0].deployment.engine, form)
    if form == "llm-d":
        documents = [to_yaml(_patch(model, side, image)) for side in sides]
        return {"modelserver.yaml": "---\n".join(documents)}
    front = {"podTemplate": {"spec": {"containers": [{"name": "main", "image": image}]}}}
    components: list[object] = [{"name": "Frontend", "type": "frontend", "replicas": 1} | front]
    components += [_component(model, side, image) for side in sides]
    name = re.sub(r"[^a-z0-9-]+", "-", model.rpartition("/")[2].lower()).strip("-")
    graph = {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": name},
        "spec": {"components": components},
    }
    return {"dynamo.yaml": to_yaml(graph)}


def _image(engine: str, form: Form) -> str:
    profile = load_engine(engine)
    if profile.engine not in IMAGES:
        raise SpecError("--emit", engine, f"writes {' and '.join(IMAGES)} alone")
    if form == "dynamo":
        return RUNTIME.format(profile.engine)  # an engine's own image has no Dynamo in it
    return f"{IMAGES[profile.engine]}:v{profile.release}{'.0' if profile.release.count('.') == 1 else ''}"


def _script(model: str, side: Side) -> str:
    lines = ["#!/bin/sh", "# one line for each replica, behind one router"]
    for place in range(side.replicas):
        more = [f"--kv-transfer-config={CONNECTOR}"] if side.role else []
        words = ["vllm", "serve", model, f"--port={8000 + place}", *flags_of(side.deployment), *more]
        lines.append(shlex.join(words) + " &")
    return "\n".join([*lines, "wait", ""])


def _container(name: str, command: list[str], model: list[str], side: Side, image: str) -> dict[str, object]:
    more = [f"--kv-transfer-config={CONNECTOR}"] if side.role else []
    return {
        "name": name,
        "image": image,
        "command": command,
        "args": [*model, *flags_of(side.deployment), *more],
        "resources": {"limits": {"nvidia.com/gpu": str(side.deployment.gpus)}},
    }


def _component(model: str, side: Side, image: str) -> dict[str, object]:
    engine = load_engine(side.deployment.engine).engine
    words = ["--model", model, *([f"--disaggregation-mode={side.role}"] if side.role else [])]
    main = _container("main", ["python3", "-m", f"dynamo.{engine}"], words, side, image)
    kind = side.role or "worker"
    return {"name": kind, "type": kind, "replicas": side.replicas, "podTemplate": {"spec": {"containers": [main]}}}


def _patch(model: str, side: Side, image: str) -> dict[str, object]:
    server = _container("modelserver", ["vllm", "serve"], [model], side, image)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": side.role or "decode-and-prefill"},
        "spec": {"replicas": side.replicas, "template": {"spec": {"containers": [server]}}},
    }
