# SPDX-License-Identifier: MIT
"""The one exception of this package, which the binding raises too."""


class Error(Exception):
    """What failed: the argument, the value found, and what would be right.

    status: a name such as "QV_EINVAL" (see qwenvit.h).
    key, index: of encode(), which source, and its place among the sources.
    """

    __module__ = "qwenvit"
    status: str = ""
    key: str | None = None
    index: int | None = None


def error(status: str, text: str, key: str | None = None, index: int | None = None) -> Error:
    e = Error(text)
    e.status, e.key, e.index = status, key, index
    return e
