"""The public names: they are what they say, and cost nothing before they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.resources import files

import pytest

import windtunnel
from windtunnel.errors import UserError
from windtunnel.real.techniques import offload

HEAVY = ("numpy", "numba", "pyarrow", "pydantic", "rich", "jinja2", "yaml", "scipy", "pandas", "torch")


def loaded_by(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint('\\n'.join(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stderr.split())


def test_every_public_name_is_there_and_documented() -> None:
    assert windtunnel.__all__ == sorted(windtunnel.__all__)
    for name in windtunnel.__all__:
        assert getattr(windtunnel, name).__doc__, name
    assert set(windtunnel.__all__) <= set(dir(windtunnel))
    assert windtunnel.__version__[0].isdigit()


def test_type_checkers_see_the_same_names() -> None:
    """What stands under TYPE_CHECKING is what `__getattr__` gives."""
    source = files("windtunnel").joinpath("__init__.py").read_text(encoding="utf-8")
    declared = {
        name.asname or name.name: (str(statement.module).removeprefix("windtunnel."), name.name)
        for block in ast.parse(source).body
        if isinstance(block, ast.If)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for name in statement.names
    }
    assert declared == windtunnel._HOME
    assert sorted(declared) == windtunnel.__all__
    assert files("windtunnel").joinpath("py.typed").is_file()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'predikt'"):
        windtunnel.predikt  # noqa: B018


def test_names_in_python_and_on_the_command_line_are_the_same_functions() -> None:
    from windtunnel.studies.training import Plan, predict

    assert windtunnel.predict is predict
    assert windtunnel.Plan is Plan


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = loaded_by("import windtunnel; windtunnel.__all__")
    assert "windtunnel" in loaded
    assert loaded.isdisjoint(HEAVY)
    assert not any(name.startswith("windtunnel.") for name in loaded)


def test_help_loads_no_number_crunching() -> None:
    code = (
        "from windtunnel.faces.cli import main\nassert main(['--help']) == 0\nassert main(['predict', '--help']) == 0"
    )
    loaded = loaded_by(code)
    assert "cyclopts" in loaded
    assert loaded.isdisjoint({"numpy", "numba", "pyarrow", "pydantic", "jinja2", "yaml", "scipy"})
    assert not any(name.startswith(("windtunnel.studies.training", "windtunnel.physics.cost")) for name in loaded)


def test_the_module_runs_as_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "windtunnel", "version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith(f"windtunnel {windtunnel.__version__}")


def test_what_needs_torch_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "windtunnel.real.techniques.offload.entry", raising=False)
    with pytest.raises(
        UserError, match=r"offload.apply needs PyTorch; install it with: pip install 'windtunnel\[torch\]'"
    ):
        _ = offload.apply
