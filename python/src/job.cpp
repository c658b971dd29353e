/* SPDX-License-Identifier: MIT */
/* Many sources through a job; results wait here until Python takes them. */
#include <nanobind/stl/string.h>

#include <chrono>
#include <condition_variable>
#include <deque>

#include "binding.h"

namespace qvpy
{

/* ---- the program that decodes ---------------------------------------------------------------- */

/* One for all jobs of a process. */
class Decoder
{
  public:
    explicit Decoder(const std::string &program) : owner(getpid())
    {
        qv_error err = {};
        check(qv_decoder_start(program.c_str(), &decoder, &err), err);
    }
    ~Decoder()
    {
        if (owner == getpid())
            qv_decoder_stop(&decoder);
    }
    qv_decoder *
    get() const
    {
        if (owner != getpid())
            fail(QV_ESTATE, "the decoder was started by another process than this one");
        return decoder;
    }

  private:
    qv_decoder *decoder = nullptr;
    pid_t owner;
};

qv_decoder *
decoder_of(nb::handle decoder)
{
    return decoder.is_none() ? nullptr : nb::cast<Decoder *>(decoder)->get();
}

/* ---- jobs ------------------------------------------------------------------------------------ */

/* What is kept of a source until its last call. */
struct Source {
    std::string bytes;
    std::shared_ptr<Frames> frames;
    std::unique_ptr<Tokens> tokens = std::make_unique<Tokens>();
};

static constexpr size_t MOST_WAITING = 16; /* results, before the job waits for Python */

/* What the job's threads and Python share. In a process that was forked off these threads are not, though they
 * may hold the lock, or wait: there it is never freed, for to end a condition waits for those who wait for it. */
struct Results {
    std::mutex lock;
    std::condition_variable changed;
    std::deque<std::unique_ptr<Tokens>> ready;
    bool ended = false, cancelled = false;
};

class Job
{
  public:
    Job(nb::object model, nb::object decoder, const std::string &dtype, int decoders, bool alone);
    ~Job();
    void add(const std::string &key, nb::object source, bool is_path, nb::dict options);
    void end();
    nb::object next();
    void cancel();
    void close();
    nb::dict progress();

  private:
    nb::object model_object, decoder_object;
    Model *model;
    qv_job *job = nullptr;
    pid_t owner;
    std::unique_ptr<Results> results = std::make_unique<Results>();

    void must_be_open() const;
    qv_status take(const qv_job_result *r, qv_error *err);
    static qv_status sink(void *user, const qv_job_result *r, qv_error *err);
};

Job::Job(nb::object model_, nb::object decoder_, const std::string &dtype, int decoders, bool alone)
    : model_object(model_), decoder_object(decoder_), model(nb::cast<Model *>(model_)),
      owner(getpid())
{
    qv_job_options o = {};
    o.sink = sink;
    o.user = this;
    o.output = parse_dtype(dtype, false);
    o.decoders = decoders;
    o.alone = alone;
    o.queue = 64;
    o.clip.decoder = decoder_of(decoder_);
    qv_model *one = model->lend();
    qv_error err = {};
    qv_status status;
    {
        nb::gil_scoped_release released;
        status = qv_job_open(&one, 1, &o, &job, &err);
    }
    if (status) {
        model->give_back();
        check(status, err);
    }
}

Job::~Job()
{
    if (owner == getpid())
        close();
    else
        (void)results.release();
}

void
Job::must_be_open() const
{
    model->must_be_ours();
    if (!job)
        fail(QV_ESTATE, "this job was closed");
}

/* On a thread of the job, without the interpreter. */
qv_status
Job::sink(void *user, const qv_job_result *r, qv_error *err)
{
    try {
        return static_cast<Job *>(user)->take(r, err);
    } catch (const std::bad_alloc &) {
        err->status = QV_ENOMEM;
        snprintf(err->text, sizeof err->text, "%s: no memory for %lld tokens", r->key,
                 (long long)r->n_tokens);
        return QV_ENOMEM;
    }
}

qv_status
Job::take(const qv_job_result *r, qv_error *)
{
    Source *source = static_cast<Source *>(r->user);
    Tokens &t = *source->tokens;
    if (r->n && !t.data)
        t.allocate(model->facts, r->n_tokens, r->dtype);
    const size_t row = (size_t)t.width * qv_dtype_bytes(r->dtype);
    for (int i = 0; r->n && i < 1 + t.n_deepstack; i++)
        memcpy(t.matrix(i) + (size_t)r->first_row * row, i ? r->deepstack[i - 1] : r->tokens,
               (size_t)r->n * row);
    if (!r->last)
        return QV_OK;
    std::unique_ptr<Source> done(source);
    t.key = r->key;
    t.status = r->status;
    t.error = r->error;
    t.cancelled = r->cancelled;
    t.is_image = r->is_image;
    t.damaged_frames = r->damaged_frames;
    t.grid_thw.assign(r->grid_thw, r->grid_thw + 3);
    t.file_bytes = r->clip ? r->clip->file_bytes : 0;
    t.file_mtime_ns = r->clip ? r->clip->file_mtime_ns : 0;
    if (r->clip && r->timestamps_s) {
        t.timestamps.assign(r->timestamps_s, r->timestamps_s + r->clip->n_frames);
        t.has_timestamps = true;
        t.sampled_fps = r->clip->sampled_fps;
        if (t.sampled_fps > 0)
            t.pair_seconds = model->facts.temporal_patch_size / t.sampled_fps;
    }
    Results &to = *results;
    std::unique_lock<std::mutex> hold(to.lock);
    to.changed.wait(hold,
                    [&] { return to.cancelled || r->cancelled || to.ready.size() < MOST_WAITING; });
    if (!to.cancelled)
        to.ready.push_back(std::move(source->tokens));
    to.changed.notify_all();
    return QV_OK;
}

/* Of a name, as a number. */
static int
parse_like(nb::handle name)
{
    qv_like like;
    const char *text = nullptr;
    if (!nb::isinstance<nb::str>(name) || !nb::try_cast(name, text) || !qv_like_parse(text, &like))
        fail(QV_EINVAL, "like is %.80s; must be '%s' or '%s'", nb::repr(name).c_str(),
             qv_like_name(QV_LIKE_TRANSFORMERS), qv_like_name(QV_LIKE_QWEN_VL_UTILS));
    return like;
}

void
take_clip_options(nb::dict options, qv_clip_options *o)
{
    const struct {
        const char *name;
        int64_t *at;
    } numbers[] = { { "num_frames", &o->num_frames },
                    { "min_frames", &o->min_frames },
                    { "max_frames", &o->max_frames },
                    { "min_pixels", &o->min_pixels },
                    { "max_pixels", &o->max_pixels },
                    { "total_pixels", &o->total_pixels },
                    { "decode_memory", &o->decode_memory },
                    { "offset", &o->offset },
                    { "length", &o->length } };
    for (auto [key, value] : options) {
        const std::string name = nb::cast<std::string>(key);
        bool known = true;
        try {
            if (name == "fps")
                o->fps = nb::cast<double>(value);
            else if (name == "start")
                o->start_s = nb::cast<double>(value);
            else if (name == "end")
                o->end_s = nb::cast<double>(value);
            else if (name == "decode_seconds")
                o->decode_seconds = nb::cast<double>(value);
            else if (name == "threads")
                o->threads = nb::cast<int>(value);
            else if (name == "like")
                o->like = (qv_like)nb::cast<int>(value);
            else {
                known = false;
                for (const auto &number : numbers)
                    if (name == number.name) {
                        *number.at = nb::cast<int64_t>(value);
                        known = true;
                    }
            }
        } catch (const nb::cast_error &) {
            fail(QV_EINVAL, "%s: a %s; must be a number", name.c_str(),
                 nb::type_name(value.type()).c_str());
        }
        if (!known)
            fail(QV_EINVAL, "there is no option %s", name.c_str());
    }
}

/* source: a path (is_path), bytes of a file, or Frames. */
void
Job::add(const std::string &key, nb::object source, bool is_path, nb::dict options)
{
    auto kept = std::make_unique<Source>();
    qv_clip_options clip = {};
    qv_job_source s = {};
    std::string path;
    must_be_open();
    take_clip_options(options, &clip);
    s.key = key.c_str();
    s.user = kept.get();
    s.clip = &clip;
    if (nb::isinstance<Frames>(source)) {
        kept->frames = std::make_shared<Frames>(nb::cast<const Frames &>(source));
        s.kind = QV_SOURCE_FRAMES;
        s.item.data = kept->frames->data.data();
        s.item.n_frames = kept->frames->n;
        s.item.is_image = kept->frames->is_image;
        memcpy(s.item.grid_thw, kept->frames->grid_thw, sizeof s.item.grid_thw);
    } else if (is_path) {
        nb::bytes text = nb::cast<nb::bytes>(source); /* a path may be no UTF-8 */
        path.assign(text.c_str(), text.size());
        if (path.find('\0') != std::string::npos)
            fail(QV_EINVAL, "a path has a NUL in it");
        s.path = path.c_str();
    } else {
        nb::bytes bytes = nb::cast<nb::bytes>(source);
        kept->bytes.assign(bytes.c_str(), bytes.size());
        if (kept->bytes.empty())
            fail(QV_EINVAL, "%s: no bytes", key.c_str());
        s.kind = QV_SOURCE_BYTES;
        s.bytes = kept->bytes.data();
        s.n_bytes = kept->bytes.size();
    }
    qv_error err = {};
    qv_status status;
    {
        nb::gil_scoped_release released;
        status = qv_job_add(job, &s, &err);
    }
    check(status, err);
    kept.release(); /* take() has it */
}

/* No more comes. Waits until all is done; next() then ends. */
void
Job::end()
{
    must_be_open();
    qv_error err = {};
    qv_status status;
    nb::gil_scoped_release released;
    status = qv_job_end(job, &err);
    {
        std::lock_guard<std::mutex> hold(results->lock);
        results->ended = true;
    }
    results->changed.notify_all();
    check(status, err);
}

/* The next result, None at the end. Signals are seen to while it waits. */
nb::object
Job::next()
{
    model->must_be_ours();
    Results &from = *results;
    for (;;) {
        std::unique_ptr<Tokens> one;
        bool over;
        {
            nb::gil_scoped_release released;
            std::unique_lock<std::mutex> hold(from.lock);
            from.changed.wait_for(hold, std::chrono::milliseconds(100), [&] {
                return from.ended || from.cancelled || !from.ready.empty();
            });
            if (!from.ready.empty()) {
                one = std::move(from.ready.front());
                from.ready.pop_front();
            }
            over = from.ended || from.cancelled;
        }
        from.changed.notify_all();
        if (one)
            return nb::cast(one.release(), nb::rv_policy::take_ownership);
        if (over)
            return nb::none();
        if (PyErr_CheckSignals())
            throw nb::python_error();
    }
}

/* What is under way is dropped; adding and ending return soon. A process that was forked off has nothing under way. */
void
Job::cancel()
{
    if (owner != getpid())
        return;
    {
        std::lock_guard<std::mutex> hold(results->lock);
        results->cancelled = true;
        results->ready.clear();
    }
    results->changed.notify_all();
    if (job)
        qv_job_cancel(job);
}

/* No other thread may be in a call of this job. In a process that was forked off nothing is ended: it has none of the
 * threads, and the memory that they left may be half changed. */
void
Job::close()
{
    if (!job || owner != getpid())
        return;
    cancel();
    {
        nb::gil_scoped_release released;
        qv_job_close(&job);
    }
    model->give_back();
}

nb::dict
Job::progress()
{
    model->must_be_ours();
    return job ? progress_of(job) : nb::dict();
}

nb::dict
progress_of(qv_job *job)
{
    nb::dict d;
    qv_job_progress p;
    qv_job_get_progress(job, &p);
    d["added"] = p.added;
    d["done"] = p.done;
    d["failed"] = p.failed;
    d["tokens"] = p.tokens;
    d["seconds"] = p.elapsed_s;
    d["limit"] = p.limit;
    return d;
}

void
bind_job(nb::module_ &m)
{
    m.def("parse_like", parse_like);
    nb::class_<Decoder>(m, "Decoder").def(nb::init<const std::string &>());
    nb::class_<Job>(m, "Job")
        .def(nb::init<nb::object, nb::object, const std::string &, int, bool>(), nb::arg("model"),
             nb::arg("decoder").none(), nb::arg("dtype"), nb::arg("decoders"), nb::arg("alone"))
        .def("add", &Job::add)
        .def("end", &Job::end)
        .def("next", &Job::next)
        .def("cancel", &Job::cancel)
        .def("close", &Job::close)
        .def("progress", &Job::progress);
}

} // namespace qvpy
