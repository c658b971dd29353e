/* SPDX-License-Identifier: MIT */
/* Releases and reacquires the interpreter, and ends work without the interpreter in order. */
#include <cxxabi.h>

#include <atomic>
#include <mutex>
#include <set>

#include "results.h"

namespace qvpy
{

/* The number of threads in a scope of Released that neither have the interpreter nor wait for it.
 * The end of the process waits for them, because exit() destroys the static variables of the
 * libraries that they compute with. */
static std::atomic<int> working{ 0 };
static std::set<Job *> open_jobs;
/* Jobs of threads that have the interpreter or wait for it, perhaps for ever; may contain NULL. */
static std::set<qv_job *> left_jobs;
static std::mutex left_lock;
static pid_t process; /* a forked process has none of these threads */

/* A chunk in progress may take longer than a user waits for a process to end. */
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
            working--; /* before RestoreThread, which may never return */
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
        } catch (abi::__forced_unwind &) { /* must not leave the scope */
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

/* Called after the interpreter has ended, before exit(). */
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
    if (working || left_jobs.count(nullptr)) /* a thread may hold a device for ever */
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
    Py_AtExit(end_work); /* if this fails, the process ends without waiting */
}

} // namespace qvpy
