# %% 1
# - Both maps are of the form 2σ(x), and σ(x) = 1/(1 + exp(−x)).
# - The arguments are −elapsed/mri and −(mri − 1).
# - The entry with the lower importance is evicted first. Compute both.
from math import exp
def importance(elapsed, mri):
    return 2 / (1 + exp(elapsed / mri)) + 2 / (1 + exp(mri - 1))
first_to_go = "frequent" if importance(4, 2) < importance(10, 20) else "rare"
# check
from kvlab.reference.proofs import lazy_eviction
def worth(entry):
    return lazy_eviction.importance(*entry[1])
for mri in range(1, 9):
    for elapsed in range(9):
        found, right = importance(elapsed, mri), lazy_eviction.importance(mri, elapsed)
        told = f"importance(elapsed={elapsed}, mri={mri}) gives {found:.4g}"
        assert abs(found - right) < 1e-12, f"{told}, too {'low' if found < right else 'high'}"
rare, frequent = importance(10, 20), importance(4, 2)
told = f"The rare entry has {rare:.3f} and the frequent one {frequent:.3f}"
right = min({"rare": (20, 10), "frequent": (2, 4)}.items(), key=worth)[0]
assert first_to_go == right, f"{told}: first_to_go cannot be {first_to_go!r}"

# %% 2
# - `kvlab methods lazy_eviction --divergences` lists the option that retains all entries with Δ <
#   MRI.
# - Window, threshold and this option follow the name, divided by commas.
guarded = "lazy_eviction@window=16,threshold=0.01,guard=true"
# check
policy, wanted = methods.get(guarded, budget), methods.get("lazy_eviction@window=16", budget)
named, options = type(policy.score).__name__, getattr(policy.score, "options", None)
assert type(policy.score) is type(wanted.score), f"{guarded} scores by {named}"
assert policy.schedule == wanted.schedule, f"{guarded} evicts {policy.schedule}"
assert options.threshold == 0.01, f"Its threshold is {options.threshold}"
assert options.guard, f"Under {guarded} an entry with Δ < MRI can still be evicted"
