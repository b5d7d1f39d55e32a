"""Installs a wheel into a new environment, without compiler and checkout, and tries its commands.

``python tests/support/try_wheel.py DIST``: the folder holds one wheel. `make release` calls it.
"""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "docs" / "examples" / "conformance"
COMMANDS = (
    "--version",
    "compare --backend reference --problems 1 --budget 70% --task jumps@fewest=4,most=6 "
    "--methods full;random@recent=16;h2o --report compare.html",
    "prove --paper lazy_eviction --workers 1",
    "view run.html --methods h2o;full --max-new-tokens 20",
    "conformance run kernel_file.py",
)


def main() -> None:
    (wheel,) = Path(sys.argv[1]).resolve().glob("*.whl")
    with TemporaryDirectory() as place:
        try_commands(install(wheel, Path(place)), Path(place) / "tried")
    print(f"{wheel.name}: {len(COMMANDS)} commands work")


def install(wheel: Path, place: Path) -> Path:
    """Install a wheel into a new environment; return the environment's folder of commands."""
    venv.create(place / "venv", with_pip=True)
    binaries = place / "venv" / "bin"
    pip = (str(binaries / "python"), "-m", "pip", "install", "-q", "--only-binary", ":all:")
    call((*pip, "-c", str(ROOT / "constraints.txt"), str(wheel)), binaries, place)
    return binaries


def try_commands(binaries: Path, place: Path) -> None:
    """Run the commands in a folder with a kernel.

    Raises:
        subprocess.CalledProcessError: if a command fails.
    """
    shutil.copytree(KERNELS, place)
    for command in COMMANDS:
        call((str(binaries / "kvlab"), *command.split()), binaries, place)
    assert (place / "run.html").stat().st_size > 10_000
    assert (place / "compare.html").stat().st_size > 10_000


def call(command: tuple[str, ...], binaries: Path, place: Path) -> None:
    """Run a command that finds no compiler and no packages but its own."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("PIP_") or name == "OMP_NUM_THREADS"
    }
    home = {"PATH": str(binaries), "HOME": str(place), "LANG": "C.UTF-8"}
    assert shutil.which("cc", path=str(binaries)) is None
    subprocess.run(command, cwd=place, env={**environment, **home}, check=True)


if __name__ == "__main__":
    main()
