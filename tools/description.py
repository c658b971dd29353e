# SPDX-License-Identifier: MIT
"""Sets the wheel's description and addresses: scikit-build-core calls this during the build.

The description is python/README.md. On a package index its relative links would lead nowhere, so they
become absolute links to the repository, at the tag of this version. The repository's address is `repository`
below [tool.qwenvit] in pyproject.toml and nowhere else; while it is empty, each link becomes its text.
"""
import pathlib
import re

try:
    import tomllib
except ModuleNotFoundError: # Python 3.10
    import tomli as tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def absolute(text, base):
    """Returns a page of python/ in which relative links are absolute, below base, or plain text without a base."""
    def link(found):
        words, target = found.groups()
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        if not base:
            return words
        path, _, anchor = target.partition("#")
        path = (ROOT / "python" / path).resolve().relative_to(ROOT).as_posix()
        return f"[{words}]({base}/{path}{'#' + anchor if anchor else ''})"

    return re.sub(r"(?<!!)\[([^]\n]*)\]\(([^)\s]+)\)", link, text)


def pyproject():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def repository():
    return pyproject()["tool"]["qwenvit"]["repository"].rstrip("/")


def dynamic_metadata(field, settings=None, project=None):
    del settings, project  # the signature is scikit-build-core's
    home, files = repository(), f"{repository()}/blob/v{pyproject()['project']['version']}"
    if field == "urls":
        return {"Homepage": home, "Documentation": files + "/docs/index.md", "Changelog": files + "/CHANGELOG.md",
                "Issues": home + "/issues"} if home else {}
    page = (ROOT / "python" / "README.md").read_text()
    return {"content-type": "text/markdown", "text": absolute(page, home and files)}
