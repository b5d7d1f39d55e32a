"""Theorems that Rocq (Coq) checks, for every number of entries: the files of ``rocq/``.

A comment above each theorem says where the paper has it, by the tags of its claims, too, which
function computes what it is about, and the statement in Python for that function's numbers; the
tests evaluate it.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from kvlab.reference.checks import check_choice

FOLDER = files("kvlab.reference.proofs") / "rocq"
PLACE = "reference/proofs/rocq/"
LIBRARY = "algebra"
"""The file without theorems of a paper, which the others use."""
PAPERS = ("caote", "ahakv", "lazy_eviction")
AXIOMS = {
    "Classical_Prop.classic",
    "ClassicalDedekindReals.sig_forall_dec",
    "ClassicalDedekindReals.sig_not_dec",
    "FunctionalExtensionality.functional_extensionality_dep",
}
"""What Rocq's own library of the real numbers assumes; a proof may rest on nothing else."""
INSTALL = "apt-get install coq libcoq-coquelicot, or opam install coq coq-coquelicot"

_THEOREM = re.compile(
    r"\(\* Paper: (?P<place>(?:(?!\*\)).)*?)\s+Claims: (?P<claims>[^\n]+)\s+"
    r"About: (?P<about>\S+)\s+"
    r"Python: (?P<python>(?:(?!\*\)).)*?) \*\)\n(?P<line>Theorem (?P<name>\w+))",
    re.DOTALL,
)


@dataclass(frozen=True)
class Theorem:
    """One statement of a file, and what the comment above it says."""

    paper: str
    """The method's name in the registry, and the name of the file."""
    name: str
    place: str
    """Section, equations, theorem of the paper."""
    claims: Sequence[str]
    """Tags of the claims that it is about."""
    about: str
    """Function or class that computes what the theorem is about."""
    python: str
    """The statement in Python: equalities of numbers, separated by semicolons."""
    line: int

    @property
    def where(self) -> str:
        """File and line."""
        return f"{PLACE}{self.paper}.v:{self.line}"


@dataclass(frozen=True)
class Checked:
    """What Rocq said of a theorem."""

    theorem: Theorem
    error: str
    """Why it is not accepted; empty if it is."""
    axioms: Sequence[str]
    """What the theorems of its file rest on, all together (``Print Assumptions``)."""

    @property
    def verdict(self) -> str:
        """Whether Rocq accepts the proof."""
        return "not accepted" if self.error else "proved"


def theorems(paper: str | None = None, folder: Path | None = None) -> list[Theorem]:
    """Read the theorems of one paper or of all, in the order of the files."""
    if paper is not None:
        check_choice(PAPERS, paper=paper)
    found = []
    for name in PAPERS if paper is None else (paper,):
        text = _read(name, folder)
        for match in _THEOREM.finditer(text):
            place, python = (" ".join(match[part].split()) for part in ("place", "python"))
            line = text.count("\n", 0, match.start("line")) + 1
            tags, about = match["claims"].split(", "), match["about"]
            found.append(Theorem(name, match["name"], place, tags, about, python, line))
    return found


def check(paper: str | None = None, folder: Path | None = None) -> Iterator[Checked]:
    """Let ``coqc`` check the theorems of one paper or of all, and what they assume.

    Raises:
        FileNotFoundError: if there is no ``coqc``, or it has no Coquelicot.
    """
    chosen = theorems(paper, folder)
    if shutil.which("coqc") is None:
        raise FileNotFoundError(f"there is no coqc, which checks the proofs: {INSTALL}")
    with TemporaryDirectory(prefix="kvlab-") as place:
        _compile(Path(place), LIBRARY, _read(LIBRARY, folder))
        for name, group in groupby(chosen, lambda each: each.paper):
            own = list(group)
            every = ", ".join(f"@{each.name}" for each in own)
            asked = f"\nDefinition _every := ({every}).\nPrint Assumptions _every.\n"
            told, error = _compile(Path(place), name, _read(name, folder) + asked)
            axioms = re.findall(r"^(?!Axioms)([\w.']+)\s*(?::|$)", told, re.MULTILINE)
            if foreign := ", ".join(axiom for axiom in axioms if axiom not in AXIOMS):
                error = f"{name}.v assumes {foreign}"
            yield from (Checked(each, error, axioms) for each in own)


def _read(name: str, folder: Path | None) -> str:
    return ((folder or FOLDER) / f"{name}.v").read_text(encoding="utf-8")


def _compile(place: Path, name: str, text: str) -> tuple[str, str]:
    """Return what ``coqc`` says of a file, and its error in one line, empty if there is none."""
    (place / f"{name}.v").write_text(text, encoding="utf-8")
    command = ("coqc", "-w", "none", "-Q", ".", "kvlab", f"{name}.v")
    done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    told = " ".join(done.stderr.split())
    if "Coquelicot" in told and "Cannot find" in told:
        raise FileNotFoundError(f"coqc has no Coquelicot, on which the proofs rest: {INSTALL}")
    return done.stdout, (told or f"coqc ended with {done.returncode}") if done.returncode else ""
