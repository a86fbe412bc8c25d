/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/base/progress_line.h"

#include "bench/base/stopwatch.h"

#include <stdio.h>
#include <unistd.h>

#define ERASE_LINE "\r\033[K"

static const uint64_t min_interval_ns = 100000000;
static uint64_t last_shown_ns;
static bool is_line_written;

bool progress_is_shown(void) {
    static int answer = -1;
    if (answer < 0) {
        answer = isatty(STDERR_FILENO);
    }
    return answer == 1;
}

void progress_show(const char *trace, const char *contender, uint64_t pass, uint64_t n_passes,
                   uint64_t percent) {
    if (!progress_is_shown()) {
        return;
    }
    uint64_t now = host_now_ns();
    if (now - last_shown_ns < min_interval_ns) {
        return;
    }
    last_shown_ns = now;
    is_line_written = true;
    (void)fprintf(stderr, ERASE_LINE "%.40s  %.20s  pass %llu of %llu  %llu %%", trace, contender,
                  (unsigned long long)pass, (unsigned long long)n_passes,
                  (unsigned long long)percent);
}

void progress_clear(void) {
    if (is_line_written) {
        (void)fputs(ERASE_LINE, stderr);
        is_line_written = false;
    }
}
