"""The registry's syntax, and that equations and divergences are complete."""

import inspect
import re
from pathlib import Path

import pytest

from kvlab.reference import methods
from kvlab.reference.methods import METHODS, WRAPPERS
from kvlab.reference.methods.caote import Caote

REFERENCE = Path(methods.__file__).parents[1]
TAG = re.compile(r"# \[([A-Za-z0-9-]+ \d+)\]$", re.MULTILINE)


def all_tags() -> list[str]:
    return [tag for path in REFERENCE.rglob("*.py") for tag in TAG.findall(path.read_text())]


@pytest.mark.parametrize("method", [*METHODS.values(), Caote], ids=lambda method: method.name)
def test_every_equation_is_implemented_once(method):
    tags = all_tags()
    assert {equation: tags.count(equation) for equation in method.equations} == dict.fromkeys(
        method.equations, 1
    )


def test_every_tag_is_listed_by_a_method():
    listed = {equation for method in (*METHODS.values(), Caote) for equation in method.equations}
    assert set(all_tags()) == listed


def test_a_tag_that_is_missing_would_be_noticed():
    assert "CAOTE 99" not in all_tags()


@pytest.mark.parametrize("name", methods.names())
def test_divergence_options_can_be_typed(name):
    """Every option that a divergence names is registry syntax that parses."""
    for divergence in methods.divergences(name):
        for spec in re.findall(r"[a-z0-9_:]+@[a-z0-9_=.,]*[a-z0-9]", divergence.option):
            methods.parse(spec)


@pytest.mark.parametrize("variant", sorted(methods.variants()))
def test_variants_are_compositions(variant):
    spec = methods.variants()[variant]
    assert "@" in spec
    methods.parse(variant)


def test_options_reach_the_wrapper_and_the_wrapped():
    method = methods.parse("caote:h2o@every=25,recent=8,heads=max")
    assert isinstance(method, Caote)
    assert (method.every, method.heads, method.base) == (25, "max", methods.parse("h2o@recent=8"))


def test_keyword_options_and_text_are_the_same():
    assert methods.parse("h2o@recent=8") == methods.parse("h2o", recent=8)
    assert methods.get("h2o@every=25", 50).name == "h2o@every=25"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("h3o", "unknown method 'h3o'; known are full, streaming_llm"),
        ("", "unknown method ''"),
        ("h2o:tova", "method 'h2o' wraps nothing"),
        ("fast_caote", "fast_caote wraps another method"),
        ("h2o@window=3", "unknown option 'window' of h2o; allowed are every, recent, reduce"),
        ("caote:h2o@window=3", "unknown option 'window' of caote:h2o; allowed are base|unknown"),
        ("h2o@recent", "'recent' in 'h2o@recent' must have the form option=value"),
        ("h2o@recent=-1", "recent = -1 must be at least 0"),
        ("h2o@every=0", "every = 0 must be at least 1"),
    ],
)
def test_bad_specs(spec, message):
    with pytest.raises(ValueError, match=message):
        methods.get(spec, 50)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("h2o@recent=many", "recent = 'many' of h2o must be"),
        ("h2o@every=2.5", r"every = 2\.5 of h2o must be int"),
        ("tova@per_head=1", "per_head = 1 of tova must be bool"),
    ],
)
def test_bad_types(spec, message):
    with pytest.raises(TypeError, match=message):
        methods.get(spec, 50)


@pytest.mark.parametrize("budget", [2.5, "50", True])
def test_a_budget_is_a_whole_number(budget):
    get = inspect.unwrap(methods.get)  # past the type check of the tests
    with pytest.raises(TypeError, match="must be a whole number of entries"):
        get("h2o", budget)


@pytest.mark.parametrize("name", [name for name, m in METHODS.items() if m.budgeted])
def test_a_missing_budget_is_named(name):
    with pytest.raises(ValueError, match=f"{name} needs a budget"):
        methods.get(name)


def test_every_method_is_described():
    described = methods.describe()
    assert set(described) == set(METHODS) | set(WRAPPERS)
    assert described["lazy_eviction"]["options"]["window"] == 25
