/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/contenders/settings.h"

#include <stdio.h>
#include <string.h>

/* The bench chooses these itself; a setting that were overruled in silence would lie. */
static const struct {
    const char *key;
    const char *instead;
} owned_keys[] = {
    {"driver", "--device"},
    {"device", "--device"},
    {"limit_bytes", "--capacity"},
};

/* Does the pair that begins here set this key? */
static bool names(const char *pair, const char *key) {
    pair += strspn(pair, " \t\n");
    size_t length = strcspn(pair, ":=, \t\n");
    return length == strlen(key) && strncmp(pair, key, length) == 0;
}

static bool refuse_owned(const char *pair, char *message, size_t size) {
    for (size_t i = 0; i < sizeof owned_keys / sizeof owned_keys[0]; i++) {
        if (names(pair, owned_keys[i].key)) {
            (void)snprintf(message, size, "%s is chosen with %s", owned_keys[i].key,
                           owned_keys[i].instead);
            return true;
        }
    }
    return false;
}

static bool apply_one(ductile_options *options, const char *setting, char *message, size_t size) {
    for (const char *pair = setting; pair != NULL; pair = strchr(pair, ',')) {
        pair += *pair == ',';
        if (refuse_owned(pair, message, size)) {
            return false;
        }
    }
    return ductile_options_parse(options, setting, message, size) == DUCTILE_OK;
}

bool settings_apply(ductile_options *options, const char *const *settings, size_t n_settings,
                    char *message, size_t message_size) {
    for (size_t i = 0; i < n_settings; i++) {
        if (!apply_one(options, settings[i], message, message_size)) {
            return false;
        }
    }
    return true;
}
