/* Many tokens times quantised rows with VNNI: thirty-two rows by four tokens a tile.
 *
 * vpdpbusd adds four products of unsigned by signed bytes to an int32 without saturating, so every
 * format's sum is exact; signed weights are stored with their top bit flipped, 128 too large. */
#include "backend/cpu/avx2.h"

#define GEMM_ROWS 16
#define GEMM_PANELS 2
#define GEMM_TOKENS 4
#define GEMM_SIGNED_OFFSET 128

typedef __m512i vint;
typedef __m512 vflt;
LT_ALWAYS vint v_load(const void *p) { return _mm512_loadu_si512(p); }
LT_ALWAYS vint v_set1_u32_at(const void *p) { return _mm512_set1_epi32((int)lt__load_u32(p)); }
LT_ALWAYS vint v_add_i32(vint a, vint b) { return _mm512_add_epi32(a, b); }
LT_ALWAYS vint v_madd_i16(vint a, vint b) { return _mm512_madd_epi16(a, b); }
LT_ALWAYS vflt v_to_f32(vint a) { return _mm512_cvtepi32_ps(a); }
LT_ALWAYS vflt v_zero_f32(void) { return _mm512_setzero_ps(); }
LT_ALWAYS vflt v_load_f32(const void *p) { return _mm512_loadu_ps(p); }
LT_ALWAYS vflt v_set1_f32(float x) { return _mm512_set1_ps(x); }
LT_ALWAYS vflt v_add_f32(vflt a, vflt b) { return _mm512_add_ps(a, b); }
LT_ALWAYS vflt v_mul(vflt a, vflt b) { return _mm512_mul_ps(a, b); }
LT_ALWAYS vflt v_fma(vflt a, vflt b, vflt c) { return _mm512_fmadd_ps(a, b, c); }
LT_ALWAYS void v_store_rows(float *p, vflt v, uint64_t n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)(n >= 16 ? 0xffff : (1u << n) - 1), v);
}

#include "backend/cpu/gemm.h"

/* Columns 4 first .. 4 end of a block. */
LT_ALWAYS void tile_part(const int np, const int nt, const tile_args *a, const uint8_t *const *rec, uint64_t b,
                         const int first, const int end, vint *x)
{
    LT_UNROLL
    for (int i = 0; i < np * nt; i++)
        x[i] = _mm512_setzero_si512();
    LT_UNROLL
    for (int k = first; k < end; k++) {
        vint w[GEMM_PANELS];
        LT_UNROLL
        for (int p = 0; p < np; p++)
            w[p] = v_load(rec[p] + REG * k);
        LT_UNROLL
        for (int j = 0; j < nt; j++) {
            const vint q = v_set1_u32_at(a->tok[j].q + 32 * b + 4 * k);
            LT_UNROLL
            for (int p = 0; p < np; p++)
                x[p * nt + j] = _mm512_dpbusd_epi32(x[p * nt + j], w[p], q);
        }
    }
}

LT_ALWAYS void tile_sums(lt_dtype t, const int np, const int nt, const tile_args *a, const uint8_t *const *rec,
                         uint64_t b, vint *sum)
{
    if (kind_of(t) != WK_SC && kind_of(t) != WK_SCM) {
        tile_part(np, nt, a, rec, b, 0, 8, sum);
        return;
    }
    vint x[GEMM_PANELS * GEMM_TOKENS], y[GEMM_PANELS * GEMM_TOKENS];
    tile_part(np, nt, a, rec, b, 0, 4, x);
    tile_part(np, nt, a, rec, b, 4, 8, y);
    LT_UNROLL
    for (int i = 0; i < np * nt; i++) { /* pairs of int16: the first half's scale below, the second's above */
        const vint pair = v_load(rec[i / nt] + REC_SC);
        const vint low = _mm512_srai_epi32(_mm512_slli_epi32(pair, 16), 16), high = _mm512_srai_epi32(pair, 16);
        sum[i] = _mm512_add_epi32(_mm512_mullo_epi32(x[i], low), _mm512_mullo_epi32(y[i], high));
    }
}

#define FORMAT(T, N) \
    static void pack_##T(const uint8_t *const *row, uint64_t nb, uint8_t *rec) { pack##N(LT_DTYPE_##T, row, nb, rec); } \
    static void tile1_##T(const tile_args *a) { tile(LT_DTYPE_##T, GEMM_PANELS, 1, a); } \
    static void tile2_##T(const tile_args *a) { tile(LT_DTYPE_##T, GEMM_PANELS, 2, a); } \
    static void tile3_##T(const tile_args *a) { tile(LT_DTYPE_##T, GEMM_PANELS, 3, a); } \
    static void tile4_##T(const tile_args *a) { tile(LT_DTYPE_##T, GEMM_PANELS, 4, a); }
GEMM_FORMATS(FORMAT)

static void run(const lt__gemm *g, uint64_t first, uint64_t end, void *scratch)
{
#define ENTRY(T, N) [LT_DTYPE_##T] = {pack_##T, {tile1_##T, tile2_##T, tile3_##T, tile4_##T}},
    static const gemm_fns fns[LT_DTYPE_COUNT] = {GEMM_FORMATS(ENTRY)};
    gemm_run(g, &fns[g->t], first, end, scratch);
}

const lt__gemm_isa lt__gemm_avx512 = {run, gemm_scratch, gemm_rows};
