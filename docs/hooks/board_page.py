"""The board: its picture, its filter and its table, made of the files of its rows."""

from typing import Any

from benchmark_page import shown
from marks import replaced
from mkdocs.structure.pages import Page

from study import board

MARK = "<!-- board -->"


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Put the board into its page.

    Raises:
        PluginError: if the mark is missing.
    """
    if page.file.src_uri != "board.md":
        return markdown
    return replaced(markdown, page, {MARK: written})


def written() -> str:
    """Write the pictures of all tasks, the filter and the table."""
    pictures = [shown(board.draw(task)) for task in board.tasks()]
    return "\n\n".join([*pictures, form(), board.table(), SCRIPT])


def form() -> str:
    """Write the filter, which a script shows."""
    budgets = dict.fromkeys(each.budget for row in board.rows() for each in row.figures)
    chosen = {"task": board.tasks(), "budget": list(budgets)}
    fields = "".join(
        f'<label>{name} <select name="{name}"><option value="">all</option>'
        + "".join(f"<option>{each}</option>" for each in values)
        + "</select></label> "
        for name, values in chosen.items()
    )
    most = '<input name="bytes" type="number" min="1" max="100" value="100">'
    limit = f"<label>at most {most} % of the bytes</label>"
    return f'<form id="kvlab-filter" hidden>{fields}{limit}</form>'


SCRIPT = """<script>
(() => {
  const form = document.getElementById("kvlab-filter");
  const lines = document.querySelectorAll("#kvlab-board tbody tr");
  form.hidden = false;
  form.addEventListener("input", () => {
    const { task, budget, bytes } = Object.fromEntries(new FormData(form));
    for (const { dataset, style } of lines) {
      const fits = (!task || task === dataset.task) && (!budget || budget === dataset.budget)
        && !(Number(dataset.bytes) > Number(bytes || 100));
      style.display = fits ? "" : "none";
    }
  });
  form.addEventListener("submit", (event) => event.preventDefault());
})();
</script>"""
