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

from kvlab.reference import generate as generate
from kvlab.reference import methods as methods
from kvlab.reference import step as step
from kvlab.reference.cache import Column as Column
from kvlab.reference.cache import LayerCache as LayerCache
from kvlab.reference.cache import State as State
from kvlab.reference.files import Divergence as Divergence
from kvlab.reference.generate import Generation as Generation
from kvlab.reference.generate import Session as Session
from kvlab.reference.generate import advance as advance
from kvlab.reference.generate import prefill as prefill
from kvlab.reference.invariants import check_promises as check_promises
from kvlab.reference.method import Example as Example
from kvlab.reference.method import Method as Method
from kvlab.reference.method import Wrapper as Wrapper
from kvlab.reference.observation import NO_ATTENTION as NO_ATTENTION
from kvlab.reference.observation import Clock as Clock
from kvlab.reference.observation import Needs as Needs
from kvlab.reference.observation import Observation as Observation
from kvlab.reference.policy import AfterPrefill as AfterPrefill
from kvlab.reference.policy import AfterPrefillThenEveryDecode as AfterPrefillThenEveryDecode
from kvlab.reference.policy import AfterPrefillThenEverySeen as AfterPrefillThenEverySeen
from kvlab.reference.policy import Budget as Budget
from kvlab.reference.policy import Edges as Edges
from kvlab.reference.policy import Entries as Entries
from kvlab.reference.policy import EveryBlock as EveryBlock
from kvlab.reference.policy import EveryDecode as EveryDecode
from kvlab.reference.policy import EveryGenerated as EveryGenerated
from kvlab.reference.policy import EveryGeneratedBeyond as EveryGeneratedBeyond
from kvlab.reference.policy import EveryMultipleBeyond as EveryMultipleBeyond
from kvlab.reference.policy import EverySeenBeyond as EverySeenBeyond
from kvlab.reference.policy import Full as Full
from kvlab.reference.policy import Never as Never
from kvlab.reference.policy import Nobody as Nobody
from kvlab.reference.policy import Policy as Policy
from kvlab.reference.policy import Precision as Precision
from kvlab.reference.policy import Protect as Protect
from kvlab.reference.policy import Schedule as Schedule
from kvlab.reference.policy import Score as Score
from kvlab.reference.policy import Unlimited as Unlimited
from kvlab.reference.quantization import quantize as quantize
from kvlab.reference.selection import budget_entries as budget_entries
from kvlab.reference.simulator import workloads as workloads
from kvlab.reference.simulator.cost import Plan as Plan
from kvlab.reference.simulator.cost import Runtime as Runtime
from kvlab.reference.simulator.judge import Judgement as Judgement
from kvlab.reference.simulator.judge import best_left as best_left
from kvlab.reference.simulator.judge import judge as judge
from kvlab.reference.simulator.judge import skill as skill
from kvlab.reference.simulator.observed import activations as activations
from kvlab.reference.simulator.observed import intervals as intervals
from kvlab.reference.simulator.observed import observe_heads as observe_heads
from kvlab.reference.simulator.observed import quadrants as quadrants
from kvlab.reference.simulator.recorder import record_generation as record_generation
from kvlab.reference.simulator.recorder import record_replay as record_replay
from kvlab.reference.simulator.replay import Fate as Fate
from kvlab.reference.simulator.replay import Layer as Layer
from kvlab.reference.simulator.replay import replay as replay
from kvlab.reference.simulator.sizes import HARDWARE as HARDWARE
from kvlab.reference.simulator.sizes import SHAPES as SHAPES
from kvlab.reference.simulator.sizes import Hardware as Hardware
from kvlab.reference.simulator.sizes import Shape as Shape
from kvlab.reference.simulator.sizes import find_shape as find_shape
from kvlab.reference.simulator.trace import Metadata as Metadata
from kvlab.reference.simulator.trace import Trace as Trace
from kvlab.reference.simulator.trace import load_trace as load_trace
from kvlab.reference.simulator.trace import record_trace as record_trace
from kvlab.reference.simulator.trace import save_trace as save_trace
from kvlab.reference.streams import Source as Source
from kvlab.reference.streams import Stream as Stream
from kvlab.reference.streams import random_stream as random_stream
from kvlab.reference.streams import run_stream as run_stream
from kvlab.reference.transformer import Transformer as Transformer
from kvlab.reference.transformer import load_tokenizer as load_tokenizer
