"""Imports the tools, and runs one in this process, for tests."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tf_goyal import flags

TOOLS = Path(__file__).resolve().parent.parent / "tools"


def load(name: str) -> ModuleType:
    """A module of tools/, which finds the others there as when it is started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS))
        return importlib.import_module(name)


def run(tool: ModuleType, monkeypatch: pytest.MonkeyPatch, *written: str) -> int:
    """The exit code of a tool."""
    monkeypatch.setattr(sys, "argv", [tool.__file__, *written])
    with pytest.raises(SystemExit) as ended:
        flags.run(tool.main, define=tool.define, with_config=False)
    return ended.value.code
