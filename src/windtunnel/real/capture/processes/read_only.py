"""Nothing outside of a few folders changes by this process and all that it starts, for good (Linux).

`copy_files` lies an overlay over every folder of the root: the script, libraries in C or Rust and the programs that it
starts find what they write, and nobody else does. It is for who may mount: an overlay that a user mounts has no copy
of another user's folders on the way. Elsewhere `write_overlay.py` gives a script's own Python code a copy of what it
writes, and what goes past that is refused by `hold_files`. Both hold by the kernel, twice:

    Landlock          opening for writing, making, moving, removing: Linux 5.13 (truncating: 6.2); needs no rights
    mount namespace   all mounts read-only, so permissions, owners and times too: Linux 5.12, where a user may have one

Each alone has a hole that the other closes: Landlock lets `chmod` pass; out of a namespace lead `/proc/PID/root` and,
for who may mount, a mount. Sources: landlock(7), mount_setattr(2), user_namespaces(7), capabilities(7), overlayfs
(Linux documentation, filesystems/overlayfs).
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

SHARED_MEMORY = "/dev/shm"  # of processes that exchange tensors; what lies there already is not protected
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "kfd")
DEVICE_FOLDERS = ("pts", "dri", "infiniband")
_PR_SET_NO_NEW_PRIVS = 38
_NR_MOUNT_SETATTR, _NR_RULESET, _NR_RULE, _NR_RESTRICT = 442, 444, 445, 446  # alike on all architectures
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_BIND, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 0x1000, 0x4000, 0x40000, 2
_SYSTEM = ("/dev", "/proc", "/sys")  # no files of users
_AT_FDCWD, _AT_RECURSIVE, _ATTR_READ_ONLY = -100, 0x8000, 1
_CAPABILITIES_KEPT = 0xFF  # the first eight: those over files and owners, as root has them; none over mounts
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _MAKE_CHAR, _MAKE_BLOCK = 1, 2, 4, 8, 1 << 6, 1 << 11
_TRUNCATE = 1 << 14
_RIGHTS_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1}
_NOT_HANDLED = _EXECUTE | _READ_FILE | _READ_DIR


def hold_files(*writable: Path) -> str:
    """From here on nothing changes but below `writable` and in shared memory; "", or what this system does not hold.

    To be called while the process has one thread.
    """
    places = _places(writable)
    failed = []
    for what, hold in ("mount namespaces", _mount_read_only), ("Landlock", _landlock):
        try:
            if sys.platform != "linux":
                raise OSError(0, "not Linux")
            hold(places)
        except (OSError, AttributeError) as error:  # AttributeError: a C library without the function
            failed.append(f"{what}: {error.strerror if isinstance(error, OSError) else error}")
    if not failed:
        return ""
    loose = "their permissions and times" if len(failed) == 1 and failed[0].startswith("mount") else "files"
    return f"libraries and programs of the script may change {loose}: this system refuses {', '.join(failed)}"


def copy_files(copies: Path, *writable: Path) -> bool:
    """From here on what is changed but below `writable` and in shared memory lies in `copies`, for this process and
    what it starts; False, and nothing done, where this process may not mount or the system has no overlays.

    To be called while the process has one thread.
    """
    if sys.platform != "linux":
        return False
    places, here = _places(writable), os.getcwd()
    try:
        overlaid = _mount_overlays(places, copies)
        _landlock([*places, *overlaid])
    except (OSError, AttributeError):
        return False
    os.chdir(here)  # the same path, in the overlay
    return True


def _places(writable: Iterable[Path]) -> list[str]:
    return [str(path.resolve()) for path in writable] + ([SHARED_MEMORY] if os.path.isdir(SHARED_MEMORY) else [])


def _call(function: Callable[..., int], *arguments: object) -> int:
    result: int = function(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _own_namespace(libc: ctypes.CDLL) -> None:
    """Mounts of this process alone."""
    user, group = os.geteuid(), os.getegid()
    try:
        _call(libc.unshare, _CLONE_NEWNS)
    except OSError:  # not root: in a user namespace one may
        _call(libc.unshare, _CLONE_NEWNS | _CLONE_NEWUSER)
        for name, text in ("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1"):
            Path(f"/proc/self/{name}").write_text(text)
    _call(libc.mount, None, b"/", None, _MS_REC | _MS_PRIVATE, None)


def _mount_read_only(places: Iterable[str]) -> None:
    libc = _libc()
    _own_namespace(libc)
    for place in places:
        _call(libc.mount, place.encode(), place.encode(), None, _MS_BIND | _MS_REC, None)
    _set_attributes(libc, "/", _AT_RECURSIVE, _ATTR_READ_ONLY, 0)
    for place in places:
        _set_attributes(libc, place, 0, 0, _ATTR_READ_ONLY)
    _give_up_mounting(libc)


def _mount_overlays(places: Sequence[str], copies: Path) -> list[str]:
    """An overlay over each folder of the root and over what is mounted below; `places` stay what they are."""
    libc = _libc()
    _call(libc.unshare, _CLONE_NEWNS)
    _call(libc.mount, None, b"/", None, _MS_REC | _MS_PRIVATE, None)
    folders = sorted(entry.path for entry in os.scandir("/") if entry.is_dir(follow_symlinks=False))
    folders = [folder for folder in folders if folder not in _SYSTEM]
    mounted = [
        mount_point
        for mount_point in _mount_points()
        if mount_point not in folders and mount_point.startswith(tuple(f"{f}/" for f in folders))
    ]
    copies.mkdir()
    opened = {word: os.open(word, os.O_PATH | os.O_CLOEXEC) for word in (str(copies), *folders, *mounted, *places)}
    copies = Path(f"/proc/self/fd/{opened[str(copies)]}")  # its path will soon lie in an overlay
    overlaid: list[str] = []
    try:
        for number, folder in enumerate((*folders, *mounted)):
            try:
                _overlay(libc, folder, opened[folder], copies / str(number))
                overlaid.append(folder)
            except OSError:
                if folder in folders:
                    raise
                _bind(libc, opened[folder], folder)  # a file, or of a kind that no overlay takes: it stays, read-only
        _set_attributes(libc, "/", _AT_RECURSIVE, _ATTR_READ_ONLY, 0)
        for place in places:
            _bind(libc, opened[place], place)
        for folder in (*overlaid, *places):
            _set_attributes(libc, folder, 0, 0, _ATTR_READ_ONLY)
    except OSError:
        for folder in reversed(overlaid):
            libc.umount2(folder.encode(), _MNT_DETACH)
        raise
    finally:
        for descriptor in opened.values():
            os.close(descriptor)
    _give_up_mounting(libc)
    return overlaid


def _overlay(libc: ctypes.CDLL, folder: str, opened: int, copies: Path) -> None:
    """What is written below `folder` lies in `copies`, or in memory where that may not be: `copies` lies below it."""
    lower = f"/proc/self/fd/{opened}"
    copies.mkdir()
    for in_memory in (False, True):
        if in_memory:
            _call(libc.mount, b"tmpfs", str(copies).encode(), b"tmpfs", 0, None)
        for name in ("upper", "work"):
            (copies / name).mkdir()
        os.chmod(copies / "upper", os.stat(lower).st_mode & 0o7777)
        options = f"lowerdir={lower},upperdir={copies}/upper,workdir={copies}/work,volatile,redirect_dir=on"
        try:
            _call(libc.mount, b"overlay", folder.encode(), b"overlay", 0, options.encode())
        except OSError:
            if in_memory:
                raise
        else:
            return


def _bind(libc: ctypes.CDLL, opened: int, place: str) -> None:
    _call(libc.mount, f"/proc/self/fd/{opened}".encode(), place.encode(), None, _MS_BIND | _MS_REC, None)


def _folders_in(folder: str) -> list[str]:
    return sorted(entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))


def _mount_points() -> list[str]:
    """Of this namespace, outermost first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    places = {line.split(" ")[4].encode().decode("unicode_escape") for line in lines}
    return sorted(places)


def _give_up_mounting(libc: ctypes.CDLL) -> None:
    capabilities = _CAPABILITIES_KEPT & _permitted()
    head = struct.pack("=Ii", 0x20080522, 0)  # version 3, this process
    # effective, permitted, inheritable; twice
    _call(libc.capset, head, struct.pack("=6I", capabilities, capabilities, 0, 0, 0, 0))


def _set_attributes(libc: ctypes.CDLL, place: str, flags: int, more: int, fewer: int) -> None:
    attributes = struct.pack("=4Q", more, fewer, 0, 0)
    _call(libc.syscall, _NR_MOUNT_SETATTR, _AT_FDCWD, place.encode(), flags, attributes, len(attributes))


def _permitted() -> int:
    """Capabilities that this process has."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "CapPrm":
            return int(value, 16)
    return 0


def _landlock(places: Iterable[str]) -> None:
    libc = _libc()
    version = _call(libc.syscall, _NR_RULESET, None, 0, 1)
    handled = _RIGHTS_BY_VERSION[min(version, 3)] & ~_NOT_HANDLED
    rules = _call(libc.syscall, _NR_RULESET, struct.pack("=Q", handled), 8, 0)
    try:
        folders = [*places, *(f"/dev/{name}" for name in DEVICE_FOLDERS)]
        devices = [f"/dev/{name}" for name in DEVICES] + [str(path) for path in Path("/dev").glob("nvidia*")]
        for path in (*folders, *devices):
            if os.path.exists(path):
                rights = handled & ~(_MAKE_CHAR | _MAKE_BLOCK) if os.path.isdir(path) else _WRITE_FILE | _TRUNCATE
                _allow(libc, rules, path, rights & handled)
        _call(libc.prctl, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _call(libc.syscall, _NR_RESTRICT, rules, 0)
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        _call(libc.syscall, _NR_RULE, rules, 1, struct.pack("=Qi", rights, place), 0)
    finally:
        os.close(place)
