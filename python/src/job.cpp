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
    d["seconds"] = p.elapsed_s;
    d["limit"] = p.limit;
    return d;
}

struct Job {
    nb::list model_objects;
    nb::object decoder_object;
    Model *model; /* the first of them */
    pid_t owner;
    std::shared_ptr<Results> results = std::make_shared<Results>();

    /* In a turn of each model, which must last as long as the job unless the model is lent to it.
     * ordered: results come in the order of their places. most: qv_job_options.ahead. queue: how
     * many sources wait; 0: few, and adding waits for room. how: options of clips that say where
     * most of them are decoded. */
    Job(std::vector<qv_model *> models, nb::list model_objects_, nb::object decoder_,
        const std::string &dtype, int decoders, bool alone, bool ordered, int64_t most,
        int64_t queue, nb::dict how)
        : model_objects(model_objects_), decoder_object(decoder_),
          model(nb::cast<Model *>(model_objects_[0])), owner(getpid())
    {
        qv_job_options o = {};
        results->ordered = ordered;
        results->facts = model->facts;
        results->origin = model->origin;
        o.sink = results->sink();
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
            check(qv_job_open(models.data(), models.size(), &o, &results->job, &err), err);
        }
        job_opened(results.get());
    }

    ~Job()
    {
        if (owner == getpid())
            close();
        else
            new std::shared_ptr<Results>(results); /* never freed */
    }

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

    /* Adds a source: a path (is_path), bytes of a file, or Frames. Places are 0, 1, .., each for
     * one source, which is added or refused. */
    void
    add(int64_t place, const std::string &key, nb::object source, bool is_path, nb::dict options)
    {
        auto kept = std::make_unique<Source>();
        qv_clip_options clip = {};
        qv_job_source s = {};
        model->must_be_ours();
        take_clip_options(options, &clip);
        s.key = key.c_str();
        s.clip = &clip;
        s.ticket = (uint64_t)place + 1;
        kept->tokens->index = place;
        if (nb::isinstance<Frames>(source)) {
            kept->frames = std::make_unique<Frames>(std::move(nb::cast<Frames &>(source)));
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

    /* Drops the source of a place; its result comes all the same, as cancelled. */
    void
    drop(int64_t place)
    {
        model->must_be_ours();
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
        model->must_be_ours();
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
        model->must_be_ours();
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

    /* Returns the next result, or NULL if none comes for so long; sets `over` if none will come. It
     * checks signals while it waits. */
    std::unique_ptr<Tokens>
    next(double seconds, bool &over)
    {
        model->must_be_ours();
        Results &from = *results;
        using clock = std::chrono::steady_clock;
        const auto until = clock::now() + std::chrono::duration<double>(seconds);
        for (;;) {
            std::unique_ptr<Tokens> one;
            {
                const Released released;
                std::unique_lock<std::mutex> hold(from.lock);
                from.changed.wait_for(hold, std::chrono::milliseconds(100), [&] {
                    return from.ended || from.cancelled || from.is_next_ready();
                });
                one = from.take();
                over = !one && (from.ended || from.cancelled);
            }
            if (one || over)
                return one;
            if (PyErr_CheckSignals())
                throw nb::python_error();
            if (clock::now() >= until)
                return nullptr;
        }
    }

    /* Its `ended`: nothing more is done, as a device was lost. */
    qv_job_progress
    look()
    {
        const Released released;
        const Use use(*results);
        qv_job_progress p = {};
        qv_job_get_progress(use.job, &p);
        return p;
    }

    /* Closes the job. A forked process ends nothing: it has none of the threads, and the memory
     * that they left may be half changed. */
    void
    close()
    {
        if (owner != getpid())
            return;
        job_closed(results.get());
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
        model->must_be_ours();
        return progress_of(look());
    }
};

/* ---- who has the model ----------------------------------------------------------------------- */

/* Opens a job for a generator or an encoder: the models are lent to it, and this turn ends. */
void
open_job(Job *at, nb::list models, nb::object decoder, const std::string &dtype, int decoders,
         bool alone, bool ordered, int64_t most, int64_t queue, nb::dict how, nb::object is_open)
{
    std::vector<std::unique_ptr<const Model::Turn>> turns;
    std::vector<qv_model *> all;
    for (nb::handle model : models) {
        turns.push_back(std::make_unique<const Model::Turn>(*nb::cast<Model *>(model)));
        all.push_back(turns.back()->get());
    }
    const Job *job =
        new (at) Job(all, models, decoder, dtype, decoders, alone, ordered, most, queue, how);
    for (nb::handle model : models)
        nb::cast<Model *>(model)->lend(job->results, is_open);
}

/* Encodes one source in one turn of the model, and returns its Tokens. Whatever raises in here (a
 * signal's handler, `progress`) ends the job and the turn. progress(dict, last) is called after
 * each `wait_s` seconds and at the end. */
static Tokens *
encode_one(nb::object model, nb::object decoder, const std::string &dtype, const std::string &key,
           nb::object source, bool is_path, nb::dict options, nb::object progress, double wait_s)
{
    const Model::Turn turn(*nb::cast<Model *>(model));
    nb::list models;
    models.append(model);
    Job job({ turn.get() }, models, decoder, dtype, 0, true, true, 0, 0, options);
    job.add(0, key, source, is_path, options);
    for (bool over;;) {
        std::unique_ptr<Tokens> one = job.next(wait_s, over);
        if (one || job.look().ended)
            job.end(); /* throws if the job was lost */
        if (one && !one->cancelled) {
            progress(job.progress(), true);
            return one.release();
        }
        if (over)
            fail(QV_ESTATE, "%s: the job ended without it", key.c_str());
        progress(job.progress(), false);
    }
}

void
bind_job(nb::module_ &m)
{
    nb::class_<Job>(m, "Job")
        .def("__init__", open_job, nb::arg("models"), nb::arg("decoder").none(), nb::arg("dtype"),
             nb::arg("decoders"), nb::arg("alone"), nb::arg("ordered"), nb::arg("most"),
             nb::arg("queue"), nb::arg("how"), nb::arg("is_open"))
        .def("add", &Job::add)
        .def("drop", &Job::drop)
        .def("refuse", &Job::refuse)
        .def("end", &Job::end)
        .def(
            "next",
            [](Job &job, double seconds) -> nb::object {
                bool over;
                std::unique_ptr<Tokens> one = job.next(seconds, over);
                if (one)
                    return nb::cast(one.release(), nb::rv_policy::take_ownership);
                return over ? nb::object(nb::none()) : nb::object(nb::bool_(false));
            },
            nb::sig("def next(self, seconds: float, /) -> Tokens | bool | None"),
            "Returns the next result, None at the end, or False if none comes for so long.")
        .def("close", &Job::close)
        .def_prop_ro("closed", &Job::is_closed)
        .def_prop_ro("lost", [](Job &job) { return job.look().ended; })
        .def("progress", &Job::progress);
    m.def("encode_one", encode_one, nb::arg("model"), nb::arg("decoder").none(), nb::arg("dtype"),
          nb::arg("key"), nb::arg("source"), nb::arg("is_path"), nb::arg("options"),
          nb::arg("progress"), nb::arg("wait_s"), nb::rv_policy::take_ownership);
}

} // namespace qvpy
