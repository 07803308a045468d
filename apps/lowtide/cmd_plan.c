/* cmd_plan.c - says what goes where, the peak and the speed, before anything is loaded. */
#include "app.h"

static json_t *items_json(const app *a)
{
    json_t *list = json_array();
    for (size_t i = 0; i < lt_plan_item_count(a->plan); i++) {
        lt_plan_item it = lt_plan_item_at(a->plan, i);
        json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:I, s:s, s:s}", "tensor", it.tensor, "row", (json_int_t)it.row0,
                                              "rows", (json_int_t)it.rows, "bytes", (json_int_t)it.bytes, "type",
                                              lt_dtype_get(it.dtype)->name, "place", lt_place_name(it.place)));
    }
    return list;
}

static void print_items(const app *a)
{
    for (size_t i = 0; i < lt_plan_item_count(a->plan); i++) {
        lt_plan_item it = lt_plan_item_at(a->plan, i);
        printf("%-9s %-32s rows %7lu + %-7lu %10lu bytes %s\n", lt_place_name(it.place), it.tensor, it.row0, it.rows, it.bytes,
               lt_dtype_get(it.dtype)->name);
    }
}

int cmd_plan(const opts *o)
{
    app a;
    int code = 0;
    if (app_open(&a, o) != LT_OK || app_open_device(&a) != LT_OK || app_open_model(&a) != LT_OK ||
        app_make_plan(&a, 1, 0, 0) != LT_OK) {
        code = app_fail(&a);
    } else if (o->v[OPT_json].set) {
        json_t *j = app_plan_json(&a);
        if (o->v[OPT_items].set)
            json_object_set_new(j, "item_list", items_json(&a));
        app_print_json(j);
    } else {
        app_print_plan(&a, stdout);
        if (o->v[OPT_items].set)
            print_items(&a);
    }
    app_close(&a);
    return code;
}
