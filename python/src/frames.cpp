/* SPDX-License-Identifier: MIT */
/* Turns users' frames into RGB of a size that a tower accepts, and RGB into rows of pixel_values.
 * */
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>

#include "binding.h"

extern "C" {
#include "engine/block_order.h"
#include "engine/frames.h"
}

namespace qvpy
{

/* ---- arrays with any order of axes ----------------------------------------------------------- */

/* Bytes of n frames, each [height, width, channels], with the step of each axis. */
struct View {
    nb::ndarray<> array;
    enum { N, H, W, C, AXES };
    int64_t size[AXES] = { 1, 1, 1, 1 }, step[AXES] = {};

    const uint8_t *
    at(int64_t i, int64_t y, int64_t x) const
    {
        return static_cast<const uint8_t *>(array.data()) + i * step[N] + y * step[H] + x * step[W];
    }
    bool
    is_on_host() const
    {
        return array.device_type() == nb::device::cpu::value;
    }
    bool
    is_rgb() const
    {
        return size[C] == 3 && step[C] == 1 && step[W] == 3 && step[H] == 3 * size[W];
    }
};

static std::string
shape_text(const nb::ndarray<> &x)
{
    std::string text;
    for (size_t i = 0; i < x.ndim(); i++)
        text += (i ? ", " : "") + std::to_string(x.shape(i));
    return "[" + text + "]";
}

static bool
are_channels(size_t n)
{
    return n == 1 || n == 3 || n == 4;
}

/* Returns the stream on which a model resizes frames of a CUDA device; 0 if it does not accept
 * frames of that device. */
static uintptr_t
frames_stream(const Model &model, int device)
{
    int own;
    void *stream = qv_frames_stream(model.tower()->context, &own);
    return own == device ? reinterpret_cast<uintptr_t>(stream) : 0;
}

/* Returns a view of an array [height, width], which may also have an axis of 1, 3 or 4 channels
 * after or before these two, and a first axis of frames. The array is on the host, or on a device
 * that resizes frames for the model. */
static View
view_of(const Model &model, nb::handle object, const std::string &what)
{
    View v;
    v.array = take_array(object, what.c_str());
    const nb::ndarray<> &x = v.array;
    const size_t n = x.ndim();
    const bool behind = n > 2 && are_channels(x.shape(n - 1));
    const bool before = n > 2 && !behind && are_channels(x.shape(n - 3));
    const bool lies_here = v.is_on_host() || (x.device_type() == nb::device::cuda::value &&
                                              frames_stream(model, x.device_id()));
    if (x.dtype() != nb::dtype<uint8_t>() || !x.size() || n < 2 || n > 4 ||
        (n > 2 && !behind && !before) || !lies_here)
        fail(QV_EINVAL,
             "%s: frames must be bytes (uint8) [frames, height, width, 3], [frames, 3, height, "
             "width], or "
             "one such frame, with 3 channels, 4 (RGBA) or 1 (gray), in the memory of the host "
             "or of the model's NVIDIA GPU; the array is %s%s",
             what.c_str(), shape_text(x).c_str(),
             lies_here ? "" : " on another device: call .cpu()");
    static const int orders[][4] = { { View::H, View::W },
                                     { View::H, View::W, View::C },
                                     { View::C, View::H, View::W },
                                     { View::N, View::H, View::W, View::C },
                                     { View::N, View::C, View::H, View::W } };
    const int *order = orders[n == 2 ? 0 : 2 * n - 5 + (size_t)before];
    for (size_t i = 0; i < n; i++) {
        v.size[order[i]] = (int64_t)x.shape(i);
        v.step[order[i]] = x.stride(i);
    }
    return v;
}

/* Returns frame i as contiguous RGB: in place, or copied to `room`. A fourth channel is dropped, as
 * by Pillow's convert("RGB"). */
static const uint8_t *
rgb_of(const View &v, int64_t i, std::vector<uint8_t> &room)
{
    if (v.is_rgb())
        return v.at(i, 0, 0);
    const int64_t channels = v.size[View::C], step = v.step[View::C];
    room.resize((size_t)(v.size[View::H] * v.size[View::W] * 3));
    uint8_t *to = room.data();
    for (int64_t y = 0; y < v.size[View::H]; y++)
        for (int64_t x = 0; x < v.size[View::W]; x++) {
            const uint8_t *from = v.at(i, y, x);
            for (int64_t c = 0; c < 3; c++)
                *to++ = from[channels == 1 ? 0 : c * step];
        }
    return room.data();
}

/* ---- frames in a device's memory ------------------------------------------------------------- */

/* Resizes views in the memory of the tower's device. The work that made them precedes
 * frames_stream(). */
static void
resize_there(const Model &model, const std::vector<View> &views, int64_t to_h, int64_t to_w,
             Frames &frames)
{
    std::vector<qv_frames_view> from;
    void *made = nullptr;
    qv_error err = {};
    for (const View &v : views) {
        const int64_t channel = v.size[View::C] == 1 ? 0 : v.step[View::C];
        from.push_back({ v.at(0, 0, 0),
                         v.size[View::N],
                         { v.step[View::N], v.step[View::H], v.step[View::W], channel } });
    }
    frames.tower = model.tower();
    frames.there_bytes = (size_t)(frames.n_frames * to_h * to_w * 3);
    const qv_status status =
        qv_frames_resize(frames.tower->context, from.data(), from.size(), views[0].size[View::H],
                         views[0].size[View::W], to_h, to_w, &made, &err);
    if (status == QV_ENOMEM)
        throw std::bad_alloc();
    check(status, err);
    frames.there.reset(static_cast<uint8_t *>(made), [tower = frames.tower](uint8_t *p) {
        if (tower->owner == getpid())
            qv_frames_free(tower->context, p);
    });
}

void
Frames::to_host()
{
    if (!there)
        return;
    data.resize(there_bytes);
    const Released released;
    checked(qv_frames_read, tower->context, data.data(), there.get(), data.size());
    there.reset();
    tower.reset();
}

/* ---- frames to the tower's size -------------------------------------------------------------- */

/* Sets timestamps and rate. seconds has one value per frame, or is empty; if fps is 0 (unknown), it
 * follows from seconds. */
static void
take_seconds(Frames &frames, const std::vector<double> &seconds, double fps,
             int temporal_patch_size)
{
    if (!seconds.empty() && (int64_t)seconds.size() != frames.n_frames)
        fail(QV_EINVAL, "timestamps: %zu values for %lld frames", seconds.size(),
             (long long)frames.n_frames);
    for (size_t i = 0; i < seconds.size(); i++)
        if (!std::isfinite(seconds[i]) || (i && seconds[i] < seconds[i - 1]))
            fail(QV_EINVAL, "timestamps: %g at index %zu; they must be seconds that never decrease",
                 seconds[i], i);
    if (!(fps >= 0 && fps <= 1e6))
        fail(QV_EINVAL,
             "frames: fps is %g; it must be a number of frames per second, greater than 0", fps);
    frames.timestamps = seconds;
    frames.sampled_fps = fps;
    const double span = seconds.empty() ? 0 : seconds.back() - seconds.front();
    if (span > 0 && !(fps > 0))
        frames.sampled_fps = (double)(frames.n_frames - 1) / span;
    else if (seconds.empty() && fps > 0)
        for (int64_t i = 0; i < frames.n_frames; i++)
            frames.timestamps.push_back((double)i / fps);
    if (frames.sampled_fps > 0)
        frames.second_per_grid_ts = temporal_patch_size / frames.sampled_fps;
}

/* Makes Frames, a clip or an image, from arrays of one size with one or several frames each.
 * options: min_pixels, max_pixels, fps. seconds has one value per frame, or is empty. */
static Frames *
prepare(const Model &model, nb::list arrays, bool is_image, nb::dict options,
        const std::vector<double> &seconds)
{
    std::vector<View> views;
    qv_clip_options o = {};
    take_clip_options(options, &o);
    auto frames = std::make_unique<Frames>();
    for (size_t i = 0; i < arrays.size(); i++) {
        const std::string name =
            arrays.size() > 1 ? "frames: frame " + std::to_string(i) : std::string("frames");
        const View v = view_of(model, arrays[i], name);
        const View &first = views.empty() ? v : views[0];
        if (v.size[View::H] != first.size[View::H] || v.size[View::W] != first.size[View::W])
            fail(QV_EINVAL, "%s is %lld high and %lld wide, but the first is %lld and %lld",
                 name.c_str(), (long long)v.size[View::H], (long long)v.size[View::W],
                 (long long)first.size[View::H], (long long)first.size[View::W]);
        if (v.is_on_host() != first.is_on_host())
            fail(QV_EINVAL, "%s is in the memory of %s, but the first is in that of %s",
                 name.c_str(), v.is_on_host() ? "the host" : "a GPU",
                 v.is_on_host() ? "a GPU" : "the host");
        frames->n_frames += v.size[View::N];
        views.push_back(v);
    }
    if (views.empty())
        fail(QV_EINVAL, "frames: the list is empty");
    if (is_image && frames->n_frames != 1)
        fail(QV_EINVAL, "frames: an image is one frame, not %lld", (long long)frames->n_frames);
    qv_preprocess p = is_image ? model.facts.image : model.facts.video;
    take_seconds(*frames, seconds, o.fps, p.temporal_patch_size);
    p.min_pixels = o.min_pixels ? o.min_pixels : p.min_pixels;
    p.max_pixels = o.max_pixels ? o.max_pixels : p.max_pixels;
    const int64_t h = views[0].size[View::H], w = views[0].size[View::W];
    int64_t to_h, to_w, done = 0;
    qv_error err = {};
    const Released released;
    const qv_status status =
        qv_smart_resize(is_image ? 0 : frames->n_frames, h, w, &p, &to_h, &to_w, &err);
    if (status)
        fail(status, "frames: %s", err.text);
    frames->is_image = is_image;
    frames->grid_thw[0] = (frames->n_frames + p.temporal_patch_size - 1) / p.temporal_patch_size;
    frames->grid_thw[1] = to_h / p.patch_size;
    frames->grid_thw[2] = to_w / p.patch_size;
    const bool there = !views[0].is_on_host();
    try {
        there ? resize_there(model, views, to_h, to_w, *frames)
              : frames->data.resize((size_t)(frames->n_frames * to_h * to_w * 3));
    } catch (const std::bad_alloc &) {
        fail(QV_EINVAL, "frames: no memory for %lld frames of %lldx%lld; see max_pixels",
             (long long)frames->n_frames, (long long)to_w, (long long)to_h);
    }
    if (there)
        return frames.release();
    std::vector<uint8_t> room;
    for (const View &v : views)
        for (int64_t i = 0; i < v.size[View::N]; i++, done++)
            checked(qv_resize_bicubic, rgb_of(v, i, room), h, w, w * 3,
                    frames->data.data() + done * to_h * to_w * 3, to_h, to_w);
    return frames.release();
}

/* ---- files to frames ------------------------------------------------------------------------- */

/* Reads the sampled frames of a clip or image one at a time, to check Python's signals in between.
 * */
static void
read_clip(qv_clip *clip, Frames &frames)
{
    const size_t frame = (size_t)frames.width * (size_t)frames.height * 3;
    frames.timestamps.resize((size_t)frames.n_frames);
    frames.data.resize((size_t)frames.n_frames * frame);
    for (int64_t got, i = 0; i < frames.n_frames; i += got) {
        {
            const Released released;
            checked(qv_clip_read, clip, frames.data.data() + (size_t)i * frame, 1, &got,
                    &frames.timestamps[(size_t)i]);
        }
        if (!got)
            fail(QV_EFORMAT, "the clip ended before its last sampled frame");
        if (PyErr_CheckSignals())
            throw nb::python_error();
    }
}

/* Opens a path, or the bytes of a file; error messages call it `name`. */
static void
open_and_read(const qv_preprocess &image, const qv_preprocess &video, nb::handle decoder,
              const std::string &name, nb::bytes source, bool is_path, nb::dict options,
              Frames &frames)
{
    const std::string path = is_path ? text_of(source) : name;
    qv_clip_options o = {};
    qv_clip *clip = nullptr;
    take_clip_options(options, &o);
    o.decoder = decoder_of(decoder).get();
    if (!is_path) {
        o.bytes = source.c_str();
        o.n_bytes = source.size();
    }
    {
        const Released released;
        checked(qv_clip_open, path.c_str(), &image, &video, &o, &clip);
    }
    const std::unique_ptr<qv_clip, void (*)(qv_clip *)> owned(clip, [](qv_clip *c) {
        qv_clip_close(&c);
    });
    qv_clip_get_info(clip, &frames);
    read_clip(clip, frames);
    qv_clip_get_info(clip, &frames); /* again: decoding may have found damage */
}

/* ---- frames to rows -------------------------------------------------------------------------- */

/* Writes one patch: [channels, frames of a pair, patch, patch]. frames point to the patch's first
 * pixel in each frame [height, width, 3] of the pair. Bytes are normalised as by torchvision when
 * transformers has not rescaled them: (u - 255 mean) / (255 std), each in f32. */
static float *
put_patch(float *row, const uint8_t *const *frames, const qv_preprocess &p, int64_t width)
{
    for (int c = 0; c < 3; c++) {
        const float shift = (float)p.mean[c] * 255.0f, scale = (float)p.std[c] * 255.0f;
        for (int t = 0; t < p.temporal_patch_size; t++)
            for (int64_t y = 0; y < p.patch_size; y++)
                for (int64_t x = 0; x < p.patch_size; x++)
                    *row++ = ((float)frames[t][(y * width + x) * 3 + c] - shift) / scale;
    }
    return row;
}

static void
put_rows(const Frames &f, const qv_preprocess &p, float *rows)
{
    const int64_t gh = f.grid_thw[1], gw = f.grid_thw[2], patch = p.patch_size, width = gw * patch;
    std::vector<qv_coords> coords((size_t)(gh * gw));
    std::vector<const uint8_t *> pair((size_t)p.temporal_patch_size);
    qv_block_coords(gh, gw, p.merge_size, 0, 0, coords.data());
    for (int64_t t = 0; t < f.grid_thw[0]; t++)
        for (const qv_coords &at : coords) {
            for (int i = 0; i < p.temporal_patch_size; i++) {
                const int64_t wanted = t * p.temporal_patch_size + i;
                /* a last odd frame is paired with itself */
                const int64_t frame = wanted < f.n_frames ? wanted : f.n_frames - 1;
                pair[(size_t)i] =
                    f.data.data() + ((frame * gh + at.row) * patch * width + at.col * patch) * 3;
            }
            rows = put_patch(rows, pair.data(), p, width);
        }
}

/* Returns pixel_values [patches, row_dim] in f32, and the source's metadata, as Tokens. source is
 * Frames, a path or bytes. */
static Tokens *
preprocess(const Model &model, nb::handle decoder, const std::string &key, nb::object source,
           bool is_path, nb::dict options)
{
    auto made = std::make_unique<Tokens>();
    Frames read, *frames = &read;
    must_be_ours(model.owner);
    if (nb::isinstance<Frames>(source))
        (frames = nb::cast<Frames *>(source))->to_host();
    else
        open_and_read(model.facts.image, model.facts.video, decoder, key,
                      nb::cast<nb::bytes>(source), is_path, options, read);
    const qv_preprocess &p = frames->is_image ? model.facts.image : model.facts.video;
    const int64_t *g = frames->grid_thw;
    made->key = key;
    made->outcome = *frames;
    made->grid_thw.assign(g, g + 3);
    made->n = g[0] * g[1] * g[2];
    made->width = model.facts.row_dim;
    made->timestamps = frames->timestamps;
    made->data.reset(new char[made->matrix_bytes()]);
    const Released released;
    put_rows(*frames, p, reinterpret_cast<float *>(made->data.get()));
    return made.release();
}

/* Reads the sampled frames of a clip in memory, without a model. The processor limits the pixels of
 * all frames together, or of each frame. */
static Frames *
read_frames(nb::handle decoder, nb::bytes source, bool over_all, int patch_size,
            int temporal_patch_size, int merge_size, nb::dict options)
{
    auto frames = std::make_unique<Frames>();
    qv_preprocess p = qv_preprocess_default(false);
    p.processor = over_all ? QV_PROCESSOR_QWEN3_VL : QV_PROCESSOR_QWEN2_VL;
    p.patch_size = patch_size;
    p.temporal_patch_size = temporal_patch_size;
    p.merge_size = merge_size;
    open_and_read(p, p, decoder, "the clip", source, false, options, *frames);
    return frames.release();
}

void
bind_frames(nb::module_ &m)
{
    nb::class_<Frames>(m, "Frames")
        .def_prop_ro("is_image", [](const Frames &f) { return f.is_image; })
        .def_prop_ro("timestamps", [](const Frames &f) { return f.timestamps; })
        .def("array",
             [](nb::handle self) {
                 Frames &f = nb::cast<Frames &>(self);
                 return array_of(f.data.data(),
                                 { (size_t)f.n_frames, (size_t)f.height, (size_t)f.width, 3 },
                                 nb::dtype<uint8_t>(), self);
             })
        /* frames in the file, their rate, the header's rate, width and height */
        .def("source", [](const Frames &f) {
            return nb::make_tuple(f.source_frames, f.source_fps, f.header_fps, f.source_width,
                                  f.source_height);
        });
    m.def("read_frames", read_frames, nb::rv_policy::take_ownership);
    m.def("frames_stream", frames_stream);
    m.def("prepare", prepare, nb::rv_policy::take_ownership);
    m.def("preprocess", preprocess, nb::arg("model"), nb::arg("decoder").none(), nb::arg("key"),
          nb::arg("source"), nb::arg("is_path"), nb::arg("options"), nb::rv_policy::take_ownership);
}

} // namespace qvpy
