/* SPDX-License-Identifier: MIT */
/* A cache that is added to. Thin: what every run decides is in cache/filling.c, a row's rules in job/row.c. */
#include <nanobind/stl/string.h>

#include "binding.h"
#include "error.h"
#include "qwenvit_cache.h"

extern "C" {
#include "cache/filling.h"
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

qv_status
parse_status(const std::string &name)
{
    for (int i = QV_OK; i < QV_STATUS_MAX && *qv_status_name((qv_status)i); i++)
        if (name == qv_status_name((qv_status)i))
            return (qv_status)i;
    fail(QV_EINVAL, "\"%.40s\" is no status", name.c_str());
}

/* A row: a key, a file, and what the row asks of it alone. */
struct CacheRow {
    std::string path, key; /* key: as caches write it */
    qv_clip_options own;
    int64_t bytes = -1,
            mtime_ns = 0; /* of the file when it was looked at first; -1: it was not yet */

    qv_cache_source before(char text[QV_CACHE_OPTIONS_BYTES]);
    qv_cache_source of_tokens(const Tokens &tokens, char text[QV_CACHE_OPTIONS_BYTES]);
    nb::dict options() const;
};

/* Whatever becomes of the file meanwhile, as it was before a job saw it: one that changed since is done
 * again. */
qv_cache_source
CacheRow::before(char text[QV_CACHE_OPTIONS_BYTES])
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
CacheRow::of_tokens(const Tokens &tokens, char text[QV_CACHE_OPTIONS_BYTES])
{
    qv_cache_source source = before(text);
    if (tokens.file_bytes) {
        source.bytes = tokens.file_bytes;
        source.mtime_ns = tokens.file_mtime_ns;
    }
    return source;
}

/* What the row asks of its clip alone, as options of encode(). */
nb::dict
CacheRow::options() const
{
    nb::dict d;
    if (own.fps > 0) {
        d["fps"] = own.fps;
        d["num_frames"] = 0;
    }
    const std::pair<const char *, double> reals[] = { { "start", own.start_s },
                                                      { "end", own.end_s } };
    const std::pair<const char *, int64_t> integers[] = { { "max_frames", own.max_frames },
                                                          { "max_pixels", own.max_pixels },
                                                          { "offset", own.offset },
                                                          { "length", own.length } };
    for (auto [name, value] : reals)
        if (value > 0)
            d[name] = value;
    for (auto [name, value] : integers)
        if (value)
            d[name] = value;
    return d;
}

/* A value as the rules of rows see it; `text` keeps it. Texts and paths are bytes of a file's name. */
static qv_row_value
row_value(nb::handle value, std::string *text)
{
    qv_row_value v = {};
    PyObject *o = value.ptr();
    if (PyBool_Check(o))
        return v;
    if (PyFloat_Check(o)) {
        v.type = QV_ROW_REAL;
        v.real = PyFloat_AsDouble(o);
    } else if (PyLong_Check(o)) {
        int overflow = 0;
        v.integer = PyLong_AsLongLongAndOverflow(o, &overflow);
        v.type = overflow ? QV_ROW_OTHER : QV_ROW_INTEGER;
    } else if (nb::object name = nb::steal(PyOS_FSPath(o)); name.is_valid()) {
        if (PyUnicode_Check(name.ptr()))
            name = nb::steal(PyUnicode_EncodeFSDefault(name.ptr()));
        if (!name.is_valid())
            throw nb::python_error();
        *text = text_of(nb::cast<nb::bytes>(name), "path or key");
        v.type = QV_ROW_TEXT;
        v.text = text->c_str();
    } else {
        PyErr_Clear();
    }
    return v;
}

/* Throws in words that name the field. */
static CacheRow
make_row(nb::dict fields)
{
    CacheRow made = {};
    std::string texts[2], other;
    qv_row row = {};
    for (auto [key, value] : fields) {
        const std::string name = nb::cast<std::string>(nb::str(key));
        std::string *text = name == "path" ? &texts[0] : name == "key" ? &texts[1] : &other;
        const qv_row_value v = row_value(value, text);
        const char *words = qv_row_set(&row, name.c_str(), &v);
        if (words && !*words)
            fail(QV_EINVAL, "there is no field %.80s", nb::repr(key).c_str());
        if (words)
            fail(QV_EINVAL, "%s is %.80s; must be %s", name.c_str(), nb::repr(value).c_str(),
                 words);
    }
    static const qv_clip_options nothing = {};
    char key[QV_CACHE_MAX_KEY + 1];
    qv_error err = {};
    check(qv_row_check(&row, &err), err);
    check(qv_cache_key(row.key ? row.key : row.path, key, &err), err);
    made.path = row.path;
    made.key = key;
    made.own = qv_row_options(&row.own, &nothing);
    return made;
}

/* ---- the writer ------------------------------------------------------------------------------ */

class CacheWriter
{
  public:
    CacheWriter(nb::bytes dir, const std::string &made_by, const std::string &tokens, int64_t width,
                int n_deepstack, bool packed, bool retry_failed, int64_t part_bytes,
                double part_seconds);
    ~CacheWriter();
    std::string compare(CacheRow &of);
    void add(CacheRow &of, const Tokens &tokens);
    void add_failure(CacheRow &of, const std::string &status, const std::string &words);
    void seal();
    void close();
    nb::list damaged();

  private:
    struct qv_filling filling = {};
    pid_t owner;

    void must_be_open() const;
};

static qv_dtype
parse_layout_dtype(const std::string &name)
{
    for (qv_dtype dtype : { QV_BF16, QV_F16, QV_F32 })
        if (name == qv_dtype_name(dtype))
            return dtype;
    fail(QV_EINVAL, "tokens is \"%.40s\"; must be \"bf16\", \"f16\" or \"f32\"", name.c_str());
}

CacheWriter::CacheWriter(nb::bytes dir_, const std::string &made_by, const std::string &tokens,
                         int64_t width, int n_deepstack, bool packed, bool retry_failed,
                         int64_t part_bytes, double part_seconds)
    : owner(getpid())
{
    const std::string dir = text_of(dir_, "path");
    qv_cache_writer_options o = {};
    qv_error err = {};
    o.layout.dtype = parse_layout_dtype(tokens);
    o.layout.width = width;
    o.layout.n_deepstack = n_deepstack;
    o.layout.packed = packed;
    o.made_by = made_by.c_str();
    o.part_bytes = part_bytes;
    o.part_seconds = part_seconds;
    nb::gil_scoped_release released;
    check(qv_filling_open(&filling, dir.c_str(), retry_failed, &err), err);
    const qv_status status = qv_filling_begin(&filling, dir.c_str(), &o, &err);
    if (status) {
        qv_filling_close(&filling, nullptr);
        check(status, err);
    }
}

/* What is finished is sealed even if nobody closes; a forked process has no thread that would. */
CacheWriter::~CacheWriter()
{
    if (owner != getpid())
        return;
    nb::gil_scoped_release released;
    qv_filling_close(&filling, nullptr);
}

void
CacheWriter::must_be_open() const
{
    if (owner != getpid())
        fail(QV_ESTATE, "this cache was opened for writing by another process than this one");
    if (!filling.writer)
        fail(QV_ESTATE, "this cache was closed");
}

/* "wanted", "there" or "failed_before", by what was there when this was opened. */
std::string
CacheWriter::compare(CacheRow &of)
{
    must_be_open();
    nb::gil_scoped_release released;
    char options[QV_CACHE_OPTIONS_BYTES];
    const qv_cache_source source = of.before(options);
    switch (qv_filling_compare(&filling, of.key.c_str(), &source)) {
    case QV_FILLING_THERE: return "there";
    case QV_FILLING_FAILED_BEFORE: return "failed_before";
    default: return "wanted";
    }
}

/* Throws, QV_EUNSUPPORTED, where a token cannot be written as f16: the clip's failure. All others are the
 * cache's. */
void
CacheWriter::add(CacheRow &of, const Tokens &t)
{
    must_be_open();
    const qv_cache_layout &layout = filling.layout;
    if (t.status || !t.data || t.grid_thw.size() != 3 || t.width != layout.width ||
        t.n_deepstack < layout.n_deepstack || t.dtype != qv_filling_dtype(&layout))
        fail(QV_EINVAL, "%s: these tokens are not what this cache holds", of.key.c_str());
    qv_cache_result done = {};
    done.damaged_frames = t.damaged_frames;
    done.sampled_fps = t.sampled_fps;
    done.is_image = t.is_image;
    memcpy(done.grid_thw, t.grid_thw.data(), sizeof done.grid_thw);
    done.frames = done.n_timestamps = (int64_t)t.timestamps.size();
    done.timestamps_s = t.timestamps.data();
    qv_tokens rows = {};
    rows.n = t.n;
    for (int i = 0; i < 1 + layout.n_deepstack; i++)
        (i ? rows.deepstack[i - 1] : rows.tokens) = t.matrix(i);
    qv_cache_entry *entry = nullptr;
    qv_error err = {};
    nb::gil_scoped_release released;
    char options[QV_CACHE_OPTIONS_BYTES];
    const qv_cache_source source = of.of_tokens(t, options);
    check(qv_cache_begin(filling.writer, of.key.c_str(), &source, t.n, &entry, &err), err);
    qv_status status = qv_filling_put(&filling, entry, &rows, &err);
    if (status)
        qv_cache_drop(&entry);
    else
        status = qv_cache_finish(&entry, &done, &err);
    check(status, err);
}

void
CacheWriter::add_failure(CacheRow &of, const std::string &status, const std::string &words)
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
    check(qv_cache_begin(filling.writer, of.key.c_str(), &source, 0, &entry, &err), err);
    check(qv_cache_finish(&entry, &done, &err), err);
}

void
CacheWriter::seal()
{
    must_be_open();
    qv_error err = {};
    nb::gil_scoped_release released;
    check(qv_cache_seal(filling.writer, &err), err);
}

void
CacheWriter::close()
{
    if (!filling.writer)
        return;
    must_be_open();
    qv_error err = {};
    nb::gil_scoped_release released;
    check(qv_filling_close(&filling, &err), err);
}

/* Words, of each part that cannot be used. */
nb::list
CacheWriter::damaged()
{
    must_be_open();
    nb::list words;
    const qv_cache *there = filling.there;
    for (int64_t i = 0; there && qv_cache_damage(there, i); i++)
        words.append(as_text(qv_cache_damage(there, i)));
    return words;
}

void
bind_cache(nb::module_ &m)
{
    m.def("ends_run", [](const std::string &status) { return qv_ends_all(parse_status(status)); });
    nb::class_<CacheRow>(m, "CacheRow")
        .def(nb::new_(&make_row))
        .def_prop_ro("key", [](const CacheRow &r) { return nb::str(r.key.c_str()); })
        .def_prop_ro("path",
                     [](const CacheRow &r) { return nb::bytes(r.path.data(), r.path.size()); })
        .def_prop_ro("options", &CacheRow::options);
    nb::class_<CacheWriter>(m, "CacheWriter")
        .def(nb::init<nb::bytes, const std::string &, const std::string &, int64_t, int, bool, bool,
                      int64_t, double>())
        .def("compare", &CacheWriter::compare)
        .def("add", &CacheWriter::add)
        .def("add_failure", &CacheWriter::add_failure)
        .def("seal", &CacheWriter::seal)
        .def("close", &CacheWriter::close)
        .def("damaged", &CacheWriter::damaged);
}

} // namespace qvpy
