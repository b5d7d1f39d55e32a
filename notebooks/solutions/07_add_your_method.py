# %% 1
# - The newest entries have the highest positions.
# - A score is an array of floating point numbers.
@dataclass(frozen=True)
class Newest(Score):
    def score(self, state, seen, candidates, room):
        return seen.positions.astype(float)
# check
from kvlab.reference import replay
def newest(budget):
    return Policy("newest", Newest(), EveryBlock(), Edges(), Entries(budget), Full())
(kept,) = next(iter(replay(trace, [newest(60)])))
t = len(trace.tokens)
for held in kept.kept(t - 1).tolist():
    old = sum(position < t - 60 for position in held)
    assert held == list(range(t - 60, t)), f"{old} of the 60 entries kept are not among the newest"
broken = [f"{each.promise}: {each.objection}" for each in check_promises(newest) if each.objection]
assert not broken, "; ".join(broken)

# %% 2
# - `state.entries` has your column, and `state.with_entries(name=array)` replaces it.
# - A query attends to an entry if the mean over the query heads, axis 1, is at least 0.05.
# - Add up over the queries of the block, and add the sum to what was there.
@dataclass(frozen=True)
class LongestSeen(Score):
    columns = {"queries": Column("queries that attend to the entry")}
    def observe(self, state, seen):
        attending = (seen.attention.mean(axis=1) >= 0.05).sum(axis=1)
        return state.with_entries(queries=state.entries["queries"] + attending)
    def score(self, state, seen, candidates, room):
        return state.entries["queries"]
# check
from kvlab.reference import Source, random_stream, run_stream
def counting(budget):
    return Policy("long seen", LongestSeen(), EveryBlock(), Edges(), Entries(budget), Full())
broken = [f"{each.promise}: {each.objection}" for each in check_promises(counting) if each.objection]
assert not broken, "; ".join(broken)
stream = random_stream(Source("long seen"), prompt=0, generated=24)
results = list(run_stream(counting(100), stream))
counted = sum(
    np.pad((each.seen.attention.mean(axis=1) >= 0.05).sum(axis=1), ((0, 0), (0, 24 - n)))
    for n, each in enumerate(results, start=1)
)
scores = np.asarray(counting(100).score.score(results[-1].cache.state, results[-1].seen, None, 0))
assert scores.shape == counted.shape, f"The scores have the shape {scores.shape}"
wrong = np.argwhere(scores != counted)
head, entry = wrong[0] if len(wrong) else (0, 0)
told = f"After 24 queries the counts of {len(wrong)} of {counted.size} entries are wrong"
found = scores[head, entry]
size = "few" if found < counted[head, entry] else "many"
assert not len(wrong), f"{told}: entry {entry} of KV head {head} has {found}, too {size}"
