"""That the packages are complete, import without PyTorch, and that shared doctests hold."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from mkdocs.config.defaults import MkDocsConfig
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support import try_wheel
from support.site import ROOT, module

addresses = module("addresses")

BLOCK_TORCH = module("run_notebooks").WITHOUT.format(modules=("torch", "triton", "transformers"))


def python(code: str, executable: str = sys.executable) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [executable, "-c", code], cwd="/", env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def version_of_project() -> str:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.mark.slow
def test_every_module_of_the_reference_and_proofs_work_without_torch():
    walk = """
import importlib, pkgutil, sys, kvlab.reference
from kvlab.fast.lab.start import main
for module in pkgutil.walk_packages(kvlab.reference.__path__, "kvlab.reference."):
    importlib.import_module(module.name)
sys.argv = ["kvlab", "prove", "--claim", "AK-1", "--workers", "1"]
main()
"""
    assert "AK-1" in python(BLOCK_TORCH + walk)


def test_constraints_pin_what_set_up_installs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    pins = re.findall(r"^([\w.-]+)==([\w.]+)$", (ROOT / "constraints.txt").read_text(), re.M)
    versions = {canonicalize_name(name): version for name, version in pins}
    for requirement in map(Requirement, chain(project["dependencies"], *extras)):
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} has no exact pin"
        assert version in requirement.specifier, f"{requirement} excludes its pin {version}"


def test_no_module_is_imported_under_two_names():
    assert not [name for name in sys.modules if name.split(".")[0] in ("reference", "fast")]


def copy_of_sources(place: Path) -> Path:
    """Copy what a build reads: a build leaves folders, and reuses them."""
    source = place / "source"
    for folder in ("package", "reference", "fast"):
        shutil.copytree(ROOT / folder, source / folder)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, source)
    return source


@pytest.mark.slow
def test_a_wheel_without_torch_runs_the_commands_that_need_only_the_reference(tmp_path):
    run = lambda *command: subprocess.run(command, check=True, cwd=ROOT)  # noqa: E731
    source, wheels = str(copy_of_sources(tmp_path)), tmp_path / "wheels"
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(wheels), source)
    (wheel,) = wheels.glob("*.whl")
    names = ZipFile(wheel).namelist()
    assert "kvlab/reference/proofs/rocq/caote.v" in names
    assert not [name for name in names if "study" in name or name.endswith(".parquet")]
    binaries = try_wheel.install(wheel, tmp_path)
    python("import kvlab.reference", str(binaries / "python"))
    shown = python("import kvlab; print(kvlab.__version__)", str(binaries / "python"))
    assert shown == version_of_project()
    with pytest.raises(AssertionError, match="No module named 'torch'"):
        python("import torch", str(binaries / "python"))
    try_wheel.try_commands(binaries, tmp_path / "tried")
    run(str(binaries / "kvlab"), "methods", "caote", "--divergences")


@pytest.fixture
def built(monkeypatch):
    """Run setup.py without building anything; return what it defines and hands over."""
    given: dict[str, Any] = {}
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("setuptools.setup", lambda **options: given.update(options))
    return {**runpy.run_path("setup.py"), **given}


def test_setup_lists_every_package_on_disk(built):
    found = {
        ".".join(("kvlab", *path.parent.relative_to(ROOT).parts))
        for folder in ("reference", "fast")
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert set(built["packages"]) == {"kvlab", *found}


def test_links_of_the_readme_are_absolute_on_the_index(built):
    page = built["page_for_index"]
    readme = '<img src="b">![A [x] b](a.svg) see [the study](s.md#here), [paper](https://arxiv.org)'
    assert page(readme, "https://host/o") == (
        '<img src="https://host/o/raw/main/b">![A [x] b](https://host/o/raw/main/a.svg) see '
        "[the study](https://host/o/blob/main/s.md#here), [paper](https://arxiv.org)"
    )
    assert page(readme) == " see the study, [paper](https://arxiv.org)"


def test_no_link_of_the_index_page_leads_nowhere(built):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "](docs/" in readme
    shown = built["page_for_index"](readme, built["repository"])
    assert built["long_description"] == shown
    assert set(re.findall(r"\]\((\w+:)?", shown)) == {"https:"}


@pytest.mark.parametrize(
    ("owner", "taken"),
    [
        ("OWNER", (None, None, None)),
        ("me", ("https://me.github.io/kvlab/", "https://github.com/me/kvlab", "me/kvlab")),
    ],
)
def test_the_site_says_its_version_and_takes_the_addresses(owner, taken, tmp_path, monkeypatch):
    site, repository = f"https://{owner}.github.io/kvlab/", f"https://github.com/{owner}/kvlab"
    (tmp_path / "pyproject.toml").write_text(
        f'[project]\nversion = "1.2"\n'
        f'urls = {{ Documentation = "{site}", Repository = "{repository}" }}\n'
    )
    monkeypatch.setattr("addresses.ROOT", tmp_path)
    config = addresses.on_config(MkDocsConfig())
    assert config.copyright == "kvlab 1.2"
    assert (config.site_url, config.repo_url, config.repo_name) == taken


def test_the_readme_names_files_that_exist():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in re.findall(r"\]\((?!https?:)([^)#]+)", readme):
        assert (ROOT / path).exists(), path


def test_the_changelog_and_the_package_have_the_version():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{version_of_project()}]" in changelog
    assert python("import kvlab; print(kvlab.__version__)") == version_of_project()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_no_tracked_link_leads_out_of_the_repository():
    """A tracked link to somebody's environment dangles everywhere else, and `make` stops."""
    names = subprocess.check_output(["git", "-C", str(ROOT), "ls-files", "-z"], text=True)
    links = [path for name in names.split("\0") if name and (path := ROOT / name).is_symlink()]
    assert not [link for link in links if link.readlink().is_absolute()]
