/* A stand-in for NVIDIA's management library: two GPUs and three MIG instances, with faults on demand.
 *
 * STUB_NVML_CONTROL names a file that is read at every call. Its lines:
 *     <function> <code> [<calls>]   the function returns this error code, after so many calls that succeed
 *     reasons <bits>                why the clocks are low
 *     pids <pid> ...                processes that compute on each GPU; `pids:GPU-22222222` and
 *                                   `reasons:GPU-22222222` are those of that GPU alone
 *     power_limit_mw <number>       and likewise compute_mode, mig (1 switches it on): settings of each GPU
 * STUB_NVML_LOG names a file that every call is written to, one name per line.
 *
 * There is no function that finds a GPU by index: whoever tries gets "function not found". Only with LISTED defined are
 * there those that list GPUs and their settings. With OLD_DRIVER defined, functions that drivers before 550 do not have
 * are missing. See nvml.h for the interface.
 *
 * PyTorch's allocator opens the library too; what it asks for is there with LISTED. The fake GPU of number 0 is
 * GPU-11111111, and that of number 1 GPU-22222222.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

typedef struct {
    const char *uuid;
    unsigned long long total, reserved, used, energy_mj;
    unsigned utilisation, clock_mhz, power_mw, temperature;
    int board; /* of which GPU this is an instance; -1 for a whole GPU */
} Gpu;

#define GIB (1ULL << 30)

static Gpu gpus[] = {
    {"GPU-22222222-aaaa-bbbb-cccc-000000000002", 24 * GIB, 1 * GIB, 5 * GIB, 7000, 20, 1200, 150500, 50, -1},
    {"GPU-11111111-aaaa-bbbb-cccc-000000000001", 80 * GIB, 2 * GIB, 30 * GIB, 1000, 97, 1410, 312250, 61, -1},
    {"MIG-33333333-aaaa-bbbb-cccc-000000000003", 10 * GIB, 0, 3 * GIB, 0, 0, 0, 0, 0, 1},
    {"MIG-44444444-aaaa-bbbb-cccc-000000000004", 20 * GIB, 0, 7 * GIB, 0, 0, 0, 0, 0, 1},
    {"MIG-55555555-aaaa-bbbb-cccc-000000000005", 20 * GIB, 0, 8 * GIB, 0, 0, 0, 0, 0, 1},
};

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned gpu, memory; } Utilisation;
typedef struct { unsigned version; int sensor, temperature; } Temperature;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;

/* The line of the control file that begins with this word, without the word. */
static int control(const char *word, char *rest, size_t size) {
    const char *path = getenv("STUB_NVML_CONTROL");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file)) {
        size_t length = strlen(word);
        if (!strncmp(line, word, length) && line[length] == ' ') {
            snprintf(rest, size, "%s", line + length + 1);
            found = 1;
        }
    }
    if (file) fclose(file);
    return found;
}

static int enter(const char *function) {
    static struct { const char *function; int calls; } counters[64];
    const char *path = getenv("STUB_NVML_LOG");
    FILE *log = path ? fopen(path, "a") : NULL;
    char rest[512];
    int code = 0, after = 0, slot = 0;
    if (log) {
        fprintf(log, "%s\n", function);
        fclose(log);
    }
    while (counters[slot].function && strcmp(counters[slot].function, function)) slot++;
    counters[slot].function = function;
    if (control(function, rest, sizeof rest) && sscanf(rest, "%d %d", &code, &after) >= 1 &&
        counters[slot].calls >= after)
        return code;
    counters[slot].calls++;
    return SUCCESS;
}

#define ENTER                         \
    int code = enter(__func__);       \
    if (code != SUCCESS) return code;
/* What a MIG instance does not have. */
#define WHOLE_GPU_ONLY \
    if (gpu->board >= 0) return NOT_SUPPORTED;

int nvmlInitWithFlags(unsigned flags) { (void)flags; ENTER return SUCCESS; }

int nvmlShutdown(void) { ENTER return SUCCESS; }

const char *nvmlErrorString(int code) { return code == 999 ? "Unknown Error" : "some other error"; }

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    ENTER
    snprintf(version, length, "570.86.15");
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Gpu **gpu) {
    ENTER
    for (size_t index = 0; index < sizeof gpus / sizeof *gpus; index++)
        if (!strcmp(gpus[index].uuid, uuid)) {
            *gpu = &gpus[index];
            return SUCCESS;
        }
    return NOT_FOUND;
}

/* A number that a line of the control file may set. */
static unsigned setting(const char *word, unsigned otherwise) {
    char rest[512];
    return control(word, rest, sizeof rest) ? (unsigned)strtoul(rest, NULL, 10) : otherwise;
}

int nvmlDeviceGetMigMode(Gpu *gpu, unsigned *current, unsigned *pending) {
    ENTER
    WHOLE_GPU_ONLY
    *current = *pending = setting("mig", 0);
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(Gpu *gpu, unsigned *count) {
    ENTER
    *count = gpu->board < 0 ? 7 : 0;
    return SUCCESS;
}

/* The instances of a GPU are in the places 1, 2, …: place 0 is free. */
int nvmlDeviceGetMigDeviceHandleByIndex(Gpu *gpu, unsigned index, Gpu **instance) {
    ENTER
    for (size_t each = 0; index && each < sizeof gpus / sizeof *gpus; each++)
        if (gpus[each].board >= 0 && &gpus[gpus[each].board] == gpu && !--index) {
            *instance = &gpus[each];
            return SUCCESS;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Gpu *gpu, Gpu **board) {
    ENTER
    if (gpu->board < 0) return INVALID_ARGUMENT;
    *board = &gpus[gpu->board];
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *memory) {
    ENTER
    memory->total = gpu->total;
    memory->used = gpu->used + gpu->reserved;
    memory->free = gpu->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Gpu *gpu, Utilisation *rates) {
    ENTER
    WHOLE_GPU_ONLY
    rates->gpu = gpu->utilisation;
    rates->memory = 1;
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(Gpu *gpu, unsigned type, unsigned *clock_mhz) {
    ENTER
    WHOLE_GPU_ONLY
    *clock_mhz = type == 1 ? gpu->clock_mhz : 9999; /* 1 is NVML_CLOCK_SM */
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(Gpu *gpu, unsigned *power_mw) {
    ENTER
    WHOLE_GPU_ONLY
    *power_mw = gpu->power_mw;
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(Gpu *gpu, unsigned long long *energy_mj) {
    ENTER
    WHOLE_GPU_ONLY
    *energy_mj = gpu->energy_mj += 500;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(Gpu *gpu, unsigned sensor, unsigned *temperature) {
    ENTER
    WHOLE_GPU_ONLY
    *temperature = sensor == 0 ? gpu->temperature : 999;
    return SUCCESS;
}

/* The line with this word for a GPU or, without one, for all. */
static int control_of(const Gpu *gpu, const char *word, char *rest, size_t size) {
    char one[64];
    snprintf(one, sizeof one, "%s:%.12s", word, gpu->uuid);
    return control(one, rest, size) || control(word, rest, size);
}

static int reasons(const Gpu *gpu, unsigned long long *bits) {
    char rest[512];
    *bits = control_of(gpu, "reasons", rest, sizeof rest) ? strtoull(rest, NULL, 0) : 0;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Gpu *gpu, unsigned long long *bits) {
    ENTER
    WHOLE_GPU_ONLY
    return reasons(gpu, bits);
}

static int processes(const Gpu *gpu, unsigned *count, Process *list) {
    char rest[512];
    unsigned room = *count, found = 0;
    if (!control_of(gpu, "pids", rest, sizeof rest)) rest[0] = 0;
    for (char *word = strtok(rest, " \n"); word; word = strtok(NULL, " \n")) {
        if (found < room && list) {
            memset(&list[found], 0, sizeof *list);
            list[found].pid = (unsigned)strtoul(word, NULL, 10);
        }
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v2(Gpu *gpu, unsigned *count, Process *list) {
    (void)gpu;
    ENTER
    return processes(gpu, count, list);
}

#ifndef OLD_DRIVER

int nvmlDeviceGetMemoryInfo_v2(Gpu *gpu, MemoryV2 *memory) {
    ENTER
    if (memory->version != (sizeof *memory | 2u << 24)) return 25; /* argument version mismatch */
    memory->total = gpu->total;
    memory->reserved = gpu->reserved;
    memory->used = gpu->used;
    memory->free = gpu->total - gpu->used - gpu->reserved;
    return SUCCESS;
}

int nvmlDeviceGetTemperatureV(Gpu *gpu, Temperature *temperature) {
    ENTER
    WHOLE_GPU_ONLY
    if (temperature->version != (sizeof *temperature | 1u << 24)) return 25;
    temperature->temperature = temperature->sensor == 0 ? (int)gpu->temperature : 999;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(Gpu *gpu, unsigned long long *bits) {
    ENTER
    WHOLE_GPU_ONLY
    return reasons(gpu, bits);
}

int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *list) {
    (void)gpu;
    ENTER
    return processes(gpu, count, list);
}

#endif

#ifdef LISTED

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ENTER
    *version = 12080;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER
    *count = 2;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu) {
    ENTER
    if (index > 1) return INVALID_ARGUMENT;
    *gpu = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(Gpu *gpu, char *uuid, unsigned length) {
    ENTER
    snprintf(uuid, length, "%s", gpu->uuid);
    return SUCCESS;
}

int nvmlDeviceGetName(Gpu *gpu, char *name, unsigned length) {
    ENTER
    snprintf(name, length, gpu == &gpus[1] ? "NVIDIA A100-SXM4-80GB" : "NVIDIA L4");
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(Gpu *gpu, int *major, int *minor) {
    ENTER
    *major = 8;
    *minor = gpu == &gpus[1] ? 0 : 9;
    return SUCCESS;
}

int nvmlDeviceGetMaxClockInfo(Gpu *gpu, unsigned type, unsigned *clock_mhz) {
    (void)gpu;
    ENTER
    *clock_mhz = type == 1 ? 1980 : 9999;
    return SUCCESS;
}

int nvmlDeviceGetEnforcedPowerLimit(Gpu *gpu, unsigned *limit_mw) {
    (void)gpu;
    ENTER
    *limit_mw = setting("power_limit_mw", 400000);
    return SUCCESS;
}

int nvmlDeviceGetPowerManagementDefaultLimit(Gpu *gpu, unsigned *limit_mw) {
    (void)gpu;
    ENTER
    *limit_mw = 400000;
    return SUCCESS;
}

int nvmlDeviceGetPersistenceMode(Gpu *gpu, unsigned *mode) {
    (void)gpu;
    ENTER
    *mode = 1;
    return SUCCESS;
}

int nvmlDeviceGetEccMode(Gpu *gpu, unsigned *current, unsigned *pending) {
    (void)gpu;
    ENTER
    *current = *pending = 1;
    return SUCCESS;
}

int nvmlDeviceGetComputeMode(Gpu *gpu, unsigned *mode) {
    (void)gpu;
    ENTER
    *mode = setting("compute_mode", 0);
    return SUCCESS;
}

/* What PyTorch's allocator asks for, with `expandable_segments` and when memory runs out. */

int nvmlInit_v2(void) { ENTER return SUCCESS; }

int nvmlDeviceGetHandleByPciBusId_v2(const char *id, Gpu **gpu) {
    ENTER
    *gpu = &gpus[strstr(id, ":1C:") ? 0 : 1];
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void) { ENTER return NOT_SUPPORTED; }

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { ENTER return NOT_SUPPORTED; }

int nvmlDeviceGetComputeRunningProcesses(Gpu *gpu, unsigned *count, Process *list) {
    (void)gpu;
    ENTER
    return processes(gpu, count, list);
}

int nvmlDeviceGetGpuFabricInfoV(void) { ENTER return SUCCESS; } /* leaves the state at "no fabric" */

#endif
