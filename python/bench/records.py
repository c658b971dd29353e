# SPDX-License-Identifier: MIT
"""What the benches of this folder write: an object of JSON a line, for tools/tables.py."""
import json


class Records:
    """bench: its name; path: of the file that records are appended to, or None. `case`: what is timed now; `facts`:
    what stands in every record."""

    def __init__(self, bench, path):
        self.bench, self.path, self.case, self.facts = bench, path, None, {}

    def write(self, way, **numbers):
        line = json.dumps({"bench": self.bench, "case": self.case, "way": way, **numbers, **self.facts})
        print(line, flush=True)
        if self.path:
            with open(self.path, "a", encoding="utf-8") as f:
                f.write(line + "\n")

    def attempt(self, way, make, *arguments):
        """What make gives; None where it fails, which is a record."""
        try:
            return make(*arguments)
        except Exception as error:  # of whatever kind: the others are still to be timed
            self.write(way, median_ms=None, failed=self.reason(error))

    @staticmethod
    def reason(error):
        return f"{type(error).__name__}: {str(error)[:400]}"
