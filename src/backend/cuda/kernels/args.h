/* args.h - arguments of the kernels, passed by value; the same bytes for C and for CUDA.
 *
 * Addresses are device addresses, strides are bytes. */
#ifndef LT_CUDA_ARGS_H
#define LT_CUDA_ARGS_H

#include <stdint.h>

/* What a kernel found wrong in its data; 16 bytes of host memory. name: args->name, as an address of the host. */
enum { LT_CUDA_WRONG_POSITION = 1, LT_CUDA_WRONG_SPAN, LT_CUDA_WRONG_PAGE, LT_CUDA_WRONG_ROW, LT_CUDA_WRONG_EXPERT };
typedef struct lt_cuda_wrong {
    uint64_t name;
    int32_t  kind, value;
} lt_cuda_wrong;

/* LINEAR: y[t][r] = x[t] . w[r], of up to LT_CUDA_LINEAR_PARTS weights with the same x. */
#define LT_CUDA_LINEAR_PARTS 4
typedef struct lt_cuda_linear_part {
    uint64_t w, y;
    int64_t  w_stride, y_stride;
    int32_t  rows, first /* group of rows, in the order of the parts */;
} lt_cuda_linear_part;
typedef struct lt_cuda_linear {
    uint64_t            x;
    int64_t             x_stride;
    int32_t             cols, tokens, parts, units /* of rows */, rows_of /* a unit: lines.cuh */, pad;
    lt_cuda_linear_part part[LT_CUDA_LINEAR_PARTS];
} lt_cuda_linear;

/* X(dtype, bytes of 256 columns, whether its rows are staged only where they begin at multiples of 16 bytes) */
#define LT_CUDA_QUANTS(X)                                                                                                      \
    X(Q4_0, 144, 0) X(Q4_1, 160, 0) X(Q5_0, 176, 0) X(Q5_1, 192, 0) X(Q8_0, 272, 0) X(Q2_K, 84, 0) X(Q3_K, 110, 0)             \
    X(Q4_K, 144, 1) X(Q5_K, 176, 1) X(Q6_K, 210, 0) X(IQ4_NL, 144, 0) X(IQ4_XS, 136, 0) X(MXFP4, 136, 0)

/* Kernels of team.cuh. X(dtype, bytes, whole, tokens, rows of a block, accumulators of a thread, groups of 256 columns a
 * segment, segments in the ring); chosen by measuring on an H200. */
#define LT_CUDA_TEAM_SET(X, dtype, bytes, whole, rows, seg)                                             \
    X(dtype, bytes, whole, 1, rows, 1, seg, 3) X(dtype, bytes, whole, 2, 32, 1, seg, 3)                 \
    X(dtype, bytes, whole, 4, 16, 1, 2, 3) X(dtype, bytes, whole, 8, 16, 1, 2, 3)
#define LT_CUDA_TEAMS(X)                                                                                \
    LT_CUDA_TEAM_SET(X, Q4_0, 144, 0, 8, 4) LT_CUDA_TEAM_SET(X, Q4_1, 160, 0, 16, 4)                    \
    LT_CUDA_TEAM_SET(X, Q5_0, 176, 0, 8, 2) LT_CUDA_TEAM_SET(X, Q5_1, 192, 0, 16, 2)                    \
    LT_CUDA_TEAM_SET(X, Q8_0, 272, 0, 16, 4) LT_CUDA_TEAM_SET(X, Q2_K, 84, 0, 8, 4)                     \
    LT_CUDA_TEAM_SET(X, Q3_K, 110, 0, 8, 4) LT_CUDA_TEAM_SET(X, Q4_K, 144, 1, 16, 4)                    \
    LT_CUDA_TEAM_SET(X, Q5_K, 176, 1, 16, 2) LT_CUDA_TEAM_SET(X, Q6_K, 210, 0, 8, 2)                    \
    LT_CUDA_TEAM_SET(X, IQ4_NL, 144, 0, 16, 4) LT_CUDA_TEAM_SET(X, IQ4_XS, 136, 0, 16, 4)               \
    LT_CUDA_TEAM_SET(X, MXFP4, 136, 0, 16, 4)

/* Kernels of wide.cuh. X(tokens, rows of a warp, steps of 256 columns ahead, warps of a block at most) */
#define LT_CUDA_WIDES(X) X(1, 1, 4, 8) X(2, 2, 2, 8) X(4, 2, 2, 8) X(8, 2, 2, 8)
/* Weights in host memory and one token: rows of halves, and quantised ones (lines.cuh), of which a warp takes up to four. */
#define LT_CUDA_WIDE_LINES_WARPS 8
#define LT_CUDA_LINES_WARPS 4
#define LT_CUDA_LINES_X(cols) (((cols) / 4 * 5 + 127) / 128 * 128) /* a row of Q8A */
#define LT_CUDA_LINES_PITCH(span) (((span) + 127 + 16 + 127) / 128 * 128) /* what lies before on its line, and is read behind */

/* Their shared memory; bytes: of a segment of a row. */
#define LT_CUDA_TEAM_CHUNKS(bytes, whole) ((whole) ? (bytes) / 16 : (bytes) % 16 == 0 ? (bytes) / 16 + 1 : ((bytes) + 30) / 16)
#define LT_CUDA_TEAM_RING(rows, bytes, whole, stages) ((stages) * (rows) * ((LT_CUDA_TEAM_CHUNKS(bytes, whole) | 1) * 16) + 16)
#define LT_CUDA_TEAM_X(cols) (((cols) + 255) / 256 * 320)
#define LT_CUDA_WIDE_X(cols) (((cols) + 255) / 256 * 1024)

/* Rows of a weight, or of Q8A activations, as stages of the int8 product: kernels/gemm_int8.cu. */
#define LT_GEMM_ROWS 64   /* of a weight's tile */
#define LT_GEMM_TOKENS 64 /* of a tile of activations */
#define LT_GEMM_DEPTH 4 /* blocks of 32 columns a stage */
#define LT_GEMM_PACKERS 256 /* threads a block that packs */
typedef struct lt_cuda_pack {
    uint64_t src, image;
    int64_t  src_stride;
    int32_t  rows, cols, stages, pad;
} lt_cuda_pack;
typedef struct lt_cuda_pack2 {
    lt_cuda_pack weight, tokens;
    int64_t      token_units; /* threads: padded tokens times 8 * lt_room() */
    int32_t      parts, pad;  /* blocks of the weight's: half tiles times lt_room() / depth */
} lt_cuda_pack2;
typedef struct lt_cuda_gemm8 {
    uint64_t x, w, y; /* images; y f32 */
    int64_t  y_stride;
    int32_t  rows, cols, tiles, tokens, stages, pad;
} lt_cuda_gemm8;

/* Mixtures of experts. A pair is a token and one of its `picks` experts: token * picks + which. */
#define LT_CUDA_TOP_MOST 1024 /* experts TOP_K picks from */
typedef struct lt_cuda_top {
    uint64_t scores, ids, y; /* ids: what top_share reads, what the others write */
    int64_t  scores_row, ids_row, y_row;
    int32_t  tokens, experts, picks, all;
    uint64_t wrong, name;
} lt_cuda_top;

/* Rows of pairs with a row of their expert (the bias), or with their shares (the sum over a token's). */
typedef struct lt_cuda_pairs {
    uint64_t x, b, ids, y;
    int64_t  x_token, x_pick, b_row, ids_row, y_token, y_pick;
    int32_t  tokens, picks, cols, experts;
    uint64_t wrong, name;
} lt_cuda_pairs;

/* The pairs of each expert of a slice behind each other, and tiles of them: up to `few_tile` for experts of fewer than
 * `least` pairs, up to `many_tile` for the others. Tiles of expert e begin at slot (pairs before it) / tile + e, so no
 * expert waits for another's count; slots left over are of 0 pairs. A tile of 0: no such list. */
typedef struct lt_cuda_expert_tile { int32_t expert /* of the slice */, at /* in pairs */, count, pad; } lt_cuda_expert_tile;
typedef struct lt_cuda_expert_list {
    uint64_t ids, pairs /* i32 */, counts /* i32 an expert */, few, many /* lt_cuda_expert_tile */;
    int64_t  ids_row;
    int32_t  picks, n_pairs, first, experts, few_tile, many_tile, few_slots, many_slots, least, pad;
} lt_cuda_expert_list;

/* EXPERT_LINEAR as LINEAR's kernels do it. Strides of x and y in `a` are a token's, tokens are pairs; parts are weights or
 * slices of one. Without tiles: a block a pair (grid.y); with: a block a tile of part 0. */
typedef struct lt_cuda_expert_part {
    uint64_t bias /* f32 rows of all experts, added to what one pair gets; 0: none */;
    int64_t  w_expert, y_pick, bias_row;
    int32_t  first, experts;
} lt_cuda_expert_part;
typedef struct lt_cuda_experts {
    lt_cuda_linear      a;
    uint64_t            ids, pairs, tiles, wrong, name;
    int64_t             ids_row, x_pick;
    int32_t             picks, all; /* with biases: experts in all; another number in ids is reported */
    lt_cuda_expert_part of[LT_CUDA_LINEAR_PARTS];
} lt_cuda_experts;

/* As the int8 product does it: experts first .. first + count - 1 of the slice, those of at least `least` pairs. */
typedef struct lt_cuda_expert_pack {
    lt_cuda_pack2 p; /* weight.image: of `first`; parts: of one expert */
    uint64_t      counts, pairs, tiles;
    int64_t       w_expert, image_expert, x_pick;
    int32_t       first, count, least, picks;
} lt_cuda_expert_pack;
typedef struct lt_cuda_expert_gemm8 {
    lt_cuda_gemm8 a; /* tiles: of a weight's rows; w: image of `first` */
    uint64_t      pairs, tiles;
    int64_t       image_expert, y_pick;
    int32_t       first, count, picks, pad;
} lt_cuda_expert_gemm8;

/* Tiles on their way to shared memory, of halves. */
#define LT_GEMM_MMA_STAGES 4
#define LT_GEMM_WG_F16_STAGES 6
#define LT_GEMM_WG_BF16_STAGES 4

/* The same by tensor cores from halves: x is scratch, [tokens][cols] f16 (or bf16: the upper halves, then the lower
 * ones at x_low), with a power of two each row was divided by at scale. */
typedef struct lt_cuda_gemm {
    uint64_t x, x_low, scale, w, y;
    int64_t  x_stride, w_stride, y_stride;
    int32_t  rows, cols, tiles, tokens;
} lt_cuda_gemm;

/* The same of experts: rows of x are tokens' or, with x_pairs, pairs'. */
typedef struct lt_cuda_expert_gemm {
    lt_cuda_gemm a; /* tiles: of a weight's rows */
    uint64_t     pairs, tiles;
    int64_t      w_expert, y_pick;
    int32_t      picks, x_pairs;
} lt_cuda_expert_gemm;

/* f32 rows into that scratch. */
typedef struct lt_cuda_halve {
    uint64_t x, y, y_low, scale;
    int64_t  x_stride, y_stride;
    int32_t  cols, brain;
} lt_cuda_halve;

/* Elementwise and row ops over rows of cols floats. Rows are [outer][inner]; unused strides are 0. */
typedef struct lt_cuda_rows {
    uint64_t a, b, y;
    int64_t  a_outer, a_inner, b_outer, y_outer, y_inner;
    int32_t  outer, inner, cols, extra;
    float    value, limit;
    uint64_t wrong, name;
} lt_cuda_rows;

typedef struct lt_cuda_kv {
    uint64_t page_bytes, k_offset, v_offset, row_bytes;
    uint64_t wrong, name;
    int32_t  kv_heads, head_dim, dtype /* 0 f32, 1 f16, 2 q8_0 */, pages /* of the table */, limit /* pages of the cache */, pad;
} lt_cuda_kv;

typedef struct lt_cuda_kv_store {
    uint64_t   k, v, cache, pos, table;
    int64_t    k_token, k_head, v_token, v_head;
    int32_t    tokens, pad;
    lt_cuda_kv kv;
} lt_cuda_kv_store;

/* Each (token, head) in `parts` blocks of pages, merged in order by a second kernel when parts > 1;
 * partial results are [token][head][part][2 + head_dim] floats in scratch. */
typedef struct lt_cuda_attention {
    uint64_t   q, cache, pos, table, y, scratch;
    int64_t    q_token, q_head, y_token, y_head;
    int32_t    tokens, heads, window, parts;
    float      scale, cap; /* cap: for the kernels of the families *_capped* alone */
    lt_cuda_kv kv;
} lt_cuda_attention;

/* What those take: sinks is an address of one float a query head, or 0. The others read its beginning. */
typedef struct lt_cuda_capped {
    lt_cuda_attention a;
    uint64_t          sinks;
} lt_cuda_capped;

/* Neighbours of a list in one kernel (fuse.c); an address of 0 leaves that part out. Rows of cols floats:
 *   t = a;  t = norm(t) * w1 -> y1;  t = b + t -> s;  t = norm(t) * w2 -> y2;  quantised -> q */
typedef struct lt_cuda_chain {
    uint64_t a, w1, y1, b, s, w2, y2, q;
    int64_t  a_row, y1_row, b_row, s_row, y2_row, q_row;
    float    eps1, eps2;
    int32_t  cols, pad;
} lt_cuda_chain;

/* q = quantised(y = act(a) * b); y 0: not written. */
typedef struct lt_cuda_gate {
    uint64_t a, b, y, q;
    int64_t  a_row, b_row, y_row, q_row;
    int32_t  rows, cols, gelu, pad;
    float    alpha, limit; /* for the kernels clamp_* */
} lt_cuda_gate;

/* A token's heads: biases added and q and k normed (where there are some), q and k rotated, k and v into the cache. In place. */
typedef struct lt_cuda_heads {
    uint64_t   q, k, v, bq, bk, bv, wq, wk, angles, cache, pos, table;
    int64_t    q_token, q_head, k_token, k_head, v_token, v_head, angles_token;
    float      eps_q, eps_k;
    int32_t    heads, rotated /* as for rope: negative for pairs */, keep_k, keep_v;
    lt_cuda_kv kv;
} lt_cuda_heads;

/* Tensors as the copy engine of sm_90 knows them: K and V of a cache as [pages][kv heads x positions][head size]. */
typedef struct __attribute__((aligned(64))) lt_cuda_tensor { uint64_t opaque[16]; } lt_cuda_tensor;
typedef struct lt_cuda_flash_maps { lt_cuda_tensor k, v; } lt_cuda_flash_maps;

/* Attention's partial results merged, as attention_merge does; then quantised to q where q is not 0; sinks join before that. */
typedef struct lt_cuda_merge {
    lt_cuda_attention a;
    uint64_t q;
    int64_t  q_token;
} lt_cuda_merge;
typedef struct lt_cuda_merge_sinks {
    lt_cuda_merge m;
    uint64_t      sinks;
} lt_cuda_merge_sinks;

/* Attention of one token, with what comes before it done on the way: q is not written, k and v go to the cache alone. */
typedef struct lt_cuda_token {
    lt_cuda_attention a;
    lt_cuda_heads     h;
} lt_cuda_token;

#endif
