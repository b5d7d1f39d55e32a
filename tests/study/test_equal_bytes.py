"""Points at equal bytes: their kinds, their Pareto front by hand, and points as stored."""

import pytest

from kvlab.fast.lab.evaluate.statistics import Interval
from study import equal_bytes
from study.equal_bytes import Panel, Place
from study.stored import stored_summary


@pytest.fixture(scope="module")
def panels():
    return equal_bytes.read_panels()


def place(share: float, mean: float, method: str = "h2o") -> Place:
    return Place(method, "", share, Interval(mean, mean - 0.1, mean + 0.1))


@pytest.mark.parametrize(
    ("more", "expected"),
    [(True, [(0.2, 0.1), (0.3, 0.5), (0.5, 0.6)]), (False, [(0.2, 0.0)])],
)
def test_the_front_by_hand(more, expected):
    """Of equal bytes the better; what is as good and larger is not on it."""
    pairs = [(0.3, 0.4), (0.2, 0.0), (0.5, 0.6), (0.2, 0.1), (0.4, 0.5), (0.3, 0.5), (0.9, 0.6)]
    panel = Panel("", "", [place(*pair) for pair in pairs], more)
    assert [(each.share, each.quality.mean) for each in panel.front] == expected


def test_points_are_what_is_stored(panels):
    shown = {(each.method, each.budget): each for each in panels[0].places}
    found = stored_summary("equal_bytes")
    rows = (*found.points, *found.controls)
    assert {point.method for point in rows} <= {method for method, _ in shown}
    point, whole = found.point("h2o@precision=fp8", "50%"), found.point("full", None)
    drawn = shown[point.method, "50 %"]
    assert drawn.share == (point.mean("nbytes") or 0) / (whole.mean("nbytes") or 1)
    assert drawn.quality == point.interval
    (full,) = (each for each in panels[1].places if each.method == "full")
    assert (full.share, full.quality.mean) == (1, 0)


def test_scales_are_counted(panels):
    """32 channels: 4 bits and 8/16 of a scale, of 16 bits; one float32 per layer and kind."""
    (coded,) = (each for each in panels[0].places if each.method == "full@precision=nvfp4")
    assert 4.5 / 16 < coded.share < 4.5 / 16 + 0.001
