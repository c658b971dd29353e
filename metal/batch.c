/* SPDX-License-Identifier: MIT */
/* Limits the work of a command buffer and of a dispatch. */
#include "launch.h"

#include "numbers.h"

/* An M1 with 7 cores, the slowest GPU that is supported, has 2.3 TFLOP/s and 68 GB/s at best. Tiles
 * reach about half of that; simple kernels load their operands from caches for each product. A
 * faster GPU merely spends less time per buffer; the overhead of a buffer is a few microseconds. */
static const double tiled_flops_per_s = 1e12, simple_flops_per_s = 5e10, bytes_per_s = 4e10;

/* macOS kills buffers after a few seconds, and draws the screen only between two buffers. */
static const double most_buffer_s = 0.5, most_piece_s = 0.25;

/* Limits the memory that encoding needs; a chunk of most towers is one or two such buffers. */
enum { MOST_DISPATCHES = 256 };

double
qv_launch_seconds_metal(const struct qv_op *op, double flops, bool simple)
{
    return (flops > 0 ? flops : qv_op_flops(op)) /
               (simple ? simple_flops_per_s : tiled_flops_per_s) +
           qv_op_bytes(op) / bytes_per_s;
}

/* Returns how many of n equal parts make up a piece, at least one. */
static uint32_t
in_a_piece(double seconds, uint32_t n)
{
    const double parts = most_piece_s / (seconds / n);
    return parts >= n ? n : parts > 1 ? (uint32_t)parts : 1;
}

struct cut {
    uint32_t heads, blocks;             /* of a piece */
    uint32_t head_pieces, block_pieces; /* of the launch */
};

/* groups[0] are blocks of queries, groups[1] heads. Blocks are cut only if a piece has one head. */
static struct cut
cut_attention(const struct launch_metal *launch)
{
    const uint32_t blocks = launch->groups[0], heads = launch->groups[1];
    struct cut c = { .heads = in_a_piece(launch->seconds, heads), .blocks = blocks };
    if (c.heads == 1)
        c.blocks = in_a_piece(launch->seconds / heads, blocks);
    c.head_pieces = qv_ceil_div(heads, c.heads);
    c.block_pieces = qv_ceil_div(blocks, c.blocks);
    return c;
}

uint32_t
qv_launch_pieces_metal(const struct launch_metal *launch)
{
    if (!launch->is_attention)
        return 1;
    const struct cut c = cut_attention(launch);
    return c.head_pieces * c.block_pieces;
}

void
qv_launch_piece_metal(const struct launch_metal *launch, uint32_t index, struct launch_metal *out)
{
    *out = *launch;
    if (!launch->is_attention)
        return;
    const struct cut c = cut_attention(launch);
    const uint32_t head = index / c.block_pieces * c.heads,
                   block = index % c.block_pieces * c.blocks;
    out->args.attention.first_head = head;
    out->args.attention.first_block = block;
    out->groups[0] = (uint32_t)qv_at_most(c.blocks, launch->groups[0] - block);
    out->groups[1] = (uint32_t)qv_at_most(c.heads, launch->groups[1] - head);
    out->seconds *= (double)out->groups[0] / launch->groups[0] * out->groups[1] / launch->groups[1];
}

bool
qv_batch_add_metal(struct batch_metal *batch, double seconds)
{
    const bool first = !batch->dispatches;
    if (!first &&
        (batch->dispatches == MOST_DISPATCHES || batch->seconds + seconds > most_buffer_s))
        return false;
    batch->dispatches++;
    batch->seconds += seconds;
    return true;
}
