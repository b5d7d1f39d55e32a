# %% 1
# - Options follow the name: method@option=value,option=value.
# - The table above has an option for when H2O decides. Its protection is called recent.
spec = "h2o@every=16,recent=8"
# check
from kvlab.reference import Edges, EveryBlock
policy = methods.get(spec, 120)
assert policy.schedule == EveryBlock(16), f"{spec} evicts {policy.schedule}"
assert policy.protect == Edges(recent=8), f"{spec} protects {policy.protect}"
named = type(policy.score).__name__
assert type(policy.score) is type(methods.get("h2o", 120).score), f"{spec} scores by {named}"

# %% 2
# - Protection is one of the four answers, and `Edges` describes it.
# - replace(policy, answer=...) copies a policy with another answer.
from dataclasses import replace
tova_with_sinks = replace(methods.get("tova", 120), protect=Edges(sinks=4))
# check
sunk, end = next(iter(replay(trace, [tova_with_sinks])))[0], len(trace.tokens) - 1
least, named = sunk.present(end)[:, :4].sum(axis=1).min(), type(tova_with_sinks.score).__name__
assert least == 4, f"At the end a KV head of layer 0 holds {least} of the first 4 tokens"
assert type(tova_with_sinks.score) is type(methods.get("tova", 120).score), f"It scores by {named}"
assert sunk.entries[-1] == 120, f"At the end it holds {sunk.entries[-1]} entries"

# %% 3
# - LazyEviction's schedule and protection are fields of its policy.
# - Start from h2o, and replace these two answers.
lazy = methods.get("lazy_eviction@window=16", 120)
h2o_that_waits = replace(h2o, schedule=lazy.schedule, protect=lazy.protect)
# check
start, other = methods.get("h2o", 120), methods.get("lazy_eviction@window=16", 120)
for question, source in (
    ("score", start), ("precision", start), ("schedule", other), ("protect", other)
):
    found = getattr(h2o_that_waits, question)
    assert found == getattr(source, question), f"Its {question} is {found}, not as in {source.name}"
found = h2o_that_waits.budget
assert found == start.budget, f"Its budget is {found}"
