"""Mistakes that stand in no single tagged line are noticed by tests that read no stored vectors."""

import os
import sys
from pathlib import Path

import pytest

from support.mistakes import KINDS, ROOT, mistakes
from support.running import python


def test_the_tables_are_of_the_sources_and_tests_that_there_are():
    """A right text that is not in its file exactly once is named by the message."""
    for each in mistakes():
        assert each.source and each.kind in KINDS and bool(each.test) != bool(each.same), each
        if each.test:
            file, function = each.test.partition("[")[0].split("::")
            text = Path(file).read_text("utf-8")
            assert f"\ndef {function}(" in text and "published(" not in text, each.test


def test_every_method_and_every_kind_has_mistakes():
    listed = mistakes()
    files = {path for path in (ROOT / "reference/methods").glob("*.py") if path.stem != "__init__"}
    assert files - {each.file for each in listed} == {ROOT / "reference/methods/full.py"}
    assert {each.kind for each in listed} == set(KINDS)


PARTS = 9
FILES = sorted({f"/{each.file.relative_to(ROOT)}" for each in mistakes()})


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_mistakes_are_noticed_or_argued(part):
    """The table that the command prints is the message."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = python("tests/mistakes.py", *FILES[part::PARTS], env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
