"""Scores that read the output projection of their layer."""

import copy
from itertools import product

import pytest
import torch

from kvlab.fast import compress
from kvlab.fast.engine.twins import TWINS
from kvlab.fast.huggingface.attention import UnsupportedModelError
from kvlab.fast.models import fetched_directory
from kvlab.reference import methods
from kvlab.reference.methods.expected_attention import AttentionToCome
from kvlab.reference.models import reasoner_directory
from support.architectures import model_of
from support.models import CONFIGS, prompts, tiny, written
from support.replay import Tolerance, follow_with_reference
from support.sampling import sampled
from support.tolerances import FLOAT64
from support.trained import assert_alike, haystack, speaks

METHOD = "expected_attention@every=3,ahead=5,sinks=1,values=projected"


@pytest.mark.parametrize(
    ("family", "wrapper"),
    sampled(
        product(["llama", "gemma2", "phi3"], ["", "caote:"]), [("llama", ""), ("gemma2", "caote:")]
    ),
)
def test_both_sides_keep_the_same_entries(family, wrapper, monkeypatch):
    """Padded, in blocks of a prompt, in single layers and in layers that share a cache."""
    policy = methods.get(f"{wrapper}{METHOD}", 12)
    assert follow_with_reference(tiny(family), policy, Tolerance(FLOAT64, FLOAT64))
    monkeypatch.delitem(TWINS, AttentionToCome)
    follow_with_reference(tiny(family), policy, Tolerance(FLOAT64, FLOAT64))


def test_both_sides_have_the_same_projection():
    """Each side by its own model, running freely."""
    prompt = prompts([40])["input_ids"][0].tolist()
    assert_alike(reasoner_directory(), methods.get(METHOD, 12), prompt, 30)


@pytest.mark.slow
@speaks
def test_a_model_that_speaks_writes_alike():
    policy = methods.get(METHOD, 100)
    assert_alike(fetched_directory("smollm2"), policy, haystack(words=60), 16)


@pytest.mark.parametrize("family", CONFIGS)
def test_what_heads_read_adds_up_to_what_the_layer_projects(family):
    model, found, expected = tiny(family), {}, {}

    def watch(block, result):
        found[block.layer] = torch.einsum("ngrmd,grdw->nmw", result.output, block.projection)

    with compress(model, METHOD, 12, watch=watch) as cache:
        hooks = [
            layer.self_attn.o_proj.register_forward_hook(
                lambda _, given, out, number=number: expected.update({number: out})
            )
            for number, layer in enumerate(model.model.layers)
        ]
        written(model, cache, prompts([21, 13]), 4)
    for hook in hooks:
        hook.remove()
    assert found
    for number, own in found.items():
        torch.testing.assert_close(own, expected[number], rtol=0, atol=FLOAT64)


class Other(torch.nn.Linear):
    """A linear layer that may compute something else, as adapters and codes of weights do."""


@pytest.mark.parametrize("kind", [Other, "gpt_neox"])
def test_a_projection_that_is_not_known_is_refused(kind):
    if kind is Other:
        model = copy.deepcopy(tiny("llama"))
        model.model.layers[1].self_attn.o_proj.__class__ = Other
    else:
        model = model_of("gpt_neox", "GPTNeoXConfig")
    with (
        pytest.raises(UnsupportedModelError, match=r"^expected_attention@.*Attention has no plain"),
        compress(model, METHOD, 12) as cache,
    ):
        model(prompts([21])["input_ids"], past_key_values=cache)
