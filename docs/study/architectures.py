"""Finds the architectures of transformers that write the same under `compress` as without it.

    python -m study.architectures docs/architectures.md

Every architecture with a causal language model is built small, with random weights, and compared
with itself: the full cache, in several ways of reading a text, against transformers' own. The
command writes the page of the results.
"""

import inspect
import logging
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import transformers
import typer
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from kvlab.fast import compress
from kvlab.fast.huggingface.agreement import logit_distance
from kvlab.fast.huggingface.attachment import implementation
from kvlab.fast.lab.tables import Table
from kvlab.fast.lab.terminal import reporting


def _sizes() -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Read the options of every small model, and further ones by architecture."""
    read = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

    def options(written: dict[str, Any]) -> dict[str, Any]:
        return {name: None if value == "none" else value for name, value in written.items()}

    overrides = {
        architecture: options({k: v for k, v in each.items() if k != "architectures"})
        for each in read["overrides"]
        for architecture in each["architectures"]
    }
    return options(read["small"]), overrides


SMALL, OVERRIDES = _sizes()
MOST_PARAMETERS = 30_000_000
SHARPER = 3.0
"""Factor on the weights: nearly uniform attention would hide mistakes."""
HEAD = Path(__file__).parent / "heads" / "architectures.md"
LENGTH, WRITTEN, PADDING, BLOCK = 21, 6, 8, 5
"""Tokens of a text and tokens after it; columns that the second text is padded with; block."""
TOLERANCE = 1e-4
"""Largest distance of two logit vectors, as a share of the length of the stock model's."""

Verdict = Literal["right", "refused", "wrong", "not compared"]


@dataclass(frozen=True)
class Result:
    """The result for one architecture."""

    architecture: str
    configuration: str
    verdict: Verdict
    why: str
    """The distance of the logits, or what the error says."""


def compare(architecture: str) -> Result:
    """Build an architecture small, and compare it under `compress` with itself."""
    configuration = ""
    try:
        model = _build(architecture)
        configuration = _described(model.config)
        expected = [_stock(model, padding) for padding in (0, PADDING)]
        if not all(logits.isfinite().all() for logits in expected):
            raise ValueError("the stock model's logits are no numbers")
    except Exception as error:
        return Result(architecture, configuration, "not compared", _one_line(error))
    try:
        with compress(model, "full"):
            pass
        distances = _distances(model, *expected)
    except (ValueError, RuntimeError) as error:
        return Result(architecture, configuration, "refused", _one_line(error))
    except Exception as error:
        return Result(architecture, configuration, "wrong", _one_line(error))
    name, worst = max(distances.items(), key=lambda item: item[1])
    right = worst <= TOLERANCE
    blocks = "" if "in blocks" in distances else "; block_size is refused"
    why = f"{worst:.0e}{blocks}" if right else f"{name}: {worst:.0e}"
    return Result(architecture, configuration, "right" if right else "wrong", why)


def sweep(architectures: list[str]) -> Iterator[Result]:
    """Compare architectures one after the other, with a progress bar on stderr."""
    with reporting(transient=True) as report:
        for done, architecture in enumerate(architectures):
            report(done, len(architectures), architecture)
            yield compare(architecture)


def known() -> list[str]:
    """Name every architecture of the installed transformers that has a causal language model."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


# --- models and texts ---


def _build(architecture: str) -> Any:
    """Return a small model with random weights.

    Raises:
        ValueError: if the model would not be small.
    """
    kind = CONFIG_MAPPING[architecture]
    wanted = SMALL | OVERRIDES.get(architecture, {})
    accepted = inspect.signature(kind.__init__).parameters
    config = kind(**{name: value for name, value in wanted.items() if name in accepted})
    if config.get_text_config(decoder=True) is not config:
        raise ValueError("a model of text and more: its text part has an entry of its own")
    config.is_decoder = True
    with torch.device("meta"):
        parameters = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if parameters > MOST_PARAMETERS:
        raise ValueError(f"{parameters:,} parameters at the smallest sizes that are known here")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    sharpen(model, SHARPER)
    return model


@torch.no_grad()
def sharpen(model: torch.nn.Module, factor: float) -> None:
    """Multiply the matrices of a model: fresh ones give nearly uniform attention."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter *= factor


def _described(config: Any) -> str:
    kinds = Counter(getattr(config, "layer_types", None) or ["full_attention"])
    if len(kinds) == 1 and getattr(config, "layer_types", None) is None:
        return f"{config.num_hidden_layers} layers"
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())


def _text(padding: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return a text of two rows, what is no padding, and positions; the second row is padded."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 90, (2, LENGTH + WRITTEN), generator=generator)
    real = torch.ones_like(ids)
    real[1, :padding] = 0
    return ids, real, (real.cumsum(dim=1) - 1).clamp(min=0)


@torch.inference_mode()
def _stock(model: Any, padding: int) -> Tensor:
    """Logits of a whole text by transformers' eager attention, without a cache."""
    ids, real, positions = _text(padding)
    inputs = {"input_ids": ids, "attention_mask": real, "use_cache": False}
    if "position_ids" in inspect.signature(model.forward).parameters:
        inputs["position_ids"] = positions
    with implementation(model, "eager"):
        return model(**inputs).logits


# --- comparisons ---


def _distances(model: Any, plain: Tensor, padded: Tensor) -> dict[str, float]:
    """Largest distances of the logits from the stock model's, by how the text is read."""
    runs: dict[str, tuple[str, int | None, int | None, int]] = {
        "at once": ("full", None, None, 0),
        "padded": ("full", None, None, PADDING),
        "in blocks": ("full", None, BLOCK, PADDING),
        "TOVA": ("tova", LENGTH + WRITTEN, None, PADDING),
    }
    found = {}
    for name, (method, budget, block, padding) in runs.items():
        try:
            logits = _compressed(model, method, budget, block, padding)
        except ValueError as error:
            if block is None or "block_size" not in str(error):
                raise
            continue
        real = _text(padding)[1].bool()
        expected = padded if padding else plain
        found[name] = logit_distance(logits[real], expected[real])
    return found


@torch.inference_mode()
def _compressed(
    model: Any, method: str, budget: int | None, block: int | None, padding: int
) -> Tensor:
    """Logits of a text that is read at once or in blocks, and of single tokens after it."""
    ids, real, _ = _text(padding)
    with compress(model, method, budget, block, verify=False) as cache:
        parts = []
        for first, last in [(0, LENGTH), *((i, i + 1) for i in range(LENGTH, ids.shape[1]))]:
            mask = real[:, :last] if padding else None
            inputs = {"input_ids": ids[:, first:last], "attention_mask": mask}
            parts.append(model(**inputs, past_key_values=cache).logits)
    return torch.cat(parts, dim=1)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).replace("\\", "").split())
    if not (text and isinstance(error, ValueError)):
        text = f"{type(error).__name__}: {text}".removesuffix(": ")
    return text if len(text) <= 240 else text[:237] + "..."


# --- the page ---


def page(results: list[Result]) -> str:
    """Write the page of the results, in Markdown."""
    counts = Counter(result.verdict for result in results)
    summary = ", ".join(f"{counts[one]} {one}" for one in ("right", "refused", "wrong"))
    head = HEAD.read_text(encoding="utf-8")
    parts = [
        head.format(
            LENGTH=LENGTH, WRITTEN=WRITTEN, PADDING=PADDING, BLOCK=BLOCK, TOLERANCE=TOLERANCE
        ),
        f"With transformers {transformers.__version__} and torch {torch.__version__}: {summary}, "
        f"{counts['not compared']} not compared. Made by "
        "`python -m study.architectures docs/architectures.md`.",
    ]
    for verdict in ("right", "wrong", "refused", "not compared"):
        rows = [
            (one.architecture, one.configuration, one.why)
            for one in results
            if one.verdict == verdict
        ]
        if rows:
            last = "distance" if verdict == "right" else "why"
            table = Table(("architecture", "configuration", last), rows, words=3)
            parts.append(f"## {verdict.capitalize()}\n\n{table.markdown()}")
    return "\n\n".join(parts) + "\n"


def main(
    out: Annotated[Path, typer.Argument(help="Where the page is written.")],
    only: Annotated[list[str] | None, typer.Option(help="Architectures; default all.")] = None,
) -> None:
    """Compare all architectures, and write the page of the results."""
    transformers.logging.set_verbosity(logging.CRITICAL)
    warnings.simplefilter("ignore")
    out.write_text(page(list(sweep(only or known()))), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
