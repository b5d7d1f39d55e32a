"""Tests of a kernel against kvlab's vectors: ``pip install 'kvlab[conformance]'``, then pytest."""

import flash_decode
from hypothesis import given, settings

from kvlab.reference.conformance import difference, strategies


def test_the_kernel(kvlab_conformance):
    kvlab_conformance("attend", flash_decode.attend)


def test_the_broken_kernel(kvlab_conformance):
    kvlab_conformance("attend", flash_decode.attend_broken)  # fails, and says where


@settings(max_examples=25, deadline=None)
@given(strategies.cases("attend"))
def test_the_kernel_on_other_numbers(case):
    found = flash_decode.attend(**case.inputs, **case.parameters)
    assert difference(case.expected["output"], found, "float32") is None
