# %% [markdown]
# # Four questions
#
# What is a token worth, when do we look, who is safe, how precisely is it kept? Every method of
# kvlab is these four answers. Here one is read, varied, and run on the embedded model.

# %%
from kvlab.fast.models import reasoner_directory
from kvlab.reference import Transformer, generate, methods
from kvlab.reference.tasks import reasoning
from kvlab.reference.tokenizer import load_tokenizer

model = Transformer.from_directory(reasoner_directory())
tokenizer = load_tokenizer(reasoner_directory())
problem = reasoning.held_out(1, seed=11)[0]
print(problem.prompt.strip())

# %% [markdown]
# ## Read a policy

# %%
for spec, budget in (("h2o", 120), ("lazy_eviction", 120), ("kivi", None), ("caote:h2o", 120)):
    policy = methods.get(spec, budget)
    print(f"\n{policy.name}")
    for question in ("score", "schedule", "protect", "budget", "precision"):
        print(f"  {question:10} {getattr(policy, question)}")

# %% [markdown]
# ## Run it
#
# The same problem under the full cache and under half of it: who still gets the answer right?

# %%
prompt = tokenizer.encode(problem.prompt).ids
stop = tokenizer.encode(reasoning.END).ids[0]
half = problem.tokens // 2
for spec, budget in (("full", None), ("streaming_llm", half), ("h2o", half), ("caote:h2o", half)):
    written = generate(model, methods.get(spec, budget), prompt, 160, stop=stop)
    text = tokenizer.decode(list(written.tokens), skip_special_tokens=False)
    grade = reasoning.grade(problem, text)
    entries = len(written.session.caches[0])
    print(f"{spec:15} {entries:4} entries  right steps: {grade.correct_steps:2}  {grade}")

# %% [markdown]
# ## Change one answer
#
# An ablation is the same composition with one answer replaced, written in registry syntax.

# %%
for name, spec in list(methods.variants().items())[:6]:
    print(f"{name:22} = {spec}")
