/* SPDX-License-Identifier: MIT */
/* Refuses outputs that would overwrite an input (a clip, a list, or a file of a model or a cache),
 * and two outputs to one file. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "error.h"
#include "list.h"
#include "path.h"
#include "tool.h"

/* Identifies a file or folder, so that two names of one file compare equal. */
struct place {
    dev_t device;
    ino_t inode;
    const char *name; /* "" if it exists; else its name in the folder with this inode */
    const char *path;
};

static int
by_place(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->device != y->device)
        return x->device < y->device ? -1 : 1;
    return x->inode != y->inode ? (x->inode < y->inode ? -1 : 1) : strcmp(x->name, y->name);
}

/* Finds an existing file or folder. Devices and pipes are ignored: writing to them loses
 * nothing. */
static bool
find(const char *path, struct place *out)
{
    struct stat st;
    if (!path || stat(path, &st) || !(S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)))
        return false;
    *out = (struct place){ .device = st.st_dev, .inode = st.st_ino, .name = "", .path = path };
    return true;
}

/* Finds an output, which need not exist. */
static bool
find_output(const char *path, struct place *out)
{
    struct stat st;
    if (!path || !stat(path, &st))
        return find(path, out);
    char *folder = qv_path_folder(path);
    const bool there = find(folder, out);
    free(folder);
    if (there)
        out->name = qv_path_name(path);
    else
        *out = (struct place){ .name = path };
    out->path = path;
    return true;
}

/* Returns whether a file with this name in a cache's folder belongs to the cache. Other files there
 * may be the caller's, such as the --json file, to which each run appends. */
static bool
is_of_cache(const char *name)
{
    return !strcmp(name, "qwenvit-cache.json") || !strncmp(name, "part-", 5);
}

/* Returns whether a file with this name in a model's folder would be read with the model. */
static bool
is_of_model(const char *name)
{
    static const char *const ends[] = { "config.json", ".index.json", ".gguf" };
    const size_t n = strlen(name);
    bool is = !strncmp(name, "model", 5) && n > 12 && !strcmp(name + n - 12, ".safetensors");
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        is = is || (n >= strlen(ends[i]) && !strcmp(name + n - strlen(ends[i]), ends[i]));
    return is;
}

static qv_status
refuse(const struct place *output, const char *what, const char *of, qv_error *err)
{
    return qv_fail(err, QV_EINVAL, "%s would be %s %s, which is an input: choose another output",
                   output->path, what, of);
}

/* Fails if an output is a file in an input folder: any file next to a model, whose weights may have
 * any name, but only a cache's own files. Also fails if a new output would be taken for a file of
 * the model or cache. */
static qv_status
check_folder(const char *folder, bool cache, const struct place *outputs, size_t n, qv_error *err)
{
    DIR *d = folder ? opendir(folder) : NULL;
    qv_status status = QV_OK;
    struct place of;
    if (!find(folder, &of))
        of = (struct place){ .name = "" };
    for (const struct place *o = outputs; o < outputs + n && !status; o++)
        if (of.path && *o->name && o->device == of.device && o->inode == of.inode &&
            (cache ? is_of_cache(o->name) : is_of_model(o->name)))
            status = refuse(o, "taken for a file of", folder, err);
    /* a GGUF file is not a folder; the reader reports a missing or unreadable folder */
    if (folder && !d && errno != ENOTDIR && errno != ENOENT && errno != EACCES)
        status = qv_fail(err, qv_status_of_errno(errno), "%s: cannot be listed: %s", folder,
                         strerror(errno));
    for (struct dirent *e; d && !status && (e = readdir(d)) != NULL;) {
        const bool may_be = !cache || is_of_cache(e->d_name);
        char *path = may_be ? qv_path_join(folder, e->d_name) : NULL;
        const struct place *same = NULL;
        if (find(path, &of) && !tool_is_folder(path))
            same = bsearch(&of, outputs, n, sizeof *outputs, by_place);
        if (same)
            status = refuse(same, "overwritten, but it is a file of", folder, err);
        free(path);
    }
    if (d)
        closedir(d);
    return status;
}

/* Fails if two of the sorted outputs are one file. */
static qv_status
check_apart(const struct place *outputs, size_t n, qv_error *err)
{
    for (size_t i = 1; i < n; i++)
        if (!by_place(&outputs[i - 1], &outputs[i]))
            return qv_fail(err, QV_EINVAL,
                           "%s and %s are two outputs to the same file: choose another output",
                           outputs[i - 1].path, outputs[i].path);
    return QV_OK;
}

/* NULL names are skipped. */
static qv_status
check_outputs(const struct tool_options *o, const char *const *outputs, size_t n_outputs,
              const char *const *inputs, size_t n_inputs, qv_error *err)
{
    /* a cache is read too, and files are copied from the folder of --config */
    const char *const folders[] = { o->model, o->config, o->out };
    struct place *places = malloc((n_outputs + 1) * sizeof *places), in;
    size_t n = 0;
    if (!places)
        return qv_fail(err, QV_ENOMEM, "no memory for the names of %zu outputs", n_outputs);
    for (size_t i = 0; i < n_outputs; i++)
        n += find_output(outputs[i], &places[n]);
    qsort(places, n, sizeof *places, by_place);
    qv_status status = check_apart(places, n, err);
    for (size_t i = 0; n && i < n_inputs && !status; i++) {
        const struct place *same = NULL;
        if (find(inputs[i], &in))
            same = bsearch(&in, places, n, sizeof *places, by_place);
        if (same)
            status = qv_fail(err, QV_EINVAL,
                             "%s would be overwritten, but it is an input (%s): choose another "
                             "output",
                             same->path, inputs[i]);
    }
    for (size_t i = 0; n && i < sizeof folders / sizeof *folders && !status; i++)
        status = check_folder(folders[i], folders[i] == o->out, places, n, err);
    free(places);
    return status;
}

qv_status
tool_check_token_file(const char *path, qv_error *err)
{
    return strchr(qv_path_name(path), '.') ? tool_check_ending(path, ".safetensors", err) : QV_OK;
}

qv_status
tool_check_list_outputs(const struct tool_options *o, const struct tool_list *list,
                        const char *const *more, size_t n_more, qv_error *err)
{
    const char *const own[] = { o->drawing, o->to.json_file, o->to.failures };
    enum { OWN = sizeof own / sizeof *own };
    const char **names = malloc((OWN + n_more + list->n + 1) * sizeof *names);
    if (!names)
        return qv_fail(err, QV_ENOMEM, "no memory for the names of %zu inputs", list->n);
    const char **inputs = names + OWN + n_more;
    memcpy(names, own, sizeof own);
    for (size_t i = 0; i < n_more; i++)
        names[OWN + i] = more[i];
    for (size_t i = 0; i < list->n; i++)
        inputs[i] = list->at[i].path;
    inputs[list->n] = o->list;
    const qv_status status = check_outputs(o, names, OWN + n_more, inputs, list->n + 1, err);
    free(names);
    return status;
}

qv_status
tool_check_named_outputs(const struct tool_options *o, qv_error *err)
{
    const char *outputs[TOOL_MOST_NAMED], *inputs[TOOL_MOST_NAMED];
    const size_t n = tool_named_files(o, TOOL_OUTPUT, outputs);
    static const enum tool_file kinds[] = { TOOL_INPUT, TOOL_CLIPS };
    qv_status s = QV_OK;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !s; i++)
        s = check_outputs(o, outputs, n, inputs, tool_named_files(o, kinds[i], inputs), err);
    return s ? s : check_outputs(o, outputs, n, o->arguments, o->n_arguments, err);
}
