/* SPDX-License-Identifier: MIT */
/* Reads config.json and the preprocessor files of a checkpoint, or a GGUF file, into the tower's
 * numbers. */
#pragma once

#include "config.h"
#include "files/json.h"

/*
 * Reads dir/config.json and the preprocessor files.
 * - For images: "image_processor" in dir/processor_config.json (transformers 5 writes both there),
 *   else dir/preprocessor_config.json.
 * - For clips: "video_processor" in dir/processor_config.json, else
 *   dir/video_preprocessor_config.json, else dir/preprocessor_config.json.
 * Missing keys and files default to the values of transformers' classes; the patch sizes are the
 * tower's. transformers rejects a folder without these files, so out->warning names them. If dir is
 * a GGUF file, or a folder that has one and no safetensors, the file's keys replace all of these.
 * Returns QV_EIO; QV_EFORMAT naming file, field and value;
 * QV_EUNSUPPORTED for an unsupported family or preprocessing step.
 */
qv_status qv_config_read(const char *dir, struct qv_config *out, qv_error *err);

/* Shared by qv_config_read and qv_mmproj_read; each function reads or sets a part of c, whose
 * family is known.
 * qv_config_read_sizes reads the vision config's integers under these keys (NULL: the file has no
 * such key, and the default applies) and checks that they are consistent. */
qv_status qv_config_read_sizes(const struct qv_json_object *vision,
                               const char *const keys[QV_SIZES], struct qv_config *c,
                               qv_error *err);
/* Sets a size to a value derived from something else, which `key` names in errors. */
qv_status qv_config_set_size(const struct qv_json_object *vision, const char *key,
                             enum qv_size size, int64_t value, struct qv_config *c, qv_error *err);
/* Reads the norms' epsilon, if the family's files have one. */
qv_status qv_config_read_norm(const struct qv_json_object *vision, const char *key,
                              struct qv_config *c, qv_error *err);

/* ---- mmproj.c: a tower in a GGUF file, as llama.cpp's converter writes it -------------------- */

/* Sets *file to the GGUF file that a path means, which the caller free()s. A file means itself; a
 * folder without safetensors means its file with "mmproj" in the name, or its only GGUF file. *file
 * is NULL if the path is a Hugging Face folder. QV_EFORMAT, naming the files, if there are
 * several. */
qv_status qv_mmproj_find(const char *path, char **file, qv_error *err);

/* Reads a file's keys into the struct that qv_config_read fills from a folder's files, with a note
 * and a warning. QV_EUNSUPPORTED if it has no vision tower, or one of an unknown family. */
qv_status qv_mmproj_read(const char *path, struct qv_config *c, qv_error *err);

/* ---- preprocessor.c -------------------------------------------------------------------------- */

/* Reads c->image and c->video as qv_config_read documents. The tower's patch sizes must already be
 * set in c. */
qv_status qv_preprocess_read(const char *dir, struct qv_config *c, qv_error *err);

/* Sets c->image and c->video to the defaults for a folder without these files. */
void qv_preprocess_set(struct qv_config *c);

#define QV_CLIP_MEAN                                                                               \
    {                                                                                              \
        0.48145466, 0.4578275, 0.40821073                                                          \
    }
#define QV_CLIP_STD                                                                                \
    {                                                                                              \
        0.26862954, 0.26130258, 0.27577711                                                         \
    }
#define QV_MAX_PIXELS ((int64_t)1 << 40)
