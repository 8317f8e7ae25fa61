"""`windtunnel model CONFIG`: what a model is made of."""

from __future__ import annotations

from collections.abc import Iterator

from windtunnel.faces.cli.flags import Command, Outputs
from windtunnel.faces.cli.output import give
from windtunnel.physics.model import Model, load_model
from windtunnel.physics.model.cache import kv_bytes_per_token, state_bytes_per_sequence
from windtunnel.physics.model.mixers import Compressed, Indexed, Recurrent
from windtunnel.questions.asked.sweep import ModelFacts
from windtunnel.units import format_count
from windtunnel.views import Column, Document, Headline, Notes, Table, View
from windtunnel.views.text import text_of


def model(question: ModelFacts, outputs: Outputs) -> None:
    """Answer, print."""
    loaded_model = load_model(question.config)
    give(question, facts_of(loaded_model), outputs, Document("model", question.config, list(_views(loaded_model))))


def answer(question: ModelFacts) -> dict[str, object]:
    """Its facts. Raises UserError."""
    return facts_of(load_model(question.config))


def _views(model: Model) -> Iterator[View]:
    token, sequence = kv_bytes_per_token(model), state_bytes_per_sequence(model)
    text = f"{format_count(model.parameters)} parameters"
    if model.active_parameters != model.parameters:
        text += f", {format_count(model.active_parameters)} of them active for a token"
    cached = [f"{text_of(size, 'B')} a {what}" for size, what in ((token, "token"), (sequence, "sequence")) if size]
    cache = f", and {' and '.join(cached)} of cache" if cached else ""
    yield Headline(f"{text}: {text_of(2.0 * model.parameters, 'B')} of weights in 16 bits{cache}.")
    rows = [
        ("parameters", f"{model.parameters:,}"),
        ("active for a token", f"{model.active_parameters:,}"),
        ("of multi-token prediction, beside them", f"{model.mtp_parameters:,}" if model.mtp_parameters else ""),
        ("layers", ", ".join(f"{count} x {kind}" for kind, count in _layers(model).items())),
        ("cache of a token", text_of(token, "B") if token else ""),
        ("state of a sequence", text_of(sequence, "B") if sequence else ""),
        ("known from", "what transformers builds, unchecked" if model.derived else "a description that was checked"),
    ]
    yield Table("What it is made of", (Column("what"), Column("value")), [row for row in rows if row[1]])
    yield Notes("Notes", model.notes)


def _layers(model: Model) -> dict[str, int]:
    """How many layers of each kind; a windowed one keeps its window, whatever the context."""
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
    return layers


def facts_of(model: Model) -> dict[str, object]:
    """The facts, with caches of 16 bits."""
    return {
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "mtp_parameters": model.mtp_parameters,
        "layers": _layers(model),
        "kv_bytes_per_token": kv_bytes_per_token(model),
        "state_bytes_per_sequence": int(state_bytes_per_sequence(model)),
        "verified": "derived" if model.derived else "yaml",
        "notes": list(model.notes),
    }


COMMANDS = (Command("model", model, ("report", "json")),)
