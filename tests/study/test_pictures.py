"""Pictures follow the theme around them; texts are escaped."""

import re

import numpy as np
import pytest

from kvlab.fast.lab.drawing import canvas, finish
from study.kept import KeptText

HOSTILE = "<script>alert('x')</script>"


def drawn(description="A line that rises."):
    figure, (axes,) = canvas()
    axes.plot([0, 1], [0, 1], color="black", label="a line")
    axes.set(xlabel="x", ylabel="y")
    return finish(figure, description)


def test_a_picture_has_no_fixed_ink_and_no_ground():
    svg = drawn().svg
    assert svg.startswith("<svg ") and svg.rstrip().endswith("</svg>")
    assert "currentColor" in svg and "#000000" not in svg and "#ffffff" not in svg
    assert "<metadata>" not in svg and "\n\n" not in svg


def test_pictures_that_share_a_page_share_no_group_names():
    assert not re.search(r"<g id=", drawn().svg)


def test_a_picture_is_described_and_its_description_escaped():
    picture = drawn(f'A "line" {HOSTILE}')
    assert HOSTILE not in picture._repr_html_()
    assert 'role="img"' in picture.svg and "&quot;line&quot;" in picture.svg


def test_axes_with_labelled_curves_get_a_legend_unless_told_otherwise():
    figure, (axes,) = canvas()
    axes.plot([0, 1], label="a line")
    assert "a line" not in finish(figure, "", legend="none").svg
    assert "a line" in finish(figure, "").svg


def test_a_text_strikes_out_what_has_left_and_nothing_else():
    text = KeptText([HOSTILE, "kept", "\n"], {"h2o": np.array([False, True, True])})
    html = text._repr_html_()
    assert HOSTILE not in html and "<span>kept</span>" in html and "⏎" in html
    assert html.count("line-through") == 1 and "(2 of 3)" in html


def test_a_text_refuses_marks_of_another_length():
    with pytest.raises(ValueError, match="h2o: 2 marks for 1 tokens"):
        KeptText(["a"], {"h2o": np.array([True, False])})
