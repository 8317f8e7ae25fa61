"""A config read by the rules of its type (`type_files.py`): fields become the entries of layers, and those a Model."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields as fields_of
from dataclasses import replace
from functools import cache
from typing import Any

from windtunnel.errors import SpecError
from windtunnel.physics.model.architecture import Attention, FeedForward, Layer, Model, Tower
from windtunnel.physics.model.limits import HEADS_MAX, LAYERS_MAX, SIZE_MAX, TOKENS_MAX, counted, showable
from windtunnel.physics.model.mixers import Compressed, Extended, ExtendedBlock, Indexed, Recurrent, Streamed
from windtunnel.physics.model.reading.config_fields import Fields
from windtunnel.physics.model.reading.functions import FUNCTIONS, OPERATIONS
from windtunnel.physics.model.reading.type_files import Rules, fields_asked, has_file, other_names, rules_of, type_names

WORDS = ("kind", "form", "qk_norm", "position", "norm", "activation", "family")
MAY_BE_ZERO = ("shared_size", "more_parameters", "more_weights", "index_heads", "mtp_layers", "learned_positions",
               "expert_groups", "groups_per_token", "latent", "size", "rope_head_dim", "conv_channels", "conv_width",
               "norms", "ratio", "selected", "out_rank", "index_dim", "streams", "scored")  # fmt: skip
MOST = {"heads": HEADS_MAX, "kv_heads": HEADS_MAX, "experts": HEADS_MAX, "max_sequence_length": TOKENS_MAX}
NUMBER_MOST = 10**15
MORE = ("more_", "shared")  # entries of a mixer that say nothing where they are 0 or false
NOUNS = (Extended, Compressed, Indexed, Recurrent, FeedForward, ExtendedBlock, Layer, Streamed, Model)
FLAGS = frozenset(field.name for kind in NOUNS for field in fields_of(kind) if field.type == "bool")
MAY_BE_NONE = frozenset(field.name for kind in NOUNS for field in fields_of(kind) if "None" in str(field.type))
ACTIVATIONS = ("silu", "swish", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu", "relu", "relu2",
               "xielu")  # fmt: skip
MEANING = {"max_position_embeddings": ": give the longest context that it is made for, such as 8192"}
TOWERS = ("vision_config", "audio_config")
# Fields beside a text model that are about towers, projectors and the tokens they stand for.
OF_TOWERS = ("image_", "video_", "vision_", "audio_", "projector_", "multimodal_", "mm_", "boi_", "eoi_", "boa_",
             "eoa_", "downsample_", "spatial_", "frame_", "adapter_", "qformer_", "vq_", "perceiver_", "merge",
             "patch_", "insert_layer_", "high_res_vision_")  # fmt: skip
TOWERS_NOTE = "text only: the towers of this checkpoint (vision, audio) take no time"


@cache
def _parsed(text: str) -> tuple[ast.expr, bool]:
    """The expression, and whether it asks for the layer."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        raise SpecError("expression", text, "see docs/models.md, Add a model: Expressions") from None
    return tree, any(isinstance(node, ast.Name) and node.id == "i" for node in ast.walk(tree))


class _Reading:
    """The fields of one config, as one type's file takes them."""

    def __init__(self, fields: Fields, rules: Rules, name: str) -> None:
        self.fields, self.rules = fields, rules
        self.other_names = other_names().get(name, {})
        self.defaults: dict[str, object] = rules.get("defaults", {})
        self.aliases: dict[str, str] = rules.get("aliases", {})
        self.nouns: dict[tuple[str, str], object] = {}
        self.by_layer: dict[tuple[str, str], bool] = {}  # whether a noun's entries ask for the layer

    def value(self, text: object, i: int = -1) -> Any:
        """What an entry of the file says."""
        if not isinstance(text, str):
            return text
        try:
            return self._of(_parsed(text)[0], i)
        except (TypeError, ValueError, ZeroDivisionError, IndexError, KeyError, AttributeError, OverflowError):
            raise self.refuse(text, f"`{text}` cannot be worked out") from None

    def refuse(self, text: str, remedy: str, key: str | None = None) -> SpecError:
        """The error about an expression: `key` or a field that it asks for, and the values of the others."""
        asked = self._asked(text)
        first = key or min(
            asked, key=lambda k: (bool(asked[k]), type(asked[k]) is int, type(asked[k]) is str), default=text
        )
        others = ", ".join(f"{k} = {str(showable(v))[:80]}" for k, v in asked.items() if k != first and v is not None)
        return self.fields.refuse(first, asked.get(first), f"{remedy}, with {others}" if others else remedy)

    def _asked(self, text: str) -> dict[str, object]:
        """The fields that an expression asks for, itself or by what defaults stand for; null where not given."""
        asked: dict[str, object] = {}
        for node in ast.walk(_parsed(text.lstrip("= "))[0]):
            match node:
                case ast.Attribute(value=ast.Name(id=name), attr=key):
                    inner = self.fields.raw(name)
                    asked[f"{name}.{key}"] = inner.get(key) if isinstance(inner, Mapping) else inner
                case ast.Name(id=name) if given := self._given(name):
                    asked[given[0]] = self.fields.raw(given[0])
                case ast.Name(id=name) if isinstance(default := self.defaults.get(name), str):
                    asked |= self._asked(default)
                case ast.Name(id=name) if name not in {"i", "given", "has", *FUNCTIONS, *self.defaults}:
                    asked[name] = None
        return {name: value for name, value in asked.items() if not any(k.startswith(f"{name}.") for k in asked)}

    def _of(self, node: ast.expr, i: int) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return i if node.id == "i" else self.field(node.id, i)
            case ast.Attribute():
                inner = self._of(node.value, i)
                return None if inner is None else inner.get(node.attr)
            case ast.Subscript(slice=ast.Slice(upper=ast.expr() as upper)):
                return self._of(node.value, i)[: self._of(upper, i)]
            case ast.Subscript():
                return self._of(node.value, i)[self._of(node.slice, i)]
            case ast.BinOp():
                return self._number(OPERATIONS[type(node.op)], self._of(node.left, i), self._of(node.right, i))
            case ast.Compare():
                return OPERATIONS[type(node.ops[0])](self._of(node.left, i), self._of(node.comparators[0], i))
            case ast.BoolOp():
                for operand in node.values:
                    result = self._of(operand, i)
                    if bool(result) == isinstance(node.op, ast.Or):
                        break
                return result
            case ast.UnaryOp():
                result = self._of(node.operand, i)
                return not result if isinstance(node.op, ast.Not) else -result
            case ast.IfExp():
                return self._of(node.body if self._of(node.test, i) else node.orelse, i)
            case ast.List() | ast.Tuple():
                return [self._of(elt, i) for elt in node.elts]
            case ast.Call(func=ast.Name(id="given" | "has" as name), args=[ast.Constant(value=str(key))]):
                return self.fields.given(key) if name == "given" else self.fields.has(key)
            case ast.Call(func=ast.Name(id=name)):
                return FUNCTIONS[name](*(self._of(argument, i) for argument in node.args))
        raise ValueError(ast.dump(node))

    @staticmethod
    def _number(what: Callable[[object, object], object], a: object, b: object) -> object:
        if not all(isinstance(x, int | float) and not isinstance(x, bool) and abs(x) < NUMBER_MOST for x in (a, b)):
            raise TypeError
        return what(a, b)

    def _given(self, name: str) -> list[str]:
        own = [key for key in dict.fromkeys((name, self.aliases.get(name, name))) if self.fields.has(key)]
        others = [key for key in self.other_names.get(name, ()) if self.fields.has(key)]
        # Beside its own name another may be a field of its own; where it says the same, nothing is left out.
        return own + [key for key in others if not own or self.fields.raw(key) == self.fields.raw(own[0])]

    def field(self, name: str, i: int) -> object:
        """A field of the config, or what its absence means."""
        given = self._given(name)
        self.fields.ignore(name, *given)
        if not given and name not in self.defaults:
            raise self.fields.refuse(name, None, f"the model needs this field{MEANING.get(name, '')}")
        if not given:
            return self.value(self.defaults[name], i)
        value, kind = self.fields.raw(given[0]), type(self.defaults.get(name))
        if self.fields.raw(given[-1]) != value:
            remedy = f"it contradicts {name} = {showable(value)}: remove one of them"
            raise self.fields.refuse(given[-1], self.fields.raw(given[-1]), remedy)
        if kind in (bool, int) and (isinstance(value, str) or isinstance(value, bool) != (kind is bool)):
            raise self.fields.refuse(given[0], value, "give true or false" if kind is bool else "give a number")
        return value

    def entries(self, part: str, name: str, entries: Mapping[str, object], i: int) -> dict[str, Any]:
        """The entries of one noun, worked out and in range."""
        values = {key: self._entry(key, text, i) for key, text in entries.items()}
        for key, value in values.items():
            text = str(entries[key])
            if (key in FLAGS and not isinstance(value, bool)) or (key == "activation" and value not in ACTIVATIONS):
                remedy = f"give one of {', '.join(ACTIVATIONS)}" if key == "activation" else "give true or false"
                raise self.refuse(text, remedy)
            if isinstance(value, float) or (isinstance(value, bool) and key not in FLAGS):
                raise self.refuse(text, f"{key} is {value}: give a whole number")
            if value is None and key not in MAY_BE_NONE:  # its default is a field that is not there
                raise self.refuse(text, "the model needs this field", text if text.isidentifier() else None)
            if type(value) is int and isinstance(entries[key], str) and not key.startswith("more_"):
                least = 0 if key in MAY_BE_ZERO else 1
                field = text if text.isidentifier() else f"{name} {key} ({text})"
                counted(field, value, MOST.get(key, SIZE_MAX), least=least, where=self.fields.where)
            elif isinstance(value, dict | list) or (key not in WORDS and isinstance(value, str)):
                raise self.refuse(text, "give a number")
        return values

    def _entry(self, key: str, text: object, i: int) -> object:
        if key in WORDS and isinstance(text, str):
            return self.value(text[1:].strip(), i) if text.startswith("=") else text
        return self.value(text, i)

    def once(self, part: str, name: str, i: int, make: Callable[[dict[str, object]], object]) -> Any:
        """The noun called `name`, made once unless its entries ask for the layer."""
        entries = self.rules[part][name]
        if (part, name) not in self.by_layer:
            texts = [text for text in entries.values() if isinstance(text, str)]
            self.by_layer[part, name] = any(_parsed(t.lstrip("= "))[1] for t in texts) or any(
                isinstance(v, str) and _parsed(v)[1] for k, v in self.defaults.items() if any(k in t for t in texts)
            )
        key = (part, f"{name}:{i}" if self.by_layer[part, name] else name)
        if key not in self.nouns:
            self.nouns[key] = make(self.entries(part, name, entries, i))
        return self.nouns[key]


def read_type(name: str, fields: Fields) -> Model:
    """The model of a config whose `model_type` is `name`. Raises SpecError."""
    rules, outer = rules_of(name), name
    field, tied = rules.get("inside"), rules.get("tied")
    if field is None or (not fields.has(field) and ("mixers" in rules or rules.get("flat"))):
        name = name if "mixers" in rules else rules["text"]
        if not any(fields.has(tower) for tower in TOWERS):
            return _read(fields, name, rules_of(name), ())
        beside = (key for key in fields.names() if key.startswith(OF_TOWERS))
        fields.ignore(*TOWERS, *rules.get("outside", ()), *beside)
        return _with_tower(_read(fields, name, rules_of(name), (TOWERS_NOTE,)), fields, outer)
    text = fields.inner(field, required=True)
    fields.ignore(*rules.get("outside", ()), *(key for key in fields.names() if key.startswith(OF_TOWERS)))
    fields.outside = True
    if "mixers" not in rules:
        own = text.raw("model_type") or rules["text"]
        own = rules["text"] if own == f"{outer}_text" and own not in type_names() else own
        if own not in type_names():
            raise text.refuse("model_type", showable(own), "the text model is of no type that is read")
        name, rules = own, {**rules_of(own), "notes": [*rules_of(own).get("notes", ()), *rules.get("notes", ())]}
        if "inside" in rules:
            return read_type(own, text)
    if fields.has("tie_word_embeddings") or tied is not None:
        fields.must_be("tie_word_embeddings", (True, False), "it says whether the output matrix is the token table")
        tied = bool(fields.raw("tie_word_embeddings") if fields.has("tie_word_embeddings") else tied)
        rules = {**rules, "model": {**rules["model"], "tied_embeddings": tied}}
        text.ignore("tie_word_embeddings")
    read = _read(text, name, rules, (TOWERS_NOTE,) if any(fields.has(tower) for tower in TOWERS) else ())
    return _with_tower(read, fields, outer)


def _with_tower(read: Model, fields: Fields, outer: str) -> Model:
    """A text model with what its config says of a vision tower beside it."""
    vision = _beside(fields, "vision_config", rules_of(outer).get("tower", {}), read.hidden_size)
    sound = _beside(fields, "audio_config", rules_of(outer).get("sound", {}), read.hidden_size)
    return replace(read, tower=_tower(fields.raw("vision_config")), vision=vision, sound=sound)


def _beside(fields: Fields, field: str, own: Mapping[str, object], text_width: int) -> Tower | None:
    """The tower of a `field` beside a text model of so many numbers a token; None where its type has no file."""
    config = fields.raw(field)
    if not isinstance(config, dict):
        return None
    name = f"towers/{own.get('type') or config.get('model_type')}"
    if not re.fullmatch(r"towers/\w+", name) or not has_file(name):
        return None
    rules = rules_of(name)
    beside = {key: fields.raw(key) for key in fields.names() if key not in ("text_config", *TOWERS)}
    whole = Fields({**beside, **config, "text_width": text_width}, fields.where)
    reading = _Reading(whole, rules, name)
    try:
        encoder = replace(_read(whole, name, rules, ()), name=name.removeprefix("towers/"))
        entries = {key: reading.value(text) for key, text in {**rules["tower"], **own}.items() if key != "type"}
        products = tuple((int(k), int(n)) for k, n in entries.pop("projector"))
        numbers = {key: int(value) for key, value in entries.items()}
    except (SpecError, TypeError, ValueError):
        return None  # another kind of tower under a name that is known: the text model is read as ever
    return Tower(encoder=encoder, projector=products, **numbers)


def _tower(config: object) -> tuple[int, int] | None:
    """Layers and width of a vision tower; where they have other names, those of ViT-L/14, as SGLang takes them."""
    if not isinstance(config, dict):
        return None
    sizes = [config.get("num_hidden_layers", 24), config.get("hidden_size", 1024)]
    return (sizes[0], sizes[1]) if all(type(size) is int and 0 < size < SIZE_MAX for size in sizes) else (24, 1024)


def _read(fields: Fields, name: str, rules: Rules, notes: tuple[str, ...]) -> Model:
    reading = _Reading(fields, rules, name)
    fields.ignore(*rules.get("ignore", ()), *fields_asked(name))
    for key, allowed in rules.get("only", {}).items():
        if allowed is not None:
            fields.must_be(key, tuple(allowed), "this type can be read with no other value")
    for key, own in rules.get("objects", {}).items():
        inner = fields.inner(key)
        inner.ignore(*own["ignore"])
        for field, allowed in own["only"].items():
            inner.must_be(field, tuple(allowed), "this type can be read with no other value")
        inner.close()
    for key, condition in rules.get("must", {}).items():
        rule, words = condition if isinstance(condition, list) else (condition, f"what has to hold is `{condition}`")
        if not reading.value(rule):
            raise reading.refuse(rule, words, key)
    whole = reading.entries("model", "model", rules["model"], -1)
    layer = dict(rules.get("layer", {}))
    count = layer.pop("count", "num_hidden_layers")
    n = counted(
        count if count.isidentifier() else "num_hidden_layers", reading.value(count), LAYERS_MAX, where=fields.where
    )
    for key, words in rules.get("words", {}).items():
        fields.words(key, n, tuple(words))
    layers: list[Layer] = []
    distinct: dict[tuple[int, int, tuple[object, ...]], Layer] = {}
    for i, kinds in _kinds(reading, n):
        for part, kind in zip(("mixers", "blocks"), kinds, strict=True):
            if kind not in rules[part] and kind != NOTHING:
                remedy = f"layers of this type have {', '.join(rules[part])}"
                raise fields.refuse(f"kind of layer {i}", showable(kind), remedy)
        if kinds == [NOTHING, NOTHING]:
            continue  # holds nothing (Llama-Nemotron Ultra)
        mixer = reading.once("mixers", kinds[0], i, _mixer)
        block = EMPTY if kinds[1] == NOTHING else reading.once("blocks", kinds[1], i, _block)
        entries = reading.entries("layer", "layer", layer, i)
        if not block.size:
            entries["norms"] = min(1, entries.get("norms", 1))
        key = (id(mixer), id(block), tuple(entries.values()))
        if key not in distinct:
            distinct[key] = _layer(mixer, block, entries)
        layers.append(distinct[key])
    if fields.prefix:
        notes += fields.close()
    whole.setdefault("family", str(fields.raw("model_type")))
    return Model(name="", layers=tuple(layers), notes=(*rules.get("notes", ()), *notes), **whole)


NOTHING = "none"
EMPTY = FeedForward(size=0, gated=False, activation="relu2")
# What configs call a mixer or a block, in one word for all.
PARTS = {"M": "mamba", "linear_attention": "mamba", "*": "attention", "full_attention": "attention",
         "E": "experts", "moe": "experts", "-": "dense", "mlp": "dense"}  # fmt: skip


def _kinds(reading: _Reading, n: int) -> Iterator[tuple[int, list[str]]]:
    """Of each layer the mixer and the block, by name; the first number is that of the config's layer."""
    rules = reading.rules
    if "parts" not in rules:
        yield from ((i, [reading.value(rules["mixer"], i), reading.value(rules["block"], i)]) for i in range(n))
        return
    last: tuple[int, list[str]] | None = None
    for i in range(n):
        for word in reading.value(rules["parts"], i):
            own = isinstance(word, str) and (word in rules["mixers"] or word in rules["blocks"])
            kind = word if own or not isinstance(word, str) else PARTS.get(word, word)
            if kind not in rules["blocks"]:
                if last:
                    yield last
                last = (i, [kind, NOTHING])
            elif last and last[1][1] == NOTHING:
                last[1][1] = kind
            else:
                remedy = "give mixers (M, *) and behind each at most one feed-forward (E, -)"
                raise reading.fields.refuse("layers_block_type", showable(word), remedy)
    if last:
        yield last


def _layer(mixer: Attention, block: FeedForward, entries: dict[str, Any]) -> Layer:
    kind = Streamed if entries.get("streams", 1) > 1 else Layer
    if kind is Layer:
        entries.pop("streams", None)
    return kind(attention=mixer, feed_forward=block, **entries)


def _mixer(entries: dict[str, Any]) -> Attention:
    entries = {key: value for key, value in entries.items() if value or not key.startswith(MORE)}
    kind: type[Attention] = Attention
    if "form" in entries:
        kind, entries = Recurrent, {"kind": "recurrent", "position": "none", **entries}
    elif "ratio" in entries:
        kind = Compressed
    elif "selected" in entries:
        kind = Indexed
    elif any(key.startswith(MORE) for key in entries):
        kind = Extended
    entries.setdefault("value_head_dim", entries["head_dim"])
    entries.setdefault("kv_heads", entries["heads"])
    return kind(**entries)


def _block(entries: dict[str, Any]) -> FeedForward:
    kind = ExtendedBlock if {"latent", "scored", "more_parameters"} & set(entries) else FeedForward
    return kind(**{"gated": True, "activation": "silu", **entries})
