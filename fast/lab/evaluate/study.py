"""The miniature study: every method on the embedded reasoner, as it lies in the package."""

from importlib.resources import files
from pathlib import Path

from kvlab.fast.lab.evaluate.reproduction import Outcomes, Reproduction
from kvlab.fast.lab.sweep.run import read_stored
from kvlab.fast.lab.sweep.summary import summarise


def study_directory() -> Path:
    """Return the directory of the study's sweep: what was asked, how it was run, the results.

    `sweep.run.read_stored` opens it, `sweep.summary.summarise` sums it up.
    """
    return Path(str(files("kvlab.fast.lab.evaluate") / "results" / "study"))


def outcomes() -> Reproduction:
    """Return which problems each method of the study solved, to judge the papers' contrasts by.

    The problems are those of all seeds that are complete, in one order for all methods.
    """
    stored = read_stored(study_directory())
    (summary,) = summarise(stored)
    percentages = {entries: written for written, entries in summary.budgets.items()}
    return Reproduction(
        problems=stored.plan.sweep.problems * len(summary.seeds),
        seeds=summary.seeds,
        mean_length=summary.mean_length,
        backend=stored.plan.sweep.backend,
        measured=0,
        outcomes=tuple(
            Outcomes(
                point.method,
                None if point.budget is None else percentages[point.budget],
                point.outcomes,
            )
            for point in summary.points
            if point.refusal is None
        ),
    )
