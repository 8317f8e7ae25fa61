"""The application: its verbs, and what every one of them does about mistakes, interrupts and closed pipes.

Exit status: 0 an answer, 1 `check` where a rule is broken and `fleet live` or `fleet beside` where a job did not
complete, 2 a mistake of the user, 3 an answer that says the job does not fit in memory (of `decide`: none does) and
`fleet lint` where something cannot be right, 4 a captured script that would hang or crash on a cluster, 130
interrupted, 141 nobody reads the output any more; where a script of the user's runs and fails, its own. A mistake is
one line on stderr: `windtunnel: error: ...`.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from inspect import Parameter as Argument

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    UnknownOptionError,
    UnusedCliTokensError,
)

from windtunnel.errors import UserError
from windtunnel.faces.cli.flags import GROUPS, spelled
from windtunnel.faces.cli.verbs import LAUNCHERS, VERBS, command_of, listed_command
from windtunnel.faces.cli.version import version_line
from windtunnel.questions.former import current
from windtunnel.questions.registry import QUESTIONS, question_class
from windtunnel.questions.words import flag_fields

USER_MISTAKE, INTERRUPTED, PIPE_CLOSED = 2, 130, 141
HELP_ALL = "--help-all"  # rare flags too
COMPLETION = "--install-completion"  # its script knows the flags of all verbs
NEAR = 0.7  # of names without their dashes, from which one may have been meant for the other
ELSEWHERE = {  # what other tools call it
    "mbs": "micro-batch", "gbs": "global-batch", "qps": "rate", "request-rate": "rate", "nodes": "cluster",
    "gpus": "cluster", "num-gpus": "cluster", "dtype": "precision", "world-size": "cluster",
}  # fmt: skip
LONGER = 3  # flags that hold the word, at most


def build(family: str = "", *, everything: bool = False) -> App:
    """The application with the verb that is asked, or with all where none is; `everything`: help lists rare flags."""
    app = App(
        name="windtunnel",
        help="A wind tunnel for AI clusters: what a training step costs at any scale, how sure that is, and why.",
        version=version_line,
        default_parameter=Parameter(show_default=False),  # `()` and `False` say nothing; texts name the others
        version_flags=["--version"],
        help_format="plaintext",
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    if family in VERBS:
        app.command(command_of(family, everything=everything), name=family)
        return app
    for verb in VERBS:
        listed = family != COMPLETION and (verb in QUESTIONS or verb in GROUPS)
        app.command(listed_command(verb) if listed else command_of(verb), name=verb)
    app.register_install_completion_command()
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    try:
        own = current(sys.argv[1:] if arguments is None else arguments)
        launched: list[str] = []
        family = own[0] if own else ""
        if family in LAUNCHERS:
            from windtunnel.faces.cli.launch_words import script_apart

            own, launched = script_apart(own, command_of(family))
        words = spelled(["--help" if word == HELP_ALL else word for word in own])
        app = build(family, everything=HELP_ALL in own)
        status = app([*words, *launched], exit_on_error=False, print_error=False)
        print(end="", flush=True)  # stdout may be closed: then there is none
    except CycloptsError as error:
        return _mistake(_message(error))
    except UserError as error:
        return _mistake(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _forget_output()
        return PIPE_CLOSED
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or error.filename is not None:
            raise
        _forget_output()
        return _mistake(f"the output cannot be written ({error.strerror}): free some room, or send it elsewhere")
    return status if isinstance(status, int) else 0


def _forget_output() -> None:
    """What is still buffered has nowhere to go; the interpreter would complain about it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _message(error: CycloptsError) -> str:
    if isinstance(error, MissingArgumentError):
        return _not_given(error)
    if isinstance(error, UnusedCliTokensError):
        words = " ".join(error.unused_tokens or ())
        verb = " ".join(error.command_chain or ())
        if os.path.isfile(words) and "log" in flag_fields(question_class(verb)):
            return f"nothing takes {words!r}: if it is what was measured, give it as --log {words} or --trace {words}"
        return f"nothing takes {words!r}: an option has one value, and is given again for another; see {_help(error)}"
    if isinstance(error, CoercionError) and error.token is not None:
        word = (error.token.keyword or "").lstrip("-")
        verb = " ".join(error.command_chain or ())
        for field in flag_fields(question_class(verb)).get(word, ()) if verb in QUESTIONS else ():
            if field.about.meant is not None and (advice := field.about.meant(error.token.value)):
                return f"{str(error).partition(' Did you mean')[0].rstrip('.')}; {advice}"
    return _not_known(error) if isinstance(error, UnknownOptionError) else str(error)


def _not_known(error: UnknownOptionError) -> str:
    """The flag that is not known, and the one that comes near: by their letters, as the dashes are alike in all."""
    word = (error.token.keyword or error.token.value or "").partition("=")[0]
    names = {
        name.lstrip("-"): name for argument in error.argument_collection if argument.parse for name in argument.names
    }
    family = (error.command_chain or ("",))[0]
    verbs = [verb for verb in QUESTIONS if verb.split()[0] == family]
    home = next((verb for verb in verbs if word.lstrip("-") in flag_fields(question_class(verb))), None)
    if home is not None:
        return f"unknown option {word}: it belongs to `windtunnel {home}`"
    takers = {verb.split()[0] for verb in QUESTIONS if word.lstrip("-") in flag_fields(question_class(verb))}
    longer = [name for name in names if f"-{word.strip('-')}-" in f"-{name}-"]  # --zero of --zero-stage
    same = [name for name in [ELSEWHERE.get(word.strip("-"), "")] if name in names]
    near = same or sorted(longer, key=len)[:LONGER] or get_close_matches(word.lstrip("-"), names, n=1, cutoff=NEAR)
    remedy = f"did you mean {' or '.join(names[name] for name in near)}?" if near else f"see {_help(error)}"
    if not near and 0 < len(takers) <= LONGER:
        remedy = f"it belongs to {' and '.join(f'`windtunnel {verb}`' for verb in sorted(takers))}"
    return f"unknown option {word}: {remedy}"


def _help(error: CycloptsError) -> str:
    return f"`{' '.join(['windtunnel', *(error.command_chain or ()), '--help'])}`"


def _not_given(error: MissingArgumentError) -> str:
    """What cyclopts says of a word that is missing, and of a flag that stands without its value, told apart."""
    _, _, meant = str(error).partition(" Did you mean ")
    remedy = f"did you mean {meant}" if meant else f"see {_help(error)}"
    if error.keyword is None:
        name = error.argument.name if error.argument is not None else ""
        if error.argument is not None and error.argument.field_info.kind is Argument.POSITIONAL_OR_KEYWORD:
            name = name.removeprefix("--").upper()  # as the help says it first
        what = (error.argument.parameter.help or "").rstrip(".") if error.argument is not None else ""
        return f"{name} is not given: {what}; {remedy}" if what and not meant else f"{name} is not given: {remedy}"
    return f"{error.keyword} has no value (one that begins with - is written {error.keyword}=-1): {remedy}"


def _mistake(message: str) -> int:
    print(f"windtunnel: error: {' '.join(message.split())}", file=sys.stderr)
    return USER_MISTAKE
