/* launch.h - small helpers of the launch_<family>.c files. */
#ifndef LT_CUDA_LAUNCH_H
#define LT_CUDA_LAUNCH_H

#include "backend/cuda/kernels/args.h"
#include "backend/cuda/ops.h"

static inline uint32_t lt__cuda_blocks(int64_t units, int64_t per_block) { return (uint32_t)((units + per_block - 1) / per_block); }

/* Bytes from one index of a dimension to the next; 0 where the view has no such dimension. */
static inline int64_t lt__cuda_stride(const lt_view *v, uint32_t dim) { return v->ndim > dim + 1 ? v->stride[dim] : 0; }

static inline void lt__cuda_kv_fill(lt_cuda_kv *out, const lt_cuda_device *dev, const lt_op_args *args, const lt_kv_layout *kv,
                                    const lt_view *cache)
{
    uint64_t row = 0;
    bool ok = lt_dtype_row_bytes(kv->dtype, kv->head_dim, &row);
    LT_ASSERT(ok);
    *out = (lt_cuda_kv){.page_bytes = kv->page_bytes, .k_offset = kv->k_offset, .v_offset = kv->v_offset, .row_bytes = row,
                        .kv_heads = (int32_t)kv->kv_heads, .head_dim = (int32_t)kv->head_dim,
                        .dtype = kv->dtype == LT_DTYPE_F32 ? 0 : kv->dtype == LT_DTYPE_F16 ? 1 : 2, .pages = (int32_t)args->src[3].dim[0],
                        .limit = (int32_t)lt__min_u64(INT32_MAX, (uint64_t)cache->dim[0] / kv->page_bytes),
                        .wrong = lt__cuda_wrong(dev), .name = (uint64_t)(uintptr_t)(args->name ? args->name : "attention")};
}

/* LINEAR of 1 to 4 weights of one dtype with one x of 1 to 8 tokens, in one launch: each result is bit-equal to its
 * own launch. ok looks at dtypes, dims, strides and addresses; alignments may differ. Where it says no, launch singly. */
bool lt__cuda_linear_group_ok(lt_cuda_device *dev, const lt_op_args *const *args, uint32_t n);
LT_NODISCARD lt_status
lt__cuda_linear_group(lt_cuda_device *dev, CUstream stream, const lt_op_args *const *args, uint32_t n, lt_err *err);

/* How products by linear.cu's kernels go: a kernel by its suffix, for `tokens` tokens and `rows` rows a unit. */
typedef struct lt_cuda_way {
    bool     plain, lines;
    int      tokens, rows;
    uint32_t threads, units_of_block, shared, blocks_of_sm /* 0: a block for each unit */;
} lt_cuda_way;
/* By tiles of so many tokens, where such weights and the card's shared memory allow it; aligned: rows at multiples of 16 bytes. */
bool lt__cuda_linear_tile(const lt_cuda_device *dev, lt_dtype dtype, int64_t cols, int tile, bool w_aligned, bool x_aligned, lt_cuda_way *out);
lt_cuda_way lt__cuda_linear_plain(lt_dtype dtype);
/* One token, and rows behind each other in host memory. */
bool lt__cuda_linear_lines(const lt_cuda_device *dev, lt_dtype dtype, int64_t cols, bool w_aligned, bool x_aligned, lt_cuda_way *out);

/* EXPERT_LINEAR of 1 to 4 weights or slices with one x and one ids, of few pairs, in one launch; as above. Then, where
 * bias_ok says so of each, the EXPERT_BIAS that follow: args[n] on. */
bool lt__cuda_expert_group_ok(lt_cuda_device *dev, const lt_op_args *const *args, uint32_t n);
bool lt__cuda_bias_ok(const lt_op_args *const *args, uint32_t n, const lt_op_args *bias);
LT_NODISCARD lt_status
lt__cuda_expert_group(lt_cuda_device *dev, CUstream stream, const lt_op_args *const *args, uint32_t n, uint32_t n_biases, lt_err *err);
/* TOP_K, and TOP_SHARE of the same scores at what it picks. */
LT_NODISCARD lt_status
lt__cuda_top_share(lt_cuda_device *dev, CUstream stream, const lt_op_args *top, const lt_op_args *share, lt_err *err);

/* What every way of EXPERT_LINEAR asks for: false, and why not. */
bool lt__cuda_expert_sizes_ok(const lt_op_args *args, const char **why);
/* Lists of pairs hold this many; more tokens go in turns, of tokens first on. */
#define LT_CUDA_PAIRS ((int64_t)1 << 18)
static inline int64_t lt__cuda_turn(const lt_op_args *args)
{
    int64_t most = LT_CUDA_PAIRS / args->dst.dim[1];
    return args->dst.dim[0] < most ? args->dst.dim[0] : most;
}
lt_op_args lt__cuda_some_tokens(const lt_op_args *args, int64_t first, int64_t tokens);
/* The pairs of each expert, listed at `at`, in tiles (kernels/args.h); looked at no more than lt__cuda_turn tokens. */
typedef struct lt_cuda_grouped { lt_cuda_expert_list list; uint64_t bytes; } lt_cuda_grouped;
lt_cuda_grouped lt__cuda_group_pairs(const lt_op_args *args, uint64_t at, int few_tile, int many_tile, int least);
LT_NODISCARD lt_status
lt__cuda_give_list(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, const lt_cuda_grouped *g, lt_err *err);
/* Products of the tiles `few`, of LT_CUDA_FEW pairs, where the card can. */
#define LT_CUDA_FEW 8
bool lt__cuda_few_ok(const lt_cuda_device *dev, const lt_op_args *args, lt_cuda_way *out);
LT_NODISCARD lt_status
lt__cuda_give_few(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, const lt_cuda_grouped *g, const lt_cuda_way *how, lt_err *err);

/* ATTENTION that spreads its pages over blocks: how many parts, 1 when it does not (then these are not called); the
 * launch of the parts alone, their results in args->scratch; and what merges them, quantised to q, too, or instead of
 * the result itself with !keep; q NULL: not quantised, else heads are whole blocks of 32. Of at most 256 elements. */
int32_t lt__cuda_attention_parts(const lt_cuda_device *dev, const lt_op_args *args);
LT_NODISCARD lt_status lt__cuda_attention_spread(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, lt_err *err);
LT_NODISCARD lt_status
lt__cuda_merge_quantize(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, const lt_view *q, bool keep, lt_err *err);
/* The parts of one token with what comes before them done on the way, where ok says so. */
bool lt__cuda_token_ok(const lt_cuda_device *dev, const lt_op_args *args);
LT_NODISCARD lt_status
lt__cuda_token(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, const lt_cuda_heads *heads, lt_err *err);

/* Products of one x with f16 or bf16 weights of a prompt, its halves made once: same addresses of x and of scratch. */
bool lt__cuda_halves_ok(const lt_cuda_device *dev, const lt_op_args *const *args, uint32_t n);
LT_NODISCARD lt_status lt__cuda_halves(lt_cuda_device *dev, CUstream stream, const lt_op_args *const *args, uint32_t n, lt_err *err);

#endif
