"""What the notebooks share: the running example, their exercises and the pictures of ``study``."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from exercises import Exercises
from kvlab.fast.lab.tables import Table
from kvlab.reference import Needs, Transformer, load_tokenizer, methods
from kvlab.reference.methods.h2o import H2O, AccumulatedAttention
from kvlab.reference.models import embedded_directory
from kvlab.reference.notation import Array
from kvlab.reference.tasks import jumps

__all__ = ["Exercises", "directory", "model", "problem", "prompt", "race", "stop", "tokenizer"]

sys.path.append(str(Path(__file__).parents[1] / "docs"))  # `study` is no part of the package

directory = embedded_directory("jumps")
model, tokenizer = Transformer.from_directory(directory), load_tokenizer(directory)
problem = jumps.held_out(1, size=jumps.SIZES[250])[0]
prompt = tokenizer.encode(problem.prompt).ids
stop = tokenizer.encode(jumps.END).ids[0]


RIVALS = "caote:h2o", "h2o", "random:h2o"


def race(score: Callable[..., Array], rivals: tuple[str, ...] = RIVALS) -> Table:
    """Let the embedded model run twenty programs at 30 %, with a score and with rivals.

    The score is given what each entry has received and its position ``[G, n]``, the attention of
    the newest block ``[G, rho, m, n]`` and the values ``[G, n, d]``. All else is as in H2O.
    """
    from kvlab.fast.lab.sweep.compare import compare
    from kvlab.fast.lab.sweep.plan import Sweep
    from study import stored

    class Given(AccumulatedAttention):
        needs = Needs()

        def score(self, state, seen, candidates, room):
            return score(state.entries["accumulated"], seen.attention, seen.values, seen.positions)

    @methods.register
    @dataclass(frozen=True)
    class Yours(H2O):
        name = "yours"

        def policy(self, budget):
            return replace(super().policy(budget), name=self.name, score=Given(self))

    sweep = Sweep(
        ("yours", *rivals),
        ("30%",),
        20,
        tasks=("jumps@fewest=40,most=44",),
        backend="reference",
        measured=1,
        to_first_error=True,
    )
    return stored.results(compare(sweep).summary)
