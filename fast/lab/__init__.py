"""The lab beside the engine: everything that runs, compares, draws or prints.

Scripts and notebooks import from here. A name is looked up when it is first used, so that whatever
needs the reference alone works where PyTorch is not installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvlab.fast.lab.evaluate.compare import Comparison as Comparison
    from kvlab.fast.lab.evaluate.compare import compare as compare
    from kvlab.fast.lab.evaluate.contrasts import judge as judge
    from kvlab.fast.lab.evaluate.contrasts import stored_summary as stored_summary
    from kvlab.fast.lab.evaluate.likelihood import Likelihood as Likelihood
    from kvlab.fast.lab.evaluate.likelihood import Reading as Reading
    from kvlab.fast.lab.evaluate.likelihood import likelihoods as likelihoods
    from kvlab.fast.lab.evaluate.needle import problem_haystacks as problem_haystacks
    from kvlab.fast.lab.evaluate.needle import search_needles as search_needles
    from kvlab.fast.lab.evaluate.needle import text_haystacks as text_haystacks
    from kvlab.fast.lab.evaluate.perplexity import cut_windows as cut_windows
    from kvlab.fast.lab.evaluate.perplexity import measure_perplexity as measure_perplexity
    from kvlab.fast.lab.evaluate.perplexity import problem_passages as problem_passages
    from kvlab.fast.lab.evaluate.statistics import wilson as wilson
    from kvlab.fast.lab.generation import Written as Written
    from kvlab.fast.lab.generation import generate as generate
    from kvlab.fast.lab.harness.model import CompressedLM as CompressedLM
    from kvlab.fast.lab.harness.run import Settings as Settings
    from kvlab.fast.lab.harness.run import evaluate_tasks as evaluate_tasks
    from kvlab.fast.lab.planning import Planned as Planned
    from kvlab.fast.lab.planning import Serving as Serving
    from kvlab.fast.lab.planning import plan_methods as plan_methods
    from kvlab.fast.lab.recording import record_generation as record_generation
    from kvlab.fast.lab.simulation import Simulation as Simulation
    from kvlab.fast.lab.simulation import simulate as simulate
    from kvlab.fast.lab.sweep.configuration import Sweep as Sweep
    from kvlab.fast.lab.sweep.configuration import read_sweep as read_sweep
    from kvlab.fast.lab.sweep.jobs import make_plan as make_plan
    from kvlab.fast.lab.sweep.report import write_report as write_report
    from kvlab.fast.lab.sweep.run import choose_engine as choose_engine
    from kvlab.fast.lab.sweep.run import read_stored as read_stored
    from kvlab.fast.lab.sweep.run import run_sweep as run_sweep
    from kvlab.fast.lab.sweep.summary import summarise as summarise
    from kvlab.fast.lab.viewer import write_viewer as write_viewer
    from kvlab.fast.lab.viewing import Viewed as Viewed
    from kvlab.fast.lab.viewing import needle_source as needle_source
    from kvlab.fast.lab.viewing import problem_source as problem_source
    from kvlab.fast.lab.viewing import record_methods as record_methods
    from kvlab.fast.lab.viewing import text_source as text_source
    from kvlab.fast.lab.viewing import trace_source as trace_source

MODULES = {
    "evaluate.compare": ("Comparison", "compare"),
    "evaluate.contrasts": ("judge", "stored_summary"),
    "evaluate.likelihood": ("Likelihood", "Reading", "likelihoods"),
    "evaluate.needle": ("problem_haystacks", "search_needles", "text_haystacks"),
    "evaluate.perplexity": ("cut_windows", "measure_perplexity", "problem_passages"),
    "evaluate.statistics": ("wilson",),
    "generation": ("Written", "generate"),
    "harness.model": ("CompressedLM",),
    "harness.run": ("Settings", "evaluate_tasks"),
    "planning": ("Planned", "Serving", "plan_methods"),
    "recording": ("record_generation",),
    "simulation": ("Simulation", "simulate"),
    "sweep.configuration": ("Sweep", "read_sweep"),
    "sweep.jobs": ("make_plan",),
    "sweep.report": ("write_report",),
    "sweep.run": ("choose_engine", "read_stored", "run_sweep"),
    "sweep.summary": ("summarise",),
    "viewer": ("write_viewer",),
    "viewing": (
        "Viewed",
        "needle_source",
        "problem_source",
        "record_methods",
        "text_source",
        "trace_source",
    ),
}
"""Where each name is defined."""


def __getattr__(name: str) -> Any:
    for module, names in MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
