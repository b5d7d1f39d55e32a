"""The miniature study: every method on the embedded reasoner, as it lies in the package."""

from importlib.resources import files
from pathlib import Path


def study_directory() -> Path:
    """Return the directory of the study's sweep: what was asked, how it was run, the results.

    `sweep.run.read_stored` opens it, `sweep.summary.summarise` sums it up.
    """
    return Path(str(files("kvlab.fast.evaluate") / "results" / "study"))
