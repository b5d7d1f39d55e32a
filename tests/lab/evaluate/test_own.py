"""Problems and texts of one's own, from files in JSONL."""

import json

import pytest

from kvlab.fast.lab.evaluate.own import passage
from kvlab.fast.lab.evaluate.tasks import find_task
from kvlab.reference.tasks import jumps
from support.tables import cases


def written(path, *lines):
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(path)


@cases(__file__, "an_answer_is_compared_as_its_line_says", "kind answer right wrong")
def test_an_answer_is_compared_as_its_line_says(tmp_path, kind, answer, right, wrong):
    line = {"prompt": "?", "answer": answer, "compare": kind}
    task = find_task(written(tmp_path / "own.jsonl", line))
    (problem,) = task.problems(1, seed=0)
    assert task.grade(problem, right).solved
    assert not task.grade(problem, wrong).solved
    assert not task.grade(problem, "").solved


def test_the_order_is_drawn_by_seed_and_the_first_stay_the_first(tmp_path):
    task = find_task(
        written(tmp_path / "own.jsonl", *({"prompt": f"{n}", "answer": "x"} for n in range(9)))
    )
    (first, *_), all_of_them = task.problems(1, 3), task.problems(9, 3)
    assert all_of_them[0] == first and sorted(each.prompt for each in all_of_them) == [*"012345678"]
    assert all_of_them != task.problems(9, 4)
    with pytest.raises(ValueError, match=r"problems of .* = 10 must be between 1 and 9"):
        task.problems(10, 0)


@cases(__file__, "a_line_that_is_no_problem_is_refused_by_its_place", "line said")
def test_a_line_that_is_no_problem_is_refused_by_its_place(tmp_path, line, said):
    path = tmp_path / "own.jsonl"
    path.write_text(f'{{"prompt": "x", "answer": "y"}}\n{line}\n')
    with pytest.raises(ValueError, match=said):
        find_task(str(path)).problems(1, seed=0)


def test_a_number_is_an_answer_as_it_is_written(tmp_path):
    line = {"prompt": "?", "answer": 36, "compare": "number"}
    (problem,) = find_task(written(tmp_path / "own.jsonl", line)).problems(1, seed=0)
    assert problem.solution == "36"


def test_programs_written_to_a_file_are_solved_and_wrong_answers_are_shown(
    tmp_path, data, printed, computed_once, here
):
    right, wrong = jumps.held_out(2, 0, jumps.Size(fewest=3, most=4))
    lines = [
        {"prompt": each.prompt, "answer": answer, "compare": "contains"}
        for each, answer in ((right, right.solution), (wrong, "none"))
    ]
    own = f"{written(tmp_path / 'own.jsonl', *lines)}@tokens=60"
    asked = ("compare", "--task", own, "--backend", "reference", "--methods", "full")
    found = data(*asked)
    assert [(row["problems"], row["accuracy"]) for row in found["rows"]] == [(2, 0.5)]
    (told,) = found["wrong_answers"]
    assert wrong.solution in told.pop("written")
    assert told == {"method": "full", "given": wrong.prompt, "wanted": "none"}
    assert "wanted 'none', got '" in printed(*asked)


def test_texts_of_a_file_are_read_one_after_the_other(tmp_path):
    path = written(tmp_path / "texts.jsonl", {"text": "One text."}, {"text": "Another."})
    assert passage(path) == "One text.\n\nAnother."
    with pytest.raises(ValueError, match="line 1: must be a JSON object with a text"):
        passage(written(tmp_path / "other.jsonl", {"prompt": "x"}))
