"""Questions: what each study is asked, as one frozen dataclass, and all that a door needs of it.

plain(question)              JSON data, nothing that holds its default      files, hashes, pages
digest(question)             of the plain form: a new field with a default changes none
read(data)                   plain data to a question, strict; SpecError names field, value and remedy
changed(question, {...})     dotted paths replaced: what-if, sweeps, advice, `--set`
run(question)                the study's answer
words.words(question)        the command line that asks it
"""

from windtunnel.questions.question import (
    QUESTIONS,
    ask,
    changed,
    digest,
    plain,
    question_class,
    read,
    read_part,
    run,
    schema,
)

__all__ = ["QUESTIONS", "ask", "changed", "digest", "plain", "question_class", "read", "read_part", "run", "schema"]
