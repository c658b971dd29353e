/* SPDX-License-Identifier: MIT */
/* Removes a folder and its contents. */
#pragma once

#include <ftw.h>
#include <stdio.h>

static inline int
remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    return remove(path);
}

/* Returns 0 on success. */
static inline int
remove_tree(const char *folder)
{
    return nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
