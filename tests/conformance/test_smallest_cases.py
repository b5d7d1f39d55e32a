"""The smallest failing case is one that the reference can answer."""

import numpy as np

from kvlab.reference.conformance import check


def test_groups_do_not_shrink_to_nothing():
    report = check("quantize_dequantize", lambda x: np.round(x))
    assert not report.passed
    for outcome in report.failures():
        assert outcome.smallest is not None
        assert outcome.smallest.case.parameters["group"] >= 1


def test_nothing_is_compared_with_what_is_no_number():
    def printed(h, values, fast, norm):
        if fast or norm != 2:
            raise NotImplementedError
        output = h @ values
        distance = np.linalg.norm(output[:, :, None] - values[:, None], axis=-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return h / (1 - h) * distance

    failures = check("eviction_error", printed).failures()
    assert failures
    for outcome in failures:
        assert outcome.smallest is not None
        expected = outcome.smallest.case.expected["error"].value
        assert not np.isnan(expected).any()
