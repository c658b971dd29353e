# SPDX-License-Identifier: MIT
"""Tests the type stubs: the code against their names, and the pages' snippets by mypy."""
import ast
import glob
import inspect
import os
import re
import site
import subprocess
import sys

import pytest

import qwenvit

TOP = os.path.join(os.path.dirname(__file__), "..", "..")
STUB = os.path.join(os.path.dirname(qwenvit.__file__), "__init__.pyi")
# names that the snippets of a page use without defining them, as the page's text says
GIVEN = {
    "python/README.md": "import torch\npaths: list[str]\nchat_text: str\nhf_model: object\nPATH: str\n"
                        "u: qwenvit.Tokens\nimages: list[object]\n",
    "docs/engines.md": "import vllm\nfrom typing import Any\ntext: str\nchat_text: str\nMODEL: str\ntokenizer: Any\n"
                       "engine: Any\nmodel: Any\nprocessor: Any\n",
    "docs/cache.md": "piece: str\n",
}
SETTINGS = """
[mypy]
ignore_missing_imports = True
disable_error_code = var-annotated
[mypy-numpy.*,torch.*,transformers.*,ray.*,pyarrow.*,ml_dtypes.*,PIL.*,vllm.*,safetensors.*]
follow_imports = skip
[mypy-qwenvit.*]
ignore_errors = True
"""


def pages():
    """Returns {page: its snippets, joined}."""
    found = {}
    for path in ("README.md", "python/README.md", *sorted(glob.glob("docs/*.md", root_dir=TOP))):
        with open(os.path.join(TOP, path), encoding="utf-8") as f:
            blocks = re.findall(r"^```python\n(.*?)^```", f.read(), re.DOTALL | re.MULTILINE)
        if blocks:
            found[path] = "\n".join(blocks)
    return found


def test_mypy_finds_nothing_in_what_pages_show(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    for page, code in pages().items():
        name = re.sub(r"\W", "_", page)
        (tmp_path / f"{name}.py").write_text(f"import qwenvit\n{GIVEN.get(page, '')}\n{code}", encoding="utf-8")
    (tmp_path / "wrong.py").write_text("import qwenvit\nqwenvit.load(3)\nqwenvit.load('m').encode('a').nothing\n")
    package = os.path.dirname(os.path.dirname(qwenvit.__file__))
    here = {} if package in site.getsitepackages() else {"MYPYPATH": package}
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache", "."], cwd=tmp_path,
        capture_output=True, text=True, env={**os.environ, **here})
    errors = [line for line in run.stdout.splitlines() if ": error:" in line]
    wrong = [line for line in errors if line.startswith("wrong.py")]
    assert len(wrong) == 2, run.stdout + run.stderr  # mypy does look at them
    assert errors == wrong, "\n".join(errors)


# what stubtest finds and is as it should be
ALLOWED = r"""
qwenvit\.(Pixels(\.__new__)?|(Model|Tokens)\.__init__|_cache\.Entry\.__init__)  # only the package makes these, or derives from them
qwenvit\._core\.(Frames|Tokens)\.__init__  # so does the core
qwenvit\._(model|adapters)\.\w+\.\w+  # these have no stub, and mypy takes their properties for attributes
qwenvit\._model\.Pixels(@base1)?  # nor does it know what a namedtuple of collections is based on
qwenvit\._core\.[A-Z]\w+  # nanobind's classes have a metaclass of its own
qwenvit\._core\.CacheRow\.__new__  # nanobind's functions cannot be inspected
qwenvit\._core\.(check_options|encode_one|look_at_device|prepare|preprocess|write_part)  # nor these
qwenvit\.ray\.(ActorPoolStrategy|BlockMetadata|Datasource|ReadTask|e|no_ray)  # only with Ray, or without
qwenvit\.torch  # only where torch is installed
"""


def test_stubtest_finds_nothing(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    (tmp_path / "allowed").write_text(ALLOWED)
    package = os.path.dirname(os.path.dirname(qwenvit.__file__))
    here = {} if package in site.getsitepackages() else {"MYPYPATH": package}
    path = os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "qwenvit", "--concise", "--mypy-config-file", "mypy.ini", "--allowlist",
         "allowed", "--ignore-unused-allowlist"],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **here, "PYTHONPATH": path})
    assert run.returncode == 0, run.stdout + run.stderr


# ---- the stub beside the code ----------------------------------------------------------------------


def parameters(function):
    """Returns the names and kinds of a function's parameters, in the code or in a stub."""
    if isinstance(function, ast.FunctionDef):
        a = function.args
        names = [x.arg for x in (*a.posonlyargs, *a.args)]
        return names, {x.arg for x in a.kwonlyargs}, bool(a.kwarg)
    kinds = inspect.Parameter
    made = inspect.signature(function).parameters.values()
    return ([p.name for p in made if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)],
            {p.name for p in made if p.kind == kinds.KEYWORD_ONLY}, any(p.kind == kinds.VAR_KEYWORD for p in made))


def test_the_stub_has_every_name_and_argument():
    with open(STUB, encoding="utf-8") as f:
        stub = ast.parse(f.read()).body
    functions = [node for node in stub if isinstance(node, ast.FunctionDef)]
    classes = {node.name: node for node in stub if isinstance(node, ast.ClassDef) and node.name[0] != "_"}
    (said,) = (node.value for node in stub if isinstance(node, ast.Assign) and node.targets[0].id == "__all__")
    assert sorted(ast.literal_eval(said)) == sorted(qwenvit.__all__)
    assert {n.name for n in functions} | set(classes) | {"Cache", "CacheWriter", "engines"} == set(qwenvit.__all__)
    for function in functions:
        assert parameters(function) == parameters(getattr(qwenvit, function.name)), function.name
    for name in ("Model", "Tokens", "Pixels"):
        check_class(getattr(qwenvit, name), classes[name].body)


def check_class(found, body):
    methods = [node for node in body if isinstance(node, ast.FunctionDef)]
    fields = {node.target.id for node in body if isinstance(node, ast.AnnAssign)}
    names = {node.name for node in methods if node.name[0] != "_"} | fields
    public = {n for n in dir(found) if n[0] != "_"} - set(dir(qwenvit._adapters.Adapters))
    public -= set(dir(tuple)) if issubclass(found, tuple) else set()
    assert public - names == set() and names - public <= {"info", "model_type", "picture", "damage"}, found
    for method in methods:
        if method.name[0] != "_" and not any(getattr(d, "id", "") == "property" for d in method.decorator_list):
            assert parameters(method) == parameters(getattr(found, method.name)), f"{found}.{method.name}"
