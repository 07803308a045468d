/* share_impl.h - what a session does with its lt_share. All take NULL. */
#ifndef LT_RUN_SHARE_IMPL_H
#define LT_RUN_SHARE_IMPL_H

#include "lowtide/share.h"

/* What this session holds and could do without, from now on; a claim is over with it. */
void lt__share_publish(lt_share *s, uint64_t have, uint64_t least, uint64_t want);
typedef struct lt__share_view {
    uint64_t asked; /* bytes that this process should give for those who wait */
    uint64_t taken; /* free memory that is spoken for */
} lt__share_view;
/* Never waits: false when another holds the lock just now. */
bool lt__share_look(lt_share *s, uint64_t free_bytes, lt__share_view *out);
/* Before growing by `bytes`: false when others have spoken for them. */
bool lt__share_claim(lt_share *s, uint64_t bytes, uint64_t free_bytes);
/* While the arena is given back and made anew, its bytes look free to others: they are not. */
void lt__share_keep(lt_share *s, uint64_t bytes);
uint64_t lt__share_floor(const lt_share *s);

#endif
