/* SPDX-License-Identifier: MIT */
/* The results: matrices of tokens, and the file that they are saved in. */
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "binding.h"

extern "C" {
#include "files/outcome_json.h"
#include "files/token_file.h"
#include "path.h"
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

static void
must_be_there(const Tokens &t, const char *to_what)
{
    if (t.status || !t.data)
        fail(QV_ESTATE, "%s: there are no tokens%s: %s", t.key.c_str(), to_what, t.error.c_str());
}

/* Returns matrix i as an array: the tokens, DeepStack's outputs, the last block's rows. bits: bf16
 * as 16-bit integers, for libraries without bf16. */
static nb::object
matrix(nb::handle self, int i, bool bits)
{
    const Tokens &t = nb::cast<const Tokens &>(self);
    must_be_there(t, "");
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
save(const Tokens &t, nb::bytes path, const Pairs &more, const std::string &dtype)
{
    must_be_there(t, " to save");
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

/* The members of a pickle, in the order of set_state(). Texts may have bytes that are not UTF-8. An
 * outcome is the bytes of its struct: only the version that wrote a pickle reads it. */
using OriginState =
    std::tuple<std::string, std::string, std::string, std::string, std::string, std::string>;
using State = std::tuple<std::string, int64_t, int64_t, int, int64_t, int64_t, std::string,
                         std::vector<int64_t>, std::vector<double>, int64_t, nb::bytes, nb::bytes,
                         nb::bytes, nb::bytes, std::optional<OriginState>>;

static State
get_state(const Tokens &t)
{
    const auto bytes = [](const void *data, size_t n) { return nb::bytes(data, n); };
    std::optional<OriginState> origin;
    must_be_there(t, " to copy");
    if (const Origin *o = t.origin.get())
        origin.emplace(o->model, o->digest, o->identity, o->backend, o->device,
                       qv_dtype_name(o->precision));
    return { qv_version(),
             t.n,
             t.width,
             t.n_deepstack,
             t.hidden,
             t.patches,
             qv_dtype_name(t.dtype),
             t.grid_thw,
             t.timestamps,
             t.index,
             bytes(t.key.data(), t.key.size()),
             bytes(t.path.data(), t.path.size()),
             bytes(&t.outcome, sizeof t.outcome),
             bytes(t.data.get(), t.n_values() * qv_dtype_bytes(t.dtype)),
             origin };
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
set_state(Tokens &at, nb::object given)
{
    Tokens t;
    State state;
    std::string version, dtype;
    nb::bytes key, path, outcome, data;
    std::optional<OriginState> origin;
    const bool is_known = nb::try_cast(given, state);
    if (is_known)
        std::tie(version, t.n, t.width, t.n_deepstack, t.hidden, t.patches, dtype, t.grid_thw,
                 t.timestamps, t.index, key, path, outcome, data, origin) = state;
    if (!is_known || version != qv_version() || outcome.size() != sizeof t.outcome)
        fail(QV_EFORMAT, "this pickle of tokens was made by another version of qwenvit");
    t.dtype = parse_dtype(dtype, false);
    if (bytes_of_matrices(t) != (int64_t)data.size())
        fail(QV_EFORMAT, "a pickle of tokens [%lld, %lld] has %zu bytes of them", (long long)t.n,
             (long long)t.width, data.size());
    t.key.assign(key.c_str(), key.size());
    t.path.assign(path.c_str(), path.size());
    memcpy(&t.outcome, outcome.c_str(), sizeof t.outcome);
    t.data.reset(new char[data.size()]);
    memcpy(t.data.get(), data.c_str(), data.size());
    if (origin) {
        auto &[model, digest, identity, backend, device, precision] = *origin;
        t.origin = std::make_shared<const Origin>(
            Origin{ model, digest, identity, backend, device, parse_dtype(precision, false) });
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
