# SPDX-License-Identifier: MIT
"""`python -m qwenvit` runs the command; `serve` runs the HTTP server."""

import os
import sys

from . import _cuda, _decoder


def main() -> int:
    if sys.argv[1:2] == ["serve"]:
        try:
            from .serve import command
        except ModuleNotFoundError as e:
            print(f"qwenvit serve: {e}: pip install 'qwenvit[serve]'", file=sys.stderr)
            return 4
        return command.main(sys.argv[2:])
    os.environ["QWENVIT_DECODER"] = _decoder.find_any()
    with _decoder.searching(*_cuda.folders()):
        os.execv(os.path.join(_decoder.FOLDER, "qwenvit"), ["qwenvit", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
