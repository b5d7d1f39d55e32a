# %% 1
# - Options follow the name: method@option=value,option=value.
# - The table above has an option for when H2O decides. Its protection is called recent.
spec = "h2o@every=16,recent=8"
# check
from kvlab.reference import Edges, EveryBlock
policy = methods.get(spec, 120)
assert policy.schedule == EveryBlock(16)
assert policy.protect == Edges(recent=8)
assert type(policy.score) is type(h2o.score)

# %% 2
# - Protection is one of the four answers, and `Edges` describes it.
# - replace(policy, answer=...) copies a policy with another answer.
from dataclasses import replace
tova_with_sinks = replace(methods.get("tova", 120), protect=Edges(sinks=4))
# check
(sunk,) = [fate for (fate,) in list(replay(trace, [tova_with_sinks]))[:1]]
assert sunk.present(last)[:, :4].all()
assert type(tova_with_sinks.score) is type(methods.get("tova", 120).score)
assert sunk.entries[-1] == 120

# %% 3
# - LazyEviction's schedule and protection are fields of its policy.
# - Start from h2o, and replace these two answers.
lazy = methods.get("lazy_eviction@window=16", 120)
h2o_that_waits = replace(h2o, schedule=lazy.schedule, protect=lazy.protect)
# check
expected = methods.get("lazy_eviction@window=16", 120)
assert h2o_that_waits.score == h2o.score and h2o_that_waits.precision == h2o.precision
assert h2o_that_waits.schedule == expected.schedule
assert h2o_that_waits.protect == expected.protect
