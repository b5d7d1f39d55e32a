"""KV-cache compression in NumPy, to be read beside the papers.

What users and notebooks import is here. Read the files in this order:

1. what a block sees: `notation`, `attention`, `observation`
2. the four questions, and the step that asks them: `policy`, `step`, `selection`, `cache`
3. methods: `methods`, one file per method, of `method`, `windows` and `granularity`
4. codes: `precisions`, of `quantization`, `codes` and `stored_vectors`
5. runs: `streams`, and models with `transformer` and `generate`
6. what is checked and counted: `checks`, `invariants`, `accounting`, `measure`, `files`
7. what is built on it: `tasks`, `models`, `simulator`, `proofs`, `conformance`
"""

from kvlab.reference import methods
from kvlab.reference.cache import Column, LayerCache, State
from kvlab.reference.files import Divergence, load_tokenizer
from kvlab.reference.generate import Generation, Session, advance, generate, prefill
from kvlab.reference.invariants import check_promises
from kvlab.reference.method import Example, Method, Wrapper
from kvlab.reference.observation import Clock, Observation
from kvlab.reference.policy import (
    NO_ATTENTION,
    AfterPrefill,
    AfterPrefillThenEverySeen,
    Budget,
    Edges,
    Entries,
    EveryBlock,
    EveryDecode,
    EveryGenerated,
    Full,
    Needs,
    Never,
    Nobody,
    Policy,
    Precision,
    Protect,
    Schedule,
    Score,
    Unlimited,
)
from kvlab.reference.quantization import quantize
from kvlab.reference.selection import budget_entries
from kvlab.reference.simulator import workloads
from kvlab.reference.simulator.cost import Fleet, Plan, Runtime, fleet
from kvlab.reference.simulator.judge import Judgement, best_left, judge, skill
from kvlab.reference.simulator.observed import (
    activations,
    intervals,
    most_recurring,
    observe_heads,
    outliers_and_errors,
    quadrants,
)
from kvlab.reference.simulator.recorder import record_generation, record_replay
from kvlab.reference.simulator.replay import Fate, Layer, replay
from kvlab.reference.simulator.sizes import HARDWARE, SHAPES, Hardware, Shape
from kvlab.reference.simulator.trace import Metadata, Trace, load_trace, record_trace, save_trace
from kvlab.reference.step import step
from kvlab.reference.streams import Source, Stream, random_stream, run_stream
from kvlab.reference.transformer import Transformer

__all__ = [
    "HARDWARE",
    "NO_ATTENTION",
    "SHAPES",
    "AfterPrefill",
    "AfterPrefillThenEverySeen",
    "Budget",
    "Clock",
    "Column",
    "Divergence",
    "Edges",
    "Entries",
    "EveryBlock",
    "EveryDecode",
    "EveryGenerated",
    "Example",
    "Fate",
    "Fleet",
    "Full",
    "Generation",
    "Hardware",
    "Judgement",
    "Layer",
    "LayerCache",
    "Metadata",
    "Method",
    "Needs",
    "Never",
    "Nobody",
    "Observation",
    "Plan",
    "Policy",
    "Precision",
    "Protect",
    "Runtime",
    "Schedule",
    "Score",
    "Session",
    "Shape",
    "Source",
    "State",
    "Stream",
    "Trace",
    "Transformer",
    "Unlimited",
    "Wrapper",
    "activations",
    "advance",
    "best_left",
    "budget_entries",
    "check_promises",
    "fleet",
    "generate",
    "intervals",
    "judge",
    "load_tokenizer",
    "load_trace",
    "methods",
    "most_recurring",
    "observe_heads",
    "outliers_and_errors",
    "prefill",
    "quadrants",
    "quantize",
    "random_stream",
    "record_generation",
    "record_replay",
    "record_trace",
    "replay",
    "run_stream",
    "save_trace",
    "skill",
    "step",
    "workloads",
]
