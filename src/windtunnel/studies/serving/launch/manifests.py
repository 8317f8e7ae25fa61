"""A deployment as vLLM's command lines, Dynamo's and llm-d's manifests, written.

vllm     serve.sh, or prefill.sh and decode.sh: one `vllm serve` line for each replica
dynamo   dynamo.yaml: a DynamoGraphDeployment, v1beta1
llm-d    modelserver.yaml: patches of the Deployments `decode` and `prefill` for its Kustomize bases
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from windtunnel.errors import SpecError
from windtunnel.files.document import to_yaml
from windtunnel.physics.model.catalogue import hub_name
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.engines.profile import load_engine
from windtunnel.studies.serving.launch.flags import flags_of

Form = Literal["vllm", "dynamo", "llm-d"]
FORMS: tuple[Form, ...] = ("vllm", "dynamo", "llm-d")
IMAGES = {"vllm": "vllm/vllm-openai", "sglang": "lmsysorg/sglang"}
RUNTIME = "nvcr.io/nvidia/ai-dynamo/{}-runtime:1.3.0"  # the first of v1beta1's flags: vLLM 0.23.0, SGLang 0.5.14
CONNECTOR = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'


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
