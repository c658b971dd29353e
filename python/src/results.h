/* SPDX-License-Identifier: MIT */
/* Open jobs, which calls share, and the results of each call, which wait until Python reads them.
 */
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <set>

#include "binding.h"

namespace qvpy
{

struct Results;

/* A job, open while the Jobs of its models or a call with sources in it hold it. A forked process,
 * which has none of its threads, leaves it as it is. */
struct Job {
    qv_job *job = nullptr;
    const pid_t owner = getpid();
    std::vector<std::shared_ptr<const Tower>> towers;
    qv_model_info facts = {};
    bool hidden = false; /* whether results include the last block's rows */
    std::shared_ptr<const Origin> origin;
    std::mutex lock;        /* guards the members below */
    qv_status lost = QV_OK; /* the failure that has ended the job */
    qv_error why = {};
    std::set<Results *> all;                        /* of open clients */
    std::set<std::shared_ptr<qv_decoder>> decoders; /* of the added sources */

    /* Opens the job; the user pointers of its sources are Sources, which it owns once they are
     * added. */
    void open(qv_job_options o);
    ~Job();
    void lose(qv_status status, const char *words);
};

/* A client of a job, closed once no call uses it. */
struct Seat {
    explicit Seat(std::shared_ptr<Job> job_) : job(job_)
    {
    }
    ~Seat()
    {
        qv_job_client_close(&client);
    }
    const std::shared_ptr<Job> job;
    qv_job_client *client = nullptr;
};

/* The data that a source needs until its end, and its result, allocated in advance. */
struct Source {
    std::shared_ptr<Results> to;
    std::string bytes;
    std::unique_ptr<Frames> frames;
    std::map<int64_t, std::unique_ptr<Tokens>> result; /* one */
};

/* The results of a client. Any thread may close it, even while other threads are calling it.
 *
 * A forked process lacks the threads of the job, which may have held the lock or been waiting at
 * the fork. It never frees this object, because destroying a condition waits for its waiters.
 *
 * The sink never waits: if results are ordered, the result that Python waits for may come after
 * others for which there is no room. The job counts the waiting results (qv_job_client_open's
 * ahead). */
struct Results {
    std::mutex lock;
    std::condition_variable changed;
    std::shared_ptr<Seat> seat;          /* NULL: it was closed */
    bool ordered = false, ended = false; /* ended: no more sources come */
    /* keyed by place if results are ordered, otherwise by order of arrival */
    std::map<int64_t, std::unique_ptr<Tokens>> ready;
    int64_t came = 0, turn = 0;
    int64_t added = 0, done = 0, failed = 0;
    std::atomic<int64_t> tokens{ 0 }; /* that came from devices */
    qv_status lost = QV_OK;           /* the failure that has ended the job, */
    qv_error why = {};                /* and its text */

    bool
    is_next_ready() const
    {
        return !ready.empty() && (!ordered || ready.begin()->first == turn);
    }
    std::shared_ptr<Seat> use(); /* throws if it is closed */
    void put(Source &source);
    void lose(qv_status status, const char *words);
    /* Takes the next result, or NULL if none is ready, after a while or at the end. Throws the
     * failure that ended the job. */
    std::unique_ptr<Tokens> take(bool for_ever, bool *over);
};

} // namespace qvpy
