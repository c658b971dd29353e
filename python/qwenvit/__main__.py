# SPDX-License-Identifier: MIT
"""`python -m qwenvit` is the command."""

import os
import sys

from ._decoder import FOLDER, HELP, missing


def main():
    program = os.path.join(FOLDER, "qwenvit")
    why = missing(program)
    if why:
        print(f"qwenvit: {HELP}\n{why}", file=sys.stderr)
        return 4
    os.execv(program, ["qwenvit", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
