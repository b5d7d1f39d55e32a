"""Lists the pages of the learner's path that have changed since somebody read them as a newcomer.

The site's build prints the list, and so does ``python docs/hooks/reread.py``.
"""

import hashlib
import logging
import re
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NAV = (ROOT / "mkdocs.yml").read_text("utf-8").partition("nav:")[2].partition("  - Methods:")[0]
PATH = (*re.findall(r"(\S+)\.md\n", NAV), "methods", "results")
"""The pages of the learner's path, in its order."""
PAGES = [
    ROOT / f"{page}.py" if page.startswith("notebooks/") else ROOT / "docs" / f"{page}.md"
    for page in PATH
]
READ = re.compile(r"^(?:# *)?read: (20\d\d-\d\d-\d\d [0-9a-f]{8})\n", re.MULTILINE)
"""In a page's source: when somebody read it as a newcomer, and a digest of the text then."""


def changed(page: Path) -> str | None:
    """Say what a page notes and what it may note once it is read again, if the two differ."""
    text = page.read_text("utf-8")
    digest = hashlib.sha256(READ.sub("", text).encode()).hexdigest()[:8]
    noted = ", ".join(READ.findall(text)) or "nothing"
    if noted.endswith(digest):
        return None
    return f"{page.name} has changed; it notes {noted}; read today: {date.today()} {digest}"


def on_post_build(**_: Any) -> None:
    """Print the list; it is no warning, which would end a strict build."""
    for line in filter(None, map(changed, PAGES)):
        logging.getLogger("mkdocs.hooks").info(line)


if __name__ == "__main__":
    for line in filter(None, map(changed, PAGES)):
        print(line)
