"""Finds the architectures of transformers that write the same under `compress` as without it.

    python -m study.architectures docs/architectures.md

Every class for text, or for images and text, is built small, with random weights, and compared
with itself: the full cache against transformers' own. The command writes the page of the results.
"""

import inspect
import logging
import re
import tomllib
import warnings
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
import transformers
import typer
from torch import Tensor
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kvlab.fast import compress
from kvlab.fast.huggingface.agreement import logit_distance, stock_logits
from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.loop import Step, kept, run_all
from kvlab.fast.lab.tables import Table, escape_markdown
from kvlab.fast.lab.terminal import progress_bar, run

SOURCE = [Path(__file__).with_suffix(end).read_text(encoding="utf-8") for end in (".py", ".toml")]
READ = tomllib.loads(SOURCE[1])
CAUSAL = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
IMAGE_TEXT = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
MOST_PARAMETERS = 30_000_000
SHARPER = 3.0
"""Factor on the weights: nearly uniform attention would hide mistakes."""
LENGTH, WRITTEN, PADDING, BLOCK = 21, 6, 8, 5
"""Tokens of a text and tokens after it; columns that the second text is padded with; block."""
IMAGE = 90
"""The token of an image; other special tokens are above it."""
TOLERANCE = 1e-4
"""Largest distance of two logit vectors, as a share of the length of the stock model's."""
WITH_IMAGE = "same with an image"
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "at once": ("plain", {"policy": "full"}),
    "padded": ("padded", {"policy": "full"}),
    "in blocks": ("padded", {"policy": "full", "block_size": BLOCK}),
    "TOVA": ("padded", {"policy": "tova", "budget": LENGTH + WRITTEN}),
    "with an image": ("image", {"policy": "full"}),
}
"""The text that is read and the options of `compress`, by how the text is read."""

ADVICE = re.compile(r"[:;,] (kvlab (cannot|compresses)|use (it|this model)|nothing to).*")
"""The end of a refusal that is the same for many reasons."""

Verdict = Literal["same", "refused", "wrong", "not built"]
Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Result:
    """The result for one class."""

    name: str
    architecture: str
    configuration: str
    why: str
    verdict: Verdict


def compare(architecture: str, name: str) -> Result:
    """Build a class of an architecture small, and compare it under `compress` with itself."""
    result, layers = partial(Result, name, architecture), ""
    try:
        model = _build(architecture, name)
        layers = _described(model.config.get_text_config(decoder=True))
    except Exception as error:
        return result(layers, _one_line(error), "not built")
    try:
        with compress(model, "full"):
            pass
        expected = _stock(model, _texts(name))
        if isinstance(expected, str):
            return result(layers, expected, "not built")
        distances, remarks = _distances(model, name, expected)
    except (ValueError, RuntimeError) as error:
        return result(layers, _one_line(error), "refused")
    except Exception as error:
        return result(layers, _one_line(error), "wrong")
    way, worst = max(distances.items(), key=lambda item: item[1])
    if worst > TOLERANCE:
        return result(layers, f"{way}: {worst:.0e}", "wrong")
    return result(layers, f"{worst:.0e}" + "".join(remarks), "same")


def known() -> list[tuple[str, str]]:
    """Name every architecture of the installed transformers that writes text, and its classes."""
    return sorted({*CAUSAL.items(), *IMAGE_TEXT.items()})


def _build(architecture: str, name: str) -> Any:
    """Return a small model with random weights; ValueError if it would not be small."""
    kind = getattr(transformers, name)
    config = _configuration(CONFIG_MAPPING[architecture])
    parts = [config, *(getattr(config, part) for part in config.sub_configs)]
    config = next((part for part in parts if type(part) is kind.config_class), config)
    config.is_decoder = True
    config.get_text_config(decoder=True).use_cache = True  # Evolla's is False
    with torch.device("meta"):
        parameters = kind._from_config(config).num_parameters()
    if parameters > MOST_PARAMETERS:
        raise ValueError(f"{parameters:,} parameters at the smallest sizes that are known here")
    torch.manual_seed(0)
    model = kind._from_config(config).eval()
    sharpen(model, SHARPER)
    return model


def _configuration(kind: Any, **given: Any) -> Any:
    """Return a small configuration of a class, and of all parts of it."""
    written = [one for one in READ["overrides"] if kind.model_type in one["architectures"]]
    special = {**(written[0] if written else {}), **given}
    wanted = {k: None if v == "none" else v for k, v in {**READ["small"], **special}.items()}
    for name in kind.sub_configs:
        part: dict[str, Any] = wanted.get(name) or {}
        written = part.get("model_type")
        typed = CONFIG_MAPPING[written] if written else type(getattr(kind(), name))
        if typed is not type(None):
            made = _configuration(typed, **part)
            wanted[name] = made.to_dict() if kind.has_no_defaults_at_init else made
    accepted = {*inspect.signature(kind.__init__).parameters, *special}
    return kind(**{n: wanted[n] for n in accepted & {*wanted} - {"architectures", "model_type"}})


@torch.no_grad()
def sharpen(model: torch.nn.Module, factor: float) -> None:
    """Multiply the matrices of a model: fresh ones give nearly uniform attention."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter *= factor


def _described(config: Any) -> str:
    layers = ["layers"] * getattr(config, "num_hidden_layers", 0)
    kinds = Counter(getattr(config, "layer_types", None) or layers)
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())


# --- texts and comparisons ---


def _texts(name: str) -> dict[str, Inputs]:
    """Return two rows, the same with padding in the second, and one with an image, if written."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, IMAGE, (2, LENGTH + WRITTEN), generator=generator)
    real = torch.ones_like(ids).bool()
    padded = real.clone()
    padded[1, :PADDING] = False
    texts = {"plain": {"ids": ids, "real": real}, "padded": {"ids": ids, "real": padded}}
    for recipe in READ["images"]:
        if name in recipe["classes"]:
            ids = ids[:1].clone()
            ids[:, 1 : 2 + recipe["tokens"]] = IMAGE
            ids[:, 1] += 2  # the token that begins an image
            image = {n: torch.randn(v, generator=generator) for n, v in recipe["drawn"].items()}
            image |= {n: torch.tensor(value) for n, value in recipe.get("given", {}).items()}
            image |= {n: (ids == IMAGE).long() for n in recipe.get("marks", [])}
            texts["image"] = {"ids": ids, "real": real[:1], **image}
    return texts


@torch.inference_mode()
def _stock(model: Any, texts: dict[str, Inputs]) -> dict[str, Tensor] | str:
    """Logits of the texts that the model reads; what it says if it reads none."""
    found, said = {}, ""
    for name, text in texts.items():
        try:
            logits = stock_logits(model, **text)
        except Exception as error:
            said = said or _one_line(error)
        else:
            found |= {name: logits} if logits.isfinite().all() else {}
    return found or said or "the stock model's logits are no numbers"


def _distances(
    model: Any, name: str, expected: dict[str, Tensor]
) -> tuple[dict[str, float], list[str]]:
    """Largest distances from the stock model's logits, by how a text is read, and remarks."""
    found, remarks = {}, []
    for way, (kind, options) in RUNS.items():
        if kind in expected:
            text = _texts(name)[kind]
            try:
                logits = _compressed(model, text, options)
            except ValueError:
                if not found or way not in ("in blocks", "with an image"):
                    raise
                remarks.append(f"; refused {way}")
            else:
                found[way] = logit_distance(logits[text["real"]], expected[kind][text["real"]])
                remarks += [f"; {WITH_IMAGE}"] if kind == "image" else []
    return found, remarks


@torch.inference_mode()
def _compressed(model: Any, text: Inputs, options: dict[str, Any]) -> Tensor:
    """Logits of a text that is read at once or in blocks, and of single tokens after it."""
    more, parts = dict(text), []
    ids, real = more.pop("ids"), more.pop("real")
    with compress(model, **options) as cache:
        for first, last in [(0, LENGTH), *((i, i + 1) for i in range(LENGTH, ids.shape[1]))]:
            inputs = {"attention_mask": None if real.all() else real[:, :last].long()}
            if first == 0:
                inputs |= {n: x[:, :last] if x.shape == ids.shape else x for n, x in more.items()}
            out = model(input_ids=ids[:, first:last], **inputs, past_key_values=cache)
            parts.append(out.logits)
    return torch.cat(parts, dim=1)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).replace("\\", "").split())
    if not (text and isinstance(error, ValueError)):
        text = f"{type(error).__name__}: {text}".removesuffix(": ")
    return text if len(text) <= 240 else text[:237] + "..."


# --- the page ---


def page(results: list[Result]) -> str:
    """Write the page of the results, in Markdown."""
    verdicts = get_args(Verdict)
    counts = [
        (kind, *(str(sum(one.verdict == verdict for one in those)) for verdict in verdicts))
        for kind, names in {"text": CAUSAL, "images and text": IMAGE_TEXT}.items()
        if (those := [one for one in results if names.get(one.architecture) == one.name])
    ]
    parts = [
        READ["head"].rstrip().format(**globals()),
        f"With transformers {transformers.__version__} and torch {torch.__version__}:",
        Table(("classes for", *verdicts), counts).markdown(),
    ]
    for verdict in verdicts:
        if those := [one for one in results if one.verdict == verdict]:
            text = _distances_of(those) if verdict == "same" else _reasons_of(those)
            parts.append(f"## {verdict.capitalize()}\n\n{text}")
    return "\n\n".join(parts) + "\n"


def _distances_of(results: list[Result]) -> str:
    """Write a line per configuration: its largest distance, and its classes, as `_reasons_of`."""
    classes: dict[str, dict[str, float]] = {}
    for one in results:
        distance, *remarks = one.why.split("; ")
        image = WITH_IMAGE in remarks
        others = [f" ({each})" for each in remarks if each != WITH_IMAGE]
        name = "".join([one.name, " †" * image, *others])
        classes.setdefault(one.configuration, {})[name] = float(distance)
    lines = sorted(classes.items(), key=lambda item: -len(item[1]))
    return "\n".join(
        f"- **{escape_markdown(how)}**, at most {max(found.values()):.0e}: {', '.join(found)}"
        for how, found in lines
    )


def _reasons_of(results: list[Result]) -> str:
    """Write a line per reason, with the classes that it holds for, the most frequent first."""
    classes: dict[str, list[str]] = {}
    for one in results:
        reason = ADVICE.sub("", one.why.replace(one.name, "the class"))
        classes.setdefault(reason, []).append(one.name)
    lines = sorted(classes.items(), key=lambda item: -len(item[1]))
    return "\n".join(f"- {escape_markdown(why)}: {', '.join(names)}" for why, names in lines)


def main(out: Annotated[Path, typer.Argument(help="Where the page is written.")]) -> None:
    """Compare all architectures, and write the page of the results."""
    transformers.logging.set_verbosity(logging.CRITICAL)
    warnings.simplefilter("ignore")
    steps = [Step(" ".join(each), partial(compare, *each)) for each in known()]
    with progress_bar() as progress, kept("architectures", source=SOURCE) as store:
        results = run_all(steps, store, kind=Result, progress=progress)
    write_text(out, page([*results.values()]))


if __name__ == "__main__":
    run(main)
