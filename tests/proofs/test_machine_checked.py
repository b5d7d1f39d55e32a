"""What Rocq proves is what the functions compute; and it accepts neither gaps nor own axioms."""

import pkgutil
import shutil
from dataclasses import replace
from functools import cache
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.attention import softmax, weighted_values
from kvlab.reference.methods.caote import eviction_error, joint_error
from kvlab.reference.methods.lazy_eviction import LazyEviction, Recurrence
from kvlab.reference.proofs import claims, lazy_eviction, machine_checked
from kvlab.reference.streams import Source, random_stream, run_stream
from support.planted import changed
from support.tables import cases
from support.tolerances import FLOAT64

FOLDER = Path(str(machine_checked.FOLDER))
ALL = machine_checked.theorems()
SLOW = pytest.mark.slow
RNG = np.random.default_rng(39)
needs_coqc = pytest.mark.skipif(
    shutil.which("coqc") is None, reason=f"there is no coqc: {machine_checked.INSTALL}"
)


def run_all(spec, budget, prompt, generated=0):
    stream = random_stream(Source(spec), 1, 1, 8, prompt, generated)
    return list(run_stream(methods.get(spec, budget), stream))


def one_eviction():
    """Attention, scores h, values, projections, and the output without entry j and without E."""
    n, d = 6, 4
    logits, v, h, x = (
        RNG.normal(size=n),
        RNG.normal(size=(n, d)),
        RNG.dirichlet(np.ones(n)),
        RNG.random(d),
    )
    (i, j), E = RNG.choice(n, 2, replace=False), np.isin(np.arange(n), RNG.choice(n, 3))
    stays, alpha = np.arange(n) != j, softmax(logits)
    h_j = np.where(stays, h, 0) / h[stays].sum()
    rows = [softmax(logits, each) for each in (np.full(n, True), stays, ~E)]
    X, X_j, X_E = weighted_values(np.array([[rows]]), v[None])[0, 0]
    W_O, W_FFN, W_H = RNG.normal(size=(3, d, d))
    W_2, p = RNG.normal(size=(d, 2 * d)), RNG.choice([1, 2, 3, np.inf])
    y, y_j = x + W_O @ X, x + W_O @ X_j
    return locals()


def over_orders(spec, n, number):
    """Return the mean over all orders of the keys of what is computed of n tokens, by position."""
    policy, stream = methods.get(spec, n), random_stream(Source(spec), 1, prompt=n, generated=0)
    orders = (replace(stream, keys=stream.keys[:, each]) for each in permutations(range(n)))
    mean = np.mean([number(*run_stream(policy, each)) for each in orders], axis=0)
    return lambda position: mean[position - 1]


@cache
def accumulated_attention():
    """Scores of H2O and AhaKV; totals of H2O at every eviction, and what was evicted before."""
    n, d, r, k = 5, 8, 2, 3
    spec, b = f"ahakv@recent={r}", n - 1
    of_h2o = lambda result: result.cache.state.entries["accumulated"][0]  # noqa: E731
    score = methods.get(spec, k).score
    recent = lambda result: score.accumulated(result.cache.state, result.seen)[0]  # noqa: E731
    expected_h2o, expected_recent = over_orders("h2o", n, of_h2o), over_orders(spec, n, recent)
    (last,) = run_all(spec, n, n)
    rows_summed, raw = last.cache.state.stream["queries"].shape[2], np.zeros((1, 1, 1, n))
    gain = score.factors(raw, raw == 0, np.array([n - 1]), last.seen).item()
    h2o = of_h2o(*run_all("h2o", n, n))
    due = [each for each in run_all("h2o@recent=1", 4, 1, 20) if len(each.cache) == 4][1:]
    totals = np.array([each.decision.scores.sum() for each in due])
    gone = np.cumsum([0, *(np.delete(e.decision.scores, e.keep).sum() for e in due[:-1])])
    tokens = np.array([each.seen.clock.seen for each in due])
    return locals()


def sizes_and_scores():
    """The recursion ``size``, transcribed, beside what the method holds; H2 in two forms."""
    W, more, prompt = RNG.integers(1, (5, 9, 20)).tolist()
    B, t, sizes = W + more, 4 * W, [prompt]
    for step in range(1, t + 1):
        full = step % W == 0 and sizes[-1] + 1 > B
        sizes = np.append(sizes, B if full else sizes[-1] + 1)
    results = run_all(f"lazy_eviction@window={W}", B, prompt, t)[1:]
    held = [each.seen.positions.shape[1] for each in results]
    left = [len(each.cache) for each in results]
    prompts, tokens = np.array([[1], [B], [B + 1]]), np.arange(t)
    of_line_8 = [
        [lazy_eviction.sizes(each, B, W, lambda n, B: n <= B, step)[-1] for step in range(t)]
        for each in (1, B, B + 1)
    ]
    m = 1 + 5 * RNG.random()
    printed, code = (
        lambda m, reading=reading: Recurrence(LazyEviction(h2_reading=reading)).interval_score(
            np.full((1, 1), m)
        )
        for reading in ("printed", "code")
    )
    return locals()


NUMBERS = {"caote": one_eviction, "ahakv": accumulated_attention, "lazy_eviction": sizes_and_scores}
FUNCTIONS = {each.__name__: each for each in (softmax, joint_error, eviction_error, np.linalg.norm)}
FUNCTIONS |= {name: getattr(np, name) for name in ("all", "exp", "hstack", "log", "sqrt")}


@pytest.mark.parametrize("theorem", ALL, ids=lambda theorem: theorem.name)
def test_a_theorem_is_about_what_its_function_computes(theorem):
    assert pkgutil.resolve_name(theorem.about)
    for _ in range(20):
        names = FUNCTIONS | NUMBERS["ahakv" if "h2o" in theorem.about else theorem.paper]()
        for statement in theorem.python.split("; "):
            first, *others = (eval(side, names) for side in statement.split(" == "))
            assert others or first, statement
            for other in others:
                np.testing.assert_allclose(other, first, rtol=FLOAT64, atol=FLOAT64)


def test_every_theorem_says_what_it_is_about():
    texts = [path.read_text("utf-8") for path in FOLDER.glob("*.v")]
    assert sum(text.count("\nTheorem ") for text in texts) == len(ALL) >= 5
    assert all(claims(theorem.paper, theorem.claims) for theorem in ALL)


@needs_coqc
@SLOW
@pytest.mark.parametrize("paper", ["caote", "ahakv", "lazy_eviction"])
def test_rocq_accepts_every_theorem_with_the_axioms_of_the_reals(paper):
    found = list(machine_checked.check(paper))
    assert [each.theorem for each in found] == machine_checked.theorems(paper)
    assert not [each for each in found if each.error or set(each.axioms) - machine_checked.AXIOMS]


@needs_coqc
@SLOW
@cases(__file__, "rocq_refuses_false_statements_and_gaps", "right wrong said")
def test_rocq_refuses_false_statements_and_gaps(right, wrong, said, tmp_path):
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    (tmp_path / "lazy_eviction.v").write_text(changed(FOLDER / "lazy_eviction.v", [(right, wrong)]))
    found = list(machine_checked.check("lazy_eviction", tmp_path))
    assert len(found) == 5 and all(said in each.error for each in found), found
