"""Each paper's central claim, where it can be seen: on a workload whose structure is known.

Statistical tests over the seeds 0 to 5 (CAOTE: 0 to 15, AhaKV: 0 to 39): the mean of the paired
differences has to be more than `MONTE_CARLO` of its standard errors away from what it must not be;
for CAOTE, whose errors span a factor of a hundred, the better one is counted.
"""

import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.simulator import workloads
from kvlab.reference.simulator.replay import Layer, replay
from kvlab.reference.streams import run_stream
from support.tolerances import MONTE_CARLO

SEEDS = range(6)


def fates(workload, specs, budget):
    (found,) = replay(workload.trace, [methods.get(spec, budget) for spec in specs])
    return found


def lower_bound(differences):
    """Mean of paired differences less `MONTE_CARLO` standard errors."""
    error = np.std(differences, ddof=1) / np.sqrt(len(differences))
    return np.mean(differences) - MONTE_CARLO * error


# --- LazyEviction --------------------------------------------------------------------------------

WINDOW, BUDGET = 64, 112
LAZY = f"lazy_eviction@window={WINDOW},threshold=0.05"
BASELINES = (f"h2o@recent={WINDOW}", "tova", "raas@pin_prompt=false,threshold=0.05")


def hits(workload, *specs):
    """Of each method the share of the times that a recurring entry is asked for and still there."""
    active = workload.facts["active"]
    tokens = np.arange(len(active))
    asked = active & np.isin(tokens, workload.facts["recurring"])
    found = fates(workload, specs, BUDGET)
    return [(asked & (each.left[0] >= tokens[:, None])).sum() / asked.sum() for each in found]


@pytest.mark.slow
@pytest.mark.parametrize("baseline", BASELINES)
def test_tracking_recurrence_pays_where_entries_recur(baseline):
    recurrence = (workloads.periodic_recurrence(seed=seed, bound=WINDOW) for seed in SEEDS)
    tracked, others = np.transpose([hits(each, LAZY, baseline) for each in recurrence])
    assert lower_bound(tracked - others) > 0.1


def test_tracking_recurrence_does_not_pay_on_recency():
    """With the same window for all, as in the paper's Table 3."""
    windowed = [f"{each}{',' if '@' in each else '@'}every={WINDOW}" for each in BASELINES]
    found = fates(workloads.pure_recency(), [LAZY, *windowed], BUDGET)
    tracked, *others = (each.mass[0, 100:].mean() for each in found)
    assert all(tracked - other < 0.001 for other in others)


@pytest.mark.slow
def test_h2_holds_on_to_what_only_looked_at_itself():
    """A limit, not a claim: an interval of 1, from birth, gives H2 its largest value for ever."""
    specs = (LAZY, f"{LAZY},h2=none", f"{LAZY},stamp_start=first_activation")
    options = {"bound": WINDOW, "filler_uses": 0, "self_attention": True}
    recurrence = (workloads.periodic_recurrence(seed=seed, **options) for seed in SEEDS)
    kept, *others = np.transpose([hits(each, *specs) for each in recurrence])
    assert all(lower_bound(other - kept) > 0.3 for other in others)


# --- CAOTE ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("base", ["h2o@recent=0", "tova@per_head=true"])
def test_caote_errs_less_where_values_vary(base):
    name, _, options = base.partition("@")
    wrapped = f"caote:{name}" + (f"@{options}" if name == "h2o" else "")
    better = 0
    for seed in range(16):
        workload = workloads.varying_values(seed=seed)
        plain, caote = (each.error[0, 170:] for each in fates(workload, (base, wrapped), 160))
        better += np.log(caote).mean() < np.log(plain).mean()
    assert better >= 14, "by chance once in 480 times"


# --- AhaKV ---------------------------------------------------------------------------------------


def mean_place(spec, seed):
    """Mean position of what is kept of the prompt's older part, from 0 to 1; 0.5 if uniform."""
    workload = workloads.exchangeable(seed=seed, tokens=336, prompt=320)
    old = 320 - 32
    kept = fates(workload, [spec], 128)[0].kept(319)[0]
    return kept[kept < old].mean() / (old - 1)


@pytest.mark.slow
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
