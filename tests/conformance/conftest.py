import sys

import pytest


@pytest.fixture
def tested(monkeypatch, capsys):
    """Test a project with the plug-in, in this process; return exit code and what is printed."""

    def run(folder):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", [*sys.path])
        capsys.readouterr()
        quiet = ("-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
        code = pytest.main([*quiet, str(folder)])
        for file in folder.glob("*.py"):
            sys.modules.pop(file.stem, None)
        return code, capsys.readouterr().out

    return run
