"""What of vLLM the plug-in uses. Where a version moved one of them, it is refused by name."""

import inspect
import re
import tomllib
from functools import cache
from pathlib import Path
from pydoc import locate
from typing import Any

POINTS = tomllib.loads(Path(__file__).with_name("points.toml").read_text("utf-8"))
VERSIONS = ("0.31", "0.32")
"""Versions with which the plug-in was tested."""


class UnknownVersionError(RuntimeError):
    """This version of vLLM has moved something that kvlab needs, or was never tried."""


@cache
def check() -> None:
    """Raise `UnknownVersionError` if vLLM lacks something, or was never tried."""
    version = str(locate("vllm.__version__"))
    known = f"kvlab knows vLLM {' and '.join(VERSIONS)}"
    if ".".join(version.split(".")[:2]) not in VERSIONS:
        raise UnknownVersionError(f"vLLM {version} was never tried; {known}")
    for kind, names in POINTS.items():
        for point, wanted in names.items():
            found: Any = locate(point)
            missing = set(wanted.split()) - (_names(found, kind == "has") if found else set())
            if found is None or missing:
                what = f"{kind} no {min(missing)}" if found else "is gone"
                raise UnknownVersionError(f"vLLM {version}: {point} {what}; {known}")


def _names(found: Any, assigned: bool) -> set[str]:
    """Return parameters, and on demand the attributes of ``self`` that are assigned."""
    names = set(inspect.signature(found).parameters)
    if assigned:
        names |= set(re.findall(r"self\.(\w+)\b[^=\n]*=[^=]", inspect.getsource(found)))
    return names
