/*
 * A stand-in for the NVIDIA Management Library, for tests on machines without a GPU.
 *
 * It answers what a text file says, which lies beside the library and is named like it with ".script" appended. The
 * file is read anew at each call, so a test changes the box while a program runs. One "key value" a line:
 *
 *   init 0                     result of nvmlInit (9 = driver not loaded, 999 = unknown error)
 *   delay 1000                 milliseconds that each call about a GPU takes
 *   driver 580.95.05           version of the driver
 *   count 2                    number of GPUs; "count !999" is a failure with that code
 *   gpu0.handle 0              result of opening that GPU (15 = lost)
 *   gpu0.uuid GPU-…            or !CODE, as for all below
 *   gpu0.name NVIDIA L4
 *   gpu0.memory TOTAL USED FREE RESERVED      in bytes; "block" waits until the line changes, and leaves a
 *                              file with ".blocked" appended
 *   gpu0.link GENERATION GENERATION_MAX WIDTH WIDTH_MAX
 *   gpu0.mig 7                 MIG is on, and there can be so many slices; without the line MIG is not supported
 *   gpu0.slice3.uuid MIG-…     a slice that is in use; a number that has no such line is not found (6)
 *   gpu0.slice3.handle 15      result of opening that slice
 *   gpu0.slice3.name …         also gpu0.slice3.memory, as above; a slice has no link
 *
 * Each nvmlInit adds a byte to a file with ".opened" appended. What the script does not say is "not supported" (3).
 * Built with -DOLD_DRIVER the library lacks the second version of the memory call, as drivers before R510 do.
 * Signatures follow NVIDIA's public header.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SUCCESS 0u
#define INVALID_ARGUMENT 2u
#define NOT_SUPPORTED 3u
#define NOT_FOUND 6u

typedef unsigned int result_t;
typedef struct device *device_t;

typedef struct {
    unsigned long long total, free, used;
} memory_v1_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} memory_v2_t;

/* Opens the file named like this library with an ending. */
static FILE *beside(const char *ending, const char *mode) {
    Dl_info here;
    char path[4096];
    if (!dladdr((void *)beside, &here)) return NULL;
    snprintf(path, sizeof path, "%s%s", here.dli_fname, ending);
    return fopen(path, mode);
}

/* Finds the value of a key in the script. 1 where there is one. */
static int say(const char *key, char *value, size_t size) {
    char line[512];
    size_t length = strlen(key);
    int found = 0;
    FILE *file = beside(".script", "r");
    if (!file) return 0;
    while (!found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, key, length) == 0 && line[length] == ' ') {
            snprintf(value, size, "%s", line + length + 1);
            found = 1;
        }
    }
    fclose(file);
    return found;
}

/* The value of a key, or the failure that the script states in its place. */
static result_t ask(const char *key, char *value, size_t size) {
    if (!say(key, value, size)) return NOT_SUPPORTED;
    return value[0] == '!' ? (result_t)atoi(value + 1) : SUCCESS;
}

static result_t number(const char *key, unsigned int absent) {
    char value[64];
    return say(key, value, sizeof value) ? (result_t)strtoul(value, NULL, 10) : absent;
}

/* A handle is the number of the GPU plus one; that of a slice has the slice's number plus one above it. */
static device_t handle_of(unsigned int gpu, unsigned int slice_and_one) {
    return (device_t)(((unsigned long)slice_and_one << 16) + gpu + 1);
}

static unsigned long gpu_of(device_t device) { return ((unsigned long)device & 0xffff) - 1; }

static unsigned long slice_and_one_of(device_t device) { return (unsigned long)device >> 16; }

static void key_of(device_t device, const char *what, char *key, size_t size) {
    if (slice_and_one_of(device))
        snprintf(key, size, "gpu%lu.slice%lu.%s", gpu_of(device), slice_and_one_of(device) - 1, what);
    else
        snprintf(key, size, "gpu%lu.%s", gpu_of(device), what);
}

static result_t ask_gpu(device_t device, const char *what, char *value, size_t size) {
    char key[64];
    unsigned int delay = number("delay", 0);
    struct timespec pause = {delay / 1000, delay % 1000 * 1000000L};
    nanosleep(&pause, NULL);
    key_of(device, what, key, sizeof key);
    result_t result = ask(key, value, size);
    while (result == SUCCESS && strcmp(value, "block") == 0) {
        FILE *mark = beside(".blocked", "w");
        if (mark) fclose(mark);
        struct timespec moment = {0, 2000000};
        nanosleep(&moment, NULL);
        result = ask(key, value, size);
    }
    return result;
}

static result_t link_figure(device_t device, int which, unsigned int *figure) {
    char value[128];
    unsigned int figures[4];
    if (slice_and_one_of(device)) return NOT_SUPPORTED;
    result_t result = ask_gpu(device, "link", value, sizeof value);
    if (result != SUCCESS) return result;
    if (sscanf(value, "%u %u %u %u", &figures[0], &figures[1], &figures[2], &figures[3]) != 4) return INVALID_ARGUMENT;
    *figure = figures[which];
    return SUCCESS;
}

static result_t memory_figures(device_t device, memory_v2_t *memory) {
    char value[256];
    result_t result = ask_gpu(device, "memory", value, sizeof value);
    if (result != SUCCESS) return result;
    int read = sscanf(value, "%llu %llu %llu %llu", &memory->total, &memory->used, &memory->free, &memory->reserved);
    return read == 4 ? SUCCESS : INVALID_ARGUMENT;
}

result_t nvmlInitWithFlags(unsigned int flags) {
    FILE *count = beside(".opened", "a");
    (void)flags;
    if (count) {
        fputc('+', count);
        fclose(count);
    }
    return number("init", SUCCESS);
}

result_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

result_t nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(result_t result) { return result == SUCCESS ? "Success" : "Failure of the stand-in"; }

result_t nvmlSystemGetDriverVersion(char *version, unsigned int length) { return ask("driver", version, length); }

result_t nvmlDeviceGetCount_v2(unsigned int *count) {
    char value[64];
    result_t result = ask("count", value, sizeof value);
    if (result == SUCCESS) *count = (unsigned int)strtoul(value, NULL, 10);
    return result;
}

result_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, device_t *device) {
    char key[64];
    snprintf(key, sizeof key, "gpu%u.handle", index);
    *device = handle_of(index, 0);
    return number(key, SUCCESS);
}

result_t nvmlDeviceGetMigMode(device_t device, unsigned int *current, unsigned int *pending) {
    char value[64];
    result_t result = ask_gpu(device, "mig", value, sizeof value);
    if (result == SUCCESS) *current = *pending = 1;
    return result;
}

result_t nvmlDeviceGetMaxMigDeviceCount(device_t device, unsigned int *count) {
    char value[64];
    result_t result = ask_gpu(device, "mig", value, sizeof value);
    *count = result == SUCCESS ? (unsigned int)strtoul(value, NULL, 10) : 0;
    return result == NOT_SUPPORTED ? SUCCESS : result;
}

result_t nvmlDeviceGetMigDeviceHandleByIndex(device_t device, unsigned int index, device_t *slice) {
    char key[64], value[256];
    *slice = handle_of((unsigned int)gpu_of(device), index + 1);
    key_of(*slice, "uuid", key, sizeof key);
    if (!say(key, value, sizeof value)) return NOT_FOUND;
    key_of(*slice, "handle", key, sizeof key);
    return number(key, SUCCESS);
}

result_t nvmlDeviceGetUUID(device_t device, char *uuid, unsigned int length) {
    return ask_gpu(device, "uuid", uuid, length);
}

result_t nvmlDeviceGetName(device_t device, char *name, unsigned int length) {
    return ask_gpu(device, "name", name, length);
}

#ifndef OLD_DRIVER
result_t nvmlDeviceGetMemoryInfo_v2(device_t device, memory_v2_t *memory) {
    /* A caller with another layout in mind must not get an answer. */
    if (memory->version != (sizeof *memory | 2u << 24)) return INVALID_ARGUMENT;
    return memory_figures(device, memory);
}
#endif

/* The first version has no figure for the reserve and counts it as used. */
result_t nvmlDeviceGetMemoryInfo(device_t device, memory_v1_t *memory) {
    memory_v2_t figures;
    result_t result = memory_figures(device, &figures);
    if (result == SUCCESS) {
        memory->total = figures.total;
        memory->free = figures.free;
        memory->used = figures.used + figures.reserved;
    }
    return result;
}

result_t nvmlDeviceGetCurrPcieLinkGeneration(device_t device, unsigned int *figure) {
    return link_figure(device, 0, figure);
}

result_t nvmlDeviceGetMaxPcieLinkGeneration(device_t device, unsigned int *figure) {
    return link_figure(device, 1, figure);
}

result_t nvmlDeviceGetCurrPcieLinkWidth(device_t device, unsigned int *figure) {
    return link_figure(device, 2, figure);
}

result_t nvmlDeviceGetMaxPcieLinkWidth(device_t device, unsigned int *figure) {
    return link_figure(device, 3, figure);
}
