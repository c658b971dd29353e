# SPDX-License-Identifier: MIT
"""`python -m qwenvit serve`: vision tokens over HTTP (docs/serving.md). command.py has the options, app.py the paths, service.py the
state that requests share, items.py the parsing of requests, cache.py the cached tokens, accounts.py the clients' shares and turns,
protocol.py the limits before a body is read, metrics.py the counters and the log."""
