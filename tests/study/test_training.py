"""Both trainings: what the untrained model starts with, what is asked, and stopping midway."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kvlab.reference.tasks import jumps
from kvlab.reference.tasks.jumps import STEP
from study import train_restated
from study.training import small_model, train_jumps, train_reasoner
from study.training.small_model import IGNORED, Training
from study.training.train_jumps import Curriculum, Recipe
from support.sampling import slow

SMALL = tuple(replace(stage, tokens=300) for stage in train_jumps.STAGES)
"""Batches that take a moment."""


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


def test_the_look_ups_stay_while_they_are_held(tmp_path):
    training = Training(Curriculum(Recipe(held=1, stages=SMALL)), tmp_path)
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
        slow(lambda: Curriculum(Recipe(steps=4, stages=SMALL))),
        slow(lambda: train_restated.Curriculum(train_restated.Recipe(steps=4))),
        lambda: train_reasoner.Curriculum(train_reasoner.Recipe(steps=4, tokens_per_step=300)),
    ],
    ids=["jumps", "jumps_restated", "reasoner"],
)
def test_a_stopped_training_goes_on_as_if_it_had_not_been_stopped(
    curriculum, tmp_path, monkeypatch
):
    monkeypatch.setattr(small_model, "LOG_EVERY", 1)
    monkeypatch.setattr(small_model, "CHECKPOINT_SECONDS", -1.0)
    at_once, stopped = tmp_path / "at_once", tmp_path / "stopped"
    for directory in (at_once, stopped):
        directory.mkdir()
    Training(curriculum(), at_once).run()
    training, learn = Training(curriculum(), stopped), Training.learn

    def stop_in_the_third(self, batch):
        if self.step == 2:
            raise KeyboardInterrupt
        return learn(self, batch)

    monkeypatch.setattr(Training, "learn", stop_in_the_third)
    with pytest.raises(KeyboardInterrupt):
        training.run()
    monkeypatch.setattr(Training, "learn", learn)
    other = curriculum()
    other.recipe = replace(other.recipe, seed=7)
    with pytest.raises(ValueError, match=r"seed = 7: the training in .*checkpoint.pt has 0"):
        Training(other, stopped)
    resumed = Training(curriculum(), stopped)
    assert resumed.step == 2
    resumed.run()
    assert len(resumed.log) == 4
    both = [(each / "model.safetensors").read_bytes() for each in (at_once, stopped)]
    assert both[0] == both[1]
    assert not (stopped / "checkpoint.pt").exists()
