/* SPDX-License-Identifier: MIT */
/* Runs many sources through a job (results.cpp has its results). */
#include <nanobind/stl/string.h>

#include <chrono>

#include "error.h"
#include "results.h"

namespace qvpy
{

nb::dict
progress_of(const qv_job_progress &p)
{
    nb::dict d;
    d["added"] = p.added;
    d["done"] = p.done;
    d["failed"] = p.failed;
    d["tokens"] = p.tokens;
    d["rows"] = p.rows;
    d["capacity_rows"] = p.capacity_rows;
    d["seconds"] = p.elapsed_s;
    d["limit"] = p.limit;
    return d;
}

/* It is closed when it is destroyed. */
class Job
{
  public:
    /* ordered: results come in the order of their places. most: qv_job_options.ahead. queue: how
     * many sources wait; 0: few, and adding waits for room. how: options of clips that say where
     * most of them are decoded. */
    Job(nb::list models, nb::object decoder_, const std::string &dtype, int decoders, bool alone,
        bool ordered, int64_t most, int64_t queue, nb::dict how)
        : decoder(decoder_), owns(true)
    {
        std::vector<qv_model *> all;
        qv_job_options o = {};
        const Model &first = nb::cast<const Model &>(models[0]);
        results->ordered = ordered;
        results->facts = first.facts;
        results->origin = first.origin;
        for (nb::handle model : models) {
            results->towers.push_back(nb::cast<const Model &>(model).tower());
            all.push_back(results->towers.back()->model);
        }
        o.sink = results->sink();
        o.lost = Results::lose;
        o.output = parse_dtype(dtype, false);
        o.decoders = decoders;
        o.alone = alone;
        o.queue = queue ? queue : 64;
        o.refuse_when_full = o.warm_up = queue;
        o.ahead = most;
        take_clip_options(how, &o.clip);
        o.clip.decoder = decoder_of(decoder_);
        qv_error err = {};
        {
            const Released released;
            check(qv_job_open(all.data(), all.size(), &o, &results->job, &err), err);
        }
        job_opened(results.get());
    }

    ~Job()
    {
        if (owner != getpid())
            new std::shared_ptr<Results>(results); /* never freed */
        else if (owns)
            close();
    }

    /* Returns the same job for a thread that adds sources, which may wait for its caller for ever:
     * it does not keep the job open. */
    Job
    share() const
    {
        Job shared(*this);
        shared.owns = false;
        return shared;
    }
    Job(Job &&) = default;
    Job &operator=(const Job &) = delete;

    /* Adds a source: a path (is_path), bytes of a file, or Frames. Places are 0, 1, .., each for
     * one source, which is added or refused. */
    void
    add(int64_t place, const std::string &key, nb::object source, bool is_path, nb::dict options)
    {
        auto kept = std::make_unique<Source>();
        qv_clip_options clip = {};
        qv_job_source s = {};
        must_be_ours(owner);
        take_clip_options(options, &clip);
        s.key = key.c_str();
        s.clip = &clip;
        s.ticket = (uint64_t)place + 1;
        kept->tokens->index = place;
        if (nb::isinstance<Frames>(source)) {
            kept->frames = std::make_unique<Frames>(std::move(nb::cast<Frames &>(source)));
            /* any device may take them, and it may not see another's memory */
            if (results->towers.size() > 1)
                kept->frames->to_host();
            s.kind = QV_SOURCE_FRAMES;
            s.item = kept->frames->item();
        } else if (is_path) {
            kept->tokens->path =
                text_of(nb::cast<nb::bytes>(source), "path"); /* may not be UTF-8 */
            s.path = kept->tokens->path.c_str();
        } else {
            nb::bytes bytes = nb::cast<nb::bytes>(source);
            kept->bytes.assign(bytes.c_str(), bytes.size());
            if (kept->bytes.empty())
                fail(QV_EINVAL, "%s: no bytes", key.c_str());
            s.kind = QV_SOURCE_BYTES;
            s.bytes = kept->bytes.data();
            s.n_bytes = kept->bytes.size();
        }
        put(std::move(kept), s);
    }

    /* Drops the source of a place; its result comes all the same, as a failure. */
    void
    drop(int64_t place)
    {
        must_be_ours(owner);
        const Released released;
        const Use use(*results);
        qv_job_drop(use.job, (uint64_t)place + 1);
    }

    /* Adds a source that has failed already. */
    void
    refuse(int64_t place, const std::string &key, const std::string &status,
           const std::string &words)
    {
        auto kept = std::make_unique<Source>();
        qv_job_source s = {};
        must_be_ours(owner);
        kept->tokens->index = place;
        s.key = key.c_str();
        s.status = parse_status(status);
        s.error = words.c_str();
        put(std::move(kept), s);
    }

    /* Ends adding, and waits until all is done; next() then ends. */
    void
    end()
    {
        must_be_ours(owner);
        must_not_compute();
        qv_error err = {};
        const Released released;
        const Use use(*results);
        const qv_status status = qv_job_end(use.job, &err);
        {
            std::lock_guard<std::mutex> hold(results->lock);
            results->ended = true;
        }
        results->changed.notify_all();
        check(status, err);
    }

    /* Returns the next result, None if none will come, or False if none comes for so long. Throws
     * what the job was lost for, once the results before were taken. It hears signals while it
     * waits, unless it waits for ever, as threads do that handle none (seconds below 0). */
    nb::object
    next(double seconds)
    {
        must_be_ours(owner);
        must_not_compute();
        Results &from = *results;
        using clock = std::chrono::steady_clock;
        const auto until = clock::now() + std::chrono::duration<double>(seconds);
        for (;;) {
            std::unique_ptr<Tokens> one;
            bool over;
            {
                const Released released;
                one = from.take(seconds < 0, &over);
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

    /* Closes the job. A forked process ends nothing: it has none of the threads, and the memory
     * that they left may be half changed. */
    void
    close()
    {
        if (owner != getpid())
            return;
        job_closed(results.get());
        if (closes_later(results))
            return;
        const Released released;
        results->close();
    }

    bool
    is_closed() const
    {
        return owner != getpid() || results->is_closed();
    }

    nb::dict
    progress()
    {
        must_be_ours(owner);
        qv_job_progress p = {};
        {
            const Released released;
            const Use use(*results);
            qv_job_get_progress(use.job, &p);
        }
        return progress_of(p);
    }

  private:
    nb::object decoder;
    bool owns;
    pid_t owner = getpid();
    std::shared_ptr<Results> results = std::make_shared<Results>();

    Job(const Job &) = default;

    /* Adds a source to the job, which waits for room without the interpreter. */
    void
    put(std::unique_ptr<Source> kept, qv_job_source &s)
    {
        qv_error err = {};
        qv_status status;
        s.user = kept.get();
        {
            const Released released;
            const Use use(*results);
            status = qv_job_add(use.job, &s, &err);
        }
        check(status, err);
        (void)kept.release(); /* its end frees it */
    }
};

void
bind_job(nb::module_ &m)
{
    nb::class_<Job>(m, "Job")
        .def(nb::init<nb::list, nb::object, const std::string &, int, bool, bool, int64_t, int64_t,
                      nb::dict>(),
             nb::arg("models"), nb::arg("decoder").none(), nb::arg("dtype"), nb::arg("decoders"),
             nb::arg("alone"), nb::arg("ordered"), nb::arg("most"), nb::arg("queue"),
             nb::arg("how"))
        .def("share", &Job::share)
        .def("add", &Job::add)
        .def("drop", &Job::drop)
        .def("refuse", &Job::refuse)
        .def("end", &Job::end)
        .def("next", &Job::next,
             nb::sig("def next(self, seconds: float, /) -> Tokens | bool | None"))
        .def("close", &Job::close)
        .def_prop_ro("closed", &Job::is_closed)
        .def("progress", &Job::progress);
}

} // namespace qvpy
