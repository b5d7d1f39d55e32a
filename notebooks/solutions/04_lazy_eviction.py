# %% 1
# - Both maps are of the form 2σ(x), and σ(x) = 1/(1 + exp(−x)).
# - The arguments are −elapsed/mri and −(mri − 1).
# - The entry with the lower importance goes first. Compute both.
from math import exp
def importance(elapsed, mri):
    return 2 / (1 + exp(elapsed / mri)) + 2 / (1 + exp(mri - 1))
first_to_go = "frequent" if importance(4, 2) < importance(10, 20) else "rare"
# check
from kvlab.reference.proofs import lazy_eviction
def worth(entry):
    return lazy_eviction.importance(*entry[1])
assert all(
    abs(importance(elapsed, mri) - lazy_eviction.importance(mri, elapsed)) < 1e-12
    for mri in range(1, 9)
    for elapsed in range(9)
)
assert first_to_go == min({"rare": (20, 10), "frequent": (2, 4)}.items(), key=worth)[0]

# %% 2
# - `kvlab methods lazy_eviction --divergences` lists the option that retains all entries with Δ <
#   MRI.
# - Window, threshold and this option follow the name, divided by commas.
guarded = "lazy_eviction@window=16,threshold=0.01,guard=true"
# check
policy = methods.get(guarded, budget)
assert policy.score.options.guard
assert policy.schedule == methods.get("lazy_eviction@window=16", budget).schedule
assert policy.score.options.threshold == 0.01
