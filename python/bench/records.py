# SPDX-License-Identifier: MIT
"""Writes the records of the benches of this folder: a JSON object on each line."""
import json


class Records:
    """Records of one bench. bench: its name. path: the file that records are appended to, or None.
    `case` is what is timed now; every record has `facts`."""

    def __init__(self, bench, path):
        self.bench, self.path, self.case, self.facts = bench, path, None, {}

    def write(self, way, **numbers):
        line = json.dumps({"bench": self.bench, "case": self.case, "way": way, **numbers, **self.facts})
        print(line, flush=True)
        if self.path:
            with open(self.path, "a", encoding="utf-8") as f:
                f.write(line + "\n")

    def attempt(self, way, make, *arguments):
        """Returns what make() gives; None if it fails, which is recorded."""
        try:
            return make(*arguments)
        except Exception as error:  # whatever it was, the others are still to be timed
            self.write(way, median_ms=None, failed=self.reason(error))

    @staticmethod
    def reason(error):
        return f"{type(error).__name__}: {str(error)[:400]}"
