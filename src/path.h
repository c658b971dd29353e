/* SPDX-License-Identifier: MIT */
/* Joins, splits and shows paths of files. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Returns dir/name, which the caller free()s, or NULL if out of memory. */
char *qv_path_join(const char *dir, const char *name);

/* Returns the folder of a path, such as "a/" or ".", which the caller free()s, or NULL if out of
 * memory. */
char *qv_path_folder(const char *path);

/* Returns the text after the last slash: "" for a path that ends in a slash. */
const char *qv_path_name(const char *path);

/* Finds the last name of a path without trailing slashes: n bytes, 0 for "/". */
const char *qv_path_last(const char *path, size_t *n);

/* Returns whether the name exists. Dangling links and names hidden by permissions count as
 * existing. */
bool qv_path_exists(const char *path);

/* Returns a file's name as text, which the caller free()s; bytes that are not UTF-8 become %XX.
 * NULL if out of memory. */
char *qv_utf8_text(const char *bytes);
