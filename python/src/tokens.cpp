/* SPDX-License-Identifier: MIT */
/* The results: matrices of tokens, and the file that they are saved in. */
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <nanobind/stl/pair.h>

#include "binding.h"

extern "C" {
#include "files/token_file.h"
}

namespace qvpy
{

void
Tokens::allocate(const qv_model_info &info, int64_t rows, qv_dtype type)
{
    n = rows;
    width = info.out_hidden;
    n_deepstack = info.n_deepstack;
    dtype = type;
    data.reset(new char[(size_t)(1 + n_deepstack) * matrix_bytes()]); /* not zeroed */
}

/* Returns matrix i as an array. bits: bf16 as 16-bit integers, for libraries without bf16. */
static nb::object
matrix(nb::handle self, int i, bool bits)
{
    const Tokens &t = nb::cast<const Tokens &>(self);
    if (t.status || !t.data)
        fail(QV_ESTATE, "%s: there are no tokens: %s", t.key.c_str(), t.error.c_str());
    if (i < 0 || i > t.n_deepstack)
        fail(QV_EINVAL, "matrix %d; there are %d", i, 1 + t.n_deepstack);
    return array_of(t.matrix(i), { (size_t)t.n, (size_t)t.width }, array_dtype(t.dtype, bits),
                    self);
}

static nb::object
timestamps(nb::handle self)
{
    Tokens &t = nb::cast<Tokens &>(self);
    if (!t.has_timestamps)
        return nb::none();
    return array_of(t.timestamps.data(), { t.timestamps.size() }, nb::dtype<double>(), self);
}

static nb::object
grid_thw(nb::handle self)
{
    Tokens &t = nb::cast<Tokens &>(self);
    return array_of(t.grid_thw.data(), { t.grid_thw.size() / 3, 3 }, nb::dtype<int64_t>(), self);
}

using Pairs = std::vector<std::pair<std::string, std::string>>;

/* Writes the same file as `qwenvit encode`. */
static void
save(const Tokens &t, nb::bytes path_, const Pairs &metadata)
{
    const std::string path = text_of(path_, "path");
    if (t.status || !t.data)
        fail(QV_ESTATE, "%s: there are no tokens to save: %s", t.key.c_str(), t.error.c_str());
    qv_token_file_options options = {};
    options.path = path.c_str();
    options.source = t.key.c_str();
    options.dtype = t.dtype;
    options.rows = t.n;
    options.width = t.width;
    options.n_grids = (int64_t)t.grid_thw.size() / 3;
    options.n_timestamps = (int64_t)t.timestamps.size();
    options.n_deepstack = t.n_deepstack;
    const void *deepstack[QV_MAX_DEEPSTACK] = {};
    for (int i = 0; i < t.n_deepstack; i++)
        deepstack[i] = t.matrix(1 + i);
    const qv_token_file_data data = { t.matrix(0), deepstack, t.grid_thw.data(),
                                      t.timestamps.data() };
    std::vector<const char *> texts;
    for (const auto &pair : metadata)
        texts.insert(texts.end(), { pair.first.c_str(), pair.second.c_str() });

    qv_error err = {};
    const Released released;
    check(qv_token_file_save(&options, &data,
                             reinterpret_cast<const char *const(*)[2]>(texts.data()),
                             metadata.size(), &err),
          err);
}

void
bind_tokens(nb::module_ &m)
{
    nb::class_<Tokens>(m, "Tokens")
        .def_prop_ro("key", [](const Tokens &t) { return as_text(t.key.c_str()); })
        .def_ro("index", &Tokens::index)
        .def_ro("n", &Tokens::n)
        .def_ro("width", &Tokens::width)
        .def_ro("n_deepstack", &Tokens::n_deepstack)
        .def_ro("is_image", &Tokens::is_image)
        .def_ro("cancelled", &Tokens::cancelled)
        .def_ro("damaged_frames", &Tokens::damaged_frames)
        .def_prop_ro("decoded_by", [](const Tokens &t) { return t.decoded_by; })
        .def_prop_ro("not_gpu", [](const Tokens &t) { return as_text(t.not_gpu.c_str()); })
        .def_prop_ro("remark", [](const Tokens &t) { return t.remark; })
        .def_ro("sampled_fps", &Tokens::sampled_fps)
        .def_ro("pair_seconds", &Tokens::pair_seconds)
        .def_prop_ro("error", [](const Tokens &t) { return as_text(t.error.c_str()); })
        .def_prop_ro("status", [](const Tokens &t) { return qv_status_name(t.status); })
        .def_prop_ro("dtype", [](const Tokens &t) { return qv_dtype_name(t.dtype); })
        .def("matrix", [](nb::handle self, int i, bool bits) { return matrix(self, i, bits); })
        .def("timestamps", [](nb::handle self) { return timestamps(self); })
        .def("grid_thw", [](nb::handle self) { return grid_thw(self); })
        .def("save", save);
}

} // namespace qvpy
