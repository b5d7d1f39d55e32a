"""What the pages of the kit say there is, or is not, is so; the kernel fails as they show."""

from pathlib import Path

import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.conformance import published, vectors
from kvlab.reference.conformance.planned import sized_cases
from kvlab.reference.conformance.targets import STEPS
from kvlab.reference.conformance.whole_cache import Sequence, empty_cache, model_in
from support.running import invoke
from support.sampling import sampled

REFERENCE, LESSON = Path("docs/conformance.md"), Path("docs/kernel_fails.md")
EXAMPLE = Path("docs/examples/conformance/failing_kernel.py")
JOINED = {"cache_pages", "cache_shared_heads", "cache_codes", "cache_pairs"}
USUAL = {"page": 1, "page_score": "mean", "kv_heads": "head", "precision": "full"}


def under_options(*names):
    """Return the published cases whose options that fit every method are not the usual ones."""
    given = [case for case in published() if case.method]
    return [x for x in given if any(x.parameters.get(n, USUAL[n]) != USUAL[n] for n in names)]


def of_caches(name):
    caches = [case for case in published() if case.operation == "whole_cache"]
    return [x for x in caches if name in x.inputs or x.parameters.get(name) is not None]


def whole_pages_are_kept():
    """Whoever joins the scores of a page, or of such heads, once more keeps the same."""
    sized = (*sized_cases("kernel", 0, "h2o.keep".__eq__), *published())
    paged = [x for x in sized if x.operation == "keep" and (x.parameters.get("page") or 1) > 1]
    for case in paged:
        policy = methods.get(case.method, case.parameters["budget"])
        keep, pages = case.expected["keep"].value, case.inputs["positions"] // policy.protect.page
        for own, kept, scores in zip(pages, keep, case.inputs["scores"], strict=True):
            assert np.isin(own, own[kept]).sum() == len(kept), case.name
            assert all(len({*scores[own == each]}) == 1 for each in {*own}), case.name
        assert (keep == keep[0]).all() or not policy.score.joins_kv_heads, case.name
    return {case.target for case in paged} == {"h2o.keep", "raas.keep"} and len(paged) > 10


def window_keeps_all():
    """Of a coded cache of 4 in four layers, two of which have a window."""
    model, policy = model_in(str(vectors.MODEL)), methods.get("h2o@recent=2,precision=fp8", 4)
    caches = (empty_cache(policy, model.config.kv_heads, model.config.head_dim),) * 4
    row = Sequence(model, policy, None, 6, None, 9, caches)
    row.feed(np.arange(1, 10))
    return [(len(x), x.keys.bits.max()) for x in row.caches] == [(4, 8), (9, 16)] * 2


def sizes_are_as_wide_as_said():
    """Heads, blocks and channels of the large cases of attention, entries of any of them."""
    large = [x for x in sized_cases("kernel", 0, "attend".__eq__) if x.group == "large_pairs"]
    sizes = np.array([x.inputs["queries"].shape[1:] for x in large])
    most = max(x.inputs["keys"].shape[1] for x in large)
    return [*sizes.min(0), *sizes.max(0), most] == [1, 1, 64, 32, 130, 256, 4110]


def indices_are_as_wide_as_said():
    """Pages, slots and lengths on both sides of 2^15 and 2^16; positions; users of a block."""
    asked = ("attend_requests", "write_pages", "rotate", "events")
    wide = [x for x in sized_cases("kernel", 0, asked.__contains__) if x.group == "wide_indices"]
    named = ("tables", "slots", "lengths", "positions", "script")
    most = {n: [x.inputs[n].max() for x in wide if n in x.inputs] for n in named}
    around = all(
        any(abs(x - border) < 256 for x in most[n]) for n in named[:3] for border in (32768, 65536)
    )
    return around and max(most["positions"]) > 2**20 and max(most["script"]) > 255


SAID = {
    "All steps of a method but `store`, and whole caches, have cases under the": lambda: (
        {x.operation for x in under_options("page", "kv_heads") if x.target != "raas.keep"}
        == {*STEPS} - {"keep", "store"}
    ),
    "`model`, the mean over the layers of what `layer` gives, has no cases": lambda: (
        not any(x.parameters["kv_heads"] == "model" for x in under_options("kv_heads"))
    ),
    "Cases of the groups `cache_pages`, `cache_shared_heads`, `cache_codes` and `cache_pairs`": (
        lambda: {x.group for x in under_options(*USUAL) if x.operation == "whole_cache"} == JOINED
    ),
    "and always returns whole pages": whole_pages_are_kept,
    "they keep all entries, uncoded, whatever the precision is": window_keeps_all,
    "they come with `full` and uncoded entries alone": lambda: (
        {(x.method, x.parameters.get("precision")) for x in of_caches("learned_sinks")}
        == {("full", None)}
    ),
    "in all others these options are absent": lambda: (
        {x.group for x in of_caches("tokens") if {*USUAL} & {*x.parameters}} == JOINED
    ),
    "in some cases a second turn of several": lambda: any(
        max(x.inputs["calls"][1:]) > 1 for x in of_caches("calls")
    ),
    "channels, 1 to 32 query heads per KV head, blocks of 1 to 130": sizes_are_as_wide_as_said,
    "page numbers, slots and lengths around 2¹⁵ and 2¹⁶": indices_are_as_wide_as_said,
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
    (tmp_path / "fixed.py").write_text(EXAMPLE.read_text().replace(wrong, right))
    fixed = invoke("conformance", "run", tmp_path / "fixed.py").output
    assert "88 passed, 0 failed" in fixed and "\n88 passed, 0 failed" in lesson
