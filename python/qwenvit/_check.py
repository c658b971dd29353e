# SPDX-License-Identifier: MIT
"""Arguments that are held to what they must be: an Error in words where they are something else."""

import os
from operator import index

from ._arrays import MOST, error
from ._core import Error

def shown(value):
    try:
        return repr(value)[:80]
    except Exception:  # whatever it is: a number of 5000 digits has none
        return f"a {type(value).__name__}"


def wrong(name, value, wanted):
    return error("QV_EINVAL", f"{name} is {shown(value)}; must be {wanted}")


def whole(value, name, least=0, most=MOST):
    """A number without a fraction. True and False are none."""
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise wrong(name, value, f"a whole number from {least} to {most}")
    return number


def real(value, name, least=0.0, most=1e9):
    """A number: Python's, numpy's or a tensor of one; no text."""
    try:
        number = None if isinstance(value, bool) else float(value + 0.0)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = None
    if number is None or not least <= number <= most:
        raise wrong(name, value, f"a number from {least:g} to {most:g}")
    return number


def reals(values, name):
    """A list of finite numbers, from an array or a sequence."""
    try:
        return [real(v, name, -1e300, 1e300) for v in rows_of(values)]
    except (TypeError, Error):
        raise wrong(name, values, "finite numbers, one for each frame") from None


def rows_of(array):
    """Its elements as lists and numbers; of an array of ours too where there is no numpy. TypeError if it has none."""
    if hasattr(array, "tolist"):
        return array.tolist() if getattr(array, "ndim", 1) else [array.tolist()]
    try:
        return memoryview(array).tolist()
    except (TypeError, NotImplementedError):
        return list(array)


def items(values, name):
    """A list of what an iterable has."""
    try:
        if not isinstance(values, (str, bytes, dict)):
            return list(values)
    except TypeError:
        pass
    raise wrong(name, values, "a list")


def flag(value, name):
    if not isinstance(value, bool):
        raise wrong(name, value, "True or False")
    return value


def one_of(value, name, choices):
    if not isinstance(value, str) or value not in choices:
        raise wrong(name, value, " or ".join(map(repr, choices)))
    return value


def is_text(value):
    """Whether it can be written as UTF-8, and is not empty."""
    try:
        return isinstance(value, str) and "\0" not in value and bool(value.encode())
    except UnicodeEncodeError:
        return False


def text(value, name):
    if is_text(value):
        return value
    raise wrong(name, value, "a text that is not empty, without NUL")


def path(value, name):
    """The bytes of a path, which may be no UTF-8."""
    try:
        given = os.fsencode(value)
    except (TypeError, UnicodeEncodeError):
        given = b""
    if not given or b"\0" in given:
        raise wrong(name, value, "a path, without NUL")
    return given


def optional_path(value, name):
    """b"" for None and ""."""
    return b"" if value is None or isinstance(value, str) and not value else path(value, name)


def utf8(value):
    """Any value as a text; what it has besides UTF-8 is written with backslashes."""
    try:
        return str(value).encode(errors="backslashreplace").decode()
    except ValueError:
        return shown(value)
