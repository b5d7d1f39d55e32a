"""The published vectors: complete, as the schema says, and what today's reference answers."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from registry_pages import PARTS
from sampling import sampled
from shapes import shapes_checked

from kvlab.reference import methods
from kvlab.reference.conformance import vectors
from kvlab.reference.conformance.case import PRECISIONS
from kvlab.reference.conformance.checker import cases, published
from kvlab.reference.conformance.groups import composition
from kvlab.reference.conformance.implementation import exact_in_16_bits, is_vector
from kvlab.reference.conformance.targets import OPERATIONS, described

SPECIFICATIONS = vectors.SPECIFICATIONS
CASES = {"0.9": 1469, "1.0": 64, "1.1": 102}
"""Cases that each specification added."""

MOST_BYTES = 10 * 2**20
NAMED = {
    *("plain", "ties", "alpha_near_one", "mri_zero", "gqa", "block_not_dividing"),
    *("budget_ge_length", "extreme_logits", "bf16_inputs"),
}
"""Groups that the project's plan names."""


@pytest.mark.parametrize("spec", SPECIFICATIONS)
def test_the_files_fit_schema_and_sums(spec):
    directory = SPECIFICATIONS[spec]
    vectors.check_sums(directory)
    files = {file.name: file.stat().st_size for file in directory.iterdir()}
    listed = (directory / vectors.SUMS).read_text().split()[1::2]
    assert {*listed, vectors.SUMS} == {*files} and sum(files.values()) < MOST_BYTES
    index = json.loads((directory / vectors.INDEX).read_text())
    schema = json.loads((directory / vectors.SCHEMA).read_text())
    jsonschema.validate(index, schema)
    assert index.get("specification", "0.9") == spec and len(index["cases"]) == CASES[spec]
    whole = [case for case in index["cases"] if case["target"].endswith(".whole_cache")]
    assert {case["parameters"]["model"] for case in whole} <= {"reasoner"}
    index["cases"][0]["tolerance"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(index, schema)


def test_a_changed_file_is_refused(tmp_path):
    copy = shutil.copytree(vectors.DIRECTORY, tmp_path / "vectors")
    content = bytearray((copy / "h2o.safetensors").read_bytes())
    content[-1] ^= 1
    (copy / "h2o.safetensors").write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"h2o.safetensors has SHA-256 .* says"):
        vectors.read(copy)


@pytest.mark.parametrize("spec", sampled(SPECIFICATIONS, ("0.9",)))
def test_the_reference_has_not_moved(spec):
    """Today's answers are the same bytes: what `kvlab conformance verify` does."""
    with shapes_checked(False):
        same, different = vectors.check_answers(spec)
    assert not different
    assert len(same) == len((SPECIFICATIONS[spec] / vectors.SUMS).read_text().splitlines())


def test_whole_caches_have_not_moved():
    """One of many, bit by bit."""
    for case in [case for case in published() if case.operation == "whole_cache"][::20]:
        for name, each in vectors.answered_anew(case).expected.items():
            np.testing.assert_array_equal(each.value, case.expected[name].value, case.name)


def test_a_reference_that_has_moved_is_noticed(tmp_path, monkeypatch):
    case = next(case for case in published() if case.target == "attend")
    output = case.expected["output"]
    wrong = replace(output, value=output.value * (1 + 2.0**-22))
    vectors.write([replace(case, expected={"output": wrong})], tmp_path)
    monkeypatch.setattr(vectors, "SPECIFICATIONS", {"0.9": tmp_path})
    _, different = vectors.check_answers("0.9")
    assert {line.split()[1] for line in different} == {"blocks.safetensors"}


def test_every_method_and_operation_has_vectors():
    by_operation = Counter(case.operation for case in published())
    assert set(by_operation) == set(OPERATIONS)
    run = {composition(case.method).partition(":")[0] for case in published() if case.method}
    assert run == set(vectors.published_methods()) <= set(methods.names())
    for name in methods.names():  # a method without published cases has some made on the spot
        own = [case for case in cases(name) if case.target.startswith(name)]
        assert any(case.operation == "run" for case in own), name


def test_names_are_unique_and_parameters_hide_no_input():
    assert len({case.name for case in published()}) == len(published()) == sum(CASES.values())
    assert {case.group for case in published()} >= NAMED
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
                assert exact_in_16_bits(x) or case.group == "float32_inputs", (case.name, name)


def test_the_page_names_every_group_and_leaves_the_counts_to_the_package():
    page = Path("docs/conformance.md").read_text(encoding="utf-8")
    groups = {case.group for case in published()}
    of_caches = {group for group in groups if group.startswith("cache_")}
    for mark, own in (("groups of whole caches", of_caches), ("groups", groups - of_caches)):
        assert f"{{{{ {mark} }}}}" in page
        assert not {group for group in own if f"`{group}`" not in PARTS[mark]()}
    assert " {{ cases }} test" in page.replace("\n", " ")
    assert "for {{ building blocks }} building blocks" in page
