/* SPDX-License-Identifier: MIT */
/* Declarations shared by the files of the binding. The binding is thin: Python (qwenvit/) checks
 * and documents the arguments. */
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "qwenvit_clips.h"

extern "C" {
#include "dtype.h"
#include "clips/decoders.h"
#include "clips/option_list.h"
#include "job/more.h"
}

namespace qvpy
{

namespace nb = nanobind;

struct Tower;
/* Returns the decoder in a Decoder object; NULL for None. */
std::shared_ptr<qv_decoder> decoder_of(nb::handle decoder);

/* An exception that becomes qwenvit.Error in Python. */
struct Failure {
    qv_status status;
    std::string text;
};

[[noreturn]] void fail(qv_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
inline void
check(qv_status status, const qv_error &err)
{
    if (status)
        throw Failure{ status, err.text };
}

/* Calls a function whose last parameter is a qv_error, and throws that error. */
template <typename Function, typename... Arguments>
void
checked(Function function, Arguments... arguments)
{
    qv_error err = {};
    check(function(arguments..., &err), err);
}

/* ---- dicts ----------------------------------------------------------------------------------- */

inline void
put_into(nb::dict &)
{
}

template <typename Value, typename... More>
void
put_into(nb::dict &d, const char *name, const Value &value, const More &...more)
{
    d[name] = value;
    put_into(d, more...);
}

/* Returns a dict of names and values in turn. */
template <typename... Pairs>
nb::dict
dict_of(const Pairs &...pairs)
{
    nb::dict d;
    put_into(d, pairs...);
    return d;
}
/* A member with its name, for dict_of. */
#define QVPY_MEMBER(of, member) #member, (of).member

/* ---- the interpreter, which another thread may end (interpreter.cpp) ------------------------- */

/* CPython before 3.14 ends a thread that requests the interpreter after the interpreter has ended:
 * it unwinds the thread's stack, and C++ aborts the process when that meets a destructor. Here such
 * a thread waits for ever instead, as in 3.14. nanobind's gil_scoped_release and gil_scoped_acquire
 * must not be used: the latter may even read memory that the interpreter has freed. */

/* A scope without the interpreter. The process ends only after the thread has left the scope. */
class Released
{
  public:
    Released();
    ~Released();
    Released(const Released &) = delete;
    Released &operator=(const Released &) = delete;
};

/* Within a scope of Released: runs `call` with the interpreter. If the interpreter has ended or
 * ends meanwhile, the thread waits for ever, and the process closes the thread's job (NULL: none).
 * */
void with_interpreter(const std::function<void()> &call, qv_job *job = nullptr);

/* Jobs that are still open when the process ends are closed then. */
struct Job; /* results.h */
void job_is_open(Job *job, bool is_open);
void wait_at_end(); /* called once, by the module */

/* Returns a message as a Python string; its paths may contain bytes that are not UTF-8. */
inline nb::str
as_text(const char *words)
{
    return nb::steal<nb::str>(PyUnicode_DecodeUTF8(words, (Py_ssize_t)strlen(words), "replace"));
}

inline std::string
text_of(const nb::bytes &bytes)
{
    return { bytes.c_str(), bytes.size() };
}

/* The metadata in a token file about the model that made it, named as in qv_token_file_origin. */
struct Origin {
    std::string model, digest, identity, backend, device;
    qv_dtype precision = QV_F32;
};

/* Tokens of one source, or of several items: [1 + n_deepstack][n, width] in one block of memory,
 * followed by the last block's rows, [n * patches, hidden], unless hidden is 0. */
struct Tokens {
    int64_t n = 0, width = 0;
    int64_t hidden = 0, patches = 0; /* patches per token */
    int n_deepstack = 0;
    qv_dtype dtype = QV_F32;
    std::unique_ptr<char[]> data;
    std::vector<int64_t> grid_thw; /* [items, 3] */
    std::vector<double> timestamps;
    qv_outcome outcome = {};
    std::string key, error;
    std::string path;                     /* the path of a file, otherwise "" */
    std::shared_ptr<const Origin> origin; /* NULL for pixels, which no model made */
    qv_status status = QV_OK;
    int64_t index = 0;       /* place among a job's sources */
    int64_t ahead_bytes = 0; /* as in qv_job_result */

    size_t
    matrix_bytes() const
    {
        return (size_t)n * (size_t)width * qv_dtype_bytes(dtype);
    }
    char *
    matrix(int i) const
    {
        return data.get() + (size_t)i * matrix_bytes();
    }
    size_t
    n_values() const
    {
        return (size_t)n * (size_t)((1 + n_deepstack) * width + patches * hidden);
    }
    void allocate(const qv_model_info &info, int64_t rows, qv_dtype type, bool with_hidden);
};

/* RGB bytes [n_frames, height, width, 3] of a size that a tower accepts. */
struct Frames : qv_outcome {
    Frames() : qv_outcome()
    {
    }
    std::vector<uint8_t> data;      /* on the host; if empty, the frames are in `there` */
    std::shared_ptr<uint8_t> there; /* in the memory of the tower's device */
    size_t there_bytes = 0;         /* size of `there` */
    std::shared_ptr<const Tower> tower;
    std::vector<double> timestamps; /* [n_frames], or empty */

    /* Copies the frames to the host if they are in a device's memory. */
    void to_host();

    /* Returns the frames, which keep their memory, as a source of a job or of a fill. */
    qv_job_source
    source() const
    {
        qv_job_source s = {};
        s.kind = QV_SOURCE_FRAMES;
        s.bytes = data.data();
        s.n_bytes = data.size();
        s.item = { there ? there.get() : data.data(), {}, n_frames, is_image };
        memcpy(s.item.grid_thw, grid_thw, sizeof grid_thw);
        s.timestamps_s = timestamps.empty() ? nullptr : timestamps.data();
        s.sampled_fps = sampled_fps;
        return s;
    }
};

struct Patches; /* rows of pixel_values (model.cpp) */

/* A device and the weights on it, shared by a Model, its jobs and the calls in progress, and freed
 * with the last of them. */
struct Tower {
    qv_context *context = nullptr;
    qv_model *model = nullptr;
    const pid_t owner = getpid();

    Tower() = default;
    ~Tower();
    Tower(const Tower &) = delete;
    Tower &operator=(const Tower &) = delete;
};

/* Throws if this process was forked from the one that loaded a model. */
void must_be_ours(pid_t owner);

/* Any number of threads may call it at once. */
class Model
{
  public:
    /* Paths are bytes, because they may not be UTF-8. */
    Model(nb::bytes dir, const std::string &backend, int device, const std::string &dtype,
          int threads, uintptr_t stream, nb::bytes kernel_folder,
          const std::vector<double> &image_mean, const std::vector<double> &image_std);
    void close();
    nb::dict info();

    /* Turns rows of patches into tokens; `hidden`: returns the last block's rows too. */
    Tokens *forward(nb::object rows, bool u16_is_bf16, const std::vector<int64_t> &grid_thw,
                    const std::string &dtype, bool hidden);
    /* allocate(n) returns two addresses. Writes the tokens, followed by each DeepStack output, to
     * the first, all [n, out_hidden] of dtype; `hidden`: writes the last block's rows to the
     * second. */
    void forward_at(nb::object rows, const std::vector<int64_t> &grid_thw, nb::callable allocate,
                    const std::string &dtype, bool hidden);
    /* Returns the device and the weights, for a call or a job. Throws after a fork, after close(),
     * and within a forward() of this thread. */
    std::shared_ptr<const Tower> tower() const;

    const pid_t owner = getpid();
    qv_model_info facts;
    std::shared_ptr<const Origin> origin;
    std::string note, warning, identity; /* copies: those in facts are freed with the model */

  private:
    /* The addresses of the tokens, which DeepStack's outputs follow, and of the last block's rows.
     * */
    using Places = std::pair<char *, char *>;
    std::shared_ptr<const Tower> held;
    qv_context_info device_facts;
    void encode(const Patches &x, const std::string &dtype, bool hidden,
                const std::function<Places(int64_t, qv_dtype)> &allocate) const;
};

/* Code that runs within a forward() of this thread, such as a signal handler or a destructor, must
 * not wait for a device that forward() may be using. So its calls throw, and the references that it
 * drops, perhaps the last ones to a job or a tower, are kept until forward() returns. */
void must_not_compute();
void let_go(std::shared_ptr<const void> held);

nb::dict progress_of(const qv_job_progress &p);
qv_dtype parse_dtype(const std::string &name, bool or_auto);
qv_status parse_status(const std::string &name);
/* Reads options by encode()'s names; or, if path and key are not NULL, the fields of a row,
 * including these two. */
void take_clip_options(nb::dict options, qv_clip_options *o, std::string *path = nullptr,
                       std::string *key = nullptr);

void bind_model(nb::module_ &m);
void bind_frames(nb::module_ &m);
void bind_tokens(nb::module_ &m);
void bind_job(nb::module_ &m);
void bind_options(nb::module_ &m);
void bind_cache(nb::module_ &m);
void bind_cache_reader(nb::module_ &m);

/* Returns a Python array over `data`, which `owner` keeps alive. */
nb::object array_of(void *data, std::vector<size_t> shape, nb::dlpack::dtype dtype,
                    nb::handle owner);
/* Returns the array dtype for tokens. bits: bf16 as 16-bit integers, for libraries without bf16. */
nb::dlpack::dtype array_dtype(qv_dtype dtype, bool bits);
/* Accepts any object with DLPack or a buffer; throws QV_EINVAL for other objects. */
nb::ndarray<> take_array(nb::handle object, const char *what);
/* Throws QV_EINVAL for an array that is not contiguous. */
void must_be_contiguous(const nb::ndarray<> &array, const char *what);

} // namespace qvpy
