"""Both trainings: what the untrained model starts with, what is asked, what comes out."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from kvlab.fast.lab.training import small_model, train_jumps, train_reasoner
from kvlab.fast.lab.training.small_model import IGNORED, Training
from kvlab.fast.lab.training.train_jumps import Curriculum, Recipe
from kvlab.reference.tasks import jumps
from kvlab.reference.tasks.jumps import STEP, Size, Y

SMALL = tuple(replace(stage, tokens=300) for stage in train_jumps.STAGES)
"""Batches that take a moment."""


@torch.no_grad()
def attention(text: str) -> list[torch.Tensor]:
    """Return the probabilities ``[heads, queries, keys]`` of each layer of the untrained model."""
    model = Curriculum.model(seed=0)
    model.set_attn_implementation("eager")
    ids = torch.tensor([[Curriculum.ids()[token] for token in text.split(" ")]])
    return [layer[0] for layer in model(ids, output_attentions=True).attentions]


def test_the_first_layer_starts_by_looking_back():
    first, *_ = attention(jumps.held_out(1)[0].text)
    for head, distance in zip(first, train_jumps.LOOK_BACK, strict=True):
        assert head.diagonal(-distance).min() > 0.99


def test_the_second_layer_starts_by_finding_the_operands_of_the_same_label():
    problem = jumps.held_out(1, size=Size(fewest=10, most=25))[0]
    text, (_, second, *_) = problem.text.split(" "), attention(problem.text)
    found = []
    for label in range(problem.tokens - STEP * len(problem.steps) - 2, problem.tokens - 2, STEP):
        same = np.flatnonzero(np.array(text[:label]) == text[label])
        x, y = second[0, label, same + 1].sum(), second[2, label + Y - 1, same + Y].sum()
        found.append((float(x), float(y), len(same) / label))
    x, y, by_chance = np.mean(found, axis=0)
    assert x > 20 * by_chance and y > 20 * by_chance


def test_batches_ask_for_solutions_and_for_sums_of_drills():
    batch = Curriculum(Recipe()).batch()
    vocabulary = np.array(jumps.vocabulary())
    assert 0 < len(batch.problems) < len(batch.inputs)
    for row, (inputs, targets) in enumerate(zip(batch.inputs, batch.targets, strict=True)):
        asked = targets != IGNORED
        text = [str(token) for token in vocabulary[inputs]]
        answers = [str(token) for token in vocabulary[targets[asked]]]
        if row < len(batch.problems):
            prompt = int(asked.nonzero()[0]) + 1
            assert text[prompt - 2] == jumps.END and text[prompt - 1] in jumps.LABELS
            assert answers[-1] == jumps.END and len(answers) % STEP == 1
        else:
            sums, results = answers[::2], answers[1::2]
            assert all(total.isdigit() for total in sums)
            assert all(result[1:] == total for result, total in zip(results, sums, strict=False))


def test_the_curriculum_goes_on_when_a_stage_is_mastered():
    curriculum = Curriculum(Recipe())
    for running, stage in ((0.95, 0), (0.97, 1), (0.97, 1), (0.99, 2), (1.0, 2)):
        curriculum.running = running
        curriculum.promote()
        assert curriculum.stage == stage


def test_the_look_ups_stay_while_they_are_held():
    training = Training(Curriculum(Recipe(held=1, stages=SMALL)))
    before = [weight.clone() for weight in train_jumps.look_ups(training.model)]
    for stage in (0, 1):
        training.curriculum.stage = stage
        training.learn(training.curriculum.batch())
        after = train_jumps.look_ups(training.model)
        same = [torch.equal(old, new) for old, new in zip(before, after, strict=True)]
        assert same == [stage == 0] * 6


@pytest.mark.parametrize(
    "curriculum",
    [
        lambda: Curriculum(Recipe(steps=2, stages=SMALL)),
        lambda: train_reasoner.Curriculum(train_reasoner.Recipe(steps=2, tokens_per_step=300)),
    ],
    ids=["jumps", "reasoner"],
)
def test_the_same_recipe_gives_the_same_model(curriculum, tmp_path, monkeypatch):
    monkeypatch.setattr(small_model, "LOG_EVERY", 1)
    both = [tmp_path / "first", tmp_path / "second"]
    for directory in both:
        Training(curriculum()).run(directory)
        log = json.loads((directory / "training_log.json").read_text())["log"]
        assert [entry["step"] for entry in log] == [1, 2]
    first, second = ((each / "model.safetensors").read_bytes() for each in both)
    assert first == second
