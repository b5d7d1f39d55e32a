"""One table writer: rows and columns become the same cells in every form."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from rich.console import Console

from kvlab.fast.lab import terminal as printing
from kvlab.fast.lab.commands import texts
from kvlab.fast.lab.commands.generate import _shown
from kvlab.fast.lab.evaluate.statistics import Interval
from kvlab.fast.lab.latex import COLUMN, tabular
from kvlab.fast.lab.sweep.compare import COLUMNS as COMPARED
from kvlab.fast.lab.tables import Bold, Column, Table, percent, tabulate, text_of

HOSTILE = "[red]<script>alert('x')</script>"


@dataclass
class Row:
    method: str
    error: float | None = None
    size: int | None = None
    best: bool = False
    refusal: str | None = None


COLUMNS = (
    Column("method"),
    Column("error", format=".2f", bold=lambda row: row.best),
    Column("held", lambda row: row.size, lambda size: f"{size} KiB"),
)
ROWS = (
    Row("h2o", 0.5, 7, best=True),
    Row("tova", None, 12),
    Row("raas", refusal="budget is < 90 & too small"),
)


def test_shares_are_in_percent_and_numbers_have_few_digits():
    """`needle` says 82 where `compare` says 82."""
    found, solved = texts.FOUND, next(x for x in COMPARED if x.heading.startswith("solved"))
    share = Interval(0.82, 0.61, 0.93)
    for column in (found, solved):
        rows = tabulate([SimpleNamespace(interval=share, refusal=None)], [column]).rows
        assert (column.heading[-3:], text_of(rows[0][0])) == (", %", "82 (61–93)")
    assert [_shown(x) for x in (0.9998493790626526, 50.0, 1234567, None)] == [
        *("0.9998", "50", "1,234,567", "–")
    ]


def terminal(table, width=100, title=""):
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as shown:
        console.print(table.terminal(title))
    return shown.get()


def test_columns_say_what_a_cell_holds():
    assert tabulate(ROWS, COLUMNS).rows == [
        ("h2o", Bold("0.50"), "7 KiB"),
        ("tova", "–", "12 KiB"),
        ("raas", "budget is < 90 & too small"),
    ]
    dictionaries = [vars(row) for row in ROWS]
    columns = (Column("method"), Column("error", format=".2f"))
    assert tabulate(dictionaries, columns).rows == tabulate(ROWS, columns).rows


def test_a_missing_field_is_an_error_and_no_dash():
    with pytest.raises(AttributeError, match="speed"):
        tabulate(ROWS, [Column("speed")])
    with pytest.raises(KeyError, match="speed"):
        tabulate([{"method": "h2o"}], [Column("speed")])


def test_reasons_and_bold_cells_are_the_same_in_every_form():
    table, reason = tabulate(ROWS, COLUMNS), "budget is < 90 & too small"
    escaped = reason.replace("&", "&amp;").replace("<", "&lt;")
    lines = [" ".join(line.split()) for line in terminal(table).splitlines()]
    assert "h2o 0.50 7 KiB" in lines and "raas – –" in lines and reason in lines
    assert f">{escaped}</td>" in table.html() and "<strong>0.50</strong>" in table.html()
    assert table.markdown().splitlines()[2:] == [
        "| h2o | **0.50** | 7 KiB |",
        "| tova | – | 12 KiB |",
        f"| raas | {escaped} |  |",
    ]
    assert tabular(table)[0].splitlines()[4:7] == [
        r"h2o & \textbf{0.50} & 7 KiB \\",
        r"tova & – & 12 KiB \\",
        r"raas & \multicolumn{2}{p{53pt}}{\raggedright budget is $<$ 90 \& too small} \\",
    ]


def test_in_latex_a_wide_table_has_intervals_below_and_long_words_in_lines():
    """Five columns of 18 letters are wider than 235 points; three of them are not."""
    cell, name = "95.0 (90.0–99.0) †", "lazy_eviction@window=16,threshold=0.01"
    narrow, small = tabular(Table(("method", "a", "b"), [("h2o", cell, cell)]))
    assert r"h2o & 95.0 (90.0–99.0) $\dagger$ & " in narrow and small < COLUMN
    wide, points = tabular(Table(("method", *("no budget",) * 4), [(name, *[cell] * 4)]))
    assert r"\scriptsize (90.0–99.0)" in wide and r" & 95.0 $\dagger$ & " in wide
    assert r"\shortstack[r]{no\\budget}" in wide and r"\begin{tabular}{p{108pt}rrrr}" in wide
    assert r"\raggedright lazy\_\allowbreak{}eviction@\allowbreak{}window=" in wide
    assert points > COLUMN, "so the page's width is asked for"


def test_text_is_shown_as_it_is():
    table = Table(("name", HOSTILE), [(HOSTILE, HOSTILE)])
    assert "<script>" not in table.html() and "<script>" not in table.markdown()
    shown = terminal(table, width=200, title=HOSTILE)
    assert shown.count(HOSTILE) == 4, "title, heading and both cells"


def test_words_are_on_the_left_and_figures_on_the_right():
    head, _, *rows = str(Table(("name", "value"), [("a", "1"), ("bcdef", "10")])).splitlines()
    assert [head, *rows] == ["name   value", "a          1", "bcdef     10"]


def test_a_narrow_terminal_breaks_words_and_no_figures():
    name = "lazy_eviction@window=16,threshold=0.01"
    shown = terminal(Table(("method", "error"), [(name, "0.123456789")]), width=34)
    assert "0.123456789" in shown and name not in shown


def test_uneven_rows_are_refused():
    for row in (("1",), ("1", "2", "3")):
        with pytest.raises(ValueError, match="must have 2 cells"):
            Table(("a", "b"), [row])


def test_shares_are_written_in_percent():
    assert (percent(0.256), percent(0.256, 1)) == ("26 %", "25.6 %")
    assert (percent(0.2, sign="+"), percent(None)) == ("+20 %", "–")


def test_rows_go_into_a_pipe_while_a_bar_is_on_the_terminal(monkeypatch, capsys):
    monkeypatch.setattr(printing, "errors", Console(stderr=True, force_terminal=True))
    with printing.reporting(transient=True):
        printing.print_line("a row")
        assert capsys.readouterr().out == "a row\n"
