/* SPDX-License-Identifier: MIT */
/*
 * A vision tower in a GGUF file, as llama.cpp's converter writes it ("mmproj"). This finds the
 * file, and turns its keys back into the config.json and the preprocessor files that it was made
 * from.
 */
#ifndef QV_TOWERS_MMPROJ_H
#define QV_TOWERS_MMPROJ_H

#include "family.h"
#include "files/gguf.h"
#include "files/json.h"

/* Sets *file to the GGUF file that a path means, which the caller free()s. A file means itself;
 * a folder without safetensors means its file with "mmproj" in the name, or its only one. *file
 * is NULL if the path is a folder as Hugging Face has it. QV_EFORMAT if there are several; it
 * names them. */
qv_status qv_mmproj_find(const char *path, char **file, qv_error *err);

/* Bytes of the texts about a file, below. */
enum { QV_MMPROJ_TEXT = 640 };

struct qv_mmproj {
    struct qv_gguf *file;
    json_t *config;        /* as in config.json: {"model_type", "vision_config": {..}} */
    json_t *names;         /* maps keys of `config` to those of the file, for error texts */
    json_t *image, *video; /* as in preprocessor_config.json and video_preprocessor_config.json */
    /* whole sentences about what the file does not say, and where that was taken from; "" */
    char note[QV_MMPROJ_TEXT];
    char warning[QV_MMPROJ_TEXT]; /* what the file seems to say wrongly; "" */
};

/* Opens a file and reads its keys. QV_EUNSUPPORTED if it has no vision tower, or one of an
 * unknown family. It must be closed even after a failure. */
qv_status qv_mmproj_open(const char *file, struct qv_mmproj *out, qv_error *err);
void qv_mmproj_close(struct qv_mmproj *mmproj);

#endif
