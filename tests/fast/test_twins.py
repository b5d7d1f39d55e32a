"""The fast side mirrors the reference: same files, names and parameters, defaults stated once."""

from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path

import pytest

from kvlab.fast import methods as fast
from kvlab.fast.policy import TWINS
from kvlab.reference import methods
from kvlab.reference import policy as reference

ROOT = Path(__file__).parents[2]


def test_every_method_has_a_file_of_the_same_name():
    files = [
        {p.name for p in (ROOT / side / "methods").glob("*.py")} for side in ("reference", "fast")
    ]
    assert files[0] == files[1]


@pytest.mark.parametrize("part", TWINS, ids=lambda part: part.__name__)
def test_twins_have_the_same_name_and_parameters(part):
    twin = TWINS[part]
    assert twin.__name__ == part.__name__
    assert twin.__module__ == part.__module__.replace("kvlab.reference", "kvlab.fast")
    assert [f.name for f in fields(twin)] == [f.name for f in fields(part)]
    assert all(f.default is MISSING for f in fields(twin))


def test_a_part_without_a_twin_is_refused():
    @dataclass(frozen=True)
    class Unheard(reference.Nobody):
        pass

    policy = replace(methods.get("h2o", 8), protect=Unheard())
    with pytest.raises(ValueError, match="Unheard has no twin"):
        fast.port(policy)


def test_options_and_errors_are_the_references():
    policy = fast.get("caote:h2o@every=25", budget=16, recent=3)
    assert policy.name == "caote:h2o@every=25"
    assert policy.protect.recent == 3
    with pytest.raises(ValueError, match="unknown option 'evry'"):
        fast.get("h2o@evry=2", budget=8)
    with pytest.raises(TypeError, match="whole number"):
        fast.get("h2o", budget=2.5)
