"""What the pages of the kit say there is, or is not, is so; the kernel fails as they show."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.conformance import published, vectors
from kvlab.reference.conformance.operation import OPERATIONS
from kvlab.reference.conformance.planned import sized_cases
from kvlab.reference.conformance.targets import STEPS
from kvlab.reference.conformance.whole_cache import Sequence, empty_cache, model_in
from support.running import invoke
from support.sampling import sampled

REFERENCE, LESSON = Path("docs/conformance.md"), Path("docs/kernel_fails.md")
EXAMPLE = Path("docs/examples/conformance/failing_kernel.py")
USUAL = {"page": 1, "page_score": "mean", "kv_heads": "head", "precision": "full"}


def under_options(*names):
    """Return the published cases whose options that fit every method are not the usual ones."""
    given = [case for case in published() if case.method]
    return [x for x in given if any(x.parameters.get(n, USUAL[n]) != USUAL[n] for n in names)]


def of_caches(name):
    caches = [case for case in published() if case.operation == "whole_cache"]
    return [x for x in caches if name in x.inputs or x.parameters.get(name) is not None]


@cache
def kept_pages():
    """Say of cases of `keep` under pages, by number: were whole pages kept, of one score each."""
    found = {}
    for case in (*sized_cases("kernel", 0, "h2o.keep".__eq__), *published()):
        page = case.parameters.get("page") or 1
        if case.operation == "keep" and page > 1:
            keep, pages = case.expected["keep"].value, case.inputs["positions"] // page
            rows = zip(pages, keep, case.inputs["scores"], strict=True)
            found[case.name] = all(
                np.isin(x, x[kept]).sum() == len(kept)
                and all(len({*scores[x == each]}) == 1 for each in {*x})
                for x, kept, scores in rows
            )
    return found


def held_by_layers_with_a_window():
    """Return the entries and the bits of each layer of a coded cache of 4 with a window."""
    model, policy = model_in(str(vectors.MODEL)), methods.get("h2o@recent=2,precision=fp8", 4)
    caches = (empty_cache(policy, model.config.kv_heads, model.config.head_dim),) * 4
    row = Sequence(model, policy, None, 6, None, 9, caches)
    row.feed(np.arange(1, 10))
    return [(len(each), int(each.keys.bits.max())) for each in row.caches]


SAID = {
    "All steps of a method but `store`, and whole caches, have cases under the": lambda: (
        {x.operation for x in under_options("page", "kv_heads")} == {*STEPS} - {"store"}
    ),
    "those of `keep` are drawn with `--sizes kernel`": lambda: (
        {x.target for x in under_options("page", "kv_heads") if x.operation == "keep"}
        == {"raas.keep"}
    ),
    "`model`, the mean over the layers of what `layer` gives, has no cases": lambda: (
        not any(x.parameters["kv_heads"] == "model" for x in under_options("kv_heads"))
    ),
    "Cases of the groups `cache_pages`, `cache_shared_heads`, `cache_codes` and `cache_pairs`": (
        lambda: (
            {x.group for x in under_options(*USUAL) if x.operation == "whole_cache"}
            == {"cache_pages", "cache_shared_heads", "cache_codes", "cache_pairs"}
        )
    ),
    "and always returns whole pages": lambda: (
        all(kept_pages().values())
        and {name.partition("/")[0] for name in kept_pages()} == {"h2o.keep", "raas.keep"}
    ),
    "they keep all entries, uncoded, whatever the precision is": lambda: (
        held_by_layers_with_a_window() == [(4, 8), (9, 16)] * 2
    ),
    "they come with `full` and uncoded entries alone": lambda: (
        {(x.method, x.parameters.get("precision")) for x in of_caches("learned_sinks")}
        == {("full", None)}
    ),
    "All three are `None` in most cases": lambda: all(
        2 * len(of_caches(name)) < len(of_caches("model"))
        for name in ("softcap", "sliding_window", "learned_sinks")
    ),
    "only float32 is tested": lambda: all(
        {*each.tolerance} <= {"float32"} for x in of_caches("model") for each in x.expected.values()
    ),
    "The groups `pairs`, `option_pairs` and `cache_pairs` are published": lambda: (
        {"pairs", "option_pairs", "cache_pairs"} <= {x.group for x in published()}
    ),
    "so not `whole_cache`": lambda: not [*sized_cases("kernel", 0, "h2o.whole_cache".__eq__)],
    "for {{ building blocks }} building blocks and every step of every method": lambda: (
        {x.operation for x in published()} == {*OPERATIONS}
    ),
    "`SHA256SUMS` (`sha256sum -c`); 19 MB": lambda: (
        round(sum(x.stat().st_size for x in vectors.VECTORS.iterdir()) / 1e6) == 19
    ),
}
"""What the page of reference says there is, and whether it is so."""


@pytest.mark.parametrize("said", sampled(SAID, [x for x in SAID if "keep" not in x]))
def test_what_the_page_says_there_is_is_so(said):
    assert " ".join(REFERENCE.read_text("utf-8").split()).count(said) == 1
    assert SAID[said]()


def test_the_failing_kernel_fails_as_the_page_shows_and_passes_with_its_fix(tmp_path):
    lesson = LESSON.read_text(encoding="utf-8")
    done = invoke("conformance", "run", EXAMPLE, "--target", "attend")
    shown = lesson.split("```\n$ kvlab")[1].partition("```")[0].splitlines()[1:]
    told = [line.split() for line in shown if line.strip() not in ("...", "")]
    printed = [line.split() for line in done.output.splitlines()]
    assert done.exit_code == 1 and all(line in printed for line in told if "─" not in line[0])
    wrong = "    logits = logits - 10_000 * hidden\n"
    right = next(x for x in lesson.splitlines(keepends=True) if "np.where(hidden" in x)
    assert EXAMPLE.read_text().count(wrong) == 1
    (tmp_path / "fixed.py").write_text(EXAMPLE.read_text().replace(wrong, right))
    assert "\n88 passed, 0 failed, 0 not tested" in lesson
    assert "88 passed, 0 failed" in invoke("conformance", "run", tmp_path / "fixed.py").output
