/* SPDX-License-Identifier: MIT */
/* Declarations that the files of the binding share. The binding is thin: arguments are checked and
 * described in qwenvit/ (Python). */
#ifndef QWENVIT_PYTHON_BINDING_H
#define QWENVIT_PYTHON_BINDING_H

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unistd.h>
#include <vector>

#include "qwenvit_clips.h"

extern "C" {
#include "dtype.h"
#include "clips/option_list.h"
}

namespace qvpy
{

namespace nb = nanobind;

class Decoder;
qv_decoder *decoder_of(nb::handle decoder); /* NULL for None */

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

/* ---- the interpreter, which other threads may end (interpreter.cpp) -------------------------- */

/* CPython, before 3.14, ends a thread that wants the interpreter after the interpreter has ended:
 * it unwinds the thread's stack, and C++ ends the process when that meets a destructor. Here such a
 * thread waits for ever instead, as 3.14 has it do. nanobind's gil_scoped_release and
 * gil_scoped_acquire must not be used: the latter may even read what the interpreter has freed. */

/* A scope without the interpreter. The process ends only when the thread has left it. */
class Released
{
  public:
    Released();
    ~Released();
    Released(const Released &) = delete;
    Released &operator=(const Released &) = delete;
};

/* Within a scope of Released: runs `call` with the interpreter. If the interpreter has ended, or
 * ends meanwhile, the thread waits for ever, and the process closes its job (NULL: it has none). */
void with_interpreter(const std::function<void()> &call, qv_job *job = nullptr);

/* Jobs that are open when the process ends are closed then. Called with the interpreter. */
struct Results; /* what a job shares with its threads (results.h) */
void job_opened(Results *job);
void job_closed(Results *job);
void wait_at_end(); /* called once, by the module */

/* Returns words as a Python text: paths in them may have bytes that are not UTF-8. */
inline nb::str
as_text(const char *words)
{
    return nb::steal<nb::str>(PyUnicode_DecodeUTF8(words, (Py_ssize_t)strlen(words), "replace"));
}

/* Returns Python's bytes of a path or a key, which `what` names. QV_EINVAL if they have a NUL. */
std::string text_of(nb::bytes bytes, const char *what);

/* What a file of tokens says of the model that made them, in the names that qv_token_file_origin
 * has. */
struct Origin {
    std::string model, digest, backend, device;
    qv_dtype precision = QV_F32;
};

/* Tokens of one source, or of several items: [1 + n_deepstack][n, width] in one block of memory. */
struct Tokens {
    int64_t n = 0, width = 0;
    int n_deepstack = 0;
    qv_dtype dtype = QV_F32;
    std::unique_ptr<char[]> data;
    std::vector<int64_t> grid_thw; /* [items, 3] */
    std::vector<double> timestamps;
    bool cancelled = false;
    qv_outcome outcome = {};
    std::string key, error;
    std::string path;                     /* the path of a source that is a file, else "" */
    std::shared_ptr<const Origin> origin; /* NULL: pixels, which no model made */
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
    void allocate(const qv_model_info &info, int64_t rows, qv_dtype type);
};

/* RGB bytes [n_frames, height, width, 3] of a size that a tower takes. */
struct Frames : qv_outcome {
    Frames() : qv_outcome()
    {
    }
    std::vector<uint8_t> data;
    std::vector<double> timestamps; /* [n_frames], or empty */

    qv_item
    item() const
    {
        qv_item item = {};
        item.data = data.data();
        item.n_frames = n_frames;
        item.is_image = is_image;
        memcpy(item.grid_thw, grid_thw, sizeof item.grid_thw);
        return item;
    }
};

struct Patches; /* rows of pixel_values (model.cpp) */

/* A device and the weights on it. It runs one call at a time, from any thread; other calls wait. */
class Model
{
  public:
    /* Paths are bytes, since they may not be UTF-8. */
    Model(nb::bytes dir, const std::string &backend, int device, const std::string &dtype,
          int threads, uintptr_t stream, nb::bytes tune_file, nb::bytes kernel_folder,
          const std::vector<double> &image_mean, const std::vector<double> &image_std, bool stored);
    ~Model();
    void close();
    nb::dict info();

    /* Turns rows of patches into tokens. */
    Tokens *forward(nb::object rows, bool u16_is_bf16, const std::vector<int64_t> &grid_thw,
                    const std::string &dtype);
    /* Writes tokens to the address that allocate(n) returns, and each DeepStack output behind them,
     * all [n, out_hidden] of dtype. */
    void forward_at(nb::object rows, const std::vector<int64_t> &grid_thw, nb::callable allocate,
                    const std::string &dtype);
    /* Calls `look` with the model, without the interpreter. The model may be at work, so only its
     * description may be read. */
    void look_at(const std::function<void(const qv_model *)> &look);

    /* A call's turn at the model, which ends with the scope however that is left. It waits for the
     * calls of other threads, until a signal's handler raises. Throws if the model is closed, is
     * lent to a generator that is open, or has a call of this thread under way, which a signal's
     * handler or a progress function has interrupted. */
    class Turn
    {
      public:
        explicit Turn(Model &model);
        ~Turn()
        {
            of.in_a_turn = false; /* under the lock still */
        }
        Turn(const Turn &) = delete;
        Turn &operator=(const Turn &) = delete;
        qv_model *
        get() const
        {
            return of.model;
        }

      private:
        Model &of;
        std::unique_lock<std::recursive_timed_mutex> lock;
    };
    /* In a turn: lends the model to a generator's job until the job is closed, or is_open() is
     * false. The generator then was left without closing it, by an exception between any two of its
     * bytecodes, and the next turn closes the job. */
    void lend(std::shared_ptr<Results> job, nb::object is_open);
    void must_be_ours() const; /* throws after a fork */

    qv_model_info facts;
    std::shared_ptr<const Origin> origin;
    std::string note, warning; /* of the model; facts' own are gone with it */

  private:
    qv_context *context = nullptr;
    qv_model *model = nullptr;
    pid_t owner;
    std::recursive_timed_mutex busy; /* recursive, because a signal handler may make a call during
                                      * a call */
    bool in_a_turn = false;          /* seen only by the thread whose turn it is */
    std::shared_ptr<Results> lent;   /* the job of a generator; NULL: none */
    nb::object is_open;              /* returns whether the generator is open */
    bool interrupted = false;        /* a signal handler raised an exception */
    std::chrono::steady_clock::time_point heard; /* when signals were checked last */
    qv_context_info device_facts;
    std::unique_lock<std::recursive_timed_mutex> lock_for_call();
    void must_be_free();
    void take_back();
    bool is_interrupted();
    void encode(const Patches &x, const std::string &dtype,
                const std::function<char *(int64_t, qv_dtype)> &allocate);
};

nb::dict progress_of(const qv_job_progress &p);
qv_dtype parse_dtype(const std::string &name, bool or_auto);
qv_status parse_status(const std::string &name);
/* Reads options by the names that encode() gives them; or, if path and key are given, the fields of
 * a row, with these two. */
void take_clip_options(nb::dict options, qv_clip_options *o, std::string *path = nullptr,
                       std::string *key = nullptr);

void bind_model(nb::module_ &m);
void bind_frames(nb::module_ &m);
void bind_tokens(nb::module_ &m);
void bind_decoder(nb::module_ &m);
void bind_job(nb::module_ &m);
void bind_options(nb::module_ &m);
void bind_cache(nb::module_ &m);
void bind_cache_reader(nb::module_ &m);

/* Returns a Python array over `data`, which `owner` keeps alive. */
nb::object array_of(void *data, std::vector<size_t> shape, nb::dlpack::dtype dtype,
                    nb::handle owner);
/* Returns the array dtype for a dtype of tokens. bits: bf16 as 16-bit integers, for libraries
 * without bf16. */
nb::dlpack::dtype array_dtype(qv_dtype dtype, bool bits);
/* Accepts any object with DLPack or a buffer; throws QV_EINVAL for others. */
nb::ndarray<> take_array(nb::handle object, const char *what);
/* Throws QV_EINVAL for an array that is not contiguous. */
void must_be_contiguous(const nb::ndarray<> &array, const char *what);

} // namespace qvpy

#endif
