/* SPDX-License-Identifier: Apache-2.0 */
/* Names and sentences of every status, from the one list in ductile.h. */
#include "vmm/base/status.h"

const char *ductile_status_name(ductile_status status) {
    switch (status) {
#define STATUS_NAME(name, value, sentence)                                                         \
    case DUCTILE_##name:                                                                           \
        return "DUCTILE_" #name;
        DUCTILE_STATUS_MAP(STATUS_NAME)
#undef STATUS_NAME
    }
    return "DUCTILE_ERR_UNKNOWN";
}

const char *ductile_status_string(ductile_status status) {
    switch (status) {
#define STATUS_SENTENCE(name, value, sentence)                                                     \
    case DUCTILE_##name:                                                                           \
        return sentence;
        DUCTILE_STATUS_MAP(STATUS_SENTENCE)
#undef STATUS_SENTENCE
    }
    return "not a status of this version";
}
