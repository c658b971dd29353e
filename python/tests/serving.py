# SPDX-License-Identifier: MIT
"""Starts `qwenvit serve` on a free port, and asks it.

Run as a program, it is the server with an encoder that takes its time where max_frames is above
700: a tenth of a second for each more. At 699 it cannot go on; at 698 it is full at first, and at 696 for two seconds."""
import base64
import concurrent.futures
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

SLOW = 700


class Server:
    """A server as a process of its own."""

    def __init__(self, model, log, *arguments, slow=False, key="", **environment):
        self.key = key  # given with each request
        self.clients = concurrent.futures.ThreadPoolExecutor(64)
        program = [__file__] if slow else ["-m", "qwenvit", "serve"]
        self.log = str(log)
        with open(self.log, "w", encoding="utf-8") as out:
            command = [sys.executable, *program, "--model", str(model), "--port", "0", *map(str, arguments)]
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **environment})
        self.port, until = 0, time.monotonic() + 60
        while not self.port or self.ask("", method="GET", path="/ready")[0] == 503:
            if self.process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise AssertionError(open(self.log, encoding="utf-8").read())
            time.sleep(0.02)
            self.port = self.port or next((int(line["message"].partition("http://127.0.0.1:")[2].split()[0]) for line in self.lines()
                                           if "running on http" in line.get("message", "")), 0)

    def lines(self):
        """Returns the lines of the log."""
        with open(self.log, encoding="utf-8") as f:
            return [json.loads(line) for line in f if line.startswith("{") and line.endswith("}\n")]

    def ask(self, body, query="", method="POST", path="/v1/encode", timeout=30, source="127.0.0.1", **headers):
        """Returns (status, headers, body) of one request. source: the client's address."""
        if self.key:
            headers = {"Authorization": f"Bearer {self.key}", **headers}
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout, (source, 0))
        try:
            c.request(method, path + query, body or None, {k.replace("_", "-"): v for k, v in headers.items()})
            r = c.getresponse()
            return r.status, dict(r.getheaders()), r.read()
        finally:
            c.close()

    def later(self, *arguments, **headers):
        """Asks in a thread. Returns the future of the answer."""
        return self.clients.submit(self.ask, *arguments, **headers)

    def raw(self, data, timeout=20.0):
        """Sends bytes and returns all that comes until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout) as s:
            s.sendall(data)
            got = b""
            while piece := s.recv(65536):
                got += piece
            return got

    def memory(self):
        """Returns its resident memory in MB."""
        with open(f"/proc/{self.process.pid}/statm", encoding="utf-8") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

    def metric(self, name):
        text = self.ask("", method="GET", path="/metrics")[2].decode()
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"qwenvit_{name}"))

    def wait_for(self, name, value):
        until = time.monotonic() + 10
        while (found := self.metric(name)) != value:
            assert time.monotonic() < until, (name, found)
            time.sleep(0.02)

    def end(self, number=signal.SIGTERM, timeout=30):
        self.process.send_signal(number)
        return self.process.wait(timeout)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)


@contextlib.contextmanager
def started(folders):
    """Gives a function that starts a server with a log in a folder of its own. All are killed at the end."""
    servers = []

    def start(model, *arguments, **more):
        servers.append(Server(model, folders.mktemp("log") / "log", *arguments, **more))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


def image(seed, height=64, width=0):
    """Returns a file of noise; width 0: a square."""
    import numpy as np

    pixels = np.random.default_rng(seed).integers(0, 256, (height, width or height, 3), dtype=np.uint8)
    return b"P6\n%d %d\n255\n" % (width or height, height) + pixels.tobytes()


def url(data):
    return "data:application/octet-stream;base64," + base64.b64encode(data).decode()


def message(body):
    """Returns the message of an error."""
    return json.loads(body)["error"]["message"]


def main():
    from qwenvit import _async
    from qwenvit.serve import command, sglang

    class Slow(_async.AsyncEncoder):
        lost, full, full_until = False, 3, 0.0

        def submit(self, source, **options):
            wait = (options.get("max_frames", 0) - SLOW) / 10
            if self.lost or options.get("max_frames") == SLOW - 1:
                Slow.lost = True
                raise _async.error("QV_ESTATE", "no device is left")
            if options.get("max_frames") == SLOW - 2 and Slow.full:
                Slow.full -= 1
                raise _async.error("QV_EFULL", "its results are not taken yet")
            if options.get("max_frames") == SLOW - 4:
                Slow.full_until = Slow.full_until or time.monotonic() + 2
                if time.monotonic() < Slow.full_until:
                    raise _async.error("QV_EFULL", "no room")
            if wait <= 0:
                return super().submit(source, **options)
            result = concurrent.futures.Future()

            def begin():
                if not result.set_running_or_notify_cancel():
                    return
                try:
                    result.set_result(super(Slow, self).submit(source, **options).result())
                except Exception as e:
                    result.set_exception(e)

            timer = threading.Timer(wait, begin)
            timer.daemon = True
            timer.start()
            return result

    command.AsyncEncoder = Slow
    sglang.CONNECTIONS, sglang.SECONDS = 2, 1.0
    sys.exit(command.main(sys.argv[1:]))


if __name__ == "__main__":
    main()
