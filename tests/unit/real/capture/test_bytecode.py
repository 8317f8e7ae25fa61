from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TWICE = """
import marshal, os, sys
from pathlib import Path
from windtunnel.real.capture.processes.bytecode import share_bytecode

sys.dont_write_bytecode = True
kept = Path(sys.argv[1])
share_bytecode(kept)

def in_a_fork():
    read, write = os.pipe()
    if os.fork() == 0:
        import size_of_batch
        os.write(write, str(size_of_batch.SIZE).encode())
        os._exit(0)
    os.wait()
    return os.read(read, 9).decode()

words = [in_a_fork(), str(len(list(kept.iterdir())))]
for file in kept.iterdir():
    file.write_bytes(marshal.dumps(compile("SIZE = 5", "size_of_batch.py", "exec")))
words.append(in_a_fork())
Path("size_of_batch.py").write_text("SIZE = 6")
words += [in_a_fork(), str(len(list(kept.iterdir())))]
kept.rename(sys.argv[1] + "_away")
Path("size_of_batch.py").write_text("SIZE = 7")
print(*words, in_a_fork())
"""


def test_a_module_is_compiled_once_for_all_ranks(tmp_path: Path) -> None:
    """The second rank takes what the first left; another text is compiled anew; without the folder it is, too."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "size_of_batch.py").write_text("SIZE = 4")
    paths = os.pathsep.join(filter(None, [".", os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", TWICE, str(tmp_path / "kept")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["4", "1", "5", "6", "2", "7"]


ELSEWHERE = """
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from windtunnel.real.capture.processes.bytecode import share_bytecode

of_315 = SourceFileLoader.source_to_code
SourceFileLoader.source_to_code = lambda self, data, path, fullname=None, **options: of_315(self, data, path, **options)
kept = Path("kept")
share_bytecode(kept)
loader = SourceFileLoader("size_of_batch", "size_of_batch.py")

def size():
    room = {}
    exec(loader.source_to_code(Path("size_of_batch.py").read_bytes(), "size_of_batch.py", "size_of_batch"), room)
    return room["SIZE"]

words = [size(), size()]
(file,) = kept.iterdir()
file.unlink()
file.mkdir()  # no permission would be an error as well, but not for root
print(*words, size())
"""


def test_bytecode_that_cannot_be_read_is_made_anew_and_the_name_of_the_module_may_be_given(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "size_of_batch.py").write_text("SIZE = 4")
    words = [sys.executable, "-c", ELSEWHERE]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["4", "4", "4"]


COMPILES = """
import sys
import torch, torch._dynamo
from windtunnel.real.capture.fake_tensors.fake import fake_tensors

with fake_tensors("cpu"):
    twice, layer = torch.compile(lambda x: x + x), torch.compile(torch.nn.Linear(4, 4), fullgraph=True)
    x = torch.randn(2, 4)
    print(*twice(x).shape, *layer(x).shape, *{"torch._dynamo.repro", "networkx"} & sys.modules.keys())
"""


def test_what_compiles_nothing_loads_no_compiler() -> None:
    """PyTorch wraps its backend to find faults, which loads 400 modules on each rank: for graphs that nobody builds."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    done = subprocess.run([sys.executable, "-c", COMPILES], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "4", "2", "4"]
