/* SPDX-License-Identifier: MIT */
/* write_clips [NAME...]: writes the named clips of make_clips.c, or all of them, to the working
 * folder and prints their names. */
#include <stdio.h>

#include "make_clips.h"

static void
write_one(const char *name)
{
    if (!clip_is_possible(name))
        return;
    clip_write(name);
    puts(name);
}

int
main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        write_one(argv[i]);
    for (size_t i = 0; argc == 1 && clip_name(i); i++)
        write_one(clip_name(i));
    return 0;
}
