"""The published vectors: complete, as the schema says, and the same bits whenever they are made."""

import json
import shutil
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import jsonschema
import numpy as np
import pytest
from registry_pages import PARTS
from shapes import shapes_checked

from kvlab.reference import methods
from kvlab.reference.conformance import cases, published, vectors
from kvlab.reference.conformance.block_cases import block_cases
from kvlab.reference.conformance.building import ATTEMPTS, example_cases
from kvlab.reference.conformance.cache_cases import GROUPS
from kvlab.reference.conformance.case import PRECISIONS
from kvlab.reference.conformance.groups import PRECISE, composition, groups_of
from kvlab.reference.conformance.implementation import exact_in_16_bits, is_vector
from kvlab.reference.conformance.targets import OPERATIONS, described

MOST_BYTES = 10 * 2**20
NAMED = {
    *("plain", "ties", "alpha_near_one", "mri_zero", "gqa", "block_not_dividing"),
    *("budget_ge_length", "extreme_logits", "bf16_inputs"),
}
"""Groups that the project's plan names."""


def test_the_files_fit_schema_and_sums():
    vectors.check_sums(vectors.DIRECTORY)
    index = json.loads((vectors.DIRECTORY / vectors.INDEX).read_text())
    schema = json.loads((vectors.DIRECTORY / vectors.SCHEMA).read_text())
    jsonschema.validate(index, schema)
    index["cases"][0]["tolerance"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(index, schema)


def test_every_file_is_listed_and_they_are_small():
    files = {file.name: file.stat().st_size for file in vectors.DIRECTORY.iterdir()}
    listed = (vectors.DIRECTORY / vectors.SUMS).read_text().split()[1::2]
    assert {*listed, vectors.SUMS} == {*files}
    assert sum(files.values()) < MOST_BYTES


def test_a_changed_file_is_refused(tmp_path):
    copy = shutil.copytree(vectors.DIRECTORY, tmp_path / "vectors")
    content = bytearray((copy / "h2o.safetensors").read_bytes())
    content[-1] ^= 1
    (copy / "h2o.safetensors").write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"h2o.safetensors has SHA-256 .* says"):
        vectors.read(copy)


def test_every_method_and_operation_has_vectors():
    by_operation = Counter(case.operation for case in published())
    assert set(by_operation) == set(OPERATIONS)
    run = {composition(case.method).partition(":")[0] for case in published() if case.method}
    assert run == set(vectors.published_methods()) <= set(methods.names())
    for name in methods.names():  # a method without published cases has some made on the spot
        own = [case for case in cases(name) if case.target.startswith(name)]
        assert any(case.operation == "run" for case in own), name


def test_groups_are_named_after_what_they_stress():
    assert {case.group for case in published()} >= NAMED


def test_names_are_unique_and_parameters_hide_no_input():
    assert len({case.name for case in published()}) == len(published())
    for case in published():
        assert not set(case.parameters) & set(case.inputs), case.name


def test_numbers_have_tolerances_and_some_selections_near_ties():
    near = 0
    for case in published():
        for each in case.expected.values():
            assert (each.kind == "numbers") == bool(each.tolerance)
            tested = PRECISIONS if case.operation != "whole_cache" else ("float32",)
            assert not each.tolerance or set(each.tolerance) == set(tested)
            near += bool(each.either)
    assert near > 20


def test_either_choice_is_on_both_sides_of_the_threshold():
    for case in published():
        for each in case.expected.values():
            for marks in each.either.values():
                kept = np.zeros_like(marks)
                np.put_along_axis(kept, each.value, True, axis=-1)
                for stays, near in zip(kept, marks, strict=True):
                    assert not near.any() or (near & stays).any(), case.name
                    assert not near.any() or (near & ~stays).any(), case.name


def test_vectors_are_exact_in_16_bits_but_where_the_group_says_otherwise():
    for case in published():
        fields = described(case).inputs
        for name, x in case.inputs.items():
            if is_vector(fields[name]) and case.operation in ("attend", "run"):
                assert exact_in_16_bits(x) or case.group in PRECISE, (case.name, name)


LATE = {
    ("caote:h2o@recent=4", "alpha_near_one"),
    ("caote:h2o@recent=4", "bf16_inputs"),
    ("caote:tova", "repeated_entries"),
    ("fast_caote:h2o@recent=4", "alpha_near_one"),
    ("tova", "repeated_entries"),
    ("tova", "softcap"),
}
"""Methods and groups whose first clear stream comes after hundreds of others."""


EVERY = 4
"""Of the methods' groups, one in so many is made anew, some of each method."""


def made_soon():
    """Return the methods' groups that are made anew; the slow test makes all of them."""
    groups = [
        (example, group)
        for name in vectors.published_methods()
        for example in methods.examples_of(name)
        for group in groups_of(example)
        if (example.spec, group) not in LATE
    ]
    return groups[::EVERY]


def test_the_reference_has_not_moved(tmp_path):
    """Bit by bit, as the files store it."""
    groups = made_soon()
    with shapes_checked(False):
        cases = [case for each in groups for case in example_cases(*each, ATTEMPTS)]
        vectors.write([*block_cases("0.9"), *cases], tmp_path)
    stored = {case.name: case for case in published("0.9")}
    for made in vectors.read(tmp_path):
        case = stored.pop(made.name)
        assert (made.target, made.group, made.method) == (case.target, case.group, case.method)
        assert made.parameters == case.parameters, made.name
        assert made.inputs.keys() == case.inputs.keys(), made.name
        assert made.expected.keys() == case.expected.keys(), made.name
        for name, x in made.inputs.items():
            np.testing.assert_array_equal(x, case.inputs[name], f"{made.name} {name}")
        for name, each in made.expected.items():
            assert_same(each, case.expected[name], f"{made.name} {name}")
    own = {(example.spec, group) for example, group in groups}
    assert {composition(spec).partition(":")[0] for spec, _ in own} == {
        *vectors.published_methods()
    }
    left = {(case.method, case.group) for case in stored.values()}
    assert left >= LATE and not left & own


def assert_same(made, stored, name):
    assert (made.kind, made.tolerance) == (stored.kind, stored.tolerance), name
    np.testing.assert_array_equal(made.value, stored.value, name)
    for one, other in ((made.where, stored.where), (made.slack, stored.slack)):
        assert (one is None) == (other is None), name
        if one is not None:
            np.testing.assert_array_equal(one, other, name)
    assert made.either.keys() == stored.either.keys(), name
    for key, marks in made.either.items():
        np.testing.assert_array_equal(marks, stored.either[key], name)


@pytest.mark.slow
def test_all_of_the_reference_has_not_moved():
    """What `kvlab conformance verify` does."""
    with TemporaryDirectory() as folder, shapes_checked(False):
        vectors.write(vectors.published_cases(), vectors.Path(folder))
        made = (vectors.Path(folder) / vectors.SUMS).read_text()
    assert made == (vectors.DIRECTORY / vectors.SUMS).read_text()


def test_the_page_names_every_group_and_leaves_the_counts_to_the_package():
    page = Path("docs/conformance.md").read_text(encoding="utf-8")
    groups = {case.group for case in published()}
    of_caches = {group for own in GROUPS.values() for group in own}
    for mark, own in (("groups of whole caches", of_caches), ("groups", groups - of_caches)):
        assert f"{{{{ {mark} }}}}" in page
        assert not {group for group in own if f"`{group}`" not in PARTS[mark]()}
    assert " {{ cases }} test" in page.replace("\n", " ")
    assert "for {{ building blocks }} building blocks" in page
