"""What the rest of a jump program's run needs of the cache, known from the program itself.

Every token of a run has one source for each thing that it copies, and the oracle keeps a source
until nothing is copied from it any more. The names of a step's registers come from the line in the
program. A value comes from the place where its register was last read or written, or from the
prompt. Sum and result follow from the running step alone. Of a fact that is stated several times
the oracle keeps the first copy.

So the memory with which a problem can be solved is known. A policy that keeps exactly these entries
is the ceiling of every comparison.
"""

import numpy as np

from kvlab.reference.notation import Array, Int
from kvlab.reference.tasks.jumps import RESULT, Y_VALUE, Problem, X, Y

NEVER = np.iinfo(np.int32).max
"""Next use of an entry that nothing is copied from any more."""


def sources(problem: Problem) -> list[tuple[int, int]]:
    """Return which query copies from which entry, as pairs of positions, in the order of queries.

    The query at a position predicts the token at the next position. All entries of a line count as
    its source until its step ends: the model finds the names by what stands around them.
    """
    registers, lines = problem.stated
    first_line = 1 + len(registers)
    line_at = {line.label: first_line + problem.step * i for i, line in enumerate(problem.lines)}
    value_at = {name: 1 + i for i, (name, _) in enumerate(problem.registers)}
    label = first_line + problem.step * len(lines) + 1
    pairs = []
    for step in problem.steps:
        line = line_at[step.line.label]
        pairs += [(label + X, value_at[step.line.x]), (label + Y, value_at[step.line.y])]
        pairs += [(label + problem.step - 2, line + i) for i in range(problem.step)]
        value_at[step.line.y], value_at[step.line.x] = label + Y_VALUE, label + RESULT
        label += problem.step
    return pairs


def next_use(problem: Problem) -> Int[Array, "t t"]:
    """Return for every moment and every entry which query uses the entry next.

    Row q is the moment after token q: the first query after q that copies from the entry, `NEVER`
    if there is none. A policy with too little room evicts the entry with the latest next use.
    """
    following = np.full((problem.tokens, problem.tokens), NEVER, dtype=np.int32)
    for query, entry in reversed(sources(problem)):
        following[entry:query, entry] = query
    return following


def least_memory(problem: Problem) -> int:
    """Return the most entries that are needed at once while the run is written.

    The newest entries, as many as a step has, are kept: the running step is among them.
    """
    position = np.arange(problem.tokens)
    age = position[:, None] - position
    kept = (age >= 0) & ((age < problem.step) | (next_use(problem) < NEVER))
    prompt = problem.tokens - problem.step * len(problem.steps) - 1
    return int(kept[prompt - 1 :].sum(axis=1).max())
