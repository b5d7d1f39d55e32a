"""The example project in docs: its tests find the bug that was put into its kernel."""

import shutil
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from kvlab.fast.lab.cli import app

PROJECT = Path("docs/examples/conformance")


def test_the_plugin_finds_the_bug(tmp_path):
    for name in ("flash_decode.py", "test_flash_decode.py", "pytest.ini"):
        shutil.copy(PROJECT / name, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 2 passed" in done.stdout
    assert "FAILED test_flash_decode.py::test_the_broken_kernel" in done.stdout
    assert "keys [1, 9," in done.stdout, "one entry more than a tile is enough"


def test_the_kernel_file_passes():
    done = CliRunner().invoke(app, ["conformance", "run", str(PROJECT / "kernel_file.py")])
    assert done.exit_code == 0, done.output
    assert "0 failed" in done.output


def test_adapters_name_targets_that_exist():
    from kvlab.reference.conformance.targets import operation_of

    adapters = ("kvpress_presses.py", "transformers_quantized_cache.py", "kvpress_caches.py")
    for name in (*adapters, "transformers_caches.py"):
        source = (PROJECT / name).read_text()
        table = source[source.index("IMPLEMENTATIONS = {") :]
        targets = list(table.split('"')[1::2])
        assert targets
        for target in targets:
            operation_of(target)
