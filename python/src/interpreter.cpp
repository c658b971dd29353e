/* SPDX-License-Identifier: MIT */
/* Gives the interpreter away and takes it back, and ends in order what runs without it. */
#include <cxxabi.h>

#include <atomic>
#include <mutex>
#include <set>

#include "results.h"

namespace qvpy
{

/* Threads that are in a scope of Released, and neither have the interpreter nor wait for it. The
 * process's end waits for them, because exit() takes away what the libraries that they compute with
 * keep in static variables. */
static std::atomic<int> working{ 0 };
static std::set<Job *> open_jobs;
/* Jobs whose threads have the interpreter or wait for it, perhaps for ever; NULL among them. */
static std::set<qv_job *> left_jobs;
static std::mutex left_lock;
static pid_t process; /* a forked one has none of these threads */

/* A chunk under way may take longer than anybody waits for a process to end. */
static constexpr int MOST_WAIT_MS = 5000;

static thread_local PyThreadState *thread; /* Python's state of this thread, while it is released */

[[noreturn]] static void
wait_for_ever()
{
    for (;;)
        pause();
}

Released::Released()
{
    working++;
    thread = PyEval_SaveThread();
}

Released::~Released()
{
    working--;
    try {
        PyEval_RestoreThread(thread);
    } catch (abi::__forced_unwind &) {
        wait_for_ever();
    }
}

void
with_interpreter(const std::function<void()> &call, qv_job *job)
{
    struct Scope {
        explicit Scope(qv_job *job_) : job(job_)
        {
            {
                const std::lock_guard<std::mutex> hold(left_lock);
                left_jobs.insert(job);
            }
            working--; /* before CPython 3.14 keeps the thread for ever */
            PyEval_RestoreThread(thread);
        }
        ~Scope()
        {
            working++;
            thread = PyEval_SaveThread();
            const std::lock_guard<std::mutex> hold(left_lock);
            left_jobs.erase(job);
        }
        qv_job *job;
    };
    try {
        const Scope scope(job);
        try {
            call();
        } catch (abi::__forced_unwind &) { /* the scope must not be left */
            wait_for_ever();
        }
    } catch (abi::__forced_unwind &) {
        wait_for_ever();
    }
}

void
job_is_open(Job *job, bool is_open)
{
    const std::lock_guard<std::mutex> hold(left_lock);
    if (is_open)
        open_jobs.insert(job);
    else
        open_jobs.erase(job);
}

/* Called when the interpreter is gone, before exit(). */
static void
end_work()
{
    if (process != getpid())
        return;
    {
        const std::lock_guard<std::mutex> hold(left_lock);
        for (Job *job : open_jobs) {
            qv_job_cancel(job->job);
            job->lose(QV_ESTATE, "the process ends");
        }
    }
    for (int ms = 0; working && ms < MOST_WAIT_MS; ms++)
        usleep(1000);
    if (working || left_jobs.count(nullptr)) /* which may have a turn at a device, for ever */
        return;
    for (Job *job : open_jobs)
        qv_job_close(&job->job);
    for (qv_job *job : left_jobs) /* their threads never come back */
        qv_job_close(&job);
}

void
wait_at_end()
{
    process = getpid();
    Py_AtExit(end_work); /* if there are too many such functions already, nothing is waited for */
}

} // namespace qvpy
