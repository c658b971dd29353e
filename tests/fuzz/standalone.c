/* SPDX-License-Identifier: MIT */
/* replay_NAME FILE|FOLDER...: runs a harness over files, and over the files in folders in the order
 * of their names, without libFuzzer. It ends as the harness does. */
#include <dirent.h>

#include "fuzz.h"

static size_t n_files;

static int
replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END)) {
        perror(path);
        return 1;
    }
    const long size = ftell(f);
    rewind(f);
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1); /* The size is exact, so that a sanitizer
                                                          * sees a read beyond it. */
    const bool good = size >= 0 && data && fread(data, 1, (size_t)size, f) == (size_t)size;
    fclose(f);
    if (good) {
        fprintf(stderr, "%s\n", path); /* The last name that is printed is the file that failed. */
        LLVMFuzzerTestOneInput(data, (size_t)size);
        n_files++;
    } else {
        fprintf(stderr, "%s: cannot be read\n", path);
    }
    free(data);
    return !good;
}

static int
is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static int
replay_folder(const char *path)
{
    struct dirent **entries;
    int bad = 0, n = scandir(path, &entries, is_visible, alphasort);
    if (n < 0) {
        perror(path);
        return 1;
    }
    for (int i = 0; i < n; i++) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
        bad += replay_file(name);
        free(entries[i]);
    }
    free(entries);
    return bad;
}

int
main(int argc, char **argv)
{
    int bad = 0;
    for (int i = 1; i < argc; i++) {
        struct stat st;
        bad += !stat(argv[i], &st) && S_ISDIR(st.st_mode) ? replay_folder(argv[i])
                                                          : replay_file(argv[i]);
    }
    fprintf(stderr, "%zu inputs replayed\n", n_files);
    return bad || !n_files;
}
