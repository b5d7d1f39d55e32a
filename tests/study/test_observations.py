"""What the papers observed: figures of traces whose answers are known, and what is stored."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from kvlab.fast.models.loading import load
from kvlab.reference.models import reasoner_directory
from kvlab.reference.proofs.lazy_eviction import missing_before
from kvlab.reference.simulator import workloads
from kvlab.reference.simulator.observed import intervals, recurrence
from study import observations
from study.observations import precision_figures, read, recurrence_figures
from study.rounded_weights import round_weights


@pytest.fixture(scope="module")
def reasoner():
    return load("reasoner")


def test_a_text_that_is_read_at_once_shows_what_its_writing_showed(reasoner):
    """The NumPy reference writes the first problem's solution; PyTorch reads it."""
    expected = recurrence(intervals(reasoner_directory(), problems=1, seed=0, threshold=0.01))
    (passage,) = observations.problem_passages(reasoner[1], 1)
    trace = read(reasoner[0], replace(passage, rated=passage.rated[:-1]))
    found = recurrence_figures(trace)
    assert found["MRI > 1, α = 0.01"] == pytest.approx(expected["share_recurring"], abs=1e-3)
    assert found["MRI, 80 %, α = 0.01"] == pytest.approx(expected["quantiles"]["80 %"], abs=1)
    written = len(passage.rated) - 1
    assert found["W / written, α = 0.01"] == found["MRI, 80 %, α = 0.01"] / written


def test_intervals_that_are_known():
    """A fifth of the entries come back after 32 to 128 tokens, the others after 8."""
    trace = workloads.periodic_recurrence(tokens=384, recurring=72, seed=0).trace
    found = recurrence_figures(trace)
    assert found["MRI, 50 %, α = 0.01"] == 8 + 1  # the first counts from the step before birth
    assert 32 <= found["MRI, 95 %, α = 0.01"] <= 128


def test_important_tokens_that_were_there_before_and_that_were_not():
    lasting = np.zeros((40, 40))
    lasting[:, :2] = 0.5
    assert missing_before([(lasting, 10)], gap=16) == (0, 0)
    changing = np.zeros((40, 40))
    changing[:26, :6] = 1 / 6
    changing[26:, 10] = 1
    assert missing_before([(changing, 10)], gap=16) == (1, 1)


def test_outliers_that_are_known():
    """Outliers were given to a quarter of the keys, whatever their importance."""
    trace = workloads.key_outliers(tokens=192, seed=0).trace
    found = precision_figures(trace)
    assert found["outlier score and error at 4 bits"] > 0.5
    assert found["R² of importance and sensitivity"] < 0.1
    assert sum(found[name] for name in ("Q1", "Q2", "Q3", "Q4")) == pytest.approx(1)
    for kind in ("keys", "values"):
        errors = [found[f"error of {kind} at {bits} bits"] for bits in (8, 4, 2)]
        assert 0 < errors[0] < errors[1] < errors[2]
    # Gaussian values: a step of 1/255 of their range, and an error of step/√12
    flat = np.asarray(trace.values)[0, 0]
    steps = (flat.max(axis=1) - flat.min(axis=1)) / 255
    expected = np.sqrt((steps**2 / 12).mean() / (flat**2).mean())
    assert found["error of values at 8 bits"] == pytest.approx(expected, rel=0.05)


def test_the_command_measures_and_its_file_is_read(tmp_path, capsys):
    out = tmp_path / "observations.json"
    observations.main(out, texts=2)
    found = json.loads(out.read_text(encoding="utf-8"))["texts"]
    assert [text["kind"] for text in found] == ["written", "written"]
    assert found[0]["figures"].keys() == found[1]["figures"].keys() > {"MRI > 1, α = 0.0005"}
    assert "2: written" in capsys.readouterr().out


def test_weights_are_rounded_to_sixteen_levels_of_32_numbers():
    model = torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.LayerNorm(8))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    round_weights(model, "Q4_1")
    matrix, *vectors = (parameter.detach() for parameter in model.parameters())
    blocks, old = matrix.reshape(-1, 32), before[0].reshape(-1, 32)
    assert all(2 < len(block.unique()) <= 16 for block in blocks)
    steps = (old.amax(dim=1) - old.amin(dim=1)) / 15
    assert ((blocks - old).abs() <= 0.55 * steps[:, None]).all(), "half a step, of float16"
    assert all(map(torch.equal, vectors, before[1:]))
    with pytest.raises(ValueError, match="weights = 'Q2_K' must be one of 'Q4_0', 'Q4_1', 'Q8_0'"):
        round_weights(model, "Q2_K")
