/* SPDX-License-Identifier: MIT */
/* Makes a list of the clips and images that arguments name, which may be folders of them. */
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

/* Files with other extensions, such as captions, archives and notes, are skipped. */
static const char endings[] = " 3g2 3gp apng asf av1 avi avif bmp flv gif h264 h265 heic heif hevc "
                              "ivf jfif jpe jpeg jpg m2ts m2v "
                              "m4v mj2 mjpeg mjpg mkv mov mp4 mpe mpeg mpg mts mxf nut obu ogg ogv "
                              "pbm pgm png pnm ppm qt tif "
                              "tiff ts vob webm webp wmv y4m ";

bool
tool_is_media(const char *name)
{
    const char *dot = strrchr(name, '.');
    char word[8];
    if (!dot || (size_t)snprintf(word, sizeof word, " %s ", dot + 1) >= sizeof word)
        return false;
    for (char *c = word; *c; c++)
        *c = (char)(*c >= 'A' && *c <= 'Z' ? *c - 'A' + 'a' : *c);
    return strstr(endings, word) != NULL;
}

static qv_status add_folder(struct tool_list *list, const char *folder, const char *key,
                            bool recursive, qv_error *err);

/* Adds one entry of the folder if it is a clip, an image or a folder to search. Links to folders
 * are not followed. */
static qv_status
add(struct tool_list *list, const char *path, const char *key, const char *name, bool recursive,
    qv_error *err)
{
    struct stat st;
    if (!lstat(path, &st) && S_ISDIR(st.st_mode))
        return recursive ? add_folder(list, path, key, true, err) : QV_OK;
    return tool_is_media(name) && !stat(path, &st) && S_ISREG(st.st_mode)
               ? tool_list_add_file(list, path, key, err)
               : QV_OK;
}

static qv_status
add_folder(struct tool_list *list, const char *folder, const char *key, bool recursive,
           qv_error *err)
{
    struct dirent **names = NULL;
    const int n = scandir(folder, &names, NULL, alphasort);
    if (n < 0)
        return qv_fail(err, qv_status_of_errno(errno), "%s: cannot be listed: %s", folder,
                       strerror(errno));
    qv_status s = QV_OK;
    for (int i = 0; i < n; i++) {
        const char *name = names[i]->d_name;
        const bool hidden = *name == '.';
        char *path = s || hidden ? NULL : qv_path_join(folder, name);
        char *inner = !path ? NULL : *key ? qv_path_join(key, name) : strdup(name);
        if (path && inner)
            s = add(list, path, inner, name, recursive, err);
        else if (!s && !hidden)
            s = qv_no_memory(folder, err);
        free(path);
        free(inner);
        free(names[i]);
    }
    free(names);
    return s;
}

/* Returns the last name of a path, for free(); "" for one like "." or "/". */
static char *
last_name(const char *path)
{
    size_t n;
    const char *name = qv_path_last(path, &n);
    return strndup(name, strspn(name, ".") >= n ? 0 : n);
}

qv_status
tool_list_of_paths(const char *const *paths, size_t n, bool recursive, bool names,
                   struct tool_list *out, qv_error *err)
{
    qv_status s = QV_OK;
    for (size_t i = 0; i < n && !s; i++) {
        const bool folder = tool_is_folder(paths[i]);
        const size_t before = out->n;
        char *key = names ? last_name(paths[i]) : strdup(paths[i]);
        out->has_folders = out->has_folders || folder;
        s = !key     ? qv_no_memory(paths[i], err)
            : folder ? add_folder(out, paths[i], key, recursive, err)
                     : tool_list_add_file(out, paths[i], key, err);
        free(key);
        if (!s && out->n == before)
            s = qv_fail(err, QV_EFORMAT,
                        "%s: no file in this folder has a clip's or image's extension%s", paths[i],
                        recursive ? "" : " (--recursive also searches its subfolders)");
    }
    return s ? s : names ? QV_OK : tool_list_check_once(out, NULL, "key", err);
}
