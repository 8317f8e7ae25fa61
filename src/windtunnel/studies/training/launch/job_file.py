"""What a reader makes of a framework's own file: plan fields, the model where it states one, and what it left alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from os.path import isfile
from pathlib import Path
from typing import Any

from windtunnel.errors import SpecError
from windtunnel.files.document import own_document
from windtunnel.questions.asked.parts.plan import OpenPlan

_NO_EFFECT = own_document(Path(__file__).with_name("no_effect.yaml").read_text("utf-8"))
NO_EFFECT: Mapping[str, tuple[str, ...]] = {name: tuple(words) for name, words in _NO_EFFECT.items()}


@dataclass(frozen=True, slots=True)
class Native:
    """A job as its framework's own file states it.

    `model`: a catalogue name, or keywords of `windtunnel.physics.model.transformer`; None where the file names none.
    `sizes`: what it says of the model by those keywords, where that is not all of one.
    `unknown`: every option that was not understood, as the file writes it. What changes no step's time or memory
    (learning rates, data paths, logging) is understood and left out.
    """

    framework: str
    fields: Mapping[str, object]
    model: str | Mapping[str, Any] | None = None
    unknown: tuple[str, ...] = ()
    where: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Options:
    """The leaves of a nested document by dotted name; what is asked for is understood."""

    leaves: dict[str, object]
    where: str
    left: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, document: Mapping[str, object], where: str) -> Options:
        """All leaves of a document."""
        leaves = dict(_leaves(document, ""))
        return cls(leaves, where, set(leaves))

    def take(self, name: str, default: object = None) -> object:
        """The value of a leaf, understood from now on."""
        self.left.discard(name)
        return self.leaves.get(name, default)

    def whole(self, name: str, default: int | None = None, *, least: int = 1) -> int | None:
        """The same, a whole number of at least `least`. Raises SpecError."""
        value = self.take(name, default)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise SpecError(name, value, f"give a whole number of at least {least}", self.where)
        return value

    def count(self, name: str, default: int, *, least: int = 1) -> int:
        """The same, where there is always a number."""
        value = self.whole(name, default, least=least)
        return default if value is None else value

    def flag(self, name: str, default: bool = False) -> bool:
        """The same, a switch. Raises SpecError."""
        value = self.take(name, default)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            raise SpecError(name, value, "give true or false", self.where)
        return value

    def ignore(self, *prefixes: str) -> None:
        """Leaves that change no step: understood."""
        self.left = {name for name in self.left if not name.startswith(prefixes)}

    def unknown(self) -> tuple[str, ...]:
        """What was never asked for, in the order of the file."""
        return tuple(name for name in self.leaves if name in self.left)


def file_beside(path: Path, *names: str | Path) -> Path | None:
    """A file that another one names: in its folder, or above it as far as the working directory. No other is read."""
    folder, here = path.absolute().parent.resolve(), Path.cwd().resolve()
    above = [folder, *folder.parents]
    within = above[: above.index(here) + 1] if here in above else [folder]
    places = (at / name for at in within for name in names)
    return next((place for place in places if isfile(place) and place.resolve().is_relative_to(within[-1])), None)


def _leaves(document: Mapping[str, object], above: str) -> Iterator[tuple[str, object]]:
    for key, value in document.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


# Fields that only Megatron-Core has options for, as they are elsewhere.
PLAIN: Mapping[str, object] = {
    "overlap_tp_backward": False, "overlap_p2p": False, "overlap_ep": False, "cuda_graphs": False,
    "optimizer_dtype": "fp32", "offload_activations": 0, "attention_impl": "flash", "account_for_embedding": False,
    "fp8_activation_input": False, "fp8_parameters": False, "lora_rank": 0, "lora_adapters": 1, "task": "train",
}  # fmt: skip


def with_left_out(plan: OpenPlan, written: set[str], usual: Mapping[str, object]) -> list[str]:
    """Fields of a plan that a framework has no option for and that are not as it has them anyway."""
    return [
        f"{name} {_word(value)}"
        for name, value in vars(plan).items()
        if name not in written and value is not None and value != usual.get(name)
    ]


def with_comment(lines: list[str], left: list[str]) -> tuple[str, tuple[str, ...]]:
    """The text of a file, and what it cannot say, which stands in its last line."""
    comment = [f"# no key for: {'; '.join(left)}"] if left else []
    return "\n".join([*lines, *comment]) + "\n", tuple(left)


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
