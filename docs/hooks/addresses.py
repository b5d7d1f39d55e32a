"""The site's version and addresses are the project's, which stand in ``pyproject.toml``."""

import tomllib
from pathlib import Path
from urllib.parse import urlsplit

from mkdocs.config.defaults import MkDocsConfig

ROOT = Path(__file__).parents[2]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Say the version below every page; take the addresses once a release has filled them in."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    config.copyright = f"kvlab {project['version']}"
    urls = project["urls"]
    if "OWNER" not in urls["Repository"]:
        config.site_url, config.repo_url = urls["Documentation"], urls["Repository"]
        config.repo_name = urlsplit(urls["Repository"]).path.strip("/")
    return config


def on_post_page(output: str, **_: object) -> str:
    """Name sources as the repository does, and let no page ask its host for stars."""
    output = output.replace(".namespace/kvlab/", "")
    return output.replace(' data-md-component="source"', "")
