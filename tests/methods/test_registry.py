"""The registry's syntax, and that equations and divergences are complete."""

import importlib
import inspect
import itertools
import re
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvlab.reference import Example, Method, Needs, check_promises, methods
from kvlab.reference.files import divergences_in
from kvlab.reference.methods import known, lookup
from kvlab.reference.methods.caote import Caote
from kvlab.reference.methods.h2o import H2O
from kvlab.reference.policy import Edges
from kvlab.reference.precisions import families
from kvlab.reference.simulator.work import Sizes, rating
from support.outside import SOURCE, methods_named
from support.shapes import shapes_checked

REFERENCE = Path(methods.__file__).parents[1]
REFUSED = tomllib.loads((Path(__file__).parent / "refused.toml").read_text(encoding="utf-8"))
ALONE = {name: method for name, method in known().items() if name not in methods.wrappers()}
TAG = re.compile(r"# \[([A-Za-z0-9-]+ \d+)\]$", re.MULTILINE)


def all_tags() -> list[str]:
    return [tag for path in REFERENCE.rglob("*.py") for tag in TAG.findall(path.read_text())]


def test_every_equation_of_a_method_or_a_precision_is_implemented_once_and_no_other():
    stated = [*map(lookup, methods.names()), *families().values()]
    equations = {equation for each in stated for equation in each.equations}
    assert Counter(all_tags()) == dict.fromkeys(equations, 1)
    assert "CAOTE 99" not in equations


@pytest.mark.parametrize("package", ["methods", "precisions"])
def test_divergences_are_of_files_and_their_options_can_be_typed(package):
    """Every option that a divergence names is registry syntax that parses."""
    found = divergences_in(package)
    assert all((REFERENCE / package / f"{name}.py").is_file() for name in found)
    for divergence in itertools.chain(*found.values()):
        assert all(isinstance(value, str) and value for value in vars(divergence).values())
        for spec in re.findall(r"[a-z0-9_:]+@[a-z0-9_=.,]*[a-z0-9]", divergence.option):
            methods.parse(spec)


def test_options_reach_the_wrapper_and_the_wrapped():
    method = methods.parse("caote:h2o@every=25,recent=8,heads=max")
    assert isinstance(method, Caote)
    assert (method.every, method.heads, method.base) == (25, "max", methods.parse("h2o@recent=8"))


def test_keyword_options_and_text_are_the_same():
    assert methods.parse("h2o@recent=8") == methods.parse("h2o", recent=8)
    assert methods.get("h2o@every=25", 50).name == "h2o@every=25"


@pytest.mark.parametrize(
    ("kind", "spec", "budget", "message"),
    [(kind, *row) for kind in (ValueError, TypeError) for row in REFUSED[kind.__name__]],
)
def test_what_cannot_be_is_refused(kind, spec, budget, message):
    with pytest.raises(kind, match=message):
        methods.get(spec, budget or None)


@pytest.mark.parametrize(
    ("budget", "kind", "message"),
    [
        *((budget, TypeError, "must be a whole number of entries") for budget in (2.5, "50", True)),
        (0, ValueError, "budget = 0 must be at least 1"),
    ],
)
def test_a_budget_is_a_whole_number_of_at_least_one(budget, kind, message):
    get = inspect.unwrap(methods.get)  # past the type check of the tests
    with pytest.raises(kind, match=message):
        get("h2o", budget)


@pytest.mark.parametrize("name", [name for name, m in ALONE.items() if m.budgeted])
def test_a_missing_budget_is_named(name):
    with pytest.raises(ValueError, match=f"{name} needs a budget"):
        methods.get(name)


# --- methods from outside ------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "looks_file.py"
    path.write_text(SOURCE)
    return path


def test_a_file_that_the_environment_names_is_a_method(file):
    before = methods.names()
    with methods_named(file):
        assert [name for name in methods.names() if name != "looks"] == [*before]
        assert methods.names().index("looks") < methods.names().index("caote")
        assert methods.describe()["looks"]["options"] == {"share": 0.05, "recent": 4}
        policy = methods.get("looks@share=0.1", 9)
        assert (policy.score.share, policy.protect.recent) == (0.1, 4)
        assert methods.get("caote:looks@recent=3", 9).protect.recent == 3
        with pytest.raises(ValueError, match="unknown option 'window' of looks"):
            methods.get("looks@window=1", 9)
    with pytest.raises(ValueError, match="unknown method 'looks'"):
        methods.get("looks", 9)


def test_what_a_method_does_not_say_has_a_default(file):
    with methods_named(file):
        assert methods.examples_of("looks") == (Example("looks", 12),)
        assert "looks" in methods.compared()
        assert methods.takes_budget("looks")
        assert methods.divergences("looks") == ()
        score = methods.get("looks", 9).score
        assert (score.needs, score.ordinal, score.signed) == (Needs(), False, False)
        assert rating(score, Sizes(n=10, rho=2, d=4)).bytes == 4 * 10 * (1 + 1)


def test_it_keeps_every_promise(file):
    with methods_named(file), shapes_checked(False):
        found = check_promises(lambda budget: methods.get("looks@recent=3", budget))
        assert not [each for each in found if each.objection]
        around = check_promises(lambda budget: methods.get("caote:looks@recent=3", budget))
        assert not [each for each in around if each.objection]


REGISTERED = "@methods.register\n@dataclass(frozen=True)\nclass Looks"


def test_a_module_may_import_its_method_and_be_imported_before(file, monkeypatch):
    """The class was registered by its decorator, before the registry reads the environment."""
    known = SOURCE.replace("import Column", "import methods, Column")
    file.write_text(known.replace("@dataclass(frozen=True)\nclass Looks", REGISTERED))
    (file.parent / "shelf.py").write_text("from looks_file import Looks")
    monkeypatch.syspath_prepend(file.parent)
    with methods_named("shelf"):
        importlib.import_module("shelf")
        assert methods.lookup("looks").__module__ == "looks_file"
    sys.modules.pop("looks_file")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (SOURCE.replace("@dataclass(frozen=True)\nclass", "class"), "Looks of .*must be a data"),
        (None, "KVLAB_METHODS: .*mine.py cannot be imported: file = .*mine.py does not exist"),
        ("", "KVLAB_METHODS: .*mine.py defines no method"),
        ("1 / 0", "mine.py cannot be imported: .* cannot be run: ZeroDivisionError"),
        (SOURCE.replace('"looks"\n', '"h2o"\n'), "method 'h2o' is defined twice: by H2O of .*h2o"),
        (SOURCE.replace('"looks"\n', '"mikv"\n'), "method 'mikv' is defined twice: by DDKS of"),
        (SOURCE.replace('"looks"\n', '"a:b"\n'), "name = 'a:b' of Looks must be a word"),
        (SOURCE.replace('    name = "looks"\n', ""), "name = None of Looks must be a word"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path, content, message):
    path = tmp_path / "mine.py"
    if content is not None:
        path.write_text(content)
    with methods_named(path), pytest.raises((ValueError, TypeError), match=message):
        methods.names()


def test_a_class_is_registered_where_it_is_defined():
    def define():
        @methods.register
        @dataclass(frozen=True)
        class Mine(H2O):
            name = "mine"
            variants = {"mine-lagged": "mine@every=5"}

        return Mine

    with methods_named():
        define()
        newer = define()  # as a notebook's cell that is run again
        assert methods.lookup("mine") is newer
        assert methods.get("mine-lagged", 9).schedule.every == 5
        with pytest.raises(TypeError, match="must be a class that derives from Method"):
            inspect.unwrap(methods.register)(dict)
    assert "mine" not in methods.names()


def test_tables_follow_the_dates_of_publication():
    listed = [method.published for method in ALONE.values()]
    assert listed == sorted(listed)
    form = rf"20\d\d-[01]\d|{Method.published}"
    first = ["full", "random", "value_norm"]
    assert list(ALONE)[:3] == first, "what others are compared with comes first"
    assert listed[:3] == ["", "", ""]
    assert all(re.fullmatch(form, date) for date in listed[3:])
    assert methods.names()[-2:] == ("caote", "fast_caote")
    assert max([*listed, Method.published]) == Method.published, "unpublished ones come last"


# --- examples and comparisons --------------------------------------------------------------------


@pytest.mark.parametrize("name", methods.names())
def test_every_method_has_examples_that_tests_run(name):
    examples = methods.examples_of(name)
    assert any(example.shared for example in examples)
    for example in examples:
        assert methods.base_name(example.spec) == name
        methods.get(example.spec, example.budget)


def test_comparisons_name_every_method_and_begin_with_the_full_cache():
    compared = methods.compared()
    assert compared[0] == "full"
    assert {methods.base_name(spec) for spec in compared} == set(methods.names())
    budgeted = [methods.takes_budget(spec) for spec in compared]
    assert budgeted == sorted(budgeted)


def test_options_are_checked_however_a_method_is_made():
    with shapes_checked(False):  # past the tests' type check
        with pytest.raises(ValueError, match="gain = 'steep' must be one of 'step', 'measured'"):
            methods.lookup("ahakv")(gain="steep")
        with pytest.raises(TypeError, match="window = 'wide' of snapkv must be a whole number"):
            methods.lookup("snapkv")(window="wide")


# --- what is protected: options of every method --------------------------------------------------


@pytest.mark.parametrize("name", ALONE)
def test_every_method_takes_what_is_safe(name):
    budget = 192 if methods.takes_budget(name) else None
    edges = methods.get(f"{name}@sinks=1,recent=2", budget).protect
    assert edges.count(prompt=20) >= 3
    pinned = methods.get(f"{name}@pin_prompt=true", budget).protect
    assert pinned.count(prompt=20) >= 20


def test_what_is_safe_joins_what_the_method_protects():
    edges = methods.get("tova@sinks=2,recent=3", 8).protect
    assert (edges.sinks, edges.recent, edges.prompt) == (2, 3, False)
    both = methods.get("caote:h2o@sinks=1,pin_prompt=true", 8).protect
    assert (both.sinks, both.recent, both.prompt) == (1, 4, True)
    nacl = methods.get("nacl@proxy_share=0.2,pin_prompt=true", 30)
    assert nacl.protect.one.options.sinks == 4
    assert nacl.protect.other.prompt


@pytest.mark.parametrize(
    ("written", "edges"),
    [
        ("nothing", Edges()),
        ("first4+newest16", Edges(sinks=4, recent=16)),
        ("first10%+newest50%", Edges(sinks=3, recent=13)),
        ("prompt", Edges(prompt=True)),
    ],
)
def test_protected_replaces_the_protection_of_the_method(written: str, edges: Edges) -> None:
    """A share of 25 entries is rounded up; the matched control has the same protection."""
    for spec in ("h2o@recent=3", "random:h2o@recent=3", "random"):
        with_option = f"{spec}{',' if '@' in spec else '@'}protected={written}"
        assert methods.get(with_option, 25).protect == edges
    assert methods.get("h2o@recent=3", 25).protect == Edges(recent=3)


@pytest.mark.parametrize(
    "wrong", ["first0%", "newest10%+first0%", "newest101%", "first9999999999%"]
)
def test_a_share_that_protects_nothing_or_too_much_is_refused(wrong: str) -> None:
    words = rf"^protected = '{re.escape(wrong)}' must have shares from 1 % to 100 % .*, not \w+\d%$"
    with pytest.raises(ValueError, match=words):
        methods.get(f"h2o@protected={wrong}", 15)


@pytest.mark.parametrize("wrong", ["none", "first", "newest-1", "first4,newest2", "oldest3"])
def test_a_protection_that_does_not_exist_is_refused(wrong: str) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(wrong.split(",")[0])):
        methods.get(f"h2o@protected={wrong}", 15)
