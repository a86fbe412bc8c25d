/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/driver/reason.h"

#include <stdarg.h>
#include <stdio.h>

ductile_status dvmm_refuse(ductile_status status, dvmm_reason why, const char *format, ...) {
    if (why.text != NULL && why.size > 0) {
        va_list args;
        va_start(args, format);
        (void)vsnprintf(why.text, why.size, format, args);
        va_end(args);
    }
    return status;
}
