/* SPDX-License-Identifier: MIT */
/* The results: matrices of tokens, and the file that they are saved in. */
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <nanobind/stl/pair.h>

#include <algorithm>

#include "binding.h"

extern "C" {
#include "files/outcome_json.h"
#include "files/token_file.h"
#include "files/text.h"
}

namespace qvpy
{

void
Tokens::allocate(const qv_model_info &info, int64_t rows, qv_dtype type, bool with_hidden)
{
    n = rows;
    width = info.out_hidden;
    n_deepstack = info.n_deepstack;
    hidden = with_hidden ? info.hidden : 0;
    patches = info.merge_size * info.merge_size;
    dtype = type;
    data.reset(new char[n_values() * qv_dtype_bytes(dtype)]); /* not zeroed */
}

/* Returns matrix i as an array: the tokens, DeepStack's outputs, the last block's rows. bits: bf16
 * as 16-bit integers, for libraries without bf16. */
static nb::object
matrix(nb::handle self, int i, bool bits)
{
    const Tokens &t = nb::cast<const Tokens &>(self);
    if (t.status || !t.data)
        fail(QV_ESTATE, "%s: there are no tokens: %s", t.key.c_str(), t.error.c_str());
    const bool is_hidden = t.hidden && i == 1 + t.n_deepstack;
    if (i < 0 || (i > t.n_deepstack && !is_hidden))
        fail(QV_EINVAL, "matrix %d; there are %d", i, 1 + t.n_deepstack);
    const int64_t rows = is_hidden ? t.n * t.patches : t.n, cols = is_hidden ? t.hidden : t.width;
    return array_of(t.matrix(i), { (size_t)rows, (size_t)cols }, array_dtype(t.dtype, bits), self);
}

static nb::object
timestamps(nb::handle self)
{
    Tokens &t = nb::cast<Tokens &>(self);
    if (t.timestamps.empty())
        return nb::none();
    return array_of(t.timestamps.data(), { t.timestamps.size() }, nb::dtype<double>(), self);
}

static nb::object
grid_thw(nb::handle self)
{
    Tokens &t = nb::cast<Tokens &>(self);
    return array_of(t.grid_thw.data(), { t.grid_thw.size() / 3, 3 }, nb::dtype<int64_t>(), self);
}

/* ---- files ----------------------------------------------------------------------------------- */

using Pairs = std::vector<std::pair<std::string, std::string>>;

/* Returns the dtype of a file: the one that is named, else the model's, as `encode` writes it. A
 * bf16 model's f32 tokens are bf16 values, so that nothing is lost; bf16 tokens are never widened
 * unasked. */
static qv_dtype
dtype_of_file(const Tokens &t, const std::string &name)
{
    if (!name.empty())
        return parse_dtype(name, false);
    return t.origin && t.origin->precision == QV_BF16 ? QV_BF16 : t.dtype;
}

/* Returns all matrices in a dtype: where they lie, or converted in `room`. */
static char *
converted(const Tokens &t, qv_dtype dtype, std::unique_ptr<char[]> &room)
{
    if (dtype == t.dtype)
        return t.data.get();
    const size_t n = t.n_values();
    room.reset(new char[n * qv_dtype_bytes(dtype)]);
    for (size_t i = 0; i < n; i++)
        if (dtype == QV_BF16)
            reinterpret_cast<qv_bf16 *>(room.get())[i] =
                qv_f32_to_bf16(reinterpret_cast<const float *>(t.data.get())[i]);
        else
            reinterpret_cast<float *>(room.get())[i] =
                qv_bf16_to_f32(reinterpret_cast<const qv_bf16 *>(t.data.get())[i]);
    return room.get();
}

using Text = std::unique_ptr<char, void (*)(void *)>;

/* Returns how the frames of a file were made; NULL for a source that is none. */
static Text
preprocessing_of(const Tokens &t, bool at_end)
{
    const bool is_file = t.outcome.source_frames > 0;
    Text text(is_file ? qv_token_file_preprocessing(&t.outcome, at_end) : nullptr, free);
    if (is_file && !text)
        throw std::bad_alloc();
    return text;
}

/* Returns the metadata that `encode` writes for this source, and `more` in place of it or behind
 * it. */
static Pairs
metadata_of(const Tokens &t, const Pairs &more)
{
    const Text path(qv_utf8_text(t.path.c_str()), free);
    if (!path)
        throw std::bad_alloc();
    qv_token_file_origin origin = {};
    origin.source = t.path.empty() ? t.key.c_str() : path.get();
    const Text preprocessing = preprocessing_of(t, false);
    origin.preprocessing = preprocessing.get();
    if (t.origin) {
        origin.model = t.origin->model.c_str();
        origin.digest = t.origin->digest.c_str();
        origin.identity = t.origin->identity.c_str();
        origin.precision = qv_dtype_name(t.origin->precision);
        origin.backend = t.origin->backend.c_str();
        origin.device = t.origin->device.c_str();
    }
    const char *own[QV_TOKEN_FILE_TEXTS][2];
    const size_t n = qv_token_file_metadata(&origin, own);
    Pairs pairs;
    for (size_t i = 0; i < n; i++)
        pairs.emplace_back(own[i][0], own[i][1]);
    for (const auto &pair : more) {
        size_t at = 0;
        while (at < pairs.size() && pairs[at].first != pair.first)
            at++;
        if (at < pairs.size())
            pairs[at].second = pair.second;
        else
            pairs.push_back(pair);
    }
    return pairs;
}

/* Writes the file that `qwenvit encode` writes. dtype: "" for the model's. */
static void
save(const Tokens &t, nb::bytes path_, const Pairs &more, const std::string &dtype)
{
    const std::string path = text_of(path_, "path");
    if (t.status || !t.data)
        fail(QV_ESTATE, "%s: there are no tokens to save: %s", t.key.c_str(), t.error.c_str());
    const Pairs metadata = metadata_of(t, more);
    const Text preprocessing = preprocessing_of(t, true);
    bool is_amended = preprocessing != nullptr;
    for (const auto &pair : more)
        is_amended = is_amended && pair.first != QV_TOKEN_FILE_PREPROCESSING;
    qv_token_file_options options = {};
    options.path = path.c_str();
    options.source = t.key.c_str();
    options.dtype = dtype_of_file(t, dtype);
    options.rows = t.n;
    options.width = t.width;
    options.n_grids = (int64_t)t.grid_thw.size() / 3;
    options.n_timestamps = (int64_t)t.timestamps.size();
    options.n_deepstack = t.n_deepstack;
    options.hidden = t.hidden;
    options.patches = t.patches;
    const Released released;
    std::unique_ptr<char[]> room;
    const char *first = converted(t, options.dtype, room);
    const size_t bytes = (size_t)t.n * (size_t)t.width * qv_dtype_bytes(options.dtype);
    const void *deepstack[QV_MAX_DEEPSTACK] = {};
    for (int i = 0; i < t.n_deepstack; i++)
        deepstack[i] = first + (size_t)(1 + i) * bytes;
    const qv_token_file_data data = { first,
                                      deepstack,
                                      first + (size_t)(1 + t.n_deepstack) * bytes,
                                      t.grid_thw.data(),
                                      t.timestamps.data(),
                                      is_amended ? preprocessing.get() : nullptr };
    std::vector<const char *> texts;
    for (const auto &pair : metadata)
        texts.insert(texts.end(), { pair.first.c_str(), pair.second.c_str() });
    checked(qv_token_file_save, &options, &data,
            reinterpret_cast<const char *const(*)[2]>(texts.data()), metadata.size());
}

/* ---- what became of the clip ----------------------------------------------------------------- */

/* Returns what the property of a member of qv_outcome shows; "" where it is not set. */
static nb::object
shown(const Tokens &t, const char *name)
{
    const std::unique_ptr<json_t, void (*)(json_t *)> all(json_object(), json_decref);
    if (qv_outcome_json(all.get(), &t.outcome, QV_FOR_PYTHON))
        throw std::bad_alloc();
    const json_t *value = json_object_get(all.get(), name);
    if (json_is_boolean(value))
        return nb::bool_(json_is_true(value));
    if (json_is_integer(value))
        return nb::int_(json_integer_value(value));
    return json_is_real(value) ? nb::object(nb::float_(json_real_value(value)))
                               : nb::str(value ? json_string_value(value) : "");
}

/* ---- pickling -------------------------------------------------------------------------------- */

/* Calls `see` with the name of each member that a pickle holds, and the member. */
template <typename T, typename F>
static void
each_member(T &t, F see)
{
    see("n", t.n);
    see("width", t.width);
    see("n_deepstack", t.n_deepstack);
    see("hidden", t.hidden);
    see("patches", t.patches);
    see("grid_thw", t.grid_thw);
    see("timestamps", t.timestamps);
    see("index", t.index);
    see("key", t.key); /* texts may have bytes that are not UTF-8 */
    see("path", t.path);
#define QV_OUTCOME(member, ...) see("outcome." #member, t.outcome.member);
#include "outcome.inc"
}

/* A member as a pickle holds it, and back. */
template <typename T>
static nb::object
pickled(const T &value)
{
    if constexpr (std::is_same_v<T, std::string>)
        return nb::bytes(value.data(), value.size());
    else if constexpr (std::is_same_v<std::remove_extent_t<T>, char>)
        return nb::bytes(value);
    else if constexpr (std::is_array_v<T>)
        return nb::cast(std::vector<int64_t>(std::begin(value), std::end(value)));
    else if constexpr (std::is_enum_v<T>)
        return nb::cast((int)value);
    else
        return nb::cast(value);
}

template <typename T>
static void
unpickle(nb::handle from, T &value)
{
    if constexpr (std::is_same_v<T, std::string>) {
        const nb::bytes bytes = nb::cast<nb::bytes>(from);
        value.assign(bytes.c_str(), bytes.size());
    } else if constexpr (std::is_same_v<std::remove_extent_t<T>, char>) {
        snprintf(value, sizeof value, "%s", nb::cast<nb::bytes>(from).c_str());
    } else if constexpr (std::is_array_v<T>) {
        const auto numbers = nb::cast<std::vector<int64_t>>(from);
        std::copy_n(numbers.begin(), std::min(numbers.size(), std::size(value)), value);
    } else if constexpr (std::is_enum_v<T>) {
        value = (T)nb::cast<int>(from);
    } else {
        value = nb::cast<T>(from);
    }
}

static nb::dict
get_state(const Tokens &t)
{
    nb::dict d;
    if (t.status || !t.data)
        fail(QV_ESTATE, "%s: there are no tokens to copy: %s", t.key.c_str(), t.error.c_str());
    each_member(t, [&](const char *name, const auto &value) { d[name] = pickled(value); });
    d["dtype"] = qv_dtype_name(t.dtype);
    d["data"] = nb::bytes(t.data.get(), t.n_values() * qv_dtype_bytes(t.dtype));
    d["origin"] = nb::none();
    if (t.origin)
        d["origin"] =
            nb::make_tuple(t.origin->model, t.origin->digest, t.origin->identity, t.origin->backend,
                           t.origin->device, qv_dtype_name(t.origin->precision));
    return d;
}

/* Returns how many bytes the matrices have, or -1 if there can be no such matrices. */
static int64_t
bytes_of_matrices(const Tokens &t)
{
    int64_t values, more;
    if (t.n < 0 || t.width < 0 || t.n_deepstack < 0 || t.n_deepstack > QV_MAX_DEEPSTACK ||
        t.hidden < 0 || t.patches < 0 || t.grid_thw.size() % 3 ||
        __builtin_mul_overflow(t.width, 1 + t.n_deepstack, &values) ||
        __builtin_mul_overflow(t.hidden, t.patches, &more) ||
        __builtin_add_overflow(values, more, &values) ||
        __builtin_mul_overflow(values, (int64_t)qv_dtype_bytes(t.dtype), &values) ||
        __builtin_mul_overflow(values, t.n, &values))
        return -1;
    return values;
}

static void
set_state(Tokens &at, nb::dict d)
{
    Tokens t;
    if (!d.contains("hidden") || !d.contains("outcome.is_image"))
        fail(QV_EFORMAT, "a pickle of tokens that another version of qwenvit made");
    each_member(t, [&](const char *name, auto &value) { unpickle(d[name], value); });
    t.dtype = parse_dtype(nb::cast<std::string>(d["dtype"]), false);
    const nb::bytes data = nb::cast<nb::bytes>(d["data"]);
    if (bytes_of_matrices(t) != (int64_t)data.size())
        fail(QV_EFORMAT, "a pickle of tokens [%lld, %lld] has %zu bytes of them", (long long)t.n,
             (long long)t.width, data.size());
    t.data.reset(new char[data.size()]);
    memcpy(t.data.get(), data.c_str(), data.size());
    if (!nb::object(d["origin"]).is_none()) {
        const nb::tuple o = nb::cast<nb::tuple>(d["origin"]);
        if (o.size() != 6)
            fail(QV_EFORMAT, "a pickle of tokens that another version of qwenvit made");
        const auto text = [&](int i) { return nb::cast<std::string>(o[i]); };
        t.origin = std::make_shared<const Origin>(
            Origin{ text(0), text(1), text(2), text(3), text(4), parse_dtype(text(5), false) });
    }
    new (&at) Tokens(std::move(t));
}

void
bind_tokens(nb::module_ &m)
{
    nb::class_<Tokens> tokens(m, "Tokens");
    const auto add = [&](const char *name) {
        if (name)
            tokens.def_prop_ro(name, [name](const Tokens &t) { return shown(t, name); });
    };
#define AS(name) name
#define SET(name) name
#define NO NULL
#define QV_OUTCOME(member, kind, from, info, encode, file, record, python) add(python);
#include "outcome.inc"
    tokens.def_prop_ro("key", [](const Tokens &t) { return as_text(t.key.c_str()); })
        .def_ro("index", &Tokens::index)
        .def_ro("n", &Tokens::n)
        .def_ro("width", &Tokens::width)
        .def_ro("n_deepstack", &Tokens::n_deepstack)
        .def_ro("hidden", &Tokens::hidden)
        .def_prop_ro("error", [](const Tokens &t) { return as_text(t.error.c_str()); })
        .def_prop_ro("status", [](const Tokens &t) { return qv_status_name(t.status); })
        .def_prop_ro("dtype", [](const Tokens &t) { return qv_dtype_name(t.dtype); })
        .def("matrix", [](nb::handle self, int i, bool bits) { return matrix(self, i, bits); })
        .def("timestamps", [](nb::handle self) { return timestamps(self); })
        .def("grid_thw", [](nb::handle self) { return grid_thw(self); })
        .def("__getstate__", get_state)
        .def("__setstate__", set_state)
        .def("save", save);
}

} // namespace qvpy
