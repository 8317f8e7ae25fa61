"""What one rank compiles of the script's packages is there for the others.

Python leaves bytecode beside the source; what a rank writes there, nobody else sees. Where packages were installed
without bytecode (`uv pip install`, a folder that is read only), each rank would compile all of them anew.
"""

from __future__ import annotations

import marshal
from contextlib import suppress
from hashlib import blake2b
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import cast

from windtunnel.real.capture.processes.file_mailbox import write_whole


def share_bytecode(folder: Path) -> None:
    """Have all forks of this process keep and find in `folder` what `import` compiles. It holds for good."""
    compile_anew = SourceFileLoader.source_to_code

    def source_to_code(loader: SourceFileLoader, data: bytes, path: str, *more: str, **options: int) -> CodeType:
        """`more`: since Python 3.15, the name of the module."""
        if not isinstance(data, bytes):  # a tree, of a loader that changes it first
            return compile_anew(loader, data, path, *more, **options)
        kept = folder / blake2b(repr((path, more, options)).encode() + data, digest_size=16).hexdigest()
        with suppress(OSError):  # none is there, or a rank that became another user may not read it
            return cast(CodeType, marshal.loads(kept.read_bytes()))
        code = compile_anew(loader, data, path, *more, **options)
        with suppress(OSError):  # of ranks that run in another folder: they read only
            write_whole(kept, marshal.dumps(code))
        return code

    SourceFileLoader.source_to_code = source_to_code  # type: ignore[method-assign, assignment]
