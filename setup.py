"""Maps the top-level folders to packages, and makes the package index's page of README.md."""

import re
import tomllib
from pathlib import Path

import setuptools

ROOTS = {"kvlab.reference": "reference", "kvlab.fast": "fast"}
TAG = re.compile(r"</?picture>|<(?:img|source)[^>]*>")
ADDRESS = re.compile(r'(src(?:set)?)="(?!https?:)([^"]+)"')
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:)([^)]+)\)")


def page_for_index(readme: str, repository: str = "") -> str:
    """Make links into the repository absolute; without its address, text stands in their place.

    Args:
        readme: in Markdown.
        repository: address, such as ``https://github.com/OWNER/kvlab``.
    """

    def absolute(link: re.Match[str]) -> str:
        picture, text, path = link.groups()
        if not repository:
            return "" if picture else text
        place = "raw" if picture else "blob"
        return f"{picture}[{text}]({repository}/{place}/main/{path})"

    tag = rf'\1="{repository}/raw/main/\2"'
    pictured = TAG.sub(lambda found: ADDRESS.sub(tag, found[0]) if repository else "", readme)
    return LINK.sub(absolute, pictured)


urls = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
repository = "" if "OWNER" in urls["Repository"] else urls["Repository"]

setuptools.setup(
    package_dir={"kvlab": "package", **ROOTS},
    packages=["kvlab"]
    + [
        name
        for root, folder in ROOTS.items()
        for name in (root, *(f"{root}.{sub}" for sub in setuptools.find_packages(folder)))
    ],
    long_description=page_for_index(Path("README.md").read_text(encoding="utf-8"), repository),
    long_description_content_type="text/markdown",
)
