/* SPDX-License-Identifier: MIT */
/* Tar files: ustar, with the long names and sizes of GNU and pax. Nothing in them is unpacked. */
#ifndef QV_TOOLS_TAR_H
#define QV_TOOLS_TAR_H

#include "tool.h"

/* Called for each file in a tar file: its name, and where its bytes lie. */
typedef qv_status tool_tar_see(void *user, const char *name, int64_t offset, int64_t bytes,
                               qv_error *err);
/* Returns QV_EIO; QV_EFORMAT for what is no tar file, or is cut short; what `see` returned. */
qv_status tool_tar_visit(const char *path, tool_tar_see *see, void *user, qv_error *err);
bool tool_tar_is(const char *path);

#endif
