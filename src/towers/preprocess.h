/* SPDX-License-Identifier: MIT */
/* The preprocessor files of a checkpoint: how clips and images become frames. */
#ifndef QV_TOWERS_PREPROCESS_H
#define QV_TOWERS_PREPROCESS_H

#include "config.h"
#include "files/json.h"

/* Reads what qv_config_read says of images and clips into c->image and c->video; the tower's patch
 * sizes must stand in c. */
qv_status qv_preprocess_read(const char *dir, struct qv_config *c, qv_error *err);

/* The same of what such files would hold, of images and of clips. */
qv_status qv_preprocess_take(const struct qv_json_object *image, const struct qv_json_object *video,
                             struct qv_config *c, qv_error *err);

#endif
