"""What goes wrong with memory alone: the command, `check` and the fixture all notice it."""

import pytest
from typer.testing import CliRunner

from kvlab.fast.lab.cli import app
from kvlab.reference.conformance import check
from kvlab.reference.conformance.implementation import load
from support.sampling import sampled

KERNEL = """
import numpy as np

def flat(x):  # a pointer and sizes, without strides
    steps = np.cumprod([x.itemsize, *x.shape[:0:-1]])[::-1]
    return np.lib.stride_tricks.as_strided(x, x.shape, steps)

def by_positions(queries, keys, values, positions, query_positions, softcap):
    keys = KEYS
    logits = np.einsum("grmd,gnd->grmn", queries, keys) / np.sqrt(queries.shape[-1])
    if softcap is not None:
        logits = softcap * np.tanh(logits / softcap)
    seen = positions[:, None, None] <= query_positions[:, None]
    logits = np.where(seen, logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    LAST
    return np.einsum("grmn,gnd->grmd", weights, values)

def by_pages(queries, key_pages, value_pages, table, query_positions, softcap):
    page, there = key_pages.shape[1], THERE
    there = there[: PAGES]
    positions = (there[:, None] * page + np.arange(page)).ravel()
    keys, values = (x[table[there]].reshape(len(positions), *x.shape[2:]).swapaxes(0, 1)
                    for x in (key_pages, value_pages))
    written = positions <= query_positions.max() if READ is None else np.full(len(positions), READ)
    everywhere = np.tile(positions[written], (len(keys), 1))
    return by_positions(queries, keys[:, written], values[:, written], everywhere,
                        query_positions, softcap)

IMPLEMENTATIONS = {"attend": by_positions, "attend_pages": by_pages}
"""
THERE = "np.flatnonzero(table >= 0)"
RIGHT = {"KEYS": "keys", "LAST": "", "PAGES": "None", "READ": "None", "THERE": THERE}
MISTAKES = {
    "strides are ignored": ("attend", "KEYS", "flat(keys)", "where inputs are slices, output"),
    "eight pages are read": ("attend_pages", "PAGES", "8", "output is wrong"),
    "dead places are read": ("attend_pages", "READ", "True", "nan instead of"),
    "freed pages are read": ("attend_pages", "THERE", "np.arange(len(table))", "output is wrong"),
    "queries are overwritten": ("attend", "LAST", "queries *= 2", "the input queries was changed"),
}


@pytest.fixture
def kernel(tmp_path):
    """Write a kernel with one mistake, or none."""

    def write(name="", value=""):
        text = KERNEL
        for each, right in RIGHT.items():
            text = text.replace(each, value if each == name else right)
        file = tmp_path / "kernel.py"
        file.write_text(text)
        return file

    return write


def test_a_right_one_passes(kernel):
    check(None, load(kernel()), minimise=False).raise_for_failures()


@pytest.mark.parametrize(("target", "name", "value", "said"), MISTAKES.values(), ids=MISTAKES)
def test_check_notices(target, name, value, said, kernel):
    failures = check(target, load(kernel(name, value)), minimise=False).failures()
    assert any(said in each.reason for each in failures)


@pytest.mark.parametrize("mistake", sampled(MISTAKES, [*MISTAKES][:1]))
def test_command_and_fixture_notice(mistake, kernel, tmp_path, tested):
    target, name, value, said = MISTAKES[mistake]
    file = kernel(name, value)
    done = CliRunner().invoke(
        app, ["conformance", "run", str(file), "--target", target, "--no-minimise"]
    )
    assert done.exit_code == 1 and said in " ".join(done.output.split())
    test = f"import kernel\ndef test_it(kvlab_conformance):\n    kvlab_conformance({target!r}, "
    (tmp_path / "test_it.py").write_text(
        f"{test}kernel.IMPLEMENTATIONS[{target!r}], minimise=False)\n"
    )
    code, shown = tested(tmp_path)
    assert code == 1 and said in " ".join(shown.split())
