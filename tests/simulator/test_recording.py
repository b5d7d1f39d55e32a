"""A recorded trace replays into what a live run keeps."""

import numpy as np
import pytest

from kvlab.reference import Transformer, generate, methods
from kvlab.reference.files import load_tokenizer
from kvlab.reference.models import reasoner_directory
from kvlab.reference.simulator.replay import replay
from kvlab.reference.simulator.trace import record_trace
from kvlab.reference.tasks import reasoning


@pytest.fixture(scope="module")
def written():
    directory = reasoner_directory()
    model, tokenizer = Transformer.from_directory(directory), load_tokenizer(directory)
    problem = reasoning.held_out(1)[0]
    prompt = tokenizer.encode(problem.prompt).ids
    stop = tokenizer.encode(reasoning.END).ids[0]
    return model, prompt, stop, record_trace(model, prompt, 200, stop, name="reasoner")


def test_it_holds_all_tokens_but_the_last_written(written):
    model, prompt, stop, trace = written
    tokens = generate(model, methods.get("full"), prompt, 200, stop=stop).tokens
    assert trace.tokens.tolist() == [*prompt, *tokens][:-1]
    assert trace.prompt == len(prompt)
    assert trace.metadata.model == "reasoner"
    assert np.isnan(trace.confidence[: len(prompt)]).all()
    assert (trace.confidence[len(prompt) :] > 0).all()


def test_a_replay_keeps_what_the_live_run_keeps(written):
    model, prompt, stop, trace = written
    policy = methods.get("h2o", len(trace.tokens) - 1)
    live = generate(model, policy, prompt, 200, stop=stop)
    assert [*prompt, *live.tokens][:-1] == trace.tokens.tolist()  # one entry less changes no token
    for (fate,), cache in zip(replay(trace, [policy]), live.session.caches, strict=True):
        np.testing.assert_array_equal(fate.kept(len(trace.tokens) - 1), cache.positions)
