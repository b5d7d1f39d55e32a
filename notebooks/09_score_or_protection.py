# %% [markdown]
# # 09 Score or protection?
#
# **Question:** a method solves a task. Is that due to its score, or to what it protects?
#
# A method protects some entries whatever their score: the first tokens, the newest ones, the
# prompt. The score ranks only the others. So a comparison of two methods says nothing about their
# scores unless the protection is the same.
#
# ## Predict first
#
# Twelve programs of the embedded model, half of the entries. Two scores, CAOTE applied to H2O's and
# none (random eviction), under two protections: the first four tokens, and the newest half of the
# budget. Write down how many of the twelve programs each of the four solves.

# %%
prediction = {
    ("random", "first4"): ...,
    ("random", "newest50%"): ...,
    ("caote:h2o", "first4"): ...,
    ("caote:h2o", "newest50%"): ...,
}

# %% [markdown]
# ## Turn both knobs
#
# `protected=` replaces what a method protects. Everything else stays: the schedule, the budget, the
# programs.

# %%
import classroom
from kvlab.fast.lab.sweep.compare import run_in_memory
from kvlab.fast.lab.sweep.design import Sweep
from kvlab.fast.lab.sweep.summary import summarise
from study import stored

PROTECTIONS = ("nothing", "first4", "newest50%")
SCORES = ("random", "value_norm", "h2o", "caote:h2o")


def under(scores, protections, budget="50%"):
    """Let each score solve twelve programs under each protection."""
    sweep = Sweep(
        methods=tuple(f"{score}@protected={each}" for each in protections for score in scores),
        budgets=(budget,),
        problems=12,
        tasks=("jumps@fewest=14,most=16",),
        backend="reference",
        to_first_error=True,
    )
    (found,) = summarise(run_in_memory(sweep))
    return found


found = under(SCORES, PROTECTIONS)
stored.solved(found, [each.method for each in found.points])

# %% [markdown]
# Neither the score nor the protection does it alone: no score solves a program without the newest
# half, and random eviction solves none with it. The value norm, a score that nobody publishes,
# solves some. Twelve programs are few: a count of 6 has a 95 % interval from 3 to 9.

# %%
counts = {tuple(each.method.split("@protected=")): sum(each.outcomes) for each in found.points}
for key, number in prediction.items():
    predicted = "nothing" if number is ... else number
    print(f"{key[0]} with {key[1]} protected: predicted {predicted}, found {counts[key]}")

# %% [markdown]
# ## The control of a method
#
# `random:` before a method's name replaces its score by a draw and keeps the rest: `random:h2o` is
# the control of `h2o`. What `h2o` solves more than `random:h2o` is due to its score.
#
# ## In three lines
#
# - A method's result depends on its score **and** on its protection.
# - Only the gain over random eviction with the same protection is due to the score.
# - Which of the two decides depends on how often a text repeats what is needed. All scores and
#   protections, on two models, are in `docs/score_or_protection.md`.
