"""What serving engines do beside a method: worked out by hand, and asked of PyTorch's own."""

from pathlib import Path

import numpy as np
import pytest

from kvlab.reference.conformance import Status, load, published
from kvlab.reference.conformance.checker import run_case
from kvlab.reference.conformance.made import made_case
from kvlab.reference.models import reasoner_directory
from kvlab.reference.transformer import Transformer
from support.sampling import sampled

EXAMPLE = Path("docs/examples/conformance/flex_attention.py")
NONE = {"scale": None, "softcap": None, "window": None}


def answered(target, inputs, **parameters):
    given = {name: np.array(x) for name, x in inputs.items()}
    case = made_case(f"{target}/hand/0", "hand", None, (given, parameters))
    return {name: each.value for name, each in case.expected.items()}


def two_requests(**more):
    """Pages of two with the values 0 to 7; a request of 3 tokens asks twice, one of 1 once.

    Keys are 1, so that a logit is the query: log 2 for the last token of the first request.
    """
    return {
        "queries": np.array([0, np.log(2), 0]).reshape(1, 1, 3, 1),
        "query_starts": [0, 2, 3],
        "lengths": [3, 1],
        "key_pages": np.ones((4, 2, 1, 1)),
        "value_pages": np.arange(8.0).reshape(4, 2, 1, 1),
        "tables": [[2, 0, 3], [1, 2, 2]],
        **more,
    }


@pytest.mark.parametrize(
    ("more", "told", "output", "mass"),
    [
        ({}, {}, [4.5, (4 + 5 + 0) / 3, 2], [2, 6, 1]),
        ({}, {"window": 2}, [4.5, (5 + 0) / 2, 2], [2, 4, 1]),
        ({}, {"scale": 3.0}, [4.5, 3, 2], [2, 24, 1]),
        ({"sinks": [[np.log(2)]]}, {}, [9 / 4, 2 * 9 / 8, 2 / 3], [4, 8, 3]),
        ({"tables": [[-1, 0, 3], [1, 2, 2]], "query_starts": [0, 1, 2]}, {}, [0, 2], [2, 1]),
        ({"key_scales": [2.0], "value_scales": [0.5]}, {}, [2.25, 1.5, 1], [2, 12, 1]),
    ],
    ids=("pages", "window", "scale", "sink", "evicted page", "scales"),
)
def test_attention_of_two_requests(more, told, output, mass):
    """A table's third number is not the request's; ``mass`` is the sum of all e^s."""
    given = two_requests(**more)
    given["queries"] = given["queries"][:, :, -len(output) :]
    found = answered("attend_requests", given, **NONE | told)
    np.testing.assert_allclose(found["output"].ravel(), output, rtol=1e-6)
    np.testing.assert_allclose(np.exp(found["lse"].ravel()), mass, rtol=1e-6)


def test_states_of_parts_are_merged_into_that_of_all():
    """Masses of 1 and 3; then a part without entries, and a query for which no part has any."""
    outputs = np.array([[8, 8, 0], [4, 0, 0]]).reshape(2, 1, 1, 3, 1)
    lses = np.log([[1, 2, 1e-99], [3, 1e-99, 1e-99]]).reshape(2, 1, 1, 3)
    lses[lses < -99] = -np.inf
    found = answered("merge_states", {"outputs": outputs, "lses": lses})
    np.testing.assert_allclose(found["output"].ravel(), [5, 8, 0])
    np.testing.assert_allclose(found["lse"].ravel(), [np.log(4), np.log(2), -np.inf], rtol=1e-6)


def test_tokens_are_written_into_their_slots_rounded_to_eight_bits():
    """From 16 on, e4m3 has every second number: 17 is a half and becomes 16, 19 becomes 20."""
    tokens = {
        "keys": np.array([8.5, 9.5, 1, 1000]).reshape(1, 4, 1),
        "values": np.array([17, 1, 1, -3]).reshape(1, 4, 1),
        "slots": [3, 0, -1, 4],
        "key_pages": np.full((3, 2, 1, 1), 7.0),
        "value_pages": np.full((3, 2, 1, 1), 7.0),
    }
    found = answered("write_pages", tokens)
    assert found["key_pages"].ravel().tolist() == [9.5, 7, 7, 8.5, 1000, 7]
    found = answered("write_pages", tokens | {"key_scales": [0.5], "value_scales": [1.0]})
    assert found["key_pages"].ravel().tolist() == [20, 7, 7, 16, 448, 7]
    assert found["value_pages"].ravel().tolist() == [1, 7, 7, 16, -3, 7]


@pytest.mark.parametrize("neighbours", [False, True])
def test_rotation_is_the_models_and_turns_back(neighbours):
    model = Transformer.from_directory(reasoner_directory())
    d, positions = model.config.head_dim, np.array([3, 0, 250])
    x = np.random.default_rng(0).normal(size=(2, 3, d)).astype(np.float32)
    told = {"base": model.config.rope["rope_theta"], "rotated": d, "neighbours": neighbours}
    turned = answered("rotate", {"x": x, "positions": positions}, **told)["x"]
    halves = np.argsort(np.arange(d) % 2, kind="stable") if neighbours else np.arange(d)
    np.testing.assert_allclose(
        turned[..., halves], model.rotate(x[..., halves], positions), atol=1e-4
    )
    back = answered("rotate", {"x": turned, "positions": -positions}, **told)["x"]
    np.testing.assert_allclose(back, x, atol=1e-5)
    part = answered("rotate", {"x": x, "positions": positions}, **told | {"rotated": d // 2})["x"]
    np.testing.assert_array_equal(part[..., d // 2 :], x[..., d // 2 :])


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("every", sampled((9, 1), (9,)))
def test_pytorchs_flex_attention_and_float8_agree(every):
    under_test = load(EXAMPLE)
    asked = [case for case in published() if under_test.offers(case.target)][::every]
    assert {case.target for case in asked} == {*under_test.functions}
    outcomes = [run_case(under_test, case) for case in asked]
    assert [(x.case.name, x.reason) for x in outcomes if x.status != Status.PASSED] == []
