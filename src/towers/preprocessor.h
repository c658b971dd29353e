/* SPDX-License-Identifier: MIT */
/* Reads the preprocessor files of a checkpoint, which say how clips and images become frames. */
#ifndef QV_TOWERS_PREPROCESSOR_H
#define QV_TOWERS_PREPROCESSOR_H

#include "config.h"

/* Reads what qv_config_read documents of images and clips into c->image and c->video. The
 * tower's patch sizes must be set in c before. */
qv_status qv_preprocess_read(const char *dir, struct qv_config *c, qv_error *err);

/* Sets both to what a folder without such files has. */
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

#endif
