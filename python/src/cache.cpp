/* SPDX-License-Identifier: MIT */
/* Fills a cache. The binding is thin: job/fill.c runs the fill, and clips/options.inc has the rules
 * of rows. */
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>

#include "binding.h"
#include "qwenvit_clips.h"

namespace qvpy
{

qv_status
parse_status(const std::string &name)
{
    for (int i = QV_OK; i < QV_STATUS_MAX && *qv_status_name((qv_status)i); i++)
        if (name == qv_status_name((qv_status)i))
            return (qv_status)i;
    fail(QV_EINVAL, "unknown status \"%.40s\"", name.c_str());
}

/* A row: a key, a file or data in memory, and its options. */
struct CacheRow {
    std::string path, key; /* key as caches spell it */
    qv_clip_options own;
    nb::object data; /* bytes or Frames in memory, or None */
    qv_job_source memory;
};

/* Returns data in memory as a fill accepts it. */
static qv_job_source
memory_of(nb::handle data, const std::string &key)
{
    qv_job_source m = {};
    if (nb::isinstance<Frames>(data)) {
        Frames &frames = nb::cast<Frames &>(data);
        frames.to_host(); /* for hashing */
        m = frames.source();
    } else {
        m.kind = QV_SOURCE_BYTES;
        const nb::bytes bytes = nb::cast<nb::bytes>(data); /* the row keeps these bytes alive */
        m.bytes = bytes.c_str();
        m.n_bytes = bytes.size();
    }
    if (!m.n_bytes)
        fail(QV_EINVAL, "%s: the bytes are empty", key.c_str());
    return m;
}

/* Makes a row, or throws an error that names the field. data is bytes or Frames; None for a file.
 * */
static CacheRow
make_row(nb::dict fields, nb::object data)
{
    CacheRow made = {};
    std::string path, given;
    take_clip_options(fields, &made.own, &path, &given);
    if (!data.is_none() && given.empty())
        fail(QV_EINVAL, "key is missing; a source in memory has no path to serve as key");
    made.path = data.is_none() ? path : given;
    char key[QV_CACHE_MAX_KEY + 1];
    checked(qvm_check_row, &made.own);
    if (made.path.empty())
        fail(QV_EINVAL, "path is missing");
    checked(qv_cache_key, (given.empty() ? path : given).c_str(), key);
    made.key = key;
    if (!data.is_none())
        made.memory = memory_of(data, made.key);
    made.data = data;
    return made;
}

/* ---- the fill -------------------------------------------------------------------------------- */

/* A cache's folder. add() may be called repeatedly, with rows for one model. */
class CacheFill
{
  public:
    CacheFill(nb::object model_, nb::object decoder_, nb::bytes folder, const std::string &tokens,
              bool deepstack, bool retry_failed, int64_t part_bytes, double part_seconds,
              int decoders, nb::dict clip)
        : model_object(model_), decoder_object(decoder_), model(nb::cast<Model *>(model_)),
          fill(nullptr, [](qv_cache_fill *f) { qv_cache_fill_close(&f); }), owner(getpid())
    {
        qv_cache_fill_options o = {};
        o.tokens = parse_dtype(tokens, false);
        o.no_deepstack = !deepstack;
        o.retry_failed = retry_failed;
        o.part_bytes = part_bytes;
        o.part_seconds = part_seconds;
        o.decoders = decoders;
        take_clip_options(clip, &o.clip);
        o.clip.decoder = decoder_of(decoder_).get();
        o.told = tell;
        o.go_on = [](void *user, qv_job *job) { return static_cast<CacheFill *>(user)->hear(job); };
        o.user = this;
        const auto on = model->tower();
        {
            const Released released;
            qv_cache_fill *opened = nullptr;
            checked(qv_cache_fill_open, folder.c_str(), &o, &opened);
            fill.reset(opened);
            checked(qv_cache_fill_begin, opened, on->model);
        }
        for (const Told &t : told)
            if (PyErr_WarnEx(PyExc_UserWarning, t.words.c_str(), 1))
                throw nb::python_error();
    }

    /* A forked process has none of the threads that would seal, so it leaves everything as it
     * is. */
    ~CacheFill()
    {
        if (owner != getpid())
            (void)fill.release();
        const Released released;
        fill.reset();
    }

    /* Returns ({name: count}, {key: (code, message)} of the clips that failed). */
    nb::tuple
    add(nb::list rows, nb::object progress_)
    {
        must_be_open();
        std::vector<CacheRow *> taken;
        for (nb::handle row : rows)
            taken.push_back(nb::cast<CacheRow *>(row));
        qv_cache_fill_counts before, now;
        qv_error err = {};
        qv_status status;
        const auto on = model->tower();
        const struct Running {
            CacheFill *fill;
            ~Running()
            {
                fill->running = false;
                fill->progress = nb::none();
            }
        } end = { this };
        running = true;
        progress = progress_;
        shown = {};
        told.clear();
        qv_cache_fill_get_counts(fill.get(), &before);
        {
            const Released released;
            status = run(taken, on->model, &err);
        }
        qv_cache_fill_get_counts(fill.get(), &now);
        if (std::exception_ptr thrown = std::exchange(raised, nullptr))
            std::rethrow_exception(thrown);
        check(status, err);
        nb::dict failed;
        for (const Told &t : told)
            failed[t.key.c_str()] =
                nb::make_tuple(qv_status_name(t.status), as_text(t.words.c_str()));
        return nb::make_tuple(dict_of("done", now.done - before.done, "tokens",
                                      now.tokens - before.tokens, "failed",
                                      now.failed - before.failed, "there", now.there - before.there,
                                      "failed_before", now.failed_before - before.failed_before),
                              failed);
    }

    void
    close()
    {
        if (!fill)
            return;
        must_be_open();
        const Released released;
        fill.reset(); /* finished rows are already sealed, and add() has reported failures */
    }

    /* Returns a message for each part that cannot be used. */
    std::vector<nb::str>
    damaged() const
    {
        must_be_open();
        std::vector<nb::str> words;
        const qv_cache *there = qv_cache_fill_there(fill.get());
        for (int64_t i = 0; there && qv_cache_damage(there, i, nullptr); i++)
            words.push_back(as_text(qv_cache_damage(there, i, nullptr)));
        return words;
    }

  private:
    struct Told {
        std::string key, words;
        qv_status status;
    };
    using Clock = std::chrono::steady_clock;

    nb::object model_object, decoder_object, progress; /* progress: the function given to add(), or
                                                        * None */
    Model *model;
    std::unique_ptr<qv_cache_fill, void (*)(qv_cache_fill *)> fill;
    bool running = false;
    pid_t owner;
    std::mutex lock;           /* guards the members below */
    std::vector<Told> told;    /* clips that failed; without a key, a warning */
    std::exception_ptr raised; /* raised by a signal handler or by `progress` */
    Clock::time_point shown;

    void
    must_be_open() const
    {
        if (owner != getpid())
            fail(QV_ESTATE, "this cache was opened for writing by another process");
        if (!fill)
            fail(QV_ESTATE, "this cache was closed");
        if (running)
            fail(QV_ESTATE, "another add() to this cache is in progress; let it return first");
    }

    /* Runs without the interpreter. */
    qv_status
    run(const std::vector<CacheRow *> &rows, qv_model *one, qv_error *err)
    {
        static constexpr size_t AT_ONCE = 256; /* files between two checks for signals */
        qv_status s = QV_OK;
        for (size_t i = 0; i < rows.size() && !s && !raised; i++) {
            const CacheRow &r = *rows[i];
            s = r.memory.bytes ? qv_cache_fill_add_memory(fill.get(), r.key.c_str(), &r.memory,
                                                          &r.own, nullptr, err)
                               : qv_cache_fill_add(fill.get(), r.key.c_str(), r.path.c_str(),
                                                   &r.own, nullptr, err);
            if (i % AT_ONCE == 0)
                hear(nullptr);
        }
        if (!s && !raised)
            return qv_cache_fill_run(fill.get(), &one, 1, err);
        qv_cache_fill_forget(fill.get());
        return s;
    }

    /* Checks signals and shows a job's progress. Returns false to end the run. */
    bool
    hear(qv_job *job)
    {
        static constexpr auto MOMENT = std::chrono::milliseconds(100);
        const auto ask = [&] {
            try {
                if (PyErr_CheckSignals())
                    throw nb::python_error();
                if (job && !progress.is_none() && Clock::now() - shown >= MOMENT) {
                    shown = Clock::now();
                    qv_job_progress p;
                    qv_job_get_progress(job, &p);
                    progress(progress_of(p));
                }
            } catch (const std::exception &) {
                raised = std::current_exception();
            }
        };
        with_interpreter(ask, job);
        return !raised;
    }

    /* Threads of the job call this. No exception may pass through the job, so a message for which
     * there is no memory is lost. */
    static void
    tell(void *user, const char *key, qv_status status, const char *words)
    {
        CacheFill *self = static_cast<CacheFill *>(user);
        const std::lock_guard<std::mutex> hold(self->lock);
        try {
            self->told.push_back({ key ? key : "", words, status });
        } catch (const std::bad_alloc &) {
        }
    }
};

void
bind_cache(nb::module_ &m)
{
    nb::class_<CacheRow>(m, "CacheRow")
        .def(nb::new_(&make_row), nb::arg("fields"), nb::arg("data") = nb::none())
        .def_prop_ro("key", [](const CacheRow &r) { return nb::str(r.key.c_str()); });
    nb::class_<CacheFill>(m, "CacheFill")
        .def(nb::init<nb::object, nb::object, nb::bytes, const std::string &, bool, bool, int64_t,
                      double, int, nb::dict>(),
             nb::arg("model"), nb::arg("decoder").none(), nb::arg("folder"), nb::arg("tokens"),
             nb::arg("deepstack"), nb::arg("retry_failed"), nb::arg("part_bytes"),
             nb::arg("part_seconds"), nb::arg("decoders"), nb::arg("clip"))
        .def("add", &CacheFill::add, nb::arg("rows"), nb::arg("progress").none())
        .def("close", &CacheFill::close)
        .def("damaged", &CacheFill::damaged);
}

} // namespace qvpy
