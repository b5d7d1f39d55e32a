"""One table writer: rows and columns become the same cells in every form."""

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

import kvlab.fast
import kvlab.reference
from kvlab.fast.lab import terminal as printing
from kvlab.fast.lab.commands.generate import _shown
from kvlab.fast.lab.evaluate.statistics import Interval
from kvlab.fast.lab.latex import COLUMN, tabular, write_latex
from kvlab.fast.lab.reports import markdown
from kvlab.fast.lab.sweep import compare
from kvlab.fast.lab.tables import Bold, Column, Layout, Table, layout, percent, stored, tabulate

REFERENCE, FAST = (str(Path(each.__file__).parent) for each in (kvlab.reference, kvlab.fast))
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
    for table, name in (("needles", "found"), ("compare", "solved")):
        (column,) = (each for each in layout(table).columns if each.name == name)
        rows = tabulate([SimpleNamespace(interval=Interval(0.82, 0.61, 0.93))], [column]).rows
        assert (column.heading[-3:], rows) == (", %", [("82 (61–93)",)])
    assert [_shown(x) for x in (0.9998493790626526, 50.0, 1234567, None)] == [
        *("0.9998", "50", "1,234,567", "–")
    ]


def terminal(table, width=100):
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as shown:
        console.print(table.terminal())
    return shown.get()


def test_columns_say_what_a_cell_holds():
    assert tabulate(ROWS, COLUMNS).rows == [
        ("h2o", Bold("0.50"), "7 KiB"),
        ("tova", "–", "12 KiB"),
        ("raas", "–", "–"),
    ]
    dictionaries = [vars(row) for row in ROWS]
    columns = (Column("method"), Column("error", format=".2f"))
    assert tabulate(dictionaries, columns).rows == tabulate(ROWS, columns).rows


def test_a_missing_field_is_an_error_and_no_dash():
    with pytest.raises(AttributeError, match="speed"):
        tabulate(ROWS, [Column("speed")])
    with pytest.raises(KeyError, match="speed"):
        tabulate([{"method": "h2o"}], [Column("speed")])


def test_reasons_and_bold_cells_are_the_same_in_every_form(tmp_path, capsys):
    table, reason = tabulate(ROWS, COLUMNS), "raas: budget is < 90 & too small"
    write_latex([table], tmp_path / "report.tex")
    latex = (tmp_path / "report.tex").read_text()
    lines = [r"h2o & \textbf{0.50} & 7 KiB", "tova & – & 12 KiB", "raas & – & –"]
    assert "\n".join(rf"{line} \tabularnewline" for line in lines) in latex
    assert r"\par\smallskip\raggedright raas: budget is $<$ 90 \& too small." in latex
    *_, below = written = markdown(table).splitlines()
    assert written[2:-2] == [
        "| h2o | **0.50** | 7 KiB |",
        "| tova | – | 12 KiB |",
        "| raas | – | – |",
    ]
    assert below == reason.replace("&", "&amp;").replace("<", "&lt;") + "."
    assert "<strong>0.50</strong>" in table.html()
    printing.print_table(table)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[-5:] == ["h2o 0.50 7 KiB", "tova – 12 KiB", "raas – –", "", reason]
    with printing.RowPrinter(Layout(COLUMNS)) as tell:
        for row in ROWS:
            tell(row)
    assert capsys.readouterr().out.splitlines()[-1].split(None, 1) == ["raas", ROWS[-1].refusal]


def test_a_legend_says_what_stands_in_the_table(capsys):
    marked = Column("budget", marks=("exceeded", "unknown"), means=("of entries",))
    best = Column("share", marks=("best",), bold="best")
    rows = [{"budget": "7 †", "share": 1, "best": wins} for wins in (False, True)]
    of_entries, exceeded, bold = tabulate(rows, [marked, best]).legend
    assert of_entries == "of entries" and exceeded.startswith("†: held more")
    assert bold.startswith("Bold: ") and len(tabulate(rows[:1], [marked, best]).legend) == 2
    for name in stored()["tables"]:
        for column in layout(name).columns:
            assert column.heading and stored()["marks"].keys() >= {*column.marks}
    printing.print_table(Table(("a",), [], legend=["nothing to see"]))
    assert capsys.readouterr().out == "nothing to see\n", "no heading without rows"


def test_in_latex_a_wide_table_has_intervals_below_and_long_words_in_lines():
    """Five columns of 18 letters are wider than 235 points; three of them are not."""
    cell, name = "95.0 (90.0–99.0) †", "lazy_eviction@window=16,threshold=0.01"
    narrow, small = tabular(Table(("method", "a", "b"), [("h2o", cell, cell)]))
    assert r"h2o & 95.0 (90.0–99.0) $\dagger$ & " in narrow and small < COLUMN
    wide, points = tabular(Table(("method", *("no budget",) * 4), [(name, *[cell] * 4)]))
    assert r"{@{}r@{}}95.0 $\dagger$ \\ {\scriptsize (90.0–99.0)}\end{tabular} & " in wide
    assert r"{@{}r@{}}no \\ budget\end{tabular}" in wide
    assert r"\begin{tabular}{p{108pt}rrrr}" in wide
    assert r"\raggedright lazy\_\allowbreak{}eviction@\allowbreak{}window=" in wide
    assert points > COLUMN, "so the page's width is asked for"


def test_text_is_shown_as_it_is_and_control_characters_are_not_obeyed():
    cell = f"{HOSTILE}\x1b[2J"
    table = Table(("name", cell), [(cell, cell)], title=cell)
    forms = (terminal(table, 200), markdown(table), table.html(), tabular(table)[0], str(table))
    assert not any("\x1b" in form for form in forms)
    assert all("<script>" not in form for form in forms[1:4])
    assert forms[0].count(rf"{HOSTILE}\x1b[2J") == 4, "title, heading and both cells"


def test_words_are_on_the_left_and_figures_on_the_right():
    head, _, *rows = str(Table(("name", "value"), [("a", "1"), ("bcdef", "10")])).splitlines()
    assert [head, *rows] == ["name      value", "a             1", "bcdef        10"]


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
    with printing.progress_bar(transient=True):
        printing.print_line("a row")
        assert capsys.readouterr().out == "a row\n"


@pytest.mark.slow
def test_a_comparison_takes_few_calls(printed, monkeypatch):
    """Of kvlab's own functions in the parent, for one problem; its processes are not counted."""
    calls = Counter()

    def count(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith((REFERENCE, FAST)):
            calls[frame.f_code.co_qualname] += 1

    def uncounted(jobs, workers):
        sys.setprofile(None)
        done = [*compare.in_this_process(jobs)]
        sys.setprofile(count)
        yield from done

    monkeypatch.setattr(compare, "in_processes", uncounted)
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        shown = printed(
            *["compare", "--methods", "h2o", "--problems", "1", "--backend=reference", "--table"]
        )
    finally:
        sys.setprofile(before)
    assert shown.count("\nh2o ") == 2 and 500 < calls.total() <= 2500, calls.most_common(20)
