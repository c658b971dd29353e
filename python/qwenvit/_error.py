# SPDX-License-Identifier: MIT
"""The exceptions of this package, which the binding raises too."""


class Error(Exception):
    """An error whose message names the argument, the value found, and what would be right.

    status: a name such as "QV_EINVAL" (see qwenvit.h).
    key, index: in encode(), the key of the source and its place among the sources.
    """

    __module__ = "qwenvit"
    status: str = ""
    key: str | None = None
    index: int | None = None


class InputError(Error, ValueError):
    """An argument, file or clip cannot be used."""

    __module__ = "qwenvit"


class FileError(Error, OSError):
    """A file cannot be read or written."""

    __module__ = "qwenvit"


class OutOfMemoryError(Error, MemoryError):
    """The host or a device is out of memory."""

    __module__ = "qwenvit"


KINDS: dict[str, type[Error]] = {
    "QV_EINVAL": InputError, "QV_EFORMAT": InputError, "QV_EUNSUPPORTED": InputError, "QV_EIO": FileError,
    "QV_ENOMEM": OutOfMemoryError,
}


def error(status: str, text: str, key: str | None = None, index: int | None = None) -> Error:
    e = KINDS.get(status, Error)(text)
    e.status, e.key, e.index = status, key, index
    return e
