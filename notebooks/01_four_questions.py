# %% [markdown]
# # 01 Four questions
#
# **Question:** there are dozens of methods to shrink a KV cache. What do they have in common, and
# how does one find out which part of a method does the work?
#
# Every method in kvlab answers four questions, and nothing else:
#
# | question | the answer is called |
# |---|---|
# | What is an entry worth? | `score`, and a `budget` that says how many may stay |
# | When do we look? | `schedule` |
# | Who is safe? | `protect` |
# | How precisely is it kept? | `precision` |
#
# An *entry* is one cached key with its value.

# %%
import sys

sys.path += ["docs", "../docs"]  # `study` draws and tabulates; it is no part of the package

from kvlab.reference import methods
from study import replays

specs = ("streaming_llm", "h2o", "tova", "snapkv", "lazy_eviction", "ahakv", "caote:h2o")
policies = [methods.get(spec, 120) for spec in specs]
replays.answers([*policies, methods.get("kivi"), methods.get("desirekv")])

# %% [markdown]
# Read down a column: H2O and TOVA differ in one answer, what an entry is worth. `caote:h2o` is H2O
# with its score wrapped in another. KIVI keeps everything and answers only the last question.
#
# ## One method, read
#
# H2O adds up the attention that every entry has received and keeps the heaviest; the newest half
# of the budget is safe. These are its answers with their parameters.

# %%
h2o = methods.get("h2o", 120)
for question in ("score", "schedule", "protect", "budget", "precision"):
    print(f"{question:10} {getattr(h2o, question)}")

# %% [markdown]
# ## Run it
#
# The embedded model runs a short program: registers are added, and each result says which line
# comes next. The model does so with the full cache and with half of the cache. A program is solved
# if every written step is right.

# %%
from kvlab.reference import Transformer, budget_entries, generate, load_tokenizer
from kvlab.reference.models import embedded_directory
from kvlab.reference.tasks import jumps

directory = embedded_directory("jumps")
model, tokenizer = Transformer.from_directory(directory), load_tokenizer(directory)
problem = jumps.held_out(1, size=jumps.SIZES[250])[0]
prompt = tokenizer.encode(problem.prompt).ids
stop = tokenizer.encode(jumps.END).ids[0]
budget = budget_entries("50%", problem.tokens)

for spec in ("full", "streaming_llm", "h2o", "caote:h2o"):
    policy = methods.get(spec, None if spec == "full" else budget)
    written = generate(model, policy, prompt, 192, stop=stop)
    text = tokenizer.decode(list(written.tokens), skip_special_tokens=False)
    grade = jumps.grade(problem, text)
    entries = len(written.session.caches[0])
    print(f"{spec:14} {entries:4} entries, {grade.correct_steps:2} steps right: {text[:66]} …")

# %% [markdown]
# ## Watch it forget
#
# A *trace* holds what every layer was handed while the model wrote with the full cache. Replaying
# it asks any policy what it would have kept, without running the model again. Each line below is
# one entry, from the token at which it was born to the token after which it was dropped; the red
# line is the end of the prompt.

# %%
from kvlab.reference import record_trace, replay

trace = record_trace(model, prompt, 192, stop, name="jumps")
shown = ("streaming_llm", "h2o", "tova", "lazy_eviction@window=16,threshold=0.01", "caote:h2o")
layers = list(replay(trace, [methods.get(spec, budget) for spec in shown]))
fates = dict(zip(shown, layers[2], strict=True))
replays.lifetimes({name: fate.left[0] for name, fate in fates.items()}, trace.prompt)

# %% [markdown]
# StreamingLLM keeps the first and the last entries, a sliding band. H2O drops from the middle: the
# newest half of the budget is safe, and the oldest entries had more time to collect attention
# (notebook 03 asks how bad that is). TOVA looks at the current token alone and protects nobody.
# LazyEviction looks only every 16 tokens, so entries leave in groups. The text below shows what one
# KV head still holds at the last token, and a dot for what has left:

# %%
tokens = [tokenizer.id_to_token(int(token)).replace("\n", "⏎") for token in trace.tokens]
last = len(tokens) - 1
for name in shown[:3]:
    present = fates[name].present(last)[0]
    words = [token if kept else "·" for token, kept in zip(tokens, present, strict=True)]
    print(f"{name}:", *words)

# %% [markdown]
# ## Change one answer
#
# An ablation is the same composition with one answer replaced. The table has H2O that looks every
# 16 tokens instead of after each, on 4 programs at 70 %, beside H2O, CAOTE around it, LazyEviction,
# and eviction at random, the control:

# %%
from kvlab.fast.lab.sweep.compare import compare
from kvlab.fast.lab.sweep.plan import Sweep
from study import stored

specs = ("random", "h2o", "h2o@every=16", "caote:h2o", shown[3])
short = "jumps@fewest=18,most=22"
comparison = compare(
    Sweep(
        specs,
        ("70%",),
        problems=4,
        tasks=(short,),
        backend="reference",
        measured=1,
        to_first_error=True,
    )
)
stored.results(comparison.summary)

# %% [markdown]
# The intervals are wide, as they must be with 4 problems: what differs by 25 points here may not
# differ at all. `kvlab compare --problems 200` makes them seven times narrower.
# The page *Study* has such results.
#
# The papers' own ablations have names:

# %%
from kvlab.fast.lab.tables import Table

Table(("name", "is"), list(methods.variants().items()), words=2)

# %% [markdown]
# ## Exercises
#
# **1.** Write `spec`, in registry syntax: H2O that looks only every 16 generated tokens, and whose
# 8 newest entries are safe.

# %% tags=["solution"] jupyter={"source_hidden": true}
spec = "h2o@every=16,recent=8"

# %% tags=["check"]
from kvlab.reference import Edges, EveryBlock

policy = methods.get(spec, 120)
assert policy.schedule == EveryBlock(16)
assert policy.protect == Edges(recent=8)
assert type(policy.score) is type(h2o.score)

# %% [markdown]
# **2.** TOVA protects nobody, so it may drop the first tokens of the text, on which many models put
# much attention without reading them (*attention sinks*). Compose `tova_with_sinks`: TOVA with a
# budget of 120 whose first 4 tokens are safe. `dataclasses.replace` replaces an answer.

# %% tags=["solution"] jupyter={"source_hidden": true}
from dataclasses import replace

tova_with_sinks = replace(methods.get("tova", 120), protect=Edges(sinks=4))

# %% tags=["check"]
(sunk,) = [fate for (fate,) in list(replay(trace, [tova_with_sinks]))[:1]]
assert sunk.present(last)[:, :4].all()
assert type(tova_with_sinks.score) is type(methods.get("tova", 120).score)
assert sunk.entries[-1] == 120

# %% [markdown]
# **3.** LazyEviction's Table 3 asks whether the waiting alone would do: H2O's score under
# LazyEviction's schedule and protection. Compose `h2o_that_waits` with a budget of 120 from the two
# policies, with LazyEviction's window of 16.

# %% tags=["solution"] jupyter={"source_hidden": true}
lazy = methods.get("lazy_eviction@window=16", 120)
h2o_that_waits = replace(h2o, schedule=lazy.schedule, protect=lazy.protect)

# %% tags=["check"]
expected = methods.get("lazy_eviction@window=16", 120)
assert h2o_that_waits.score == h2o.score and h2o_that_waits.precision == h2o.precision
assert h2o_that_waits.schedule == expected.schedule
assert h2o_that_waits.protect == expected.protect
