"""The published vectors: complete, as the schema says, and what today's reference answers."""

import fnmatch
import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.conformance import publishing, vectors
from kvlab.reference.conformance.checker import cases, published
from kvlab.reference.conformance.implementation import exact_in_16_bits, is_vector
from kvlab.reference.conformance.made import options_of
from kvlab.reference.conformance.operation import OPERATIONS
from kvlab.reference.conformance.planned import PUBLISHED, published_anew
from kvlab.reference.conformance.targets import has_vectors, operation_of
from support import tables
from support.sampling import sampled
from support.site import module

CASES, MOST_BYTES = 4227, 20 * 2**20


def test_the_files_fit_schema_and_sums():
    vectors.check_sums(vectors.VECTORS)
    files = {file.name: file.stat().st_size for file in vectors.VECTORS.iterdir()}
    listed = (vectors.VECTORS / vectors.SUMS).read_text().split()[1::2]
    assert {*listed, vectors.SUMS} == {*files} and sum(files.values()) < MOST_BYTES
    index = json.loads((vectors.VECTORS / vectors.INDEX).read_text())
    schema = json.loads((vectors.VECTORS / vectors.SCHEMA).read_text())
    jsonschema.validate(index, schema)
    whole = [case for case in index["cases"] if case["target"].endswith(".whole_cache")]
    assert {case["parameters"]["model"] for case in whole} <= {"reasoner"}
    index["cases"][0]["tolerance"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(index, schema)


def test_names_are_unique_and_parameters_hide_no_input():
    assert len({case.name for case in published()}) == len(published()) == CASES
    for case in published():
        assert not set(case.parameters) & set(case.inputs), case.name


def written(folder, cases):
    """Return the lines of SHA256SUMS of some cases, written into a folder."""
    publishing.write(cases, folder)
    return (folder / vectors.SUMS).read_text().splitlines()


@tables.cases(__file__, "files_that_were_changed_or_are_of_others_are_refused", "name old new said")
def test_files_that_were_changed_or_are_of_others_are_refused(tmp_path, name, old, new, said):
    some = [case for case in published() if case.target == "h2o.score"][:1]
    written(tmp_path, some)
    content = (tmp_path / name).read_bytes()
    changed = content.replace(old.encode(), new.encode(), 1)
    (tmp_path / name).write_bytes(changed)
    if name == vectors.INDEX:
        sums = (tmp_path / vectors.SUMS).read_text()
        digests = (hashlib.sha256(each).hexdigest() for each in (content, changed))
        (tmp_path / vectors.SUMS).write_text(sums.replace(*digests))
    with pytest.raises(ValueError, match=said):
        next(vectors.read(directory=tmp_path))


PARTS = ("attend*", "*requests", "encode", "events", "tova.*", "kivi.*")


@pytest.mark.parametrize("parts", sampled((PARTS, ("*",)), (PARTS,)))
def test_the_vectors_are_drawn_anew_byte_for_byte(tmp_path, parts):
    def wanted(target):
        whole = target.endswith(".whole_cache") and parts == PARTS
        return not whole and any(fnmatch.fnmatchcase(target, part) for part in parts)

    stored = [case for case in published() if wanted(case.target)]
    drawn = written(tmp_path / "drawn", published_anew(wanted))
    assert drawn == written(tmp_path / "stored", stored)
    if parts == ("*",):
        assert drawn == (vectors.VECTORS / vectors.SUMS).read_text().splitlines()


@pytest.mark.parametrize("every", sampled((1, 27), (27,)))
def test_the_reference_has_not_moved(tmp_path, every):
    """Today's answers are the same bytes: what `kvlab conformance verify` does."""
    lines = written(tmp_path, published()[::every])
    same, different = publishing.check_answers(tmp_path)
    assert not different and same == sorted(lines)


def test_an_option_of_every_method_does_not_hide_the_wrapped_methods_own():
    for case in (case for case in published() if "recent=2,page=4" in (case.method or "")):
        assert case.parameters["recent"] == options_of(case.method)["recent"] == 2


def test_a_reference_that_has_moved_is_noticed(tmp_path):
    case = next(case for case in published() if case.target == "attend")
    output = case.expected["output"]
    wrong = replace(output, value=output.value * (1 + 2.0**-22))
    publishing.write([replace(case, expected={"output": wrong})], tmp_path)
    _, different = publishing.check_answers(tmp_path)
    assert {line.split()[1] for line in different} == {"blocks.safetensors"}


@pytest.mark.slow
def test_every_method_and_operation_has_vectors():
    by_operation = Counter(case.operation for case in published())
    assert set(by_operation) == set(OPERATIONS)
    run = {methods.base_name(case.method) for case in published() if case.method}
    assert set(PUBLISHED) <= run <= set(methods.names())
    for name in filter(
        has_vectors, methods.names()
    ):  # a method without published cases has some made on the spot
        own = [case for case in cases(name) if case.target.startswith(name)]
        assert any(case.operation == "run" for case in own), name


def test_numbers_have_tolerances_and_near_ties_are_on_both_sides_of_the_threshold():
    ties = 0
    for case in published():
        tested = ("float32",) if case.operation == "whole_cache" else vectors.PRECISIONS
        for each in case.expected.values():
            assert set(each.tolerance) == ({*tested} if each.kind == "numbers" else set())
            if case.operation == "attention":  # small probabilities, too, may be stored in 16 bits
                assert vectors.compared(each, np.float16(each.value), "float16")[0] is None
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


def test_the_pages_name_every_group_and_leave_the_counts_to_the_package():
    groups = {case.group for case in published()}
    of_caches = {group for group in groups if group.startswith("cache_")}
    pages = [Path("docs", f"{x}.md").read_text("utf-8") for x in ("conformance", "kernel_fails")]
    marks = {"groups of whole caches": of_caches, "groups": groups - of_caches}
    for page, (mark, own) in zip(pages, marks.items(), strict=True):
        told = module("registry_pages").PARTS[mark]()
        assert f"{{{{ {mark} }}}}" in page and all(f"`{group}`" in told for group in own)
    assert " {{ cases }} test" in pages[0].replace("\n", " ")
    assert "for {{ building blocks }} building blocks" in pages[0]
