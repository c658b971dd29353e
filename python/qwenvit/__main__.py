# SPDX-License-Identifier: MIT
"""`python -m qwenvit` runs the command; `cache export` writes Parquet, `convert` a
cache of version 2."""

import os
import sys

from . import _cuda, _decoder
from ._error import Error


def main() -> int:
    if sys.argv[1:2] == ["export"]:
        print("qwenvit: export is `cache export` now (python -m qwenvit cache export --help)", file=sys.stderr)
        return 2
    if sys.argv[1:3] == ["cache", "export"]:
        from .adapters import parquet

        return parquet.main(sys.argv[3:])
    if sys.argv[1:2] == ["convert"]:
        from . import _convert

        return _convert.main(sys.argv[2:])
    try:
        program = _decoder.find("qwenvit")
    except Error as e:
        print(f"qwenvit: {e}", file=sys.stderr)
        return 4
    with _decoder.searching(*_cuda.folders()):
        os.execv(program, ["qwenvit", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
