/* SPDX-License-Identifier: MIT */
/* Refuses to write where the command reads: over a clip, a list, or a file of a model or a cache. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "error.h"
#include "list.h"
#include "tool.h"

/* A file or folder that exists, by which names of the same one are told to be equal. */
struct place {
    dev_t device;
    ino_t inode;
    const char *path;
};

static int
by_place(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->device != y->device)
        return x->device < y->device ? -1 : 1;
    return (x->inode > y->inode) - (x->inode < y->inode);
}

/* Returns false for what does not exist, and for devices and pipes, which nothing is lost in. */
static bool
find(const char *path, struct place *out)
{
    struct stat st;
    if (!path || stat(path, &st) || !(S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)))
        return false;
    *out = (struct place){ .device = st.st_dev, .inode = st.st_ino, .path = path };
    return true;
}

static bool
ends_in(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

/* Returns whether a file of this name, in a model's or a cache's folder, is likely to be its own. */
static bool
is_of_folder(const char *name)
{
    static const char *const ends[] = { "config.json", ".index.json", "tokenizer.json",
                                        "qwenvit-cache.json", ".gguf" };
    bool is =
        ends_in(name, ".safetensors") && (!strncmp(name, "model", 5) || !strncmp(name, "part-", 5));
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        is = is || ends_in(name, ends[i]);
    return is;
}

/* Finds the folder of a file; it is "." where the path names none. */
static bool
find_folder_of(const char *path, struct place *out)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, slash > path ? (size_t)(slash - path) : 1) : strdup(".");
    const bool found = find(folder, out);
    free(folder);
    return found;
}

static qv_status
check_folder(const char *folder, const struct place *outputs, size_t n, qv_error *err)
{
    struct place in, of;
    if (!find(folder, &in))
        return QV_OK;
    for (size_t i = 0; i < n; i++) {
        const char *path = outputs[i].path, *slash = strrchr(path, '/');
        if (is_of_folder(slash ? slash + 1 : path) && find_folder_of(path, &of) &&
            !by_place(&in, &of))
            return qv_fail(err, QV_EINVAL,
                           "%s would be overwritten, but it is a file of %s, which is read: name "
                           "another output",
                           qv_path_tail(path), qv_path_tail(folder));
    }
    return QV_OK;
}

qv_status
tool_check_outputs(const struct tool_options *o, const char *const *outputs, size_t n_outputs,
                   const char *const *inputs, size_t n_inputs, qv_error *err)
{
    /* --out is read by cache --get, and the folder of --config is copied from */
    const char *const folders[] = { o->model, o->against_model, o->out, o->config };
    struct place *there = malloc((n_outputs + 1) * sizeof *there), in;
    size_t n = 0;
    qv_status status = QV_OK;
    if (!there)
        return qv_fail(err, QV_ENOMEM, "no memory for the names of %zu outputs", n_outputs);
    for (size_t i = 0; i < n_outputs; i++)
        n += find(outputs[i], &there[n]);
    qsort(there, n, sizeof *there, by_place);
    for (size_t i = 0; n && i < n_inputs && !status; i++) {
        const struct place *same = NULL;
        if (find(inputs[i], &in))
            same = bsearch(&in, there, n, sizeof *there, by_place);
        if (same)
            status = qv_fail(err, QV_EINVAL,
                             "%s would be overwritten, but it is an input (%s): name another "
                             "output",
                             qv_path_tail(same->path), qv_path_tail(inputs[i]));
    }
    for (size_t i = 0; n && i < sizeof folders / sizeof *folders && !status; i++)
        status = check_folder(folders[i], there, n, err);
    free(there);
    return status;
}

qv_status
tool_check_list_outputs(const struct tool_options *o, const struct tool_list *list, qv_error *err)
{
    const char *const outputs[] = { o->drawing, o->trace, o->json_file };
    const char **inputs = malloc((list->n + 1) * sizeof *inputs);
    if (!inputs)
        return qv_fail(err, QV_ENOMEM, "no memory for the names of %zu inputs", list->n);
    for (size_t i = 0; i < list->n; i++)
        inputs[i] = list->at[i].path;
    const qv_status status =
        tool_check_outputs(o, outputs, sizeof outputs / sizeof *outputs, inputs, list->n, err);
    free(inputs);
    return status;
}

qv_status
tool_check_named_outputs(const struct tool_options *o, size_t first, qv_error *err)
{
    const char *const outputs[] = { o->output, o->drawing,   o->trace,
                                    o->out,    o->json_file, o->make_clip };
    const char *const inputs[] = { o->list,          o->model,  o->verify_clip, o->against,
                                   o->against_model, o->shapes, o->pack,        o->from };
    enum { OUTPUTS = sizeof outputs / sizeof *outputs, INPUTS = sizeof inputs / sizeof *inputs };
    const qv_status status = tool_check_outputs(o, outputs, OUTPUTS, inputs, INPUTS, err);
    return status || o->n_arguments <= first
               ? status
               : tool_check_outputs(o, outputs, OUTPUTS, o->arguments + first,
                                    o->n_arguments - first, err);
}
