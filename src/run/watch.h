/* watch.h - the writing side of lt_watch. */
#ifndef LT_RUN_WATCH_H
#define LT_RUN_WATCH_H

#include "lowtide/watch.h"

typedef struct lt__watcher lt__watcher;
/* NULL where no file can be had, which is no error. */
lt__watcher *lt__watcher_open(lt_ctx *ctx);
void lt__watcher_close(lt__watcher *w);
void lt__watcher_write(lt__watcher *w, const lt_watch *now);

#endif
