# %% 1
# - An entry that was evicted after token left[j] was still seen by that token.
# - Compare left with the index of each row, and sum what is present over the entries.
import numpy as np
def mass(attention, left):
    present = left >= np.arange(len(left))[:, None]
    return (attention * present).sum(axis=1)
# check
fate = judged[2][1].fate
found, right = mass(attention, fate.left[0]), fate.mass[0]
assert np.shape(found) == right.shape, f"For {len(right)} tokens you get {np.shape(found)} shares"
wrong = np.flatnonzero(~np.isclose(found, right))
t = wrong[0] if wrong.size else 0
told = f"{wrong.size} of {len(right)} shares are wrong. For token {t} you get {found[t]:.4f}"
assert not wrong.size, f"{told}, which is too {'little' if found[t] < right[t] else 'much'}"

# %% 2
# - The newest entries are what counts on this trace.
# - Which option of a method that you know protects the newest entries, and what if it protects
#   none?
def forgetful(budget):
    return methods.get("h2o@recent=0", budget)
# check
from kvlab.reference import skill
((found,),) = judge(made["recency"].trace, [forgetful(64)])
assert found.size == 64, f"With a budget of 64 it holds {found.size} entries"
told = f"Its skill is {skill([found]):.0%}"
assert skill([found]) < 0, f"{told}, so it is no worse than random eviction"
