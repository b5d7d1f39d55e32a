"""What the notebooks share: the running example, their exercises and the pictures of ``study``."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from exercises import Exercises
from kvlab.fast.lab.tables import Table
from kvlab.reference import Needs, Trace, Transformer, load_tokenizer, methods, record_trace
from kvlab.reference.methods.h2o import H2O, AccumulatedAttention
from kvlab.reference.models import embedded_directory
from kvlab.reference.notation import Array
from kvlab.reference.tasks import jumps, reasoning

__all__ = [
    "Exercises",
    "directory",
    "model",
    "problem",
    "prompt",
    "race",
    "reasoner",
    "stop",
    "tokenizer",
    "try_methods",
    "until_mistake",
]

sys.path.append(str(Path(__file__).parents[1] / "docs"))  # `study` is no part of the package

directory = embedded_directory("jumps")
model, tokenizer = Transformer.from_directory(directory), load_tokenizer(directory)
problem = jumps.held_out(1, size=jumps.SIZES[250])[0]
prompt = tokenizer.encode(problem.prompt).ids
stop = tokenizer.encode(jumps.END).ids[0]


def until_mistake(tokens: Sequence[int]) -> Sequence[int]:
    """Return what was written of the problem's solution, up to the first wrong token."""
    pairs = zip(tokens, tokenizer.encode(problem.solution).ids, strict=False)
    wrong = (number for number, (written, right) in enumerate(pairs) if written != right)
    return tokens[: next(wrong, len(tokens)) + 1]


def reasoner() -> tuple[Transformer, list[int], Trace]:
    """Return the other embedded model, the prompt of a problem, and the trace of its solution."""
    directory = embedded_directory("reasoner")
    model, tokenizer = Transformer.from_directory(directory), load_tokenizer(directory)
    prompt = tokenizer.encode(reasoning.held_out(1)[0].prompt).ids
    stop = tokenizer.encode(reasoning.END).ids[0]
    return model, prompt, record_trace(model, prompt, 160, stop, name="reasoner")


def try_methods(
    specs: Sequence[str],
    budgets: Sequence[str] = (),
    problems: int = 4,
    measured: int = 1,
    task: str = "jumps@fewest=18,most=22",
) -> Table:
    """Let the embedded model run programs, each up to its first wrong token, in NumPy.

    Args:
        specs: methods in registry syntax.
        budgets: shares of the text; methods with a rule of their own need none.
        problems: programs under each method.
        measured: programs of which error and KL are measured.
        task: their size.
    """
    from kvlab.fast.lab.sweep.compare import compare
    from kvlab.fast.lab.sweep.design import Sweep
    from study import stored

    sweep = Sweep(
        tuple(specs),
        tuple(budgets),
        problems,
        tasks=(task,),
        backend="reference",
        measured=measured,
        to_first_error=True,
    )
    return stored.results(compare(sweep).summary)


RIVALS = "caote:h2o", "h2o", "random:h2o"


def race(score: Callable[..., Array], rivals: tuple[str, ...] = RIVALS) -> Table:
    """Let the embedded model run twenty programs at 30 %, with a score and with rivals.

    The score is given what each entry has received and its position ``[G, n]``, the attention of
    the newest block ``[G, rho, m, n]`` and the values ``[G, n, d]``. All else is as in H2O.
    """

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

    return try_methods(("yours", *rivals), ("30%",), 20, task="jumps@fewest=40,most=44")
