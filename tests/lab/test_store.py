"""Rows outlive processes, whatever ends them, and several processes fill one file."""

import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import pytest
from jaxtyping import Float

from kvlab.fast.lab.loop import Step, run_all
from kvlab.fast.lab.points import After
from kvlab.fast.lab.store import Store, read_as, written
from support.sweeping import wait_until


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Record:
    name: str
    ends: tuple[int, float]
    array: Float[np.ndarray, "n"]
    colour: Colour = Colour.RED
    after: After | None = None
    more: dict[str, list[After]] = field(default_factory=dict)


def test_a_row_is_read_as_the_record_that_was_written():
    row = Record("a", (1, 0.1), np.array([0.1, np.inf]), after=After(1, 2, "tokens"))
    text = written([row])
    assert "red" not in text and "refusal" not in text
    (read,) = read_as(list[Record], text)
    assert read.array.tolist() == row.array.tolist()
    assert (read.ends, read.colour, read.after) == ((1, 0.1), Colour.RED, row.after)
    with pytest.raises(TypeError, match="a row cannot hold <object"):
        written(object())


def test_rows_outlive_the_store_and_an_item_is_claimed_once(tmp_path):
    path = tmp_path / "deep" / "rows.sqlite"
    one, other = Store(path), Store(path)
    assert one.claim("a") and one.claim("a") and not other.claim("a")
    one.keep("a", "1")
    assert not one.claim("a") and other.row("a") == "1" and other.row("b") is None
    assert one.claim("b")
    one.release()
    assert other.claim("b") and other.rows() == {"a": "1"}


def test_a_file_that_is_no_store_is_named(tmp_path):
    path = tmp_path / "rows.sqlite"
    path.write_text("no rows, but a text that is longer than a header " * 20)
    with pytest.raises(OSError, match=r"rows\.sqlite cannot be used .*; if it is damaged, delete"):
        Store(path)
    with pytest.raises(OSError, match="cannot be used"):
        Store(tmp_path)


# --- several processes ---------------------------------------------------------------------------

WORK = """
import os, signal, sys, time
from pathlib import Path
from kvlab.fast.lab.loop import Step, run_all
from kvlab.fast.lab.store import Store

place, last = Path(sys.argv[1]), sys.argv[2]

def work(number):
    with (place / "done.txt").open("a") as file:
        file.write(f"{number}\\n")
    if str(number) == last:
        (place / "held").touch()
        time.sleep(600)
    time.sleep(0.001)
    return number

steps = [Step(str(n), lambda n=n: work(n)) for n in range(60)]
print(len(run_all(steps, Store(place / "rows.sqlite", durable=False))))
"""


def start(place, last="none"):
    command = [sys.executable, "-c", WORK, str(place), last]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_share_a_work_and_one_that_is_killed_loses_what_it_began_alone(tmp_path):
    """Three do 60 items; the first is killed with SIGKILL in the middle of its 11th."""
    killed = start(tmp_path, last="10")
    wait_until((tmp_path / "held").exists)
    others = [start(tmp_path) for _ in range(2)]
    wait_until(lambda: len(Store(tmp_path / "rows.sqlite").rows()) == 59)
    assert [other.poll() for other in others] == [None, None]  # they wait for the one that is left
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert [other.communicate()[0] for other in others] == ["60\n", "60\n"]
    begun = Counter((tmp_path / "done.txt").read_text().split())
    assert {item: times for item, times in begun.items() if times > 1} == {"10": 2}
    assert len(begun) == len(Store(tmp_path / "rows.sqlite").rows()) == 60


def test_what_another_process_makes_meanwhile_is_taken_and_not_done(tmp_path):
    store, other = Store(tmp_path / "rows.sqlite"), Store(tmp_path / "rows.sqlite")
    steps = [Step(name, lambda: other.keep("second", "2") or 1) for name in ("first", "second")]
    told = []
    assert run_all(steps, store, tell=lambda *row: told.append(row)) == {"first": 1, "second": 2}
    assert told == [(steps[0], 1), (steps[1], 2)]


def test_an_engine_that_does_nothing_ends_the_loop():
    with pytest.raises(RuntimeError, match="first was begun, and nothing was done"):
        run_all([Step("first", int)], engine=lambda steps: (step for step in steps if not step))
