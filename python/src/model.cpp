/* SPDX-License-Identifier: MIT */
/* Loads a model onto a device, and turns patches into tokens. */
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdarg>
#include <cstring>
#include <memory>

#include "results.h"
#include "error.h"
#include "qwenvit_cache.h"

extern "C" {
#include "engine/turns.h"
}

namespace qvpy
{

void
fail(qv_status status, const char *format, ...)
{
    qv_error err;
    va_list ap;
    va_start(ap, format);
    qv_fail_list(&err, status, format, ap);
    va_end(ap);
    throw Failure{ status, err.text };
}

qv_dtype
parse_dtype(const std::string &name, bool or_auto)
{
    for (qv_dtype dtype : { QV_F32, QV_BF16 })
        if (name == qv_dtype_name(dtype))
            return dtype;
    if (or_auto && name == qv_dtype_name(QV_DTYPE_AUTO))
        return QV_DTYPE_AUTO;
    fail(QV_EINVAL, "dtype is \"%.40s\"; it must be %s\"f32\" or \"bf16\"", name.c_str(),
         or_auto ? "\"auto\", " : "");
}

/* ---- lifetime -------------------------------------------------------------------------------- */

Model::Model(nb::bytes dir, const std::string &backend, int device, const std::string &dtype,
             int threads, uintptr_t stream, nb::bytes kernel_folder,
             const std::vector<double> &image_mean, const std::vector<double> &image_std)
{
    const auto made = std::make_shared<Tower>();
    qv_context_options c = {};
    qv_model_options o = {};
    c.backend = backend.c_str();
    c.device = device;
    c.threads = threads;
    c.stream = reinterpret_cast<void *>(stream);
    c.kernel_folder = kernel_folder.size() ? kernel_folder.c_str() : nullptr;
    o.dtype = parse_dtype(dtype, true);
    o.image_mean = image_mean.size() == 3 ? image_mean.data() : nullptr;
    o.image_std = image_std.size() == 3 ? image_std.data() : nullptr;
    const Released released;
    checked(qv_context_open, &c, &made->context);
    checked(qv_model_load, made->context, dir.c_str(), &o, &made->model);
    qv_model_get_info(made->model, &facts);
    note = facts.note;
    warning = facts.warning;
    identity = facts.identity;
    qv_context_get_info(made->context, &device_facts);
    held = made;
    origin = std::make_shared<const Origin>(Origin{ facts.model_type, facts.digest, identity,
                                                    device_facts.backend, device_facts.device,
                                                    facts.dtype });
}

/* A forked process frees nothing: threads and devices belong to the process that loaded the
 * model. */
Tower::~Tower()
{
    if (owner != getpid())
        return;
    qv_model_free(&model);
    qv_context_close(&context);
}

void
must_be_ours(pid_t owner)
{
    if (owner != getpid())
        fail(QV_ESTATE,
             "this model was loaded by process %d, from which this one was forked; a fork does not "
             "copy threads and devices: load it here, or start workers with \"spawn\"",
             (int)owner);
}

static thread_local bool computing; /* whether this thread is in a forward() */
static thread_local std::vector<std::shared_ptr<const void>>
    left; /* references dropped meanwhile */

void
must_not_compute()
{
    if (computing)
        fail(QV_ESTATE,
             "this call comes from a signal handler that has interrupted a forward() of a "
             "model; let the handler return first");
}

void
let_go(std::shared_ptr<const void> held)
{
    if (computing) {
        left.push_back(std::move(held));
        return;
    }
    const Released released;
    held.reset();
}

std::shared_ptr<const Tower>
Model::tower() const
{
    must_be_ours(owner);
    if (!held)
        fail(QV_ESTATE, "this model was closed");
    must_not_compute();
    return held;
}

void
Model::close()
{
    must_be_ours(owner);
    let_go(std::exchange(held, nullptr));
}

static nb::dict
device_dict(const qv_context_info &info)
{
    return dict_of(QVPY_MEMBER(info, backend), QVPY_MEMBER(info, device), "dtype",
                   qv_dtype_name(info.dtype), QVPY_MEMBER(info, dtype_reason),
                   QVPY_MEMBER(info, warning));
}

/* Returns a description of a device; throws if it cannot be opened. */
static nb::dict
look_at_device(const std::string &backend, int index)
{
    qv_context_options o = {};
    qv_context_info info;
    o.backend = backend.c_str();
    o.device = index;
    {
        const Released released;
        qv_context *context = nullptr;
        checked(qv_context_open, &o, &context);
        qv_context_get_info(context, &info);
        qv_context_close(&context);
    }
    return device_dict(info);
}

static nb::dict
preprocess_dict(const qv_preprocess &p)
{
    return dict_of(QVPY_MEMBER(p, min_pixels), QVPY_MEMBER(p, max_pixels), QVPY_MEMBER(p, fps),
                   QVPY_MEMBER(p, min_frames), QVPY_MEMBER(p, max_frames),
                   QVPY_MEMBER(p, max_duration), "mean",
                   nb::make_tuple(p.mean[0], p.mean[1], p.mean[2]), "std",
                   nb::make_tuple(p.std[0], p.std[1], p.std[2]));
}

nb::dict
Model::info()
{
    nb::dict d = device_dict(device_facts);
    const qv_model_info &m = facts;
    put_into(d, QVPY_MEMBER(m, model_type), QVPY_MEMBER(device_facts, passed_over), "dtype",
             qv_dtype_name(m.dtype), QVPY_MEMBER(m, depth), QVPY_MEMBER(m, hidden),
             QVPY_MEMBER(m, heads), QVPY_MEMBER(m, out_hidden), QVPY_MEMBER(m, patch_size),
             QVPY_MEMBER(m, temporal_patch_size), QVPY_MEMBER(m, merge_size),
             QVPY_MEMBER(m, row_dim), QVPY_MEMBER(m, n_deepstack), QVPY_MEMBER(m, n_parameters),
             QVPY_MEMBER(m, weight_bytes), QVPY_MEMBER(m, digest), "identity", identity, "note",
             note, "model_warning", warning, "image", preprocess_dict(m.image), "video",
             preprocess_dict(m.video));
    return d;
}

/* ---- patches to tokens ----------------------------------------------------------------------- */

/* Returns the kind of input of these pixel_values. The tower reads them in place. */
static qv_input
input_of(const nb::ndarray<> &x, bool u16_is_bf16)
{
    const nb::dlpack::dtype bf16 = { (uint8_t)nb::dlpack::dtype_code::Bfloat, 16, 1 };
    if (x.dtype() == nb::dtype<float>())
        return QV_INPUT_PATCHES;
    if (x.dtype() != bf16 && !(u16_is_bf16 && x.dtype() == nb::dtype<uint16_t>()))
        fail(QV_EINVAL,
             "pixel_values: its DLPack dtype is code %d with %d bits; it must be float32 or "
             "bfloat16",
             (int)x.dtype().code, (int)x.dtype().bits);
    return QV_INPUT_PATCHES_BF16;
}

static std::vector<qv_item>
items_of(const qv_model_info &m, const std::vector<int64_t> &grid_thw, qv_input input,
         const char *rows, int64_t n_rows)
{
    std::vector<qv_item> items;
    const size_t element = input == QV_INPUT_PATCHES_BF16 ? sizeof(uint16_t) : sizeof(float);
    int64_t at = 0;
    if (grid_thw.empty() || grid_thw.size() % 3)
        fail(QV_EINVAL, "grid_thw must be [items, 3], with at least one item");
    for (size_t i = 0; i < grid_thw.size(); i += 3) {
        const int64_t *g = &grid_thw[i];
        int64_t patches = g[0], over = 0;
        for (int axis = 0; axis < 3; axis++)
            over |= g[axis] < 1;
        over = over || __builtin_mul_overflow(patches, g[1], &patches) ||
               __builtin_mul_overflow(patches, g[2], &patches) || patches > n_rows - at;
        if (over)
            fail(QV_EINVAL,
                 "grid_thw: item %zu is %lld, %lld, %lld and begins at row %lld, but pixel_values "
                 "has %lld rows",
                 i / 3, (long long)g[0], (long long)g[1], (long long)g[2], (long long)at,
                 (long long)n_rows);
        qv_item item = {};
        item.data = rows + (size_t)(at * m.row_dim) * element;
        memcpy(item.grid_thw, g, sizeof item.grid_thw);
        items.push_back(item);
        at += patches;
    }
    if (at != n_rows)
        fail(QV_EINVAL, "grid_thw: its items have %lld patches, but pixel_values has %lld rows",
             (long long)at, (long long)n_rows);
    return items;
}

/* Checked rows of pixel_values and their items. `rows` owns the memory that the items point to. */
struct Patches {
    nb::ndarray<> rows;
    qv_input input;
    std::vector<qv_item> items;
};

static Patches
take_patches(const qv_model_info &m, const char *backend, nb::handle rows, bool u16_is_bf16,
             const std::vector<int64_t> &grid_thw)
{
    nb::ndarray<> x = take_array(rows, "pixel_values");
    must_be_contiguous(x, "pixel_values");
    if (x.ndim() != 2 || (int64_t)x.shape(1) != m.row_dim)
        fail(QV_EINVAL,
             "pixel_values must be [patches, %lld] for this model; it has %zu axes, the last of "
             "%zu",
             (long long)m.row_dim, x.ndim(), x.ndim() ? x.shape(x.ndim() - 1) : 0);
    const int where = x.device_type();
    if (where != nb::device::cpu::value && strcmp(backend, "cuda") != 0)
        fail(QV_EINVAL,
             "pixel_values must be in the host's memory, because this model computes on %s; it is "
             "in "
             "a device's",
             backend);
    const qv_input input = input_of(x, u16_is_bf16);
    return { x, input,
             items_of(m, grid_thw, input, static_cast<const char *>(x.data()),
                      (int64_t)x.shape(0)) };
}

/* Within forward(): runs signal handlers, which may raise, between two chunks. It acquires the
 * interpreter only now and then, because other threads may hold it for long. */
struct Listener {
    using Clock = std::chrono::steady_clock;
    Clock::time_point heard = Clock::now();
    bool interrupted = false; /* a handler raised an exception */

    static bool
    hear(void *self)
    {
        Listener &l = *static_cast<Listener *>(self);
        if (Clock::now() - l.heard < std::chrono::milliseconds(50))
            return false;
        l.heard = Clock::now();
        with_interpreter([&] { l.interrupted = PyErr_CheckSignals(); });
        return l.interrupted;
    }
};

/* Encodes patches. allocate(n, output) returns memory for the outputs; if possible, it is called
 * while the device is computing. */
void
Model::encode(const Patches &x, const std::string &dtype, bool hidden,
              const std::function<Places(int64_t, qv_dtype)> &allocate) const
{
    const std::shared_ptr<const Tower> on = tower();
    Listener listener;
    qv_plan_options options = {}, bucket = {};
    qv_error err = {};
    options.input = bucket.input = x.input;
    options.output = bucket.output = parse_dtype(dtype, false);
    options.hidden = bucket.hidden = hidden;
    options.stop = Listener::hear;
    options.stop_user = &listener;
    const auto room = [&] {
        qv_tokens to = {};
        to.capacity = (int64_t)x.rows.shape(0) / (facts.merge_size * facts.merge_size);
        const Places places = allocate(to.capacity, options.output);
        const size_t bytes =
            (size_t)(to.capacity * facts.out_hidden) * qv_dtype_bytes(options.output);
        to.tokens = places.first;
        to.hidden = hidden ? places.second : nullptr;
        for (int i = 0; i < facts.n_deepstack; i++)
            to.deepstack[i] = places.first + (size_t)(1 + i) * bytes;
        return to;
    };
    const struct Computing {
        Computing()
        {
            computing = true;
        }
        ~Computing()
        {
            computing = false;
            for (auto &held : std::exchange(left, {}))
                let_go(std::move(held));
        }
    } scope;
    const Released released;
    const int64_t *g = x.items[0].grid_thw;
    std::copy(g, g + 3, bucket.grid_thw);
    if (x.items.size() == 1) {
        qv_turn_take(on->context);
        const std::unique_ptr<qv_context, void (*)(qv_context *)> turn(on->context, qv_turn_end);
        qv_plan *plan = nullptr;
        qv_plan_info info = {};
        if (!qv_plan_create(on->model, &bucket, &plan, &err))
            qv_plan_get_info(plan, &info);
        const std::unique_ptr<qv_plan, void (*)(qv_plan *)> owned(plan, [](qv_plan *p) {
            qv_plan_free(&p);
        });
        if (g[0] * g[1] * g[2] <= info.capacity.patches) { /* otherwise the call below takes it */
            check(qv_plan_push(plan, x.items.data(), 1, &err), err);
            qv_tokens to = room();
            check(qv_plan_pull(plan, &to, &err), err);
            return;
        }
    }
    qv_tokens to = room();
    const qv_status status =
        qv_encode(on->model, x.input, x.items.data(), x.items.size(), &options, &to, &err);
    if (listener.interrupted)
        with_interpreter([] { throw nb::python_error(); });
    check(status, err);
}

Tokens *
Model::forward(nb::object rows, bool u16_is_bf16, const std::vector<int64_t> &grid_thw,
               const std::string &dtype, bool hidden)
{
    const Patches x = take_patches(facts, device_facts.backend, rows, u16_is_bf16, grid_thw);
    auto tokens = std::make_unique<Tokens>();
    tokens->grid_thw = grid_thw;
    tokens->origin = origin;
    encode(x, dtype, hidden, [&](int64_t n, qv_dtype output) {
        tokens->allocate(facts, n, output, hidden);
        return Places(tokens->matrix(0), tokens->matrix(1 + tokens->n_deepstack));
    });
    return tokens.release();
}

void
Model::forward_at(nb::object rows, const std::vector<int64_t> &grid_thw, nb::callable allocate,
                  const std::string &dtype, bool hidden)
{
    const Patches x = take_patches(facts, device_facts.backend, rows, false, grid_thw);
    encode(x, dtype, hidden, [&](int64_t n, qv_dtype) {
        std::pair<uintptr_t, uintptr_t> at;
        with_interpreter([&] { at = nb::cast<decltype(at)>(allocate(n)); });
        return Places(reinterpret_cast<char *>(at.first), reinterpret_cast<char *>(at.second));
    });
}

void
bind_model(nb::module_ &m)
{
    m.def("look_at_device", &look_at_device);
    nb::class_<Model>(m, "Model")
        .def(nb::init<nb::bytes, const std::string &, int, const std::string &, int, uintptr_t,
                      nb::bytes, const std::vector<double> &, const std::vector<double> &>())
        .def("info", &Model::info)
        .def("close", &Model::close)
        .def("forward", &Model::forward, nb::arg("rows").none(), nb::arg("u16_is_bf16"),
             nb::arg("grid_thw"), nb::arg("dtype"), nb::arg("hidden"),
             nb::rv_policy::take_ownership)
        .def("forward_at", &Model::forward_at);
}

} // namespace qvpy
