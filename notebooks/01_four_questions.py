# ---
# jupyter:
#   read: 2026-11-26 7bcd7765
# ---

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
# | What is an entry worth? | `score`; how many are kept: `budget` |
# | When does it evict? | `schedule` |
# | Which entries are protected? | `protect` |
# | How precisely is it kept? | `precision` |
#
# An *entry* is one cached key with its value. The table has the answers of nine methods. In a
# column, answers of one kind share a colour. **Predict first:** which question do methods answer
# most differently?

# %%
from classroom import Exercises, model, problem, prompt, stop, tokenizer, until_mistake
from kvlab.reference import methods
from study import replays

attempt = Exercises("01_four_questions", globals())
specs = ("streaming_llm", "h2o", "tova", "snapkv", "lazy_eviction", "ahakv", "caote:h2o")
policies = [methods.get(spec, 120) for spec in specs]
replays.answers([*policies, methods.get("kivi"), methods.get("desirekv")])

# %% [markdown]
# They differ most in the score. *Every block*: after each pass of the model, over the prompt or
# over one token. *Edges*: the first entries (*sinks*) and the newest (*recent*).
#
# H2O adds up the attention that every entry has received, and keeps the entries with the largest
# sums. It protects the newest half of the budget. `caote:h2o` is CAOTE applied to H2O's scores, and
# differs from H2O in the score alone. KIVI has no limit to its entries, so only its last answer
# matters. `methods.get("h2o", 120)` returns a `Policy`, whose fields have the columns' names.
#
# ## Run it
#
# The embedded model runs a short program: registers are added, and each result says which line
# comes next. A program is solved if every written step is right. **Predict first:** which of the
# three methods still solves it with half of the entries?

# %%
from kvlab.reference import budget_entries
from kvlab.reference.generate import generate
from kvlab.reference.tasks import jumps

budget, mistaken = budget_entries("50%", problem.tokens), {}
for spec in ("full", "streaming_llm", "h2o", "caote:h2o"):
    policy = methods.get(spec, None if spec == "full" else budget)
    written = generate(model, policy, prompt, 192, stop=stop)
    text = tokenizer.decode(list(written.tokens), skip_special_tokens=False)
    steps, until = jumps.grade(problem, text).correct_steps, until_mistake(written.tokens)
    mistaken[spec] = len(prompt) + len(until) - 1
    read = jumps.read_tokens([tokenizer.id_to_token(int(token)) for token in (*prompt, *until)])
    end = "".join(read[-12:]).replace("\n", "; ").strip()
    print(f"{spec:14} {len(written.session.caches[0])} entries, {steps:2} steps right: … {end}")

# %% [markdown]
# Only `caote:h2o` solves it. (The last token is written and not read, so `full` holds 261 of 262.)
# H2O wrote `b` after `L4`, where line L4 has `c`. StreamingLLM wrote `c` where line L6 has `b`.
#
# ## Watch it evict
#
# A *trace* holds what every layer computed while the model wrote with the full cache. A replay
# finds what a method would have kept of it, without running the model again. Each line below is one
# entry of a KV head of layer 2, from the token that made it to the token after which it was
# evicted. The red line is the end of the prompt. **Predict first:** which part of the prompt does
# H2O evict?

# %%
from kvlab.reference import record_trace, replay

trace = record_trace(model, prompt, 192, stop, name="jumps")
shown = ("streaming_llm", "h2o", "tova", "lazy_eviction@window=16,threshold=0.01", "caote:h2o")
layers = list(replay(trace, [methods.get(spec, budget) for spec in shown]))
fates = dict(zip(shown, layers[2], strict=True))
replays.lifetimes({name: fate.left[0] for name, fate in fates.items()}, trace.prompt)

# %% [markdown]
# H2O evicts from the middle, because the newest half of the budget is protected and the oldest
# entries had more time to collect attention (notebook 03). TOVA reads the attention of the current
# token alone and protects no entry. LazyEviction decides only every 16 tokens. The text below shows
# what one KV head of layer 1 held of the prompt when the first wrong token was written, with a dot
# for each evicted entry. **Predict first:** which entry did H2O miss, and why had it been evicted?

# %%
import re

texts = jumps.read_tokens([tokenizer.id_to_token(int(token)) for token in trace.tokens])
for name in ("h2o", "streaming_llm"):
    held = layers[1][shown.index(name)].present(mistaken[name] - 1)[1][: mistaken[name]]
    print(name, "keeps")
    kept = (texts[n] if held[n] else re.sub(r"\S.*", "·", texts[n]) for n in range(trace.prompt))
    print("".join(kept))

# %% [markdown]
# H2O had evicted the `c` of line L4 twelve tokens before that line ran for the first time, because
# hardly any token had attended to it yet. StreamingLLM had evicted the `b` of line L6, which is
# needed later, so it gets further. `caote:h2o` held both. One program is no ranking: of 300 longer
# ones, H2O solves 82 % with half of the entries, and StreamingLLM none.
#
# ## Change one answer
#
# An ablation replaces one answer. The table has five methods on 4 programs with 70 % of the
# entries: the control `random:h2o` (random eviction with H2O's protection), H2O, H2O that decides
# every 16 tokens, CAOTE applied to H2O's scores, and LazyEviction, which replaces three answers.
# `error` is the mean distance of the attention output from full attention, `KL` says how far the
# distribution of the next token moves, `bits` is the memory per number of the full cache. †: more
# entries than the budget between two decisions. **Predict first:** how many of the programs does
# random eviction with H2O's protection solve?

# %%
from classroom import try_methods

specs = ("random:h2o", "h2o", "h2o@every=16", "caote:h2o", shown[3])
try_methods(specs, ["70%"])

# %% [markdown]
# Random eviction solves none, so H2O's protection alone is not enough. The brackets hold 95 %
# intervals, which are wide, because 4 programs are few. With `kvlab compare --problems 200` they
# are seven times narrower.
#
# **In three lines.** A method answers four questions. Replacing one answer shows what it is worth.
# A score is worth something if it beats random eviction with the same protection.
#
# ## Exercises
#
# **1.** Write `spec`, in registry syntax: H2O that decides every 16 generated tokens, and whose 8
# newest entries are protected (no blanks).

# %% tags=["exercise"]
spec = ...
attempt(1)

# %% [markdown]
# **2.** TOVA protects no entry, so it may evict the first tokens of the text, on which many models
# put much attention without reading them (*attention sinks*). Compose `tova_with_sinks`: TOVA with
# a budget of 120 whose first 4 tokens are protected.

# %% tags=["exercise"]
from dataclasses import replace

from kvlab.reference import Edges

tova_with_sinks = ...
attempt(2)

# %% [markdown]
# **3.** LazyEviction's Table 3 asks whether the waiting alone would do: H2O's score under
# LazyEviction's schedule and protection. Compose `h2o_that_waits` with a budget of 120 from the two
# policies, with LazyEviction's window of 16.

# %% tags=["exercise"]
h2o, lazy = methods.get("h2o", 120), methods.get("lazy_eviction@window=16", 120)
h2o_that_waits = ...
attempt(3)
