/* SPDX-License-Identifier: MIT */
/* The preprocessor files of a checkpoint: how clips and images become frames. */
#ifndef QV_TOWERS_PREPROCESS_H
#define QV_TOWERS_PREPROCESS_H

#include "config.h"

/* Reads what qv_config_read says of images and clips into c->image and c->video; the tower's patch
 * sizes must stand in c. */
qv_status qv_preprocess_read(const char *dir, struct qv_config *c, qv_error *err);

#endif
