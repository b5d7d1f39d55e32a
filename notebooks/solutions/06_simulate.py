# %% 1
# - An entry that left after token left[j] was still seen by that token.
# - Compare left with the index of each row, and sum what is present over the entries.
import numpy as np
def mass(attention, left):
    present = left >= np.arange(len(left))[:, None]
    return (attention * present).sum(axis=1)
# check
fate = judged[2][1].fate
assert np.allclose(mass(attention, fate.left[0]), fate.mass[0])

# %% 2
# - The newest entries are what counts on this trace.
# - Which option of a method that you know protects the newest entries, and what if it protects
#   none?
def forgetful(budget):
    return methods.get("h2o@recent=0", budget)
# check
from kvlab.reference import skill
((found,),) = judge(made["recency"].trace, [forgetful(64)])
assert found.size == 64
assert skill([found]) < 0
