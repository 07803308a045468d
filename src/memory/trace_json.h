/* trace_json.h - the words of a timeline; trace.c writes them. */
#ifndef LT_MEMORY_TRACE_JSON_H
#define LT_MEMORY_TRACE_JSON_H

#include "memory/trace.h"

#define LT__TRACE_JSON_MOST 1600 /* bytes of an event, with names */

typedef struct lt__trace_json { uint64_t live[LT_USE_COUNT], committed, reads; } lt__trace_json;

size_t lt__trace_json_head(char *out, size_t bytes); /* fits into 4 KiB */
/* what, which: escaped names of a span, of at most LT__TRACE_NAME bytes. 0: nothing to show. */
size_t lt__trace_json_event(lt__trace_json *j, const lt__trace_event *e, const char *what, const char *which, char *out, size_t bytes);

#endif
