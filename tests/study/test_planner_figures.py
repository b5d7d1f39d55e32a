"""The papers' figures of memory and time, and our own, beside those of the cost model."""

from pathlib import Path

import pytest
from shapes import shapes_checked

from study.planner_figures import all_figures, figures_table

PAGE = Path(__file__).parents[2] / "docs" / "paper_figures.md"


@pytest.fixture(scope="module")
def figures():
    with shapes_checked(False):
        return {(each.paper, each.what): each for each in all_figures()}


@pytest.mark.parametrize(
    ("what", "off"),
    [
        ("KV cache, batch 8 × 32,768", 0.002),
        ("weights", 0.02),
        ("together", 0.01),
        ("saved by rpc", 0.05),
        ("saved by desirekv", 0.05),
    ],
)
def test_desirekv_memory_comes_out(figures, what, off):
    """The bytes are counted alike; the weights are 1.2 % less than printed."""
    assert figures["DesireKV", what].ratio == pytest.approx(1, abs=off)


def test_more_than_100_gb_holds_for_the_largest_model_only(figures):
    sizes = {
        what.split()[3].rstrip(","): each.modelled
        for (_, what), each in figures.items()
        if "batch 32" in what
    }
    assert [name for name, size in sizes.items() if size > 100] == ["qwq-32b"]


def test_desirekv_throughput_comes_out(figures):
    """More sequences fit, but attention to their entries takes arithmetic and time as well."""
    found = figures["DesireKV", "throughput over that of the full cache, 96 GB"]
    assert found.ratio == pytest.approx(1, abs=0.1)


def test_the_shape_of_table_7(figures):
    """Level while the host is the limit, then falling behind; the crossing lies above 8K."""
    full, lazy = (
        [figures["LazyEviction", f"{spec}, token {step}"].modelled for step in (2048, 8192, 16384)]
        for spec in ("full", "lazy_eviction")
    )
    assert lazy[0] > full[0]
    assert full[2] > lazy[2]
    ratios = [each.ratio for (_, what), each in figures.items() if ", token " in what]
    assert 0.75 < min(ratios) <= max(ratios) < 1.3


def test_the_order_of_table_8(figures):
    """The full cache loses its lead as texts grow; TOVA takes longer than the model knows of."""
    behind = []
    for length in (4096, 8192, 16384):
        full, tova, lazy = (
            figures["LazyEviction", f"{spec}, {length} tokens"]
            for spec in ("full", "tova", "lazy_eviction")
        )
        behind.append(lazy.modelled / full.modelled)
        assert full.ratio == pytest.approx(1, abs=0.05)
        assert lazy.ratio == pytest.approx(1, abs=0.07)
        assert 0.8 < tova.ratio < 0.9
    assert behind[0] > behind[1] > 1 > behind[2]


def test_the_docs_show_them(figures):
    assert {paper for paper, _ in figures} == {"DesireKV", "LazyEviction", "kvlab"}
    written = PAGE.read_text(encoding="utf-8")
    assert written == f"{figures_table(list(figures.values())).markdown()}\n"
    assert "2.931 times" in written


def test_measured_memory_comes_out(figures):
    """But for the slots that buffers keep free: at most 64 of some 256."""
    ratios = [each.ratio for (paper, _), each in figures.items() if paper == "kvlab"]
    assert len(ratios) >= 8
    assert all(0.75 < ratio <= 1 for ratio in ratios)
