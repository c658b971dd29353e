/* SPDX-License-Identifier: MIT */
/* Reads the preprocessor files of a checkpoint, which say how clips and images become frames. */
#ifndef QV_TOWERS_PREPROCESS_H
#define QV_TOWERS_PREPROCESS_H

#include "config.h"
#include "files/json.h"

/* Reads what qv_config_read documents of images and clips into c->image and c->video. The
 * tower's patch sizes must be set in c before. */
qv_status qv_preprocess_read(const char *dir, struct qv_config *c, qv_error *err);

/* Does the same from objects in memory, which hold what such files would hold. */
qv_status qv_preprocess_take(const struct qv_json_object *image, const struct qv_json_object *video,
                             struct qv_config *c, qv_error *err);

#endif
