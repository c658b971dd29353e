/* SPDX-License-Identifier: MIT */
/* A cache that is added to. Thin: which rows there are, and what is done again, is said in Python. */
#include <nanobind/stl/string.h>

#include <sys/stat.h>

#include "binding.h"
#include "qwenvit_cache.h"

extern "C" {
#include "dtype.h"
}

namespace qvpy
{

std::string
text_of(nb::bytes bytes, const char *what)
{
    std::string text(bytes.c_str(), bytes.size());
    if (text.find('\0') != std::string::npos)
        fail(QV_EINVAL, "a %s has a NUL in it", what);
    return text;
}

static nb::str
cache_key(nb::bytes bytes)
{
    char key[QV_CACHE_MAX_KEY + 1];
    qv_error err = {};
    check(qv_cache_key(text_of(bytes, "key").c_str(), key, &err), err);
    return nb::str(key);
}

static qv_status
parse_status(const std::string &name)
{
    for (int i = QV_OK; i < QV_STATUS_MAX && *qv_status_name((qv_status)i); i++)
        if (name == qv_status_name((qv_status)i))
            return (qv_status)i;
    fail(QV_EINVAL, "\"%.40s\" is no status", name.c_str());
}

/* f32 rows as f16, each value rounded once; one that f16 cannot hold is no token. */
static std::unique_ptr<uint16_t[]>
to_f16(const float *from, size_t n)
{
    std::unique_ptr<uint16_t[]> to(new uint16_t[n]);
    for (size_t i = 0; i < n; i++) {
        to[i] = qv_f32_to_f16(from[i]);
        if ((to[i] & 0x7fff) == 0x7c00)
            fail(QV_EUNSUPPORTED,
                 "a token has the value %g, which f16 does not hold; tokens=\"bf16\" does",
                 (double)from[i]);
    }
    return to;
}

/* Where a key's tokens come from: a file, and what a row asks of it alone. */
struct CacheSource {
    std::string path;
    qv_clip_options own;
    int64_t bytes = -1,
            mtime_ns = 0; /* of the file when it was looked at first; -1: it was not yet */

    qv_cache_source before(char text[QV_CACHE_OPTIONS_BYTES]);
    qv_cache_source of_tokens(const Tokens &tokens, char text[QV_CACHE_OPTIONS_BYTES]);
};

/* Whatever becomes of the file meanwhile, as it was before a job saw it: one that changed since is done
 * again. */
qv_cache_source
CacheSource::before(char text[QV_CACHE_OPTIONS_BYTES])
{
    qv_cache_source source = qv_cache_source_of(path.c_str(), &own, text);
    if (bytes < 0) {
        bytes = source.bytes;
        mtime_ns = source.mtime_ns;
    }
    source.bytes = bytes;
    source.mtime_ns = mtime_ns;
    return source;
}

/* The identity is that of the file which these tokens were made from. */
qv_cache_source
CacheSource::of_tokens(const Tokens &tokens, char text[QV_CACHE_OPTIONS_BYTES])
{
    qv_cache_source source = before(text);
    if (tokens.file_bytes) {
        source.bytes = tokens.file_bytes;
        source.mtime_ns = tokens.file_mtime_ns;
    }
    return source;
}

/* ---- the writer ------------------------------------------------------------------------------ */

class CacheWriter
{
  public:
    CacheWriter(const std::string &dir, const std::string &made_by, const std::string &tokens,
                int64_t width, int n_deepstack, bool packed, int64_t part_bytes,
                double part_seconds);
    ~CacheWriter();
    std::string compare(const std::string &key, CacheSource &of);
    void add(const std::string &key, CacheSource &of, const Tokens &tokens);
    void add_failure(const std::string &key, CacheSource &of, const std::string &status,
                     const std::string &words);
    void seal();
    void close();
    nb::list damaged();

  private:
    qv_cache_layout layout = {};
    qv_cache *there = nullptr; /* as it was when this was opened */
    qv_cache_writer *writer = nullptr;
    pid_t owner;

    void must_be_open() const;
    qv_status put(qv_cache_entry *entry, const Tokens &t, qv_error *err);
};

static qv_dtype
parse_layout_dtype(const std::string &name)
{
    for (qv_dtype dtype : { QV_BF16, QV_F16, QV_F32 })
        if (name == qv_dtype_name(dtype))
            return dtype;
    fail(QV_EINVAL, "tokens is \"%.40s\"; must be \"bf16\", \"f16\" or \"f32\"", name.c_str());
}

static bool
is_there(const std::string &dir)
{
    struct stat st;
    return !stat((dir + "/qwenvit-cache.json").c_str(), &st);
}

CacheWriter::CacheWriter(const std::string &dir, const std::string &made_by,
                         const std::string &tokens, int64_t width, int n_deepstack, bool packed,
                         int64_t part_bytes, double part_seconds)
    : owner(getpid())
{
    qv_cache_info info = {};
    qv_cache_writer_options o = {};
    qv_error err = {};
    layout.dtype = parse_layout_dtype(tokens);
    layout.width = width;
    layout.n_deepstack = n_deepstack;
    layout.packed = packed;
    nb::gil_scoped_release released;
    if (is_there(dir)) {
        check(qv_cache_open(dir.c_str(), &there, &err), err);
        qv_cache_get_info(there, &info);
    }
    o.layout = layout;
    o.made_by = made_by.c_str();
    o.part_bytes = part_bytes;
    o.part_seconds = part_seconds;
    o.after = info.sealed;
    const qv_status status = qv_cache_writer_open(dir.c_str(), &o, &writer, &err);
    if (status) {
        qv_cache_close(&there);
        check(status, err);
    }
}

/* What is finished is sealed even if nobody closes; a forked process has no thread that would. */
CacheWriter::~CacheWriter()
{
    if (owner != getpid())
        return;
    nb::gil_scoped_release released;
    qv_cache_writer_close(&writer, nullptr);
    qv_cache_close(&there);
}

void
CacheWriter::must_be_open() const
{
    if (owner != getpid())
        fail(QV_ESTATE, "this cache was opened for writing by another process than this one");
    if (!writer)
        fail(QV_ESTATE, "this cache was closed");
}

/* "missing", "done", "failed" or "changed", by what was there when this was opened. */
std::string
CacheWriter::compare(const std::string &key, CacheSource &of)
{
    must_be_open();
    nb::gil_scoped_release released;
    char options[QV_CACHE_OPTIONS_BYTES];
    const qv_cache_source source = of.before(options);
    if (!there)
        return "missing";
    switch (qv_cache_compare(there, key.c_str(), &source)) {
    case QV_CACHE_DONE: return "done";
    case QV_CACHE_FAILED: return "failed";
    case QV_CACHE_CHANGED: return "changed";
    default: return "missing";
    }
}

/* Throws where a token cannot be written as f16. */
qv_status
CacheWriter::put(qv_cache_entry *entry, const Tokens &t, qv_error *err)
{
    std::unique_ptr<uint16_t[]> halves[1 + QV_MAX_DEEPSTACK];
    qv_tokens rows = {};
    rows.n = t.n;
    for (int i = 0; i < 1 + layout.n_deepstack; i++) {
        void *matrix = t.matrix(i);
        if (layout.dtype == QV_F16) {
            halves[i] = to_f16(static_cast<const float *>(matrix), (size_t)(t.n * t.width));
            matrix = halves[i].get();
        }
        (i ? rows.deepstack[i - 1] : rows.tokens) = matrix;
    }
    return qv_cache_put(entry, &rows, err);
}

void
CacheWriter::add(const std::string &key, CacheSource &of, const Tokens &t)
{
    must_be_open();
    if (t.status || !t.data || t.grid_thw.size() != 3 || t.width != layout.width ||
        t.n_deepstack < layout.n_deepstack ||
        t.dtype != (layout.dtype == QV_BF16 ? QV_BF16 : QV_F32))
        fail(QV_EINVAL, "%s: these tokens are not what this cache holds", key.c_str());
    qv_cache_result done = {};
    done.damaged_frames = t.damaged_frames;
    done.sampled_fps = t.sampled_fps;
    done.is_image = t.is_image;
    memcpy(done.grid_thw, t.grid_thw.data(), sizeof done.grid_thw);
    done.frames = done.n_timestamps = (int64_t)t.timestamps.size();
    done.timestamps_s = t.timestamps.data();
    qv_cache_entry *entry = nullptr;
    qv_error err = {};
    nb::gil_scoped_release released;
    char options[QV_CACHE_OPTIONS_BYTES];
    const qv_cache_source source = of.of_tokens(t, options);
    check(qv_cache_begin(writer, key.c_str(), &source, t.n, &entry, &err), err);
    qv_status status;
    try {
        status = put(entry, t, &err);
    } catch (...) {
        qv_cache_drop(&entry);
        throw;
    }
    if (status)
        qv_cache_drop(&entry);
    else
        status = qv_cache_finish(&entry, &done, &err);
    check(status, err);
}

void
CacheWriter::add_failure(const std::string &key, CacheSource &of, const std::string &status,
                         const std::string &words)
{
    must_be_open();
    qv_cache_result done = {};
    done.status = parse_status(status);
    done.error = words.c_str();
    qv_cache_entry *entry = nullptr;
    qv_error err = {};
    nb::gil_scoped_release released;
    char options[QV_CACHE_OPTIONS_BYTES];
    const qv_cache_source source = of.before(options);
    check(qv_cache_begin(writer, key.c_str(), &source, 0, &entry, &err), err);
    check(qv_cache_finish(&entry, &done, &err), err);
}

void
CacheWriter::seal()
{
    must_be_open();
    qv_error err = {};
    nb::gil_scoped_release released;
    check(qv_cache_seal(writer, &err), err);
}

void
CacheWriter::close()
{
    if (!writer)
        return;
    must_be_open();
    qv_error err = {};
    nb::gil_scoped_release released;
    qv_cache_close(&there);
    check(qv_cache_writer_close(&writer, &err), err);
}

/* Words, of each part that cannot be used. */
nb::list
CacheWriter::damaged()
{
    must_be_open();
    nb::list words;
    for (int64_t i = 0; there && qv_cache_damage(there, i); i++)
        words.append(as_text(qv_cache_damage(there, i)));
    return words;
}

static CacheSource
make_source(nb::bytes path, nb::dict own)
{
    CacheSource s;
    s.path = text_of(path, "path");
    s.own = {};
    take_clip_options(own, &s.own);
    return s;
}

void
bind_cache(nb::module_ &m)
{
    m.def("cache_key", cache_key);
    nb::class_<CacheSource>(m, "CacheSource").def(nb::new_(&make_source));
    nb::class_<CacheWriter>(m, "CacheWriter")
        .def(nb::init<const std::string &, const std::string &, const std::string &, int64_t, int,
                      bool, int64_t, double>())
        .def("compare", &CacheWriter::compare)
        .def("add", &CacheWriter::add)
        .def("add_failure", &CacheWriter::add_failure)
        .def("seal", &CacheWriter::seal)
        .def("close", &CacheWriter::close)
        .def("damaged", &CacheWriter::damaged);
}

} // namespace qvpy
