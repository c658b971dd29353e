# SPDX-License-Identifier: MIT
"""Functions that pass results to other packages. Each module here names its users."""
