/* SPDX-License-Identifier: MIT */
/* Inspects processes through /proc. Include this file after test.h. */
#pragma once

#include <dirent.h>
#include <unistd.h>

struct child {
    int pid;
    char state; /* Z: it has ended, and is not waited for yet */
    DIR *dir;
};

/* Goes to the next child of a process; *c is all zeros before the first one. */
static inline bool
next_child(int parent, struct child *c)
{
    int of = 0;
    c->dir = c->dir ? c->dir : opendir("/proc");
    assert_non_null(c->dir);
    for (const struct dirent *e; (e = readdir(c->dir)) != NULL;) {
        char path[300];
        snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
        FILE *f = *e->d_name >= '1' && *e->d_name <= '9' ? fopen(path, "r") : NULL;
        const bool is_child =
            f && fscanf(f, "%d (%*[^)]) %c %d", &c->pid, &c->state, &of) == 3 && of == parent;
        if (f)
            fclose(f);
        if (is_child)
            return true;
    }
    closedir(c->dir);
    return false;
}

static inline int
count_descriptors(int pid)
{
    char path[64];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

/* Returns how many of this process's maps are of a file with this name. */
static inline int
count_maps(const char *name)
{
    char line[1024];
    int n = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        n += strstr(line, name) != NULL;
    fclose(f);
    return n;
}
