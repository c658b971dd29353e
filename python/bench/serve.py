# SPDX-License-Identifier: MIT
"""Times `qwenvit serve` of the installed wheel. Prints a JSON object per way.

python python/bench/serve.py rate --model DIR        N different files stored by the server, and by `cache fill`
python python/bench/serve.py latency --model DIR     Poisson arrivals that wait for no answer, at parts of that rate
python python/bench/serve.py alone --model DIR       one 1024x1024 image at a time, stored, and Model.encode of its bytes
python python/bench/serve.py peer --model DIR        the same server with transformers' tower in it (serve_peer.py)
python python/bench/serve.py kill --model DIR        kill -9 under load, and a server that is started again

The token cache in memory is off, and no file comes twice: equal images differ in a comment. The clients
are a process of their own, whose CPU seconds are `client_cpu`. Files are small images; with --mix they
are images of 256 to 2,000 tokens and, every eighth, a clip that gives 2 to 16 frames.
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
import struct
import subprocess
import sys
import tempfile
import threading
import time

from PIL import Image

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tests"))
from serving import Server  # noqa: E402

PARTS = 0.5, 0.8, 0.9  # of the rate
PEERS = {"transformers, one at a time": 1, "transformers, batches of 8": 8}
HEAD = b"POST /v1/encode?store=1%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


def tell(**numbers):
    print(json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in numbers.items()}), flush=True)


# ---- files -------------------------------------------------------------------------------------------


def image(seed, height, width):
    """Returns a JPEG."""
    out = io.BytesIO()
    small = Image.frombytes("RGB", (16, 16), random.Random(seed).randbytes(768))
    small.resize((width, height), Image.BILINEAR).save(out, "jpeg", quality=90)
    return out.getvalue()


def kinds(o, folder):
    """Returns the different files as (bytes, options); all others are copies."""
    if not o.mix:
        return [(image(i, 64 + 8 * (i % 24), 96 + 8 * (i % 17)), {}) for i in range(24 * 17)]
    clip, found = o.clip or os.path.join(folder, "clip.mp4"), []
    if not o.clip:
        subprocess.run([sys.executable, "-m", "qwenvit", "synth", "--clip", clip], check=True, stdout=subprocess.DEVNULL)
    with open(clip, "rb") as f:
        data = f.read()
    for i in range(64):
        tokens = 256 + 1744 * (i * 37 % 64) // 63
        height = 32 * round((tokens * (0.5, 1, 2)[i % 3]) ** 0.5)
        found.append((image(i, height, 32 * round(32 * tokens / height)), {}))
        if i % 8 == 7:
            found[-1] = (data, {"fps": 8, "max_frames": 2 + 2 * (i // 8), "max_pixels": 1 << 18})
    return found


def different(data, i):
    """Returns a file with a number in a place that decoders pass over."""
    if data.startswith(b"\xff\xd8"):
        return data[:2] + b"\xff\xfe\0\x0e%012d" % i + data[2:]
    return data + struct.pack(">I4sQ", 16, b"free", i)


def sources(o, folder, n, first=0):
    """Returns n files as (path, options)."""
    known, found = kinds(o, folder), []
    for i in range(first, first + n):
        data, options = known[i % len(known)]
        found.append((os.path.join(folder, f"{i}.file"), options))
        with open(found[-1][0], "wb") as f:
            f.write(different(data, i))
    return found


# ---- clients, as a process of their own --------------------------------------------------------------


class Connection(asyncio.Protocol):
    answer, got = None, b""

    def __init__(self, free):
        self.free = free  # connections that wait for nothing

    def connection_made(self, transport):
        self.transport = transport

    def ask(self, data, query):
        """Returns a future of the status; 0: the connection was lost."""
        self.answer, self.got = asyncio.get_running_loop().create_future(), b""
        self.transport.writelines([HEAD % (query, len(data)), data])
        return self.answer

    def data_received(self, data):
        self.got += data
        head, end, body = self.got.partition(b"\r\n\r\n")
        if end and len(body) >= int(head.lower().partition(b"\r\ncontent-length:")[2].split(b"\r\n", 1)[0]):
            self.answer.set_result(int(head[9:12]))

    def connection_lost(self, exc):
        if self in self.free:  # the server ends connections that ask for nothing
            self.free.remove(self)
        if self.answer and not self.answer.done():
            self.answer.set_result(0)


async def clients(port, files, per_second, connections):
    """Asks for all files: `connections` at a time; or, at a rate, whenever a request arrives."""
    statuses, seconds, free, queue = {}, [], [], list(reversed(files))
    arrivals, loop = random.Random(1), asyncio.get_running_loop()

    async def one(path, options, began):
        with open(path, "rb") as f:
            data = f.read()
        query = "".join(f"&{k}={v}" for k, v in options.items()).encode()
        try:
            connection = free.pop() if free else (await loop.create_connection(lambda: Connection(free), "127.0.0.1", port))[1]
            status = await connection.ask(data, query)
        except OSError:
            status = 0
        if status:
            free.append(connection)
        statuses[status] = statuses.get(status, 0) + 1
        seconds.append(time.perf_counter() - began)

    async def in_turn():
        while queue:
            await one(*queue.pop(), time.perf_counter())

    first = time.perf_counter()
    if per_second:
        at, tasks = first, []
        while queue:
            at += arrivals.expovariate(per_second)
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            tasks.append(asyncio.ensure_future(one(*queue.pop(), at)))
        await asyncio.gather(*tasks)
    else:
        await asyncio.gather(*(in_turn() for _ in range(connections)))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    tell(seconds=time.perf_counter() - first, statuses=statuses, latencies=seconds, cpu=usage.ru_utime + usage.ru_stime)


def loop_seconds(server):
    """Returns the CPU seconds of the server's first thread, its event loop."""
    with open(f"/proc/{server.process.pid}/task/{server.process.pid}/schedstat") as f:
        return int(f.read().split()[0]) / 1e9


def ask(server, files, connections=64, per_second=0.0):
    """Runs the clients. Returns what they tell."""
    began = loop_seconds(server)
    command = [sys.executable, __file__, "clients", "--port", str(server.port), "--rate", str(per_second)]
    run = subprocess.run([*command, "--connections", str(connections)], input=json.dumps(files), text=True, check=True,
                         stdout=subprocess.PIPE)
    loop_us = 1e6 * (loop_seconds(server) - began) / len(files) if server.process.poll() is None else 0
    return {**json.loads(run.stdout), "loop_us": loop_us}


def quantiles(told):
    times = sorted(told["latencies"])
    return {f"p{q}": times[min(len(times) - 1, len(times) * q // 100)] for q in (50, 95, 99)}


# ---- the ways ----------------------------------------------------------------------------------------


def start(o, folder, name="tokens", batch=0):
    """Starts the server. batch: with transformers' tower, which takes so many items at once."""
    peer = {"program": os.path.join(HERE, "serve_peer.py"), "QV_PEER_BATCH": str(batch)} if batch else {}
    return Server(o.model, os.path.join(folder, "log"), "--cache", os.path.join(folder, name), "--cache-memory", 0,
                  "--queue", 100000, "--max-connections", 4096, *o.serve, **peer)


def served(o, folder, files, batch=0, few=()):
    """Returns what clients tell of a new server, which they ask for all files, and then one by one for a few."""
    server = start(o, folder, batch=batch)
    try:
        told = [ask(server, files, o.connections), *([ask(server, few, 1)] if few else [])]
    finally:
        server.end()
    shutil.rmtree(os.path.join(folder, "tokens"))
    assert all(set(t["statuses"]) == {"200"} for t in told), told
    return told


def fill(o, folder, files):
    """Returns the seconds of `cache fill`, with loading."""
    out, began = os.path.join(folder, "filled"), time.perf_counter()
    subprocess.run([sys.executable, "-m", "qwenvit", "cache", "fill", "--list", "-", "--model", o.model, "-o", out, "--decode", "cpu"],
                   check=True, input="".join(json.dumps({"path": path, **options}) + "\n" for path, options in files), text=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    taken = time.perf_counter() - began
    shutil.rmtree(out)
    return taken


def rate(o, folder):
    """The rounds take turns. Loading is taken off `cache fill` by filling it with one file too."""
    files, taken = sources(o, folder, o.n), {"fill": [], "load": [], "serve": []}
    for _ in range(o.rounds):
        taken["fill"].append(fill(o, folder, files))
        taken["load"].append(fill(o, folder, files[:1]))
        [told] = served(o, folder, files)
        taken["serve"].append(told["seconds"])
    seconds = statistics.median(taken["serve"])
    filled = statistics.median(taken["fill"]) - statistics.median(taken["load"])
    tell(way="rate", mix=o.mix, n=o.n, connections=o.connections, serve_per_s=o.n / seconds, fill_per_s=o.n / filled,
         ratio=filled / seconds, loop_us=told["loop_us"], client_cpu=told["cpu"])
    return o.n / seconds


def latency(o, folder):
    full = o.per_second or rate(o, folder)
    server = start(o, folder)
    try:
        for i, part in enumerate(PARTS):
            files = sources(o, folder, round(full * part * o.seconds), 10**7 * (i + 1))
            told = ask(server, files, per_second=full * part)
            tell(way="latency", mix=o.mix, part=part, per_second=full * part, n=len(files), **quantiles(told),
                 statuses=told["statuses"], loop_us=told["loop_us"], client_cpu=told["cpu"])
            for path, _ in files:
                os.unlink(path)
    finally:
        server.end()


def alone(o, folder):
    import http.client

    import qwenvit

    server, model, asked, called = start(o, folder), qwenvit.load(o.model), [], []
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
            asked.append(between - began)
            called.append(time.perf_counter() - between)
            assert answer.status == 200
    finally:
        server.end()
    ms = {name: 1e3 * statistics.median(times[3:]) for name, times in (("serve_ms", asked), ("encode_ms", called))}
    tell(way="alone", n=o.n, **ms, more_ms=ms["serve_ms"] - ms["encode_ms"])


def peer(o, folder):
    """The towers take turns: all files at once, then others one by one."""
    files = sources(o, folder, o.n + o.n // 10)
    for name, batch in {"qwenvit": 0, **PEERS}.items():
        told, lone = served(o, folder, files[: o.n], batch, files[o.n :])
        tell(way="peer", tower=name, mix=o.mix, n=o.n, serve_per_s=o.n / told["seconds"],
             alone_ms=1e3 * statistics.median(lone["latencies"]), **quantiles(told))


def is_whole(path):
    """Returns whether a safetensors file has all bytes that its header names."""
    with open(path, "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(size))
    ends = [about["data_offsets"][1] for name, about in header.items() if name != "__metadata__"]
    return os.path.getsize(path) == 8 + size + max(ends)


def kill(o, folder):
    """The answers of the next server must have encode's bits, those from the folder too."""
    import qwenvit

    files, tokens = sources(o, folder, o.n), os.path.join(folder, "tokens")
    server = start(o, folder)
    threading.Timer(o.kill_after, server.process.kill).start()
    before = ask(server, files)["statuses"]
    server.kill()
    there = {name for name in os.listdir(tokens) if name.endswith(".safetensors")}
    assert all(is_whole(os.path.join(tokens, name)) for name in there)
    server, model, found, same = start(o, folder), qwenvit.load(o.model), {}, 0
    some = random.Random(1).sample(files, min(o.n, 50))
    try:
        for path, options in some:
            with open(path, "rb") as f:
                data = f.read()
            query = "?store=1" + "".join(f"&{k}={v}" for k, v in options.items())
            [row] = json.loads(server.ask(data, query)[2])["items"]
            assert row["found"] == ("folder" if row["name"] in there else "miss"), row
            found[row["found"]] = found.get(row["found"], 0) + 1
            own = os.path.join(folder, "own")
            key = row["name"].removesuffix(".safetensors")
            model.encode({"bytes": data, "key": key}, decode="cpu", **options).save(own)
            with open(own, "rb") as a, open(os.path.join(tokens, row["name"]), "rb") as b:
                same += a.read() == b.read()
        after = ask(server, files)["statuses"]
    finally:
        server.end()
    tell(way="kill", before=before, whole_files=len(there), asked_again=len(some), found=found, same_bits=same, after=after)
    assert set(after) == {"200"} and same == len(some), "an answer differs from encode's"


WAYS = {"rate": rate, "latency": latency, "alone": alone, "peer": peer, "kill": kill}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=(*WAYS, "clients"))
    p.add_argument("--model")
    p.add_argument("--mix", action="store_true", help="larger images, and clips")
    p.add_argument("--clip", help="the clip of the mix (default: a small one that is made)")
    p.add_argument("-n", type=int, default=2000)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--connections", type=int, default=64)
    p.add_argument("--seconds", type=float, default=60.0, help="of a latency")
    p.add_argument("--per-second", type=float, default=0.0, help="instead of a rate that is measured first")
    p.add_argument("--kill-after", type=float, default=2.0, help="seconds of load")
    p.add_argument("--folder", default="/dev/shm", help="where files and tokens lie")
    p.add_argument("--port", type=int, help=argparse.SUPPRESS)
    p.add_argument("--rate", type=float, help=argparse.SUPPRESS)
    p.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="further options of the server")
    o = p.parse_args()
    if o.what == "clients":
        return asyncio.run(clients(o.port, json.load(sys.stdin), o.rate, o.connections))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # for many connections
    with tempfile.TemporaryDirectory(dir=o.folder) as folder:
        WAYS[o.what](o, folder)


if __name__ == "__main__":
    main()
