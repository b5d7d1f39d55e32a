"""What serving engines do beside a method: worked out by hand, and asked of PyTorch's own."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

from kvlab.reference.conformance import Status, load, published
from kvlab.reference.conformance.checker import run_case
from kvlab.reference.conformance.made import made_case
from kvlab.reference.models import reasoner_directory
from kvlab.reference.transformer import Transformer

EXAMPLE = Path("docs/examples/conformance/flex_attention.py")
NONE = {"attend_requests": {"scale": None, "softcap": None, "window": None}}
ROWS = tomllib.loads(Path(__file__).with_name("by_hand.toml").read_text(encoding="utf-8"))["row"]


def answered(target, inputs, **parameters):
    given = {name: np.array(x) for name, x in inputs.items()}
    case = made_case(f"{target}/hand/0", "hand", None, (given, parameters))
    return {name: each.value for name, each in case.expected.items()}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["target"])
def test_the_answers_worked_out_by_hand(row):
    told = NONE.get(row["target"], {}) | row["parameters"]
    found = answered(row["target"], row["inputs"], **told)
    if "mass" in row["expected"]:
        found["mass"] = np.exp(found["lse"])
    for name, x in row["expected"].items():
        np.testing.assert_allclose(found[name].ravel(), x, rtol=1e-6)


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
@pytest.mark.slow
def test_pytorchs_flex_attention_and_float8_agree():
    under_test = load(EXAMPLE)
    asked = [case for case in published() if under_test.offers(case.target)]
    assert {case.target for case in asked} == {*under_test.functions}
    outcomes = [run_case(under_test, case) for case in asked]
    assert [(x.case.name, x.reason) for x in outcomes if x.status != Status.PASSED] == []
