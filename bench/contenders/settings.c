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

static const char *owner_of(const char *key) {
    for (size_t i = 0; i < sizeof owned_keys / sizeof owned_keys[0]; i++) {
        if (strcmp(owned_keys[i].key, key) == 0) {
            return owned_keys[i].instead;
        }
    }
    return NULL;
}

static bool refuse(char *message, size_t size, const char *text, const char *setting) {
    (void)snprintf(message, size, "%s: '%s'", text, setting);
    return false;
}

static bool apply_one(ductile_options *options, const char *setting, char *message, size_t size) {
    char key[64];
    const char *equals = strchr(setting, '=');
    if (equals == NULL) {
        return refuse(message, size, "a setting is key=value", setting);
    }
    size_t length = (size_t)(equals - setting);
    if (length >= sizeof key) {
        return refuse(message, size, "no such option", setting);
    }
    memcpy(key, setting, length);
    key[length] = '\0';
    if (owner_of(key) != NULL) {
        (void)snprintf(message, size, "%s is chosen with %s", key, owner_of(key));
        return false;
    }
    return ductile_options_set(options, key, equals + 1, message, size) == DUCTILE_OK;
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
