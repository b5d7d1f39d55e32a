"""Plant changes in every line that carries a tag, and name the test that notices each.

``PYTHONPATH=tests python -m support.tagged [WORDS]`` prints the table, of the tags that hold one of
the words or of all: tag, changed line, and the first test of the module that fails. These are
computed by hand or from the proofs' formulas; stored vectors and the PyTorch implementation have no
say. Every change runs in a forked process, in which the code of one function was exchanged.
`tagged.toml` lists kinds of changes, and says of those that nothing can notice why they are none.
"""

import ast
import gc
import json
import os
import re
import resource
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).parents[2]
GIVEN = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
MOST_SECONDS = 60


def off_by_one(each: ast.expr) -> list[ast.expr]:
    """Return a name's neighbours."""
    if not isinstance(each, ast.Name | ast.Attribute):
        return []
    return [ast.BinOp(each, sign, ast.Constant(1)) for sign in (ast.Add(), ast.Sub())]


def variants(node: Any) -> Iterator[ast.expr]:
    """Yield what somebody might have written in the place of a node."""
    match node:
        case ast.Compare(ops=[op]):
            for other in GIVEN["operators"].get(type(op).__name__, ()):
                yield ast.Compare(node.left, [getattr(ast, other)()], node.comparators)
        case ast.BinOp():
            for other in GIVEN["operators"].get(type(node.op).__name__, ()):
                yield ast.BinOp(node.left, getattr(ast, other)(), node.right)
            yield from (node.left, node.right)
        case ast.UnaryOp() if not isinstance(node.operand, ast.Constant):
            yield node.operand
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            yield ast.Constant(number + 1)
        case ast.Call():
            yield from variants_of_call(node.func, node.args, node.keywords)


def variants_of_call(at: Any, args: list[Any], keywords: list[Any]) -> Iterator[ast.expr]:
    """Yield another function's call, one with other arguments, or what the call is about."""
    name = at.attr if isinstance(at, ast.Attribute) else getattr(at, "id", "")
    if other := GIVEN["functions"].get(name):
        text = f"{ast.unparse(at).removesuffix(name)}{other}"
        yield ast.Call(ast.parse(text, mode="eval").body, args, keywords)
    if name in GIVEN["left_out"] and args:
        yield args[0]
    if len(args) > 1 and name not in GIVEN["symmetric"]:
        yield ast.Call(at, [*args[:-2], args[-1], args[-2]], keywords)
    if name not in GIVEN["of_shape"]:
        for i, each in enumerate(args if isinstance(at, ast.Name) else args[:1]):
            for new in off_by_one(each):
                yield ast.Call(at, [*args[:i], new, *args[i + 1 :]], keywords)
        for i, each in enumerate(keywords if isinstance(at, ast.Name) else ()):
            for new in off_by_one(each.value):
                new = ast.keyword(each.arg, new)
                yield ast.Call(at, args, [*keywords[:i], new, *keywords[i + 1 :]])


def variants_in(line: Any) -> Iterator[tuple[int, ast.expr]]:
    """Yield number and replacement of the nodes of a line, in the order of `ast.walk`.

    What it computes is doubled, gets the other sign and becomes 0, too; marks are turned.
    """
    value = line.body if isinstance(line, ast.Lambda) else getattr(line, "value", None)
    marks = isinstance(value, ast.Compare) or isinstance(getattr(value, "op", None), ast.BitAnd)
    for i, node in enumerate(ast.walk(line)):
        yield from ((i, new) for new in variants(node))
        if node is value and marks:
            yield i, ast.UnaryOp(ast.Invert(), node)
        elif node is value and not isinstance(node, ast.Tuple | ast.Constant):
            yield from ((i, ast.BinOp(ast.Constant(x), ast.Mult(), node)) for x in (2, -1, 0))


class Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node):
        return self.new if node is self.old else self.generic_visit(node)


def found_in(tree: ast.Module, number: int) -> tuple[ast.AST, str]:
    """Return what a line ends, and the name of its function.

    A line ends a statement, or an argument of one: it is the largest that ends there.
    """
    nodes = [each for each in ast.walk(tree) if hasattr(each, "lineno")]
    around = [each for each in nodes if each.lineno <= number <= each.end_lineno]
    whole = [each for each in around if isinstance(each, ast.stmt) and hasattr(each, "body")]
    line = next(each for each in around if each.end_lineno == number and each not in whole)
    depth = next(i for i, each in enumerate(whole) if isinstance(each, ast.FunctionDef))
    return line, ".".join(each.name for each in whole[: depth + 1])


def changes(file: Path, number: int) -> Iterator[tuple[str, str, CodeType]]:
    """Yield the changed line, each text once, the name of its function, and its new code."""
    source = file.read_text("utf-8")
    line, function = found_in(ast.parse(source), number)
    texts = {ast.unparse(line)}
    for k in range(len([*variants_in(line)])):
        tree = ast.parse(source)
        line, _ = found_in(tree, number)
        i, new = [*variants_in(line)][k]
        old = [*ast.walk(line)][i]
        tree = ast.fix_missing_locations(Replace(old, new).visit(tree))
        text = ast.unparse(new if old is line else line)
        if text not in texts:
            texts.add(text)
            codes = [compile(tree, str(file), "exec")]
            while (code := codes.pop()).co_qualname != function:
                codes += [each for each in code.co_consts if isinstance(each, CodeType)]
            yield text, function, code


def tagged_lines(words: Sequence[str]) -> Iterator[tuple[str, Path, int]]:
    """Yield tag, file and number of the lines whose tags hold one of the words, or of all."""
    for file in sorted((ROOT / "reference").rglob("*.py")):
        for number, text in enumerate(file.read_text("utf-8").splitlines(), 1):
            tag = re.search(r"# \[([^\]]+)\]$", text)
            if tag and (not words or any(word in tag[1] for word in words)):
                yield tag[1], file, number


def in_child(work: Callable[[], Any]) -> Any:
    """Return what a forked process finds; None if it takes too long."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
            with os.fdopen(write, "w") as pipe:
                json.dump(work(), pipe)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


class Planter:
    """Takes the place of pytest's loop over the tests, once these are collected."""

    def __init__(self, words: Sequence[str]) -> None:
        self.lines = [*tagged_lines(words)]
        self.rows: list[tuple[str, str, str]] = []
        """Tag, changed line, and what notices it."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Plant one change after the other, and note the first test that fails."""
        functions = functions_in_memory()
        for tag, file, number in self.lines:
            names = GIVEN["tests"].get(file.stem, [file.stem])
            own = [x for name in names for x in session.items if x.path.stem == f"test_{name}"]
            for text, function, code in changes(file, number):
                work = partial(first_failure, own, functions[str(file), function], code)
                name, said = in_child(work) or ("it takes too long", "")
                if not said.startswith(tuple(GIVEN["crashes"])):
                    self.rows.append((tag, text, name))
                    print(*self.rows[-1], sep=" | ", file=sys.stderr, flush=True)
        return True


def functions_in_memory() -> Mapping[tuple[str, str], list[FunctionType]]:
    gc.unfreeze()  # conftest.py hides what is imported
    functions, real = defaultdict(list), cache(os.path.realpath)
    for each in gc.get_objects():
        if type(each) is FunctionType:
            file = real(each.__code__.co_filename)
            functions[file, each.__code__.co_qualname].append(each)
    return functions


def first_failure(
    items: Sequence[pytest.Item], functions: Sequence[FunctionType], code: CodeType
) -> tuple[str, str]:
    """Give functions other code; return the first test that fails, and what it says."""
    for each in functions:
        each.__code__ = code
    for item in items:
        for report in runtestprotocol(item, log=False, nextitem=None):
            if report.failed:
                return item.nodeid, report.longrepr.reprcrash.message
    return "", ""


def main(words: Sequence[str]) -> int:
    """Print the table; return 1 if a change survives without a reason, or a reason is stale."""
    os.chdir(ROOT)
    planter = Planter(words)
    options = ["-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    assert pytest.main([*options, *GIVEN["collected"]], plugins=[planter]) == 0
    tags = [tag for tag, _, _ in planter.lines]
    reasons = {(tag, x["line"]): x["because"] for tag in tags for x in GIVEN["same"].get(tag, ())}
    print("| tag | changed line | noticed by |\n| --- | --- | --- |")
    for tag, text, by in planter.rows:
        shown = by.removeprefix("tests/") or reasons.get((tag, text), "**nothing**")
        print("|", tag, f"| `{' '.join(text.split())}` |".replace(" | (", " \\| ("), shown, "|")
    survivors = {(tag, text) for tag, text, by in planter.rows if not by}
    noticed = [tag for tag, _, by in planter.rows if by]
    print(f"{len(planter.rows)} changes of {len(tags)} lines; {len(survivors)} cannot be noticed")
    wrong = {
        "no reason": survivors - set(reasons),
        "noticed in spite of its reason": set(reasons) - survivors,
        "fewer than two are noticed": {tag for tag in tags if noticed.count(tag) < 2},
    }
    print(*(f"{name}: {each}" for name, found in wrong.items() for each in found), sep="\n")
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
