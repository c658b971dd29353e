/* SPDX-License-Identifier: MIT */
/* Gives the interpreter away and takes it back, and ends in order what runs without it. */
#include <cxxabi.h>

#include <atomic>
#include <set>

#include "results.h"

namespace qvpy
{

/* Scopes of Released that threads are in. They are waited for, because exit() takes away what the
 * libraries that they compute with keep in static variables. */
static std::atomic<int> working{ 0 };
static std::set<Results *> open_jobs;
static pid_t process; /* a forked one has none of these threads */

/* A chunk under way may take longer than anybody waits for a process to end. */
static constexpr int MOST_WAIT_MS = 5000;

static thread_local PyThreadState *thread; /* Python's state of this thread, while it is released */
static thread_local int scopes;            /* how many scopes of Released it is in */

[[noreturn]] static void
wait_for_ever()
{
    working -= scopes;
    for (;;)
        pause();
}

Released::Released()
{
    working++;
    scopes++;
    thread = PyEval_SaveThread();
}

Released::~Released()
{
    working--;
    scopes--;
    try {
        PyEval_RestoreThread(thread);
    } catch (abi::__forced_unwind &) {
        wait_for_ever();
    }
}

void
with_interpreter(const std::function<void()> &call, const std::function<void()> &ended)
{
    struct Scope {
        Scope()
        {
            PyEval_RestoreThread(thread);
        }
        ~Scope()
        {
            thread = PyEval_SaveThread();
        }
    };
    const auto end = [&] {
        ended();
        wait_for_ever();
    };
    try {
        const Scope scope;
        try {
            call();
        } catch (abi::__forced_unwind &) { /* the scope must not be left */
            end();
        }
    } catch (abi::__forced_unwind &) {
        end();
    }
}

void
job_opened(Results *job)
{
    open_jobs.insert(job);
}

void
job_closed(Results *job)
{
    open_jobs.erase(job);
}

/* Called when the interpreter is gone, before exit(). */
static void
end_work()
{
    if (process != getpid())
        return;
    for (Results *job : open_jobs)
        job->cancel();
    for (int ms = 0; working && ms < MOST_WAIT_MS; ms++)
        usleep(1000);
    if (!working)
        for (Results *job : open_jobs)
            job->close();
}

void
wait_at_end()
{
    process = getpid();
    Py_AtExit(end_work); /* if there are too many such functions already, nothing is waited for */
}

} // namespace qvpy
