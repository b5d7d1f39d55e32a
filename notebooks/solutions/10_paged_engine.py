# %% 1
# - Without eviction, a text needs a block for each page that it has begun.
# - With eviction, whole pages are kept, as many as fit into the budget.
def blocks_for(tokens, budget):
    return min(-(-tokens // PAGE), budget // PAGE)
# check
for budget in (40, 64, 96, 320):
    policy = methods.get("h2o@page=16,kv_heads=layer,recent=0", budget)
    for result in run_stream(policy, stream):
        held, seen = needed(result.cache.positions), result.seen.clock.seen
        found = blocks_for(seen, budget)
        told = f"After {seen} tokens, with a budget of {budget}, you say {found} blocks"
        assert found == held, f"{told}, too {'few' if found < held else 'many'}"
