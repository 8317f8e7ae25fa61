"""Everything that windtunnel raises on purpose.

    WindtunnelError
    ├── UserError               a mistake in what was asked: one message, exit status 2
    │   ├── SpecError           a field of a spec: names the field, the value and the remedy
    │   ├── UnknownNameError    a GPU, model, schedule ... that the catalogue lacks: names what there is
    │   ├── InputFileError      a file that is missing, unreadable or malformed: names the place in it
    │   └── LayoutError         a plan that cannot be laid out on this cluster: says which numbers clash
    └── ScheduleError           a pipeline schedule that would deadlock: a fault of ours or of a user's schedule file

A job that is well formed but does not fit is no error: it is an *infeasible* `Result`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class WindtunnelError(Exception):
    """Root of the tree. Never raised itself."""

    def __reduce__(self) -> tuple[object, ...]:
        """Errors travel between processes: what `__init__` takes is not what `args` holds."""
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[WindtunnelError], args: tuple[object, ...], state: dict[str, object]) -> WindtunnelError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class UserError(WindtunnelError):
    """A mistake in what was asked. `str(error)` is a complete message for the user."""


class SpecError(UserError):
    """One field of a spec holds a value that cannot be used."""

    def __init__(self, field: str, value: object, remedy: str, where: str | None = None) -> None:
        self.field, self.value, self.remedy, self.where = field, value, remedy, where
        place = f"{where}: " if where else ""
        text = f"{field} is not given" if value is None else f"{field} = {_shown(value)}"
        super().__init__(f"{place}{text}: {remedy}")


EXAMPLES = 20  # of known names, where there are more than twice as many


class UnknownNameError(UserError):
    """A name that the catalogue does not hold."""

    def __init__(self, kind: str, name: str, names: Iterable[str], remedy: str | None = None) -> None:
        self.kind, self.name, self.known = kind, name, sorted(names)
        near = get_close_matches(name.lower().rpartition("/")[2], self.known, n=3, cutoff=0.5)
        shown, more = self.known, ""
        if len(shown) > 2 * EXAMPLES:
            shown, more = shown[:: len(shown) // EXAMPLES + 1], f", ... ({len(shown)} in all)"
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(shown)}{more}."
        super().__init__(f"unknown {kind} {_shown(name)}: {hint}" + (f" {remedy}" if remedy else ""))


class InputFileError(UserError):
    """A file that cannot be read as what it should be."""

    def __init__(self, path: object, problem: str, remedy: str) -> None:
        self.path, self.problem, self.remedy = str(path), problem, remedy
        super().__init__(f"{_place(path)}: {problem}; {remedy}")


class LayoutError(UserError):
    """The degrees of a plan contradict each other, the model or the cluster."""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem, self.remedy = problem, remedy
        super().__init__(f"{problem}; {remedy}")


@contextmanager
def about_file(path: object) -> Iterator[None]:
    """Mistakes in what a file says, with its name in front where a message has it nowhere."""
    try:
        yield
    except UserError as error:
        if _place(path) not in str(error):
            error.args = (f"{_place(path)}: {error}",)
        raise


def _place(path: object) -> str:
    """A path in a message of one line."""
    return str(path) if str(path).isprintable() else repr(str(path))


class ScheduleError(WindtunnelError):
    """A pipeline schedule that is incomplete or would never finish."""


_WANTED = {
    "greater_than_equal": "give {ge} or more",
    "greater_than": "give more than {gt}",
    "less_than_equal": "give {le} or less",
    "less_than": "give less than {lt}",
    "literal_error": "use one of {expected}",
    "enum": "use one of {expected}",
    "int": "give a whole number",
    "float": "give a number",
    "finite_number": "give a finite number",
    "bool": "give true or false",
    "string": "give text",
    "tuple": "give a list",
    "list": "give a list",
    "dict": "give a mapping of `key: value` lines",
    "model": "give a mapping of `key: value` lines",
    "none_required": "leave it out",
}


def remedy_of(problem: ErrorDetails) -> str:
    """What to give instead, from one entry of pydantic's `ValidationError.errors()`."""
    kind, context = str(problem["type"]), problem.get("ctx") or {}
    words = _WANTED.get(kind) or _WANTED.get(kind.partition("_")[0])
    if words is None:
        message = str(problem["msg"])
        return message[:1].lower() + message[1:]
    return words.format(**context)


def _shown(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
