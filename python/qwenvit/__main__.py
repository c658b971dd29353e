# SPDX-License-Identifier: MIT
"""`python -m qwenvit` runs the command; `convert` writes a cache of version 2, and `serve`
answers over HTTP."""

import os
import signal
import sys
from collections.abc import Callable

from . import _cuda, _decoder


def _run(verb: Callable[[list[str]], int], arguments: list[str]) -> int:
    """Runs a verb that is written in Python. SIGTERM ends it as SIGINT does, with nothing half written."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = verb(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("qwenvit: interrupted: files that are there are whole; run it again to go on", file=sys.stderr)
        return 130
    except OSError as e:  # verbs report other ones themselves
        print(f"qwenvit: standard output cannot be written: {e.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python complains of it as well
        return 3
    return code


def main() -> int:
    if sys.argv[1:2] == ["convert"]:
        from . import _convert

        return _run(_convert.main, sys.argv[2:])
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
