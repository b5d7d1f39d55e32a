"""Figures of `study.effects`: what scores say of effects, computed from the stored labels.

    PYTHONPATH=docs python -m study.effects_figures docs

writes ``results/effects.json``, draws the picture, and prints the tables of the page.

Every figure is a number per text, then a mean and its 95 % interval over texts. Within a text, what
is said of a layer and KV head is averaged over them. Entries count by their weights, one over the
chance that an entry was drawn, so that figures are about all entries. The *size* of an effect is
its absolute value.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from kvlab.fast.lab.drawing import GREY, NARROW, Picture, canvas, finish
from kvlab.fast.lab.evaluate.statistics import (
    Interval,
    holm,
    mean_interval,
    paired_difference,
    sign_flips,
)
from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.tables import Table
from kvlab.reference.notation import Array
from study.effects import LAYERS, PROTECTED, READ, RESULTS, ROOM, SETS, SPECS, WINDOWED, WINDOWS

MODELS = tuple(LAYERS)
AGES = {
    "first": (0, 1),
    "next three": (1, 4),
    "old": (4, 192),
    "middle": (192, 240),
    "newest": (240, 256),
}
"""From which entry to which; they are the strata from which entries were drawn."""
TARGETS = {"given": "given", "own": "own", "layer": "given_layer"}
"""Sizes that scores are compared with, and the labels that hold them."""
RANDOM, RECENCY, BEST = "random", "streaming_llm@sinks=0", "best"
LAST_32 = WINDOWED["attention"].format(32)
H2O = WINDOWED["attention"].format(READ)
PAIRS = {
    "h2o less last 32": (H2O, LAST_32),
    "last row less last 32": (WINDOWED["attention"].format(1), LAST_32),
    "last 8 less last 32": (WINDOWED["attention"].format(8), LAST_32),
    **{
        f"{wrapper} of {rows} less attention of {rows}": tuple(
            WINDOWED[name].format(rows) for name in (wrapper, "attention")
        )
        for wrapper in ("caote", "fast_caote")
        for rows in WINDOWS
    },
}
"""Pairs of scores whose correlations are compared: the first less the second."""


# --- one text ------------------------------------------------------------------------------------


@cache
def texts(model: str) -> list[Mapping[str, Any]]:
    """Return what is stored of every text of a model, and as ``key`` the model and its place."""
    found = []
    for number, path in enumerate(sorted((RESULTS / model).glob("*.npz"))):
        with np.load(path, allow_pickle=False) as archive:
            assert tuple(archive["specs"].tolist()) == SPECS
            found.append({name: archive[name] for name in archive} | {"key": (model, number)})
    return found


def heads(text: Mapping[str, Any]) -> list[Array]:
    """Return the numbers of the entries of every KV head."""
    return heads_of(*text["key"])


@cache
def heads_of(model: str, number: int) -> list[Array]:
    """Return them for a text of a model."""
    text = texts(model)[number]
    cells = text["layer"].astype(int) * 100 + text["head"]
    return [np.flatnonzero(cells == cell) for cell in np.unique(cells)]


def midranks(x: Array, weights: Array) -> Array:
    """Return how much weight lies below each value, and half of the weight at it."""
    _, place = np.unique(x, return_inverse=True)
    total = np.bincount(place, weights)
    return (total.cumsum() - total / 2)[place]


def correlation(x: Array, y: Array, weights: Array) -> float:
    """Return the rank correlation (Spearman's) of weighted values; 0 if one is constant."""
    ranks = [midranks(each, weights) for each in (x, y)]
    return float(correlations(ranks[0][None], ranks[1], weights)[0])


@cache
def of_heads(model: str, number: int, target: str, entries: tuple[int, int], signed: bool) -> Array:
    """Return the rank correlation of every score in every KV head: ``[heads, scores]``."""
    text, found = texts(model)[number], []
    effect = text[TARGETS[target]].astype(float)
    effect = effect if signed else abs(effect)
    for here in heads(text):
        here = here[(text["entry"][here] >= entries[0]) & (text["entry"][here] < entries[1])]
        weights = text["weight"][here].astype(float)
        order = np.argsort(text["ranks"][:, here], axis=1)  # of a score no two are equal
        below = weights[order].cumsum(axis=1) - weights[order] / 2
        ranks = np.empty_like(below)
        np.put_along_axis(ranks, order, below, axis=1)
        found.append(correlations(ranks, midranks(effect[here], weights), weights))
    return np.array(found)


def correlations(x: Array, y: Array, weights: Array) -> Array:
    """Return the weighted correlations of rows of ``x`` with ``y``; 0 if one is constant."""
    x, y = (each - np.average(each, -1, weights)[..., None] for each in (x, y))
    spread = np.sqrt((weights * x**2).sum(-1) * (weights * y**2).sum(-1))
    together = (weights * x * y).sum(-1)
    return np.divide(together, spread, out=np.zeros_like(together), where=spread > 0)


def correlates(
    text: Mapping[str, Any],
    spec: str,
    target: str = "given",
    layers: Sequence[int] = (),
    entries: tuple[int, int] = (0, READ),
    signed: bool = False,
) -> float:
    """Return the rank correlation of a score with the size of effects, mean over KV heads."""
    found = of_heads(*text["key"], target, entries, signed)[:, SPECS.index(spec)]
    of_layer = np.array([text["layer"][here[0]] for here in heads(text)])
    return float(found[np.isin(of_layer, layers or LAYERS[text["key"][0]])].mean())


def agreement(text: Mapping[str, Any], one: str, other: str) -> float:
    """Return the rank correlation of the sizes of two effects, mean over KV heads."""
    sizes = [abs(text[TARGETS[each]].astype(float)) for each in (one, other)]
    x, y, weights = *sizes, text["weight"]
    found = [correlation(x[here], y[here], weights[here]) for here in heads(text)]
    return float(np.mean(found))


def keeps(text: Mapping[str, Any], spec: str, under: str = "nothing", by: str = "given") -> float:
    """Return the share of the sizes in a KV head that a score's choice keeps, mean over heads."""
    if spec == BEST:
        return float(np.mean([best(text, here, by) for here in heads(text)]))
    kept = text["kept"][SPECS.index(spec)] >> PROTECTED.index(under) & 1
    weighted = text["weight"] * abs(text[TARGETS[by]].astype(float))
    found = [(weighted * kept)[here].sum() / weighted[here].sum() for here in heads(text)]
    return float(np.mean(found))


def keeps_of_all(text: Mapping[str, Any], spec: str, under: str = "nothing") -> float:
    """Return the share of all sizes, over all heads together, that a score's choice keeps."""
    kept = text["kept"][SPECS.index(spec)] >> PROTECTED.index(under) & 1
    weighted = text["weight"] * abs(text["given"].astype(float))
    return float((weighted * kept).sum() / weighted.sum())


def best(text: Mapping[str, Any], here: Array, by: str) -> float:
    """Return the share that the largest 30 % keep: of the drawn entries, each times its weight."""
    size = abs(text[TARGETS[by]].astype(float))
    return held_by_largest(size[here], text["weight"][here], ROOM)


def best_of_all(text: Mapping[str, Any]) -> float:
    """Return the share of all sizes, over all heads, if every head keeps its largest 30 %."""
    sizes = text["weight"] * abs(text["given"].astype(float))
    kept = [best(text, here, "given") * sizes[here].sum() for here in heads(text)]
    return float(sum(kept) / sizes.sum())


def holds(text: Mapping[str, Any], entries: tuple[int, int], by: str = "given") -> float:
    """Return the share of the sizes in a KV head that some entries hold, mean over heads."""
    weighted = text["weight"] * abs(text[TARGETS[by]].astype(float))
    inside = (text["entry"] >= entries[0]) & (text["entry"] < entries[1])
    found = [(weighted * inside)[here].sum() / weighted[here].sum() for here in heads(text)]
    return float(np.mean(found))


def largest(text: Mapping[str, Any], share: float, by: str = "given") -> float:
    """Return the share of all sizes, over all heads, that such a share of the entries holds."""
    size, weight = abs(text[TARGETS[by]].astype(float)), text["weight"].astype(float)
    return held_by_largest(size, weight, share * weight.sum())


def held_by_largest(size: Array, weight: Array, entries: float) -> float:
    """Return the share of all sizes that the largest so many entries hold, each as its weight."""
    order = np.argsort(-size)
    before = weight[order].cumsum() - weight[order]
    counted = np.clip(entries - before, 0, weight[order])
    return float((size[order] * counted).sum() / (size * weight).sum())


def positive(text: Mapping[str, Any]) -> float:
    """Return the share of entries whose loss makes the text less likely."""
    return float(np.average(text["given"] > 0, weights=text["weight"]))


def median_size(text: Mapping[str, Any]) -> float:
    """Return the median of the sizes, in nats per token."""
    size = abs(text["given"].astype(float))
    order = np.argsort(size)
    half = text["weight"][order].cumsum() >= text["weight"].sum() / 2
    return float(size[order][half][0])


def added(text: Mapping[str, Any], size: int, label: str = "given") -> tuple[Array, Array]:
    """Return the effects of sets of a size, and the sums of their entries' single effects."""
    rows = (text["sets"] < len(text["entry"])).sum(axis=1) == size
    single = np.append(text[label].astype(float), 0.0)
    sums = single[np.minimum(text["sets"][rows], len(single) - 1)].sum(axis=1)
    return text[f"sets_{label.removeprefix('given_')}"][rows].astype(float), sums


def slope(text: Mapping[str, Any], size: int, label: str = "given") -> float:
    """Return the slope of the effects of sets against the sums, by least squares through 0."""
    joint, sums = added(text, size, label)
    return float((joint * sums).sum() / (sums**2).sum())


def within(text: Mapping[str, Any], size: int) -> float:
    """Return the share of sets whose effect is within a quarter of their sum."""
    joint, sums = added(text, size)
    return float((abs(joint - sums) <= abs(sums) / 4).mean())


# --- over texts ----------------------------------------------------------------------------------


def over(model: str, figure: Callable[..., float], *given: Any, **options: Any) -> list[float]:
    """Return mean and ends of a figure's interval over the texts that have what it needs."""
    needed = "own" if figure in (slope, within) or "own" in given else "given"
    values = [figure(text, *given, **options) for text in texts(model) if needed in text]
    least = -1 if figure in (correlates, agreement) else -np.inf if figure is slope else 0
    most = np.inf if figure is slope else 1
    return [float(f"{x:.6g}") for x in vars(mean_interval(values, least, most)).values()]


def compared(model: str, target: str) -> dict[str, Any]:
    """Return the difference of every pair's correlations, p after Holm, and which is better."""
    known = [text for text in texts(model) if TARGETS[target] in text]
    values = {
        spec: [correlates(text, spec, target) for text in known]
        for spec in {spec for pair in PAIRS.values() for spec in pair}
    }
    tests = [
        (name, paired_difference(values[second], values[first]), first, second)
        for name, (first, second) in PAIRS.items()
    ]
    p_values = [
        sign_flips([a - b for a, b in zip(values[first], values[second], strict=True)])
        for _, _, first, second in tests
    ]
    found = {}
    for (name, gain, *_), adjusted in zip(tests, holm(p_values), strict=True):
        said = "open" if adjusted >= 0.05 else "better" if gain.mean > 0 else "worse"
        figures = [float(f"{x:.6g}") for x in vars(gain).values()]
        found[name] = {"difference": figures, "holm": float(f"{adjusted:.3g}"), "said": said}
    return found


def of_score(model: str, spec: str) -> dict[str, Any]:
    """Return every figure of a score."""
    found: dict[str, Any] = {target: over(model, correlates, spec, target) for target in TARGETS}
    found["signed"] = over(model, correlates, spec, signed=True)
    found["kept"] = {under: over(model, keeps, spec, under) for under in PROTECTED}
    found["kept of all"] = {under: over(model, keeps_of_all, spec, under) for under in PROTECTED}
    found["kept of layer effects"] = over(model, keeps, spec, by="layer")
    found["layers"] = {
        str(layer): over(model, correlates, spec, layers=(layer,)) for layer in LAYERS[model]
    }
    found["ages"] = {
        age: over(model, correlates, spec, entries=entries)
        for age, entries in AGES.items()
        if entries[1] - entries[0] > 3
    }
    return found


def of_model(model: str) -> dict[str, Any]:
    """Return every figure of a model."""
    known = texts(model)
    return {
        "texts": len(known),
        "entries": sum(len(text["entry"]) for text in known),
        "positive": over(model, positive),
        "median": float(f"{np.median([median_size(text) for text in known]):.3g}"),
        "largest": float(f"{max(abs(text['given']).max() for text in known):.3g}"),
        "above a thousandth": sum(int((abs(text["given"]) > 1e-3).sum()) for text in known),
        "with own text": sum("own" in text for text in known),
        "agreement": {other: over(model, agreement, "given", other) for other in ("own", "layer")},
        "holds": {age: over(model, holds, entries) for age, entries in AGES.items()},
        "holds of layer effects": {
            age: over(model, holds, entries, "layer") for age, entries in AGES.items()
        },
        "largest hundredth": over(model, largest, 0.01),
        "best": over(model, keeps, BEST),
        "best of all": over(model, best_of_all),
        "best of layer effects": over(model, keeps, BEST, by="layer"),
        "sets": {
            str(size): {
                "slope": over(model, slope, size),
                "within": over(model, within, size),
                "sets": sum(len(added(text, size)[0]) for text in known if "sets" in text),
                "layer": over(model, slope, size, "given_layer"),
            }
            for size in SETS
        },
        "scores": {spec: of_score(model, spec) for spec in SPECS},
        "tests": {target: compared(model, target) for target in TARGETS},
    }


@cache
def stored() -> dict[str, Any]:
    """Return the figures as they were written."""
    return json.loads((RESULTS.with_suffix(".json")).read_text("utf-8"))


def written(content: Mapping[str, Any]) -> str:
    """Write figures as JSON, an interval to a line."""
    text = json.dumps(content, indent=1)
    return re.sub(r"\[\s+([^\[\]{}]+?)\s+\]", lambda x: f"[{' '.join(x[1].split())}]", text) + "\n"


# --- tables and picture --------------------------------------------------------------------------

NAMES = {
    RANDOM: "random",
    RECENCY: "recency",
    "value_norm": "value norm",
    "knorm": "key norm",
    "keydiff": "KeyDiff",
    H2O: "attention of all rows (H2O)",
    LAST_32: "attention of the last 32 rows",
    WINDOWED["attention"].format(8): "attention of the last 8 rows",
    WINDOWED["attention"].format(1): "attention of the last row (TOVA)",
    WINDOWED["caote"].format(READ): "CAOTE over all rows (H2O)",
    WINDOWED["caote"].format(32): "CAOTE over the last 32 rows",
    WINDOWED["caote"].format(8): "CAOTE over the last 8 rows",
    WINDOWED["caote"].format(1): "CAOTE over the last row (TOVA)",
    "ahakv@recent=16": "AhaKV",
    "rkv@every=16": "R-KV",
    "lazy_eviction@window=16,threshold=0.01": "LazyEviction",
    "expected_attention@every=16": "Expected Attention",
    "snapkv@window=16,schedule=every_block": "SnapKV, pooled",
}
"""Scores as the picture and the tables of the page name them."""
TITLES = {"smollm2": "SmolLM2", "jumps": "jump programs"}


def draw(narrow: bool) -> Picture:
    """Draw the rank correlations of scores with the effect and the layer effect, a panel each."""
    found = stored()
    order = sorted(NAMES, key=lambda spec: found["smollm2"]["scores"][spec]["given"][0])
    if narrow:
        figure, panels = canvas(rows=2, width=NARROW, height=9.5, sharex=True)
    else:
        figure, panels = canvas(2, width=8.5, height=4.8, sharex=True, sharey=True)
    for axes, model in zip(panels, MODELS, strict=True):
        for number, (target, label) in enumerate(
            (("given", "effect on the next 32 tokens"), ("layer", "layer effect"))
        ):
            for place, spec in enumerate(order):
                mean, low, high = found[model]["scores"][spec][target]
                axes.errorbar(
                    mean,
                    place + 0.15 - 0.3 * number,
                    xerr=[[mean - low], [high - mean]],
                    fmt="os"[number],
                    markersize=4,
                    color=("C0", "C1")[number],
                    label=label if model == MODELS[0] and not place else None,
                )
        axes.axvline(0, color=GREY, linewidth=0.8)
        axes.set(xlim=(-0.5, 1), title=f"{TITLES[model]}: {found[model]['entries']:,} entries")
        axes.set(xlabel="rank correlation with its size")
        axes.set_yticks(range(len(order)), [NAMES[spec] for spec in order])
    told = "; ".join(
        f"{TITLES[model]}, {NAMES[spec]}: {found[model]['scores'][spec]['given'][0]:.2f} and "
        f"{found[model]['scores'][spec]['layer'][0]:.2f}"
        for model in MODELS
        for spec in reversed(order)
    )
    return finish(
        figure,
        f"Rank correlations of scores with the effect and the layer effect: {told}.",
        "below",
    )


def percent(figures: Sequence[float]) -> str:
    """Write an interval of shares."""
    return Interval(*figures).written(".0f", scale=100)


def decimal(figures: Sequence[float]) -> str:
    """Write an interval of correlations."""
    return Interval(*figures).written(".2f", " to ")


def scores(model: str) -> Table:
    """List what scores say of effects and of layer effects, the best first."""
    rows = [
        [name, *(decimal(figures[x]) for x in ("given", "own", "layer"))]
        for name, figures in named(model)
    ]
    return Table((TITLES[model], "effect", "on own text", "layer effect"), rows)


def named(model: str) -> list[tuple[str, Any]]:
    """Return the scores that the page names, with their figures, the best first."""
    found = stored()[model]["scores"]
    order = sorted(NAMES, key=lambda spec: -found[spec]["given"][0])
    return [(NAMES[spec], found[spec]) for spec in order]


KEPT = (BEST, RANDOM, RECENCY, H2O, LAST_32, WINDOWED["attention"].format(1))
KEPT += (WINDOWED["caote"].format(READ), WINDOWED["caote"].format(32), "ahakv@recent=16")
"""Scores whose choices are compared by what they keep."""


def kept(model: str) -> Table:
    """List what share of all effects 30 % of the entries keep, by protection."""
    found, rows = stored()[model], []
    for spec in KEPT[1:]:
        of = found["scores"][spec]
        rows.append([NAMES[spec], *(percent(of["kept of all"][x]) for x in PROTECTED)])
    rows.append(["best choice in each head", percent(found["best of all"]), "", ""])
    heads = ("nothing protected, %", "first 4 and newest 16", "newest half of the budget")
    return Table((TITLES[model], *heads), rows)


def windows(model: str) -> Table:
    """List the rank correlations of windowed scores with the effect, by the size of the window."""
    found = stored()[model]["scores"]
    names = dict(zip(WINDOWED, ("attention", "CAOTE", "FastCAOTE", "AhaKV", "R-KV"), strict=True))
    rows = [
        [name, *(decimal(found[WINDOWED[family].format(w)]["given"]) for w in WINDOWS)]
        for family, name in names.items()
    ]
    return Table((TITLES[model], "last row", "last 8", "last 32", "all rows"), rows)


def places(model: str) -> Table:
    """List rank correlations with the effect by layer and by age."""
    found = stored()[model]
    some = (H2O, LAST_32, WINDOWED["caote"].format(32), RECENCY)
    ages = {"old": "older", "middle": "17 to 64 tokens old", "newest": "newest 16"}
    rows = [
        [f"layer {layer}", *(decimal(found["scores"][x]["layers"][str(layer)]) for x in some)]
        for layer in LAYERS[model]
    ]
    rows += [
        [name, *(decimal(found["scores"][x]["ages"][age]) for x in some)]
        for age, name in ages.items()
    ]
    return Table((TITLES[model], *(NAMES[x] for x in some)), rows)


def sets(model: str) -> Table:
    """List how single effects add, by the size of sets."""
    rows = [
        [f"{size} entries", str(of["sets"]), percent(of["within"]), decimal(of["layer"])]
        for size, of in stored()[model]["sets"].items()
    ]
    heads = ("sets", "within a quarter, %", "layer effect: slope against the sum")
    return Table((TITLES[model], *heads), rows)


def figure(*path: str) -> Any:
    """Return a stored figure for the ledger: an interval, a number or a verdict."""
    found: Any = stored()
    for step in path:
        found = found[step]
    return Interval(*found) if isinstance(found, list) else found


def leads(model: str, spec: str) -> str:
    """Say "better" if no score has a larger correlation with the effect."""
    found = stored()[model]["scores"]
    return "better" if max(found, key=lambda x: found[x]["given"][0]) == spec else "open"


TABLES = {each.__name__: each for each in (kept, windows, places, sets)} | {"effects": scores}
FUNCTIONS = {
    "effect": figure,
    "leads": leads,
    "last": lambda name, rows: WINDOWED[name].format(rows),
}


if __name__ == "__main__":
    write_text(RESULTS.with_suffix(".json"), written({model: of_model(model) for model in MODELS}))
    for narrow, folder in ((False, ""), (True, "narrow")):
        draw(narrow).save(Path(sys.argv[1]) / "images" / folder / "effects.svg")
