"""Every policy takes and refuses what it did before what it needs was written beside it, in the same words."""

import json

import pytest
from accepted import RECORDED, table


@pytest.mark.long  # every policy compiles its loop: the better part of a minute
def test_every_policy_takes_and_refuses_what_was_recorded() -> None:
    recorded = json.loads(RECORDED.read_text())
    found = {question: answer for answer, questions in table().items() for question in questions}
    assert found == {question: answer for answer, questions in recorded.items() for question in questions}
    assert len(found) > 200
