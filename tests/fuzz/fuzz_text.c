/* SPDX-License-Identifier: MIT */
/* Fuzzes texts. The first byte chooses the kind. o: an operation; p: operations by name; c: a
 * Conv3d. A text that can be parsed must print as a text that parses to the same value. */
#include "conv3d/legal.h"
#include "fuzz.h"
#include "engine/op.h"
#include "../op_parse.h"

/* Texts of this kind come from a command line, and errors quote them as they are. */
static bool
refused(qv_status status, const qv_error *err)
{
    FUZZ_CHECK(!status || (err->status == status && *err->text));
    return status;
}

static void
try_op(const char *text)
{
    qv_error err;
    struct qv_op op, again;
    char line[2048];
    if (refused(qv_op_parse(text, &op, &err), &err))
        return;
    qv_op_print(&op, line, sizeof line);
    FUZZ_CHECK(!qv_op_parse(line, &again, &err) && qv_op_equal(&op, &again));
    if (refused(qv_op_check(&op, &err), &err))
        return;
    for (int i = 0; i < qv_op_n_operands(op.kind); i++)
        FUZZ_CHECK(qv_op_view(&op, i).bytes < PTRDIFF_MAX);
    FUZZ_CHECK(qv_op_flops(&op) >= 0 && qv_op_bytes(&op) > 0);
}

static void
try_kinds(const char *text)
{
    qv_error err;
    uint32_t kinds;
    if (!refused(qv_op_parse_kinds(text, &kinds, &err), &err))
        FUZZ_CHECK(!kinds == !*text);
}

static void
try_conv3d(const char *text)
{
    qv_error err;
    qv_conv3d_desc d, again;
    struct qv_conv3d_decision decision;
    const struct qv_caps caps = { .device = "none" };
    char line[2048], second[2048];
    if (refused(qv_conv3d_parse(text, &d, &err), &err))
        return;
    qv_conv3d_print(&d, line, sizeof line);
    FUZZ_CHECK(!qv_conv3d_parse(line, &again, &err));
    FUZZ_CHECK(!strcmp(line, qv_conv3d_print(&again, second, sizeof second)));
    d.dtype = d.dtype ? d.dtype : QV_F32;
    if (refused(qv_conv3d_decide(&d, &caps, -1, &decision, &err), &err))
        return;
    FUZZ_CHECK(decision.legal >> decision.lowering & 1 && *decision.reason);
    FUZZ_CHECK(qv_conv3d_rows(&d) > 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    char *text = malloc(size);
    FUZZ_CHECK(text);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    switch (*data) {
    case 'o': try_op(text); break;
    case 'p': try_kinds(text); break;
    case 'c': try_conv3d(text); break;
    }
    free(text);
    return 0;
}
