/* SPDX-License-Identifier: MIT */
/* What comes out: matrices of tokens, and the file that they are saved in. */
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <nanobind/stl/pair.h>

#include "binding.h"

extern "C" {
#include "files/safetensors.h"
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

/* bits: bf16 as 16-bit integers, for those who know no bf16. */
static nb::object
matrix(nb::handle self, int i, bool bits)
{
    const Tokens &t = nb::cast<const Tokens &>(self);
    if (t.status || !t.data)
        fail(QV_ESTATE, "%s: there are no tokens: %s", t.key.c_str(), t.error.c_str());
    if (i < 0 || i > t.n_deepstack)
        fail(QV_EINVAL, "matrix %d; there are %d", i, 1 + t.n_deepstack);
    nb::dlpack::dtype dtype = nb::dtype<float>();
    if (t.dtype == QV_BF16)
        dtype = bits ? nb::dtype<uint16_t>()
                     : nb::dlpack::dtype{ (uint8_t)nb::dlpack::dtype_code::Bfloat, 16, 1 };
    return array_of(t.matrix(i), { (size_t)t.n, (size_t)t.width }, dtype, self);
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

static qv_safetensor
describe(std::string &name, const char *dtype, std::vector<int64_t> shape)
{
    qv_safetensor s = {};
    s.name = name.data();
    snprintf(s.dtype_name, sizeof s.dtype_name, "%s", dtype);
    s.n_dims = (int)shape.size();
    for (size_t i = 0; i < shape.size(); i++)
        s.shape[i] = shape[i];
    return s;
}

/* The file that `qwenvit encode` writes. */
static void
save(const Tokens &t, const std::string &path, const Pairs &metadata)
{
    if (t.status || !t.data)
        fail(QV_ESTATE, "%s: there are no tokens to save: %s", t.key.c_str(), t.error.c_str());
    const char *dtype = t.dtype == QV_BF16 ? "BF16" : "F32";
    std::vector<std::string> names = { "tokens" };
    for (int i = 0; i < t.n_deepstack; i++)
        names.push_back("deepstack." + std::to_string(i));
    names.insert(names.end(), { "grid_thw", "timestamps" });
    std::vector<qv_safetensor> tensors;
    std::vector<std::pair<const void *, size_t>> data;
    const size_t n_matrices = 1 + (size_t)t.n_deepstack;
    for (size_t i = 0; i < n_matrices; i++) {
        tensors.push_back(describe(names[i], dtype, { t.n, t.width }));
        data.push_back({ t.matrix((int)i), t.matrix_bytes() });
    }
    tensors.push_back(describe(names[n_matrices], "I64", { (int64_t)t.grid_thw.size() / 3, 3 }));
    data.push_back({ t.grid_thw.data(), t.grid_thw.size() * sizeof(int64_t) });
    tensors.push_back(describe(names[n_matrices + 1], "F64", { (int64_t)t.timestamps.size() }));
    data.push_back({ t.timestamps.data(), t.timestamps.size() * sizeof(double) });
    std::vector<const char *> texts;
    for (const auto &pair : metadata)
        texts.insert(texts.end(), { pair.first.c_str(), pair.second.c_str() });

    qv_error err = {};
    qv_safetensors_writer *writer = nullptr;
    nb::gil_scoped_release released;
    qv_status status =
        qv_safetensors_writer_open(path.c_str(), tensors.data(), tensors.size(),
                                   reinterpret_cast<const char *const(*)[2]>(texts.data()),
                                   metadata.size(), &writer, &err);
    for (size_t i = 0; i < data.size() && !status; i++)
        if (data[i].second)
            status = qv_safetensors_writer_put(writer, i, 0, data[i].first, data[i].second, &err);
    if (!status)
        status = qv_safetensors_writer_finish(&writer, &err);
    if (writer)
        qv_safetensors_writer_abort(&writer);
    check(status, err);
}

void
bind_tokens(nb::module_ &m)
{
    nb::class_<Tokens>(m, "Tokens")
        .def_ro("key", &Tokens::key)
        .def_ro("n", &Tokens::n)
        .def_ro("width", &Tokens::width)
        .def_ro("n_deepstack", &Tokens::n_deepstack)
        .def_ro("picture", &Tokens::is_image)
        .def_ro("cancelled", &Tokens::cancelled)
        .def_ro("damaged_frames", &Tokens::damaged_frames)
        .def_ro("sampled_fps", &Tokens::sampled_fps)
        .def_ro("pair_seconds", &Tokens::pair_seconds)
        .def_ro("error", &Tokens::error)
        .def_prop_ro("status", [](const Tokens &t) { return qv_status_name(t.status); })
        .def_prop_ro("dtype", [](const Tokens &t) { return qv_dtype_name(t.dtype); })
        .def("matrix", [](nb::handle self, int i, bool bits) { return matrix(self, i, bits); })
        .def("timestamps", [](nb::handle self) { return timestamps(self); })
        .def("grid_thw", [](nb::handle self) { return grid_thw(self); })
        .def("save", save);
}

} // namespace qvpy
