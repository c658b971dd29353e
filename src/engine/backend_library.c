/* SPDX-License-Identifier: MIT */
/* Backends in separate libraries, so that the libraries they need are loaded only when used, and
 * may otherwise be missing. */
#include "backend.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "files/installed.h"

#define CUDA_LIBRARY "libqwenvit_cuda.so"
/* The NVIDIA driver's library. It is tried first, because without it nothing else needs to be
 * loaded: cuBLASLt alone takes a third of a second. */
#define CUDA_DRIVER "libcuda.so.1"

/* ---- finding the library --------------------------------------------------------------------- */

static qv_status
find_library(const char *folder, char *path, size_t size, qv_error *err)
{
    if (folder) {
        snprintf(path, size, "%s/%s", folder, CUDA_LIBRARY);
        return !access(path, R_OK)
                   ? QV_OK
                   : qv_fail(err, QV_ENODEVICE, "no %s in %s", CUDA_LIBRARY, folder);
    }
    if (qv_find_installed(CUDA_LIBRARY, QV_BACKENDS_FROM_LIB, QV_BACKENDS_FROM_BIN, R_OK, path,
                          size))
        return QV_OK;
    return qv_fail(err, QV_ENODEVICE,
                   "%s is not installed: it is neither next to this program or library nor at "
                   "%s (install the Debian package qwenvit-cuda, or build with QV_CUDA=ON)",
                   CUDA_LIBRARY, path);
}

bool
qv_backend_is_installed(const struct qv_backend *backend, const char *folder)
{
    char path[PATH_MAX];
    return backend != &qv_backend_library_cuda || !find_library(folder, path, sizeof path, NULL);
}

/* ---- opening the library --------------------------------------------------------------------- */

/* The linker's message names a missing library but not where to get it: this adds the advice. */
static const char *
advice(const char *words)
{
    static const struct {
        const char *name, *advice;
    } known[] = {
        { "cudnn", ": cuDNN 9.15 or newer is needed (NVIDIA's package libcudnn9)" },
        { "cublas", ": cuBLAS of the CUDA version that the name ends in is needed (NVIDIA's "
                    "package libcublas)" },
        { "GLIBC", ": it was built on a newer system than this" },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strstr(words, known[i].name))
            return known[i].advice;
    return "";
}

static qv_status
load(const char *folder, const struct qv_backend **out, qv_error *err)
{
    char path[PATH_MAX];
    const char *own = NULL;
    qv_status status = find_library(folder, path, sizeof path, err);
    if (status)
        return status;
    if (!dlopen(CUDA_DRIVER, RTLD_NOW | RTLD_LOCAL))
        return qv_fail(err, QV_ENODEVICE, "no NVIDIA driver here: %s", dlerror());
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *words = dlerror();
        return qv_fail(err, QV_ENODEVICE, "%s cannot be opened: %.200s%s", path, words,
                       advice(words));
    }
    const struct qv_backend *(*entry)(const char *, const char **) = NULL;
    *(void **)&entry = dlsym(library, "qv_backend_entry"); /* POSIX requires this cast */
    if (!entry)
        return qv_fail(err, QV_ENODEVICE, "%s is not a qwenvit backend: it has no qv_backend_entry",
                       path);
    *out = entry(QV_BUILD_ID, &own);
    if (*out)
        return QV_OK;
    return qv_fail(err, QV_ENODEVICE,
                   "%s is from build %s, but this is build " QV_BUILD_ID
                   ": both must be from the same build",
                   path, own);
}

/* Loads the library once per process. It is never closed, because CUDA keeps threads, and functions
 * that it calls at exit. */
static qv_status
open_cuda(const struct qv_device_options *options, struct qv_device **out, qv_error *err)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const struct qv_backend *opened;
    qv_status status = QV_OK;
    pthread_mutex_lock(&lock);
    if (!opened)
        status = load(options->backends, &opened, err);
    const struct qv_backend *backend = opened;
    pthread_mutex_unlock(&lock);
    return status ? status : backend->open(options, out, err);
}

const struct qv_backend qv_backend_library_cuda = { .name = "cuda", .open = open_cuda };
