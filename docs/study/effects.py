"""What an entry is worth: effects of hiding single entries, and what scores said of them.

    PYTHONPATH=docs python -m study.effects measure smollm2 --texts 24
    PYTHONPATH=docs python -m study.effects measure jumps --texts 24

measures text by text, each into a file of its own under ``results/effects``; texts that are there
are left as they are, so a run that was stopped goes on. `study.effects_figures` sums up and draws.

A model reads `READ` tokens and is given the next; then entries are hidden, one by one, and the next
`RATED` tokens are rated (`kvlab.fast.lab.effects` says how): those of the text, and those
that the model writes itself with the full cache. Scores are the house's own, in NumPy: they see
the first `PROMPT` tokens as a prompt and the rest one by one, nothing is evicted, and at the end
each ranks all entries.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from kvlab.reference import methods
from kvlab.reference.attention import attend, group_heads, visible
from kvlab.reference.cache import LayerCache
from kvlab.reference.notation import Array, Int, Scores
from kvlab.reference.observation import Clock, Observation
from kvlab.reference.policy import Score
from kvlab.reference.selection import budget_entries, keep_set, rank
from kvlab.reference.tasks import english, jumps
from kvlab.reference.transformer import Transformer

RESULTS = Path(__file__).parent / "results" / "effects"
READ, PROMPT, RATED = 256, 64, 32
ROOM = budget_entries("30%", READ)
LAYERS = {"smollm2": (0, 5, 10, 15, 20, 25, 29), "jumps": (0, 1, 2, 3)}
DTYPES = {"smollm2": "float32", "jumps": "float64"}
"""The jump model is so certain that float32 rounds most effects to nothing."""
STRATA: Mapping[str, Sequence[tuple[int, int, int]]] = {
    "smollm2": ((0, 1, 1), (1, 4, 1), (240, 256, 4), (192, 240, 5), (4, 192, 9)),
    "jumps": ((0, 1, 1), (1, 4, 3), (240, 256, 10), (192, 240, 16), (4, 192, 30)),
}
"""From which entry to which, and how many of them are drawn in each layer and KV head."""
WHOLE = {"smollm2": 4, "jumps": 1}
"""Of every so many texts the model's own continuation and sets are measured, too."""
SETS = (2, 4, 8, 16)
"""So many of the drawn entries are also hidden together."""
WINDOWS = (1, 8, 32, READ)
WINDOWED = {
    "attention": "snapkv@window={},kernel=1,schedule=every_block",
    "caote": "caote:snapkv@window={},kernel=1",
    "fast_caote": "fast_caote:snapkv@window={},kernel=1",
    "ahakv": "ahakv@recent={}",
    "rkv": "rkv@every=16,window={}",
}
"""Scores that sum attention over the last rows, as many as the option says."""
SPECS = (
    *("random", "streaming_llm@sinks=0", "h2o", "tova", "tova@per_head=true"),
    *("snapkv@window=16,schedule=every_block", "knorm", "value_norm", "keydiff", "nacl"),
    *("openvino@start=16,recent=32,page=16", "raas@pin_prompt=false,threshold=0.01"),
    *("rkv@every=16", "ahakv@recent=16", "lazy_eviction@window=16,threshold=0.01"),
    *("expected_attention@every=16", "longflow@window=16", "triattention@every=16,layers=apart"),
    *("vase@recent=16", "random_attention@recent=16", "rpc@interval=32,selector=8"),
    *("desirekv@interval=32,selector=8,group=32,normalize_over=present", "caote:h2o", "caote:tova"),
    *("caote:snapkv@window=16", "fast_caote:h2o", "fast_caote:tova", "fast_caote:snapkv@window=16"),
    *(spec.format(w) for spec in WINDOWED.values() for w in WINDOWS),
)
"""Whose scores rank the entries; budgets and schedules play no part."""
PROTECTED = ("nothing", "edges", "half")
"""What is protected when a score chooses: nothing, the first 4 and newest 16, the newest half of
the budget."""


@dataclass(frozen=True)
class Text:
    """What the models read: `READ` tokens, the next one, and `RATED` more."""

    given: Sequence[int]
    own: Sequence[int] | None
    """The same `READ` tokens, and what the model goes on with; None: it is not measured."""


# --- texts ---------------------------------------------------------------------------------------


def passages(tokenizer: Any, count: int) -> list[list[int]]:
    """Cut so many passages out of the novel, at equal distances."""
    length, text = READ + 1 + RATED, english.novel()
    starts = np.linspace(2000, len(text) - 4000, count).astype(int)
    return [tokenizer(text[at : at + 4000])["input_ids"][:length] for at in starts]


def programs(tokenizer: Any, count: int) -> list[list[int]]:
    """Return held-out jump programs with their runs, cut where the rated tokens end."""
    found = jumps.held_out(count)
    return [tokenizer(each.text)["input_ids"][: READ + 1 + RATED] for each in found]


TEXTS: Mapping[str, Callable[[Any, int], list[list[int]]]] = {
    "smollm2": passages,
    "jumps": programs,
}


def continued(model: Any, given: Sequence[int]) -> list[int]:
    """Return the first `READ` tokens and what the full cache writes after them."""
    import torch

    ids = torch.tensor([given[:READ]])
    count = RATED + 1
    options = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    written = model.generate(ids, min_new_tokens=count, max_new_tokens=count, **options)
    return written[0].tolist()


# --- entries -------------------------------------------------------------------------------------


def drawn(model: str, number: int, heads: int) -> Iterator[tuple[int, int, int, float]]:
    """Yield layer, KV head, entry and weight of the entries of a text: one over its chance."""
    rng = np.random.default_rng([number, len(model)])
    for layer in LAYERS[model]:
        for head in range(heads):
            for first, last, count in STRATA[model]:
                for entry in sorted(rng.choice(np.arange(first, last), count, replace=False)):
                    yield layer, head, int(entry), (last - first) / count


def drawn_sets(number: int, cells: Array, entries: Array) -> Iterator[tuple[int, ...]]:
    """Yield sets of drawn entries of one layer and KV head, as their numbers, by `SETS`."""
    rng = np.random.default_rng([number, 1])
    for cell in np.unique(cells):
        here = np.flatnonzero(cells == cell)
        for size in SETS:
            yield tuple(int(x) for x in sorted(rng.choice(here, size, replace=False)))


# --- scores --------------------------------------------------------------------------------------


def observations(model: Transformer, tokens: Sequence[int], layers: Sequence[int]) -> Any:
    """Yield what each of some layers sees of a text: a list of `Observation` for each layer."""
    found: dict[int, tuple[Array, ...]] = {}

    def note(layer: int, queries: Array, keys: Array, values: Array, hidden: Array) -> Array:
        grouped = group_heads(queries, len(keys))
        found[layer] = grouped, keys, values, hidden
        positions = np.arange(keys.shape[1])
        mask = visible(positions, np.stack([positions] * len(keys)))
        return attend(grouped, keys, values, mask, None)[0].reshape(queries.shape)

    model.forward(np.asarray(tokens), 0, note)
    for layer in layers:
        yield layer, partial(seen_by, model, layer, *found[layer])


def seen_by(
    model: Transformer, layer: int, queries: Array, keys: Array, values: Array, hidden: Array
) -> Iterator[Observation]:
    """Yield what a layer sees: the prompt in one block, then token by token."""
    confidence = np.full(READ, np.nan)
    for first, last in ((0, PROMPT), *((n, n + 1) for n in range(PROMPT, READ))):
        clock = Clock(last, last - first, PROMPT)
        positions = np.stack([np.arange(last)] * len(keys))
        asked = queries[:, :, first:last]
        mask = visible(clock.positions, positions) if clock.block > 1 else None
        _, attention = attend(asked, keys[:, :last], values[:, :last], mask, None)
        yield Observation(
            clock,
            layer,
            asked,
            attention,
            keys[:, :last],
            values[:, :last],
            positions,
            np.full(positions.shape, 16),
            confidence[:last],
            hidden_states=hidden[first:last],
            layers=model.config.layers,
            rotary=model.rotate,
            projection=model.projection(layer),
        )


def score_of(spec: str) -> Score:
    """Return the score of a method; a budget matters only to what it protects."""
    for budget in (ROOM, 10**6, None):
        try:
            return methods.get(spec, budget).score
        except ValueError:
            continue
    raise ValueError(f"{spec} has no score")


def scores_of(seen: Sequence[Observation], specs: Sequence[str]) -> dict[str, Scores]:
    """Return what scores say of all entries, after they observed everything."""
    found = {}
    everything = np.ones(seen[-1].positions.shape, dtype=bool)
    for spec in specs:
        score, heads = score_of(spec), len(everything)
        state = LayerCache.empty(heads, 0, score.columns).state
        for each in seen:
            state = score.observe(state.grown(score.columns, heads, each.clock.block), each)
        found[spec] = score.score(state, seen[-1], everything, ROOM)
    return found


def protections(heads: int) -> dict[str, Array]:
    """Return the marks of what is protected, by `PROTECTED`."""
    n = np.tile(np.arange(READ), (heads, 1))
    return {
        "nothing": n < 0,
        "edges": (n < 4) | (n >= READ - 16),
        "half": n >= READ - ROOM // 2,
    }


def judged(scores: Scores) -> tuple[Int[Array, "G n"], Int[Array, "G n"]]:
    """Return the rank of every entry, and under which protections it is kept: a bit for each."""
    kept = np.zeros(scores.shape, dtype=np.uint8)
    for bit, marks in enumerate(protections(len(scores)).values()):
        keep = keep_set(scores, marks, ROOM - int(marks[0].sum()))
        np.put_along_axis(kept, keep, np.take_along_axis(kept, keep, -1) | (1 << bit), -1)
    return rank(scores).astype(np.uint8), kept


# --- measuring -----------------------------------------------------------------------------------


def measure_text(
    model: Any, reference: Transformer, name: str, number: int, text: Text, specs: Sequence[str]
) -> dict[str, Array]:
    """Return all that is stored of a text."""
    from kvlab.fast.lab.effects import Hidden, measure_effects

    rows = list(drawn(name, number, reference.config.kv_heads))
    layer, head, entry, weight = (np.array(x) for x in zip(*rows, strict=True))
    cells = layer * 100 + head
    sets = list(drawn_sets(number, cells, entry))
    singles = [Hidden(*row[:2], (row[2],)) for row in rows]
    joint = [Hidden(*rows[x[0]][:2], tuple(rows[i][2] for i in x)) for x in sets]
    hidden = singles if text.own is None else [*singles, *joint]
    given = measure_effects(model, text.given, hidden, RATED)
    count = len(singles)
    found = {
        "layer": layer.astype(np.uint8),
        "head": head.astype(np.uint8),
        "entry": entry.astype(np.uint8),
        "weight": weight.astype(np.float32),
        "given": given.losses[:count].mean(axis=1).astype(np.float32),
        "given_moved": np.abs(given.losses[:count]).mean(axis=1).astype(np.float32),
        "given_layer": given.outputs[:count].mean(axis=1).astype(np.float32),
    }
    if text.own is not None:
        same = list(text.own) == list(text.given)
        own = given if same else measure_effects(model, text.own, singles, RATED)
        found |= {
            "own": own.losses[:count].mean(axis=1).astype(np.float32),
            "own_layer": own.outputs[:count].mean(axis=1).astype(np.float32),
            "sets": np.array([[*x, *[count] * (SETS[-1] - len(x))] for x in sets], np.uint16),
            "sets_given": given.losses[count:].mean(axis=1).astype(np.float32),
            "sets_layer": given.outputs[count:].mean(axis=1).astype(np.float32),
        }
    ranks = np.zeros((len(specs), count), dtype=np.uint8)
    kept = np.zeros_like(ranks)
    for at, see in observations(reference, text.given[:READ], LAYERS[name]):
        seen, here = list(see()), layer == at
        for row, scores in enumerate(scores_of(seen, specs).values()):
            of_all, keeps = judged(scores)
            ranks[row, here] = of_all[head[here], entry[here]]
            kept[row, here] = keeps[head[here], entry[here]]
    return found | {"specs": np.array(specs), "ranks": ranks, "kept": kept}


app = typer.Typer(add_completion=False)


@app.callback()
def about() -> None:
    """Measure what entries are worth."""


@app.command()
def measure(
    model: Annotated[str, typer.Argument(help="smollm2 or jumps.")],
    texts: Annotated[int, typer.Option(help="Texts; those that are there stay.")] = 24,
    first: Annotated[int, typer.Option(help="Text to begin with, to share the work out.")] = 0,
) -> None:
    """Measure text by text; a text that is stored already is left out."""
    import torch

    from kvlab.fast.models import model_location
    from kvlab.fast.models.loading import load

    torch.set_num_threads(1)
    network, tokenizer = load(model, DTYPES[model], "cpu")
    reference = Transformer.from_directory(model_location(model))
    # The places of texts do not depend on how many are measured.
    all_texts = TEXTS[model](tokenizer, max(24, texts))
    for number, given in enumerate(all_texts[:texts]):
        path = RESULTS / model / f"{number:02}.npz"
        if number < first or path.exists():
            continue
        whole = number % WHOLE[model] == 0
        text = Text(given, continued(network, given) if whole else None)
        found: dict[str, Any] = measure_text(network, reference, model, number, text, SPECS)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        with open(unfinished, "wb") as file:
            np.savez_compressed(file, **found)
        unfinished.replace(path)
        typer.echo(f"{model}: text {number}, {len(found['entry'])} entries")


if __name__ == "__main__":
    app()
