# SPDX-License-Identifier: MIT
"""Times `qwenvit serve` of the installed wheel. Prints a JSON object per way.

python python/bench/serve.py rate --model DIR        N different images stored by the server, and by `cache fill`
python python/bench/serve.py latency --model DIR     Poisson arrivals that wait for no answer, at parts of that rate
python python/bench/serve.py alone --model DIR       one 1024x1024 image at a time, stored, and Model.encode of its bytes

The token cache in memory is off, and no file comes twice. The clients are a process of their own,
whose CPU seconds are `client_cpu`. --peer N: the server has transformers' tower instead. Sources are --files FOLDER, or images that are made.
"""
import argparse
import asyncio
import io
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tests"))
from serving import Server  # noqa: E402

PARTS = 0.5, 0.8, 0.9  # of the rate
HEAD = b"POST /v1/encode?store=1 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


def tell(**numbers):
    print(json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in numbers.items()}), flush=True)


def image(seed, height, width):
    """Returns an image as a file: a JPEG where PIL is, which is smaller."""
    try:
        from PIL import Image
    except ImportError:
        pass
    else:
        out = io.BytesIO()
        small = Image.frombytes("RGB", (16, 16), random.Random(seed).randbytes(768))
        small.resize((width, height), Image.BILINEAR).save(out, "jpeg", quality=90)
        return out.getvalue()
    return b"P6\n%d %d\n255\n" % (width, height) + random.Random(seed).randbytes(3 * height * width)


# ---- clients, as a process of their own --------------------------------------------------------------


async def request(connection, data):
    """Sends a request on an open connection. Returns the status of its answer."""
    reader, writer = connection
    writer.write(HEAD % len(data))
    writer.write(data)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(length)
    return int(head.split(b" ", 2)[1])


async def clients(port, paths, per_second, connections):
    """Asks for all files: `connections` at a time; or, at a rate, whenever a request arrives."""
    statuses, seconds, free, queue = {}, [], [], list(reversed(paths))
    arrivals = random.Random(1)

    async def one(path, began):
        with open(path, "rb") as f:
            data = f.read()
        try:
            connection = free.pop() if free and not free[-1][0].at_eof() else await asyncio.open_connection("127.0.0.1", port)
            status = await request(connection, data)
            free.append(connection)
        except (OSError, asyncio.IncompleteReadError):
            status = 0
        statuses[status] = statuses.get(status, 0) + 1
        seconds.append(time.perf_counter() - began)

    async def in_turn():
        while queue:
            await one(queue.pop(), time.perf_counter())

    first = time.perf_counter()
    if per_second:
        at, tasks = first, []
        while queue:
            at += arrivals.expovariate(per_second)
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            tasks.append(asyncio.ensure_future(one(queue.pop(), at)))
        await asyncio.gather(*tasks)
    else:
        await asyncio.gather(*(in_turn() for _ in range(connections)))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    tell(seconds=time.perf_counter() - first, statuses=statuses, latencies=seconds, cpu=usage.ru_utime + usage.ru_stime)


def ask(o, server, paths, per_second=0.0):
    """Runs the clients. Returns what they tell."""
    command = [sys.executable, __file__, "clients", "--port", str(server.port), "--rate", str(per_second)]
    run = subprocess.run([*command, "--connections", str(o.connections)], input="\n".join(paths), text=True, check=True,
                         stdout=subprocess.PIPE)
    return json.loads(run.stdout)


# ---- the ways ----------------------------------------------------------------------------------------


def sources(o, folder, n, first=0):
    """Returns n paths. Sizes differ from image to image."""
    if o.files:
        return [os.path.join(o.files, name) for name in sorted(os.listdir(o.files))][:n]
    paths = [os.path.join(folder, f"{first + i}.image") for i in range(n)]
    for i, path in enumerate(paths):
        with open(path, "wb") as f:
            f.write(image(first + i, 64 + 8 * (i % 24), 96 + 8 * (i % 17)))
    return paths


def start(o, folder, name="tokens"):
    return Server(o.model, os.path.join(folder, "log"), "--cache", os.path.join(folder, name), "--cache-memory", 0,
                  "--queue", 100000, "--max-connections", 4096, *o.serve,
                  **({"program": os.path.join(HERE, "serve_peer.py"), "QV_PEER_BATCH": str(o.peer)} if o.peer else {}))


def fill(o, folder, paths):
    """Returns the seconds of `cache fill`, with loading."""
    out, began = os.path.join(folder, "filled"), time.perf_counter()
    subprocess.run([sys.executable, "-m", "qwenvit", "cache", "fill", "--list", "-", "--model", o.model, "-o", out], check=True,
                   input="\n".join(paths), text=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    taken = time.perf_counter() - began
    shutil.rmtree(out)
    return taken


def rate(o, folder):
    """The rounds take turns. Loading is taken off `cache fill` by filling it with one file too."""
    paths, taken = sources(o, folder, o.n), {"fill": [], "load": [], "serve": []}
    for turn in range(o.rounds):
        if not o.peer:
            taken["fill"].append(fill(o, folder, paths))
            taken["load"].append(fill(o, folder, paths[:1]))
        server = start(o, folder, f"tokens {turn}")
        try:
            told = ask(o, server, paths)
            taken["serve"].append(told["seconds"])
        finally:
            server.end()
        shutil.rmtree(os.path.join(folder, f"tokens {turn}"))
        assert set(told["statuses"]) == {"200"}, told["statuses"]
    served, numbers = statistics.median(taken["serve"]), {}
    if not o.peer:
        filled = statistics.median(taken["fill"]) - statistics.median(taken["load"])
        numbers = {"fill_per_s": len(paths) / filled, "ratio": filled / served}
    tell(way=f"peer {o.peer}" if o.peer else "rate", n=len(paths), connections=o.connections, serve_per_s=len(paths) / served,
         client_cpu=told["cpu"], **numbers)
    return len(paths) / served


def latency(o, folder):
    full = o.per_second or rate(o, folder)
    for i, part in enumerate(PARTS):
        paths = sources(o, folder, round(full * part * o.seconds), 10**6 * (i + 1))
        server = start(o, folder, f"tokens {part}")
        try:
            told = ask(o, server, paths, full * part)
        finally:
            server.end()
        times = sorted(told["latencies"])
        p50, p95, p99 = (times[min(len(times) - 1, int(len(times) * q))] for q in (0.5, 0.95, 0.99))
        tell(way="latency", part=part, per_second=full * part, n=len(paths), p50=p50, p95=p95, p99=p99, statuses=told["statuses"])


def alone(o, folder):
    import http.client

    import qwenvit

    server, model, served, called = start(o, folder), qwenvit.load(o.model), [], []
    try:
        c = http.client.HTTPConnection("127.0.0.1", server.port)
        for i in range(o.n + 3):
            data = image(i, 1024, 1024)
            began = time.perf_counter()
            c.request("POST", "/v1/encode?store=1", data)
            answer = c.getresponse()
            answer.read()
            between = time.perf_counter()
            model.encode(data, decode="cpu")
            served.append(between - began)
            called.append(time.perf_counter() - between)
            assert answer.status == 200
    finally:
        server.end()
    ms = {name: 1e3 * statistics.median(times[3:]) for name, times in (("serve_ms", served), ("encode_ms", called))}
    tell(way="alone", n=o.n, **ms, more_ms=ms["serve_ms"] - ms["encode_ms"])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("rate", "latency", "alone", "clients"))
    p.add_argument("--model")
    p.add_argument("--files", help="a folder of clips and images, for rate")
    p.add_argument("-n", type=int, default=2000)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--connections", type=int, default=64)
    p.add_argument("--seconds", type=float, default=60.0, help="of a latency")
    p.add_argument("--per-second", type=float, default=0.0, help="instead of a rate that is measured first")
    p.add_argument("--peer", type=int, default=0, help="serve by transformers' tower, this many items a batch (serve_peer.py)")
    p.add_argument("--folder", default="/dev/shm", help="where files and tokens lie")
    p.add_argument("--port", type=int, help=argparse.SUPPRESS)
    p.add_argument("--rate", type=float, help=argparse.SUPPRESS)
    p.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="further options of the server")
    o = p.parse_args()
    if o.what == "clients":
        return asyncio.run(clients(o.port, sys.stdin.read().split("\n"), o.rate, o.connections))
    with tempfile.TemporaryDirectory(dir=o.folder) as folder:
        {"rate": rate, "latency": latency, "alone": alone}[o.what](o, folder)


if __name__ == "__main__":
    main()
