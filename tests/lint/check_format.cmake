# SPDX-License-Identifier: Apache-2.0
# The whole tree is formatted by one pinned version: others disagree about details.
cmake_minimum_required(VERSION 3.23)

find_program(CLANG_FORMAT NAMES clang-format-14 clang-format)
if(CLANG_FORMAT)
  execute_process(COMMAND ${CLANG_FORMAT} --version OUTPUT_VARIABLE version)
endif()
if(NOT version MATCHES "version 14\\.")
  message("skipped: clang-format 14 is not installed")
  return()
endif()

file(GLOB_RECURSE files ${ROOT}/vmm/*.[ch] ${ROOT}/segments/*.[ch] ${ROOT}/pool/*.[ch]
  ${ROOT}/bench/*.[ch] ${ROOT}/bench/*.[ch]pp ${ROOT}/tests/*.[ch]
  ${ROOT}/extras/*.[ch] ${ROOT}/extras/*.[ch]pp)
if(NOT files)
  message(FATAL_ERROR "no file was looked at")
endif()
execute_process(COMMAND ${CLANG_FORMAT} --dry-run --Werror ${files} RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "run clang-format-14 -i on the files above")
endif()
