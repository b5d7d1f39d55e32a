"""Run commands of kvlab in this process, and Python in another one."""

import functools
import subprocess
import sys
from typing import Any

import typer.main
import typer.testing
from typer.testing import CliRunner, Result

from kvlab.fast.lab.cli import app

# Typer builds all commands anew for each that is run.
typer.main.get_command = functools.cache(typer.main.get_command)
setattr(typer.testing, "_get_command", typer.main.get_command)  # noqa: B010


def invoke(*words: object) -> Result:
    """Run a command of kvlab; return what came of it."""
    return CliRunner().invoke(app, [*map(str, words)])


def printed(*words: object) -> str:
    """Run a command that must succeed; return what it prints."""
    done = invoke(*words)
    assert done.exit_code == 0, (done.output, str(done.exception))
    return done.stdout


def python(*words: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run Python in a process of its own; return what came of it."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, **options)
