/* probe.c - what was found on this machine: one line, and each problem with its remedy. */
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda/device.h"
#include "backend/cuda/images.h"

typedef struct probing { lt_finding_fn found; void *user; } probing;

static void say(const probing *p, const char *problem, const char *remedy)
{
    if (p->found)
        p->found(p->user, problem, remedy);
}

static bool file_begins(const char *path, const char *text)
{
    char line[64] = "";
    FILE *f = fopen(path, "re");
    bool is = f && fgets(line, sizeof line, f) && strncmp(line, text, strlen(text)) == 0;
    if (f)
        fclose(f);
    return is;
}

/* Display controllers of NVIDIA, whether a driver is at work or not. */
static bool card_in_a_slot(void)
{
    glob_t g;
    bool is = false;
    if (glob("/sys/bus/pci/devices/*/vendor", 0, NULL, &g) != 0)
        return false;
    for (size_t i = 0; !is && i < g.gl_pathc; i++) {
        char class[512];
        snprintf(class, sizeof class, "%.*sclass", (int)(strlen(g.gl_pathv[i]) - strlen("vendor")), g.gl_pathv[i]);
        is = file_begins(g.gl_pathv[i], "0x10de") && file_begins(class, "0x03");
    }
    globfree(&g);
    return is;
}

static bool in_wsl(void) { return access("/dev/dxg", F_OK) == 0; }

/* Why no device could be opened; words of our own errors lead to what helps. */
static void cannot_open(const probing *p, const lt_err *err)
{
    enum { NO_KERNELS = 0 };
    static const struct { const char *words, *remedy; } rows[] = {
        {"has no kernels", "install the CUDA toolkit and configure again: nvcc is looked for in CUDA_HOME, /usr/local/cuda and PATH"},
        {"driver is too old", "install a driver for that release of CUDA or a later one, or build with an older toolkit (CUDA_HOME)"},
        {"compute capability", "build for it: cmake -DLT_CUDA_ARCHS=89 for 8.9, and so on; 6.1 and 7.0 need a toolkit of CUDA 12"},
        {"lists no device", "in a container: start it with the card (--gpus all); else see what nvidia-smi says, and CUDA_VISIBLE_DEVICES"},
        {"OUT_OF_MEMORY", "other programs hold the card's memory: nvidia-smi lists them"},
    };
    bool card = in_wsl() || card_in_a_slot();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strstr(err->text, rows[i].words)) {
            if (card || i != NO_KERNELS) /* nobody misses them where no card is */
                say(p, err->text, rows[i].remedy);
            return;
        }
    if (in_wsl())
        say(p, err->text, "WSL: install NVIDIA's driver on Windows, none inside; its libcuda is in /usr/lib/wsl/lib, which the loader must search");
    else if (card)
        say(p, err->text, "an NVIDIA card is in this machine: install its driver (Debian: nvidia-driver, of non-free) and start anew; in a container, "
                          "start it with the card (--gpus all)");
}

/* A card at rest takes its link down a few generations; the width stays what the slot gives. */
static void look_at_link(const lt_nvml *n, const probing *p, char *out, size_t bytes)
{
    unsigned gen, width, best_gen, best_width;
    char text[128];
    if (!n->library || !n->link_gen || !n->link_width || !n->best_gen || !n->best_width || n->link_gen(n->device, &gen) != 0 ||
        n->link_width(n->device, &width) != 0 || n->best_gen(n->device, &best_gen) != 0 || n->best_width(n->device, &best_width) != 0)
        return;
    snprintf(out, bytes, ", PCIe %u x%u now, %u x%u at best", gen, width, best_gen, best_width);
    if (width >= best_width)
        return;
    snprintf(text, sizeof text, "the card's link has %u lanes of %u: weights are streamed %.0f times slower", width, best_width,
             (double)best_width / (width ? width : 1));
    say(p, text, "another slot, or no riser; some boards share a slot's lanes with a disk");
}

static void look_at_device(const lt_cuda_device *d, const probing *p)
{
    if (!d->nvml.library)
        say(p, "NVML is missing: all that is in use on the card counts as this process's own", "install libnvidia-ml.so.1, a part of the driver");
    else if (!d->listed)
        say(p, "NVML does not know this process by its number: what it holds is told by changes of what all hold, wrong while others come and go",
            in_wsl() ? "none: so it is in WSL; start one program after the other" : "in a container: start it with --pid=host");
    if (!d->vmm && !d->managed)
        say(p, "no virtual memory management: an arena is one allocation and cannot shrink for others", "a driver of CUDA 11.2 or later; some virtual cards have none");
    if (!d->read_only_register)
        say(p, "this card cannot lock mappings of files: weights pass through a locked ring of copies", "none; --ram bounds the ring");
    if (in_wsl())
        say(p, "WSL: Windows moves a card's memory to RAM without a word when programs ask for too much, and locks half of RAM at most",
            "a budget below what is free (--vram, --reserve-vram); memory= in .wslconfig");
}

void lt__cuda_probe(lt_ctx *ctx, char *out, size_t bytes, lt_finding_fn found, void *user)
{
    lt_device *dev;
    lt_err err = {0};
    char archs[128], version[64] = "unknown", link[96] = "";
    const probing p = {found, user};
    if (lt_device_open(ctx, "cuda", &dev, &err) != LT_OK) {
        snprintf(out, bytes, "%s", err.text);
        cannot_open(&p, &err);
        return;
    }
    const lt_cuda_device *d = lt__cuda_of(dev);
    lt__cuda_list_archs(archs, sizeof archs);
    if (d->nvml.library)
        (void)d->nvml.driver(version, sizeof version);
    look_at_link(&d->nvml, &p, link, sizeof link);
    snprintf(out, bytes, "%s, compute capability %d.%d, driver %s (CUDA %d.%d)%s%s; kernels for %s, by CUDA %d.%d", d->name, d->props.major,
             d->props.minor, version, d->cu.version / 1000, d->cu.version % 1000 / 10, link, d->vmm ? "" : ", plain memory: an arena cannot shrink",
             archs, lt__cuda_image_toolkit / 1000, lt__cuda_image_toolkit % 1000 / 10);
    look_at_device(d, &p);
    lt_device_close(dev);
}
