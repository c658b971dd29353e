# SPDX-License-Identifier: MIT
"""The installed wheel's metadata: a description without relative links."""
import importlib.metadata
import re


def test_links():
    told = importlib.metadata.metadata("qwenvit")
    text = told.get_payload() or told["Description"]
    assert "# qwenvit for Python" in text
    assert not [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match("https?:|#", target)]
