"""Pictures follow the theme around them and show what was recorded."""

import re

import numpy as np

from kvlab.fast.lab.drawing import canvas, finish
from kvlab.reference.simulator.timeline import FIRST_STATES, GONE, Run
from study.kept import kept_bits

HOSTILE = "<script>alert('x')</script>"


def test_a_picture_has_no_fixed_ink_no_ground_and_an_escaped_description():
    figure, (axes,) = canvas()
    axes.plot([0, 1], [0, 1], color="black", label="a line")
    picture = finish(figure, f'A "line" {HOSTILE}')
    svg = picture.svg
    assert svg.startswith("<svg ") and svg.rstrip().endswith("</svg>")
    assert "currentColor" in svg and "#000000" not in svg and "#ffffff" not in svg
    assert "<metadata>" not in svg and "\n\n" not in svg
    assert not re.search(r"<g id=", svg), "pictures that share a page share names"
    assert HOSTILE not in picture.figure
    assert 'role="img"' in svg and "&quot;line&quot;" in svg
    assert "a line" in svg, "there is no legend"


def run(budget):
    """Three tokens of a prompt and two more; 2 layers, 2 KV heads; position 0 is stored at 4 and 8
    bits from step 1 on, and head 0 of layer 1 loses position 1 at step 2."""
    lowered = [(layer, head, 0, 1, 2) for layer in (0, 1) for head in (0, 1)]
    events = np.vstack([lowered, [(1, 0, 1, 2, GONE)]])
    return Run(
        "a method",
        budget,
        3,
        ("a",) * 6,
        None,
        (0, 1),
        2,
        np.array([3, 4, 5]),
        np.array([False, True, True]),
        (*FIRST_STATES, (4, 8)),
        events,
        (),
    )


def test_bits_are_means_over_keys_values_layers_and_heads():
    nan = np.nan
    expected = [[16, 6, 6], [16, 16, 12], [16, 16, 16], [nan, 16, 16], [nan, nan, 16]]
    np.testing.assert_array_equal(kept_bits(run(3)), expected)
