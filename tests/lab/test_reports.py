"""A report says the same as a page and in Markdown."""

import re
from dataclasses import replace

import pytest

from kvlab.fast.lab.drawing import COLUMN, canvas, finish
from kvlab.fast.lab.latex import LINES, write_latex
from kvlab.fast.lab.reports import Code, Drawing, Heading, Text, write_html, write_markdown
from kvlab.fast.lab.tables import Table

HOSTILE = "<script>alert('x')</script>"


@pytest.fixture(scope="module")
def picture():
    figure, (axes,) = canvas()
    axes.plot([0, 1], label="a line")
    return finish(figure, "A line that rises.", legend="right")


@pytest.fixture
def blocks(picture):
    return [
        Heading(f"A report {HOSTILE}", 1),
        Text(HOSTILE),
        Table(("method", "solved"), [(HOSTILE, "1 %")]),
        Code(HOSTILE, "html"),
        Drawing("rise", f"It rises {HOSTILE}", picture),
    ]


def test_a_page_needs_nothing_else_and_escapes_everything(blocks, tmp_path):
    path = tmp_path / "deep" / "report.html"
    write_html(blocks, path)
    page = path.read_text()
    assert HOSTILE not in page and page.count("&lt;script&gt;") == 6, "title and five blocks"
    assert page.count("<svg") == 1 and not re.search(r"(src|href)=[\"']https?:", page)


def test_markdown_has_its_drawings_beside_it(blocks, picture, tmp_path):
    write_markdown(blocks, tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# A report &lt;script\\>") and "](rise.svg)" in text
    assert text.count(HOSTILE) == 1, "code stays as it is"
    assert (tmp_path / "rise.svg").read_text() == picture.alone


def test_latex_has_labels_breakable_code_and_the_narrow_drawing(blocks, picture, tmp_path):
    figure, (axes,) = canvas(width=COLUMN)
    axes.set_title("small", fontsize=5)
    blocks[1:3] = [Heading("jumps"), replace(blocks[2], title="Solved, %")]
    blocks[3] = Code("kvlab sweep a/b --out 'c'\n  x_y")
    blocks[4] = Drawing("rise", "It rises", picture, lambda: finish(figure, "narrow"))
    write_latex(blocks, tmp_path / "report.tex")
    text = (tmp_path / "report.tex").read_text()
    assert r"\caption{\raggedright Solved, \% (jumps)}\label{tab:report-0-solved}" in text
    assert r"\caption{\raggedright It rises (jumps)}\label{fig:rise}" in text
    code = r"kvlab sweep a/\allowbreak{}b -{}-out \textquotesingle{}c\textquotesingle{}"
    assert f"{code}\n\n\\ \\ x\\_\\allowbreak{{}}y" in text
    assert b"/FontFile2" in (tmp_path / "rise.pdf").read_bytes(), "no type 3"
    assert axes.title.get_fontsize() == 8


def test_a_table_longer_than_a_page_has_parts_and_one_legend(tmp_path):
    rows = [(f"m{n}", "1 %") for n in range(2 * LINES + 1)]
    table = Table(("method", "solved"), rows, title="Memory", legend=["KiB: held"])
    write_latex([Heading("jumps"), table], tmp_path / "report.tex")
    text = (tmp_path / "report.tex").read_text()
    labels = re.findall(r"\\label\{tab:report-0-(\S+)\}", text)
    assert labels == ["memory", "memory-part-2", "memory-part-3"]
    assert (
        text.count("KiB: held.") == 1 and len(re.findall(r"^m\d+ & ", text, re.M)) == 2 * LINES + 1
    )


def test_a_drawing_in_a_file_has_ink_and_ground_of_its_own(picture, tmp_path):
    picture.save(tmp_path / "rise.svg")
    svg = (tmp_path / "rise.svg").read_text()
    assert "svg{color:#000;background:#fff}@media (prefers-color-scheme:dark){svg{color:" in svg
    assert "background" not in picture.svg, "on a page it has none"
    assert "a line" in svg
