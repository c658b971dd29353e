# SPDX-License-Identifier: MIT
"""Times a vision tower called from Python, beside the same call in C. Prints a JSON object on each
line.

python python/bench/patched.py --model DIR [--grid 1,20,38] [--device cuda]
    [--library libqwenvit.so] [--json FILE]

The ways take turns, round by round, on the same pixels: transformers' own tower in bf16; the best
that torch.compile makes of it (tools/peers/peers.py); `qwenvit.patch`ed transformers by the same
call; Model.forward (grid_thw on the host); and qv_encode of --library on the same pointers. Each is
timed from the call until the device has done its work, and until the call returns. adds_ms is what
Python takes more than C. On CUDA our ways are called on torch's default stream, where events order
Python's calls with it and the C call has a stream of its own and waits; and as "own stream" on a
stream that was given to load(), where calls enqueue. Tokens must be transformers' up to bf16. same_bits says whether they have the
bits of the first of our ways. A way that fails gives a record with `failed`, a text, and the others
go on.

--library is built from the wheel's sources. On CUDA it uses the wheel's libqwenvit_cuda.so and
needs no CPU backend (cmake -DQV_CPU=OFF -DQV_CUDA=ON -DQV_CLIPS=OFF -DQV_TOOLS=OFF -DQV_TESTS=OFF,
target qwenvit_shared).
"""
import argparse
import contextlib
import ctypes
import io
import os
import random
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tools", "peers"))

import torch_times  # first: it sets what transformers reads when it is imported
import peers
import torch
import towers
import transformers
from times import quantile
from torch_times import common

import qwenvit
from records import Records

WORST = 0.1  # of a token's distance to transformers', as in peers.py
OWN = ", own stream"
ADDS = {"qwenvit.patch": "C call", "Model.forward": "C call"}


# ---- the C call ----------------------------------------------------------------------------------------

QV_BF16, QV_INPUT_PATCHES = 2, 1


class CError(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("text", ctypes.c_char * 500)]


class ContextOptions(ctypes.Structure):
    _fields_ = [("backend", ctypes.c_char_p), ("device", ctypes.c_int), ("threads", ctypes.c_int),
                ("tune_file", ctypes.c_char_p), ("tune", ctypes.c_bool), ("tf32", ctypes.c_bool),
                ("stream", ctypes.c_void_p), ("naive", ctypes.c_char_p), ("backends", ctypes.c_char_p),
                ("kernel_folder", ctypes.c_char_p), ("reserved", ctypes.c_uint64 * 5)]


class ModelOptions(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_int), ("describe", ctypes.c_bool), ("weights", ctypes.c_int),
                ("reserved", ctypes.c_uint64 * 7)]


class Item(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("grid_thw", ctypes.c_int64 * 3), ("n_frames", ctypes.c_int64),
                ("is_image", ctypes.c_bool), ("reserved", ctypes.c_uint64 * 2)]


class PlanOptions(ctypes.Structure):
    _fields_ = [("rows", ctypes.c_int64), ("segments", ctypes.c_int64), ("segment_rows", ctypes.c_int64),
                ("windows", ctypes.c_int64), ("input", ctypes.c_int), ("output", ctypes.c_int),
                ("hook", ctypes.c_void_p), ("hook_user", ctypes.c_void_p),
                ("stop", ctypes.c_void_p), ("stop_user", ctypes.c_void_p), ("reserved", ctypes.c_uint64 * 5)]


class CTokens(ctypes.Structure):
    _fields_ = [("tokens", ctypes.c_void_p), ("deepstack", ctypes.c_void_p * 8), ("capacity", ctypes.c_int64),
                ("n", ctypes.c_int64)]


class CModel:
    """A model of libqwenvit, and one call of it whose arguments are all made beforehand."""

    def __init__(self, o, threads, stream):
        self.lib = ctypes.CDLL(o.library)
        self.lib.qv_version.restype = ctypes.c_char_p
        version = self.lib.qv_version().decode()
        if version != qwenvit.__version__:
            raise ValueError(f"{o.library} is qwenvit {version}, and the wheel {qwenvit.__version__}")
        self.error, self.context, self.model = CError(), ctypes.c_void_p(), ctypes.c_void_p()
        backends = os.path.dirname(qwenvit.__file__) if o.device == "cuda" else None
        context = ContextOptions(backend=o.device.encode(), threads=threads, stream=stream,
                                 backends=backends and backends.encode())
        self.check(self.lib.qv_context_open(ctypes.byref(context), ctypes.byref(self.context), self.words()))
        options = ModelOptions(dtype=QV_BF16)
        self.check(self.lib.qv_model_load(self.context, os.fsencode(o.model), ctypes.byref(options),
                                          ctypes.byref(self.model), self.words()))

    def words(self):
        return ctypes.byref(self.error)

    def check(self, status):
        if status:
            raise RuntimeError(self.error.text.decode(errors="replace"))

    def call(self, pixels, grid, like):
        """Returns a function that encodes f32 pixels into tensors shaped like those given, and
        returns these."""
        outs = [torch.empty_like(x) for x in like]
        item = Item(data=pixels.data_ptr(), grid_thw=(ctypes.c_int64 * 3)(*grid))
        options = PlanOptions(output=QV_BF16)
        to = CTokens(tokens=outs[0].data_ptr(), capacity=len(outs[0]))
        for i, x in enumerate(outs[1:]):
            to.deepstack[i] = x.data_ptr()
        encode, check, result = self.lib.qv_encode, self.check, (outs[0], outs[1:])
        arguments = (self.model, QV_INPUT_PATCHES, ctypes.byref(item), ctypes.c_size_t(1),
                     ctypes.byref(options), ctypes.byref(to), self.words())

        def run():
            check(encode(*arguments))
            return result

        run.keeps = pixels  # the item holds its address
        return run


# ---- the ways ------------------------------------------------------------------------------------------


class Way:
    """A way to compute tokens: run() returns (tokens, [deepstack]); setting() is in force around it
    and is not timed."""

    def __init__(self, run, setting, **facts):
        self.run, self.setting, self.facts, self.times = run, setting, facts, []


class Bench(Records):
    reason = staticmethod(torch_times.reason)

    def __init__(self, o):
        super().__init__("python", o.json)
        self.o, self.grid = o, None
        cuda = o.device == "cuda"
        self.wait = torch.cuda.synchronize if cuda else lambda: None
        self.streams = {"": None, OWN: torch.cuda.Stream()} if cuda else {"": None}
        self.threads = 0 if cuda else o.threads
        self.models, self.name = {}, os.path.basename(os.path.normpath(o.model))
        name = torch.cuda.get_device_name() if cuda else torch_times.cpu_name()
        libraries = f"torch {torch.__version__.split('+')[0]}", f"transformers {transformers.__version__}"
        self.facts = {
            "dtype": "bf16", "version": qwenvit.__version__, "commit": o.commit or commit(), "day": torch_times.day(),
            "torch": torch.__version__, "transformers": transformers.__version__,
            "machine": {"backend": o.device, "threads": self.threads, "device": f"{name}, {', '.join(libraries)}"}}

    # ---- models, once ----

    def within(self, stream):
        return torch.cuda.stream(stream) if stream else contextlib.nullcontext()

    def load(self):
        """Makes each way's model. Ways whose model cannot be made are left out from here on."""
        o = self.o
        self.case = f"{self.name} loading"

        def shipped():
            return common.load_tower(o.model, "bf16", device=o.device)

        def linear():
            own = shipped()  # BareTower changes its attention
            return towers.linear_tower(o.model, own) or own

        def patched(stream):
            with self.within(stream):
                return qwenvit.patch(shipped(), threads=self.threads)

        def model(stream):
            stream = stream or (torch.cuda.current_stream() if o.device == "cuda" else None)
            return qwenvit.load(o.model, o.device, "bf16", threads=self.threads, stream=stream)

        wanted = {"transformers": (shipped,)}
        if o.modes:
            wanted["compiled torch"] = (linear,)
        for suffix, stream in self.streams.items():
            wanted["qwenvit.patch" + suffix] = (patched, stream)
            wanted["Model.forward" + suffix] = (model, stream)
            if o.library:
                wanted["C call" + suffix] = (CModel, o, self.threads, stream.cuda_stream if stream else None)
        for way, make in wanted.items():
            made = self.attempt(way, *make)
            if made is not None:
                self.models[way] = made

    # ---- one grid ----

    def compiled(self, tower, grids, pixels, truth):
        """Compiles the best mode anew."""
        bare, said = towers.BareTower(tower, grids), io.StringIO()
        with contextlib.redirect_stdout(said):
            found = towers.time_compiled(self.o, self.case, "bf16", bare, pixels, truth)
        print(said.getvalue().rstrip(), file=sys.stderr, flush=True)
        if found is None:
            raise RuntimeError(f"no mode of torch.compile worked: {said.getvalue().strip()}")
        torch._dynamo.reset()
        run = towers.compiled(bare, found[1])
        return Way(lambda: run(pixels), lambda: towers.compiler_setting(self.o, found[1]), mode=found[1])

    def way(self, name, pixels, grids, truth, ours):
        model, stream = self.models[name], self.streams[OWN] if name.endswith(OWN) else None

        def setting():
            return self.within(stream)

        if name == "compiled torch":
            return self.compiled(model, grids, pixels, truth)
        if name.startswith("C call"):
            if ours is None:
                raise RuntimeError("neither patch nor forward ran, whose outputs say how large its own are")
            return Way(model.call(pixels.float(), self.grid, ours), setting)
        if name.startswith("Model.forward"):
            wide, host = pixels.float(), grids.cpu()
            return Way(lambda: model.forward(wide, host, "bf16"), setting)
        return Way(lambda: outputs(model(pixels, grid_thw=grids)), setting)

    def ways(self, pixels, grids, truth):
        """Returns the ways that run and give transformers' tokens. Each way's first run counts as a
        part of making it."""
        ways, ours = {}, None
        for name in self.models:
            way = self.attempt(name, self.way, name, pixels, grids, truth, ours)
            tokens = way and self.attempt(name, self.first, way)
            own = name not in ("transformers", "compiled torch")
            if not tokens or not self.attempt(name, agree, tokens, truth):
                continue
            ways[name] = way
            if own and ours is None:
                ours = [x.clone() for x in tokens]
            if own:
                way.facts["same_bits"] = all(map(torch.equal, tokens, ours))
        return ways

    def first(self, way):
        with way.setting():
            for _ in range(self.o.warmup):
                tokens, deepstack = way.run()
            self.wait()
        return [tokens, *deepstack]

    def once(self, way):
        """Returns the milliseconds until the work is done, and until the call returned."""
        with way.setting():
            self.wait()
            began = time.perf_counter()
            way.run()
            returned = time.perf_counter()
            self.wait()
            done = time.perf_counter()
        return 1e3 * (done - began), 1e3 * (returned - began)

    @torch.no_grad()
    def time(self, grid):
        self.grid, n = grid, grid[0] * grid[1] * grid[2]
        self.case = f"{self.name} {n} patches"
        tower = self.models["transformers"]
        weight = tower.patch_embed.proj.weight
        levels = torch.randint(0, 256, (n, weight[0].numel()), generator=torch.manual_seed(0))
        pixels = ((2 * levels - 255) / 255).to(weight.device, weight.dtype)
        grids = torch.tensor([grid], device=weight.device)
        truth = outputs(tower(pixels, grid_thw=grids))[0]
        ways = self.ways(pixels, grids, truth)
        order = random.Random(0)
        for _ in range(self.o.rounds):
            for name in order.sample(list(ways), len(ways)):  # no way always follows the same one
                taken = self.attempt(name, self.once, ways[name])
                if taken is None:
                    del ways[name]
                else:
                    ways[name].times.append(taken)
        middles = {name: [quantile(t, 0.5) for t in zip(*way.times)] for name, way in ways.items()}
        for name, way in ways.items():
            total, host = middles[name]
            extra = dict(way.facts)
            kind, own, _ = name.partition(OWN)
            c = middles.get(ADDS.get(kind, "") + own)
            if c:
                extra.update(adds_ms=total - c[0], host_adds_ms=host - c[1])
            if "transformers" in middles:
                extra["times_faster"] = middles["transformers"][0] / total
            self.write(name, median_ms=total, p90_ms=quantile([t for t, _ in way.times], 0.9),
                       host_ms=host, repeats=len(way.times), patches=n, grid_thw=grid, **extra)


def outputs(out):
    """Returns the tokens of an output: an object in transformers 5 and later, a tuple before and
    from the compiler."""
    if hasattr(out, "pooler_output"):
        return out.pooler_output, list(getattr(out, "deepstack_features", None) or [])
    return (out[0], list(out[1])) if isinstance(out, tuple) else (out, [])


def agree(tokens, truth):
    worst = common.mean_and_worst(tokens[0].float().cpu(), truth.float().cpu())[1]
    if not worst < WORST:
        raise ValueError(f"its tokens are wrong: worst distance to transformers' {worst:.1e}")
    return True


def commit():
    """Returns the commit of these sources; empty if git does not know it."""
    try:
        found = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=HERE, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return ""
    return found.stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="DIR")
    parser.add_argument("--grid", type=peers.numbers(3), action="append", metavar="T,H,W",
                        help="frame pairs, patch rows, patch columns (1,20,38 and 8,20,38); repeatable")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, metavar="N", default=len(os.sched_getaffinity(0)),
                        help="of a CPU (every core)")
    parser.add_argument("--library", metavar="FILE", help="libqwenvit.so, for the C call")
    parser.add_argument("--modes", metavar="LIST",
                        help='of torch.compile, the best is taken; "" for none (cpu: default; cuda: '
                             "reduce-overhead,max-autotune-no-cudagraphs)")
    parser.add_argument("--rounds", type=int, default=30, metavar="N", help="timed runs of each way (30)")
    parser.add_argument("--warmup", type=int, default=5, metavar="N", help="runs before (5)")
    parser.add_argument("--limit-s", type=float, default=60, metavar="S",
                        help="for trying one mode of torch.compile, once it is compiled (60)")
    parser.add_argument("--commit", metavar="ID", help="of what is measured (git's, of these sources)")
    parser.add_argument("--json", metavar="FILE", help="append the records to FILE")
    o = parser.parse_args()
    o.grid = o.grid or [[1, 20, 38], [8, 20, 38]]
    o.repeats = 7  # peers.py reads these when it looks for the best mode
    usual = "default" if o.device == "cpu" else "reduce-overhead,max-autotune-no-cudagraphs"
    o.modes = [m for m in (usual if o.modes is None else o.modes).split(",") if m]
    if o.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch finds no CUDA device here")
    torch.set_num_threads(o.threads)
    bench = Bench(o)
    bench.load()
    if "transformers" not in bench.models:
        raise SystemExit("transformers' own tower could not be made: there is nothing to compare with")
    for grid in o.grid:
        bench.attempt("all", bench.time, grid)


if __name__ == "__main__":
    main()
