"""Questions about a compressed text are answered as if each had been asked alone."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvlab.fast import compress
from kvlab.fast.lab.evaluate import tasks
from kvlab.fast.lab.evaluate.backends import FastBackend, Request
from kvlab.fast.lab.sweep.compare import run_in_memory
from kvlab.fast.lab.sweep.design import Sweep
from kvlab.reference import methods
from support.models import tiny
from support.sweeping import short_sweep

TEXT = [int(token) for token in torch.randint(1, 97, (40,), generator=torch.manual_seed(1))]
QUESTIONS = [[5, 6, 7], [8, 9, 10, 11, 12], [13]]


def alone(model, spec, budget, question, tokens):
    """Continue text and question with single tokens, one after the other."""
    with torch.inference_mode(), compress(model, spec, budget, 16) as cache:
        logits = model(torch.tensor([TEXT]), past_key_values=cache).logits
        for token in question:
            logits = model(torch.tensor([[token]]), past_key_values=cache).logits
        written = []
        for _ in range(tokens):
            written.append(int(logits[0, -1].argmax()))
            logits = model(torch.tensor([written[-1:]]), past_key_values=cache).logits
        return written


class TinyBackend(FastBackend):
    """A backend of a tiny model, without a tokenizer."""

    def __init__(self) -> None:
        self.model = tiny("llama")

    def answer(self, spec, budget, prompts=QUESTIONS, text=TEXT, stop=0, solutions=None):
        request = Request(prompts, 6, stop, solutions, 16, text)
        return [each.tokens for each in self.write(methods.get(spec, budget), request)]


@pytest.fixture(scope="module")
def backend():
    return TinyBackend()


@pytest.mark.parametrize(("spec", "budget"), [("full", None), ("streaming_llm", 60)])
def test_each_question_is_answered_as_if_it_were_alone(backend, spec, budget):
    wanted = [alone(backend.model, spec, budget, question, 6) for question in QUESTIONS]
    assert backend.answer(spec, budget) == wanted


@pytest.mark.parametrize("spec", ["h2o", "caote:tova", "snapkv@window=8", "ahakv@recent=4"])
def test_other_questions_and_their_padding_change_nothing(backend, spec):
    for question, answer in zip(QUESTIONS, backend.answer(spec, 36), strict=True):
        assert backend.answer(spec, 36, [question]) == [answer]


def test_what_was_evicted_is_missed(backend):
    assert backend.answer("full", None) != backend.answer("h2o", 12)


def test_a_text_of_one_token_is_refused(backend):
    with pytest.raises(ValueError, match="1 tokens must hold at least two"):
        backend.answer("full", None, text=[3])


@dataclass(frozen=True)
class HalvedReasoning(tasks.Reasoning):
    @property
    def asks_after(self) -> bool:
        return True

    def problems(self, count, seed) -> Any:
        """Cut problems of the reasoner into a text and what follows it."""
        found = []
        for whole in super().problems(count, seed):
            cut = whole.prompt.rindex(" ; ")
            parts = {"context": whole.prompt[:cut], "question": whole.prompt[cut:]}
            found.append(SimpleNamespace(whole=whole, **vars(whole), **parts))
        return found

    def grade(self, problem, text):
        return super().grade(problem.whole, text)


@pytest.mark.slow
def test_a_sweep_asks_after_the_text_is_compressed(monkeypatch):
    monkeypatch.setitem(tasks.TASKS, "halved", HalvedReasoning)
    about = {"models": ("reasoner",), "tasks": ("halved",), "block_size": 32}
    sweep = Sweep(("full", "streaming_llm"), ("30%",), 2, batch=1, to_first_error=True, **about)
    solved = {each.method: each.outcomes for each in run_in_memory(sweep).summary.points}
    assert solved == {"full": (True, True), "streaming_llm": (False, False)}


def test_after_a_stop_every_model_does_its_own_jobs():
    sweep = short_sweep(methods=["full"], models=["jumps", "reasoner"])
    with pytest.raises(ZeroDivisionError):
        run_in_memory(sweep, progress=lambda done, *_: 1 / (1 - done))
    assert [row.solved for row in run_in_memory(sweep).rows] == [True, False]
