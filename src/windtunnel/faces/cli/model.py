"""`windtunnel model CONFIG`: what a model is made of."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from windtunnel.physics.model import Model, load_model
from windtunnel.physics.model.cache import kv_bytes_per_token, state_bytes_per_sequence
from windtunnel.physics.model.mixers import Compressed, Indexed, Recurrent


def model(
    config: Annotated[str, Parameter(help="A model of the catalogue, or the path of a config.json.")],
    *,
    json: Annotated[bool, Parameter(help="Print JSON.", negative="")] = False,
) -> None:
    """Say what a model is made of: parameters, layers, and what a decoder keeps of a token and of a sequence."""
    from windtunnel.faces.cli.output import print_answer, stdout

    facts = facts_of(load_model(config))
    if json:
        print_answer("model", {"config": config}, facts)
        return
    console = stdout()
    for name, value in facts.items():
        shown = ", ".join(f"{n} x {kind}" for kind, n in value.items()) if isinstance(value, dict) else value
        console.print(f"{name.replace('_', ' '):26} {shown:,}" if isinstance(shown, int) else f"{name:26} {shown}")


def facts_of(model: Model) -> dict[str, Any]:
    """The facts, in 16-bit caches; a windowed layer keeps its window, whatever the context."""
    layers: dict[str, int] = {}
    for layer, count in model.distinct_layers():
        mixer, block = layer.attention, layer.feed_forward
        name: str = mixer.form if isinstance(mixer, Recurrent) else mixer.kind
        name += " indexed" if isinstance(mixer, Indexed) else " chunked" if mixer.chunked else ""
        name += f" window {mixer.window}" if mixer.window and not mixer.chunked else ""
        if isinstance(mixer, Compressed) and mixer.ratio:
            name += f" and every {mixer.ratio}{' indexed' if mixer.index_heads else ''}"
        kind = f"{name} + {'nothing' if not block.size else block.kind}"
        layers[kind] = layers.get(kind, 0) + count
    return {
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "mtp_parameters": model.mtp_parameters,
        "layers": layers,
        "kv_bytes_per_token": kv_bytes_per_token(model),
        "state_bytes_per_sequence": int(state_bytes_per_sequence(model)),
        "verified": "derived" if model.derived else "yaml",
        "notes": list(model.notes),
    }
