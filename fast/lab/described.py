"""Commands whose options are data: a function says what they are called and hold by default."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from types import MappingProxyType
from typing import Annotated, Any

from typer import Argument, Option

Lists = Mapping[str, Iterable[str]]


def described(
    command: Callable[..., None], said: Mapping[str, Any], lists: Lists = MappingProxyType({})
) -> Callable[..., None]:
    """Return a command whose options are what is ``said`` of them, as in ``options.toml``.

    A parameter that is a dataclass stands for options that several commands share: its fields.
    ``lists`` stand in place of their names in braces.
    """
    signature = inspect.signature(command, eval_str=True)
    shared, parameters = dict[str, Any](), []
    for each in signature.parameters.values():
        inside = [each]
        kind: Any = each.annotation
        if is_dataclass(kind):
            shared[each.name] = kind
            inside = inspect.signature(each.annotation, eval_str=True).parameters.values()
        parameters += [_described(x, said[x.name], lists) for x in inside]

    @wraps(command)
    def called(**given: Any) -> None:
        for each, kind in shared.items():
            given[each] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        command(**given)

    setattr(called, "__signature__", signature.replace(parameters=parameters))  # noqa: B010
    return called


def _described(option: inspect.Parameter, said: Any, lists: Lists) -> inspect.Parameter:
    how = said if isinstance(said, dict) else {"help": said}
    text = how["help"].format(**{name: ", ".join(each) for name, each in lists.items()})
    limits = {limit: how[limit] for limit in ("min", "max", "exists") if limit in how}
    make = Argument if how.get("argument") else Option
    made = make(*how.get("names", ()), help=text, **limits)
    return option.replace(annotation=Annotated[option.annotation, made])
