/* A stand-in for libnvidia-ml.so.1: cards as a scenario file describes them, one "key value" a line.
 * The file's path is in NVML_STUB. Compiled with -DOLD it lacks what drivers before 510.39 lack.
 *
 * Keys: init CODE, count N, busy PERCENT, used MIB, mig 0|1, gpm 0|1, processes N, held MIB|-1,
 * pid FIRST, link GENERATION, reasons BITS, kinds N (models of cards),
 * fail FUNCTION, code CODE, hang FUNCTION, slow FUNCTION, slow_ms MS, good_calls N (before that),
 * lost_after CALLS.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INSUFFICIENT_SIZE = 7, LOST = 15, NOT_SUPPORTED = 3, MIB = 1 << 20 };

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } rates_t;
typedef struct { unsigned int pid; unsigned long long used; unsigned int instance, compute; } process_t;
typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} pci_t;
typedef struct { unsigned int version, supported; } support_t;
typedef struct { unsigned int id; int result; double value; const char *names[3]; } metric_t;
typedef struct {
    unsigned int version, count;
    void *first, *second;
    metric_t metrics[];
} metrics_t;

static int calls, matched;

static char keys[32][64], values[32][128];
static int known = -1;

/* The scenario, read once. */
static const char *text(const char *wanted) {
    if (known < 0) {
        char line[256];
        FILE *file = fopen(getenv("NVML_STUB"), "r");
        known = 0;
        while (file && known < 32 && fgets(line, sizeof line, file))
            known += sscanf(line, "%63s %127s", keys[known], values[known]) == 2;
        if (file) fclose(file);
    }
    for (int i = 0; i < known; i++)
        if (!strcmp(keys[i], wanted)) return values[i];
    return "";
}

static long number(const char *key, long otherwise) {
    const char *value = text(key);
    return value[0] ? atol(value) : otherwise;
}

static int is(const char *key, const char *function) {
    return !strcmp(text(key), function) && ++matched > number("good_calls", 0);
}

/* What every function does first: hang, dawdle, fail, or go on. */
static int enter(const char *function) {
    if (is("hang", function))
        for (;;) sleep(3600);
    if (is("slow", function)) usleep(1000 * number("slow_ms", 100));
    if (is("fail", function)) return (int)number("code", NOT_SUPPORTED);
    long last = number("lost_after", 0);
    if (last && ++calls > last) return LOST;
    return SUCCESS;
}

#define ENTER do { int code = enter(__func__); if (code) return code; } while (0)
#define INDEX(handle) ((unsigned)(uintptr_t)(handle) - 1)

int nvmlInitWithFlags(unsigned int flags) { ENTER; return (int)number("init", 0); }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return "stub"; }
int nvmlDeviceGetCount_v2(unsigned int *count) { ENTER; *count = number("count", 1); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {
    ENTER;
    *handle = (void *)(uintptr_t)(index + 1);
    return 0;
}
int nvmlDeviceGetName(void *handle, char *name, unsigned int length) {
    ENTER;
    snprintf(name, length, "Stub %ld", INDEX(handle) % number("kinds", 1));
    return 0;
}
int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned int length) {
    ENTER;
    snprintf(uuid, length, "GPU-%c0000000-stub", 'a' + INDEX(handle));
    return 0;
}
int nvmlDeviceGetPciInfo_v3(void *handle, pci_t *pci) {
    ENTER;
    memset(pci, 0, sizeof *pci);
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", 0x17 + INDEX(handle));
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory) {
    ENTER;
    memory->total = 24ULL << 30;
    memory->used = (unsigned long long)number("used", 1024) * MIB;
    memory->free = memory->total - memory->used;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *handle, rates_t *rates) {
    ENTER;
    if (number("mig", 0)) return NOT_SUPPORTED;
    rates->gpu = number("busy", 40);
    rates->memory = 5;
    return 0;
}
int nvmlDeviceGetMaxPcieLinkGeneration(void *handle, unsigned int *value) {
    ENTER; *value = 4; return 0;
}
int nvmlDeviceGetMaxPcieLinkWidth(void *handle, unsigned int *value) {
    ENTER; *value = 16; return 0;
}
int nvmlDeviceGetCurrPcieLinkGeneration(void *handle, unsigned int *value) {
    ENTER; *value = number("link", 1); return 0;
}
int nvmlDeviceGetCurrPcieLinkWidth(void *handle, unsigned int *value) {
    ENTER; *value = 16; return 0;
}
int nvmlDeviceGetClockInfo(void *handle, int kind, unsigned int *mhz) {
    ENTER; *mhz = 1500; return kind == 1 ? 0 : 2;
}
int nvmlDeviceGetPowerUsage(void *handle, unsigned int *milliwatts) {
    ENTER; *milliwatts = 250500; return 0;
}
int nvmlDeviceGetPcieThroughput(void *handle, int counter, unsigned int *kib) {
    ENTER; *kib = counter == 1 ? 2000 : 10; return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *bits) {
    ENTER; *bits = number("reasons", 0); return 0;
}

static int processes(unsigned int *count, process_t *found) {
    unsigned int there = number("processes", 0);
    if (!there) { *count = 0; return 0; }
    if (!found || *count < there) { *count = there; return INSUFFICIENT_SIZE; }
    for (unsigned int i = 0; i < there; i++) {
        long held = number("held", 100);
        found[i].pid = number("pid", 4000000) + i;
        found[i].used = held < 0 ? ~0ULL : (unsigned long long)held * MIB;
        found[i].instance = found[i].compute = ~0U;
    }
    *count = there;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned int *count, process_t *found) {
    ENTER; return processes(count, found);
}

#ifndef OLD
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned int *count, process_t *found) {
    ENTER; return processes(count, found);
}
int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *bits) {
    ENTER; *bits = number("reasons", 0); return 0;
}
int nvmlDeviceGetMigMode(void *handle, unsigned int *now, unsigned int *pending) {
    ENTER; *now = *pending = number("mig", 0); return 0;
}
int nvmlGpmQueryDeviceSupport(void *handle, support_t *support) {
    ENTER; support->supported = number("gpm", 0); return 0;
}
static int taken;
int nvmlGpmSampleAlloc(void **sample) { ENTER; *sample = calloc(1, sizeof(int)); return 0; }
int nvmlGpmSampleFree(void *sample) { free(sample); return 0; }
int nvmlGpmSampleGet(void *handle, void *sample) { ENTER; *(int *)sample = ++taken; return 0; }
int nvmlGpmMetricsGet(metrics_t *request) {
    ENTER;
    if (request->version != 1 || *(int *)request->first >= *(int *)request->second) return 2;
    for (unsigned int i = 0; i < request->count; i++) {
        metric_t *metric = &request->metrics[i];
        metric->result = 0;
        metric->value = metric->id == 2 ? 60 : metric->id == 3 ? 25 : metric->id == 21 ? 800 : 8;
    }
    return 0;
}
#endif
