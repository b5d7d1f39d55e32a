"""Jump programs are shown in the playground as people write them, and read again."""

import json
from pathlib import Path

from kvlab.reference.tasks import jumps
from support.node import node

MODULE = Path("docs/playground/tasks/jumps.mjs").resolve().as_uri()


def answer(function: str, texts: list) -> list:
    """Call a function of the module with every text; an error is returned as its message."""
    program = f"""
        import {{ jumps }} from "{MODULE}";
        const call = (text) => {{
          try {{ return jumps.{function}(text); }} catch (error) {{ return error.message; }}
        }};
        process.stdout.write(JSON.stringify({json.dumps(texts)}.map(call)));"""
    return json.loads(node("--input-type=module", "--eval", program))


def test_a_program_is_shown_line_by_line():
    prompt = "\n a0 b5 L3 a . + b . = . . L5 b . + a . = . . \n L3"
    (shown,) = answer("readable", [prompt])
    assert shown.split("\n") == [
        "sums modulo 10",
        "a = 0, b = 5",
        "L3  a = a + b, then go to L<a>",
        "L5  b = b + a, then go to L<b>",
        "start at L3",
    ]


def test_tokens_are_read_as_on_the_page():
    texts = [problem.text for problem in jumps.held_out(20)]
    texts += [problem.text for problem in jumps.held_out(2, size=jumps.Size(copies=3))]
    words = [text.split(" ") for text in texts]
    shown = [[text.strip() for text in jumps.read_tokens(each)] for each in words]
    assert shown == [[text.strip() for text in each] for each in answer("readTokens", words)]
    assert jumps.read_tokens(["a0", " b", "c"]) == ["a=0", " b", " c"]
    assert jumps.read_tokens(["a0", " not", "c"]) == ["a0", " not", "c"]


def test_what_is_shown_is_read_again():
    prompts = [problem.prompt for problem in jumps.held_out(20)]
    assert answer("prompt", answer("readable", prompts)) == prompts


def test_a_reader_may_leave_out_what_says_nothing_new():
    found = answer("prompt", ["c = 4,f=7\n\n L7 c = c+f\nL1  f = f + c, whatever\nstart at L7"])
    assert found == ["\n c4 f7 L7 c . + f . = . . L1 f . + c . = . . \n L7"]


def test_another_form_is_refused():
    wrong = ("L7 c = d + f", "c = 44", "<img src=x>")
    missing, *others = answer("prompt", ["c = 4", *(f"{text}\nstart at L7" for text in wrong)])
    assert "where to begin" in missing and all("must be like" in said for said in others)
