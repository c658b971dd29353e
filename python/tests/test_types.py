# SPDX-License-Identifier: MIT
"""Has mypy check the package, and the Python that pages show."""
import glob
import os
import re
import site
import subprocess
import sys

import pytest

import qwenvit

TOP = os.path.join(os.path.dirname(__file__), "..", "..")
# names that the snippets of a page use without defining them, as the page's text says
GIVEN = {
    "python/README.md": "import torch\npaths: list[str]\nchat_text: str\nhf_model: object\nPATH: str\n"
                        "u: qwenvit.Tokens\nimages: list[object]\n",
    "docs/engines.md": "import vllm\nfrom typing import Any\ntext: str\nchat_text: str\nMODEL: str\ntokenizer: Any\n"
                       "engine: Any\nmodel: Any\nprocessor: Any\n",
}
SETTINGS = """
[mypy]
ignore_missing_imports = True
disable_error_code = var-annotated
[mypy-numpy.*,torch.*,transformers.*,pyarrow.*,ml_dtypes.*,PIL.*,vllm.*,safetensors.*]
follow_imports = skip
"""
STRICT = ["--strict", "--allow-any-generics", "--allow-subclassing-any", "--no-warn-return-any"]


def mypy(folder, *arguments):
    """Returns the errors that mypy finds."""
    pytest.importorskip("mypy")
    (folder / "mypy.ini").write_text(SETTINGS)
    package = os.path.dirname(os.path.dirname(qwenvit.__file__))
    here = {} if package in site.getsitepackages() else {"MYPYPATH": package}
    run = subprocess.run([sys.executable, "-m", "mypy", "--cache-dir", "cache", *arguments], cwd=folder,
                         capture_output=True, text=True, env={**os.environ, **here})
    assert run.returncode < 2, run.stdout + run.stderr
    return [line for line in run.stdout.splitlines() if ": error:" in line]


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
    for page, code in pages().items():
        name = re.sub(r"\W", "_", page)
        (tmp_path / f"{name}.py").write_text(f"import qwenvit\n{GIVEN.get(page, '')}\n{code}", encoding="utf-8")
    (tmp_path / "wrong.py").write_text("import qwenvit\nqwenvit.load(3)\nqwenvit.load('m').encode('a').nothing\n")
    errors = mypy(tmp_path, ".")
    wrong = [line for line in errors if line.startswith("wrong.py")]
    assert len(wrong) == 2 and errors == wrong, "\n".join(errors)  # mypy does look at them


def test_mypy_tells_right_uses_from_wrong_ones(tmp_path):
    """Of 40 uses each: it passes every right one, and finds every wrong one."""
    with open(os.path.join(os.path.dirname(__file__), "uses.py"), encoding="utf-8") as f:
        code = f.read()
    (tmp_path / "uses.py").write_text(code, encoding="utf-8")
    lines, split = code.splitlines(), code.splitlines().index("def wrong() -> None:") + 1
    errors = mypy(tmp_path, *STRICT, "uses.py")
    found = {int(line.split(":")[1]) for line in errors}
    assert not [line for line in errors if int(line.split(":")[1]) < split], errors
    wrong = {i for i, line in enumerate(lines, 1) if i > split and line.strip()}
    assert len(wrong) == 40 and found == wrong, [lines[i - 1] for i in sorted(wrong - found)]


def test_mypy_finds_nothing_in_the_package(tmp_path):
    """Nor a function without types, which the strict mode refuses."""
    assert mypy(tmp_path, *STRICT, "-p", "qwenvit") == []


def test_the_extension_has_types():
    stub = os.path.join(os.path.dirname(qwenvit.__file__), "_core.pyi")
    with open(stub, encoding="utf-8") as f:
        named = re.findall(r"^(?:class |def )?(\w+)", f.read(), re.MULTILINE)
    public = {n for n in dir(qwenvit._core) if n[0] != "_"}
    assert public and public <= set(named)
