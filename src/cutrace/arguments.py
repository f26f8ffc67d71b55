"""Checking the arguments of public functions against their annotations."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cache, wraps
from inspect import CO_VARKEYWORDS
from reprlib import repr as shortened
from types import UnionType
from typing import Any, Literal, ParamSpec, SupportsIndex, TypeVar, Union, get_origin
from typing import get_args as arguments_of

from .errors import CutraceError, did_you_mean

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

#: The names of types in messages.
_NAMES: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    os.PathLike: "path",
    Callable: "function",
}
#: The two types of a path. Messages name only ``os.PathLike``.
_PATH = {str, os.PathLike}


def checked(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Make a public function check its arguments first. It raises :class:`CutraceError` for an argument that its
    annotations do not allow."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    takes_any = code.co_flags & CO_VARKEYWORDS

    @wraps(function)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        for name in kwargs:
            if name not in known and not takes_any:
                raise _unknown(name, known, types_of(function))
        given = dict(zip(names, args, strict=False)) | kwargs
        check(types_of(function), given)
        return function(*args, **kwargs)

    return call


def _unknown(name: str, known: Sequence[str], types: Mapping[str, Any]) -> CutraceError:
    """The error for an unknown argument of a function. If the class of a known argument has a field of this name, it
    names the class."""
    hint = did_you_mean(name, known, f"there is {', '.join(known)}")
    for argument, kind in types.items():
        is_record = isinstance(kind, type) and is_dataclass(kind)
        if is_record and name in types_of(kind):
            hint = f"give {argument}=cutrace.{kind.__name__}({name}=...)"
    return CutraceError(f"there is no argument {name!r}: {hint}")


@cache
def types_of(owner: Any) -> dict[str, Any]:
    """The annotations of a function or class by name, without annotations that only type checkers can evaluate."""
    namespace = vars(sys.modules[owner.__module__])
    evaluated = {}
    for name, annotation in owner.__annotations__.items():
        expression = getattr(annotation, "__forward_arg__", annotation)
        with suppress(NameError):
            evaluated[name] = eval(expression, namespace)
    return evaluated


def check(types: Mapping[str, Any], given: Mapping[str, object]) -> None:
    """Raise :class:`CutraceError` for the first value that is not of its type. Values without a type pass."""
    for name, value in given.items():
        # The fast case: functions that are called often take only strings.
        if name not in types or type(value) is types[name]:
            continue
        members = _members(types[name])
        if any(_allows(member, value) for member in members):
            continue
        argument = f"{name}={shortened(value)}"
        words = _words(members)
        if words:
            raise CutraceError(
                f"{argument} is unknown: choose one of {', '.join(words)}"
            )
        raise CutraceError(f"{argument} is not possible: give {_described(members)}")


def _members(annotation: Any) -> tuple[Any, ...]:
    """The types of a union; any other type alone."""
    if get_origin(annotation) in (Union, UnionType):
        return arguments_of(annotation)
    return (annotation,)


def _allows(member: Any, value: object) -> bool:
    kind = get_origin(member) or member
    if kind is Literal:
        return isinstance(value, str) and value in arguments_of(member)
    if kind in (Any, SupportsIndex) or not isinstance(kind, type):
        # The parsers of times and sizes raise errors with a sentence about units.
        return True
    if issubclass(kind, Iterable) and kind is not str:
        return _allows_items(member, value)
    if kind is int:
        return isinstance(value, SupportsIndex) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is str or kind is os.PathLike:
        # The system ends a string at a NUL.
        return isinstance(value, kind) and "\0" not in str(value)
    return isinstance(value, kind)


def _allows_items(member: Any, value: object) -> bool:
    """Whether a value is a list of items that ``member`` allows. A string is not a list of characters."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return False
    if not isinstance(value, Sequence):
        return True  # An iterator can be read only once.
    items = [_members(item) for item in arguments_of(member)[:1]]
    return all(
        any(_allows(one, item) for one in members)
        for members in items
        for item in value
    )


def _words(members: Iterable[Any]) -> list[str]:
    """The allowed words; empty if other values are allowed, too."""
    words: list[str] = []
    for member in members:
        if get_origin(member) is Literal:
            words += arguments_of(member)
        elif member is bool:
            words += ["True", "False"]
        elif member is not type(None):
            return []
    return words


def _described(members: Sequence[Any]) -> str:
    """The allowed types as a phrase: ``a path, a list of paths or a Trace``."""
    names = []
    for name in _names(members):
        article = "an" if name[0] in "aeiou" else "a"
        names.append(f"{article} {name}")
    *others, last = dict.fromkeys(names)
    if others:
        return f"{', '.join(others)} or {last}"
    return last


def _names(members: Sequence[Any]) -> list[str]:
    kinds = [get_origin(member) or member for member in members]
    if set(kinds) >= _PATH:
        kinds[kinds.index(str)] = os.PathLike
    names = []
    for member, kind in zip(members, kinds, strict=True):
        if kind is type(None):
            continue
        items = arguments_of(member)
        if kind in _NAMES:
            names.append(_NAMES[kind])
        elif items:
            names.append(f"list of {_names(_members(items[0]))[0]}s")
        else:
            names.append(kind.__name__)
    return names
