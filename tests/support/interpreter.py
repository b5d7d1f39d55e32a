"""Triton's interpreter, made quicker where it does work twice, and strict about memory.

It replaces the functions of Triton's language whenever a kernel calls a function.
"""

from types import SimpleNamespace

from triton.runtime import interpreter

from support import bounds

replace = interpreter._patch_lang
replaced: set[int] = set()
"""Modules whose view of the language is replaced in a launch, by the identity of their globals."""


def replace_once(function):
    """Replace the language's functions as the module of a function sees them, once in a launch."""
    module = id(function.__globals__)
    if module in replaced:
        return SimpleNamespace(restore=lambda: None)
    outermost = not replaced
    scope = replace(function)
    replaced.add(module)

    def restore():
        scope.restore()
        if outermost:
            replaced.clear()

    return SimpleNamespace(restore=restore)


launched: set[str] = set()
"""Modules whose kernels were launched."""


class GridExecutor(interpreter.GridExecutor):
    """Launches a kernel in memory of its own, and notes that it did."""

    def __call__(self, *arguments, **options):
        launched.add(self.fn.__module__.rpartition(".")[2])
        arrays = bounds.Arrays([*bounds.tensors_of((*arguments, *options.values()))])
        bounds.current.append(arrays)
        try:
            super().__call__(
                *(bounds.placed(each, arrays) for each in arguments),
                **{name: bounds.placed(each, arrays) for name, each in options.items()},
            )
        finally:
            bounds.current.pop()
            arrays.give_back()


def hurry():
    """Let the interpreter of this process be quicker and strict from now on."""
    bounds.check_accesses()
    interpreter._patch_lang = replace_once  # private: another version of Triton may need a look
    interpreter.GridExecutor = GridExecutor
