/* SPDX-License-Identifier: MIT */
/*
 * A vision tower in a GGUF file, as llama.cpp's converter writes it ("mmproj"). This finds the
 * file, and reads its keys as config.c and preprocessor.c read the files that it was made from.
 */
#ifndef QV_TOWERS_MMPROJ_H
#define QV_TOWERS_MMPROJ_H

#include "qwenvit.h"

/* Sets *file to the GGUF file that a path means, which the caller free()s. A file means itself;
 * a folder without safetensors means its file with "mmproj" in the name, or its only one. *file
 * is NULL if the path is a folder as Hugging Face has it. QV_EFORMAT if there are several; it
 * names them. */
qv_status qv_mmproj_find(const char *path, char **file, qv_error *err);

struct qv_config;

/* Reads a file's keys into what qv_config_read makes of a folder's files, with the file's note and
 * warning. QV_EUNSUPPORTED if it has no vision tower, or one of an unknown family. */
qv_status qv_mmproj_read(const char *path, struct qv_config *c, qv_error *err);

#endif
