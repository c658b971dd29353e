/* SPDX-License-Identifier: MIT */
/* The sink of Python's jobs, and the results until Python takes them. */
#include "results.h"

#include "error.h"

namespace qvpy
{

/* ---- the sink -------------------------------------------------------------------------------- */

/* The job's threads call the sink without the interpreter. */
static qv_status
begin(void *user, const qv_job_result *r, void **entry, qv_error *err)
{
    Tokens *t = static_cast<Source *>(r->user)->result.begin()->second.get();
    *entry = t;
    try {
        const Job &job = *static_cast<const Job *>(user);
        t->allocate(job.facts, r->n_tokens, r->dtype, job.hidden);
        return QV_OK;
    } catch (const std::bad_alloc &) {
        return qv_fail(err, QV_ENOMEM, "%s: no memory for %lld tokens", r->key,
                       (long long)r->n_tokens);
    }
}

static qv_status
put_rows(void *, void *entry, const qv_job_result *r, const qv_job_rows *rows, qv_error *)
{
    const Tokens &t = *static_cast<const Tokens *>(entry);
    const qv_tokens &from = rows->tokens;
    const size_t row = (size_t)t.width * qv_dtype_bytes(t.dtype);
    for (int i = 0; i < 1 + t.n_deepstack; i++)
        memcpy(t.matrix(i) + (size_t)rows->first * row, i ? from.deepstack[i - 1] : from.tokens,
               (size_t)from.n * row);
    const size_t patches = (size_t)(t.patches * t.hidden) * qv_dtype_bytes(t.dtype);
    if (t.hidden)
        memcpy(t.matrix(1 + t.n_deepstack) + (size_t)rows->first * patches, from.hidden,
               (size_t)from.n * patches);
    static_cast<Source *>(r->user)->to->tokens += from.n;
    return QV_OK;
}

/* Sets a source's metadata at its end. */
static void
describe(Tokens &t, const Job &of, const qv_job_result *r)
{
    t.outcome = r->outcome;
    t.origin = of.origin;
    t.status = r->status;
    t.ahead_bytes = r->ahead_bytes;
    t.error = r->error;
    t.grid_thw.assign(r->outcome.grid_thw, r->outcome.grid_thw + 3);
    if (r->timestamps_s)
        t.timestamps.assign(r->timestamps_s, r->timestamps_s + r->outcome.n_frames);
}

static qv_status
end(void *user, void *, const qv_job_result *r, qv_error *)
{
    const std::unique_ptr<Source> source(static_cast<Source *>(r->user));
    Tokens &t = *source->result.begin()->second;
    try {
        describe(t, *static_cast<Job *>(user), r);
    } catch (const std::bad_alloc &) {
        t.status = QV_ENOMEM;
        t.error = "no memory"; /* short enough to need no allocation */
    }
    source->to->put(*source);
    return QV_OK;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

void
Job::open(qv_job_options o)
{
    std::vector<qv_model *> models;
    for (const auto &tower : towers)
        models.push_back(tower->model);
    o.sink = { begin, put_rows, end, this };
    hidden = o.hidden;
    o.lost = [](void *self, qv_status status, const char *words) {
        static_cast<Job *>(self)->lose(status, words);
    };
    checked(qv_job_open, models.data(), models.size(), &o, &job);
    job_is_open(this, true);
}

Job::~Job()
{
    if (owner != getpid())
        return;
    job_is_open(this, false);
    qv_job_close(&job);
}

void
Job::lose(qv_status status, const char *words)
{
    const std::lock_guard<std::mutex> hold(lock);
    lost = qv_fail(&why, status, "%s", words);
    for (Results *results : all)
        results->lose(status, words);
}

/* ---- waiting results ------------------------------------------------------------------------- */

std::shared_ptr<Seat>
Results::use()
{
    const std::lock_guard<std::mutex> hold(lock);
    if (!seat)
        fail(QV_ESTATE, "this job was closed");
    return seat;
}

void
Results::put(Source &source)
{
    const std::lock_guard<std::mutex> hold(lock);
    auto one = source.result.extract(source.result.begin());
    done++;
    failed += one.mapped()->status != QV_OK;
    if (!ordered)
        one.key() = came++;
    if (seat && !lost) /* after a loss the rest was cancelled */
        ready.insert(std::move(one));
    changed.notify_all();
}

void
Results::lose(qv_status status, const char *words)
{
    const std::lock_guard<std::mutex> hold(lock);
    lost = qv_fail(&why, status, "%s", words);
    changed.notify_all();
}

std::unique_ptr<Tokens>
Results::take(bool for_ever, bool *over)
{
    std::unique_lock<std::mutex> hold(lock);
    const auto is_over = [&] { return !seat || (ended && done == added); };
    const auto is_due = [&] { return lost || is_next_ready() || is_over(); };
    if (for_ever)
        changed.wait(hold, is_due);
    else
        changed.wait_for(hold, std::chrono::milliseconds(100), is_due);
    *over = !is_next_ready() && is_over();
    if (!is_next_ready() && !is_over() && lost)
        fail(lost, "%s", why.text);
    if (!is_next_ready())
        return nullptr;
    std::unique_ptr<Tokens> one = std::move(ready.begin()->second);
    ready.erase(ready.begin());
    turn = one->index + 1;
    qv_job_give_back(seat->job->job, seat->client, one->ahead_bytes);
    return one;
}

} // namespace qvpy
