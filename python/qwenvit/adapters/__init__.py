# SPDX-License-Identifier: MIT
"""Functions that hand results to other packages. Each module here says who uses it."""
