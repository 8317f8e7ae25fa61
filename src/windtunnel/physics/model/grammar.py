"""Model types as data: `types/TYPE.yaml` says in a few lines how a config's fields make layers.

    extends     another type whose entries this one's are laid over
    inside      the field that holds the text model of a multimodal config; its towers are left out, with a note
    defaults    what an absent field means: an expression, or null
    ignore      fields that change no shape; `only` gives the values of a field that this type can be read with
    model       entries of `Model`
    mixers      for each kind, entries of `Attention`, or with `form` of `Recurrent`, with `selected` of `Indexed`
    blocks      for each kind, entries of `FeedForward`
    mixer, block   which of them layer `i` has
    layer       entries of `Layer`, and `count`: how many layers
    pairs       instead of both: a list or text that names what stands in a row, mixers and blocks (Nemotron-H)

Text is an expression over the config's fields (`hidden_size // num_attention_heads`) with `i` for the layer; entries
that take a word hold the word itself, or `= expression`.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from windtunnel.files.document import own_document
from windtunnel.physics.model.architecture import Attention, FeedForward, Layer, Model
from windtunnel.physics.model.config_fields import Fields
from windtunnel.physics.model.limits import HEADS_MAX, LAYERS_MAX, SIZE_MAX, TOKENS_MAX, counted, showable
from windtunnel.physics.model.mixers import Extended, ExtendedBlock, Indexed, Recurrent

FOLDER = Path(__file__).parent / "types"
WORDS = ("kind", "form", "qk_norm", "position", "norm", "activation", "family")
MAY_BE_ZERO = ("shared_size", "more_parameters", "more_weights", "index_heads", "mtp_layers", "learned_positions",
               "expert_groups", "groups_per_token", "latent", "size", "rope_head_dim", "conv_channels", "conv_width",
               "norms")  # fmt: skip
MOST = {"heads": HEADS_MAX, "kv_heads": HEADS_MAX, "experts": HEADS_MAX, "max_sequence_length": TOKENS_MAX}
NUMBER_MOST = 10**15
TOWERS = ("vision_config", "audio_config")
TOWERS_NOTE = "the towers of this checkpoint (vision, audio) are left out: text only"

_OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Div: operator.truediv,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "len": len, "int": int, "bool": bool}


@cache
def type_names() -> tuple[str, ...]:
    """The model types that have a file."""
    return tuple(sorted(path.stem for path in FOLDER.glob("[!_]*.yaml")))


@cache
def _type(name: str) -> dict[str, Any]:
    own: dict[str, Any] = own_document((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return _laid_over(_type(own["extends"]), own) if "extends" in own else own


def _laid_over(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    whole = dict(base)
    for key, value in own.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict) and "instead" not in value:
            whole[key] = _laid_over(base[key], value)
        elif isinstance(value, list) and isinstance(base.get(key), list):
            whole[key] = [*base[key], *value]
        else:
            whole[key] = {k: v for k, v in value.items() if k != "instead"} if isinstance(value, dict) else value
    return whole


@cache
def _parsed(text: str) -> tuple[ast.expr, bool]:
    """The expression, and whether it asks for the layer."""
    tree = ast.parse(text, mode="eval").body
    return tree, any(isinstance(node, ast.Name) and node.id == "i" for node in ast.walk(tree))


class _Reading:
    """The fields of one config, as one type's file takes them."""

    def __init__(self, fields: Fields, rules: dict[str, Any]) -> None:
        self.fields, self.rules = fields, rules
        self.defaults: dict[str, Any] = rules.get("defaults", {})
        self.kept: dict[tuple[str, str], Any] = {}

    def value(self, text: object, i: int = -1) -> Any:
        """What an entry of the file says."""
        if not isinstance(text, str):
            return text
        try:
            return self._of(_parsed(text)[0], i)
        except (TypeError, ValueError, ZeroDivisionError, IndexError, KeyError, AttributeError, OverflowError):
            raise self.fields.refuse(text, None, "these fields of the config do not go together") from None

    def _of(self, node: ast.expr, i: int) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return i if node.id == "i" else self.field(node.id, i)
            case ast.Attribute():
                inner = self._of(node.value, i)
                return None if inner is None else inner.get(node.attr)
            case ast.Subscript():
                return self._of(node.value, i)[self._of(node.slice, i)]
            case ast.BinOp():
                return self._number(_OPERATIONS[type(node.op)], self._of(node.left, i), self._of(node.right, i))
            case ast.Compare():
                return _OPERATIONS[type(node.ops[0])](self._of(node.left, i), self._of(node.comparators[0], i))
            case ast.BoolOp():
                for one in node.values:
                    found = self._of(one, i)
                    if bool(found) == isinstance(node.op, ast.Or):
                        break
                return found
            case ast.UnaryOp():
                found = self._of(node.operand, i)
                return not found if isinstance(node.op, ast.Not) else -found
            case ast.IfExp():
                return self._of(node.body if self._of(node.test, i) else node.orelse, i)
            case ast.List() | ast.Tuple():
                return [self._of(one, i) for one in node.elts]
            case ast.Call(func=ast.Name(id=name)):
                return _FUNCTIONS[name](*(self._of(one, i) for one in node.args))
        raise ValueError(ast.dump(node))

    @staticmethod
    def _number(what: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
        if not all(isinstance(x, int | float) and abs(x) < NUMBER_MOST for x in (a, b)):
            raise TypeError
        return what(a, b)

    def field(self, name: str, i: int) -> Any:
        """A field of the config, or what its absence means."""
        self.fields.ignore(name)
        if self.fields.has(name):
            return self.fields.raw(name)
        if name not in self.defaults:
            raise self.fields.refuse(name, None, "the model needs this field")
        return self.value(self.defaults[name], i)

    def entries(self, part: str, name: str, entries: Mapping[str, Any], i: int) -> dict[str, Any]:
        """The entries of one noun, worked out and in range."""
        found = {key: self._entry(key, text, i) for key, text in entries.items()}
        for key, value in found.items():
            if isinstance(value, float):
                raise self.fields.refuse(f"{part} {name} {key}", value, "give whole numbers")
            if type(value) is int and not key.startswith("more_"):
                least = 0 if key in MAY_BE_ZERO else 1
                text = str(entries[key])
                field = text if text.isidentifier() else f"{name} {key} ({text})"
                counted(field, value, MOST.get(key, SIZE_MAX), least=least, where=self.fields.where)
            elif isinstance(value, dict | list) or (key not in WORDS and isinstance(value, str)):
                raise self.fields.refuse(str(entries[key]), showable(value), "give a number")
        return found

    def _entry(self, key: str, text: object, i: int) -> Any:
        if key in WORDS and isinstance(text, str):
            return self.value(text[1:].strip(), i) if text.startswith("=") else text
        return self.value(text, i)

    def once(self, part: str, name: str, i: int, make: Callable[[dict[str, Any]], Any]) -> Any:
        """The noun called `name`, made once unless its entries ask for the layer."""
        entries = self.rules[part][name]
        texts = [text for text in entries.values() if isinstance(text, str)]
        each = any(_parsed(t.lstrip("= "))[1] for t in texts) or any(
            isinstance(v, str) and _parsed(v)[1] for k, v in self.defaults.items() if any(k in t for t in texts)
        )
        key = (part, f"{name}:{i}" if each else name)
        if key not in self.kept:
            self.kept[key] = make(self.entries(part, name, entries, i))
        return self.kept[key]


def read_type(name: str, fields: Fields) -> Model:
    """The model of a config whose `model_type` is `name`. Raises SpecError."""
    rules = _type(name)
    if "inside" in rules and fields.has(rules["inside"]):
        text = fields.inner(rules["inside"], required=True)
        fields.ignore(*TOWERS, *rules.get("outside", ()))
        tied = fields.raw("tie_word_embeddings") if fields.has("tie_word_embeddings") else None
        fields.ignore("tie_word_embeddings")
        if not text.has("tie_word_embeddings") and tied is not None:
            rules = _laid_over(rules, {"defaults": {"tie_word_embeddings": tied}})
        towers = (TOWERS_NOTE,) if any(fields.has(tower) for tower in TOWERS) else ()
        return _read(text, rules, towers)
    return _read(fields, rules, ())


def _read(fields: Fields, rules: dict[str, Any], notes: tuple[str, ...]) -> Model:
    reading = _Reading(fields, rules)
    fields.ignore(*rules.get("ignore", ()))
    for key, allowed in rules.get("only", {}).items():
        fields.must_be(key, tuple(allowed), "this type can be read with no other value")
    whole = reading.entries("model", "model", rules["model"], -1)
    layer = dict(rules.get("layer", {}))
    pairs = _pairs(fields, reading.value(rules["pairs"])) if "pairs" in rules else None
    count = len(pairs) if pairs else reading.value(layer.pop("count", "num_hidden_layers"))
    n = counted("num_hidden_layers", count, LAYERS_MAX, where=fields.where)
    layers: list[Layer] = []
    known: dict[tuple[int, int, tuple[Any, ...]], Layer] = {}
    for i in range(n):
        kinds = pairs[i] if pairs else [reading.value(rules[part], i) for part in ("mixer", "block")]
        for part, kind in zip(("mixers", "blocks"), kinds, strict=True):
            if kind not in rules[part]:
                remedy = f"layers of this type have {', '.join(rules[part])}"
                raise fields.refuse(f"kind of layer {i}", showable(kind), remedy)
        mixer = reading.once("mixers", kinds[0], i, _mixer)
        block = reading.once("blocks", kinds[1], i, _block)
        entries = reading.entries("layer", "layer", layer, i)
        if not block.size:
            entries["norms"] = 1
        key = (id(mixer), id(block), tuple(entries.values()))
        if key not in known:
            known[key] = Layer(attention=mixer, feed_forward=block, **entries)
        layers.append(known[key])
    if fields.prefix:
        notes += fields.close()
    whole.setdefault("family", str(fields.raw("model_type")))
    return Model(name="", layers=tuple(layers), notes=notes, **whole)


MIXERS = {"M": "mamba", "linear_attention": "mamba", "mamba": "mamba", "*": "attention", "full_attention": "attention",
          "attention": "attention"}  # fmt: skip
BLOCKS = {"E": "experts", "moe": "experts", "-": "dense", "mlp": "dense"}


def _pairs(fields: Fields, row: Any) -> list[tuple[str, str]]:
    """Mixers of a row, each with the block behind it, or none."""
    found: list[tuple[str, str]] = []
    for word in row or ():
        if word in MIXERS:
            found.append((MIXERS[word], "none"))
        elif word in BLOCKS and found and found[-1][1] == "none":
            found[-1] = (found[-1][0], BLOCKS[word])
        else:
            remedy = "give mixers (M, *) and behind each at most one feed-forward (E, -)"
            raise fields.refuse("layers_block_type", showable(word), remedy)
    return found


def _mixer(entries: dict[str, Any]) -> Attention:
    kind: type[Attention] = Attention
    if "form" in entries:
        kind, entries = Recurrent, {"kind": "recurrent", "position": "none", **entries}
    elif "selected" in entries:
        kind = Indexed
    elif any(key.startswith("more_") for key in entries):
        kind = Extended
    entries.setdefault("value_head_dim", entries["head_dim"])
    entries.setdefault("kv_heads", entries["heads"])
    return kind(**entries)


def _block(entries: dict[str, Any]) -> FeedForward:
    kind = ExtendedBlock if {"latent", "more_parameters"} & set(entries) else FeedForward
    return kind(**{"gated": True, "activation": "silu", **entries})
