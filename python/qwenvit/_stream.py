# SPDX-License-Identifier: MIT
"""Encodes many sources by a job: a thread adds them while results are taken."""

import atexit
import collections
import os
import sys
import threading
import time

from . import _core
from ._arrays import error
from ._sources import describe, key_of, needs_decoder

MOST_AHEAD = 1 << 30  # bytes of sources and results that may wait to be taken
FOR_A_DECODER = 64 << 20  # bytes added for each decoder, so that none of many decoders waits
SECONDS = 0.5  # the time between two lines of progress
# codes of errors that concern one source; any other ends the job
OF_A_SOURCE = ("QV_EINVAL", "QV_EUNSUPPORTED", "QV_EIO", "QV_EFORMAT")

# Says how sources are encoded. alone: there is one source. total: how many there are, or None.
How = collections.namedtuple("How", "dtype progress errors ordered decoders alone total")


class _Feeder(threading.Thread):
    """Adds sources to a job, while results are taken from it.

    The caller's iterator may block for ever, so nobody may wait for this thread while it is in
    there. It holds `busy` in everything else, and after the job has ended it drops a source that
    comes too late. A forked process lacks this thread, which may have held `busy`.
    """

    def __init__(self, model, job, sources, options):
        super().__init__(name="qwenvit feeder", daemon=True)
        self.model, self.job, self.sources, self.options = model, job, sources, options
        self.stop, self.failure, self.process = False, None, os.getpid()
        # a generator may be collected, and so end this feeder, in the feeder's own thread
        self.busy = threading.RLock()

    def run(self):
        try:
            for place, source in enumerate(self.sources):
                with self.busy:
                    if self.stop:
                        return
                    self.add(place, source)
        except BaseException as e:
            self.failure = e
        with self.busy:
            if self.stop:
                return
            try:
                self.job.end()
            except Exception as e:
                self.failure = e if not self.failure or isinstance(self.failure, _core.Error) else self.failure

    def add(self, place, source):
        key = str(place)
        try:
            key = key_of(source, place)
            self.job.add(place, key, *describe(self.model._core, source, place, self.options))
        except _core.Error as e:
            if e.status not in OF_A_SOURCE:
                raise
            self.job.refuse(place, key, e.status, str(e))

    def end(self):
        """Ends the thread's work. The job then belongs to the caller alone."""
        if self.process != os.getpid():
            return
        self.stop = True
        self.job.cancel()
        with self.busy:
            pass


_at_work = set()  # the feeders that run


@atexit.register
def _end_feeders():
    """Stops the threads of generators that were abandoned. The interpreter cannot end while a
    thread is in our code."""
    began = time.monotonic()
    for feeder in list(_at_work):
        feeder.end()
    for feeder in list(_at_work):  # an iterator that wakes up in time, as our own do, ends in order
        feeder.join(max(0, began + 1 - time.monotonic()))


# ---- progress ------------------------------------------------------------------------------------


def _time(seconds):
    """Returns 3:05 or 2:03:05, as the command prints it."""
    minutes, seconds = divmod(int(min(seconds, 1e9) + 0.5), 60)
    return f"{minutes}:{seconds:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


class _Progress:
    """Returns how.progress as a function that is given a dict; True becomes one that prints a line
    on the terminal."""

    def __init__(self, how, job):
        self.job, self.total, self.said = job, how.total, 0
        self.tell = how.progress if callable(how.progress) else None
        self.line = how.progress is True and sys.stderr.isatty()

    def show(self, last=False):
        if not self.tell and not self.line:
            return
        p = self.job.progress()
        p["total"] = self.total
        known = self.total is not None and p["done"]
        p["left_s"] = (self.total - p["done"]) * p["seconds"] / p["done"] if known else None
        if self.tell:
            self.tell(p)
        elif last or time.monotonic() - self.said >= SECONDS:
            self.said = time.monotonic()
            print(f"\r{self.words(p)}\033[K", end="", file=sys.stderr, flush=True)

    def words(self, p):
        seconds = max(p["seconds"], 1e-9)
        of = "" if self.total is None else f"/{self.total}"
        failed = f" ({p['failed']} failed)" if p["failed"] else ""
        left = "" if self.total is None else f", {'?' if p['left_s'] is None else _time(p['left_s'])} left"
        return (
            f"{p['done']}{of} clips{failed}, {p['done'] / seconds:.1f} clips/s, {p['tokens'] / seconds:.0f} "
            f"tokens/s{left}, limited by {p['limit']}"
        )

    def end(self):
        if self.line:
            print(file=sys.stderr)


# ---- results -------------------------------------------------------------------------------------


def _decoder_for(sources):
    if not needs_decoder(sources):
        return None
    from . import _decoder

    return _decoder.start()


def _take(job, progress):
    """Gives the results of the job as the binding has them, and shows the progress."""
    while (core := job.next(SECONDS)) is not None:
        if core is not False:  # a result came in time
            progress.show()
            yield core
        elif progress.line:
            progress.show()
    progress.show(last=True)


def _room(decoders):
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return MOST_AHEAD + FOR_A_DECODER * (decoders or len(cores))


def results(model, sources, how, options):
    """Gives Tokens, and Errors if how.errors is "yield"."""
    decoder = _decoder_for(sources)
    room = _room(how.decoders)
    where = {k: options[k] for k in ("decode", "gpu") if k in options}
    job = _core.Job(model._core, decoder, how.dtype, how.decoders, how.alone, how.ordered, room, where)
    feeder, progress, is_cut = _Feeder(model, job, sources, options), _Progress(how, job), False
    feeder.start()
    _at_work.add(feeder)  # started, as the interpreter may end in between
    try:
        for core in _take(job, progress):
            is_cut = is_cut or core.cancelled  # the job has ended early; results in order end here
            if core.cancelled or is_cut and how.ordered:
                continue
            if core.status == "QV_OK":
                yield model._tokens(core)
                continue
            failure = error(core.status, core.error, core.key, core.index)
            if how.errors == "raise":
                raise failure
            yield failure
        feeder.join()
        if feeder.failure:
            raise feeder.failure
    finally:
        feeder.end()
        _at_work.discard(feeder)
        job.close()
        progress.end()
