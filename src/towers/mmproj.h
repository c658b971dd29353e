/* SPDX-License-Identifier: MIT */
/*
 * A vision tower in a GGUF file, as llama.cpp's converter writes it ("mmproj"): where it is, and what its
 * keys say in the words of the config.json and the preprocessor files that it was made of.
 */
#ifndef QV_TOWERS_MMPROJ_H
#define QV_TOWERS_MMPROJ_H

#include "family.h"
#include "files/gguf.h"
#include "files/json.h"

/* The GGUF file that a path means, for free(): the path itself if it is a file; the one with "mmproj" in its
 * name, or the only one, of a folder that has no safetensors. *file is NULL where a path means a folder of
 * Hugging Face's. QV_EFORMAT: several, which are named. */
qv_status qv_mmproj_find(const char *path, char **file, qv_error *err);

/* Bytes of a text about a file. */
enum { QV_MMPROJ_TEXT = 640 };

struct qv_mmproj {
    struct qv_gguf *file;
    json_t *config;            /* as config.json: {"model_type", "vision_config": {..}} */
    json_t *names;             /* config's keys -> the file's, for error texts */
    json_t *image, *video;     /* as preprocessor_config.json and video_preprocessor_config.json */
    char note[QV_MMPROJ_TEXT]; /* what the file does not say, and whence it is: whole sentences */
    char warning[QV_MMPROJ_TEXT]; /* what it seems to say wrongly; "" */
};

/* Opens a file and reads its keys. QV_EUNSUPPORTED: no vision tower, or one of a family that is not known
 * here. Close it also after a failure. */
qv_status qv_mmproj_open(const char *file, struct qv_mmproj *out, qv_error *err);
void qv_mmproj_close(struct qv_mmproj *mmproj);

#endif
