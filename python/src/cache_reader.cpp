/* SPDX-License-Identifier: MIT */
/* Reads a cache. The binding is thin: C implements the reader, and Python documents it. */
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "binding.h"

extern "C" {
#include "cache/open.h"
}

namespace qvpy
{

using Names = std::vector<nb::bytes>; /* file names, which may not be UTF-8 */

/* A folder's parts as they were when it was opened. Calls keep the GIL, so that no fork can happen
 * between a lock and its release. */
struct CacheReader {
    qv_cache *cache = nullptr;
    qv_cache_info facts = {};
    std::string dir;

    CacheReader(nb::bytes folder, std::optional<Names> names, const CacheReader *before)
        : dir(text_of(folder))
    {
        std::vector<const char *> pointers;
        qv_cache_reading how = {};
        how.before = before ? before->cache : nullptr;
        how.writable = true; /* because torch has no read-only tensors */
        if (names) {
            for (const nb::bytes &name : *names)
                pointers.push_back(name.c_str());
            pointers.push_back(nullptr);
            how.parts = pointers.data();
            how.n_parts = names->size();
        }
        const Released released;
        checked(qv_cache_open_as, dir.c_str(), &how, &cache);
        qv_cache_get_info(cache, &facts);
    }

    ~CacheReader()
    {
        qv_cache_close(&cache);
    }

    CacheReader(const CacheReader &) = delete;
    CacheReader &operator=(const CacheReader &) = delete;

    /* Returns (index, whether it is ok) of a key; None for a key that is not there, of whatever
     * type. As with a dict, a value that cannot be hashed raises TypeError. */
    std::optional<std::pair<int64_t, bool>>
    find(nb::handle key) const
    {
        qv_cache_item item = {};
        Py_ssize_t n = 0;
        if (PyObject_Hash(key.ptr()) == -1)
            throw nb::python_error();
        const char *text =
            PyUnicode_Check(key.ptr()) ? PyUnicode_AsUTF8AndSize(key.ptr(), &n) : nullptr;
        if (!text || strlen(text) != (size_t)n) {
            PyErr_Clear(); /* a lone surrogate is not UTF-8, and keys contain no NUL */
            return std::nullopt;
        }
        qv_cache_find(cache, text, &item, nullptr);
        if (!item.key)
            return std::nullopt;
        return std::pair(item.index, item.status == QV_OK);
    }

    /* Returns what the index has of an item, as _cache.py's Item: None for values that its record
     * lacks. */
    nb::tuple
    item(int64_t i) const
    {
        const qv_cache_item t = at(i);
        return nb::make_tuple(t.part_index, t.rows, t.n_timestamps,
                              t.is_image < 0 ? std::nullopt : std::optional(t.is_image > 0),
                              t.sampled_fps > 0 ? std::optional(t.sampled_fps) : std::nullopt,
                              t.key, qv_status_name(t.status));
    }

    /* Returns (key, index) of the ok items in [from, from + n). */
    std::vector<std::pair<std::string, int64_t>>
    keys(int64_t from, int64_t n) const
    {
        std::vector<std::pair<std::string, int64_t>> found;
        for (int64_t i = from; i < from + n && i < facts.n_ok + facts.n_failed; i++) {
            const qv_cache_item item = at(i);
            if (!item.status)
                found.emplace_back(item.key, i);
        }
        return found;
    }

    /* Returns the indices of items that failed, part by part, because records are read fastest in
     * that order. */
    std::vector<int64_t>
    failed() const
    {
        std::vector<std::pair<int64_t, int64_t>> found;
        for (int64_t i = 0; i < facts.n_ok + facts.n_failed && facts.n_failed; i++) {
            const qv_cache_item item = at(i);
            if (item.status)
                found.emplace_back(item.part_index, i);
        }
        std::sort(found.begin(), found.end());
        std::vector<int64_t> indices;
        for (const auto &one : found)
            indices.push_back(one.second);
        return indices;
    }

    std::string
    record(int64_t i) const
    {
        char *text = nullptr;
        checked(qv_cache_record, cache, i, &text);
        std::unique_ptr<char, decltype(&free)> owned(text, free);
        return text;
    }

    void
    verify(int64_t i) const
    {
        const Released released;
        checked(qv_cache_verify, cache, i);
    }

    /* Returns a list of (part, message). */
    std::vector<std::pair<nb::bytes, nb::str>>
    damaged() const
    {
        std::vector<std::pair<nb::bytes, nb::str>> list;
        for (int64_t i = 0; qv_cache_damage(cache, i, nullptr); i++)
            list.emplace_back(nb::bytes(qv_cache_part(cache, qv_cache_damaged_part(cache, i))),
                              as_text(qv_cache_damage(cache, i, nullptr)));
        return list;
    }

    nb::dict
    info() const
    {
        const qv_cache_layout &l = facts.layout;
        return dict_of("dtype", qv_dtype_name(l.dtype), QVPY_MEMBER(l, width),
                       QVPY_MEMBER(l, n_deepstack), QVPY_MEMBER(facts, made_by),
                       QVPY_MEMBER(facts, n_ok), QVPY_MEMBER(facts, n_failed));
    }

    Names
    parts() const
    {
        Names names;
        for (int64_t i = 0; i < facts.n_parts; i++)
            names.push_back(nb::bytes(qv_cache_part(cache, i)));
        return names;
    }

    /* Pickles the reader: unpickling opens the same parts again, so indices stay the same. */
    nb::tuple
    reduce() const
    {
        return nb::make_tuple(nb::type<CacheReader>(),
                              nb::make_tuple(nb::bytes(dir.data(), dir.size()), parts()));
    }

    qv_cache_item
    at(int64_t i) const
    {
        qv_cache_item item = {};
        checked(qv_cache_at, cache, i, &item);
        return item;
    }
};

/* ---- tensors --------------------------------------------------------------------------------- */

/* An item whose part stays mapped for as long as an array needs it. */
struct Held {
    nb::object reader;
    const qv_cache *cache;
    qv_cache_item item;
    ~Held()
    {
        qv_cache_release(cache, &item);
    }
};

/* Returns tensor i of an item as a numpy array over the mapped part: i counts its matrices, -1 is
 * grid_thw, -2 timestamps. Changes to a writable array stay in this process. */
static nb::object
view(nb::handle self, int64_t index, int i, bool writable)
{
    const CacheReader &r = nb::cast<const CacheReader &>(self);
    const qv_cache_layout &l = r.facts.layout;
    std::unique_ptr<Held> held(new Held{ nb::borrow(self), r.cache, r.at(index) });
    checked(qv_cache_hold, r.cache, &held->item);
    const qv_cache_item &t = held->item;
    if (!t.tokens || i < -2 || i > l.n_deepstack)
        fail(QV_EINVAL, "item %lld has no tensor %d", (long long)index, i);
    const void *data = i == -1 ? t.grid_thw
                       : i < 0 ? t.timestamps_s
                       : i     ? t.deepstack[i - 1]
                               : t.tokens;
    const size_t matrix[2] = { (size_t)t.rows, (size_t)l.width }, grid[2] = { 1, 3 },
                 times[1] = { (size_t)t.n_timestamps };
    const size_t *shape = i == -1 ? grid : i < 0 ? times : matrix;
    const nb::dlpack::dtype dtype = i == -1 ? nb::dtype<int64_t>()
                                    : i < 0 ? nb::dtype<double>()
                                            : array_dtype(l.dtype, true);
    nb::capsule owner(held.get(), [](void *p) noexcept { delete static_cast<Held *>(p); });
    held.release();
    const size_t dims = i == -2 ? 1 : 2;
    if (writable)
        return nb::cast(
            nb::ndarray<nb::numpy>(const_cast<void *>(data), dims, shape, owner, nullptr, dtype));
    return nb::cast(nb::ndarray<nb::numpy, nb::ro>(data, dims, shape, owner, nullptr, dtype));
}

void
bind_cache_reader(nb::module_ &m)
{
    nb::class_<CacheReader>(m, "CacheReader")
        .def(nb::init<nb::bytes, std::optional<Names>, const CacheReader *>(), nb::arg("folder"),
             nb::arg("parts") = nb::none(), nb::arg("before") = nb::none())
        .def("find", &CacheReader::find, nb::arg("key").none())
        .def("item", &CacheReader::item)
        .def("keys", &CacheReader::keys)
        .def("failed", &CacheReader::failed)
        .def("record", &CacheReader::record)
        .def("verify", &CacheReader::verify)
        .def("damaged", &CacheReader::damaged)
        .def("info", &CacheReader::info)
        .def("view", &view)
        .def("__reduce__", &CacheReader::reduce);
}

} // namespace qvpy
