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
    pictures = [
        f'<div class="kvlab-task" data-task="{task}">\n{shown(board.draw(task))}\n</div>'
        for task in board.tasks()
    ]
    return "\n\n".join([form(), *pictures, board.table(), SCRIPT])


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
  const parts = document.querySelectorAll("#kvlab-board tbody tr, .kvlab-task");
  const filter = () => {
    const { task, budget, bytes } = Object.fromEntries(new FormData(form));
    for (const { dataset, style } of parts) {
      const fits = [undefined, "own rule", budget].includes(dataset.budget) || !budget;
      style.display = fits && (!task || task === dataset.task)
        && !(Number(dataset.bytes) > Number(bytes || 100)) ? "" : "none";
    }
  };
  form.hidden = false;
  form.elements.task.selectedIndex = 1;
  form.elements.budget.value = "30%";
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  filter();
})();
</script>"""
