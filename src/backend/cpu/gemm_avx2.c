/* Many tokens times quantised rows: sixteen rows by three tokens a tile. */
#include "backend/cpu/avx2.h"

#define GEMM_ROWS 8
#define GEMM_PANELS 2
#define GEMM_TOKENS 3
#define GEMM_SIGNED_OFFSET 0

typedef __m256i vint;
typedef __m256 vflt;
LT_ALWAYS vint v_load(const void *p) { return lt__load256(p); }
LT_ALWAYS vint v_set1_u32_at(const void *p) { return lt__set1_u32_at(p); }
LT_ALWAYS vint v_add_i32(vint a, vint b) { return _mm256_add_epi32(a, b); }
LT_ALWAYS vint v_madd_i16(vint a, vint b) { return _mm256_madd_epi16(a, b); }
LT_ALWAYS vflt v_to_f32(vint a) { return _mm256_cvtepi32_ps(a); }
LT_ALWAYS vflt v_zero_f32(void) { return _mm256_setzero_ps(); }
LT_ALWAYS vflt v_load_f32(const void *p) { return _mm256_loadu_ps(p); }
LT_ALWAYS vflt v_set1_f32(float x) { return _mm256_set1_ps(x); }
LT_ALWAYS vflt v_add_f32(vflt a, vflt b) { return _mm256_add_ps(a, b); }
LT_ALWAYS vflt v_mul(vflt a, vflt b) { return _mm256_mul_ps(a, b); }
LT_ALWAYS vflt v_fma(vflt a, vflt b, vflt c) { return _mm256_fmadd_ps(a, b, c); }
LT_ALWAYS void v_store_rows(float *p, vflt v, uint64_t n) { lt__store_lanes(p, v, n); }

#include "backend/cpu/gemm.h"

/* Part g of a block: as many products of unsigned weights as add up in int16, see lt__wchain. */
LT_ALWAYS void tile_part(lt_dtype t, const int np, const int nt, const tile_args *a, const uint8_t *const *rec,
                         uint64_t b, const int g, vint *sum)
{
    const lt__wkind kind = kind_of(t);
    const int chain = lt__wchain(t);
    vint x[GEMM_PANELS * GEMM_TOKENS], scale[GEMM_PANELS];
    LT_UNROLL
    for (int k = g * chain; k < (g + 1) * chain; k++) {
        vint w[GEMM_PANELS], aw[GEMM_PANELS];
        LT_UNROLL
        for (int p = 0; p < np; p++) {
            w[p] = v_load(rec[p] + REG * k);
            aw[p] = kind == WK_S8 ? _mm256_abs_epi8(w[p]) : w[p];
        }
        LT_UNROLL
        for (int j = 0; j < nt; j++) {
            const vint q = v_set1_u32_at(a->tok[j].q + 32 * b + 4 * k);
            LT_UNROLL
            for (int p = 0; p < np; p++) {
                const vint y = _mm256_maddubs_epi16(aw[p], kind == WK_S8 ? _mm256_sign_epi8(q, w[p]) : q);
                x[p * nt + j] = k > g * chain ? _mm256_add_epi16(x[p * nt + j], y) : y;
                LT_KEEP(x[p * nt + j]);
            }
        }
    }
    LT_UNROLL
    for (int p = 0; p < np; p++) {
        scale[p] = _mm256_set1_epi16(1);
        if (kind == WK_SC || kind == WK_SCM) { /* the half's scale in both words of a lane */
            const vint pair = v_load(rec[p] + REC_SC);
            scale[p] = g * chain < 4 ? _mm256_blend_epi16(pair, _mm256_slli_epi32(pair, 16), 0xaa)
                                     : _mm256_blend_epi16(pair, _mm256_srli_epi32(pair, 16), 0x55);
        }
    }
    LT_UNROLL
    for (int i = 0; i < np * nt; i++) {
        const vint y = _mm256_madd_epi16(x[i], scale[i / nt]);
        sum[i] = g ? _mm256_add_epi32(sum[i], y) : y;
        LT_KEEP(sum[i]);
    }
}

LT_ALWAYS void tile_sums(lt_dtype t, const int np, const int nt, const tile_args *a, const uint8_t *const *rec,
                         uint64_t b, vint *sum)
{
    const int parts = 8 / lt__wchain(t);
    tile_part(t, np, nt, a, rec, b, 0, sum);
    if (parts > 1)
        tile_part(t, np, nt, a, rec, b, 1, sum);
    if (parts > 2) {
        tile_part(t, np, nt, a, rec, b, 2, sum);
        tile_part(t, np, nt, a, rec, b, 3, sum);
    }
    if (parts > 4) {
        tile_part(t, np, nt, a, rec, b, 4, sum);
        tile_part(t, np, nt, a, rec, b, 5, sum);
        tile_part(t, np, nt, a, rec, b, 6, sum);
        tile_part(t, np, nt, a, rec, b, 7, sum);
    }
}

#define FORMAT(T, N) \
    static void pack_##T(const uint8_t *const *row, uint64_t nb, uint8_t *rec) { pack##N(LT_DTYPE_##T, row, nb, rec); } \
    static void tile1_##T(const tile_args *a) { tile(LT_DTYPE_##T, GEMM_PANELS, 1, a); } \
    static void tile2_##T(const tile_args *a) { tile(LT_DTYPE_##T, GEMM_PANELS, 2, a); } \
    static void tile3_##T(const tile_args *a) { tile(LT_DTYPE_##T, GEMM_PANELS, 3, a); }
GEMM_FORMATS(FORMAT)

static void run(const lt__gemm *g, uint64_t first, uint64_t end, void *scratch)
{
#define ENTRY(T, N) [LT_DTYPE_##T] = {pack_##T, {tile1_##T, tile2_##T, tile3_##T}},
    static const gemm_fns fns[LT_DTYPE_COUNT] = {GEMM_FORMATS(ENTRY)};
    gemm_run(g, &fns[g->t], first, end, scratch);
}

const lt__gemm_isa lt__gemm_avx2 = {run, gemm_scratch, gemm_rows};
