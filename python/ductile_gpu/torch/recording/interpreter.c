/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "interpreter.h"

#include <dlfcn.h>
#include <stddef.h>

interpreter python;

static bool find_function(void *out, const char *name) {
    void *found = dlsym(RTLD_DEFAULT, name);
    *(void **)out = found;
    return found != NULL;
}

static bool find_all(void) {
    return find_function(&python.is_alive, "Py_IsInitialized") &&
           find_function(&python.own_state, "PyGILState_GetThisThreadState") &&
           find_function(&python.lock, "PyGILState_Ensure") &&
           find_function(&python.unlock, "PyGILState_Release") &&
           find_function(&python.current, "PyEval_GetFrame") &&
           find_function(&python.back, "PyFrame_GetBack") &&
           find_function(&python.code, "PyFrame_GetCode") &&
           find_function(&python.line, "PyFrame_GetLineNumber") &&
           find_function(&python.keep, "Py_IncRef") && find_function(&python.drop, "Py_DecRef") &&
           find_function(&python.attribute, "PyObject_GetAttrString") &&
           find_function(&python.text, "PyUnicode_AsUTF8AndSize") &&
           find_function(&python.fetch, "PyErr_Fetch") &&
           find_function(&python.restore, "PyErr_Restore");
}

/* What not every version has. */
static void find_rest(void) {
    if (!find_function(&python.is_ending, "Py_IsFinalizing")) {
        (void)find_function(&python.is_ending, "_Py_IsFinalizing");
    }
    if (!find_function(&python.instruction, "PyFrame_GetLasti")) {
        python.instruction = python.line;
    }
    if (!find_function(&python.stop_collector, "PyGC_Disable") ||
        !find_function(&python.start_collector, "PyGC_Enable")) {
        python.stop_collector = NULL;
    }
}

bool interpreter_find(void) {
    static bool is_found;
    if (!is_found && find_all()) {
        find_rest();
        is_found = true;
    }
    return is_found;
}
