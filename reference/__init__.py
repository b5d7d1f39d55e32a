"""KV-cache compression in NumPy, to be read beside the papers.

What users and notebooks import is here. Read the files in this order:

0. everything in one file of 400 lines: `nano`
1. what a block sees: `notation`, `attention`, `observation`
2. the four questions, and the step that asks them: `policy`, `step`, `selection`, `cache`
3. methods: `methods`, one file per method, of `method`, `windows` and `granularity`; `outside`
4. codes: `precisions`, of `quantization`, `codes` and `stored_vectors`
5. runs: `streams`, and models with `transformer` and `generate`
6. helpers: `checks`, `invariants`, `measure`, `files`, `processes`, `generators`, `slots`
7. what is built on it: `tasks`, `models`, `simulator`, `proofs`, `conformance`
"""

from kvlab.reference import generate as generate, methods as methods, step as step
from kvlab.reference.cache import Column as Column, LayerCache as LayerCache, State as State
from kvlab.reference.files import Divergence as Divergence
from kvlab.reference.generate import (
    Generation as Generation,
    Session as Session,
    advance as advance,
    prefill as prefill,
)
from kvlab.reference.invariants import check_promises as check_promises
from kvlab.reference.method import Example as Example, Method as Method, Wrapper as Wrapper
from kvlab.reference.observation import (
    NO_ATTENTION as NO_ATTENTION,
    Clock as Clock,
    Needs as Needs,
    Observation as Observation,
)
from kvlab.reference.policy import (
    AfterPrefill as AfterPrefill,
    AfterPrefillThenEveryDecode as AfterPrefillThenEveryDecode,
    AfterPrefillThenEverySeen as AfterPrefillThenEverySeen,
    Budget as Budget,
    Edges as Edges,
    Entries as Entries,
    EveryBlock as EveryBlock,
    EveryDecode as EveryDecode,
    EveryGenerated as EveryGenerated,
    EveryGeneratedBeyond as EveryGeneratedBeyond,
    EveryMultipleBeyond as EveryMultipleBeyond,
    EverySeenBeyond as EverySeenBeyond,
    Full as Full,
    Never as Never,
    Nobody as Nobody,
    Policy as Policy,
    Precision as Precision,
    Protect as Protect,
    Schedule as Schedule,
    Score as Score,
    Unlimited as Unlimited,
)
from kvlab.reference.quantization import quantize as quantize
from kvlab.reference.selection import budget_entries as budget_entries
from kvlab.reference.simulator import workloads as workloads
from kvlab.reference.simulator.cost import Plan as Plan, Runtime as Runtime
from kvlab.reference.simulator.judge import (
    Judgement as Judgement,
    best_left as best_left,
    judge as judge,
    skill as skill,
)
from kvlab.reference.simulator.observed import (
    activations as activations,
    intervals as intervals,
    observe_heads as observe_heads,
    quadrants as quadrants,
)
from kvlab.reference.simulator.recorder import (
    record_generation as record_generation,
    record_replay as record_replay,
)
from kvlab.reference.simulator.replay import Fate as Fate, Layer as Layer, replay as replay
from kvlab.reference.simulator.sizes import (
    HARDWARE as HARDWARE,
    SHAPES as SHAPES,
    Hardware as Hardware,
    Shape as Shape,
    find_shape as find_shape,
)
from kvlab.reference.simulator.trace import (
    Metadata as Metadata,
    Trace as Trace,
    load_trace as load_trace,
    record_trace as record_trace,
    save_trace as save_trace,
)
from kvlab.reference.streams import (
    Source as Source,
    Stream as Stream,
    random_stream as random_stream,
    run_stream as run_stream,
)
from kvlab.reference.transformer import Transformer as Transformer, load_tokenizer as load_tokenizer
