/* SPDX-License-Identifier: MIT */
/* The open jobs of models, and the clients that run sources through them (see results.cpp for their
 * results). */
#include <nanobind/stl/string.h>

#include <chrono>

#include "error.h"
#include "results.h"

namespace qvpy
{

nb::dict
progress_of(const qv_job_progress &p)
{
    return dict_of(QVPY_MEMBER(p, added), QVPY_MEMBER(p, done), QVPY_MEMBER(p, failed),
                   QVPY_MEMBER(p, tokens), QVPY_MEMBER(p, chunks), QVPY_MEMBER(p, rows),
                   QVPY_MEMBER(p, capacity_rows), "seconds", p.elapsed_s, QVPY_MEMBER(p, limit));
}

/* A job that Python holds open. */
class OpenJob
{
  public:
    /* how: options of clips that choose where most of them are decoded. */
    OpenJob(nb::list models, const std::string &dtype, int decoders, bool alone, bool warm_up,
            nb::dict how, bool hidden)
    {
        const auto made = std::make_shared<Job>();
        qv_job_options o = {};
        qv_clip_options clip = {};
        for (nb::handle model : models)
            made->towers.push_back(nb::cast<const Model &>(model).tower());
        made->facts = nb::cast<const Model &>(models[0]).facts;
        made->origin = nb::cast<const Model &>(models[0]).origin;
        take_clip_options(how, &clip);
        o.output = parse_dtype(dtype, false);
        o.decoders = decoders;
        o.alone = alone;
        o.warm_up = warm_up;
        o.hidden = hidden;
        o.clip.decode = clip.decode;
        o.clip.gpu = clip.gpu;
        const Released released;
        made->open(o);
        job = made;
    }
    ~OpenJob()
    {
        let_go(std::move(job));
    }
    OpenJob(const OpenJob &) = delete;
    OpenJob &operator=(const OpenJob &) = delete;
    std::shared_ptr<Job> job;
};

/* A caller's share of a job. Destroying it closes it. */
class Client
{
  public:
    /* ordered: results come in the order of their places. most: the client's bound of what is
     * ahead. queue: how many sources wait; 0: few, and adding waits for room. */
    Client(OpenJob &job, bool ordered, int64_t most, int64_t queue) : owns(true)
    {
        must_be_ours(owner = job.job->owner);
        must_not_compute();
        results->ordered = ordered;
        const Released released;
        const auto seat = std::make_shared<Seat>(job.job);
        checked(qv_job_client_open, seat->job->job, queue ? queue : 64, queue, most, &seat->client);
        qv_job_get_progress(seat->job->job, &before);
        results->seat = seat;
        const std::lock_guard<std::mutex> hold(seat->job->lock);
        seat->job->all.insert(results.get());
        if (seat->job->lost)
            results->lose(seat->job->lost, seat->job->why.text);
    }

    ~Client()
    {
        if (owner != getpid())
            new std::shared_ptr<Results>(results); /* never freed */
        else if (owns)
            close();
    }

    /* Returns the same client for a thread that adds sources, which may wait for its caller for
     * ever: it does not keep the client open. */
    Client
    share() const
    {
        Client shared(*this);
        shared.owns = false;
        return shared;
    }
    Client(Client &&) = default;
    Client &operator=(const Client &) = delete;

    /* Adds a source: a path (is_path), bytes of a file, or Frames. Places are 0, 1, .., each for
     * one source, which is added or refused. decoder: for files. Frames that were added are empty
     * afterwards; those that could not be are as before. */
    void
    add(int64_t place, const std::string &key, nb::object source, bool is_path, nb::dict options,
        nb::object decoder)
    {
        auto kept = std::make_unique<Source>();
        auto tokens = std::make_unique<Tokens>();
        Frames *given = nullptr;
        qv_clip_options clip = {};
        qv_job_source s = {};
        must_be_ours(owner);
        take_clip_options(options, &clip);
        const auto job = results->use()->job;
        {
            const std::lock_guard<std::mutex> hold(job->lock);
            clip.decoder = job->decoders.insert(decoder_of(decoder)).first->get();
        }
        if (nb::isinstance<Frames>(source)) {
            given = &nb::cast<Frames &>(source);
            kept->frames = std::make_unique<Frames>(std::move(*given));
            /* any device may take them, and may not see another device's memory */
            if (job->towers.size() > 1)
                kept->frames->to_host();
            s = kept->frames->source();
        } else if (is_path) {
            tokens->path = text_of(nb::cast<nb::bytes>(source)); /* may not be UTF-8 */
            s.path = tokens->path.c_str();
        } else {
            nb::bytes bytes = nb::cast<nb::bytes>(source);
            kept->bytes.assign(bytes.c_str(), bytes.size());
            if (kept->bytes.empty())
                fail(QV_EINVAL, "%s: the bytes are empty", key.c_str());
            s.kind = QV_SOURCE_BYTES;
            s.bytes = kept->bytes.data();
            s.n_bytes = kept->bytes.size();
        }
        s.clip = &clip;
        try {
            put(place, key, s, kept, std::move(tokens));
        } catch (...) {
            if (given)
                *given = std::move(*kept->frames);
            throw;
        }
    }

    /* Adds a source that has already failed. */
    void
    refuse(int64_t place, const std::string &key, const std::string &status,
           const std::string &words)
    {
        qv_job_source s = {};
        s.status = parse_status(status);
        s.error = words.c_str();
        auto kept = std::make_unique<Source>();
        put(place, key, s, kept, std::make_unique<Tokens>());
    }

    /* Drops the source of a place; its result still comes, as a failure. */
    void
    drop(int64_t place)
    {
        must_be_ours(owner);
        const Released released;
        const auto seat = results->use();
        qv_job_drop(seat->job->job, seat->client, (uint64_t)place + 1);
    }

    /* Ends adding: next() returns None once everything is done. */
    void
    end()
    {
        must_be_ours(owner);
        const Released released;
        const std::lock_guard<std::mutex> hold(results->lock);
        results->ended = true;
        results->changed.notify_all();
    }

    /* Returns the next result, None if no more will come, or False after so many seconds. Throws
     * the failure that ended the job, once the earlier results were taken. It handles signals while
     * it waits, unless seconds is below 0: then it waits for ever, for threads that handle no
     * signals. */
    nb::object
    next(double seconds)
    {
        must_be_ours(owner);
        must_not_compute();
        using clock = std::chrono::steady_clock;
        const auto until = clock::now() + std::chrono::duration<double>(seconds);
        for (;;) {
            std::unique_ptr<Tokens> one;
            bool over;
            {
                const Released released;
                one = results->take(seconds < 0, &over);
            }
            if (one)
                return nb::cast(one.release(), nb::rv_policy::take_ownership);
            if (over)
                return nb::none();
            if (PyErr_CheckSignals())
                throw nb::python_error();
            if (clock::now() >= until)
                return nb::bool_(false);
        }
    }

    /* Drops what is in progress. A forked process ends nothing: it has none of the threads, and the
     * memory that they left may be half changed. */
    void
    close()
    {
        if (owner != getpid())
            return;
        std::shared_ptr<Seat> seat;
        {
            const Released released;
            const std::lock_guard<std::mutex> hold(results->lock);
            seat = std::exchange(results->seat, nullptr);
            results->ready.clear();
            results->changed.notify_all();
        }
        if (!seat)
            return;
        {
            const std::lock_guard<std::mutex> hold(seat->job->lock);
            seat->job->all.erase(results.get());
        }
        qv_job_client_cancel(seat->client);
        let_go(std::move(seat));
    }

    /* Returns counts of this client's sources, and of the job's chunks since it was opened. */
    nb::dict
    progress()
    {
        must_be_ours(owner);
        qv_job_progress p = {};
        {
            const Released released;
            const auto seat = results->use();
            qv_job_get_progress(seat->job->job, &p);
            const std::lock_guard<std::mutex> hold(results->lock);
            qv_job_progress_since(&p, &before);
            p.added = results->added;
            p.done = results->done;
            p.failed = results->failed;
            p.tokens = results->tokens;
        }
        return progress_of(p);
    }

  private:
    bool owns;
    pid_t owner;
    qv_job_progress before = {};
    std::shared_ptr<Results> results = std::make_shared<Results>();

    Client(const Client &) = default;

    /* Adds a source to the job, which waits for room without the interpreter. */
    void
    put(int64_t place, const std::string &key, qv_job_source &s, std::unique_ptr<Source> &kept,
        std::unique_ptr<Tokens> tokens)
    {
        qv_error err = {};
        must_be_ours(owner);
        const Released released;
        const auto seat = results->use();
        const auto count = [&](int by) {
            const std::lock_guard<std::mutex> hold(results->lock);
            if (by > 0 && results->ended) /* next() would never return */
                fail(QV_ESTATE, "this job was closed");
            results->added += by;
        };
        tokens->index = place;
        tokens->key = key;
        kept->to = results;
        kept->result[place] = std::move(tokens);
        s.key = key.c_str();
        s.user = kept.get();
        s.ticket = (uint64_t)place + 1;
        s.client = seat->client;
        count(1);
        const qv_status status = qv_job_add(seat->job->job, &s, &err);
        if (status)
            count(-1);
        check(status, err);
        (void)kept.release(); /* its end frees it */
    }
};

void
bind_job(nb::module_ &m)
{
    nb::class_<OpenJob>(m, "Job")
        .def(nb::init<nb::list, const std::string &, int, bool, bool, nb::dict, bool>())
        .def_prop_ro("lost", [](const OpenJob &j) {
            must_be_ours(j.job->owner);
            const std::lock_guard<std::mutex> hold(j.job->lock);
            return j.job->lost != QV_OK;
        });
    nb::class_<Client>(m, "Client")
        .def(nb::init<OpenJob &, bool, int64_t, int64_t>(), nb::arg("job"), nb::arg("ordered"),
             nb::arg("most"), nb::arg("queue"))
        .def("share", &Client::share)
        .def("add", &Client::add, nb::arg("place"), nb::arg("key"), nb::arg("source"),
             nb::arg("is_path"), nb::arg("options"), nb::arg("decoder").none())
        .def("drop", &Client::drop)
        .def("refuse", &Client::refuse)
        .def("end", &Client::end)
        .def("next", &Client::next,
             nb::sig("def next(self, seconds: float, /) -> Tokens | bool | None"))
        .def("close", &Client::close)
        .def("progress", &Client::progress);
}

} // namespace qvpy
