"""A script that gives up being root is told so, and leaves what it found."""

from __future__ import annotations

import os

import pytest

from windtunnel.real.capture.processes.same_user import user_stays

pytestmark = pytest.mark.skipif(os.name != "posix", reason="users have numbers on POSIX only")


def test_a_root_that_becomes_another_user_is_told_so_and_stays_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    refused = [name for name in dir(os) if name.startswith("set") and name.endswith(("uid", "gid"))]
    for name in refused:
        monkeypatch.setattr(os, name, lambda *_: pytest.fail("it became another user"))
    before = os.getuid(), os.getgid()
    notes: list[str] = []
    with user_stays(notes.append):
        os.setegid(12)
        os.seteuid(34)
        assert (os.geteuid(), os.getuid(), os.getegid(), os.getgid()) == (34, before[0], 12, before[1])
        os.setresuid(-1, 56, 78)
        assert (os.geteuid(), os.getuid()) == (56, before[0])
        os.setgid(9)
        os.setuid(8)
        assert (os.getuid(), os.geteuid(), os.getgid(), os.getegid()) == (8, 8, 9, 9)
        if hasattr(os, "getresuid"):  # who gives up being root for good looks whether it was
            assert (os.getresuid(), os.getresgid()) == ((8, 8, 8), (9, 9, 9))
    assert os.geteuid() == 0
    assert len(notes) == 5
    assert "os.seteuid" in notes[1]


def test_who_is_not_root_is_told_what_the_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    before = os.seteuid
    with user_stays(pytest.fail):
        assert os.seteuid is before
