/* SPDX-License-Identifier: Apache-2.0 */
/* In a build that counts what runs, a child that ends by _exit or _Exit leaves its counts, too. */
#include <unistd.h>

void __gcov_dump(void);                  /* of gcov */
_Noreturn void __real__exit(int status); /* of the C library */
_Noreturn void __wrap__exit(int status);
_Noreturn void __real__Exit(int status);
_Noreturn void __wrap__Exit(int status);

void __wrap__exit(int status) {
    __gcov_dump();
    __real__exit(status);
}

void __wrap__Exit(int status) {
    __gcov_dump();
    __real__Exit(status);
}
