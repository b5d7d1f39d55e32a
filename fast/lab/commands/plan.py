"""``kvlab plan``: memory and time, from the cost model. Needs the reference alone."""

from dataclasses import asdict

from kvlab.fast.lab import planning
from kvlab.fast.lab.commands.options import read_methods
from kvlab.fast.lab.points import check_points
from kvlab.fast.lab.tables import layout
from kvlab.fast.lab.terminal import RowPrinter, finish, progress_bar
from kvlab.reference.checks import check_at_least, check_choice
from kvlab.reference.simulator.cost import Runtime
from kvlab.reference.simulator.sizes import HARDWARE, find_shape


def plan(
    model: str = "llama-3.1-8b",
    gpu: str = "h200",
    methods: str = "full streaming_llm h2o tova caote:h2o lazy_eviction kivi desirekv",
    budget: str = "25%",
    prompt: int = 512,
    length: int = 16384,
    batch: int | None = None,
    host: float = 0.0,
    block_size: int | None = None,
    json: bool = False,
) -> None:
    """Plan memory and time of a model under methods; nothing is run."""
    check_at_least(0, host=host)
    check_choice(HARDWARE, gpu=gpu.lower())
    shape, runtime = find_shape(model), Runtime(host=host * 1e-6)
    sizes = prompt, length, batch, block_size
    serving = planning.Serving(shape, HARDWARE[gpu.lower()], *sizes, runtime)
    specs = read_methods(methods)
    check_points(specs, [budget], prompt + length)
    printing = RowPrinter(layout("plan"), planning.title(serving), not json)
    with progress_bar(transient=True) as progress, printing as tell:
        found = planning.plan_methods(serving, specs, budget, progress, tell)
    data = {
        "asked": asdict(serving),
        "pays": found.pays,
        "methods": [asdict(row) for row in found.rows],
    }
    finish(data, found.rows, json, tell.legend, found.pays)
