/* SPDX-License-Identifier: MIT */
/* Declares how a process tries the rows of decoder/lock.inc. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* A kind of process. One that is FREE is not locked down, and FILES_ONLY is a GPU process before
 * its filter of calls. */
enum locked_kind { LOCKED_FREE, LOCKED_CLIP, LOCKED_GPU, LOCKED_FILES_ONLY };

/* The resources that a process needs to try rows. */
extern struct locked {
    pid_t victim; /* another process, of the same user */
    int socket;   /* a separate socket */
    int shared;   /* the shared memory, of a fixed size; `socket` if there is none */
    int none[2];
    char text[4];
} locked;

struct locked_row {
    const char *text;  /* of the class, or of the way */
    long (*way)(void); /* NULL: a class, which has the next members */
    int shut_in;       /* kinds of process (QVM_LOCK_CLIP) */
    bool depends;      /* on the system: an unlocked process may be refused as well */
    int abi; /* of Landlock, which alone refuses the way; 0: the filter of calls does too */
};

extern const struct locked_row locked_rows[];
extern const int locked_n_rows;

/* Tries all rows that are shut in a process of this kind. Writes the names of the rows that are
 * open to text[size], each after a space, and returns the number of rows tried. For LOCKED_FREE it
 * writes the rows that are shut, but must be open. */
int locked_try(enum locked_kind kind, char *text, size_t size);
/* Returns this system's version of Landlock; 0: none. */
int locked_landlock(void);
