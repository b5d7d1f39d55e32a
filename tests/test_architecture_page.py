"""The page on the architecture shows what the code is."""

import re
from functools import cache
from pathlib import Path

import pytest
from rooms import FRONT, allowed, read_graph

pytest.importorskip("transformers")

from room_picture import arrows_between_rooms, direct, draw, drawn_rooms
from token_life import follow_token

ROOT = Path(__file__).parents[1]
read_graph = cache(read_graph)
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_table_names_every_room_and_a_file_that_is_there():
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| `([^`]+)` \|$", PAGE, flags=re.M)
    graph = read_graph()
    assert {room for room, _ in rows} == set(drawn_rooms(graph).values()) - {FRONT}
    assert all((ROOT / place).exists() for _, place in rows)


def test_the_picture_has_every_room_and_arrow():
    graph = read_graph()
    arrows = direct(arrows_between_rooms(graph, drawn_rooms(graph)))
    drawing = draw()
    assert drawing.count('class="kvlab-arrow"') == sum(map(len, arrows.values())) > 10
    assert all(f">{room.replace(chr(39), '&#x27;')}</text>" in drawing for room in arrows)


def test_an_arrow_that_others_replace_is_left_out():
    assert direct({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": {"b"}, "b": {"c"}, "c": set()}


def test_a_token_is_observed_decided_on_and_one_leaves():
    calls = follow_token()
    names = [call.name for call in calls]
    order = ["step", "LayerCache.append", "observe", "decide", "LayerCache.evict_one"]
    places = [names.index(name) for name in order]
    assert places == sorted(places)
    assert [calls[place].entries for place in places] == [12, 12, 13, 13, 13]
    assert calls[-1].entries == 12
    assert all(allowed("kvlab.fast.lab.cli", call.module) for call in calls)
