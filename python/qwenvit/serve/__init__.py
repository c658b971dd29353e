# SPDX-License-Identifier: MIT
"""`python -m qwenvit serve`: vision tokens over HTTP (docs/serving.md). command.py has the options, app.py the paths, service.py what
requests share, items.py what a request asks for, cache.py the tokens that are kept, accounts.py what each client has of the server and
who is next, protocol.py the limits before a body is read, metrics.py what is counted and logged."""
