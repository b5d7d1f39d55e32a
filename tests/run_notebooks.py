"""Run every notebook of ``notebooks/`` as a script; the first failure ends the run."""

import subprocess
import sys
import time
from pathlib import Path

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def main() -> None:
    """Run the notebooks in the order of their names."""
    notebooks = sorted(NOTEBOOKS.glob("*.py"))
    if not notebooks:
        print(f"no notebooks in {NOTEBOOKS}")
    for notebook in notebooks:
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-W", "error", str(notebook)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        print(f"{notebook.name}: ran in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
