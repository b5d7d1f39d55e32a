"""Wrong answers to the notebooks' exercises; each must fail the check of its exercise.

By notebook and number of the exercise: code that takes the place of the solution.
"""

from collections.abc import Mapping

WRONG: Mapping[str, Mapping[int, tuple[str, ...]]] = {
    "00_kv_cache": {
        1: (
            "def without_grouping(shape): return shape.token_bytes",
            "def without_grouping(shape): return 4 * shape.token_bytes",
        ),
        2: (
            "def longest_text(shape, hardware, batch):\n"
            "    return int(hardware.memory // (batch * shape.token_bytes))",
            "def longest_text(shape, hardware, batch):\n"
            "    return int((hardware.memory - shape.weight_bytes) // shape.token_bytes)",
        ),
        3: (
            "def tokens_until_cache_dominates(shape):\n"
            "    return shape.weight_bytes // shape.token_bytes",
        ),
    },
    "01_four_questions": {
        1: ('spec = "h2o@every=16"', 'spec = "tova@every=16"', 'spec = "h2o@every=8,recent=16"'),
        2: (
            'tova_with_sinks = methods.get("tova", 120)',
            'tova_with_sinks = replace(methods.get("tova", 120), protect=Edges(recent=4))',
            'tova_with_sinks = methods.get("streaming_llm", 120)',
        ),
        3: (
            "h2o_that_waits = replace(h2o, schedule=lazy.schedule)",
            "h2o_that_waits = replace(lazy, budget=h2o.budget)",
        ),
    },
    "02_caote": {
        1: (
            "def caote_score(alpha, values):\n"
            "    return alpha * np.linalg.norm(alpha @ values - values, axis=1)",
            "def caote_score(alpha, values):\n"
            "    return alpha / (1 - alpha) * np.linalg.norm(values.mean(axis=0) - values, axis=1)",
        ),
        2: (
            "far_values = np.ones((6, 2))",
            "far_values = np.arange(12.0).reshape(6, 2)",
        ),
        3: (
            "def joint(alpha, values, pair):\n"
            "    return sum(caote.eviction_error(alpha, values)[list(pair)])",
        ),
    },
    "04_lazy_eviction": {
        1: (
            "def interval(steps, born): return max(\n"
            "    (later - earlier for earlier, later in pairwise(steps)), default=0)",
            "def interval(steps, born): return steps[-1] - steps[-2] if len(steps) > 1 else 0",
        ),
        2: (
            "def importance(elapsed, mri): return 2 / (1 + exp(elapsed / mri))",
            'first_to_go = "frequent" if first_to_go == "rare" else "rare"',
        ),
        3: (
            'guarded = "lazy_eviction@window=16,threshold=0.01"',
            'guarded = "lazy_eviction@threshold=0.01,guard=true"',
        ),
    },
    "03_ahakv": {
        1: (
            "def expected_score(n, j): return Fraction(n - j + 1, n)",
            "def expected_score(n, j):\n"
            "    return sum((Fraction(1, i) for i in range(j + 1, n + 1)), Fraction(0))",
        ),
        2: (
            "gone = True",
            "means = [Fraction(1, 4)] * 4",
        ),
        3: ("ratio = 1.0", "ratio = np.e"),
    },
    "05_desirekv": {
        1: (
            "def average_bits(low, high): return (low + high) / 2",
            "def average_bits(low, high): return 0.25 * low + 0.25 * high + 0.5 * 16",
        ),
        2: (
            "def stored_bits(bits, group, channels): return bits",
            "def stored_bits(bits, group, channels): return bits + 32 / group",
        ),
        3: ("blind = spiky", "blind = np.linspace(-0.01, 0.01, 32)"),
    },
    "06_simulate": {
        1: (
            "def mass(attention, left):\n"
            "    return (attention * (left > np.arange(len(left))[:, None])).sum(axis=1)",
            "def mass(attention, left): return np.ones(len(left))",
        ),
        2: (
            'def forgetful(budget): return methods.get("streaming_llm", budget)',
            'def forgetful(budget): return methods.get("h2o@recent=0", 32)',
        ),
        3: (
            "def saved(plans, users, speed): return fleet(plans['full'], users, speed).devices",
            "def saved(plans, users, speed):\n"
            "    return users // plans['full'].largest_batch\\\n"
            "        - users // plans['lazy_eviction'].largest_batch",
        ),
    },
    "07_add_your_method": {
        1: (
            "class Newest(Score):\n"
            "    def score(self, state, seen, candidates, room):\n"
            "        return -seen.positions.astype(float)",
            "class Newest(Score):\n"
            "    def score(self, state, seen, candidates, room):\n"
            "        return seen.attention[:, :, -1].mean(axis=1)",
        ),
        2: (
            "class LongestLooked(Score):\n"
            "    def score(self, state, seen, candidates, room):\n"
            "        return (seen.attention.mean(axis=1) >= 0.05).sum(axis=1).astype(float)",
        ),
        3: (
            "def partial(budget): return LoudValues(recent=3).policy(budget)",
            "def partial(budget): return LoudValues(recent=3).policy(budget + 1)",
        ),
    },
    "09_reproduce": {
        1: (
            "distinguishable = True",
            "low, high = 88.25, 88.55",
        ),
        2: (
            "only_caote, only_h2o = sum(caote_solved), sum(h2o_solved)",
            "only_caote, only_h2o = only_h2o, only_caote",
        ),
        3: ("needed = 1319", "needed = 500_000"),
    },
    "08_test_your_kernel": {
        1: (
            "def tova_score(attention, per_head): return attention[:, :, -1].mean(axis=1)",
            "def tova_score(attention, per_head):\n"
            "    last = attention[:, :, 0].mean(axis=1)\n"
            "    return last if per_head else np.broadcast_to(last.mean(axis=0), last.shape)",
            "def tova_score(attention, per_head):\n"
            "    last = attention[:, :, -1].max(axis=1)\n"
            "    return last if per_head else np.broadcast_to(last.max(axis=0), last.shape)",
        ),
        2: (
            "def received(queries, keys, positions, query_positions):\n"
            "    logits = np.einsum('grmd,gnd->grmn', queries, keys) / np.sqrt(queries.shape[-1])\n"
            "    hidden = positions[:, None, None, :] > query_positions[None, None, :, None]\n"
            "    weights = np.exp(np.where(hidden, -np.inf, logits))\n"
            "    return (weights / weights.sum(axis=-1, keepdims=True)).mean(axis=(1, 2))",
        ),
        3: (
            "def stored(x, bits, group): return np.round(x)",
            "def stored(x, bits, group):\n"
            "    zero = x.min(axis=1, keepdims=True)\n"
            "    step = (x.max(axis=1, keepdims=True) - zero) / (2**bits - 1)\n"
            "    return zero + step * np.round((x - zero) / np.where(step > 0, step, 1))",
        ),
    },
    "10_paged_engine": {
        1: (
            "def blocks_for(tokens, budget): return min(tokens // PAGE, budget // PAGE)",
            "def blocks_for(tokens, budget): return min(-(-tokens // PAGE), -(-budget // PAGE))",
            "def blocks_for(tokens, budget): return budget // PAGE",
        ),
        2: (
            "def shared_free(positions):\n"
            "    return needed(positions) - max(needed(head[None]) for head in positions)",
            "def shared_free(positions): return needed(positions) - positions.shape[1] / PAGE",
        ),
        3: (
            "def bytes_moved(places, heads, channels, width):\n"
            "    return len(moves(places)) * 2 * heads * channels * width",
            "def bytes_moved(places, heads, channels, width):\n"
            "    return len(places) * 4 * heads * channels * width",
        ),
    },
}
