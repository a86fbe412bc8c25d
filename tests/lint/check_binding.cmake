# SPDX-License-Identifier: Apache-2.0
# The Python binding can be made from the public headers and the table of options: python/tools/make_abi.py reads
# whatever stands in them, and what it writes is Python. python/tests/test_abi.py compares it to the compiler.
cmake_minimum_required(VERSION 3.23)

find_program(PYTHON python3)
if(NOT PYTHON)
  message("skipped: there is no python3")
  return()
endif()
file(GLOB headers ${ROOT}/pool/include/*.h)
file(GLOB_RECURSE options ${ROOT}/pool/options.c)
file(MAKE_DIRECTORY ${SCRATCH})
execute_process(COMMAND ${PYTHON} ${ROOT}/python/tools/make_abi.py ${SCRATCH}/_abi.py
    ${options} ${headers} ${ROOT}/bench/contenders/names.h
  RESULT_VARIABLE status ERROR_VARIABLE error)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${error}\nA header is written in a way that the reader of python/tools/make_abi.py "
    "does not know: teach it there.")
endif()
execute_process(COMMAND ${PYTHON} -W error ${SCRATCH}/_abi.py COMMAND_ERROR_IS_FATAL ANY)
