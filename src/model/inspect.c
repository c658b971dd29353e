/* SPDX-License-Identifier: MIT */
/* A plan's FLOPs and bytes, for tools. */
#include "plan.h"

/* Attention's FLOPs grow with the square of a window's rows. This is the sum of the squared
 * sides of the windows along one axis; the product of both axes is the sum over windows. */
static double
window_squares(int64_t cells, int64_t side)
{
    const int64_t rest = cells % side;
    return (double)(cells / side * side * side + rest * rest);
}

struct work {
    /* rows: patches; squares: the sum of the squared rows of the segments, and of the windows */
    double rows, squares, window_squares;
};

static struct work
work_of(const struct qv_config *c, const qv_item *items, size_t n)
{
    const int64_t cells = qv_config_window_cells(c), m = c->merge;
    struct work w = { 0 };
    for (size_t i = 0; i < n; i++) {
        const int64_t *g = items[i].grid_thw;
        const double pairs = (double)g[0], segment = (double)(g[1] * g[2]);
        w.rows += pairs * segment;
        w.squares += pairs * segment * segment;
        if (cells)
            w.window_squares += pairs * (double)(m * m * m * m) * window_squares(g[1] / m, cells) *
                                window_squares(g[2] / m, cells);
    }
    return w;
}

static double
op_flops(const qv_plan *plan, const struct qv_step *step, const struct work *w)
{
    const struct qv_op_attention *a = &step->op.u.attention;
    if (step->op.kind == QV_OP_attention)
        return 4 * (step->operands[0] == SLOT_WINDOWS ? w->window_squares : w->squares) *
               (double)a->heads * (double)a->head_dim;
    return qv_op_flops(&step->op) * w->rows / (double)plan->capacity.patches;
}

double
qv_plan_flops(const qv_plan *plan, const struct qv_step *step, const qv_item *items, size_t n)
{
    const struct work w = work_of(&plan->model->config, items, n);
    double flops = 0;
    for (size_t i = 0; i < plan->program.n && !step; i++)
        flops += op_flops(plan, &plan->program.steps[i], &w);
    return step ? op_flops(plan, step, &w) : flops;
}
