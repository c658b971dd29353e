/* SPDX-License-Identifier: MIT */
/* What a job shares with its threads: its results, which wait until Python takes them. */
#ifndef QWENVIT_PYTHON_RESULTS_H
#define QWENVIT_PYTHON_RESULTS_H

#include <condition_variable>
#include <map>

#include "binding.h"

namespace qvpy
{

/* The data that a source needs until its end, and its result. */
struct Source {
    std::string bytes;
    std::unique_ptr<Frames> frames;
    std::unique_ptr<Tokens> tokens = std::make_unique<Tokens>();
};

/* A job, and the state that its threads and Python share. Any thread may close it, even while
 * others are in calls of it.
 *
 * A forked process does not have these threads, though they may hold the lock, or wait: there it is
 * never freed, because destroying a condition waits for those who wait for it.
 *
 * The sink never waits: if results are ordered, the one that Python waits for may come after some
 * for which there is no room. The job counts what waits here (qv_job_options.ahead). */
struct Results {
    std::mutex lock;
    std::condition_variable changed;
    qv_job *job = nullptr; /* NULL: the job is closed, or being closed */
    int calls = 0;         /* calls under way that use the job; none of them runs Python code */
    bool closed = false, ordered = false, ended = false, cancelled = false;
    /* keyed by place if results are ordered, else by the order in which they came */
    std::map<int64_t, std::unique_ptr<Tokens>> ready;
    int64_t came = 0, turn = 0;
    qv_status lost = QV_OK;                           /* the failure that has ended the job, */
    std::string why;                                  /* and its text */
    std::vector<std::shared_ptr<const Tower>> towers; /* that the job works with */
    qv_model_info facts = {};                         /* of the model */
    std::shared_ptr<const Origin> origin;

    /* The job's sink; its sources have Sources as users, and belong to it once they were added. */
    qv_job_sink sink();
    bool
    is_next_ready() const
    {
        return !ready.empty() && (!ordered || ready.begin()->first == turn);
    }
    void put(std::unique_ptr<Tokens> tokens);
    static void lose(void *results, qv_status status, const char *words);
    /* Takes the next one, or NULL if none is ready: after a while, or because it is over. Throws
     * what the job was lost for. */
    std::unique_ptr<Tokens> take(bool for_ever, bool *over);
    void cancel();
    void close(); /* returns once the job is closed, whoever closes it */
    bool is_closed();
};

/* Keeps a job from being closed in a scope. Throws if it is closed. */
class Use
{
  public:
    explicit Use(Results &results) : of(results)
    {
        const std::lock_guard<std::mutex> hold(of.lock);
        if (!of.job)
            fail(QV_ESTATE, "this job was closed");
        job = of.job;
        of.calls++;
    }
    ~Use()
    {
        const std::lock_guard<std::mutex> hold(of.lock);
        of.calls--;
        of.changed.notify_all();
    }
    Use(const Use &) = delete;
    Use &operator=(const Use &) = delete;
    qv_job *job;

  private:
    Results &of;
};

} // namespace qvpy

#endif
