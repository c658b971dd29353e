/* SPDX-License-Identifier: MIT */
/* qwenvit verify: reads the tensors that the definition needs. */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "towers/stored_tensor.h"
#include "verify.h"

static qv_status
read_all(const struct qv_stored_tensor *stored, const struct qv_tensor_spec *spec,
         struct verify_tensor *out, qv_error *err)
{
    struct qv_stored_room room = { .bytes = (size_t)spec->n * qv_stored_row_bytes(stored) };
    void *values = NULL;
    *out = (struct verify_tensor){ .dtype = stored->dtype, .values = spec->n * spec->k };
    room.raw = malloc(room.bytes);
    room.canonical = malloc(room.bytes);
    qv_status status = room.raw && room.canonical
                           ? qv_stored_read(stored, 0, spec->n, &room, &values, err)
                           : qv_fail(err, QV_ENOMEM, "no memory for tensor %s", stored->name);
    out->data = values == room.canonical ? room.canonical : room.raw;
    free(values == room.canonical ? room.raw : room.canonical);
    return status;
}

qv_status
verify_read_tensor(const char *dir, const struct qv_config *config, const char *name,
                   struct verify_tensor *out, qv_error *err)
{
    struct qv_tower tower;
    struct qv_stored_tower in = { 0 };
    struct qv_stored_tensor stored;
    size_t id = 0;
    *out = (struct verify_tensor){ 0 };
    qv_status status = qv_tower_open(config, &tower, err);
    while (id < tower.n && strcmp(tower.tensors[id].names[0], name) != 0)
        id++;
    if (!status && id == tower.n)
        status = qv_fail(err, QV_ESTATE, "%s: the tower has no tensor %s", dir, name);
    if (!status)
        status = qv_stored_tower_open(dir, config, &tower, &in, err);
    if (!status)
        status = qv_stored_find(&in, config, &tower.tensors[id], 0, &stored, err);
    if (!status)
        status = read_all(&stored, &tower.tensors[id], out, err);
    qv_stored_tower_close(&in);
    qv_tower_close(&tower);
    if (status) {
        free(out->data);
        out->data = NULL;
    }
    return status;
}
