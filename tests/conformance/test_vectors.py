"""The published vectors: complete, as the schema says, and what today's reference answers."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.conformance import publishing, vectors
from kvlab.reference.conformance.checker import cases, check, published
from kvlab.reference.conformance.implementation import exact_in_16_bits, is_vector
from kvlab.reference.conformance.made import options_of
from kvlab.reference.conformance.operation import OPERATIONS
from kvlab.reference.conformance.targets import has_vectors, operation_of
from study.vectors import main
from support.sampling import sampled
from support.site import module

FOLDERS = {spec: vectors.HERE / folder for spec, folder in vectors.SPECIFICATIONS.items()}
CASES = {"0.9": 1469, "1.0": 64, "1.1": 102, "1.2": 19, "1.3": 3, "1.4": 5, "1.5": 2092, "1.6": 8}
"""Cases that each specification added."""

MOST_BYTES = 10 * 2**20


@pytest.mark.parametrize("spec", FOLDERS)
def test_the_files_fit_schema_and_sums(spec):
    directory = FOLDERS[spec]
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
    copy = shutil.copytree(FOLDERS["0.9"], tmp_path / "vectors")
    content = bytearray((copy / "h2o.safetensors").read_bytes())
    content[-1] ^= 1
    (copy / "h2o.safetensors").write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"h2o.safetensors has SHA-256 .* says"):
        vectors.read_from(copy)


@pytest.mark.parametrize("spec", sampled(FOLDERS, ("0.9",)))
def test_the_reference_has_not_moved(spec):
    """Today's answers are the same bytes: what `kvlab conformance verify` does."""
    same, different = publishing.check_answers(spec)
    assert not different
    assert len(same) == len((FOLDERS[spec] / vectors.SUMS).read_text().splitlines())


BESIDE_THE_PLAN = ("1.2", "1.3", "1.4", "1.6")


@pytest.mark.parametrize("specs", sampled((BESIDE_THE_PLAN, ("1.5",)), (BESIDE_THE_PLAN,)))
def test_the_vectors_from_1_2_on_are_drawn_anew_byte_for_byte(tmp_path, specs):
    main(tmp_path, specs)
    for folder in tmp_path.iterdir():
        for file in folder.iterdir():
            published = vectors.HERE / folder.name / file.name
            assert file.read_bytes() == published.read_bytes(), "see `later` in study/vectors.toml"
    assert len([*tmp_path.iterdir()]) == len(specs)


def test_a_tanh_by_exponentials_that_overflow_is_found():
    def tanh(x):
        with np.errstate(over="ignore", invalid="ignore"):
            up, down = np.exp(x.astype(np.float32)), np.exp(-x.astype(np.float32))
            return (up - down) / (up + down)

    def received(queries, keys, positions, query_positions, softcap):
        logits = queries @ keys[:, None].swapaxes(-1, -2) / np.sqrt(queries.shape[-1])
        logits = logits if softcap is None else softcap * tanh(logits / softcap)
        seen = positions[:, None, None, :] <= query_positions[:, None]
        logits = np.where(seen, logits, -np.inf)
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True)

    failures = check("attention", received).failures()
    assert {each.case.group for each in failures} == {"beyond_the_softcap", "pairs"}


def test_an_option_of_every_method_does_not_hide_the_wrapped_methods_own():
    for case in (case for case in published() if "recent=2,page=4" in (case.method or "")):
        assert case.parameters["recent"] == options_of(case.method)["recent"] == 2


def test_a_reference_that_has_moved_is_noticed(tmp_path):
    case = next(case for case in published() if case.target == "attend")
    output = case.expected["output"]
    wrong = replace(output, value=output.value * (1 + 2.0**-22))
    publishing.write([replace(case, expected={"output": wrong})], tmp_path)
    _, different = publishing.check_answers("0.9", tmp_path)
    assert {line.split()[1] for line in different} == {"blocks.safetensors"}


def test_every_method_and_operation_has_vectors():
    by_operation = Counter(case.operation for case in published())
    assert set(by_operation) == set(OPERATIONS)
    run = {methods.base_name(case.method) for case in published() if case.method}
    assert run >= set(publishing.published_methods()) and run <= set(methods.names())
    assert publishing.published_methods()[:3] == ("full", "streaming_llm", "h2o")
    for name in filter(
        has_vectors, methods.names()
    ):  # a method without published cases has some made on the spot
        own = [case for case in cases(name) if case.target.startswith(name)]
        assert any(case.operation == "run" for case in own), name


def test_specifications_hold_each_other_names_are_unique_and_parameters_hide_no_input():
    assert {case.name for case in published("0.9")} < {case.name for case in published("1.0")}
    assert len({case.name for case in published()}) == len(published()) == sum(CASES.values())
    for case in published():
        assert not set(case.parameters) & set(case.inputs), case.name


def test_numbers_have_tolerances_and_near_ties_are_on_both_sides_of_the_threshold():
    ties = 0
    for case in published():
        tested = ("float32",) if case.operation == "whole_cache" else vectors.PRECISIONS
        for each in case.expected.values():
            assert set(each.tolerance) == ({*tested} if each.kind == "numbers" else set())
            for marks in each.either.values():
                ties += 1
                kept = np.zeros_like(marks)
                np.put_along_axis(kept, each.value, True, axis=-1)
                for stays, near in zip(kept, marks, strict=True):
                    assert (near & stays).any() == (near & ~stays).any(), case.name
    assert ties > 20


def test_vectors_are_exact_in_16_bits_but_where_the_group_says_otherwise():
    for case in published():
        fields = operation_of(case.target).inputs
        for name, x in case.inputs.items():
            if is_vector(fields[name]) and case.operation in ("attend", "run"):
                said = case.group in ("float32_inputs", "pairs")
                assert said or exact_in_16_bits(x), (case.name, name)


def test_the_page_names_every_group_and_leaves_the_counts_to_the_package():
    page = Path("docs/conformance.md").read_text(encoding="utf-8")
    groups = {case.group for case in published()}
    of_caches = {group for group in groups if group.startswith("cache_")}
    for mark, own in (("groups of whole caches", of_caches), ("groups", groups - of_caches)):
        assert f"{{{{ {mark} }}}}" in page
        assert not {
            group for group in own if f"`{group}`" not in module("registry_pages").PARTS[mark]()
        }
    assert " {{ cases }} test" in page.replace("\n", " ")
    assert "for {{ building blocks }} building blocks" in page
