"""A config's fields, each read once with its type and range, so that what nobody read can be refused.

A reader asks for the fields that decide shapes. What it did not ask for is one of three: known to change no shape, and
ignored; unknown but null or false, and left out with a note; unknown with any other value, and an error: a field that
is silently ignored is a prediction that is silently wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from itertools import chain
from pathlib import Path

from windtunnel.errors import SpecError
from windtunnel.files.document import own_document
from windtunnel.physics.model.limits import showable

_MISSING: object = object()

# Comments; and angles, token ids, dropout, initialisation and weights of losses by how their names begin or end.
NUMERICS = re.compile(
    r"_|(m?rope|rotary|yarn)_(\w+_)?(theta\w*|base|freq|scaling|scale|mscale|factor|ratio|pct|percent|alpha|beta|type|interleaved?|"
    r"section|parameters|traditional|max_seq_len|original_max_position_embeddings|truncate|(?<=rotary_)dim)$|"
    r".*_(token_ids?|token_index|dropout|pdrop|eps|epsilon|loss_coef|init_scale|loss_scaling_factor)$"
)
FIELDS = Path(__file__).parents[1] / "types" / "_fields.yaml"


@cache
def _field_lists() -> dict[str, dict[str, list[object]]]:
    return own_document(FIELDS.read_text(encoding="utf-8"))


@cache
def irrelevant() -> frozenset[object]:
    """Fields that change no shape in any architecture."""
    return frozenset(chain.from_iterable(_field_lists()["irrelevant"].values()))


class Fields:
    """Typed access to one config mapping. Every getter marks its key as read; `close` refuses what was not.

    A null in JSON counts as absent. All getters raise SpecError naming field, value and remedy.
    """

    def __init__(self, config: Mapping[str, object], where: str | None = None, prefix: str = "") -> None:
        self._config, self.where, self.prefix = config, where, prefix
        self._read: set[str] = set()
        self.outside = False  # of a text model that is an object of its own: no field here shapes it
        for key in config:
            if not isinstance(key, str):
                raise SpecError("config", showable(key), "use text for the names of fields", where)

    def _get(self, key: str) -> object:
        self._read.add(key)
        value = self._config.get(key)
        return _MISSING if value is None else value

    def refuse(self, key: str, value: object, remedy: str) -> SpecError:
        """The error to raise about `key`."""
        return SpecError(self.prefix + key[:80], showable(value), remedy, self.where)

    def has(self, key: str) -> bool:
        """Whether the config gives `key` a value other than null."""
        return self._config.get(key) is not None

    def raw(self, key: str) -> object:
        """The field as it stands."""
        return self._config.get(key)

    def names(self) -> tuple[str, ...]:
        """The fields there are."""
        return tuple(self._config)

    def given(self, key: str) -> bool:
        """Whether the config names `key` at all, be it with null."""
        return key in self._config

    def must_be(self, key: str, allowed: tuple[object, ...], why: str) -> None:
        """Accept the field only where it is absent or holds a value that changes nothing."""
        value = self._get(key)
        if value is not _MISSING and not any(type(value) is type(a) and value == a for a in allowed):
            shown = " or ".join(str(a).lower() if isinstance(a, bool) else str(a) for a in allowed)
            raise self.refuse(key, value, f"{why}; give {shown}, or remove the field")

    def words(self, key: str, n: int, vocabulary: tuple[str, ...]) -> None:
        """Accept the field only where it is absent or a list of `n` words out of `known`."""
        value = self._get(key)
        if value is _MISSING:
            return
        if not isinstance(value, list | tuple):
            raise self.refuse(key, value, "give a list")
        if len(value) != n:
            raise self.refuse(key, value, f"the list has {len(value)} entries: give one per layer, {n}")
        for item in value:
            if not isinstance(item, str) or item not in vocabulary:
                raise self.refuse(key, item, f"use only {', '.join(vocabulary)}")

    def inner(self, key: str, *, required: bool = False) -> Fields:
        """A nested object as Fields of its own; empty where absent and not required."""
        value = self._get(key)
        if value is _MISSING:
            if required:
                raise self.refuse(key, None, "the model needs this object")
            value = {}
        if not isinstance(value, Mapping):
            raise self.refuse(key, value, "give an object with fields of its own")
        return Fields(value, self.where, f"{self.prefix}{key}.")

    def ignore(self, *keys: str) -> None:
        """Fields that change no shape in this architecture."""
        self._read.update(keys)

    def close(self) -> tuple[str, ...]:
        """Refuse any field that no reader asked for and that may change the answer; `_...` are comments.

        A field that nobody knows and that is null or false asks for nothing: it is left out, and a note says so.
        """
        neutral, idle = _field_lists()["neutral"], irrelevant()
        unknown = sorted(k for k in self._config if not (k in self._read or k in idle or NUMERICS.match(k)))
        unread = [k for k in unknown if self._config[k] is not None and self._config[k] is not False]
        unread = [k for k in unread if self._config[k] not in neutral.get(k, ())]
        if unread and not self.outside:
            more = f" (also unknown: {', '.join(key[:80] for key in unread[1:6])})" if unread[1:] else ""
            remedy = "this field is not understood for this model_type; if it changes no tensor shape, remove it" + more
            raise self.refuse(unread[0], self._config[unread[0]], remedy)
        unset = ", ".join(self.prefix + key[:80] for key in unknown if key not in neutral)
        which = "beside the text model" if self.outside else "of the config"
        value = "" if self.outside else ", null or false"
        return (f"fields {which} that are not known{value}, and left out: {unset}",) if unset else ()
