/* SPDX-License-Identifier: MIT */
/* Runs many sources through a job; results wait here until Python takes them. */
#include <nanobind/stl/string.h>

#include <chrono>
#include <condition_variable>
#include <map>

#include "binding.h"

extern "C" {
#include "files/token_file.h"
}
#include "error.h"

namespace qvpy
{

/* ---- the decoder program --------------------------------------------------------------------- */

/* One decoder serves all jobs of a process. */
class Decoder
{
  public:
    explicit Decoder(nb::bytes program) : owner(getpid())
    {
        qv_error err = {};
        check(qv_decoder_start(text_of(program, "path").c_str(), &decoder, &err), err);
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

/* The data that a source needs until the last call for it. */
struct Source {
    std::string bytes;
    std::shared_ptr<Frames> frames;
    std::unique_ptr<Tokens> tokens = std::make_unique<Tokens>();
    int64_t lent = 0;      /* bytes of the source, and of its result if they are known */
    bool is_known = false; /* the result's bytes are known */
};

using Ready = std::map<int64_t, std::unique_ptr<Tokens>>;

/* A job, and the state that its threads and Python share. Any thread may close it, even while others are in calls of it.
 *
 * A forked process does not have these threads, though they may hold the lock, or wait: there it is
 * never freed, because destroying a condition waits for those who wait for it.
 * 
 * The sink never waits: if results are ordered, the one that Python waits for may come after some
 * for which there is no room. Adding waits instead, until sources and results that were not taken
 * yet fit into `most` bytes. The result of a file is taken to be as large as the mean of those
 * before it; before the first is there, to be a share of `most`. */
struct Results {
    std::mutex lock;
    std::condition_variable changed;
    qv_job *job = nullptr; /* NULL: the job is closed, or being closed */
    int calls = 0;         /* calls under way that use the job, none of which runs Python's code */
    bool closed = false;
    Ready ready; /* keyed by place if results are ordered, else by the order in which they came */
    bool ordered = false, ended = false, cancelled = false;
    int64_t most = 0, came = 0, turn = 0, refused = 0;
    int64_t waiting = 0, lent = 0;      /* bytes of results, and of sources under way */
    int64_t outstanding = 0, files = 0; /* sources that were not taken yet; files under way */
    int64_t seen = 0, seen_bytes = 0;   /* number and bytes of results of files so far */

    bool
    has_room(const Source &next) const
    {
        const int64_t each = seen ? seen_bytes / seen : most / SHARES;
        const int64_t unknown = files + !next.is_known;
        return !outstanding || waiting + lent + next.lent + unknown * each <= most;
    }
    bool
    is_next_ready() const
    {
        return !ready.empty() && (!ordered || ended || ready.begin()->first == turn);
    }
    void
    count(const Source &source, int sign)
    {
        lent += sign * source.lent;
        files += source.is_known ? 0 : sign;
    }
    void put(std::unique_ptr<Tokens> tokens);
    void cancel();
    void close();
    static constexpr int64_t SHARES = 32;
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

static int64_t
result_bytes(const Tokens &t)
{
    const size_t matrices = t.data ? (size_t)(1 + t.n_deepstack) * t.matrix_bytes() : 0;
    return (int64_t)(matrices + t.timestamps.size() * sizeof(double) + t.key.size() +
                     t.error.size() + sizeof t);
}

/* The caller holds the lock. */
void
Results::put(std::unique_ptr<Tokens> tokens)
{
    waiting += result_bytes(*tokens);
    ready.emplace(ordered ? tokens->index : came++, std::move(tokens));
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
is_closed(Results &results)
{
    const std::lock_guard<std::mutex> hold(results.lock);
    return results.closed;
}

void
close_results(Results &results)
{
    const Released released;
    results.close();
}

class Job
{
  public:
    /* In a turn of the model, which must last as long as the job unless the model is lent to it.
     * ordered: results come in the order of their places. most: bytes of what is added ahead. how:
     * options of clips that say where most of them are decoded. */
    Job(const Model::Turn &turn, nb::object model, nb::object decoder, const std::string &dtype,
        int decoders, bool alone, bool ordered, int64_t most, nb::dict how);
    ~Job();
    /* Places are 0, 1, .., each for one source, which is added or refused. */
    void add(int64_t place, const std::string &key, nb::object source, bool is_path,
             nb::dict options);
    void refuse(int64_t place, const std::string &key, const std::string &status,
                const std::string &words);
    void end();
    nb::object next(double seconds);
    bool is_over(); /* whether nothing more is done, as a device was lost */
    void cancel();
    void close();
    bool is_closed() const;
    nb::dict progress();

  private:
    friend void cancel_at_end(Job *job);
    friend void close_at_end(Job *job);
    friend void open_for_generator(Job *at, nb::object model, nb::object decoder,
                                   const std::string &dtype, int decoders, bool alone, bool ordered,
                                   int64_t most, nb::dict how, nb::object is_open);
    nb::object model_object, decoder_object;
    Model *model;
    qv_dtype output;
    pid_t owner;
    std::shared_ptr<Results> results = std::make_shared<Results>();

    int64_t bytes_of_result(const int64_t *grid) const;
    void wait_for_room(qv_job *job, const Source &next);
    qv_status take(const qv_job_result *r, qv_error *err);
    static qv_status sink(void *user, const qv_job_result *r, qv_error *err);
};

Job::Job(const Model::Turn &turn, nb::object model_, nb::object decoder_, const std::string &dtype,
         int decoders, bool alone, bool ordered, int64_t most, nb::dict how)
    : model_object(model_), decoder_object(decoder_), model(nb::cast<Model *>(model_)),
      output(parse_dtype(dtype, false)), owner(getpid())
{
    qv_job_options o = {};
    results->ordered = ordered;
    results->most = most;
    o.sink = sink;
    o.user = this;
    o.output = output;
    o.decoders = decoders;
    o.alone = alone;
    o.queue = 64;
    take_clip_options(how, &o.clip);
    o.clip.decoder = decoder_of(decoder_);
    qv_model *one = turn.get();
    qv_error err = {};
    {
        const Released released;
        check(qv_job_open(&one, 1, &o, &results->job, &err), err);
    }
    job_opened(this);
}

Job::~Job()
{
    if (owner == getpid())
        close();
    else
        new std::shared_ptr<Results>(results); /* never freed */
}

/* The job's threads call this, without the interpreter. */
qv_status
Job::sink(void *user, const qv_job_result *r, qv_error *err)
{
    try {
        return static_cast<Job *>(user)->take(r, err);
    } catch (const std::bad_alloc &) {
        return qv_fail(err, QV_ENOMEM, "%s: no memory for %lld tokens", r->key,
                       (long long)r->n_tokens);
    }
}

static std::string
preprocessing_of(const qv_clip_info &clip, int temporal_patch_size, int64_t damaged_frames)
{
    const std::unique_ptr<char, void (*)(void *)> text(
        qv_token_file_preprocessing(&clip, qv_like_name(clip.like), qv_remark_text(clip.remark),
                                    temporal_patch_size, damaged_frames),
        free);
    if (!text)
        throw std::bad_alloc();
    return text.get();
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
    t.decoded_by = r->clip && !r->is_image ? qv_decode_name(r->decoded_by) : "";
    t.origin = model->origin;
    for (int i = 0; i < 2 && r->clip; i++)
        t.preprocessing[i] =
            preprocessing_of(*r->clip, model->facts.temporal_patch_size, i ? r->damaged_frames : 0);
    t.not_gpu = r->not_gpu;
    t.remark = qv_remark_text(r->clip ? r->clip->remark : QV_REMARK_NONE);
    t.grid_thw.assign(r->grid_thw, r->grid_thw + 3);
    t.file_bytes = r->clip ? r->clip->file_bytes : 0;
    t.file_mtime_ns = r->clip ? r->clip->file_mtime_ns : 0;
    if (r->clip && r->timestamps_s) {
        t.timestamps.assign(r->timestamps_s, r->timestamps_s + r->clip->n_frames);
        t.has_timestamps = true;
        t.sampled_fps = r->clip->sampled_fps;
    } else if (done->frames && !done->frames->timestamps.empty()) {
        t.timestamps = done->frames->timestamps;
        t.has_timestamps = true;
        t.sampled_fps = done->frames->sampled_fps;
    }
    if (t.sampled_fps > 0)
        t.pair_seconds = model->facts.temporal_patch_size / t.sampled_fps;
    Results &to = *results;
    std::lock_guard<std::mutex> hold(to.lock);
    to.count(*done, -1);
    if (!done->is_known && !t.status) {
        to.seen++;
        to.seen_bytes += result_bytes(t);
    }
    if (!to.cancelled)
        to.put(std::move(source->tokens));
    to.changed.notify_all();
    return QV_OK;
}

int64_t
Job::bytes_of_result(const int64_t *grid) const
{
    const qv_model_info &m = model->facts;
    const int64_t n = grid[0] * grid[1] * grid[2] / (m.merge_size * m.merge_size);
    return n * m.out_hidden * (1 + m.n_deepstack) * (int64_t)qv_dtype_bytes(output);
}

/* Waits without the interpreter. Returns at once if the job is over, or Python wants no more of
 * it. */
void
Job::wait_for_room(qv_job *job, const Source &next)
{
    Results &r = *results;
    qv_job_progress p = {};
    std::unique_lock<std::mutex> hold(r.lock);
    while (!p.ended && !r.cancelled && !r.has_room(next)) {
        r.changed.wait_for(hold, std::chrono::milliseconds(100));
        hold.unlock(); /* a job that has lost its device reports nothing until it is ended */
        qv_job_get_progress(job, &p);
        hold.lock();
    }
    r.count(next, 1);
    r.outstanding++;
}

/* Adds a source: a path (is_path), bytes of a file, or Frames. */
void
Job::add(int64_t place, const std::string &key, nb::object source, bool is_path, nb::dict options)
{
    auto kept = std::make_unique<Source>();
    qv_clip_options clip = {};
    qv_job_source s = {};
    model->must_be_ours();
    take_clip_options(options, &clip);
    s.key = key.c_str();
    s.user = kept.get();
    s.clip = &clip;
    kept->tokens->index = place;
    if (nb::isinstance<Frames>(source)) {
        kept->frames = std::make_shared<Frames>(std::move(nb::cast<Frames &>(source)));
        s.kind = QV_SOURCE_FRAMES;
        s.item.data = kept->frames->data.data();
        s.item.n_frames = kept->frames->n;
        s.item.is_image = kept->frames->is_image;
        memcpy(s.item.grid_thw, kept->frames->grid_thw, sizeof s.item.grid_thw);
        kept->is_known = true;
        kept->lent = (int64_t)kept->frames->data.size() + bytes_of_result(s.item.grid_thw);
    } else if (is_path) {
        kept->tokens->path = text_of(nb::cast<nb::bytes>(source), "path"); /* may not be UTF-8 */
        s.path = kept->tokens->path.c_str();
    } else {
        nb::bytes bytes = nb::cast<nb::bytes>(source);
        kept->bytes.assign(bytes.c_str(), bytes.size());
        if (kept->bytes.empty())
            fail(QV_EINVAL, "%s: no bytes", key.c_str());
        s.kind = QV_SOURCE_BYTES;
        s.bytes = kept->bytes.data();
        s.n_bytes = kept->bytes.size();
        kept->lent = (int64_t)kept->bytes.size();
    }
    qv_error err = {};
    qv_status status;
    {
        const Released released;
        const Use use(*results);
        wait_for_room(use.job, *kept);
        status = qv_job_add(use.job, &s, &err);
        if (status) {
            std::lock_guard<std::mutex> hold(results->lock);
            results->count(*kept, -1);
            results->outstanding--;
        }
    }
    check(status, err);
    kept.release(); /* take() frees it */
}

/* Records a failure for a source that did not reach the job. */
void
Job::refuse(int64_t place, const std::string &key, const std::string &status,
            const std::string &words)
{
    Source none;
    Tokens &t = *none.tokens;
    model->must_be_ours();
    t.index = place;
    t.key = key;
    t.status = parse_status(status);
    t.error = words;
    none.is_known = true;
    const Released released;
    const Use use(*results);
    wait_for_room(use.job, none);
    std::lock_guard<std::mutex> hold(results->lock);
    results->refused++;
    if (!results->cancelled)
        results->put(std::move(none.tokens));
    results->changed.notify_all();
}

/* Ends adding, and waits until all is done; next() then ends. */
void
Job::end()
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

bool
Job::is_over()
{
    const Released released;
    const Use use(*results);
    qv_job_progress p = {};
    qv_job_get_progress(use.job, &p);
    return p.ended;
}

/* Returns the next result, None at the end, or False if none comes for so long. It checks signals
 * while it waits. */
nb::object
Job::next(double seconds)
{
    model->must_be_ours();
    Results &from = *results;
    using clock = std::chrono::steady_clock;
    const auto until = clock::now() + std::chrono::duration<double>(seconds);
    for (;;) {
        std::unique_ptr<Tokens> one;
        bool over;
        {
            const Released released;
            std::unique_lock<std::mutex> hold(from.lock);
            from.changed.wait_for(hold, std::chrono::milliseconds(100), [&] {
                return from.ended || from.cancelled || from.is_next_ready();
            });
            if (from.is_next_ready()) {
                one = std::move(from.ready.begin()->second);
                from.ready.erase(from.ready.begin());
                from.turn = one->index + 1;
                from.waiting -= result_bytes(*one);
                from.outstanding--;
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
        if (clock::now() >= until)
            return nb::bool_(false);
    }
}

/* A forked process has nothing under way. */
void
Job::cancel()
{
    if (owner == getpid())
        results->cancel();
}

/* Closes the job. A forked process ends nothing: it has none of the threads, and the memory that they left may be half
 * changed. */
void
Job::close()
{
    if (owner != getpid())
        return;
    job_closed(this);
    close_results(*results);
}

bool
Job::is_closed() const
{
    return owner != getpid() || qvpy::is_closed(*results);
}

void
cancel_at_end(Job *job)
{
    job->results->cancel();
}

void
close_at_end(Job *job)
{
    job->results->close();
}

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

nb::dict
Job::progress()
{
    model->must_be_ours();
    qv_job_progress p = {};
    {
        const Released released;
        const Use use(*results);
        qv_job_get_progress(use.job, &p);
        const std::lock_guard<std::mutex> hold(results->lock);
        for (int64_t *n : { &p.added, &p.done, &p.failed })
            *n += results->refused;
    }
    return progress_of(p);
}

/* ---- who has the model ----------------------------------------------------------------------- */

/* Opens a job for a generator: the model is lent to it, and this turn ends. */
void
open_for_generator(Job *at, nb::object model_object, nb::object decoder, const std::string &dtype,
                   int decoders, bool alone, bool ordered, int64_t most, nb::dict how,
                   nb::object is_open)
{
    Model &model = *nb::cast<Model *>(model_object);
    const Model::Turn turn(model);
    const Job *job =
        new (at) Job(turn, model_object, decoder, dtype, decoders, alone, ordered, most, how);
    model.lend(job->results, is_open);
}

/* Encodes one source in one turn of the model, and returns its Tokens. Whatever raises in here (a signal's handler,
 * `progress`) ends the job and the turn. progress(dict, last) is called after each `wait_s` seconds and at the end. */
static nb::object
encode_one(nb::object model, nb::object decoder, const std::string &dtype, int64_t most,
           const std::string &key, nb::object source, bool is_path, nb::dict options,
           nb::object progress, double wait_s)
{
    const Model::Turn turn(*nb::cast<Model *>(model));
    Job job(turn, model, decoder, dtype, 0, true, true, most, options);
    job.add(0, key, source, is_path, options);
    for (;;) {
        nb::object one = job.next(wait_s);
        const bool came = nb::isinstance<Tokens>(one);
        if (came || job.is_over())
            job.end(); /* throws if the job was lost */
        if (came && !nb::cast<Tokens &>(one).cancelled) {
            progress(job.progress(), true);
            return one;
        }
        if (one.is_none())
            fail(QV_ESTATE, "%s: the job ended without it", key.c_str());
        progress(job.progress(), false);
    }
}

void
bind_job(nb::module_ &m)
{
    nb::class_<Decoder>(m, "Decoder").def(nb::init<nb::bytes>());
    nb::class_<Job>(m, "Job")
        .def("__init__", open_for_generator, nb::arg("model"), nb::arg("decoder").none(),
             nb::arg("dtype"), nb::arg("decoders"), nb::arg("alone"), nb::arg("ordered"),
             nb::arg("most"), nb::arg("how"), nb::arg("is_open"))
        .def("add", &Job::add)
        .def("refuse", &Job::refuse)
        .def("end", &Job::end)
        .def("next", &Job::next)
        .def("cancel", &Job::cancel)
        .def("close", &Job::close)
        .def_prop_ro("closed", &Job::is_closed)
        .def("progress", &Job::progress);
    m.def("encode_one", encode_one, nb::arg("model"), nb::arg("decoder").none(), nb::arg("dtype"),
          nb::arg("most"), nb::arg("key"), nb::arg("source"), nb::arg("is_path"),
          nb::arg("options"), nb::arg("progress"), nb::arg("wait_s"));
}

} // namespace qvpy
