/* SPDX-License-Identifier: Apache-2.0 */
/* What Python sees of PyTorch's adapter, for tests without PyTorch. LAYOUT: sizes of the structs
 * that both sides share. STUB_LOG gets the options; STUB_DISPLACED: another allocator has come;
 * STUB_SERVES: of device 0 there is one once CUDA is in use. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#define API __attribute__((visibility("default")))

static const size_t layout[] = {LAYOUT};
static int installed;
static int serving;

static void say(const char *what, const char *text) {
    FILE *log = fopen(getenv("STUB_LOG"), "a");
    if (log != NULL) {
        fprintf(log, "%s %s\n", what, text);
        fclose(log);
    }
}

API const char *ductile_torch_built_for(void) {
    return "2.15";
}

API const size_t *ductile_torch_layout(void) {
    return layout;
}

API int ductile_torch_set_options(const char *text, char *message, size_t size) {
    (void)message;
    (void)size;
    say("options", text);
    return 0;
}

API int ductile_torch_install(char *message, size_t size) {
    if (getenv("STUB_REFUSES") != NULL) {
        snprintf(message, size, "the stub refuses");
        return 1;
    }
    installed = serving = 1;
    return 0;
}

API int ductile_torch_is_installed(void) {
    return installed && getenv("STUB_DISPLACED") == NULL;
}

API int ductile_torch_gather(void (*take)(void), char *message, size_t size) {
    (void)take;
    (void)message;
    (void)size;
    return 0;
}

API void *ductile_torch_allocator(int device) {
    return device == 0 && getenv("STUB_SERVES") != NULL ? (void *)layout : NULL;
}

API void *ductile_torch_open(int device, char *message, size_t size) {
    (void)device;
    snprintf(message, size, "the stub has no devices");
    return NULL;
}

API int ductile_torch_leave(char *message, size_t size) {
    (void)message;
    (void)size;
    serving = 0;
    return 0;
}

API int ductile_torch_refresh(int names_fraction, char *message, size_t size) {
    (void)names_fraction;
    (void)message;
    (void)size;
    return 0;
}

API int ductile_torch_inherited(void) {
    return 0;
}

API int ductile_torch_is_serving(void) {
    return serving && ductile_torch_is_installed();
}
