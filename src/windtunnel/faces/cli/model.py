"""`windtunnel model CONFIG`: what a model is made of."""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.faces.cli.flags import Outputs, command
from windtunnel.faces.cli.output import give
from windtunnel.physics.model import Model, load_model
from windtunnel.physics.model.cache import kv_bytes_per_token, state_bytes_per_sequence
from windtunnel.physics.model.mixers import Compressed, Indexed, Recurrent
from windtunnel.questions.asked.sweep import ModelFacts
from windtunnel.views import Column, Document, Table


def model_app(*, everything: bool = False) -> Callable[..., object]:
    """The verb."""
    return command("model", model, ("report", "json"), everything=everything)


def model(question: ModelFacts, outputs: Outputs) -> None:
    """Answer, print."""
    facts = answer(question)
    rows = [(name.replace("_", " "), _shown(value)) for name, value in facts.items() if value != []]
    document = Document("model", question.config, [Table("", (Column("fact"), Column("value")), rows)])
    give(question, facts, outputs, document)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count} x {kind}" for kind, count in value.items())
    return f"{value:,}" if isinstance(value, int) else "; ".join(value) if isinstance(value, list) else str(value)


def answer(question: ModelFacts) -> dict[str, object]:
    """Its facts. Raises UserError."""
    return facts_of(load_model(question.config))


def facts_of(model: Model) -> dict[str, object]:
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
