"""One entry that H2O evicts and CAOTE applied to it keeps, in a program of the embedded model.

    python -m study.one_entry docs

writes the picture of CAOTE's page.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from jaxtyping import Float

from kvlab.fast.lab.drawing import RED, Picture, canvas, finish
from kvlab.reference import Transformer, load_tokenizer, methods
from kvlab.reference.generate import generate
from kvlab.reference.methods.caote import eviction_error, normalize
from kvlab.reference.models import embedded_directory
from kvlab.reference.notation import Array
from kvlab.reference.step import Block, StepResult
from kvlab.reference.tasks import jumps

PROGRAM = jumps.Size(fewest=18, most=22)
"""Of the playground, whose first program it is."""
BUDGET = 131
"""Half of the entries of the program."""


@dataclass(frozen=True)
class Choice:
    """What one KV head has when H2O and CAOTE would evict different entries."""

    seen: int
    layer: int
    head: int
    positions: tuple[int, int]
    """Positions of the entry that H2O evicts, and of the one that CAOTE evicts."""
    places: tuple[int, int]
    """Their places among the entries."""
    weights: Float[Array, " n"]
    """H2O's sums, divided by their total."""
    values: Float[Array, "n d"]

    @property
    def output(self) -> Float[Array, " d"]:
        """The mean of the values by their weights."""
        return self.weights @ self.values

    @property
    def errors(self) -> Float[Array, " n"]:
        """How far the output moves without each entry."""
        return eviction_error(self.weights, self.values)

    @property
    def distances(self) -> Float[Array, " n"]:
        """How far each value lies from the output."""
        return np.linalg.norm(self.values - self.output, axis=1)


def find() -> tuple[Choice, list[str]]:
    """Return the first decision of H2O in the head where it costs most, and the text."""
    directory, problem = embedded_directory("jumps"), jumps.held_out(1, size=PROGRAM)[0]
    model, tokenizer = Transformer.from_directory(directory), load_tokenizer(directory)
    choices: list[Choice] = []

    def watch(block: Block, result: StepResult) -> None:
        decision, seen = result.decision, result.seen
        if block.clock.seen != BUDGET + 1 or decision is None or decision.scores is None:
            return
        for g, (scores, open_) in enumerate(zip(decision.scores, decision.candidates, strict=True)):
            weights, values = normalize(scores), seen.values[g]
            errors = eviction_error(weights, values)
            least, cheapest = (int(np.where(open_, x, np.inf).argmin()) for x in (weights, errors))
            if least != cheapest:
                at = int(seen.positions[g, least]), int(seen.positions[g, cheapest])
                where = block.clock.seen, block.layer, g
                choices.append(Choice(*where, at, (least, cheapest), weights, values))

    ids = tokenizer.encode(problem.prompt).ids
    most = BUDGET + 2 - len(ids)
    written = generate(model, methods.get("h2o", BUDGET), ids, most, watch=watch)
    worst = max(choices, key=lambda each: each.errors[each.places[0]] / each.errors[each.places[1]])
    return worst, [str(tokenizer.id_to_token(token)) for token in [*ids, *written.tokens]]


def named(words: list[str], position: int) -> str:
    """Name a token and the line in which it stands."""
    line = next(word for word in reversed(words[: position + 1]) if word[0] in "L\n")
    place = f" in line {line}" if line[0] == "L" else ", a first value"
    return f"{words[position]}{place} (token {position})"


def draw() -> Picture:
    """Draw the weight of both entries, the distance of their values, and what each move costs."""
    choice, words = find()
    names = [named(words, position) for position in choice.positions]
    figure, axes = canvas(rows=3, width=4.4, height=3.2)  # a phone shows it whole
    places, colours = list(choice.places), (RED, "tab:blue")
    measures = {
        "share of all attention so far, %: H2O's score": 100 * choice.weights,
        "× distance of its value from the output": choice.distances,
        "≈ how far the output moves: CAOTE's score": choice.errors,
    }
    for place, (title, numbers) in zip(axes, measures.items(), strict=False):
        bars = place.barh([1, 0], numbers[places], color=colours, alpha=0.75)
        place.bar_label(bars, fmt="%.2g", padding=2, fontsize=8)
        place.set_title(title, x=0, ha="left")
        place.set_yticks([1, 0], names)
        place.set_xticks([])
        place.margins(x=0.3)
    return finish(
        figure,
        f"{choice.seen} tokens read, layer {choice.layer}, KV head {choice.head}. H2O evicts "
        f"{names[0]}, which has the smaller weight; CAOTE evicts {names[1]}, because the output "
        "moves less without it.",
    )


def main(directory: Annotated[Path, typer.Argument(help="Where the pages are.")]) -> None:
    """Write the picture."""
    picture = draw()
    picture.save(directory / "images" / "one-entry.svg")
    typer.echo(picture.description)


if __name__ == "__main__":
    typer.run(main)
