/* giving.h - when a session makes room on its device for others, and when it takes it again.
 *
 * Pure: numbers in, a decision out; docs/memory.md says the rules and the constants. */
#ifndef LT_RUN_GIVING_H
#define LT_RUN_GIVING_H

#include "lowtide/base.h"

#define LT__GIVE_LOOK_NS (UINT64_C(20) * 1000000)  /* no look at the device more often than this */
#define LT__GIVE_HOLD_NS (UINT64_C(1000) * 1000000) /* memory must have been free this long before it is taken */
#define LT__GIVE_HOLD_MOST_NS (UINT64_C(30) * 1000000000)
#define LT__GIVE_STREAK_NS (UINT64_C(1000) * 1000000)  /* pressure this soon after pressure doubles the slack, up to 8 */
#define LT__GIVE_RELAPSE_NS (UINT64_C(5) * 1000000000) /* pressure this soon after growing doubles the hold */

typedef struct lt__giving {
    uint64_t reserve;  /* to be left free */
    uint64_t want;     /* most that is ever held, fixed cost included */
    uint64_t least;    /* of the smallest plan */
    uint64_t slack;    /* beyond what is missing, so that a neighbour who grows in steps costs few plans */
    uint64_t hold_ns, relief_since, relief_to, grown_at, shrunk_at, streak; /* streak: slacks given at the last pressure */
} lt__giving;

typedef struct lt__give_facts {
    uint64_t now_ns, free_bytes;
    uint64_t held;     /* by the plan at work, fixed cost included */
    uint64_t budget;   /* it was made for; >= held */
    uint64_t useful;   /* more than this would change nothing; >= held */
    uint64_t asked;    /* bytes other processes ask this one to give; 0: none */
    uint64_t spoken_for; /* free bytes that others are about to take: no growing into them */
} lt__give_facts;

typedef enum lt__give_act { LT__GIVE_STAY, LT__GIVE_SHRINK, LT__GIVE_GROW } lt__give_act;

void lt__giving_init(lt__giving *g, uint64_t total_bytes, uint64_t commit_bytes, uint64_t reserve, uint64_t want);
/* *to: the budget to plan for; *missed: bytes by which the reserve will be missed, also when nothing can be done. */
lt__give_act lt__giving_decide(lt__giving *g, const lt__give_facts *f, uint64_t *to, uint64_t *missed);
void lt__giving_grew(lt__giving *g, uint64_t now_ns);
void lt__giving_refused(lt__giving *g); /* the driver did not give what it said was free */

#endif
