/* SPDX-License-Identifier: MIT */
/* The sink of Python's jobs, and the results until Python takes them. */
#include "results.h"

#include "error.h"

namespace qvpy
{

/* ---- the sink -------------------------------------------------------------------------------- */

/* The job's threads call the sink, without the interpreter. */
template <typename F>
static qv_status
within_memory(const qv_job_result *r, qv_error *err, F call)
{
    try {
        call();
        return QV_OK;
    } catch (const std::bad_alloc &) {
        return qv_fail(err, QV_ENOMEM, "%s: no memory for %lld tokens", r->key,
                       (long long)r->n_tokens);
    }
}

static qv_status
begin(void *user, const qv_job_result *r, void **entry, qv_error *err)
{
    Tokens *t = static_cast<Source *>(r->user)->tokens.get();
    *entry = t;
    return within_memory(r, err, [&] {
        t->allocate(static_cast<Results *>(user)->facts, r->n_tokens, r->dtype);
    });
}

static qv_status
put_rows(void *, void *entry, const qv_job_result *, const qv_job_rows *rows, qv_error *)
{
    const Tokens &t = *static_cast<const Tokens *>(entry);
    const qv_tokens &from = rows->tokens;
    const size_t row = (size_t)t.width * qv_dtype_bytes(t.dtype);
    for (int i = 0; i < 1 + t.n_deepstack; i++)
        memcpy(t.matrix(i) + (size_t)rows->first * row, i ? from.deepstack[i - 1] : from.tokens,
               (size_t)from.n * row);
    return QV_OK;
}

/* Sets what is known of a source at its end. */
static void
describe(Tokens &t, const Source &source, const Results &of, const qv_job_result *r)
{
    t.key = r->key;
    t.status = r->status;
    t.error = r->error;
    t.outcome = source.frames ? *source.frames : r->outcome;
    t.origin = of.origin;
    t.grid_thw.assign(r->outcome.grid_thw, r->outcome.grid_thw + 3);
    t.ahead_bytes = r->ahead_bytes;
    if (r->timestamps_s)
        t.timestamps.assign(r->timestamps_s, r->timestamps_s + r->outcome.n_frames);
    else if (source.frames)
        t.timestamps = source.frames->timestamps;
}

static qv_status
end(void *user, void *, const qv_job_result *r, qv_error *err)
{
    const std::unique_ptr<Source> source(static_cast<Source *>(r->user));
    Results &to = *static_cast<Results *>(user);
    return within_memory(r, err, [&] {
        describe(*source->tokens, *source, to, r);
        to.put(std::move(source->tokens));
    });
}

qv_job_sink
Results::sink()
{
    return { begin, put_rows, end, this };
}

/* ---- what waits ------------------------------------------------------------------------------ */

void
Results::put(std::unique_ptr<Tokens> tokens)
{
    const std::lock_guard<std::mutex> hold(lock);
    if (!cancelled && !lost) /* after a loss what comes was cancelled */
        ready.emplace(ordered ? tokens->index : came++, std::move(tokens));
    changed.notify_all();
}

void
Results::lose(void *user, qv_status status, const char *words)
{
    Results &r = *static_cast<Results *>(user);
    const std::lock_guard<std::mutex> hold(r.lock);
    r.lost = status;
    r.why = words;
    r.changed.notify_all();
}

std::unique_ptr<Tokens>
Results::take(bool for_ever, bool *over)
{
    std::unique_lock<std::mutex> hold(lock);
    const auto is_due = [&] { return ended || cancelled || lost || is_next_ready(); };
    if (for_ever)
        changed.wait(hold, is_due);
    else
        changed.wait_for(hold, std::chrono::milliseconds(100), is_due);
    *over = !is_next_ready() && (ended || cancelled);
    if (!is_next_ready() && lost)
        fail(lost, "%s", why.c_str());
    if (!is_next_ready())
        return nullptr;
    std::unique_ptr<Tokens> one = std::move(ready.begin()->second);
    ready.erase(ready.begin());
    turn = one->index + 1;
    qv_job_give_back(job, one->ahead_bytes); /* job may be NULL: it does nothing then */
    return one;
}

/* Drops what is under way; adding and ending then return soon. */
void
Results::cancel()
{
    {
        const std::lock_guard<std::mutex> hold(lock);
        if (!job)
            return;
        calls++;
        cancelled = true;
        ready.clear();
    }
    changed.notify_all();
    qv_job_cancel(job);
    const std::lock_guard<std::mutex> hold(lock);
    calls--;
    changed.notify_all();
}

/* Closes the job once its calls have returned, or waits for the thread that closes it. */
void
Results::close()
{
    cancel();
    std::unique_lock<std::mutex> hold(lock);
    changed.wait(hold, [&] { return !job || !calls; });
    qv_job *mine = std::exchange(job, nullptr);
    if (mine) {
        hold.unlock();
        qv_job_close(&mine);
        hold.lock();
        closed = true;
        changed.notify_all();
    }
    changed.wait(hold, [&] { return closed; });
}

bool
Results::is_closed()
{
    const std::lock_guard<std::mutex> hold(lock);
    return closed;
}

} // namespace qvpy
