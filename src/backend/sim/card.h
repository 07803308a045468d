/* card.h - one simulated card shared by several devices, also of several processes.
 *
 * A small file holds how much each has taken. What is taken changes under a lock of the file;
 * what a killed process took is free again at the next look. */
#ifndef LT_SIM_CARD_H
#define LT_SIM_CARD_H

#include "lowtide/base.h"

typedef struct lt_simcard lt_simcard;

/* Makes the file when absent; a card of another size is E_INVALID. */
LT_NODISCARD lt_status lt__simcard_open(lt_ctx *ctx, const char *path, uint64_t vram_bytes, lt_simcard **out, lt_err *err);
void lt__simcard_close(lt_simcard *c); /* gives back what this one took; NULL is fine */
/* False when less is free; *free_bytes is what is. */
bool lt__simcard_take(lt_simcard *c, uint64_t bytes, uint64_t *free_bytes);
void lt__simcard_give(lt_simcard *c, uint64_t bytes);
uint64_t lt__simcard_free(lt_simcard *c);
/* The same for all who share it. */
void lt__simcard_id(const lt_simcard *c, char *out, size_t bytes);
bool lt__simcard_id_of(const char *path, char *out, size_t bytes); /* false: there is no such file */

#endif
