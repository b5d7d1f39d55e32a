"""The playground's lab: what its oracle knows, and its statistics."""

import json
from pathlib import Path

import numpy as np
import pytest

from kvlab.fast.lab.evaluate.statistics import wilson
from kvlab.reference.tasks import jumps, jumps_oracle
from support.node import node

PAGE = Path("docs/playground").resolve().as_uri()


def answer(imports: str, expression: str):
    """Evaluate an expression of the playground's modules."""
    program = f"{imports}; process.stdout.write(JSON.stringify({expression}));"
    return json.loads(node("--input-type=module", "--eval", program))


def test_the_oracle_knows_what_the_references_oracle_knows():
    given = jumps.held_out(2, size=jumps.Size(fewest=5, most=22))
    texts = json.dumps([each.text.split(" ") for each in given])
    ours = answer(
        f'import {{ nextUse }} from "{PAGE}/tasks/jumps_oracle.mjs"',
        f"{texts}.map((words) => nextUse(words).map((row) => [...row]))",
    )
    for table, each in zip(ours, given, strict=True):
        expected, found = jumps_oracle.next_use(each), np.array(table)
        unused = expected == jumps_oracle.NEVER
        np.testing.assert_array_equal(found[~unused], expected[~unused])
        ages = np.broadcast_to(np.arange(len(found)), found.shape)
        assert (found[unused] == 2 * len(found) - ages[unused]).all()


@pytest.mark.parametrize(("yes", "trials"), [(0, 20), (11, 20), (20, 20), (1, 3)])
def test_wilsons_interval_is_the_labs(yes, trials):
    module = f'import {{ wilson }} from "{PAGE}/page/statistics.mjs"'
    expected = wilson([True] * yes + [False] * (trials - yes))
    assert answer(module, f"wilson({yes}, {trials})") == pytest.approx(
        [expected.low, expected.high], abs=1e-12
    )


def test_the_sign_test_by_hand():
    module = f'import {{ signTest }} from "{PAGE}/page/statistics.mjs"'
    # 2·(1/2)⁶; 2·(1 + 6 + 15)/2⁶ from the smaller side; an even split is certain
    found = answer(module, "[signTest(6, 0), signTest(2, 4), signTest(3, 3), signTest(0, 0)]")
    assert found == [0.03125, 0.6875, 1, 1]


@pytest.mark.slow
def test_the_moving_picture_is_what_its_script_makes():
    made = node("docs/study/playing.mjs")
    assert made == Path("docs/images/playing.svg").read_text("utf-8") and len(made) < 500_000
