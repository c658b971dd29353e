# SPDX-License-Identifier: MIT
"""Clients of all kinds at once: serve_soak.py [REQUESTS] [CLIENTS].

They leave, send rubbish, stall in headers and in bodies, ask twice, exceed each limit, and bring
decoders that die. Every answer must be a status with a message, the good ones must have the bits
that `encode` gives, and memory, descriptors, processes and the queue must be as before."""
import concurrent.futures
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time

import qwenvit
import serving
from serving import Server, message

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "..", "tests", "golden", "qwen3_vl")
LIMITS = ["--idle-seconds", 1, "--max-body", 1000000, "--max-items", 4, "--queue", 64,
          "--max-connections", 128, "--cache-memory", 200000]
HEAD = b"POST /v1/encode HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
OUT_OF_PLACE = 429, 503  # may be the answer to anything


def image(seed):
    return serving.image(seed, 48 + seed % 40, 64)


class Soak:
    def __init__(self, server, expected, planted):
        self.server, self.expected, self.planted = server, expected, planted
        self.lock, self.statuses, self.faults = threading.Lock(), {}, []

    # ---- kinds of clients: each returns (status, whether it is as it must be, what) ----------------

    def good(self, chance):
        i = chance.randrange(len(self.expected))
        status, _, body = self.server.ask(image(i))
        return status, status == 200 and body == self.expected[i], "the tokens of an image"

    def twice(self, chance):
        i = chance.randrange(len(self.expected))
        both = [future.result() for future in [self.server.later(image(i)) for _ in range(2)]]
        return both[0][0], all(a[2] == self.expected[i] or a[0] in OUT_OF_PLACE for a in both), "an image, twice"

    def rubbish(self, chance):
        status, _, body = self.server.ask(chance.randbytes(chance.randrange(1, 5000)))
        return status, status == 422 and message(body), "rubbish"

    def option(self, chance):
        query = chance.choice(["?fps=x", "?path=/etc/passwd", "?max_frames=9999", "?store=1", "?timeout=0"])
        status, _, body = self.server.ask(image(0), query)
        return status, status == 422 and message(body), query

    def json(self, chance):
        n = chance.choice([1, 3, 5])
        status, _, body = self.server.ask(json.dumps({"items": [{"data": "http://x/"}] * n}), content_type="application/json")
        return status, status == (413 if n > 4 else 422) and json.loads(body), f"{n} URLs"

    def large(self, chance):
        status, _, body = self.server.ask(bytes(chance.choice([1000001, 3000000])))
        return status, status == 413 and message(body), "a large body"

    def stalls(self, chance):
        data = chance.choice([b"", b"POST /v1/enc", HEAD % 500 + bytes(20)])
        with contextlib.suppress(ConnectionResetError):
            return 408, self.server.raw(data) == b"", data[:20]
        return 408, True, "cut"

    def no_http(self, chance):
        got = self.server.raw(b"\r\nnonsense\r\n\r\n")
        return 400, b" 400 " in got and b'"message"' in got, got

    def leaves(self, chance):
        data = image(chance.randrange(1000, 9999))
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=20) as s:
            s.sendall((HEAD % len(data) + data)[: chance.choice([3, 200, 1 << 20])])
            time.sleep(chance.choice([0, 0.01]))
        return 499, True, "left"

    def dies(self, chance):
        if not self.planted:
            return self.rubbish(chance)
        status, _, body = self.server.ask(chance.choice(self.planted), f"?num_frames={chance.choice([4, 6, 8])}")
        return status, status == 422 and message(body), "a decoder that dies"

    def one(self, chance):
        kind = chance.choices(
            (self.good, self.twice, self.rubbish, self.option, self.json, self.large, self.stalls, self.no_http, self.leaves, self.dies),
            (40, 10, 10, 10, 10, 5, 3, 1, 10, 5))[0]
        try:
            status, is_right, what = kind(chance)
            fault = None if is_right or status in OUT_OF_PLACE else f"{what}: {status}"
        except Exception as e:
            status, fault = 0, f"{kind.__name__}: {e!r}"
        with self.lock:
            self.statuses[status] = self.statuses.get(status, 0) + 1
            self.faults += [fault] if fault else []

    def run(self, n, clients):
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            list(pool.map(self.one, map(random.Random, range(n))))


def state(server):
    """Returns a server's resident memory in MB, its descriptors, and its processes, once nothing is in progress."""
    for gauge in ("queue_items", "under_way_items", "body_bytes"):
        server.wait_for(gauge, 0)
    time.sleep(1.5)  # connections that were refused linger
    pid, processes = server.process.pid, 1
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as f:
            processes += len(f.read().split())
    return server.memory(), len(os.listdir(f"/proc/{pid}/fd")), processes


def main(n=10000, clients=16):
    faulty, environment, planted = os.environ.get("QV_FAULTY_DECODER", ""), {}, []
    with tempfile.TemporaryDirectory() as folder:
        if os.access(faulty, os.X_OK):
            clip = os.path.join(folder, "clip.mp4")
            subprocess.run([sys.executable, "-m", "qwenvit", "synth", "--clip", clip], check=True)
            with open(clip, "rb") as f:
                data = f.read()
            planted = [data + b"\0\0\0\x30free" + (b"planted: " + fault).ljust(40) for fault in (b"exit 7", b"signal 9", b"end 7")]
            environment["QWENVIT_DECODER"] = faulty
            planted = [p for p in planted if len(p) <= 1000000]
        server = Server(GOLDEN, os.path.join(folder, "log"), *LIMITS, **environment)
        try:
            model = qwenvit.load(GOLDEN)
            expected = []
            for i in range(20):
                file = server.ask(image(i))[2]
                key = json.loads(file[8 : 8 + int.from_bytes(file[:8], "little")])["__metadata__"]["source"]
                model.encode({"bytes": image(i), "key": key}).save(os.path.join(folder, "own"))
                with open(os.path.join(folder, "own"), "rb") as f:
                    expected.append(f.read())
            soak = Soak(server, expected, planted)
            soak.run(min(n, 200), clients)  # threads and pools have their sizes after that
            before, began = state(server), time.monotonic()
            soak.run(n, clients)
            seconds, after = time.monotonic() - began, state(server)
            ended = server.end()
        finally:
            server.kill()
        with open(server.log, encoding="utf-8") as f:
            exceptions = [line for line in f if "Traceback" in line]
    about = {"requests": n, "seconds": round(seconds, 1), "statuses": dict(sorted(soak.statuses.items())), "faults": soak.faults[:10],
             "before": before, "after": after, "exceptions": exceptions[:2], "ended": ended, "planted": len(planted)}
    print(json.dumps(about))
    same = after[0] - before[0] < 24 and after[1] <= before[1] + 2 and after[2] <= before[2]
    return 0 if same and not soak.faults and not exceptions and not ended and soak.statuses.get(200) else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
