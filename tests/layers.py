# SPDX-License-Identifier: MIT
"""Tests that the files of the Python package lie in layers: no imports, those within functions included, form a circle;
and that the server imports only public names of the package, as any server could."""

import ast
import graphlib
import os
import sys

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))


def path_of(module):
    return next(filter(os.path.exists, (module.replace(".", "/") + end for end in (".py", "/__init__.py"))), None)


def imports(path):
    """Yields (line, name) of each import of a module of the package, or of a name in one."""
    for node in ast.walk(ast.parse(open(path, encoding="utf-8").read())):
        base = ""
        if isinstance(node, ast.ImportFrom):
            base = ".".join([*path.split("/")[: -node.level], ""]) if node.level else ""
            base += f"{node.module}." if node.module else ""
        for alias in node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
            if f"{base}{alias.name}.".startswith("qwenvit."):
                yield node.lineno, base + alias.name


needs, wrong = {}, []
for path in [os.path.join(at, name) for at, _, names in os.walk("qwenvit") for name in names if name.endswith(".py")]:
    names = [name for _, name in imports(path) if not name.startswith("qwenvit._core")]  # the extension imports none
    needs[path] = {path_of(name) or path_of(name.rpartition(".")[0]) for name in names}
    if path.startswith("qwenvit/serve/"):
        wrong += [f"{path}:{line}: {name} is private" for line, name in imports(path) if "._" in name and "__" not in name]
assert sum(map(len, needs.values())) > len(needs), "no imports were found"
try:
    graphlib.TopologicalSorter(needs).prepare()
except graphlib.CycleError as e:
    wrong.append(f"these files import each other: {', '.join(e.args[1])}")
sys.exit("\n".join(wrong) or 0)
