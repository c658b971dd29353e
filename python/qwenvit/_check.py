# SPDX-License-Identifier: MIT
"""Checks arguments. A wrong one raises an Error whose message describes a right one."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from operator import index
from typing import Any, TypeVar

from ._arrays import MOST
from ._error import Error, error

Path = str | bytes | os.PathLike[str]
T = TypeVar("T")


def near(name: object, names: Iterable[str]) -> str:
    """Returns the end of a message about an unknown name: "; did you mean fps?", or nothing."""
    close = difflib.get_close_matches(str(name), [*names], 1)
    return f"; did you mean {close[0]}?" if close else ""


def kind_of(value: object) -> str:
    """Returns a value's type with its article: "an int"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def shown(value: object) -> str:
    try:
        return repr(value)[:80]
    except Exception:  # a number of 5000 digits has no repr
        return kind_of(value)


def wrong(name: str, value: object, wanted: str) -> Error:
    return error("QV_EINVAL", f"{name} is {shown(value)}; it must be {wanted}")


def whole(value: Any, name: str, least: int = 0, most: int = MOST) -> int:
    """Returns an integer. True and False are refused."""
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise wrong(name, value, f"an integer from {least} to {most}")
    return number


def real(value: Any, name: str, least: float = 0.0, most: float = 1e9) -> float:
    """Returns a number: Python's, numpy's, or a tensor with one element. A string is refused."""
    try:
        number = None if isinstance(value, bool) else float(value + 0.0)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = None
    if number is None or not least <= number <= most:
        raise wrong(name, value, f"a number from {least:g} to {most:g}")
    return number


def reals(values: Any, name: str) -> list[float]:
    """Returns a list of finite numbers, from an array or a sequence."""
    try:
        return [real(v, name, -1e300, 1e300) for v in rows_of(values)]
    except (TypeError, Error):
        raise wrong(name, values, "finite numbers, one per frame") from None


def rows_of(array: Any) -> list[Any]:
    """Returns an array's elements as lists and numbers, even without numpy.
    Raises TypeError for an object without elements."""
    if hasattr(array, "tolist"):
        return array.tolist() if getattr(array, "ndim", 1) else [array.tolist()]
    try:
        return memoryview(array).tolist()
    except (TypeError, NotImplementedError):
        return list(array)


def items(values: Iterable[T], name: str) -> list[T]:
    """Returns the items of an iterable as a list."""
    try:
        if not isinstance(values, (str, bytes, dict)):
            return list(values)
    except TypeError:
        pass
    raise wrong(name, values, "a list")


def flag(value: bool, name: str) -> bool:
    if not isinstance(value, bool):
        raise wrong(name, value, "True or False")
    return value


def function(value: object, name: str) -> None:
    if value is not None and not callable(value):
        raise wrong(name, value, "a function or None")


def one_of(value: str, name: str, choices: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise wrong(name, value, " or ".join(map(repr, choices)))
    return value


def is_text(value: object) -> bool:
    """Whether a value is a string that is not empty and can be written as UTF-8."""
    try:
        return isinstance(value, str) and "\0" not in value and bool(value.encode())
    except UnicodeEncodeError:
        return False


def text(value: str, name: str) -> str:
    if is_text(value):
        return value
    raise wrong(name, value, "a non-empty string without NUL")


def path(value: Any, name: str) -> bytes:
    """Returns the bytes of a path, which need not be UTF-8."""
    try:
        given = os.fsencode(value)
    except (TypeError, UnicodeEncodeError):
        given = b""
    if not given or b"\0" in given:
        raise wrong(name, value, "a path without NUL")
    return given


def optional_path(value: Any, name: str) -> bytes:
    """Returns b"" for None and ""."""
    return b"" if value is None or isinstance(value, str) and not value else path(value, name)


def utf8(value: object) -> str:
    """Returns any value as a string; bytes that are not UTF-8 are escaped with backslashes."""
    try:
        return str(value).encode(errors="backslashreplace").decode()
    except ValueError:
        return shown(value)
