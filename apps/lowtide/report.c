/* report.c - the plan and the accounting, for people and as JSON. */
#include "app.h"

static json_t *num(uint64_t v) { return json_integer((json_int_t)v); }

json_t *app_plan_json(const app *a)
{
    const lt_plan_info *p = lt_plan_get_info(a->plan);
    json_t *j = json_object();
#define N(name) json_object_set_new(j, #name, num(p->name));
#define F(name) json_object_set_new(j, #name, json_real(p->name));
    N(budget_bytes) N(fixed_bytes) N(weight_bytes) N(resident_bytes) N(streamed_bytes) N(mapped_bytes) N(host_bytes) N(ring_bytes)
    N(activation_bytes) N(kv_bytes) N(io_bytes) N(scratch_bytes) N(predicted_peak_bytes) N(smallest_budget_bytes) N(ctx) N(batch) N(rows)
    N(items) N(streamed_items) N(mapped_items)
    F(predicted_prefill_tps) F(predicted_decode_tps) F(floor_prefill_tps) F(floor_decode_tps)
#undef N
#undef F
    json_object_set_new(j, "kv_dtype", json_string(lt_dtype_get(p->kv_dtype)->name));
    json_object_set_new(j, "decode_bound", json_string(p->decode_bound));
    json_object_set_new(j, "prefill_bound", json_string(p->prefill_bound));
    lt_device_info info;
    lt_device_get_info(a->dev, &info);
    json_object_set_new(j, "memory_mode", json_string(info.memory_mode));
    json_t *r = json_array();
    for (size_t i = 0; i < lt_plan_reason_count(a->plan); i++)
        json_array_append_new(r, json_string(lt_plan_reason_at(a->plan, i)));
    json_object_set_new(j, "reasons", r);
    return j;
}

static json_t *phase_json(const lt_phase *p)
{
    return json_pack("{s:I, s:f, s:f, s:f}", "tokens", (json_int_t)p->tokens, "seconds", p->seconds, "tps", p->tps,
                     "floor_tps", p->floor_tps);
}

static json_t *memory_json(const lt_report *r)
{
    json_t *use = json_object();
    for (int u = 0; u < LT_USE_COUNT; u++)
        json_object_set_new(use, lt_use_name((lt_use)u), num(r->pool.peak_by_use[u]));
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:o}", "live_bytes", (json_int_t)r->pool.live, "peak_live_bytes",
                     (json_int_t)r->pool.peak_live, "committed_bytes", (json_int_t)r->pool.committed, "allocs",
                     (json_int_t)r->pool.allocs, "frees", (json_int_t)r->pool.frees, "peak_by_use", use);
}

static json_t *changes_json(const lt_session *s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < lt_session_budget_change_count(s); i++) {
        lt_budget_change c = lt_session_budget_change_at(s, i);
        json_array_append_new(list, json_pack("{s:I, s:I, s:I, s:s, s:I, s:I, s:f, s:f}", "at_token", (json_int_t)c.at_token, "from",
                                              (json_int_t)c.from, "to", (json_int_t)c.to, "why", c.why, "free_bytes",
                                              (json_int_t)c.free_bytes, "missed_bytes", (json_int_t)c.missed_bytes, "seconds",
                                              c.seconds, "decode_tps_before", c.decode_tps));
    }
    return list;
}

json_t *app_report_json(const app *a)
{
    lt_report r;
    lt_device_info info;
    lt_session_get_report(a->session, &r);
    lt_device_get_info(a->dev, &info);
    json_t *j = json_object();
    json_object_set_new(j, "lowtide", json_string(lt_version()));
    json_object_set_new(j, "model", app_string(a->o->arg));
    json_object_set_new(j, "device", json_string(info.name));
    json_object_set_new(j, "memory_mode", json_string(info.memory_mode));
    json_object_set_new(j, "budget_bytes", num(r.budget_bytes));
    json_object_set_new(j, "fixed_bytes", num(r.fixed_bytes));
    json_object_set_new(j, "peak_bytes", num(r.peak_bytes));
    json_object_set_new(j, "host_peak_bytes", num(r.host_peak_bytes));
    json_object_set_new(j, "host_swapped_bytes", num(r.host_swapped_bytes));
    json_object_set_new(j, "managed_host_peak_bytes", num(r.device.peak_host_bytes));
    json_object_set_new(j, "bit_exact", json_true());
    json_object_set_new(j, "reserve_bytes", num(a->reserve));
    json_object_set_new(j, "reserve_missed_bytes", num(r.reserve_missed_bytes));
    json_object_set_new(j, "budget_changes", changes_json(a->session));
    json_object_set_new(j, "budget_changes_seconds", json_real(r.budget_seconds));
    json_object_set_new(j, "decode_tps_after_change", json_real(r.since_change.tps));
    json_object_set_new(j, "plan", app_plan_json(a));
    json_object_set_new(j, "moved", json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "h2d_bytes", (json_int_t)r.h2d_bytes,
                                              "d2h_bytes", (json_int_t)r.d2h_bytes, "disk_bytes", (json_int_t)r.disk_bytes,
                                              "mapped_bytes", (json_int_t)r.mapped_bytes,
                                              "weights_after_first_pass_bytes", (json_int_t)r.h2d_after_first,
                                              "streamed_loads", (json_int_t)r.streamed_loads, "stall_seconds",
                                              r.stall_seconds));
    json_object_set_new(j, "launches", num(r.device.launches));
    json_object_set_new(j, "graphs", num(r.device.graphs));
    json_object_set_new(j, "load_seconds", json_real(r.load_seconds));
    json_object_set_new(j, "prefill", phase_json(&r.prefill));
    json_object_set_new(j, "decode", phase_json(&r.decode));
    json_object_set_new(j, "memory", memory_json(&r));
    return j;
}

bool app_write_report(app *a, json_t *j)
{
    app_file f = {0};
    if (!a->o->v[OPT_report].set) {
        json_decref(j);
        return true;
    }
    lt_err before = a->err; /* of the work the report is about */
    lt_status s = app_file_open(a, OPT_report, &f);
    if (s == LT_OK) {
        bool ok = json_dumpf(j, f.f, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) == 0 && fputc('\n', f.f) != EOF;
        s = app_file_close(a, &f, true);
        if (s == LT_OK && !ok) {
            snprintf(a->err.text, sizeof a->err.text, "--report %s: cannot be written", a->o->v[OPT_report].s);
            s = LT_E_IO;
        }
    }
    if (s != LT_OK)
        fprintf(stderr, "lowtide: %s\n", a->err.text);
    a->err = before;
    json_decref(j);
    return s == LT_OK;
}

void app_print_plan(const app *a, FILE *out)
{
    const lt_plan_info *p = lt_plan_get_info(a->plan);
    const lt_model_info *m = lt_model_get_info(a->model);
    lt_device_info d;
    lt_device_get_info(a->dev, &d);
    char b[10][24];
    fprintf(out, "model   %s %s, %.0fM parameters, %s of %s weights\n", m->arch, m->name, (double)m->params / 1e6,
            app_bytes(m->weight_bytes, b[0]), m->main_dtype);
    fprintf(out, "device  %s; memory: %s\n", d.name, d.memory_mode);
    fprintf(out, "budget  %s = fixed %s + arena %s\n", app_bytes(p->budget_bytes, b[0]), app_bytes(p->fixed_bytes, b[1]),
            app_bytes(p->predicted_peak_bytes - p->fixed_bytes, b[2]));
    fprintf(out, "arena   resident %s | ring %s | activations %s | in/out %s | KV %s (%s, %u positions)\n",
            app_bytes(p->resident_bytes, b[0]), app_bytes(p->ring_bytes, b[1]), app_bytes(p->activation_bytes, b[2]),
            app_bytes(p->io_bytes, b[3]), app_bytes(p->kv_bytes, b[4]), lt_dtype_get(p->kv_dtype)->name, p->ctx);
    fprintf(out, "stream  %s a pass in %u of %u pieces; a pass takes at most %u tokens\n", app_bytes(p->streamed_bytes, b[0]),
            p->streamed_items, p->items, p->batch);
    fprintf(out, "expect  peak %s, prefill %.1f tok/s (floor %.1f, bound by %s), decode %.1f tok/s (floor %.1f, bound by %s)\n",
            app_bytes(p->predicted_peak_bytes, b[0]), p->predicted_prefill_tps, p->floor_prefill_tps, p->prefill_bound,
            p->predicted_decode_tps, p->floor_decode_tps, p->decode_bound);
    for (size_t i = 0; i < lt_plan_reason_count(a->plan); i++)
        fprintf(out, "why     %s\n", lt_plan_reason_at(a->plan, i));
}

static void print_phase(FILE *out, const char *name, const lt_phase *p, double predicted)
{
    if (!p->tokens)
        return;
    fprintf(out, "%s %lu tokens in %.3f s: %.1f tok/s, predicted %.1f (%+.0f%%), %.0f%% of the floor's speed\n", name, p->tokens,
            p->seconds, p->tps, predicted, predicted > 0 ? 100 * (p->tps / predicted - 1) : 0,
            p->floor_tps > 0 ? 100 * p->tps / p->floor_tps : 0);
}

void app_print_accounting(const app *a, FILE *out)
{
    const lt_plan_info *p = lt_plan_get_info(a->plan);
    lt_report r;
    lt_session_get_report(a->session, &r);
    char b[4][24], in_place[48] = "";
    fprintf(out, "peak    %s of %s budget; predicted %s (%+.2f%%); host peak %s\n", app_bytes(r.peak_bytes, b[0]),
            app_bytes(r.budget_bytes, b[1]), app_bytes(p->predicted_peak_bytes, b[2]),
            100 * ((double)r.peak_bytes / (double)p->predicted_peak_bytes - 1), app_bytes(r.host_peak_bytes, b[3]));
    if (r.device.peak_host_bytes)
        fprintf(out, "managed %s that were given back lay in host memory at most\n", app_bytes(r.device.peak_host_bytes, b[0]));
    if (r.host_swapped_bytes)
        fprintf(out, "swap    %s of this process lie on swap, and every token waits for them: lower --ram, or use --lock\n",
                app_bytes(r.host_swapped_bytes, b[0]));
    if (lt_session_budget_change_count(a->session))
        fprintf(out, "budget  changed %zu times in %.3f s, %s at the end; decode since then %.1f tok/s\n",
                lt_session_budget_change_count(a->session), r.budget_seconds, app_bytes(r.budget_now_bytes, b[0]), r.since_change.tps);
    if (r.reserve_missed_bytes)
        fprintf(out, "reserve missed by %s: no smaller plan exists\n", app_bytes(r.reserve_missed_bytes, b[0]));
    print_phase(out, "prefill", &r.prefill, p->predicted_prefill_tps);
    print_phase(out, "decode ", &r.decode, p->predicted_decode_tps);
    if (r.mapped_bytes)
        snprintf(in_place, sizeof in_place, ", %s read in place", app_bytes(r.mapped_bytes, b[3]));
    fprintf(out, "moved   %s in, %s out%s, %s read from files; waited %.3f s for copies; loading took %.3f s\n",
            app_bytes(r.h2d_bytes, b[0]), app_bytes(r.d2h_bytes, b[1]), in_place, app_bytes(r.disk_bytes, b[2]), r.stall_seconds,
            r.load_seconds);
}
