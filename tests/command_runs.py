# SPDX-License-Identifier: MIT
"""Runs the command for pytest, and checks the result of each run."""
import json
import os
import shlex
import subprocess
import time

QWENVIT = os.environ["QV_COMMAND"]
GOLDEN = os.environ["QV_GOLDEN"]
MODEL = f"{GOLDEN}/qwen3_vl"
OWN_MOUNTS = bool(os.environ.get("QV_OWN_MOUNTS"))  # a small disk can be mounted here


class Ran:
    def __init__(self, line, code, out, err):
        self.line, self.code, self.out, self.err = line, code, out, err

    def __str__(self):
        return f"exit {self.code}: qwenvit {self.line}\n{self.out}{self.err}"

    def says(self, *texts):
        for text in texts:
            assert text in self.out + self.err, f'no "{text}": {self}'
        return self

    @property
    def records(self):
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def record(self):
        return self.records[-1]


def run(line, *says, code=0, program=QWENVIT, stdin=None, **environment):
    """Runs qwenvit with the words of a line, and checks its exit code and texts in its output."""
    done = subprocess.run([program, *shlex.split(line)], capture_output=True, check=False,
                          stdin=open(stdin or os.devnull, "rb"), env={**os.environ, **environment})
    ran = Ran(line, done.returncode, *(text.decode(errors="surrogateescape")
                                       for text in (done.stdout, done.stderr)))
    assert ran.code == code, f"not {code}: {ran}"
    return ran.says(*says)


def each(code, *cases, **more):
    """Runs each case: a line, and texts that its output must contain."""
    for line, *says in cases:
        run(line, *says, code=code, **more)


class Begun:
    """A run in the background."""

    def __init__(self, line):
        self.line = line
        self.process = subprocess.Popen([QWENVIT, *shlex.split(line)], stdin=subprocess.DEVNULL,
                                        stdout=open("begun.out", "w+"), stderr=open("begun.err", "w+"))

    def until(self, is_so, pause=0.01):
        while not is_so():
            assert self.process.poll() is None, f"it ended before: {self.end(None)}"
            time.sleep(pause)

    def end(self, code, seconds=300):
        """Waits for its end; it is killed after this many seconds."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
        got = self.process.wait()
        ran = Ran(self.line, got if got >= 0 else 128 - got, open("begun.out").read(), open("begun.err").read())
        assert code is None or ran.code == code, f"not {code} (137: no signal was heard): {ran}"
        return ran


def image(name, width, seed):
    """Writes a PPM file of 64 rows."""
    n = width * 64 * 3
    line = f"{seed} {name} pixels\n".encode()
    with open(name, "wb") as f:
        f.write(b"P6\n%d 64\n255\n" % width + (line * (n // len(line) + 1))[:n])


def write(name, *lines):
    """Writes a list: strings as they are, and dicts as JSON."""
    with open(name, "w", encoding="utf-8") as f:
        f.writelines((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)


def read(name):
    with open(name, "rb") as f:
        return f.read()


def read_header(name):
    """Returns the header of a safetensors file, and the bytes of its tensors."""
    data = read(name)
    n = int.from_bytes(data[:8], "little")
    return json.loads(data[8:8 + n]), data[8 + n:]


def read_file(name):
    """Returns the metadata and the bytes of the tensors of a safetensors file."""
    header, tensors = read_header(name)
    return header["__metadata__"], tensors


def get(key, cache):
    run(f"cache get {cache} {shlex.quote(key)} -o got.safetensors")
    return read_file("got.safetensors")


def is_rate(record, rate, count, seconds):
    assert record[rate] > 0 and abs(record[rate] * record[seconds] / record[count] - 1) < 1e-3


def no_temporary_files(*folders):
    assert not [name for folder in folders for name in os.listdir(folder) if "tmp" in name]


def mount(options, folder="disk"):
    subprocess.run(["mount", *shlex.split(options), "none", folder], check=True)
