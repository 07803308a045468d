/* share.h - several Lowtide processes on one card, started in any order.
 *
 *     lt_share *share;  lt_profile prof;  lt_session *session;
 *     lt_plan_desc d = lt_plan_desc_default();
 *     lt_session_desc sd = lt_session_desc_default();
 *     lt_share_join(ctx, dev, NULL, &share, &err);
 *     lt_profile_get(ctx, dev, NULL, &prof, &err);
 *     lt_share_make_plan(share, model, dev, &prof, &d, &plan, &err);   // waits for room, asks others for it
 *     sd.share = share;
 *     lt_session_create(model, dev, plan, &sd, &session, &err);
 *     lt_session_destroy(session);
 *     lt_share_leave(share);
 *
 * A small file a card, for the processes of one user, holds what each has, wants and needs at least. Who finds
 * no room asks; sessions that have more than their least give way between two passes and grow back
 * when the other has left. What a killed process wrote is swept by the next who looks.
 *
 * Order      join, plan, session; leave after the session.
 * Lifetime   borrows context and device.
 * Threads    one caller at a time: the session's.
 * Errors     a place that cannot be written is no error: one warning, *out is NULL, and everything below takes
 *            NULL as "alone". No call waits for a process that was stopped; make_plan waits as long as desc says.
 */
#ifndef LT_SHARE_H
#define LT_SHARE_H

#include "lowtide/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lt_share lt_share;
typedef struct lt_share_desc {
    uint32_t    struct_bytes;
    const char *label;       /* copied; what the others' error texts call this process: a model's name */
    uint64_t    wait_ns;     /* for others to give way; 0: 10 s */
    uint64_t    floor_bytes; /* never give below this budget for another's sake; 0: the smallest plan */
} lt_share_desc;

LT_API lt_share_desc lt_share_desc_default(void);
/* lt_device_open. Where the card has no room even for that (a context takes some hundred MiB), the others are asked,
 * and it is tried again until desc's wait is over. */
LT_API LT_NODISCARD lt_status
lt_share_open_device(lt_ctx *ctx, const char *spec, const lt_share_desc *desc, lt_device **out, lt_err *err);
/* *out NULL also where the device is nobody else's: RAM, a simulated card of one process. */
LT_API LT_NODISCARD lt_status lt_share_join(lt_ctx *ctx, lt_device *dev, const lt_share_desc *desc, lt_share **out, lt_err *err);
LT_API void lt_share_leave(lt_share *s); /* NULL is fine */
/* lt_plan_create, for the room that the others leave or make. E_NO_FIT says who holds what. */
LT_API LT_NODISCARD lt_status
lt_share_make_plan(lt_share *s, const lt_model *m, lt_device *dev, const lt_profile *prof, const lt_plan_desc *desc,
                   lt_plan **out, lt_err *err);
LT_API uint32_t lt_share_others(lt_share *s); /* living processes beside this one */

#ifdef __cplusplus
}
#endif
#endif
