#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests files for people who never build: the wheel's description, issue forms, CITATION.cff, workflows.

The wheel's links, versions and licenses are checked here; schemas and workflows by check-jsonschema,
actionlint and zizmor where `sh tools/deps.sh tests` has installed them. Usage: published.py [DEPS]
       published.py --release TAG REPOSITORY tests that a release may be made of this tag, in this repository
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tools"))
import description  # noqa: E402

os.chdir(ROOT)
PROJECT = tomllib.load(open("pyproject.toml", "rb"))["project"]
WORKFLOWS = sorted(glob.glob(".github/workflows/*.yml"))


def relative_links(text):
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match("https?:|#", target)]


def links():
    """The description has no relative link, with an address of the repository and without one."""
    page = open("python/README.md").read()
    assert relative_links(page), "python/README.md has no relative links: this test shows nothing"
    assert not relative_links(description.dynamic_metadata("readme")["text"])
    made = description.absolute(page, "https://host/owner/name/blob/v1")
    assert not relative_links(made)
    targets = re.findall(r"\(https://host/owner/name/blob/v1/([^)#]*)", made)
    assert len(targets) == len(relative_links(page)), targets
    assert not [target for target in targets if not os.path.exists(target)], targets


def citation():
    """CITATION.cff names this version and license."""
    said = dict(re.findall(r"^(version|license): (.*)$", open("CITATION.cff").read(), re.MULTILINE))
    assert said == {name: PROJECT[name] for name in ("version", "license")}, said


def pinned():
    """Workflows name actions by the full SHA of a commit, have no rights beyond reading, and keep no credentials."""
    for path in WORKFLOWS:
        text = open(path).read()
        for used in re.findall(r"uses: (.*)", text):
            assert re.fullmatch(r"\./.*|[\w./-]+@[0-9a-f]{40} # v[\d.]+", used), f"{path}: {used} is not a full SHA # version"
        assert "\npermissions:\n  contents: read\n" in text, f"{path}: no top-level permissions"
        assert text.count("actions/checkout@") == text.count("persist-credentials: false"), f"{path}: credentials are kept"


def checked():
    """The tools' findings, each tool with the files that it checks."""
    forms = [path for path in glob.glob(".github/ISSUE_TEMPLATE/*.yml") if not path.endswith("config.yml")]
    schema = ("check-jsonschema", "--builtin-schema")
    for command, paths in (
            (schema + ("vendor.github-issue-forms",), forms),
            (schema + ("vendor.github-issue-config",), [".github/ISSUE_TEMPLATE/config.yml"]),
            (schema + ("vendor.citation-file-format",), ["CITATION.cff"]),
            (schema + ("vendor.github-workflows",), WORKFLOWS),
            (("actionlint",), WORKFLOWS),
            (("zizmor", "--offline", "--no-progress", "--quiet"), WORKFLOWS)):
        if not paths:
            continue
        if not shutil.which(command[0]):
            print(f"{command[0]} is not here: skipped")
            continue
        done = subprocess.run([*command, *paths], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"


def release(tag, repository):
    """The tag is this version's, and the wheel's addresses are this repository's."""
    held = description.repository()
    assert tag == f"v{PROJECT['version']}", f"tag {tag}, but pyproject.toml has version {PROJECT['version']}"
    assert held == repository, f"repository in pyproject.toml is \"{held}\", and this is {repository}"


def main():
    if sys.argv[1:2] == ["--release"]:
        try:
            return release(*sys.argv[2:])
        except AssertionError as wrong:
            return str(wrong)
    if len(sys.argv) > 1:
        os.environ["PATH"] = os.path.join(sys.argv[1], "lint", "bin") + os.pathsep + os.environ["PATH"]
    bad = 0
    for test in (links, citation, pinned, checked):
        try:
            test()
        except AssertionError as wrong:
            bad += 1
            print(f"{test.__name__}: {test.__doc__}\n{wrong or 'failed'}")
    return bad > 0


sys.exit(main())
