"""Each paper's central claim, where it can be seen: on a workload whose structure is known.

Statistical tests over the seeds 0 to 5 (CAOTE: 0 to 15, AhaKV: 0 to 39): the mean of the paired
differences has to be more than `MONTE_CARLO` of its standard errors away from what it must not be;
for CAOTE, whose errors span a factor of a hundred, the better one is counted.
"""

import numpy as np
import pytest
from sampling import sampled
from tolerances import FLOAT64, MONTE_CARLO

from kvlab.reference import methods
from kvlab.reference.methods.caote import eviction_error, normalize
from kvlab.reference.simulator import workloads
from kvlab.reference.simulator.replay import Layer, replay
from kvlab.reference.streams import run_stream

SEEDS = range(6)


def fate(workload, spec, budget):
    ((found,),) = replay(workload.trace, [methods.get(spec, budget)])
    return found


def lower_bound(differences):
    """Mean of paired differences less `MONTE_CARLO` standard errors."""
    error = np.std(differences, ddof=1) / np.sqrt(len(differences))
    return np.mean(differences) - MONTE_CARLO * error


# --- LazyEviction --------------------------------------------------------------------------------

WINDOW, BUDGET = 64, 112
LAZY = f"lazy_eviction@window={WINDOW},threshold=0.05"
BASELINES = (f"h2o@recent={WINDOW}", "tova", "raas@pin_prompt=false,threshold=0.05")


def hits(workload, spec):
    """Share of the times that a recurring entry is asked for and still there."""
    found, active = fate(workload, spec, BUDGET), workload.facts["active"]
    tokens = np.arange(len(active))
    present = found.left[0] >= tokens[:, None]
    asked = active & np.isin(tokens, workload.facts["recurring"])
    return (present & asked).sum() / asked.sum()


@pytest.fixture(scope="module")
def recurrence():
    return [workloads.periodic_recurrence(seed=seed, bound=WINDOW) for seed in SEEDS]


@pytest.fixture(scope="module")
def tracked(recurrence):
    return [hits(each, LAZY) for each in recurrence]


@pytest.mark.parametrize("baseline", sampled(BASELINES, BASELINES[:1]))
def test_tracking_recurrence_pays_where_entries_recur(recurrence, tracked, baseline):
    others = [hits(each, baseline) for each in recurrence]
    assert lower_bound(np.subtract(tracked, others)) > 0.1


@pytest.mark.parametrize("baseline", BASELINES)
def test_tracking_recurrence_does_not_pay_on_recency(baseline):
    """With the same window for both, as in the paper's Table 3."""
    workload = workloads.pure_recency()
    windowed = f"{baseline}{',' if '@' in baseline else '@'}every={WINDOW}"
    mass = [fate(workload, spec, BUDGET).mass[0, 100:].mean() for spec in (LAZY, windowed)]
    assert mass[0] - mass[1] < 0.001


def test_h2_holds_on_to_what_only_looked_at_itself():
    """A limit, not a claim: an interval of 1, from birth, gives H2 its largest value for ever."""
    losses = {"h2=none": [], "stamp_start=first_activation": []}
    for seed in SEEDS:
        workload = workloads.periodic_recurrence(
            seed=seed, bound=WINDOW, filler_uses=0, self_attention=True
        )
        kept = hits(workload, LAZY)
        for option, own in losses.items():
            own.append(hits(workload, f"{LAZY},{option}") - kept)
    assert all(lower_bound(own) > 0.3 for own in losses.values())


# --- CAOTE ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", sampled(["h2o@recent=0", "tova@per_head=true"], ["h2o@recent=0"]))
def test_caote_errs_less_where_values_vary(base):
    name, _, options = base.partition("@")
    wrapped = f"caote:{name}" + (f"@{options}" if name == "h2o" else "")
    better = 0
    for seed in range(16):
        workload = workloads.varying_values(seed=seed)
        plain, caote = (fate(workload, spec, 160).error[0, 170:] for spec in (base, wrapped))
        better += np.log(caote).mean() < np.log(plain).mean()
    assert better >= 14, "by chance once in 480 times"


@pytest.mark.parametrize("seed", SEEDS)
def test_caote_ranks_by_attention_where_distances_are_equal(seed):
    workload = workloads.equal_distances(seed=seed)
    full = Layer.of(workload.trace, 0).full_attention(0, 128)
    for token in range(65, 128, 2):
        attention = full.attention[0, 0, token, : token + 1]
        scores = eviction_error(normalize(attention), workload.trace.values[0, 0, : token + 1])
        expected = attention / (1 - attention)
        np.testing.assert_allclose(scores, expected, rtol=1e3 * FLOAT64)


# --- AhaKV ---------------------------------------------------------------------------------------


def mean_place(spec, seed):
    """Mean position of what is kept of the prompt's older part, from 0 to 1; 0.5 if uniform."""
    workload = workloads.exchangeable(seed=seed, tokens=336, prompt=320)
    old = 320 - 32
    kept = fate(workload, spec, 128).kept(319)[0]
    return kept[kept < old].mean() / (old - 1)


def test_h2o_leans_to_early_positions_and_ahakv_does_not():
    h2o = [0.5 - mean_place("h2o@recent=32", seed) for seed in SEEDS]
    ahakv = [mean_place("ahakv@recent=32,value_prior=none", seed) - 0.5 for seed in range(40)]
    assert lower_bound(h2o) > 0.1
    error = np.std(ahakv, ddof=1) / np.sqrt(len(ahakv))
    assert abs(np.mean(ahakv)) < MONTE_CARLO * error
    assert MONTE_CARLO * error < 0.03


# --- DesireKV ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_desirekv_keeps_exactly_the_outlier_keys_precisely(seed):
    """Of what is kept, the keys with outliers get 8 bits and all others 4."""
    workload = workloads.key_outliers(seed=seed, tokens=192, prompt=16)
    spec = "desirekv@interval=96,selector=16,sensitivity_threshold=0.25,protection=none"
    *_, last = run_stream(methods.get(spec), Layer.of(workload.trace, 0))
    positions, bits = last.cache.positions[0], last.cache.keys.bits[0]
    decided = bits < 16
    assert decided.sum() == 48, "half of the 96 entries that the event is about stay"
    outliers = workload.facts["outliers"][positions]
    np.testing.assert_array_equal(bits[decided] == 8, outliers[decided])
    np.testing.assert_array_equal(bits[decided] == 4, ~outliers[decided])
    assert 4 <= outliers[decided].sum() <= 24
