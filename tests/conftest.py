# SPDX-License-Identifier: MIT
"""The tests of a file share one folder, which set_up() of that file fills, and run in their order."""
import os

import pytest


@pytest.fixture(scope="module", autouse=True)
def folder(request, tmp_path_factory):
    os.chdir(tmp_path_factory.mktemp(request.module.__name__))
    request.module.set_up()
    yield
    os.chdir("/")
