"""The command line, called in the process of the tests."""

from __future__ import annotations

import sys

import pytest

from practicum.cli.main import main


@pytest.fixture
def called(monkeypatch, capsys):
    """Call the command in this process; gives its exit code, stdout and stderr."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["practicum", *map(str, arguments)])
        with pytest.raises(SystemExit) as done:
            main()
        return done.value.code or 0, *capsys.readouterr()

    return call
